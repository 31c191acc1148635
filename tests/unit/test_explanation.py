"""One step explained: hand answers on conformance cases, words, and the choice of a step."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.case_text import parse_case, read_case
from conformance.profile_tables import profile_of
from xprof_py.errors import UsageError
from xprof_py.postprocess.fleet.analysis import Analysis, partials, reduce_partials
from xprof_py.postprocess.rules.explanation import explain_step

CASES = Path(__file__).parent.parent / "conformance" / "cases"

LOOP = """
title: Six steps of 20 ms; step 4 recompiles for 30 ms and waits 7 ms more for its batch
unit ms
capture 0..170

program f@1 at train.py:10
  dot.1 = dot()
program f@2 at train.py:10
  dot.1 = dot()

thread main
{steps}

lane 0
{runs}
"""


def loop() -> str:
    """Each step: 4 ms input, 2 ms launch, 12 ms computing, 2 ms until the wait returns."""
    steps, runs, at = [], [], 0
    for number in range(6):
        slow = number == 4
        batch, compiling = (11, 30) if slow else (4, 0)
        launch = at + batch + compiling
        steps += [f"step {number} {at}..{launch + 16}", f"  input {at}..{at + batch}"]
        steps += [f"  dispatch f {at + batch}..{launch + 2}"]
        if slow:
            steps += [f"    compile {at + batch}..{at + batch + 30}"]
        steps += [f"    launch {launch}..{launch + 2}", f"  wait {launch + 2}..{launch + 15}"]
        runs += [f"run f@{2 if number >= 4 else 1} {number + 1}", f"  dot.1 {launch + 2}..{launch + 14}"]
        at = launch + 16
    return LOOP.format(steps="\n".join(f"  {line}" for line in steps), runs="\n".join(f"  {line}" for line in runs))


@cache
def analysed(name: str) -> Analysis:
    """``loop``, or a conformance case."""
    case = parse_case(loop(), name) if name == "loop" else read_case(CASES / f"{name}.case")
    return reduce_partials([partials(profile_of(case, "shard"))], [])


def explained(case: str, number: int, **choice: Any) -> dict[str, Any]:
    found = analysed(case)
    return explain_step(found.summary, found.tables, number, **choice)


def test_a_late_launch_in_words() -> None:
    """Case late_launch: the 5 ms gap of step 1 is 3 ms input and 2 ms dispatch, though only dispatch overlaps it."""
    found = explained("late_launch", 1)
    (gap,) = found["gaps"]
    assert gap["length_ms"] == 5
    assert gap["launch"]["late_ms"] == 5
    assert gap["launch"]["thread"]
    assert [(cause["cause"], cause["ms"], cause["step"]) for cause in gap["causes"]] == [
        ("input", 3, 1),
        ("host", 2, 1),
    ]
    assert "`jit_f` (train.py:10) was launched 5 ms late" in gap["text"]
    assert "waiting for the next batch" in gap["causes"][0]["text"]
    assert found["step"]["window_ms"] == 50
    assert {row["class"]: row["ms"] for row in found["classes"]} == {"compute": 45, "input": 3, "host": 2}


def test_what_is_different_from_the_other_steps() -> None:
    """Step 4's window: 2 ms wait, 11 input, 30 compiler, 2 host, 12 compute, where the others have 2, 4, 0, 2, 12."""
    found = explained("loop", 4)
    assert found["compared_with"] == {"steps": 5, "median_ms": 20, "difference_ms": 37}
    different = {row["class"]: row["difference_ms"] for row in found["classes"] if row["difference_ms"]}
    assert different == {"compiler": 30, "input": 7}
    assert found["sentence"] == (
        "Step 4 took 57 ms, 53% of it compiler: 37 ms longer than the median of 5 other steady steps (20 ms), "
        "+30 ms compiler, +7 ms input."
    )
    (compiled,) = found["compiles"]
    assert (compiled["function"], compiled["stage"], compiled["ms"]) == ("f", "compile", 30)
    assert compiled["source"] == "train.py:10"
    assert found["ops"][0]["op"] == "dot.1"
    assert (found["ops"][0]["ms"], found["ops"][0]["difference_ms"]) == (12, 0)
    assert found["ops"][0]["source"] == "train.py:10"
    assert found["runs"] == {"count": 1, "functions": {"f": 1}, "join": {"order": 1}}


def test_a_usual_step_is_said_to_be_one() -> None:
    assert "as long as the median" in explained("loop", 2)["sentence"]


def test_unknown_says_what_was_seen_instead() -> None:
    """Case input_between_steps: 10..11 the wait, 11..12 step 0 alone, input 8, 20..22 step 1 alone, 2 of dispatch."""
    found = explained("input_between_steps", 1)
    assert found["unknown"]["ms"] == 3
    why = {row["text"]: row["ms"] for row in found["unknown"]["why"]}
    assert sorted(why.values()) == [1, 2]
    assert any("(in step 0)" in text for text in why)
    assert all("says nothing" in text for text in why)
    assert found["compared_with"] is None


def test_the_device_can_be_far_behind_the_host() -> None:
    found = explained("async_run_ahead", 1)
    assert found["host_span"]["device_behind_ms"] > 0


def test_the_lane_with_the_longest_window_is_explained() -> None:
    windows = [row for row in analysed("two_lanes").tables["step_classes"].to_pylist() if row["kind"] == "step"]
    number = windows[-1]["number"]
    mine = {row["lane"]: row["window_ps"] / 1e9 for row in windows if row["number"] == number}
    found = explained("two_lanes", number)
    assert found["step"]["window_ms"] == max(mine.values())
    assert {row["lane"] for row in found["other_lanes"]} == set(mine) - {found["step"]["lane"]}
    for lane, window_ms in mine.items():
        assert explained("two_lanes", number, lane=lane)["step"]["window_ms"] == window_ms


def test_a_host_without_a_device_is_explained_too() -> None:
    found = explained("no_device", analysed("no_device").tables["steps"]["number"][0].as_py())
    assert all("without a device" in gap["text"] for gap in found["gaps"])
    assert found["gaps"]
    assert found["ops"] == []


def test_a_step_that_could_not_be_measured_says_why() -> None:
    rows = analysed("empty_steps").tables["step_classes"].to_pylist()
    number = next(row["number"] for row in rows if row["phase"] == "unmeasured")
    found = explained("empty_steps", number)
    assert "could not be measured" in found["sentence"]
    assert found["gaps"] == []


def test_a_step_that_ran_twice_is_the_first_one_and_says_so() -> None:
    rows = [row for row in analysed("resumed_run").tables["step_classes"].to_pylist() if row["kind"] == "step"]
    number = next(row["number"] for row in rows if row["occurrence"] == 1)
    first, second = explained("resumed_run", number), explained("resumed_run", number, occurrence=1)
    assert (first["step"]["occurrence"], second["step"]["occurrence"]) == (0, 1)
    assert "--occurrence" in first["notes"][0]
    assert first["step"]["start_ms"] < second["step"]["start_ms"]


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(UsageError, match="steps 0 to 5"):
        explained("loop", 99)
    with pytest.raises(UsageError, match="--name"):
        explained("loop", 1, name="eval")
    with pytest.raises(UsageError, match="lane 0"):
        explained("loop", 1, lane=7)
    with pytest.raises(UsageError, match=r"occurrences \[0\]"):
        explained("loop", 1, occurrence=3)
    with pytest.raises(UsageError, match="nested"):
        explained("nested_steps", 1)


def test_each_host_has_its_own_steps() -> None:
    """Rows of a host's tables start at 0: the second host's step must not be looked up among the first's."""
    profile = profile_of(parse_case(loop(), "loop"), "shard")
    short = profile_of(read_case(CASES / "late_launch.case"), "shard")
    parts = [partials(replace(short, host="a")), partials(replace(profile, host="b"))]
    found = reduce_partials(parts, [])
    told = explain_step(found.summary, found.tables, 4)
    assert told["step"]["host"] == "b"
    assert told["compiles"][0]["function"] == "f"
    assert told["ops"][0]["ms"] == 12
    with pytest.raises(UsageError, match="b lane 0"):
        explain_step(found.summary, found.tables, 4, host="a")
