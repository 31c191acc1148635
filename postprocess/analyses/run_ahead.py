"""How far was the host ahead of the device when it launched a step?

Per lane and step, at the moment when the first of the step's runs there was launched (t: the end of its launch):

- ``ahead_ps``: from t until that run began, 0 where it began earlier; null where the launch was still open at the end.
- ``ahead_runs``: runs of the lane that were launched before it and had not ended at t.
- ``ahead_steps``: how many earlier steps these runs belong to: 0 where the host had let the device finish first.
- ``blocked_ps``: how long the launching thread then waited for the device, from this launch to the one that does the
  same for the lane's next step; only waits during which device work ended count.

Only runs that are joined to a launch are known to have been launched: a step whose first run is not has no row, and
runs without a launch are not counted. An exact count needs every run joined, see ``join`` in the table ``runs``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.join.columns import Int64, distinct, integers
from xprof_py.postprocess.profile import Profile

_SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("lane", pa.int32()),
        ("step", pa.int32()),  # row of the host's table `steps`
        ("name", pa.string()),
        ("number", pa.int64()),
        ("occurrence", pa.int32()),
        ("phase", pa.string()),
        ("runs", pa.int64()),
        ("ahead_ps", pa.int64()),
        ("ahead_runs", pa.int64()),
        ("ahead_steps", pa.int64()),
        ("blocked_ps", pa.int64()),
    ]
)
_NEVER = np.iinfo(np.int64).max
_ORDER = [(name, "ascending") for name in ("host", "lane", "step")]


def partial(profile: Profile) -> pa.Table:
    """Columns of _SCHEMA for one joined profile, outermost steps only."""
    runs, launches = profile["runs"], profile["launches"]
    steps = profile["steps"]
    launch, lane, step = (integers(runs, name) for name in ("launch", "lane", "step"))
    joined = np.flatnonzero(launch >= 0)
    launched = integers(launches, "start_ps")[launch[joined]] if len(joined) else joined
    parts = [_SCHEMA.empty_table()]
    for one in np.unique(lane[joined]).tolist():
        mine = lane[joined] == one
        order = np.argsort(launched[mine], kind="stable")
        rows = joined[mine][order]
        found = _lane(profile, rows, launch[rows], step[rows])
        columns = {
            "host": pa.repeat(pa.scalar(profile.host), len(found["step"])),
            "lane": np.full(len(found["step"]), one),
            **{name: steps[name].take(found["step"]) for name in ("name", "number", "occurrence", "phase")},
            **found,
        }
        parts.append(pa.table([columns[name] for name in _SCHEMA.names], names=_SCHEMA.names).cast(_SCHEMA))
    return pa.concat_tables(parts).sort_by(_ORDER)


def _lane(profile: Profile, rows: Int64, launch: Int64, step: Int64) -> dict[str, pa.Array]:
    """One row per step of a lane's runs ``rows``, which are in order of launch."""
    launches = profile["launches"]
    launch_start, launch_end = integers(launches, "start_ps")[launch], integers(launches, "end_ps")[launch]
    is_open = np.asarray(launches["end_ps"].is_null().to_numpy(zero_copy_only=False))[launch]
    line = integers(launches, "line")[launch]
    start, end = integers(profile["runs"], "start_ps")[rows], integers(profile["runs"], "end_ps")[rows]
    # What lies before the first place at which this exceeds a time had all ended by then.
    latest_end = np.maximum.accumulate(end) if len(end) else end
    in_step = step >= 0
    numbers, first, count = np.unique(step[in_step], return_index=True, return_counts=True)
    at = np.flatnonzero(in_step)[first]
    order = np.argsort(at)
    numbers, count, at = numbers[order], count[order], at[order]
    told = np.where(is_open[at], start[at], launch_end[at])
    # Other threads may launch at the very same moment: that is not before it.
    low = np.searchsorted(latest_end, told, side="right")
    many = np.maximum(np.searchsorted(launch_start, launch_start[at]) - low, 0)
    owner = np.repeat(np.arange(len(at)), many)
    before = low[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(many) - many, many)
    unfinished = end[before] > told[owner]
    owner, other = owner[unfinished], step[before[unfinished]]
    another = (other >= 0) & (other != numbers[owner])
    seen, _ = distinct(owner[another], other[another])
    begins = launch_start[at]
    return {
        "step": pa.array(numbers),
        "runs": pa.array(count),
        "ahead_ps": pa.array(np.maximum(start[at] - told, 0), mask=is_open[at]),
        "ahead_runs": pa.array(np.bincount(owner, minlength=len(at))),
        "ahead_steps": pa.array(np.bincount(owner[another][seen], minlength=len(at))),
        "blocked_ps": pa.array(_blocked(profile, line[at], begins, np.append(begins[1:], _NEVER)[: len(at)])),
    }


def _blocked(profile: Profile, line: Int64, start_ps: Int64, until_ps: Int64) -> Int64:
    """Picoseconds of the waits for the device of each line that began in [start, until)."""
    table = profile["device_waits"]
    worked = np.asarray(table["for_work"].to_numpy(zero_copy_only=False), np.bool_)
    of_line, starts = (integers(table, name)[worked] for name in ("line", "start_ps"))
    length = integers(table, "end_ps")[worked] - starts
    out = np.zeros(len(line), np.int64)
    for one in np.unique(line).tolist():
        mine, asked = of_line == one, line == one
        # Each line's waits are in order of start.
        before = np.append(0, np.cumsum(length[mine]))
        low, high = (np.searchsorted(starts[mine], edge[asked]) for edge in (start_ps, until_ps))
        out[asked] = before[high] - before[low]
    return out


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Steps of several hosts."""
    return pa.concat_tables([a, b])


def finish(merged: pa.Table) -> pa.Table:
    """The rows in order of host, lane and step."""
    return merged.sort_by(_ORDER)
