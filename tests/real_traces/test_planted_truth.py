"""Captures with one planted bottleneck each against the stopwatch of the same program in the same run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.schema import CLASSES

pytestmark = pytest.mark.real_traces

TraceFiles = Callable[[str], list[Path]]


def measured(name: str, trace_files: TraceFiles) -> dict[str, Any]:
    (file,) = trace_files(f"jax_cpu/planted_{name}")
    root = next(parent for parent in file.parents if parent.name == f"planted_{name}")
    found: dict[str, Any] = json.loads((root / "measured.json").read_text())
    return found


def stopwatch(found: dict[str, Any], phase: str) -> float:
    return float(sum(step[phase] for step in found["phases_s"]) / sum(found["step_s"]))


@pytest.mark.parametrize(
    ("name", "phase", "class_name"),
    [
        ("input_pytracer", "input", "input"),
        ("h2d", "h2d", "host_device"),
        # These hold no evidence of ours: which it was of the three nothing in the trace says.
        ("input", "input", "unknown"),
        ("checkpoint", "checkpoint", "unknown"),
        ("idle", "idle", "unknown"),
    ],
)
def test_the_share_is_within_5_points_of_the_stopwatch(
    name: str, phase: str, class_name: str, trace_files: TraceFiles
) -> None:
    summary = analyse(trace_files(f"jax_cpu/planted_{name}")).summary
    truth = stopwatch(measured(name, trace_files), phase)
    assert summary["breakdown"][class_name]["share"] == pytest.approx(truth, abs=0.05)
    assert summary["verdict"]["bottleneck"] == class_name


def test_recompiles_are_within_5_points_of_what_jax_monitoring_summed(trace_files: TraceFiles) -> None:
    found = measured("recompile", trace_files)
    compiling_s = sum(seconds for _, key, seconds, _ in found["monitoring"] if seconds and "compile" in key)
    summary = analyse(trace_files("jax_cpu/planted_recompile")).summary
    assert summary["breakdown"]["compiler"]["share"] == pytest.approx(compiling_s / sum(found["step_s"]), abs=0.05)
    assert summary["verdict"]["bottleneck"] == "compiler"


@pytest.mark.parametrize("name", ["compute", "memory"])
def test_the_devices_work_is_within_10_points_among_its_busy_time(
    name: str, trace_files: TraceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the size of the machine that recorded: what `analyze` would have measured there."""
    peaks = {"flops_per_s": {"f32": 50 * 10**9}, "vector_flops_per_s": 50 * 10**9, "memory_bytes_per_s": 38 * 10**9}
    monkeypatch.setenv("XPROF_PY_PEAKS", json.dumps(peaks))
    summary = analyse(trace_files(f"jax_cpu/planted_{name}")).summary
    busy_s = sum(summary["breakdown"][busy]["exclusive_s"] for busy in CLASSES[:4])
    truth = stopwatch(measured(name, trace_files), "compute")
    assert summary["breakdown"][name]["exclusive_s"] / busy_s == pytest.approx(truth, abs=0.10)
    assert summary["verdict"]["bottleneck"] == name
