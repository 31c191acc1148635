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

from typing import Any

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.join.columns import Int64, integers
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
_ORDER = [(name, "ascending") for name in ("host", "lane", "step")]


def partial(profile: Profile) -> pa.Table:
    """Columns of _SCHEMA for one joined profile, outermost steps only."""
    runs, launches = profile["runs"], profile["launches"]
    steps = profile["steps"].select(["name", "number", "occurrence", "phase"]).to_pylist()
    launch, lane, step = (integers(runs, name) for name in ("launch", "lane", "step"))
    joined = np.flatnonzero(launch >= 0)
    launched = integers(launches, "start_ps")[launch[joined]] if len(joined) else joined
    out: list[dict[str, Any]] = []
    for one in np.unique(lane[joined]).tolist():
        mine = lane[joined] == one
        order = np.argsort(launched[mine], kind="stable")
        rows = joined[mine][order]
        for found in _lane(profile, rows, launch[rows], step[rows]):
            named = steps[found["step"]]
            out.append({"host": profile.host, "lane": one, **named, **found})
    return pa.Table.from_pylist(out, schema=_SCHEMA).sort_by(_ORDER)


def _lane(profile: Profile, rows: Int64, launch: Int64, step: Int64) -> list[dict[str, Any]]:
    """One dict per step of a lane's runs ``rows``, which are in order of launch."""
    launches = profile["launches"]
    launch_start, launch_end = integers(launches, "start_ps")[launch], integers(launches, "end_ps")[launch]
    is_open = np.asarray(launches["end_ps"].is_null().to_numpy(zero_copy_only=False))[launch]
    line = integers(launches, "line")[launch]
    start, end = integers(profile["runs"], "start_ps")[rows], integers(profile["runs"], "end_ps")[rows]
    # What lies before the first place at which this exceeds a time had all ended by then.
    latest_end = np.maximum.accumulate(end) if len(end) else end
    in_step = step >= 0
    numbers, first, count = np.unique(step[in_step], return_index=True, return_counts=True)
    first = np.flatnonzero(in_step)[first]
    order = np.argsort(first)
    waits = _Waits(profile)
    out = []
    for index, place in enumerate(order.tolist()):
        at = int(first[place])
        until = int(launch_start[first[order[index + 1]]]) if index + 1 < len(order) else None
        told = int(start[at]) if is_open[at] else int(launch_end[at])
        # Other threads may launch at the very same moment: that is not before it.
        before = np.arange(
            np.searchsorted(latest_end, told, side="right"), np.searchsorted(launch_start, launch_start[at])
        )
        unfinished = before[end[before] > told]
        others = np.unique(step[unfinished])
        others = others[(others >= 0) & (others != numbers[place])]
        out.append(
            {
                "step": int(numbers[place]),
                "runs": int(count[place]),
                "ahead_ps": None if is_open[at] else max(int(start[at]) - told, 0),
                "ahead_runs": len(unfinished),
                "ahead_steps": len(others),
                "blocked_ps": waits.between(int(line[at]), int(launch_start[at]), until),
            }
        )
    return out


class _Waits:
    """Waits for the device by line, each line's in order of start."""

    def __init__(self, profile: Profile) -> None:
        table = profile["device_waits"]
        worked = np.asarray(table["for_work"].to_numpy(zero_copy_only=False), np.bool_)
        line, start = (integers(table, name)[worked] for name in ("line", "start_ps"))
        length = integers(table, "end_ps")[worked] - start
        self._of_line = {
            one: (start[line == one], np.r_[0, np.cumsum(length[line == one])]) for one in np.unique(line).tolist()
        }

    def between(self, line: int, start_ps: int, until_ps: int | None) -> int:
        """Picoseconds of the waits of a line that began in [start, until); until None: to the end of the capture."""
        if line not in self._of_line:
            return 0
        starts, before = self._of_line[line]
        low = np.searchsorted(starts, start_ps)
        high = len(starts) if until_ps is None else np.searchsorted(starts, until_ps)
        return int(before[high] - before[low])


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Steps of several hosts."""
    return pa.concat_tables([a, b])


def finish(merged: pa.Table) -> pa.Table:
    """The rows in order of host, lane and step."""
    return merged.sort_by(_ORDER)
