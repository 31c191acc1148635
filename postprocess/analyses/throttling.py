"""How much time did each step lose because a device's clock was held down?

A sample of a device (table `power`) stands for the time from half way to the one before it to half way to the one after
it, at most as far as samples usually lie apart.

    limited       NVML says that power, temperature or hardware hold the clocks down (LIMITS)
    reference     the median SM clock of the samples that are not limited, in which kernels ran, within the steps'
                  windows; of LEAST samples or more
    throttled     limited, and the SM clock is below 95 % of the reference
    lost          sum over kernels slower than their own median of the part of their time that lies in throttled
                  samples, times (1 - clock / reference); where kernels overlap the time counts once

A kernel's own median is that of its executions in samples that are not limited: the usual one would be that of
throttled executions where most are. Kernels are leaves of class compute or memory; one is told by its instruction,
without HLO by its name. What is not known of a kernel without an execution at full clock is `unjudged_ps`, and counted
as no loss. Where there is no reference (the whole capture is limited, say) `lost_ps` is null.

An overlay, not a class: the time is compute or memory in the breakdown. Integers throughout.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses.top_ops import names_without_hlo
from xprof_py.postprocess.join import intervals
from xprof_py.postprocess.join.columns import Bool, Int64, distinct, integers
from xprof_py.postprocess.join.device_power import UNTOLD, LanePower, lane_power, lane_steps
from xprof_py.postprocess.profile import Profile

LIMITS = {"thermal": 0x20 | 0x40, "power": 0x04 | 0x80, "hardware": 0x08}
"""Bits of nvmlClocksEventReasons: software and hardware thermal slowdown; software power cap and hardware power brake;
hardware slowdown, where neither is said to be its cause. A sample with several counts to the first."""
LEAST = 3
"""So many samples make a reference."""
PERCENT = 95
_SUMS = ("kernel_ps", "limited_ps", "throttled_ps", "unjudged_ps")
_LOST = tuple(f"{name}_lost_ps" for name in LIMITS)
_SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("lane", pa.int32()),
        ("device", pa.int32()),
        ("uuid", pa.string()),
        ("name", pa.string()),
        ("number", pa.int64()),
        ("occurrence", pa.int32()),
        ("phase", pa.string()),
        ("start_ps", pa.int64()),
        ("window_ps", pa.int64()),
        ("reference_mhz", pa.int64()),  # null: not known
        ("lost_ps", pa.int64()),  # null with it; the sum of the columns behind it
        *((name, pa.int64()) for name in _LOST),
        *((name, pa.int64()) for name in _SUMS),  # of kernels: at work; in limited samples; throttled; not judged
    ]
)


def partial(profile: Profile) -> pa.Table:
    """Columns of _SCHEMA for one joined profile: a row for every step window of a lane whose device was sampled."""
    parts = []
    for power in lane_power(profile):
        columns, start, end = lane_steps(profile, power)
        if not len(start):
            continue
        columns |= {"window_ps": end - start, **_lane(profile, power, start, end)}
        parts.append(pa.table([columns[name] for name in _SCHEMA.names], schema=_SCHEMA))
    return pa.concat_tables(parts) if parts else _SCHEMA.empty_table()


def _lane(profile: Profile, power: LanePower, start: Int64, end: Int64) -> dict[str, pa.Array]:
    """The numbers of each window of a lane; windows in order of time."""
    told = (power.sm_clock_mhz != UNTOLD) & (power.clock_reasons != UNTOLD)
    low, high = _cells(power.time_ps[told])
    clock, reasons = power.sm_clock_mhz[told], power.clock_reasons[told]
    limits = np.array(list(LIMITS.values()), np.int64)
    limited = (reasons & np.bitwise_or.reduce(limits)) != 0
    identity, begun, ended = _kernels(profile, power.lane)
    busy = intervals.union(begun, ended)
    within = (power.time_ps[told] >= start[0]) & (power.time_ps[told] <= end[-1])
    worked = intervals.cover(busy, low, high) > 0
    reference = _lower_median(clock[within & worked & ~limited])
    filled = np.flatnonzero(end > start)
    windows = start[filled], end[filled]

    def per_window(pieces: intervals.Intervals, weight: Int64 | None = None) -> Int64:
        """Time of disjoint ``pieces`` in each window; with ``weight``, the MHz missing in each, what that cost."""
        out = np.zeros(len(start), np.int64)
        owner, window, a, b = intervals.overlaps(pieces, windows)
        length = b - a if weight is None or reference is None else (b - a) * weight[owner] // reference
        np.add.at(out, filled[window], length)
        return out

    limited_cells, free_cells = (low[limited], high[limited]), (low[~limited], high[~limited])
    columns = {
        "kernel_ps": per_window(busy),
        "limited_ps": per_window(intervals.intersect(busy, intervals.union(*limited_cells))),
    }
    if reference is None:
        nothing = pa.nulls(len(start), pa.int64())
        unknown = dict.fromkeys(("reference_mhz", "lost_ps", "throttled_ps", "unjudged_ps", *_LOST), nothing)
        return {**unknown, **{name: pa.array(values) for name, values in columns.items()}}
    throttled = limited & (clock * 100 < reference * PERCENT)
    slow, judged = _slow(identity, begun, ended, intervals.union(*free_cells))
    cells = low[throttled], high[throttled]
    pieces = intervals.union(begun[slow], ended[slow])
    _, cell, a, b = intervals.overlaps(pieces, cells)
    weight = (reference - clock[throttled])[cell]
    group = np.argmax((reasons[throttled][cell][:, None] & limits) != 0, axis=1)
    for number, name in enumerate(_LOST):
        of_group = group == number
        columns[name] = per_window((a[of_group], b[of_group]), weight[of_group])
    unjudged = intervals.subtract(intervals.union(begun[~judged], ended[~judged]), pieces)
    columns["throttled_ps"] = per_window((a, b))
    columns["unjudged_ps"] = per_window(intervals.intersect(unjudged, intervals.union(*cells)))
    columns["lost_ps"] = np.sum([columns[name] for name in _LOST], axis=0)
    columns["reference_mhz"] = np.full(len(start), reference, np.int64)
    return {name: pa.array(values) for name, values in columns.items()}


def _cells(time_ps: Int64) -> intervals.Intervals:
    """The time that each sample stands for: disjoint, in order."""
    if len(time_ps) < 2:
        return intervals.nothing()
    apart = np.diff(time_ps)
    usual = int(np.sort(apart)[(len(apart) - 1) // 2])
    middle = time_ps[:-1] + apart // 2
    low = np.maximum(time_ps - usual, np.concatenate([[time_ps[0] - usual], middle]))
    high = np.minimum(time_ps + usual, np.concatenate([middle, [time_ps[-1] + usual]]))
    return low, high


def _kernels(profile: Profile, lane: int) -> tuple[Int64, Int64, Int64]:
    """(which kernel, start, end) of every execution on the lane."""
    ops = profile["ops"]
    own = pc.and_(ops["leaf"], pc.equal(ops["lane"], lane))
    ops = ops.filter(pc.and_(own, pc.is_in(pc.cast(ops["class"], pa.string()), pa.array(["compute", "memory"]))))
    hlo_op, (name, _) = integers(ops, "hlo_op"), names_without_hlo(profile, ops)
    _, identity = distinct(np.where(hlo_op >= 0, hlo_op, -2 - name))
    start = integers(ops, "start_ps")
    return identity.astype(np.int64), start, start + integers(ops, "duration_ps")


def _slow(identity: Int64, start: Int64, end: Int64, unlimited: intervals.Intervals) -> tuple[Bool, Bool]:
    """(whether each execution took longer than its kernel's own median, whether the kernel has one)."""
    length = end - start
    free = intervals.cover(unlimited, start, end) == length
    count = int(identity.max(initial=-1)) + 1
    rows = np.flatnonzero(free)
    rows = rows[np.lexsort((length[rows], identity[rows]))]
    number = np.bincount(identity[rows], minlength=count)
    first = np.cumsum(number) - number
    has = number > 0
    median = np.zeros(count, np.int64)
    median[has] = length[rows[(first + (number - 1) // 2)[has]]]
    judged = has[identity]
    return judged & (length > median[identity]), judged


def _lower_median(values: Int64) -> int | None:
    return int(np.sort(values)[(len(values) - 1) // 2]) if len(values) >= LEAST else None


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Rows of both: a window belongs to one host and one lane."""
    return pa.concat_tables([a, b])


def finish(merged: pa.Table) -> pa.Table:
    """The same rows, sorted by host, lane and start."""
    return merged.sort_by([(name, "ascending") for name in ("host", "lane", "start_ps", "number")])
