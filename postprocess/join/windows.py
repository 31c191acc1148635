"""Windows of steps on lanes, and how much of each class lies in them (BREAKDOWN.md 3, 4). All integer picoseconds."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from xprof_py.postprocess.join import intervals
from xprof_py.postprocess.join.columns import Int64
from xprof_py.postprocess.join.device_ops import DeviceOps
from xprof_py.postprocess.join.intervals import Intervals
from xprof_py.postprocess.join.steps import Steps
from xprof_py.postprocess.schema import BUSY_CLASSES

KINDS = ("head", "step", "tail", "nested")
HEAD, STEP, TAIL, NESTED = range(len(KINDS))


@dataclass(frozen=True)
class Windows:
    """Rows by lane; of each: head, the steps in order and tail, which tile the capture, then nested ones, which divide
    a step's. ``kind``: index of KINDS; ``step``: row of steps, -1 for head and tail. Columns of one length."""

    lane: Int64
    kind: Int64
    step: Int64
    start_ps: Int64
    end_ps: Int64

    def of_lane(self, lane: int) -> Int64:
        """The rows of a lane."""
        return np.arange(*np.searchsorted(self.lane, [lane, lane + 1]))


def make_windows(
    steps: Steps, lanes: int, run_lane: Int64, run_step: Int64, run_nested: Int64, run_end: Int64, start: int, end: int
) -> Windows:
    """Window of step k on a lane: (b(k-1), b(k)], b(k) the running maximum of the ends of the steps' runs.

    ``run_step``: row of the outermost step per run, -1 without; ``run_nested``: its innermost step. ``start``, ``end``:
    the capture. Without lanes the one row per step ends with the step's host span.
    """
    if lanes == 0:
        begin = max(start, int(steps.start_ps[0])) if steps.outer else end
        reach = np.maximum.accumulate(np.concatenate(([begin], np.minimum(steps.end_ps[: steps.outer], end))))
        return _tiled(0, start, reach, end)
    last = np.full((lanes, len(steps.event)), -1, np.int64)
    for owner in (run_step, run_nested):
        known = owner >= 0
        np.maximum.at(last, (run_lane[known], owner[known]), run_end[known])
    for step in range(len(steps.event) - 1, steps.outer - 1, -1):
        np.maximum(last[:, steps.parent[step]], last[:, step], out=last[:, steps.parent[step]])
    parts = []
    for lane in range(lanes):
        measured = np.flatnonzero(last[lane, : steps.outer] >= 0)
        begin = max(int(steps.start_ps[measured[0]]), start) if len(measured) else end
        reach = np.maximum.accumulate(np.concatenate(([begin], last[lane, : steps.outer])))
        parts += [_tiled(lane, start, reach, end), _nested(lane, steps, reach, last[lane])]
    return Windows(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Windows)))


def _tiled(lane: int, start: int, reach: Int64, end: int) -> Windows:
    """Head, steps and tail; ``reach``: where the first step's window begins, then where each ends."""
    count = len(reach) - 1
    return Windows(
        lane=np.full(count + 2, lane, np.int64),
        kind=np.concatenate(([HEAD], np.full(count, STEP), [TAIL])).astype(np.int64),
        step=np.concatenate(([-1], np.arange(count), [-1])).astype(np.int64),
        start_ps=np.concatenate(([start], reach)).astype(np.int64),
        end_ps=np.concatenate((reach, [end])).astype(np.int64),
    )


def _nested(lane: int, steps: Steps, reach: Int64, last: Int64) -> Windows:
    """Nested steps divide their parent's window by the same rule, in order of host start."""
    count = len(steps.event)
    low, high = np.zeros(count, np.int64), np.zeros(count, np.int64)
    low[: steps.outer], high[: steps.outer] = reach[:-1], reach[1:]
    free = low.copy()
    for step in range(steps.outer, count):
        parent = steps.parent[step]
        low[step] = free[step] = free[parent]
        high[step] = free[parent] = min(max(low[step], last[step]), high[parent])
    rows = np.arange(steps.outer, count)
    of_lane, kind = np.full(len(rows), lane, np.int64), np.full(len(rows), NESTED, np.int64)
    return Windows(of_lane, kind, rows, low[rows], high[rows])


def step_times(lane: Int64, step: Int64, start_ps: Int64, end_ps: Int64, count: int) -> Int64:
    """The time of each step over all lanes, in ps: max over lanes of b(k), less that of b(k-1) (BREAKDOWN.md 6).

    The windows of the outermost steps 0 to ``count`` - 1, each lane's in order of step. A lane counts from its first
    window that is not empty: before that it had no work.
    """
    begun = np.full(int(lane.max(initial=-1)) + 1, len(lane), np.int64)
    filled = np.flatnonzero(end_ps > start_ps)
    np.minimum.at(begun, lane[filled], filled)
    counts = np.arange(len(lane)) >= begun[lane]
    reach = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(reach, step[counts], end_ps[counts])
    begin = int(start_ps[begun[begun < len(lane)]].min(initial=np.iinfo(np.int64).max)) if len(filled) else 0
    return np.diff(np.maximum.accumulate(np.concatenate(([begin], reach))))


@dataclass(frozen=True)
class Breakdown:
    """How much of each class every window holds, in ps: each of shape (windows, classes), in order of CLASSES.

    ``total_ps``: covered by another class or not; ``foreign_ps``: by work of other steps.
    """

    exclusive_ps: Int64
    total_ps: Int64
    foreign_ps: Int64


@dataclass
class LaneCover:
    """What a lane did: per busy class its exclusive and total cover, and the union of all."""

    exclusive: list[Intervals]
    total: list[Intervals]
    busy: Intervals


def cover_lane(ops: DeviceOps, lane: int) -> LaneCover:
    """Leaves only. Where classes overlap the earlier of BUSY_CLASSES wins; an op's open part wins over nothing."""
    mine = (ops.lane == lane) & ops.leaf
    return cover_leaves(ops.class_code[mine], ops.start_ps[mine], ops.end_ps[mine], ops.open_end_ps[mine])


def cover_leaves(class_code: Int64, start_ps: Int64, end_ps: Int64, open_end_ps: Int64) -> LaneCover:
    """The same from the columns of one lane's leaves."""
    closed, still_open, total = [], [], []
    for code in range(len(BUSY_CLASSES)):
        rows = class_code == code
        closed.append(intervals.union(start_ps[rows], end_ps[rows]))
        still_open.append(intervals.union(end_ps[rows], open_end_ps[rows]))
        total.append(intervals.union(start_ps[rows], open_end_ps[rows]))
    taken = intervals.nothing()
    exclusive: list[Intervals] = []
    for piece in closed:
        exclusive.append(intervals.subtract(piece, taken))
        taken = _both(taken, piece)
    for code, piece in enumerate(still_open):
        exclusive[code] = _both(exclusive[code], intervals.subtract(piece, taken))
        taken = _both(taken, piece)
    return LaneCover(exclusive, total, taken)


def foreign_cover(ops: DeviceOps, lane: int, op_step: Int64, step: Int64, start: Int64, end: Int64) -> Int64:
    """How much of each window is covered by leaves of other steps, per busy class: shape (windows, BUSY_CLASSES).

    Copies belong to no step. ``op_step`` per op, ``step``/``start``/``end`` per window of the lane (disjoint, sorted).
    """
    out = np.zeros((len(step), len(BUSY_CLASSES)), np.int64)
    mine = np.flatnonzero((ops.lane == lane) & ops.leaf & (op_step >= 0))
    first = np.searchsorted(end, ops.start_ps[mine], side="right")
    last = np.searchsorted(start, ops.open_end_ps[mine], side="left")
    count = np.maximum(last - first, 0)
    op = np.repeat(mine, count)
    window = np.repeat(first, count) + np.arange(len(op)) - np.repeat(np.cumsum(count) - count, count)
    foreign = op_step[op] != step[window]
    op, window = op[foreign], window[foreign]
    low = np.maximum(ops.start_ps[op], start[window])
    high = np.minimum(ops.open_end_ps[op], end[window])
    groups = window * len(BUSY_CLASSES) + ops.class_code[op]
    out.reshape(-1)[:] = intervals.cover_of_groups(groups, low, high, out.size)
    return out


def _both(a: Intervals, b: Intervals) -> Intervals:
    """What either of two disjoint sets covers."""
    if not len(a[0]) or not len(b[0]):
        return a if len(a[0]) else b
    return intervals.union(np.concatenate((a[0], b[0])), np.concatenate((a[1], b[1])))
