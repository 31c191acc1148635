"""How far the host was ahead of the device: hand answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings

from conformance.case_text import parse_case, read_case
from conformance.profile_tables import profile_of
from conformance.random_cases import case_texts
from xprof_py.postprocess.analyses import run_ahead
from xprof_py.postprocess.fleet.analysis import Analysis, partials, reduce_partials
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.rules.explanation import explain_step
from xprof_py.postprocess.rules.run_ahead_words import unblock_advice

CASES = Path(__file__).parent.parent / "conformance" / "cases"

BLOCKING = """
title: Every step reads its batch, launches and waits
unit ms
capture 0..{end}

thread main
{steps}

lane 0
{runs}
"""


def analysed(text_or_name: str) -> Analysis:
    is_name = "\n" not in text_or_name
    case = read_case(CASES / f"{text_or_name}.case") if is_name else parse_case(text_or_name, "made up")
    return reduce_partials([partials(profile_of(case, "shard"))], [])


def rows(found: Analysis, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in found.tables["run_ahead"].to_pylist()]


def loop(count: int, blocks: bool) -> str:
    """Steps of 8 ms input, 2 ms launch and 10 ms computing, blocking or with the wait at the end of all."""
    steps, runs, at, device = [], [], 0, 0
    for number in range(count):
        launched = at + 10
        device = max(launched, device) + 10
        runs += [f"  run f {number + 1}", f"    dot.1 {device - 10}..{device}"]
        end = device if blocks else launched
        steps += [f"  step {number} {at}..{end}", f"    input {at}..{at + 8}", f"    launch f {at + 8}..{launched}"]
        if blocks:
            steps.append(f"    wait {launched}..{device}")
        at = end
    if not blocks:
        steps.append(f"  wait {at}..{device}")
    return BLOCKING.format(end=device, steps="\n".join(steps), runs="\n".join(runs))


def test_runs_that_queue_are_counted_where_the_step_was_launched() -> None:
    """Case async_run_ahead, launches end at 3, 7, 11, runs 3..17, 17..31, 31..45, one wait 12..46 after step 2.

    At 7 run 0 has not ended, and its own run begins at 17: 10 ms. At 11 neither 0 nor 1 has: 20 ms.
    """
    found = analysed("async_run_ahead")
    ms = 10**9
    assert rows(found, "number", "ahead_ps", "ahead_runs", "ahead_steps", "blocked_ps") == [
        (0, 0, 0, 0, 0),
        (1, 10 * ms, 1, 1, 0),
        (2, 20 * ms, 2, 2, 34 * ms),
    ]
    ahead = found.summary["run_ahead"]
    assert (ahead["median_ms"], ahead["median_steps"], ahead["mean_steps"], ahead["steps"]) == (10, 1, 1, 3)
    assert ahead["steps_that_blocked"] == 1


def test_a_loop_that_blocks_is_never_ahead_and_the_advice_says_so() -> None:
    found = analysed(loop(6, blocks=True))
    assert {row[1:] for row in rows(found, "number", "ahead_steps", "blocked_ps")} == {(0, 10 * 10**9)}
    ahead = found.summary["run_ahead"]
    assert (ahead["median_steps"], ahead["steps_that_blocked"], ahead["blocked_ms"]) == (0, 6, 10)
    assert found.summary["verdict"]["bottleneck"] == "input"
    advice = found.summary["verdict"]["advice"]
    assert "waits for the device in 6 of 6 steps (10 ms a step)" in advice
    assert "do not block every step" in advice


def test_waits_of_less_than_a_tenth_of_the_step_are_no_advice() -> None:
    ahead = {"steps": 10, "median_steps": 0.0, "steps_that_blocked": 10, "blocked_ms": 0.9}
    assert unblock_advice("input", ahead, 10.0) == ""
    assert unblock_advice("input", {**ahead, "blocked_ms": 1.0}, 10.0) != ""
    assert unblock_advice("compute", {**ahead, "blocked_ms": 1.0}, 10.0) == ""


def test_a_loop_that_runs_ahead_is_not_told_to() -> None:
    found = analysed(loop(6, blocks=False))
    assert found.summary["run_ahead"]["steps_that_blocked"] == 1
    assert "block" not in found.summary["verdict"]["advice"]


def test_explain_says_how_far_the_host_was_ahead() -> None:
    found = analysed("async_run_ahead")
    ahead = explain_step(found.summary, found.tables, 2)["run_ahead"]
    assert (ahead["ahead_ms"], ahead["runs"], ahead["steps"], ahead["blocked_ms"]) == (20, 2, 2, 34)
    assert (
        ahead["text"] == "the host was 2 steps ahead: its launch waited 20 ms for the device, behind 2 unfinished runs"
    )
    blocking = analysed(loop(4, blocks=True))
    text = explain_step(blocking.summary, blocking.tables, 2)["run_ahead"]["text"]
    assert text == "the host was not ahead: the device had nothing left to do when this step was launched"


def test_steps_without_a_joined_run_have_no_row() -> None:
    found = analysed("ambiguous_order")
    unjoined = {run["step"] for run in found.tables["runs"].to_pylist() if run["launch"] is not None}
    assert {row[0] for row in rows(found, "step")} == unjoined - {None}


def test_without_a_device_nothing_is_claimed() -> None:
    found = analysed("no_device")
    assert found.tables["run_ahead"].num_rows == 0
    assert found.summary["run_ahead"] is None


LAUNCHED_AT_ONCE = """\
title: two threads launch at the very same moment
unit us
capture 0..25
thread t0
  step train/0 0..2
    launch f0a 0..1
  step train/1 2..8
    launch f0b 6..7
thread t1
  step eval/1 3..8
    launch f1b 6..7
lane 0
  run f0a 0
    dot.0 2..4
  run f0b 1
    all-reduce.0 7..8
  run f1b 0
    add.0 8..9
"""


@example(LAUNCHED_AT_ONCE)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case_texts() | case_texts(lanes=2))
def test_counting_run_by_run_and_wait_by_wait_gives_the_same(text: str) -> None:
    joined = join_profile(profile_of(parse_case(text, "random"), "shard"))
    launches, waits = joined["launches"].to_pylist(), joined["device_waits"].to_pylist()
    rows = run_ahead.partial(joined).to_pylist()
    runs = [{**run, "at": launches[run["launch"]]} for run in joined["runs"].to_pylist() if run["launch"] is not None]
    firsts: dict[tuple[int, int], dict[str, Any]] = {}
    for run in sorted(runs, key=lambda run: run["at"]["start_ps"]):
        if run["step"] is not None:
            firsts.setdefault((run["lane"], run["step"]), run)
    assert {(row["lane"], row["step"]) for row in rows} == set(firsts)
    for row in rows:
        first = firsts[row["lane"], row["step"]]
        begun, told = first["at"]["start_ps"], first["at"]["end_ps"]
        left = [r for r in runs if r["lane"] == row["lane"] and r["at"]["start_ps"] < begun and r["end_ps"] > told]
        others = {run["step"] for run in left} - {None, row["step"]}
        assert (row["ahead_runs"], row["ahead_steps"]) == (len(left), len(others))
        assert row["ahead_ps"] == max(first["start_ps"] - told, 0)
        later = [f["at"]["start_ps"] for (lane, _), f in firsts.items() if lane == row["lane"]]
        until = min((at for at in later if at > begun), default=1 << 62)
        mine = [
            w for w in waits if w["line"] == first["at"]["line"] and w["for_work"] and begun <= w["start_ps"] < until
        ]
        assert row["blocked_ps"] == sum(wait["end_ps"] - wait["start_ps"] for wait in mine)
