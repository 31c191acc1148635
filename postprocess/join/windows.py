"""Windows of steps on lanes, and how much of each class lies in them (BREAKDOWN.md 3, 4). All integer picoseconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from xprof_py.postprocess.join import intervals
from xprof_py.postprocess.join.columns import Int64
from xprof_py.postprocess.join.device_ops import DeviceOps
from xprof_py.postprocess.join.intervals import Intervals
from xprof_py.postprocess.join.steps import Steps
from xprof_py.postprocess.schema import BUSY_CLASSES


@dataclass
class Windows:
    """Rows in order of (lane, kind, start): head, the steps, tail tile the capture; nested windows divide a step's."""

    lane: list[int]
    kind: list[str]
    step: list[int]
    start_ps: list[int]
    end_ps: list[int]

    def add(self, lane: int, kind: str, step: int, start_ps: int, end_ps: int) -> None:
        """Append one row."""
        for column, value in zip(
            (self.lane, self.kind, self.step, self.start_ps, self.end_ps),
            (lane, kind, step, start_ps, end_ps),
            strict=True,
        ):
            column.append(value)  # type: ignore[attr-defined]


def make_windows(
    steps: Steps, lanes: int, run_lane: Int64, run_step: Int64, run_nested: Int64, run_end: Int64, start: int, end: int
) -> Windows:
    """Window of step k on a lane: (b(k-1), b(k)], b(k) the running maximum of the ends of the steps' runs.

    ``run_step``: row of the outermost step per run, -1 without; ``run_nested``: its innermost step. ``start``, ``end``:
    the capture. Without lanes the one row per step ends with the step's host span.
    """
    windows = Windows([], [], [], [], [])
    if lanes == 0:
        _host_windows(windows, steps, start, end)
        return windows
    last = np.full((lanes, len(steps.event)), -1, np.int64)
    for owner in (run_step, run_nested):
        known = owner >= 0
        np.maximum.at(last, (run_lane[known], owner[known]), run_end[known])
    for step in range(len(steps.event) - 1, steps.outer - 1, -1):
        np.maximum(last[:, steps.parent[step]], last[:, step], out=last[:, steps.parent[step]])
    for lane in range(lanes):
        measured = np.flatnonzero(last[lane, : steps.outer] >= 0)
        begin = max(int(steps.start_ps[measured[0]]), start) if len(measured) else end
        windows.add(lane, "head", -1, start, begin)
        bounds = {}
        at = begin
        for step in range(steps.outer):
            reach = max(at, int(last[lane, step]))
            windows.add(lane, "step", step, at, reach)
            bounds[step] = (at, reach)
            at = reach
        windows.add(lane, "tail", -1, at, end)
        for step in range(steps.outer, len(steps.event)):
            # Nested steps divide their parent's window by the same rule, in order of host start.
            parent = int(steps.parent[step])
            low, high = bounds[parent]
            reach = min(max(low, int(last[lane, step])), high)
            windows.add(lane, "nested", step, low, reach)
            bounds[parent] = (reach, high)
            bounds[step] = (low, reach)
    return windows


def _host_windows(windows: Windows, steps: Steps, start: int, end: int) -> None:
    at = max(start, int(steps.start_ps[0])) if steps.outer else end
    windows.add(0, "head", -1, start, at)
    for step in range(steps.outer):
        reach = max(at, min(int(steps.end_ps[step]), end))
        windows.add(0, "step", step, at, reach)
        at = reach
    windows.add(0, "tail", -1, at, end)


def step_times(windows: Iterable[tuple[int, int, int, int]], count: int) -> list[int]:
    """The time of each step over all lanes, in ps: max over lanes of b(k), less that of b(k-1) (BREAKDOWN.md 6).

    ``windows``: (lane, step, start_ps, end_ps) of the outermost steps 0 to ``count`` - 1, each lane's in order of step.
    A lane counts from its first window that is not empty: before that it had no work.
    """
    begun: dict[int, int] = {}
    reach: dict[int, int] = {}
    for lane, step, start_ps, end_ps in windows:
        if lane in begun or end_ps > start_ps:
            begun.setdefault(lane, start_ps)
            reach[step] = max(reach.get(step, end_ps), end_ps)
    out = []
    at = min(begun.values(), default=0)
    for step in range(count):
        out.append(max(reach.get(step, at) - at, 0))
        at += out[-1]
    return out


@dataclass
class LaneCover:
    """What a lane did: per busy class its exclusive and total cover, and the union of all."""

    exclusive: list[Intervals]
    total: list[Intervals]
    busy: Intervals


def cover_lane(ops: DeviceOps, lane: int) -> LaneCover:
    """Leaves only. Where classes overlap the earlier of BUSY_CLASSES wins; an op's open part wins over nothing."""
    mine = (ops.lane == lane) & ops.leaf
    closed, still_open, total = [], [], []
    for code in range(len(BUSY_CLASSES)):
        rows = mine & (ops.class_code == code)
        closed.append(intervals.union(ops.start_ps[rows], ops.end_ps[rows]))
        still_open.append(intervals.union(ops.end_ps[rows], ops.open_end_ps[rows]))
        total.append(intervals.union(ops.start_ps[rows], ops.open_end_ps[rows]))
    taken = intervals.nothing()
    exclusive: list[Intervals] = []
    for piece in closed:
        exclusive.append(intervals.subtract(piece, taken))
        taken = _both(taken, piece)
    for code, piece in enumerate(still_open):
        exclusive[code] = _both(exclusive[code], intervals.subtract(piece, taken))
        taken = _both(taken, piece)
    return LaneCover(exclusive, total, taken)


def foreign_cover(
    ops: DeviceOps, lane: int, op_step: Int64, step: Int64, start: Int64, end: Int64
) -> dict[tuple[int, int], int]:
    """(window, class) -> how much of the window is covered by leaves of other steps; copies belong to no step.

    ``op_step`` per op, ``step``/``start``/``end`` per window of the lane (disjoint, sorted).
    """
    mine = np.flatnonzero((ops.lane == lane) & ops.leaf & (op_step >= 0))
    first = np.searchsorted(end, ops.start_ps[mine], side="right")
    last = np.searchsorted(start, ops.open_end_ps[mine], side="left")
    count = np.maximum(last - first, 0)
    op = np.repeat(mine, count)
    window = np.repeat(first, count) + np.arange(len(op)) - np.repeat(np.cumsum(count) - count, count)
    foreign = op_step[op] != step[window]
    op, window = op[foreign], window[foreign]
    if not len(op):
        return {}
    out = {}
    key = window * len(BUSY_CLASSES) + ops.class_code[op]
    order = np.argsort(key, kind="stable")
    groups, begin = np.unique(key[order], return_index=True)
    for group, rows in zip(groups.tolist(), np.split(op[order], begin[1:]), strict=True):
        place, code = divmod(group, len(BUSY_CLASSES))
        starts, ends = intervals.union(
            np.maximum(ops.start_ps[rows], start[place]), np.minimum(ops.open_end_ps[rows], end[place])
        )
        if len(starts):
            out[place, code] = int((ends - starts).sum())
    return out


def _both(a: Intervals, b: Intervals) -> Intervals:
    return intervals.union(np.concatenate((a[0], b[0])), np.concatenate((a[1], b[1])))
