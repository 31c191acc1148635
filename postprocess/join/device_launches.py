"""Launches of work on TPUs and GPUs, and the runs they started (docs/breakdown.md).

A GPU's kernels and copies carry the correlation id of the driver's call that launched them: every one has a launch of
its own. A TPU's module carries the flow (or the run id) of the host event that enqueued it. Either may lie on a thread
of the runtime: flows from thread to thread lead back to the thread that asked for it, and from there to the step. A
launch begins where that thread asked, and ends where the driver's call or the enqueueing ends.

Ids are certain: a run that begins before its launch shows that the device's clock is off, and is counted as such.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xprof_py.postprocess.hlo import kernel_names
from xprof_py.postprocess.join import host_names
from xprof_py.postprocess.join.columns import Bool, Events, Int64, distinct, united
from xprof_py.postprocess.join.device_ops import row_of
from xprof_py.postprocess.join.device_planes import DevicePlanes, lane_order
from xprof_py.postprocess.join.driver_calls import call_events, outer_calls, starts_work
from xprof_py.postprocess.join.launches import Launches, RunJoin
from xprof_py.postprocess.join.nesting import innermost_around
from xprof_py.postprocess.join.short_graphs import ShortGraphs, short_graphs
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import CLASSES

_ENQUEUE = "DoEnqueueProgram"
_HOPS = 16
"""Longest chain of hand-overs that is followed."""


@dataclass
class DeviceLaunches:
    """``joined.in_flight``: launches after the last one whose work shows. ``without_work``: how many before it."""

    launches: Launches
    joined: RunJoin
    short: ShortGraphs
    without_work: int = 0
    early_runs: int = 0
    earliest_ps: int = 0
    """How many runs begin before their launch, and by how much at most."""
    early_kernels: int = 0
    """How many kernels and copies with a launch of their own begin before it."""
    undirected: int = 0
    """Copies whose direction nothing says."""


def join_device_launches(
    profile: Profile, events: Events, planes: DevicePlanes, step_lines: Bool, program_key: list[str]
) -> DeviceLaunches:
    """Find the launch of every run and op of ``planes.ops``; sets their ``launch`` and the class of undirected copies.

    ``step_lines``: lines of threads that have steps: no hand-over is followed beyond them. ``program_key``: module_key
    per row of programs.
    """
    ops = planes.ops
    enqueue = _enqueue_of(profile, events, planes)
    calls = outer_calls(events, call_events(profile, events))
    calls = calls[starts_work(events, calls)]
    enqueues = _enqueues(events)
    if not (planes.run_event >= 0).any():
        enqueues = enqueues[:0]
    used = united(planes.call[planes.call >= 0], enqueue[enqueue >= 0])
    rows = united(used, calls, enqueues)
    asked = _asked_by(profile, events, rows, step_lines)
    order = np.lexsort((rows, events.start_ps[asked]))
    rows, asked = rows[order], asked[order]
    ops.launch = row_of(rows, planes.call)
    ops.launch[planes.call < 0] = -1
    by_enqueue = np.where(enqueue >= 0, row_of(rows, enqueue), -1)
    launch = np.where(planes.run_event >= 0, by_enqueue, _first_launch(planes))
    has_run_id, run_id = events.argument_of("run_id", rows)
    names, keys = _names(events, planes, rows, launch, program_key, profile)
    launches = Launches(
        event=asked,
        line=events.line[asked],
        start_ps=events.start_ps[asked],
        end_ps=np.maximum(events.end_ps[rows], events.start_ps[asked]),
        call_start_ps=events.start_ps[asked],
        call_end_ps=np.maximum(events.end_ps[asked], events.start_ps[asked]),
        open=events.duration_ps[rows] < 0,
        key=keys,
        name=names,
        has_run_id=has_run_id,
        run_id=run_id,
    )
    joined = RunJoin(launch, ["id" if row >= 0 else "none" for row in launch.tolist()])
    found = DeviceLaunches(launches, joined, short_graphs(events, ops))
    shown = np.isin(rows, used)
    last = events.start_ps[rows[shown]].max() if shown.any() else np.iinfo(np.int64).max
    after = ~shown & (events.start_ps[rows] > last)
    joined.in_flight = np.flatnonzero(after).tolist()
    found.without_work = int((~shown & ~after).sum())
    known = np.flatnonzero(launch >= 0)
    early = launches.start_ps[launch[known]] - ops.run_start_ps[known]
    found.early_runs, found.earliest_ps = int((early > 0).sum()), int(early.max(initial=0))
    own = np.flatnonzero(ops.launch >= 0)
    found.early_kernels = int((ops.start_ps[own] < launches.start_ps[ops.launch[own]]).sum())
    found.undirected = _direct_copies(events, planes)
    return found


def _enqueues(events: Events) -> Int64:
    rows = events.rows_named(_ENQUEUE)
    return rows[events.argument_of("run_id", rows)[0]]


def _enqueue_of(profile: Profile, events: Events, planes: DevicePlanes) -> Int64:
    """Per run the event that enqueued its module: by the flow that ends in the module, else by device and run id."""
    module = planes.run_event
    out = np.full(len(module), -1, np.int64)
    known = np.flatnonzero(module >= 0)
    if not len(known):
        return out
    out[known] = _producers(profile, events, module[known])
    missing = known[out[known] < 0]
    rows = _enqueues(events)
    keys = [events.argument_of(key, rows)[1] for key in ("device_ordinal", "core_type", "run_id")]
    lanes = np.array([lane_order(device)[1] for device in planes.ops.devices], np.int64)
    mine = module[missing]
    has_run, run_id = events.argument_of("run_id", mine)
    wanted = [lanes[planes.ops.run_lane[missing]], events.argument_of("core_type", mine)[1], run_id]
    place = _matching(keys, wanted)
    out[missing] = np.where(has_run & (place >= 0), rows[place] if len(rows) else -1, -1)
    return out


def _matching(keys: list[Int64], wanted: list[Int64]) -> Int64:
    """Per row of the columns ``wanted`` the last row of the columns ``keys`` that says the same, -1 without."""
    _, code = distinct(*(np.concatenate(pair) for pair in zip(keys, wanted, strict=True)))
    return row_of(code[: len(keys[0])], code[len(keys[0]) :])


def _producers(profile: Profile, events: Events, consumers: Int64) -> Int64:
    """Per event the host's event that its flow comes from (`_pt`, `_p` equal to its `_ct`, `_c`), -1 without."""
    planes = profile["lines"]["plane"].to_pylist()
    on_host = np.array([plane.startswith("/host:") for plane in planes] or np.zeros(0), np.bool_)
    rows, flow = events.having("_p")
    mine = on_host[events.line[rows]]
    rows, flow = rows[mine], flow[mine]
    has_end, end = events.argument_of("_c", consumers)
    place = _matching([events.argument_of("_pt", rows)[1], flow], [events.argument_of("_ct", consumers)[1], end])
    return np.where(has_end & (place >= 0), rows[place] if len(rows) else -1, -1)


def _asked_by(profile: Profile, events: Events, rows: Int64, step_lines: Bool) -> Int64:
    """Per launching event the event of the thread that asked for it: hand-overs followed back as far as they go.

    Hand-overs between threads of a pool say only what ran after what, and are not followed.
    """
    consumers = events.having("_c")[0]
    pooled = events.verdicts(lambda name: name.startswith("ThreadpoolListener::"))
    consumers = consumers[~pooled[events.name[consumers]]]
    consumers = consumers[_producers(profile, events, consumers) >= 0]
    at = rows.copy()
    moving = np.arange(len(rows))
    for _ in range(_HOPS):
        moving = moving[~step_lines[events.line[at[moving]]]]
        around = innermost_around(events, at[moving], consumers)
        moving, around = moving[around >= 0], around[around >= 0]
        if not len(moving):
            break
        source = _producers(profile, events, around)
        earlier = events.start_ps[source] <= events.start_ps[around]
        moving = moving[earlier]
        at[moving] = source[earlier]
    return at


def _first_launch(planes: DevicePlanes) -> Int64:
    """Per run the launch of its first op that has one, -1 without."""
    ops = planes.ops
    out = np.full(len(ops.run_lane), -1, np.int64)
    mine = np.flatnonzero((ops.run >= 0) & (ops.launch >= 0))
    mine = mine[np.argsort(ops.start_ps[mine], kind="stable")]
    run, first = np.unique(ops.run[mine], return_index=True)
    out[run] = ops.launch[mine[first]]
    return out


def _names(
    events: Events, planes: DevicePlanes, rows: Int64, launch: Int64, program_key: list[str], profile: Profile
) -> tuple[list[str], list[str]]:
    """(name, module_key) per launch: of the program that it is part of, else the name of the call."""
    ops = planes.ops
    program = np.full(len(rows), -1, np.int64)
    of_run = np.flatnonzero((launch >= 0) & (ops.run_program >= 0))
    program[launch[of_run]] = ops.run_program[of_run]
    of_op = np.flatnonzero((ops.launch >= 0) & (ops.run >= 0))
    of_op = of_op[ops.run_program[ops.run[of_op]] >= 0]
    program[ops.launch[of_op]] = ops.run_program[ops.run[of_op]]
    programs = profile["programs"]["name"].to_pylist()
    calls = events.name[rows].tolist()
    names = [programs[p] if p >= 0 else events.names[c] for p, c in zip(program.tolist(), calls, strict=True)]
    return names, [program_key[p] if p >= 0 else "" for p in program.tolist()]


def _direct_copies(events: Events, planes: DevicePlanes) -> int:
    """Give copies without a direction of their own that of the call that launched them; how many stay without.

    A copy that the runtime launched to hand an array to another device is one between devices.
    """
    ops = planes.ops
    between = events.rows_where(lambda name: host_names.BETWEEN_DEVICES.search(name) is not None)
    named = np.flatnonzero(planes.call >= 0)
    copies = named[planes.undirected[named] | (ops.class_code[named] == CLASSES.index("memory"))]
    copies = copies[events.verdicts(kernel_names.is_copy)[events.name[ops.event[copies]]]]
    handed = innermost_around(events, planes.call[copies], between) >= 0
    ops.class_code[copies[handed]] = CLASSES.index("collective")
    left = np.flatnonzero(planes.undirected & ~np.isin(np.arange(len(ops.event)), copies[handed]))
    unknown = 0
    # Decided per pair of names, not per copy.
    call = planes.call[left]
    call_name = np.where(call >= 0, events.name[np.maximum(call, 0)], -1)
    own_name = events.name[ops.event[left]]
    first, group = distinct(own_name, call_name)
    for i, (name, by) in enumerate(zip(own_name[first].tolist(), call_name[first].tolist(), strict=True)):
        rows = left[group == i]
        found = kernel_names.class_of_copy(events.names[name], events.names[by] if by >= 0 else "")
        if found is None:
            unknown += len(rows)
        else:
            ops.class_code[rows] = CLASSES.index(found)
    return unknown
