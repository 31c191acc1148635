"""A training that marks no step gets the answer of the same training with its steps marked."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from unmarked import without_steps

from xprof_py.postprocess.fleet.analysis import Analysis, partials, reduce_partials
from xprof_py.postprocess.readers.process import read_process
from xprof_py.postprocess.readers.sources import find_sources

pytestmark = pytest.mark.live

PLANTED = Path(__file__).resolve().parents[1] / "workloads" / "planted.py"
STEPS = 12
WORKLOADS = ("input", "accumulation")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """recorded(name, *flags) -> the run folder; each is recorded once."""

    @cache
    def record(name: str, *flags: str) -> Path:
        run_dir = tmp_path_factory.mktemp(name) / "run"
        command = [sys.executable, str(PLANTED), name, str(run_dir), "--steps", str(STEPS), *flags]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert ran.returncode == 0, ran.stderr
        return run_dir

    return record


def analysis_of(run_dir: Path, *, marked: bool = True) -> Analysis:
    profile = read_process(find_sources([run_dir]).processes[0])
    return reduce_partials([partials(profile if marked else without_steps(profile))], [])


def windows_ps(analysis: Analysis) -> list[int]:
    steps = analysis.tables["step_classes"]
    return list(steps.filter(pc.equal(steps["kind"], "step"))["window_ps"].to_pylist())


def shares(summary: dict[str, Any]) -> dict[str, float]:
    return {name: line["share"] for name, line in summary["breakdown"].items()}


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_recording_without_its_steps_has_the_same_shares(recorded: Any, name: str) -> None:
    analyses = analysis_of(recorded(name)), analysis_of(recorded(name), marked=False)
    marked, unmarked = (analysis.summary for analysis in analyses)
    assert (marked["steps"]["source"], unmarked["steps"]["source"]) == ("annotated", "inferred")
    assert unmarked["steps"]["count"] == marked["steps"]["count"] == STEPS
    assert unmarked["steps"]["phases"]["partial"] == 1
    assert shares(unmarked) == pytest.approx(shares(marked), abs=0.05)
    assert unmarked["verdict"]["bottleneck"] == marked["verdict"]["bottleneck"] == "input"
    assert windows_ps(analyses[0])[1:] == windows_ps(analyses[1])[1:]


@pytest.mark.parametrize(
    ("name", "pattern"), [("input", "each mlp_step"), ("accumulation", "4 x add_gradient, update")]
)
def test_a_training_with_no_annotation_at_all_has_its_steps(recorded: Any, name: str, pattern: str) -> None:
    run_dir = recorded(name, "--no-steps", "--no-annotations")
    summary = analysis_of(run_dir).summary
    measured = json.loads((run_dir / "measured.json").read_text())
    assert (summary["steps"]["source"], summary["steps"]["count"]) == ("inferred", STEPS)
    own_ms = 1e3 * sum(measured["step_s"][1:]) / (STEPS - 1)
    assert summary["step_ms"]["mean"] == pytest.approx(own_ms, rel=0.05)
    (note,) = [row for row in summary["diagnostics"] if row["code"] == "steps_inferred"]
    assert pattern in note["message"]
    assert "with step(i):" in note["message"]


def test_a_training_that_marks_its_input_alone_waits_as_long_as_its_stopwatch_says(recorded: Any) -> None:
    run_dir = recorded("input", "--no-steps")
    summary = analysis_of(run_dir).summary
    measured = json.loads((run_dir / "measured.json").read_text())
    waited = sum(step["input"] for step in measured["phases_s"][1:]) / sum(measured["step_s"][1:])
    assert summary["steps"]["source"] == "inferred"
    assert summary["verdict"]["bottleneck"] == "input"
    assert summary["breakdown"]["input"]["share"] == pytest.approx(waited, abs=0.05)
