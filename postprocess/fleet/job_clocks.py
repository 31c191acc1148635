"""What map 1 saw of the clocks, handed to the solver: collectives that were matched, and the probes' exchanges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.clocks.bounds import Int64
from xprof_py.postprocess.clocks.crowd import Meetings
from xprof_py.postprocess.clocks.solve import ClockedProcess, Exchanges, Solution, solve_clocks
from xprof_py.postprocess.match.collectives import Collectives
from xprof_py.postprocess.match.endpoints import Endpoints


def solve_job_clocks(endpoints: Sequence[Endpoints], found: Collectives, samples: pa.Table) -> Solution:
    """The clocks of the processes, in order of process index; the first one's is the reference.

    ``found``: their matched collectives. ``samples``: schema.TABLES["job_clock_samples"] of all of them.
    """
    processes = [ClockedProcess(e.host, e.clock, *e.capture_ns) for e in endpoints]
    times = found.times()
    # Times are per clock already: the first process of each stands for it.
    first = [next(i for i, e in enumerate(endpoints) if e.clock == clock) for clock in found.clocks]
    shape = (len(processes), times.present.shape[1])
    start, end, present = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    start[first], end[first], present[first] = times.start_ns, times.end_ns, times.present
    return solve_clocks(processes, _exchanges(endpoints, samples), Meetings(start, end, present))


def _exchanges(endpoints: Sequence[Endpoints], samples: pa.Table) -> list[Exchanges]:
    """Answered exchanges per pair of processes. How long a packet lay unread is no part of its way (docs/probe.md)."""
    number = {e.host: i for i, e in enumerate(endpoints)}
    answered = samples.filter(pc.and_(pc.equal(samples["outcome"], "answered"), pc.is_valid(samples["peer"])))
    out = []
    for host, peer in sorted(set(zip(answered["host"].to_pylist(), answered["peer"].to_pylist(), strict=True))):
        if host not in number or peer not in number:
            continue
        rows = answered.filter(pc.and_(pc.equal(answered["host"], host), pc.equal(answered["peer"], peer)))
        t1, t2, t3, t4 = (_integers(rows[name]) for name in ("t1_ns", "t2_ns", "t3_ns", "t4_ns"))
        waits = (_integers(rows[name]) for name in ("wait2_ns", "wait4_ns"))
        out.append(Exchanges(number[host], number[peer], t1, t2 - next(waits), t3, t4 - next(waits)))
    return out


def _integers(column: pa.ChunkedArray) -> Int64:
    return np.asarray(pc.fill_null(column, 0).cast(pa.int64()).to_numpy())
