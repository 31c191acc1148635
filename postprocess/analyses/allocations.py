"""Who asked for device memory, and who gave it back? Per allocator, step and innermost span of the asking thread.

An allocation belongs to the step around it on its thread; on a thread that marks no steps, to the one that is open in
the process at that moment. `allocated_bytes` and `freed_bytes` are what the allocator took and gave back for them, its
rounding included; what is freed was often allocated elsewhere, so a row's difference is what it left behind.
`peak_bytes` is the most that was in use after one of its events, null where the trace does not say what is in use.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.analyses.memory_timeline import ALLOCATED, FREED, has_allocators
from xprof_py.postprocess.join.columns import Events, Int64, distinct, integers
from xprof_py.postprocess.join.nesting import innermost_around
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import Kind

_KEYS = ("host", "allocator", "step_name", "step", "occurrence", "span")
_SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("allocator", pa.string()),
        ("step_name", pa.string()),
        ("step", pa.int64()),
        ("occurrence", pa.int32()),
        ("span", pa.string()),
        ("allocations", pa.int64()),
        ("allocated_bytes", pa.int64()),
        ("frees", pa.int64()),
        ("freed_bytes", pa.int64()),
        ("peak_bytes", pa.int64()),
    ]
)
_SPANS = (Kind.SPAN, Kind.INPUT, Kind.CHECKPOINT)


def partial(profile: Profile) -> pa.Table:
    """The rows of one joined profile."""
    if not has_allocators(profile):
        return _SCHEMA.empty_table()
    events = Events.of(profile)
    rows = events.rows_named(ALLOCATED, FREED)
    named, allocator = events.argument_of("allocator_name", rows)
    sized, size = events.argument_of("allocation_bytes", rows)
    keep = named & sized
    rows, allocator, size = rows[keep], allocator[keep], size[keep]
    told, in_use = events.argument_of("bytes_allocated", rows)
    freed = events.verdicts(lambda name: name == FREED)[events.name[rows]]
    around = innermost_around(events, rows, events.rows_of_kind(*_SPANS))
    span = np.where(around >= 0, events.name[around], -1)
    step = _steps(profile, events, rows)
    first, group = distinct(allocator, step, span)
    count = len(first)

    def total(mine: np.ndarray, amount: Int64) -> Int64:
        out = np.zeros(count, np.int64)
        np.add.at(out, group[mine], amount[mine])
        return out

    peak = np.full(count, -1, np.int64)
    np.maximum.at(peak, group[told], in_use[told])
    steps = profile["steps"].select(["name", "number", "occurrence"]).to_pylist()
    of = [steps[row] if row >= 0 else dict.fromkeys(("name", "number", "occurrence")) for row in step[first].tolist()]
    one = np.ones(len(rows), np.int64)
    return pa.Table.from_pydict(
        {
            "host": [profile.host] * count,
            "allocator": [events.text_of(code) for code in allocator[first].tolist()],
            "step_name": [row["name"] for row in of],
            "step": [row["number"] for row in of],
            "occurrence": [row["occurrence"] for row in of],
            "span": [events.names[code] if code >= 0 else None for code in span[first].tolist()],
            "allocations": total(~freed, one),
            "allocated_bytes": total(~freed, size),
            "frees": total(freed, one),
            "freed_bytes": total(freed, size),
            "peak_bytes": pa.array(peak, mask=peak < 0),
        },
        schema=_SCHEMA,
    )


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Rows of both: an allocator is its host's own."""
    return pa.concat_tables([a, b])


def finish(merged: pa.Table) -> pa.Table:
    """The same rows by host, allocator, step and span."""
    return merged.sort_by([(name, "ascending") for name in _KEYS])


def _steps(profile: Profile, events: Events, rows: Int64) -> Int64:
    """Per event the row of its outermost step, -1 without."""
    steps = profile["steps"]
    line, begin, end = (integers(steps, name) for name in ("line", "start_ps", "end_ps"))
    end = np.where(end < 0, np.iinfo(np.int64).max, end)
    outer = np.flatnonzero(integers(steps, "parent") < 0)
    at, of = events.start_ps[rows], events.line[rows]
    found = np.full(len(rows), -1, np.int64)
    marking = np.unique(line[outer])
    for asked in np.unique(of).tolist():
        mine = np.flatnonzero(of == asked)
        for one in [asked] if asked in marking else marking.tolist():
            own = outer[line[outer] == one]
            place = np.searchsorted(begin[own], at[mine], side="right") - 1
            row = own[np.maximum(place, 0)]
            inside = (place >= 0) & (at[mine] < end[row])
            found[mine] = np.maximum(found[mine], np.where(inside, row, -1))
    return found
