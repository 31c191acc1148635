"""DLRM on eight ranks of one host (Kineto): copies of the files, each shifted by a known time."""

from __future__ import annotations

import functools
import gzip
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xprof_py.postprocess import schema
from xprof_py.postprocess.clocks.solve import Solution
from xprof_py.postprocess.fleet.job_clocks import solve_job_clocks
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.match.collectives import Collectives, match_collectives
from xprof_py.postprocess.match.endpoints import Endpoints, read_endpoints
from xprof_py.postprocess.readers.chrome_json import read_chrome_json

ROOT = Path(__file__).resolve().parents[1]
TRACES = Path(os.environ.get("XPROF_PY_REAL_TRACES", ROOT.parent / "shared" / "traces"))
ARCHIVE = TRACES / "kineto" / "param_dlrm_kineto.tar.gz"
SHIFT_US = (0, 37_512, -120_833, 350_201, -4_999_999, 411, -7, 86_400_000_000)
"""Of ranks 0 to 7; the last one's clock is a day ahead."""

Change = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


@functools.cache
def traces() -> list[dict[str, Any]]:
    with tarfile.open(ARCHIVE) as archive:
        files = sorted((m for m in archive.getmembers() if m.isfile()), key=lambda m: m.name)
        found = [json.loads(stream.read()) for m in files if (stream := archive.extractfile(m)) is not None]
    assert [trace["distributedInfo"]["rank"] for trace in found] == list(range(8))
    return found


def reading(folder: Path, shift_us: tuple[int, ...], changes: Mapping[int, Change]) -> list[Endpoints]:
    """Endpoints of copies of the files whose every time is later by the rank's shift."""
    out = []
    for rank, trace in enumerate(traces()):
        events = changes.get(rank, lambda events: events)(trace["traceEvents"])
        moved = [{**e, "ts": e["ts"] + shift_us[rank]} if "ts" in e else e for e in events]
        file = folder / f"rank{rank}.json.gz"
        file.write_bytes(gzip.compress(json.dumps({**trace, "traceEvents": moved}).encode(), 1))
        out.append(read_endpoints(join_profile(read_chrome_json(file)), rank))
    return out


def solved(endpoints: list[Endpoints]) -> tuple[Collectives, Solution]:
    found = match_collectives(endpoints)
    return found, solve_job_clocks(endpoints, found, schema.TABLES["job_clock_samples"].empty_table())
