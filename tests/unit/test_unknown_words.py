"""Time that nothing explains: the frame and the program's own span are told apart, and the advice is one that helps."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from conformance.case_text import parse_case, read_case
from conformance.profile_tables import profile_of
from xprof_py.postprocess.fleet.analysis import Analysis, partials, reduce_partials
from xprof_py.postprocess.rules.explanation import explain_step
from xprof_py.viewers.terminal_explain import render_explanation

CASES = Path(__file__).parent.parent / "conformance" / "cases"

STEPS = """
title: Six steps of 20 ms: 16 waiting, {where}
unit ms
capture 0..120
needs shard

thread main
{steps}
"""


@cache
def analysed(span: bool, sampled: bool) -> Analysis:
    """Steps whose thread waits for 16 of 20 ms, in a span `prepare` or in none, with samples of it or without."""
    lines = []
    for number in range(6):
        at = 20 * number
        lines.append(f"  step {number} {at}..{at + 20}")
        if span:
            lines.append(f"    span prepare {at + 2}..{at + 18}")
        if sampled:
            lines += [f"  sample {at + ms} off train.py:7:<module>" for ms in (4, 8, 12, 16)]
    case = parse_case(STEPS.format(where="in a span" if span else "in none", steps="\n".join(lines)), "made up")
    return reduce_partials([partials(profile_of(case, "shard"))], [])


def causes(found: Analysis) -> list[str]:
    step = explain_step(found.summary, found.tables, 2)
    return [cause["text"] for gap in step["gaps"] for cause in gap["causes"]]


def test_a_sampled_place_is_no_span() -> None:
    assert causes(analysed(span=True, sampled=True)) == [
        "the thread waited at `train.py:7 <module>` in `prepare`, and nothing says for what"
    ]
    step = explain_step(analysed(True, True).summary, analysed(True, True).tables, 2)
    (cause,) = step["gaps"][0]["causes"]
    assert (cause["span"], cause["sampled"]) == ("prepare", True)


def test_a_sampled_place_in_no_span() -> None:
    assert causes(analysed(span=False, sampled=True)) == [
        "the thread waited at `train.py:7 <module>`, and nothing says for what"
    ]


def test_a_span_that_was_open_is_named() -> None:
    assert causes(analysed(span=True, sampled=False))[0] == (
        "only `prepare` was open, which says nothing of what the thread did"
    )


@pytest.mark.parametrize("sampled", [True, False])
def test_a_trace_that_is_there_is_not_advised(sampled: bool) -> None:
    advice = analysed(span=True, sampled=sampled).summary["verdict"]["advice"]
    assert advice.startswith("Most of it lies in `prepare`: ")
    assert "with input_wait()" in advice
    assert "with trace" not in advice


def test_where_there_is_none_it_is() -> None:
    assert "`with trace(...)`" in analysed(span=False, sampled=True).summary["verdict"]["advice"]


def test_the_summary_tells_the_spans_that_were_open_from_the_frames() -> None:
    told = [(row["why"], row["spans"]) for row in analysed(True, True).summary["unknown"]]
    assert told[0] == ("the thread waited at train.py:7 <module>, and nothing says for what", ["prepare"])
    assert all("train.py" not in span for _, spans in told for span in spans)


@pytest.mark.parametrize(("number", "words"), [(0, "where the host began it"), (2, "where the step before ended")])
def test_a_step_says_from_where_it_is_counted(number: int, words: str) -> None:
    found = analysed(span=True, sampled=True)
    assert explain_step(found.summary, found.tables, number)["step"]["counted_from"] == words


def test_on_a_device_it_is_counted_from_the_device_s_last_end() -> None:
    case = read_case(CASES / "late_launch.case")
    found = reduce_partials([partials(profile_of(case, "shard"))], [])
    told = explain_step(found.summary, found.tables, 1)
    assert told["step"]["counted_from"] == "where the device ended the step before"
    shown = render_explanation(told, color=False, width=100)
    assert "counted from where the device ended the step before" in " ".join(shown.split())
