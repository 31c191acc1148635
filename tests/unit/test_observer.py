"""What recording costs a program: the times that it keeps of its steps, and what they say."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import xprof_py
from xprof_py.observer import KEPT, StepTimes
from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.rules.observer import observer_notes, observer_summary


def entered(times: StepTimes, stage: str | None, *starts_ns: int, name: str = "train", thread: int = 1) -> None:
    for start_ns in starts_ns:
        times.entered(stage, thread, name, start_ns)  # type: ignore[arg-type]


def test_a_time_is_from_start_to_start_within_a_stage() -> None:
    times = StepTimes()
    entered(times, "before", 0, 10, 25)
    times.begins("inside", 1, "train", 40)
    entered(times, "inside", 60, 90)
    entered(times, None, 100, 200)
    entered(times, "after", 300, 311)
    assert times.document("train") == {"name": "train", "before_ns": [10, 15], "inside_ns": [20, 30], "after_ns": [11]}


def test_an_evaluation_between_two_steps_makes_no_slow_step() -> None:
    times = StepTimes()
    entered(times, "before", 0, 10)
    entered(times, "before", 20, name="eval")
    entered(times, "before", 500, 510)
    assert times.document("train")["before_ns"] == [10, 10]


def test_threads_do_not_mix() -> None:
    times = StepTimes()
    entered(times, "before", 0, thread=1)
    entered(times, "before", 5, thread=2)
    entered(times, "before", 10, thread=1)
    assert times.document("train")["before_ns"] == [10]


def test_memory_is_bounded_the_last_before_the_first_after() -> None:
    times = StepTimes()
    entered(times, "before", *(i * i for i in range(1000)))
    assert times.document("train")["before_ns"] == [2 * i + 1 for i in range(999 - KEPT, 999)]
    entered(times, "after", *(i * i for i in range(1000)))
    assert times.document("train")["after_ns"] == [2 * i + 1 for i in range(KEPT)]
    assert times.is_full("train")
    for i in range(1000):
        entered(times, "before", 0, 1, name=f"step {i}")
    assert times.document("step 999")["before_ns"] == []


def process(before: list[object], inside: list[object], after: list[object]) -> dict[str, object]:
    observer = {"name": "train", "before_ns": before, "inside_ns": inside, "after_ns": after}
    return {"host": "h", "overhead": {"recorder": {"dropped": 3}}, "observer": observer}


MS = 1_000_000


def test_a_slowdown_is_told_with_its_factor() -> None:
    before = [10 * MS + i for i in range(8)]
    inside = [13 * MS + i for i in range(9)]
    found = observer_summary([process(before, inside, [10 * MS + 4])])
    assert found is not None
    assert found["ratio"] == pytest.approx(1.3)
    assert (found["step_ms_before"], found["step_ms_after"]) == (pytest.approx(10), pytest.approx(10))
    assert (found["steps_before"], found["steps_inside"], found["steps_after"], found["dropped"]) == (8, 9, 1, 3)
    assert found["slower"]
    (note,) = observer_notes(found)
    assert (note["severity"], note["code"]) == ("warning", "observer_effect")
    assert "1.30 times as long" in note["message"]


def test_drift_of_the_program_itself_is_no_effect_of_the_observer() -> None:
    """Steps that grow from 10 to 14 ms by themselves are 12 ms in the middle, whoever watches."""
    found = observer_summary([process([10 * MS] * 8, [12 * MS] * 8, [14 * MS] * 8)])
    assert found is not None
    assert found["ratio"] == pytest.approx(1.0)
    assert observer_notes(found) == []


@pytest.mark.parametrize(
    ("inside", "why"), [([13 * MS] * 2, "two steps show nothing"), ([10 * MS + 200_000] * 9, "2 % is little")]
)
def test_too_few_or_too_little_is_no_warning(inside: list[object], why: str) -> None:
    found = observer_summary([process([10 * MS + i for i in range(8)], inside, [])])
    assert found is not None
    assert observer_notes(found) == [], why


def test_nothing_is_made_up_where_nothing_was_seen() -> None:
    assert observer_summary([{"host": "h", "observer": None}]) is None
    assert observer_summary([process([], [], [])]) is None
    found = observer_summary([process([], [5 * MS, "x", True, -1], [])])
    assert found is not None
    assert (found["ratio"], found["step_ms_before"], found["step_ms_inside"], found["p"]) == (None, None, 5.0, 1.0)
    assert observer_notes(found) == []


def test_a_capture_of_some_steps_sees_the_others(tmp_path: Path) -> None:
    """Steps that sleep 2 ms, and 20 ms while they are recorded: what such a recorder would cost."""
    with xprof_py.capture(tmp_path / "run", steps=(10, 20), xla=False, stacks=False):
        for i in range(60):
            with xprof_py.step(i):
                time.sleep(0.02 if 10 <= i < 20 else 0.002)
            if i == 20:
                time.sleep(0.5)  # for the files to be written
    (file,) = (tmp_path / "run" / "run").glob("*.json")
    observer = json.loads(file.read_text())["observer"]
    assert [len(observer[f"{stage}_ns"]) for stage in ("before", "inside", "after")] == [10, 9, 38]
    assert min(observer["inside_ns"]) >= 20 * MS
    assert min(observer["before_ns"] + observer["after_ns"]) >= 2 * MS
    summary = analyse([tmp_path / "run"]).summary
    assert summary["observer"]["ratio"] > 1.5
    assert "observer_effect" in [row["code"] for row in summary["diagnostics"]]


def test_a_capture_of_a_whole_block_has_nothing_to_compare_with(tmp_path: Path) -> None:
    with xprof_py.capture(tmp_path / "run", xla=False, stacks=False):
        for i in range(3):
            with xprof_py.step(i):
                pass
    assert analyse([tmp_path / "run"]).summary["observer"] is None
