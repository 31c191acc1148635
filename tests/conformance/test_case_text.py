"""The cases themselves: the parser says no clearly, and every hand answer adds up before any analysis is asked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from conformance.__main__ import write_cases
from conformance.case_text import Case, CaseError, StepRef, parse_case, read_case, walk
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES
from xspace_schema import XSpace

CASES = sorted((Path(__file__).parent / "cases").glob("*.case"))
MINIMAL = "title: t\ncapture 0..10\nthread main\n  step 0 0..5\n    launch f 1..2\n"


@pytest.fixture(params=CASES, ids=lambda path: path.stem)
def case(request: pytest.FixtureRequest) -> Case:
    return read_case(request.param)


def test_the_cases_are_found() -> None:
    assert len(CASES) >= 30


def test_every_stated_window_is_the_sum_of_its_amounts(case: Case) -> None:
    for windows in case.windows.values():
        for window in windows:
            if window.amounts is None:
                continue
            assert sum(a.exclusive_ps for a in window.amounts) == window.end_ps - window.start_ps, window.place
            assert all(a.name in CLASSES for a in window.amounts), window.place
            assert all(a.exclusive_ps > 0 or a.total_ps for a in window.amounts), window.place
            assert all(a.by is None for a in window.amounts if a.name in BUSY_CLASSES), window.place


def test_stated_windows_tile_the_capture(case: Case) -> None:
    for windows in case.windows.values():
        windows = [w for w in windows if w.kind != "nested"]
        assert [w.kind for w in windows] == ["head", *["step"] * (len(windows) - 2), "tail"]
        assert windows[0].start_ps == case.start_ps
        assert windows[-1].end_ps == case.end_ps
        for before, after in pairwise(windows):
            assert before.end_ps == after.start_ps, after.place


def test_stated_windows_are_all_steps_in_order_of_host_start(case: Case) -> None:
    spans = sorted((s for t in case.threads for s in t.spans if s.kind == "step"), key=lambda s: s.start_ps)
    for windows in case.windows.values():
        named = [(w.step.name, w.step.number) for w in windows if w.kind == "step" and w.step]
        if spans:
            assert named == [(s.name, s.number) for s in spans]
        else:
            # Steps that nobody marked are numbered in order.
            assert named == [("inferred", number) for number in range(len(named))]


def test_stated_runs_are_the_runs_of_the_lanes(case: Case) -> None:
    held = {(r.function, r.run_id) for lane in case.lanes for r in lane.runs if any(op.end_ps for op in r.ops)}
    assert not case.runs or {(r.function, r.run_id) for r in case.runs} == held


def test_stated_phases_name_outermost_steps(case: Case) -> None:
    spans = {(s.name, s.number) for t in case.threads for s in t.spans if s.kind == "step"}
    assert {(step.name, step.number) for step, _ in case.phases if step.name != "inferred"} <= spans


def test_a_case_reads_as_it_is_written() -> None:
    text = MINIMAL + "lane 0\n  run f 7\n    while 2..9\n      psum.3 3..4 end 5\nexpect runs\n  f 7 -> 0 order\n"
    case = parse_case(text, "x")
    (thread,) = case.threads
    assert [(s.kind, s.start_ps, s.end_ps) for s in walk(thread.spans)] == [
        ("step", 0, 5 * 10**9),
        ("dispatch", 10**9, 2 * 10**9),
        ("launch", 10**9, 2 * 10**9),
    ]
    (op,) = case.lanes[0].runs[0].ops
    assert (op.name, op.end_ps, op.children[0].marker_ps) == ("while", 9 * 10**9, 5 * 10**9)
    assert case.programs[0].instructions["psum.3"].parent == "while"
    assert case.runs[0].step == StepRef("train", 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("capture 0..1\n", "x: no title"),
        ("title: t\n", "x: no capture"),
        (MINIMAL + "   odd 1..2\n", "x:6: indent by two spaces"),
        (MINIMAL + "lanes 0\n", "x:6: unknown line 'lanes'"),
        (MINIMAL + "thread b\n  sleep 1..2\n", "x:7: unknown host span 'sleep'"),
        (MINIMAL + "thread b\n  input 2..1\n", "x:7: 2..1 ends before it starts"),
        (MINIMAL + "thread b\n  input 0.0000000000001..1\n", "no whole number of picoseconds"),
        (MINIMAL + "thread b\n  step 0 1..2\n    input 1..3\n", "x:7: input input does not lie inside step train"),
        (
            MINIMAL + "lane 0\n  run f 1\n    dot 1..3\n      dot.2 1..2\n",
            "x:8: only while, conditional, call hold ops",
        ),
        (MINIMAL + "lane 0\n  run f 1\n    dot 1..11\n", "x: dot at 11000000000 ps lies outside the capture"),
        (
            MINIMAL + "program g\n  p = parameter() i7[2]\n",
            "x:7: expected an array of f32, f64 like f32[2,3], not 'i7[2]'",
        ),
        (MINIMAL + "expect verdict\n  input 90\n", "x:6: expected `CLASS without TIME|-`, or `none`"),
        (MINIMAL + "expect lane 0\n  body 0..1\n", "x:7: a window is head, step, nested or tail"),
    ],
)
def test_a_bad_case_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(CaseError) as error:
        parse_case(text, "x")
    assert message in str(error.value)


def test_the_cases_can_be_given_to_another_tool(tmp_path: Path) -> None:
    """As files: an XSpace that parses and answers in picoseconds that are those of the case."""
    index = write_cases(tmp_path)
    assert [row["case"] for row in index] == [path.stem for path in CASES]
    for row in index:
        stated = json.loads((tmp_path / row["case"] / "expected.json").read_text())
        assert stated["lanes"] or stated["runs"] or stated["phases"]
        for window in (window for lane in stated["lanes"] for window in lane["windows"]):
            if window["exclusive_ps"] is not None:
                assert sum(window["exclusive_ps"].values()) == window["end_ps"] - window["start_ps"]
        assert row["xspace"] == (tmp_path / row["case"] / "host0.xplane.pb").exists()
        if row["xspace"]:
            XSpace().ParseFromString((tmp_path / row["case"] / "host0.xplane.pb").read_bytes())


def test_the_command_writes_them(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.conformance", str(tmp_path / "out")]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)
    assert f"{len(CASES)} cases" in ran.stdout
    assert len(json.loads((tmp_path / "out" / "index.json").read_text())) == len(CASES)


def test_every_case_that_the_table_of_thresholds_names_is_there() -> None:
    table = (Path(__file__).parent / "README.md").read_text().split("## Both sides of each threshold")[1]
    named = set(re.findall(r"`([a-z_0-9]+)`", table.split("## Readings")[0]))
    assert len(named) >= 15
    assert named <= {path.stem for path in CASES}
