"""Steps as a device's own line `Steps` has them: where no step of the host can be joined to the device's runs.

The profiler writes the line from markers in the program; each lane has its own intervals of a step, told by number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from xprof_py.postprocess.join.columns import Events, Int64
from xprof_py.postprocess.join.device_ops import DeviceOps
from xprof_py.postprocess.join.device_planes import device_of_line
from xprof_py.postprocess.join.steps import Steps
from xprof_py.postprocess.profile import Profile

_LINES = ("Steps", "Sparse Core Steps")
_NUMBER = re.compile(r"(\d+)\s*$")


@dataclass
class StepsLine:
    """``steps``: from the earliest start to the latest end of a number over the lanes. ``run_step``: per run, -1."""

    steps: Steps
    run_step: Int64


def read_steps_line(profile: Profile, events: Events, ops: DeviceOps) -> StepsLine | None:
    """The steps of the devices' lines `Steps`, None where there is none with work of the lanes in it."""
    names, planes = profile["lines"]["name"].to_pylist(), profile["lines"]["plane"].to_pylist()
    lane = {device: i for i, device in enumerate(ops.devices)}
    lines = {
        i: lane[device]
        for i, (plane, name) in enumerate(zip(planes, names, strict=True))
        if name in _LINES and (device := device_of_line(plane, name)) in lane
    }
    rows = events.rows_on(np.array(sorted(lines), np.int64))
    rows = rows[events.end_ps[rows] > events.start_ps[rows]]
    if not len(rows):
        return None
    numbers = _numbers(events, rows)
    of_lane = np.array([lines[int(line)] for line in events.line[rows]], np.int64)
    occurrence = _occurrences(of_lane, numbers)
    keys, key = np.unique(np.stack([numbers, occurrence], axis=1), axis=0, return_inverse=True)
    key = key.reshape(-1)
    start = np.full(len(keys), np.iinfo(np.int64).max)
    np.minimum.at(start, key, events.start_ps[rows])
    end = np.full(len(keys), np.iinfo(np.int64).min)
    np.maximum.at(end, key, events.end_ps[rows])
    first = np.full(len(keys), -1, np.int64)
    first[key[::-1]] = rows[::-1]
    order = np.lexsort((keys[:, 0], start))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    interval = _intervals_of_runs(events, ops, rows, of_lane)
    if not (interval >= 0).any():
        return None
    run_step = np.where(interval >= 0, rank[key][interval], -1)
    steps = Steps(
        event=first[order],
        thread=events.line[first[order]].astype(np.int64),
        start_ps=start[order],
        end_ps=end[order],
        open=[False] * len(order),
        name=["step"] * len(order),
        number=keys[order, 0].tolist(),
        occurrence=keys[order, 1].tolist(),
        parent=np.full(len(order), -1, np.int64),
        outer=len(order),
    )
    return StepsLine(steps, run_step)


def _numbers(events: Events, rows: Int64) -> Int64:
    """The step's number: stated, else the number in its name, else the group that the profiler gave it."""
    has_number, number = events.argument_of("step_num", rows)
    names, name = np.unique(events.name[rows], return_inverse=True)
    named = [_NUMBER.search(events.names[code]) for code in names.tolist()]
    in_name = np.array([found is not None for found in named])[name]
    of_name = np.array([int(found[1]) if found else 0 for found in named], np.int64)[name]
    return np.where(has_number, number, np.where(in_name, of_name, events.argument_of("group_id", rows)[1]))


def _occurrences(lane: Int64, number: Int64) -> Int64:
    """How often each number came before on its lane; rows are in order of (line, start)."""
    seen: dict[tuple[int, int], int] = {}
    out = []
    for key in zip(lane.tolist(), number.tolist(), strict=True):
        out.append(seen.get(key, 0))
        seen[key] = out[-1] + 1
    return np.array(out, np.int64)


def _intervals_of_runs(events: Events, ops: DeviceOps, rows: Int64, of_lane: Int64) -> Int64:
    """Per run the interval (place in ``rows``) of its lane that it starts in, -1 without."""
    out = np.full(len(ops.run_lane), -1, np.int64)
    for lane in np.unique(of_lane).tolist():
        mine = np.flatnonzero(of_lane == lane)
        mine = mine[np.argsort(events.start_ps[rows[mine]], kind="stable")]
        runs = np.flatnonzero(ops.run_lane == lane)
        place = np.searchsorted(events.start_ps[rows[mine]], ops.run_start_ps[runs], side="right") - 1
        inside = (place >= 0) & (ops.run_start_ps[runs] < events.end_ps[rows[mine[place]]])
        out[runs] = np.where(inside, mine[place], -1)
    return out
