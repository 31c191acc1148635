"""Trainings without annotations but their steps: the stack sampler says where the rest went, by file and line.

The same planted trainings as in test_planted_live.py, recorded with ``--no-annotations``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.live

PLANTED = Path(__file__).resolve().parents[1] / "workloads" / "planted.py"
TOLERANCE = 0.10
STEPS = 30
LEAST_NAMED = 0.5
"""Part of the planted cause that is named at least. A look costs more on a full machine, so there are fewer of them,
and a stretch of time that no look fell into stays unknown."""


def run(command: list[str], **environment: str) -> str:
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=180, check=False, env={**os.environ, **environment}
    )
    assert ran.returncode == 0, f"{command} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def trained(name: str, folder: Path, **environment: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what the training measured itself, its summary)."""
    options = ["--steps", str(STEPS), "--no-annotations"]
    run([sys.executable, str(PLANTED), name, str(folder), *options], **environment)
    summary = json.loads(run([sys.executable, "-m", "xprof_py", "analyze", str(folder), "--json"]))
    return json.loads((folder / "measured.json").read_text()), summary


def stopwatch_share(measured: dict[str, Any], phase: str) -> float:
    return float(sum(step.get(phase, 0.0) for step in measured["phases_s"]) / sum(measured["step_s"]))


def line_of(text: str) -> int:
    """The number of the first line of planted.py that holds ``text``."""
    lines = PLANTED.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def lines_shown(summary: dict[str, Any], function: str) -> list[int]:
    """The lines of planted.py's ``function`` that the verdict's evidence names."""
    shown = [row for row in summary["verdict"]["evidence"] if row["span"].endswith(f" {function}")]
    for row in shown:
        assert row["source"] == f"{PLANTED}:{row['span'].split(':')[1].split()[0]}"
    return [int(row["source"].rsplit(":", 1)[1]) for row in shown]


def assert_named(summary: dict[str, Any], name: str, share: float) -> None:
    """Most of the cause is named, what is not is unknown, and nothing is claimed beyond it."""
    named, unknown = (summary["breakdown"][one]["share"] for one in (name, "unknown"))
    assert named >= LEAST_NAMED * share
    assert named + unknown == pytest.approx(share, abs=TOLERANCE)


def assert_bottleneck(summary: dict[str, Any], name: str, share: float) -> None:
    """The cause is the bottleneck where it took most of the time: on a full machine the training takes longer."""
    if share > 0.5:
        assert summary["verdict"]["bottleneck"] == name


def test_an_unannotated_loader_is_input_by_its_name(tmp_path: Path) -> None:
    measured, summary = trained("input", tmp_path / "run")
    assert_bottleneck(summary, "input", stopwatch_share(measured, "input"))
    assert_named(summary, "input", stopwatch_share(measured, "input"))
    first = line_of("def decode_slowly")
    lines = lines_shown(summary, "decode_slowly")
    assert lines or summary["verdict"]["bottleneck"] not in ("input", "host")
    assert all(first < line < first + 9 for line in lines)


def test_a_slow_function_of_a_neutral_name_is_host_with_its_line(tmp_path: Path) -> None:
    measured, summary = trained("neutral_input", tmp_path / "run")
    assert_bottleneck(summary, "host", stopwatch_share(measured, "input"))
    assert_named(summary, "host", stopwatch_share(measured, "input"))
    first = line_of("def decode_slowly")
    lines = lines_shown(summary, "decode_slowly")
    assert lines or summary["verdict"]["bottleneck"] not in ("input", "host")
    assert all(first < line < first + 9 for line in lines)


def test_a_sleep_stays_unknown_and_its_line_is_shown(tmp_path: Path) -> None:
    measured, summary = trained("idle", tmp_path / "run")
    assert summary["verdict"]["bottleneck"] == "unknown"
    assert summary["breakdown"]["unknown"]["share"] == pytest.approx(stopwatch_share(measured, "idle"), abs=TOLERANCE)
    assert line_of("time.sleep(IDLE_S)") in lines_shown(summary, "train")


def test_without_the_sampler_nothing_is_claimed(tmp_path: Path) -> None:
    measured, summary = trained("input", tmp_path / "run", XPROF_PY_STACKS="0")
    assert summary["verdict"]["bottleneck"] == "unknown"
    assert summary["breakdown"]["input"]["share"] == 0
    assert summary["breakdown"]["unknown"]["share"] == pytest.approx(stopwatch_share(measured, "input"), abs=TOLERANCE)
