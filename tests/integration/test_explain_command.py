"""`explain` as a person uses it, on recorded captures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xprof_py.cli import main
from xprof_py.postprocess.schema import BUSY_CLASSES

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def explained(name: str, step: int, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main(["explain", str(DATA / f"{name}.xplane.pb.gz"), "--step", str(step), "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_recompile_is_named_with_its_function_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(DATA / "planted_recompile.xplane.pb.gz"), "--step", "3"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("Step 3 took 262 ms, 96% of it compiler")
    assert "`jit_mlp_step` (/home/u/train/projects1/workloads/planted.py:31) was launched 252 ms late" in shown
    assert (
        "251 ms compiler: tracing and compiling `mlp_step` (/home/u/train/projects1/workloads/planted.py:31)" in shown
    )
    assert "compile of mlp_step" in shown


def test_and_so_it_is_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = explained("planted_recompile", 3, capsys)
    cause = found["gaps"][0]["causes"][0]
    assert (cause["cause"], cause["function"], cause["step"]) == ("compiler", "mlp_step", 3)
    assert cause["source"].endswith("planted.py:31")
    assert {row["function"] for row in found["compiles"] if row["stage"] == "compile"} == {"mlp_step"}
    assert found["compared_with"]["steps"] == 7


@pytest.mark.parametrize(
    ("name", "step"),
    [("planted_recompile", 3), ("planted_input", 4), ("planted_h2d", 2), ("mlp_async40", 11), ("collectives_4dev", 4)],
)
def test_the_numbers_of_a_step_add_up(name: str, step: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(name, step, capsys)
    window_ms = found["step"]["window_ms"]
    assert sum(row["ms"] for row in found["classes"]) == pytest.approx(window_ms)
    idle_ms = sum(row["ms"] for row in found["classes"] if row["class"] not in BUSY_CLASSES)
    gaps_ms = sum(gap["length_ms"] for gap in found["gaps"]) + sum(row["ms"] for row in found["small_gaps"])
    assert gaps_ms == pytest.approx(idle_ms)
    for gap in found["gaps"]:
        assert sum(cause["ms"] for cause in gap["causes"]) == pytest.approx(gap["length_ms"])
    unknown_ms = sum(row["ms"] for row in found["classes"] if row["class"] == "unknown")
    assert sum(row["ms"] for row in found["unknown"]["why"]) == pytest.approx(unknown_ms)


def test_unknown_time_says_what_was_open(capsys: pytest.CaptureFixture[str]) -> None:
    found = explained("planted_input", 4, capsys)
    assert found["unknown"]["share"] > 0.8
    assert "`train` was open, which says nothing" in found["unknown"]["why"][0]["text"]


def test_a_lane_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    longest = explained("collectives_4dev", 4, capsys)
    assert len(longest["other_lanes"]) == 3
    assert all(row["window_ms"] <= longest["step"]["window_ms"] for row in longest["other_lanes"])
    assert explained("collectives_4dev", 4, capsys, "--lane", "0")["step"]["lane"] == 0


def test_a_step_that_is_not_there_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(DATA / "planted_input.xplane.pb.gz"), "--step", "99"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "steps 0 to 7" in printed.err
