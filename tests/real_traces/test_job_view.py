"""Four processes on four clocks, with one that sleeps 80 ms before its first all-reduce of each of 20 steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conformance.job_text import CaseClock
from xprof_py.cli.analyze import analyze
from xprof_py.postprocess.fleet.analysis import Analysis, analyse, read_analysis, reduce_partials
from xprof_py.postprocess.fleet.passes import first_pass
from xprof_py.postprocess.readers.sources import find_sources

TraceFiles = Callable[[str], list[Path]]


def analysed(trace_files: TraceFiles, name: str, error_ns: int) -> Analysis:
    """With the clocks as they were planted, each but the first known to ``error_ns``."""
    files = trace_files(f"jax_cpu/{name}")
    truth = json.loads((files[0].parents[3] / "truth.json").read_text(encoding="utf-8"))
    clocks = [
        CaseClock(rank["off_ns"], error_ns if place else 0, int(rank["ppm"]), truth["t0_ns"]).curve()
        for place, rank in enumerate(truth["ranks"])
    ]
    sources = find_sources([str(file) for file in files])
    return reduce_partials([first_pass(source)[0] for source in sources.processes], sources.diagnostics, clocks)


def test_the_straggler_is_named_in_every_step(trace_files: TraceFiles) -> None:
    analysis = analysed(trace_files, "mp4_straggler", 20_000)
    summary = analysis.summary
    assert summary["straggler"]["host"] == "host2"
    assert summary["straggler"]["cause"] == "unknown"
    assert summary["straggler"]["steps_share"] == 1.0
    assert summary["straggler"]["lost_ms_per_step"] == pytest.approx(80, abs=2)
    rows = [r for r in analysis.tables["collectives"].to_pylist() if r["op"] == "psum_invariant.35"]
    assert [r["last_host"] for r in rows] == ["host2"] * 20
    first = {r["collective"] for r in rows}
    waits = [r for r in analysis.tables["participants"].to_pylist() if r["collective"] in first]
    for host in ("host0", "host1", "host3"):
        assert np.median([r["wait_ns"] for r in waits if r["host"] == host]) / 1e6 == pytest.approx(80, abs=1)


def test_the_job_is_not_bound_by_communication(trace_files: TraceFiles) -> None:
    summary = analysed(trace_files, "mp4_straggler", 20_000).summary
    assert summary["verdict"]["bottleneck"] == "unknown"
    assert summary["breakdown"]["unknown"]["share"] > 0.7
    assert summary["breakdown"]["collective"]["share"] < 0.3
    raw = {lane["host"]: lane["breakdown"]["collective"]["share"] for lane in summary["lanes"]}
    assert all(raw[host] > 0.9 for host in ("host0", "host1", "host3"))


def test_the_joined_replay_is_the_measured_job(trace_files: TraceFiles) -> None:
    for name in ("mp4_straggler", "mp4_skew", "mp4_ratelimited"):
        found = analysed(trace_files, name, 20_000).summary["predictions"]
        assert found["unchanged_ms"] == pytest.approx(found["step_ms"], rel=0.02)
    found = analysed(trace_files, "mp4_straggler", 20_000).summary["predictions"]
    # Nobody late, or the late one's 80 ms gone: the same step.
    assert found["without_straggler_ms"] == pytest.approx(found["without_ms"]["unknown"], abs=1)
    assert found["without_straggler_ms"] == pytest.approx(found["step_ms"] - 80, abs=2)


def test_workers_find_what_one_process_finds(trace_files: TraceFiles, tmp_path: Path) -> None:
    files = trace_files("jax_cpu/mp4_straggler")
    alone = analyse(files)
    out, summary = analyze(files[::-1], tmp_path / "out", workers=2)
    assert summary["straggler"]["host"] == "host2"
    assert summary == alone.summary
    found = read_analysis(out).tables
    assert {name: t.to_pylist() for name, t in found.items()} == {n: t.to_pylist() for n, t in alone.tables.items()}


def test_nobody_is_called_late_below_the_bound(trace_files: TraceFiles) -> None:
    analysis = analysed(trace_files, "mp4_skew", 10_000_000)
    assert analysis.summary["straggler"] is None
    rows = analysis.tables["collectives"].to_pylist()
    assert all(row["claimed"] == (row["late_by_ns"] > row["bound_ns"]) for row in rows)
    assert sum(row["claimed"] for row in rows) < len(rows) / 100
    assert "lateness_below_bound" in {note["code"] for note in analysis.summary["diagnostics"]}
    # And with clocks that are known well nobody is late enough to matter.
    assert analysed(trace_files, "mp4_skew", 20_000).summary["straggler"] is None
