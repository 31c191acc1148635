"""The solution as tables: from a host's time to the fleet's, with a bound; and what the summary says of each clock.

The fleet's time is the reference clock's. Events keep their own clock; they are placed when asked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from xprof_py.postprocess import schema
from xprof_py.postprocess.clocks.bounds import Int64
from xprof_py.postprocess.clocks.solve import Clock, Solution

NO_BOUND = np.iinfo(np.int64).max
"""What stands for the error of a time that nothing ties to the fleet's."""
SHORTEST_ROW_NS = 1000
"""Knots that lie closer together are one: times are no finer in most traces."""


def to_fleet_ns(solution: Solution, process: int, host_ns: Int64) -> tuple[Int64, Int64]:
    """Times of a process on the fleet's clock, and how far each can be wrong (half-width); int64 ns, one shape.

    ``process``: its place in ``solution.processes``. Without a tie the time stays its own and the error is NO_BOUND.
    """
    clock = solution.clocks[solution.clock_of[process]]
    host_ns = np.asarray(host_ns, np.int64)
    curve = clock.curve
    if curve is None:
        return host_ns.copy(), np.full(host_ns.shape, NO_BOUND, np.int64)
    at_s = (host_ns - curve.origin_ns) / 1e9
    fleet_ns = host_ns - (curve.base_ns + np.rint(curve.values(at_s)).astype(np.int64))
    error = np.ceil(curve.errors(at_s))
    known = np.isfinite(error)
    return fleet_ns, np.where(known, np.where(known, error, 0).astype(np.int64), NO_BOUND)


def clock_map_table(solution: Solution) -> pa.Table:
    """Table `clock_map`: theta of every clock as straight stretches that tile its capture, in order of clock and time.

    A clock that nothing ties has no rows.
    """
    names = schema.TABLES["clock_map"].names
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for clock in solution.clocks:
        for row in _stretches(clock):
            for name, value in zip(names, row, strict=True):
                columns[name].append(value)
    return schema.table("clock_map", columns)


def _stretches(clock: Clock) -> list[tuple[Any, ...]]:
    curve = clock.curve
    if curve is None:
        return []
    edges = np.unique(np.rint(np.append(clock.times_s(), [j.at_s for j in curve.jumps]) * 1e9).astype(np.int64))
    edges = edges[(edges > clock.begin_ns - curve.origin_ns) & (edges < clock.end_ns - curve.origin_ns)]
    edges = np.concatenate(([clock.begin_ns - curve.origin_ns], edges, [clock.end_ns - curve.origin_ns]))
    keep = np.concatenate(([True], np.diff(edges) >= SHORTEST_ROW_NS))
    keep[-1] = True
    edges = edges[keep]
    jumps = {round(jump.at_s * 1e9) for jump in curve.jumps}
    rows = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        # Just inside: at a jump the clock has two values.
        inside = np.array([begin + (begin in jumps), end - (end in jumps)]) / 1e9
        value, error = curve.values(inside), curve.errors(inside)
        length_s = max(float(inside[1] - inside[0]), 1e-9)
        bound = float(error.max())
        rows.append(
            (
                clock.domain,
                begin + curve.origin_ns,
                end + curve.origin_ns,
                curve.base_ns + round(float(value[0])),
                float(value[1] - value[0]) / length_s / 1e3,
                int(np.ceil(bound)) if np.isfinite(bound) else None,
                clock.method,
            )
        )
    return rows


def clock_rows(solution: Solution) -> list[dict[str, Any]]:
    """`clocks[]` of the summary, one row per process.

    ``offset_ns``: host clock minus reference clock at the capture's start; ``drift_ppm``: how fast that grows, over the
    capture; ``error_ns``: half-width, the largest over the capture. All null where nothing is known.
    """
    return [
        {"host": process.host, **_row(solution.clocks[of], shared=of == 0 and place > 0)}
        for place, (process, of) in enumerate(zip(solution.processes, solution.clock_of, strict=True))
    ]


def _row(clock: Clock, *, shared: bool) -> dict[str, Any]:
    curve = clock.curve
    if curve is None:
        return {"offset_ns": None, "drift_ppm": None, "error_ns": None, "method": "none", "status": "unaligned"}
    ends_s = np.array([clock.begin_ns - curve.origin_ns, clock.end_ns - curve.origin_ns]) / 1e9
    first, last = curve.values(ends_s).tolist()
    length_s = float(ends_s[1] - ends_s[0])
    # A jump is no drift.
    set_by = sum(
        float(np.diff(curve.values(np.array([np.nextafter(j.at_s, -np.inf), j.at_s])))[0]) for j in curve.jumps
    )
    return {
        "offset_ns": curve.base_ns + round(first),
        "drift_ppm": (last - first - set_by) / length_s / 1e3 if length_s > 0 else 0.0,
        "error_ns": clock.error_ns,
        "method": "shared_clock" if shared else clock.method,
        "status": clock.status,
    }
