"""Host events by which a GPU's work is launched: the driver's calls, and the executions of programs around them."""

from __future__ import annotations

import re

import numpy as np

from xprof_py.postprocess.hlo import kernel_names
from xprof_py.postprocess.join.columns import Bool, Events, Int64, distinct, occurring
from xprof_py.postprocess.join.device_ops import row_of
from xprof_py.postprocess.join.nesting import innermost_around
from xprof_py.postprocess.profile import Profile

_EXECUTION = re.compile(r":XLA GPU module$|^XlaModule|GpuExecutable::Execute|LoadedExecutable::EnqueueExecution$")


def call_events(profile: Profile, events: Events) -> Int64:
    """Events of host planes with a correlation id, in order of start."""
    planes = profile["lines"]["plane"].to_pylist()
    on_host = np.array([plane.startswith("/host:") for plane in planes] or np.zeros(0), np.bool_)
    rows = events.having("correlation_id")[0]
    rows = rows[on_host[events.line[rows]]]
    return rows[np.argsort(events.start_ps[rows], kind="stable")]


def call_of(profile: Profile, events: Events, device_rows: Int64) -> Int64:
    """Per device event (-1: not asked) the host's call with its correlation id, -1 without; by calls_of_work."""
    return calls_of_work(profile, events, device_rows)[0]


def calls_of_work(profile: Profile, events: Events, device_rows: Int64) -> tuple[Int64, int]:
    """(per device event, -1: not asked, the call with its correlation id, -1 without; of how many nothing tells).

    0 is no id. Where an id comes again, because its counter began anew, work is of the last call of its id that had
    begun when it began itself, without one of the first. Where a call would so have started several things, and one
    before it none, nothing tells whose they are.
    """
    calls = outer_calls(events, call_events(profile, events))
    # No event is of row -1: it has no id.
    has_id, value = events.argument_of("correlation_id", device_rows)
    ids = events.argument_of("correlation_id", calls)[1]
    place = row_of(ids, value)
    out = np.where(has_id & (value != 0) & (place >= 0), calls[place] if len(calls) else -1, -1)
    used, count = np.unique(ids, return_counts=True)
    again = np.isin(ids, used[(count > 1) & (used != 0)])
    rows = np.flatnonzero((out >= 0) & np.isin(value, ids[again]))
    if not len(rows):
        return out, 0
    calls, ids = calls[again], ids[again]
    order = np.argsort(ids, kind="stable")
    calls, ids = calls[order], ids[order]
    mine = _last_begun(ids, events.start_ps[calls], value[rows], events.start_ps[device_rows[rows]])
    out[rows] = calls[mine]
    # A graph's kernels are many of one call.
    alone = ~events.argument_of("cuda_graph_node_id", device_rows[rows])[0]
    several = np.bincount(mine[alone], minlength=len(calls)) > 1
    idle = (np.bincount(mine, minlength=len(calls)) == 0) & starts_work(events, calls)
    behind_idle = np.append(False, idle[:-1] & (ids[1:] == ids[:-1]))
    unclear = np.isin(ids, ids[several & behind_idle])[mine]
    out[rows[unclear]] = -1
    return out, int(unclear.sum())


def _last_begun(ids: Int64, begun: Int64, wanted: Int64, at: Int64) -> Int64:
    """Per wanted id and moment the last row of (``ids``, ``begun``), in that order, that had begun; else its first."""
    both, moment = np.concatenate((ids, wanted)), np.concatenate((begun, at))
    asked = np.arange(len(both)) >= len(ids)
    order = np.lexsort((asked, moment, both))
    before = np.empty(len(order), np.int64)
    before[order] = np.cumsum(~asked[order])
    return np.maximum(before[len(ids) :] - 1, np.searchsorted(ids, wanted))


def outer_calls(events: Events, calls: Int64) -> Int64:
    """The calls, in their order, without the driver's own inside a call of the runtime that has the same id."""
    ids = events.argument_of("correlation_id", calls)[1]
    _, group = distinct(ids, events.line[calls])
    order = np.lexsort((-events.end_ps[calls], events.start_ps[calls], group))
    # How far the calls before one, of its id and line, reach: by rank, so that groups can be told apart in one number.
    end = np.unique(events.end_ps[calls], return_inverse=True)[1].reshape(-1)[order]
    reach = group[order] * (len(calls) + 1) + end
    before = np.concatenate(([-1], np.maximum.accumulate(reach)[:-1]))
    inside = np.zeros(len(calls), np.bool_)
    inside[order] = (before >= reach) & (ids[order] != 0)
    return calls[~inside]


def starts_work(events: Events, calls: Int64) -> Bool:
    """Which calls start work on a device, by their names."""
    starts = np.zeros(len(events.names), np.bool_)
    for code in occurring(events.name[calls], len(events.names)).tolist():
        starts[code] = kernel_names.LAUNCH_CALL.search(events.names[code]) is not None
    return np.asarray(starts[events.name[calls]], np.bool_)


def execution_of(events: Events, call: Int64) -> Int64:
    """Per call (-1: none) the event of the program's execution around it on its line, -1 without."""
    out = np.full(len(call), -1, np.int64)
    known = np.flatnonzero(call >= 0)
    markers = events.rows_where(lambda name: _EXECUTION.search(name) is not None)
    out[known] = innermost_around(events, call[known], markers)
    return out
