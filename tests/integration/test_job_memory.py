"""What the process that leads an analysis holds of a job: columns per collective and host, whatever else hosts did."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from made_up_jobs import LATE_US, make_job

from xprof_py.postprocess.fleet import run_job
from xprof_py.postprocess.fleet.schedulers import InProcess
from xprof_py.postprocess.fleet.spool import Spool

STEPS, COLLECTIVES = 6, 20


def peak_bytes(folder: Path, hosts: int) -> int:
    """The peak of Python's and numpy's memory; Arrow's tables, of rows per step and class, are not in it."""
    sources = make_job(folder, hosts, STEPS, COLLECTIVES)
    tracemalloc.start()
    try:
        found = run_job.analyse_job(sources, Spool(folder / "spool"), InProcess(), resume=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # All of them met.
    assert found.tables["participants"].num_rows == hosts * STEPS * COLLECTIVES
    if hosts > 2:
        straggler = found.summary["straggler"]
        assert straggler["host"] == "h0001"
        assert straggler["lost_ms_per_step"] == pytest.approx(LATE_US / 1e3)
    return peak


def test_a_host_more_takes_so_many_bytes_for_each_of_its_collectives(tmp_path: Path) -> None:
    peak_bytes(tmp_path / "first", 2)
    few, many = peak_bytes(tmp_path / "few", 3), peak_bytes(tmp_path / "many", 6)
    each = (many - few) / (6 - 3) / STEPS / COLLECTIVES
    print(f"{each:.0f} bytes per host and collective")
    assert each < 1200
