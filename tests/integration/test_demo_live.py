"""The demo as a user runs it: the planted cause is found, and it is gone when it was taken away."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from summary_contract import violations

pytestmark = pytest.mark.live


def run_demo(cwd: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xprof_py", "demo", *options]
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    return ran


def summary_of(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(ran.stdout)
    assert violations(summary) == []
    return summary


def test_the_slow_input_is_found_and_gone_with_fast_input(tmp_path: Path) -> None:
    slow = summary_of(run_demo(tmp_path, "--json", "--run-dir", "slow"))
    fast = summary_of(run_demo(tmp_path, "--json", "--run-dir", "fast", "--fast-input"))
    assert slow["verdict"]["bottleneck"] == "input"
    assert fast["verdict"]["bottleneck"] != "input"
    assert fast["breakdown"]["input"]["share"] < 0.1
    assert fast["step_ms"]["median"] < slow["step_ms"]["median"]
    # Nothing overlaps the input, so what it takes is what would be saved.
    promised = 1 - slow["verdict"]["step_ms_without"] / slow["verdict"]["step_ms"]
    assert promised == pytest.approx(slow["breakdown"]["input"]["share"], abs=0.05)


def test_the_demo_prints_its_verdict_and_a_report(tmp_path: Path) -> None:
    ran = run_demo(tmp_path, "--steps", "8")
    assert "input" in ran.stdout
    report = re.search(r"^Report: (.+)$", ran.stdout, re.MULTILINE)
    assert report is not None
    assert (tmp_path / report[1]).read_text(encoding="utf-8").startswith("<!")
    assert "xprof-py demo --fast-input" in ran.stderr
    assert "loss" in ran.stderr
    # The default run folder is the demo's own: a second demo replaces it.
    run_demo(tmp_path, "--steps", "8")
    assert os.listdir(tmp_path / "runs") == ["demo"]


def test_a_run_folder_of_ones_own_is_not_replaced(tmp_path: Path) -> None:
    kept = tmp_path / "mine"
    run_demo(tmp_path, "--steps", "6", "--run-dir", "mine")
    before = sorted(str(file) for file in kept.rglob("*"))
    command = [sys.executable, "-m", "xprof_py", "demo", "--steps", "6", "--run-dir", "mine"]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert again.returncode == 1
    assert "mine" in again.stderr
    assert "Traceback" not in again.stderr
    assert sorted(str(file) for file in kept.rglob("*")) == before


def test_a_demo_of_no_steps_is_wrong_usage(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "xprof_py", "demo", "--steps", "0"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert "--steps" in ran.stderr
    assert list(tmp_path.iterdir()) == []
