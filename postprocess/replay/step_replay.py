"""What would a step take without one class of its time? The timeline is replayed with that class taken away.

Never by subtraction: overlap and run-ahead make that false. Replayed with nothing removed the windows must come out as
measured; `finish` says by how much they do not.
"""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.join.columns import integers
from xprof_py.postprocess.join.windows import step_times
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.replay.program import Program, Windows, replay
from xprof_py.postprocess.replay.timeline import read_timeline, step_threads
from xprof_py.postprocess.schema import CLASSES

NOTHING = "nothing"
_SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("name", pa.string()),
        ("number", pa.int64()),
        ("occurrence", pa.int32()),
        ("phase", pa.string()),
        ("removed", pa.string()),
        ("step_ps", pa.int64()),
        ("measured_ps", pa.int64()),
    ]
)


def partial(profile: Profile) -> pa.Table:
    """Per outermost step of one joined profile: its time over all lanes as measured and as replayed without each class.

    Columns of _SCHEMA; `removed` is "nothing" or a class of schema.CLASSES that takes any time in the step windows.
    No rows where the steps are those of a device's line `Steps`: what the host did for them is not known.
    """
    breakdown = profile["breakdown"]
    present = breakdown.filter(pc.and_(pc.equal(breakdown["kind"], "step"), pc.greater(breakdown["exclusive_ps"], 0)))
    classes = [name for name in CLASSES if name in set(present["class"].unique().to_pylist())]
    # Steps of a device's own line have no thread whose work could be moved.
    if not classes or "steps_line" in profile["runs"]["join"].to_pylist():
        return _SCHEMA.empty_table()
    steps = profile["steps"].filter(pc.is_null(profile["steps"]["parent"]))
    windows = step_windows(profile)
    measured = pa.array(step_times(*windows, steps.num_rows))
    program = Program(read_timeline(profile), windows, step_threads(profile))
    parts = []
    for removed in (NOTHING, *classes):
        [(moved, _)] = replay([program], -1 if removed == NOTHING else CLASSES.index(removed))
        replayed = step_times(*moved, steps.num_rows)
        parts.append(
            pa.Table.from_arrays(
                [
                    pa.repeat(profile.host, steps.num_rows),
                    *(steps[name] for name in ("name", "number", "occurrence", "phase")),
                    pa.repeat(removed, steps.num_rows),
                    pa.array(replayed),
                    measured,
                ],
                names=_SCHEMA.names,
            ).cast(_SCHEMA)
        )
    return pa.concat_tables(parts)


def step_windows(profile: Profile) -> Windows:
    """The windows of steps as measured, those of nested steps left out."""
    table = profile["windows"].filter(pc.equal(profile["windows"]["kind"], "step"))
    return integers(table, "lane"), integers(table, "step"), integers(table, "start_ps"), integers(table, "end_ps")


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Rows of both: a step of a host belongs to one profile."""
    return pa.concat_tables([a, b])


def finish(merged: pa.Table, phases: tuple[str, ...]) -> pa.Table:
    """Per removed class: the mean step in ps, as measured and as replayed, over steps of these phases and hosts.

    The mean, not the median: a cause that hits two steps of twelve must show. A host without a class takes as long
    without it. Columns removed, steps (of all hosts), measured_ps, replayed_ps (sums divided as integers).
    """
    used = merged.filter(pc.is_in(merged["phase"], pa.array(phases)))
    sums = used.group_by(["host", "removed"]).aggregate(
        [("step_ps", "sum"), ("measured_ps", "sum"), ("removed", "count")]
    )
    of_host: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    for row in sums.to_pylist():
        of_host[row["host"]][row["removed"]] = row
    rows = []
    for name in (NOTHING, *CLASSES):
        if any(name in found for found in of_host.values()):
            mine = [found.get(name, found[NOTHING]) for found in of_host.values()]
            steps = sum(row["removed_count"] for row in mine)
            rows.append(
                {
                    "removed": name,
                    "steps": steps,
                    "measured_ps": sum(row["measured_ps_sum"] for row in mine) // steps,
                    "replayed_ps": sum(row["step_ps_sum"] for row in mine) // steps,
                }
            )
    fields = [("removed", pa.string()), *((n, pa.int64()) for n in ("steps", "measured_ps", "replayed_ps"))]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))
