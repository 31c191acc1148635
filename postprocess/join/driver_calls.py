"""Host events by which a GPU's work is launched: the driver's calls, and the executions of programs around them."""

from __future__ import annotations

import re

import numpy as np

from xprof_py.postprocess.join.columns import Events, Int64
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
    """Per device event (-1: not asked) the host's call with its correlation id, -1 without. 0 is no id."""
    calls = call_events(profile, events)
    # No event is of row -1: it has no id.
    has_id, value = events.argument_of("correlation_id", device_rows)
    place = row_of(events.argument_of("correlation_id", calls)[1], value)
    return np.where(has_id & (value != 0) & (place >= 0), calls[place] if len(calls) else -1, -1)


def execution_of(events: Events, call: Int64) -> Int64:
    """Per call (-1: none) the event of the program's execution around it on its line, -1 without."""
    out = np.full(len(call), -1, np.int64)
    known = np.flatnonzero(call >= 0)
    markers = events.rows_where(lambda name: _EXECUTION.search(name) is not None)
    out[known] = innermost_around(events, call[known], markers)
    return out
