"""Copies of real GPU and TPU traces: each counted once, with the size that its event states, at a link's rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.readers.xspace import read_xspace

pytestmark = pytest.mark.real_traces

TraceFiles = Callable[[str], list[Path]]


def copies_of(trace_files: TraceFiles, folder: str) -> tuple[Any, list[dict[str, Any]]]:
    (file,) = trace_files(f"xspace/{folder}")
    profile = join_profile(read_xspace(file))
    return profile, profile["copies"].to_pylist()


def test_tpu_transfers_move_five_gigabytes_at_the_rate_of_a_link(trace_files: TraceFiles) -> None:
    profile, rows = copies_of(trace_files, "tpu_inference_2")
    names = profile["events"]["name"].to_pylist()
    assert len(rows) == sum(
        name in ("tpu::System::TransferToDevice", "tpu::System::TransferFromDevice") for name in names
    )
    large = [row for row in rows if row["bytes"] == 5_368_709_120]
    assert len(large) > 20
    assert all(1e9 < row["bytes"] / row["duration_ps"] * 1e12 < 64e9 for row in large)


def test_gpu_copies_are_those_of_the_streams(trace_files: TraceFiles) -> None:
    profile, rows = copies_of(trace_files, "nvidia_gpu_multiworker_tf")
    planes = profile["lines"]["plane"].to_pylist()
    lines = profile["events"]["line"].to_pylist()
    args = profile["args"]
    told = {e for k, e in zip(args["key"].to_pylist(), args["event"].to_pylist(), strict=True) if k == "memcpy_details"}
    assert {row["event"] for row in rows} == {e for e in told if planes[lines[e]].startswith("/device:GPU:")}
    assert {row["direction"] for row in rows} == {"to_device", "to_host"}
    assert all(row["bytes"] > 0 and row["step"] is None for row in rows)
