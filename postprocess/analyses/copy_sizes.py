"""How much was copied between host and devices, and how fast, as far as the trace states bytes?

Per direction of the table `copies` and phase of the step that began them ("outside" of steps; "not_joined" where the
call that began a copy is not known, as on GPUs in this version): copies, their summed durations, and apart from that
the bytes, number and durations of those whose bytes and duration are both known. A bandwidth is bytes over duration of
the latter alone: copies of unknown size make it neither faster nor slower. Copies that overlap are each counted in
full.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.join.columns import Bool, integers
from xprof_py.postprocess.profile import Profile

KEYS = ["direction", "phase"]
_SUMS = ("count", "total_ps", "known_count", "known_bytes", "known_ps")
_SCHEMA = pa.schema([*((key, pa.string()) for key in KEYS), *((name, pa.int64()) for name in _SUMS)])


def partial(profile: Profile) -> pa.Table:
    """KEYS and sums of one joined profile."""
    copies = profile["copies"]
    duration, size = (integers(copies, name) for name in ("duration_ps", "bytes"))
    known: Bool = (duration > 0) & (size > 0)
    return merge(
        pa.table(
            {
                "direction": copies["direction"],
                "phase": _phases(profile),
                "count": np.ones(len(size), np.int64),
                "total_ps": np.maximum(duration, 0),
                "known_count": known.astype(np.int64),
                "known_bytes": np.where(known, size, 0),
                "known_ps": np.where(known, duration, 0),
            }
        ).cast(_SCHEMA),
        None,
    )


def _phases(profile: Profile) -> pa.ChunkedArray:
    """Per copy the phase of its step: "outside" of steps, "not_joined" where the call that began it is not known."""
    copies = profile["copies"]
    elsewhere = pc.if_else(copies["put"].is_valid(), "outside", "not_joined")
    return pc.coalesce(profile["steps"]["phase"].cast(pa.string()).take(copies["step"]), elsewhere)


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Sums per key."""
    both = a if b is None else pa.concat_tables([a, b])
    summed = both.group_by(KEYS).aggregate([(name, "sum") for name in _SUMS])
    return summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names]).cast(_SCHEMA)


def finish(merged: pa.Table) -> pa.Table:
    """The same rows, longest first."""
    return merged.sort_by([("total_ps", "descending"), *((key, "ascending") for key in KEYS)])
