"""How long did the program's own annotations take? Per kind and name: count, total, longest, and where they came from.

Durations are the spans' own, from begin to end on their thread: nested spans are each counted in full, and nothing says
that a device waited for them. Spans that were open at the end of the capture are left out and counted apart.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.join.columns import Events, distinct
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import Kind

KEYS = ["kind", "name", "source"]
_KINDS = (Kind.SPAN, Kind.STEP, Kind.INPUT, Kind.CHECKPOINT)
_SCHEMA = pa.schema(
    [
        *((k, pa.string()) for k in KEYS),
        ("count", pa.int64()),
        ("total_ps", pa.int64()),
        ("longest_ps", pa.int64()),
        ("still_open", pa.int64()),
    ]
)


def partial(profile: Profile) -> pa.Table:
    """One row per (kind, name, source) of one profile."""
    events = Events.of(profile)
    rows = events.rows_of_kind(*_KINDS)
    has_source, source = events.argument_of("source", rows)
    packed = (events.kind[rows], events.name[rows], np.where(has_source, source, -1))
    first, group = distinct(*packed)
    unique = np.stack([column[first] for column in packed], axis=1)
    closed = events.duration_ps[rows] >= 0
    duration = np.where(closed, events.duration_ps[rows], 0)
    total = np.zeros(len(unique), np.int64)
    longest = np.zeros(len(unique), np.int64)
    np.add.at(total, group, duration)
    np.maximum.at(longest, group, duration)
    count = np.bincount(group[closed], minlength=len(unique))
    still_open = np.bincount(group[~closed], minlength=len(unique))
    return merge(
        pa.Table.from_pylist(
            [
                {
                    "kind": Kind(int(kind)).name.lower(),
                    "name": events.names[int(name)],
                    "source": events.text_of(int(where)) if where >= 0 else "",
                    "count": int(count[i]),
                    "total_ps": int(total[i]),
                    "longest_ps": int(longest[i]),
                    "still_open": int(still_open[i]),
                }
                for i, (kind, name, where) in enumerate(unique)
            ],
            schema=_SCHEMA,
        ),
        None,
    )


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Sums and maxima per key."""
    both = a if b is None else pa.concat_tables([a, b])
    summed = both.group_by(KEYS).aggregate(
        [("count", "sum"), ("total_ps", "sum"), ("longest_ps", "max"), ("still_open", "sum")]
    )
    return summed.rename_columns([c.removesuffix("_sum").removesuffix("_max") for c in summed.column_names]).cast(
        _SCHEMA
    )


def finish(merged: pa.Table) -> pa.Table:
    """The same rows, longest total first."""
    return merged.sort_by([("total_ps", "descending"), *((key, "ascending") for key in KEYS)])
