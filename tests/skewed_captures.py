"""Captures of four processes whose clocks were set wrong on purpose: what their files say, and what was true.

The truth of a capture is in closed form (truth.json): shown = real + offset + rate * (real - t0) + jump + sine.
"""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from xprof_py.postprocess.clocks.crowd import Meetings
from xprof_py.postprocess.clocks.solve import ClockedProcess, Exchanges
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.process import read_process
from xprof_py.postprocess.readers.sources import find_sources

ROOT = Path(__file__).resolve().parents[1]
TRACES = Path(os.environ.get("XPROF_PY_REAL_TRACES", ROOT.parent / "shared" / "traces"))
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Recorded:
    """One capture: its processes, the collectives that all of them have, and the truth."""

    folder: Path
    processes: list[ClockedProcess]
    meetings: Meetings
    truth: dict[str, Any]

    def exchanges(self, first: int | None = None) -> list[Exchanges]:
        """Probes of every process against the first one, all or the ``first`` of each."""
        out = []
        for client in range(1, len(self.processes)):
            stamps = np.array(json.loads((self.folder / f"udp{client}.json").read_text()), np.int64)[:first]
            out.append(Exchanges(client, 0, *(np.ascontiguousarray(column) for column in stamps.T)))
        return out

    def theta_ns(self, process: int, shown_ns: Int64) -> Int64:
        """What the clock of a process really was ahead of the first one's, when it showed ``shown_ns``."""
        real_ns = shown_ns.copy()
        for _ in range(6):
            real_ns = shown_ns - self._ahead_ns(process, real_ns)
        return self._ahead_ns(process, real_ns) - self._ahead_ns(0, real_ns)

    def _ahead_ns(self, process: int, real_ns: Int64) -> Int64:
        rank, t0_ns = self.truth["ranks"][process], self.truth["t0_ns"]
        since = (real_ns - t0_ns).astype(np.float64)
        ahead = rank["off_ns"] + rank["ppm"] * 1e-6 * since
        if self.truth.get("step"):
            which, height_ns, after_s = self.truth["step"].split(":")
            ahead = ahead + np.where((int(which) == process) & (since >= float(after_s) * 1e9), int(height_ns), 0)
        if self.truth.get("wander"):
            which, height_ns, period_s = self.truth["wander"].split(":")
            if int(which) == process:
                ahead = ahead + float(height_ns) * np.sin(2 * np.pi * since / (float(period_s) * 1e9))
        return np.rint(ahead).astype(np.int64)


@functools.cache
def recorded(name: str) -> Recorded:
    """Read a capture; skips where it is absent."""
    folder = TRACES / "jax_cpu" / name
    if not folder.exists():
        pytest.skip(f"{folder} is absent: XPROF_PY_REAL_TRACES names the folder of real traces")
    profiles = sorted(map(read_process, find_sources([folder]).processes), key=lambda profile: profile.host)
    joined = [join_profile(profile) for profile in profiles]
    ends = [_collectives(profile) for profile in joined]
    keys = sorted(set.intersection(*(set(found) for found in ends)), key=lambda key: ends[0][key])
    stamps = np.array([[found[key] for key in keys] for found in ends], np.int64)
    processes = [
        ClockedProcess(p.host, p.host, p.origin_ns + p.capture_start_ps // 1000, p.origin_ns + p.capture_end_ps // 1000)
        for p in joined
    ]
    meetings = Meetings(stamps[:, :, 0], stamps[:, :, 1], np.ones(stamps.shape[:2], np.bool_))
    return Recorded(folder, processes, meetings, json.loads((folder / "truth.json").read_text()))


def _collectives(profile: Profile) -> dict[tuple[int, str], tuple[int, int]]:
    """(run id, op) -> start and end on the process's clock, ns."""
    ops = profile["ops"].to_pydict()
    run_id, name = profile["runs"]["run_id"].to_pylist(), profile["hlo_ops"]["name"].to_pylist()
    out = {}
    for kind, leaf, run, op, start_ps, duration_ps in zip(
        *(ops[column] for column in ("class", "leaf", "run", "hlo_op", "start_ps", "duration_ps")), strict=True
    ):
        if kind == "collective" and leaf and run is not None and op is not None:
            start_ns = profile.origin_ns + start_ps // 1000
            out[run_id[run], name[op]] = (start_ns, profile.origin_ns + (start_ps + duration_ps) // 1000)
    return out
