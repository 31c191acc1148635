"""What was compiled, how often, and in which steps?

Per function, stage (trace, lower, compile) and step: count and picoseconds of the stage's own interval. Stages nest
(tracing a function traces those that it calls), so totals of different functions are not to be added up.
"""

from __future__ import annotations

import pyarrow as pa

from xprof_py.postprocess.profile import Profile

KEYS = ["host", "function", "stage", "step_name", "step_number", "phase", "source"]
_SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("function", pa.string()),
        ("stage", pa.string()),
        ("step_name", pa.string()),
        ("step_number", pa.int64()),
        ("phase", pa.string()),
        ("source", pa.string()),
        ("count", pa.int64()),
        ("total_ps", pa.int64()),
    ]
)


def partial(profile: Profile) -> pa.Table:
    """One row per key of one joined profile; step columns are null outside steps."""
    compiles, steps = profile["compiles"], profile["steps"]
    step = compiles["step"]
    none = pa.nulls(compiles.num_rows)
    table = pa.table(
        {
            "host": pa.repeat(pa.scalar(profile.host), compiles.num_rows),
            "function": compiles["function"],
            "stage": compiles["stage"],
            "step_name": steps["name"].take(step) if steps.num_rows else none,
            "step_number": steps["number"].take(step) if steps.num_rows else none,
            "phase": steps["phase"].take(step) if steps.num_rows else none,
            "source": compiles["source"],
            "count": pa.repeat(pa.scalar(1, pa.int64()), compiles.num_rows),
            "total_ps": compiles["duration_ps"],
        }
    ).cast(_SCHEMA)
    return merge(table, None)


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Sums per key."""
    both = a if b is None else pa.concat_tables([a, b])
    summed = both.group_by(KEYS).aggregate([("count", "sum"), ("total_ps", "sum")])
    return summed.rename_columns([c.removesuffix("_sum") for c in summed.column_names]).cast(_SCHEMA)


def finish(merged: pa.Table) -> pa.Table:
    """The same rows, longest first."""
    return merged.sort_by([("total_ps", "descending"), *((key, "ascending") for key in KEYS)])
