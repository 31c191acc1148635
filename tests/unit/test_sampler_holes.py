"""Time that stayed unknown because the sampler did not look is said, and time that it looked at is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.case_text import parse_case
from conformance.profile_tables import profile_of
from xprof_py.collectors import stacks
from xprof_py.postprocess import schema
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.join.sampler_holes import USUAL_PERIOD_NS

MS = 10**9

CASE = """
title: {title}
unit ms
capture 0..200
needs shard

thread main
  step 0 0..200
{body}

expect lane host
  head 0..0
  step 0 0..200 : ?
"""


def noted(body: str, interval_ms: int = 10, takes_gil: str = "", **stacks_totals: Any) -> list[dict[str, Any]]:
    profile = profile_of(parse_case(CASE.format(title="made up", body=body), "made up"), "shard")
    samples = profile["stack_samples"]
    intervals = schema.table(
        "stack_samples",
        {
            **{name: samples[name] for name in samples.column_names},
            "interval_ps": [interval_ms * MS] * samples.num_rows,
        },
    )
    run = {
        "overhead": {"stacks": stacks_totals},
        "collectors": {"stacks": {"used": True, "takes_gil": takes_gil}},
        "start": {"monotonic_ns": 0},
        "stop": {"monotonic_ns": 2_000_000_000},
    }
    profile = replace(profile.with_tables(stack_samples=intervals), metadata={**profile.metadata, "run": run})
    rows = join_profile(profile)["diagnostics"].to_pylist()
    return [row for row in rows if row["code"].startswith("sampler_")]


def sampled(*at: int, then: str = "") -> str:
    return "\n".join([*(f"  sample {time} on work.py:3:work" for time in at), *then.splitlines()])


SPANS = "  checkpoint 40..50\n  checkpoint 140..150"


def test_a_long_stretch_without_a_look_is_named_with_its_length_and_place() -> None:
    """Spans at 40..50 and 140..150 part the step: no look from 30 to 160."""
    (row,) = noted(sampled(10, 20, 30, 160, 170, 180, 190, then=SPANS), looks=400, cost_ns=4_000_000, taken_by_force=3)
    assert (row["code"], row["severity"], row["count"]) == ("sampler_holes", "warning", 1)
    assert row["place"].startswith("thread ")
    assert row["message"] == (
        "no stack was looked at in time that stayed unknown (400 looks cost 4.0 ms, and their cost is bounded; 3 had "
        "to wait for code that kept Python's lock): 130 ms from 0.030 s on"
    )


def test_a_stretch_that_was_looked_at_is_no_hole() -> None:
    assert noted(sampled(10, 20, 90, 160, then=SPANS)) == []


def test_a_thread_without_a_frame_was_looked_at_all_the_same() -> None:
    assert noted(sampled(10, 20, 160, then=SPANS + "\n  sample 90 on")) == []


def test_a_stretch_of_fewer_than_five_intervals_is_no_hole() -> None:
    assert noted(sampled(10, 30, 160, then=SPANS), interval_ms=26) == []
    assert len(noted(sampled(10, 30, 160, then=SPANS), interval_ms=25)) == 1


def test_spans_that_cut_the_time_do_not_hide_that_nobody_looked() -> None:
    """Steps of another kind of span part the 130 ms into stretches of 20 ms: it is one hole all the same."""
    cut = "".join(f"\n  checkpoint {at}..{at + 10}" for at in (40, 70, 100, 130))
    (row,) = noted(sampled(10, 20, 30, 160, then=cut))
    assert row["count"] == 1
    assert row["message"].endswith("130 ms from 0.030 s on")


def test_where_a_span_explains_it_nobody_had_to_look() -> None:
    assert noted(sampled(10, 20, 160, then="  checkpoint 40..150")) == []


def test_without_a_sampler_there_are_no_holes() -> None:
    assert noted(SPANS) == []


def test_threads_left_out_and_seldom_looks_are_said() -> None:
    rows = noted(sampled(10), looks=8, cost_ns=9_000_000, threads_left_out=3)
    assert [(row["code"], row["count"]) for row in rows] == [("sampler_threads_left_out", 3), ("sampler_slow", 1)]
    assert "every 250 ms instead of every 10" in rows[1]["message"]


def test_the_sdk_and_the_join_agree_on_the_usual_period() -> None:
    assert USUAL_PERIOD_NS == stacks.PERIOD_NS


def test_looks_that_take_the_lock_are_noted_with_the_reason() -> None:
    (row,) = noted(sampled(*range(5, 200, 10)), takes_gil="the layout is not known")
    assert (row["code"], row["severity"]) == ("sampler_takes_gil", "note")
    assert row["message"].endswith("the layout is not known")


def test_torn_looks_are_counted() -> None:
    (row,) = noted(sampled(*range(5, 200, 10)), torn=3)
    assert (row["code"], row["severity"], row["count"]) == ("sampler_torn", "note", 3)
