"""Is dispatching the limit: does the device idle because launching a program takes longer than running it?

Per step window of a lane:

    dispatch     time that threads spent in the calls which made the step's launches (the outermost jitted call,
                 operation of PyTorch or range of XLA around each, else the launch itself), without the ops that ran on
                 the thread right inside, its waits for the device, and its calls that copy, which may wait for it
    run          an execution of a program; on a GPU, where every kernel has a launch, what one launch of a kernel or a
                 graph started. Launches of copies and fills do not count there
    idle         gaps with cause `host` (docs/breakdown.md) whose evidence is dispatch: the launch came late, and the
                 launching thread was mostly dispatching: an operation of PyTorch is where it lies in one that launches
    launch-bound idle is at least WORTH_NAMING of the window, and the device time of a run, on average, is less than the
                 dispatch of a launch: however far the host runs ahead, it cannot keep the device busy

An overlay, not a class: the idle time is `host` in the breakdown. Integers throughout; the ratio is compared as a
product, so that nothing is rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses.leaves import leaves
from xprof_py.postprocess.hlo import kernel_names
from xprof_py.postprocess.join import host_names, intervals
from xprof_py.postprocess.join.columns import Events, Int64, among, dictionary, distinct, integers
from xprof_py.postprocess.join.intervals import Intervals
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import BUSY_CLASSES, Kind

WORTH_NAMING = 10
"""One part in so many of the window: what the verdict asks of a cause too (rules/verdict.py)."""
_ORDER = [(name, "ascending") for name in ("host", "lane", "step")]
_SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("lane", pa.int32()),
        ("step", pa.int32()),  # row of the host's table `steps`
        ("name", pa.string()),
        ("number", pa.int64()),
        ("phase", pa.string()),
        ("window_ps", pa.int64()),
        ("busy_ps", pa.int64()),
        ("launches", pa.int64()),
        ("runs", pa.int64()),
        ("dispatch_ps", pa.int64()),
        ("idle_ps", pa.int64()),
        ("launch_bound", pa.bool_()),
        ("function", pa.string()),  # the one that the step launched most often, how often, and where it is defined
        ("function_launches", pa.int64()),
        ("source", pa.string()),
    ]
)


def partial(profile: Profile) -> pa.Table:
    """Columns of _SCHEMA for one joined profile: a row for every step window with a run."""
    steps = profile["steps"].select(["name", "number", "phase"]).to_pylist()
    launches, runs = profile["launches"], profile["runs"]
    if not launches.num_rows or not runs.num_rows:
        return _SCHEMA.empty_table()
    calls = _Calls(profile)
    count = np.bincount(calls.launch_step[calls.launch_step >= 0], minlength=len(steps))
    dispatch, idle = calls.dispatch_ps(len(steps)), calls.idle_ps()
    runs_of = _runs_of(profile, calls.events, len(steps))
    most = _most_launched(profile, calls.launch_step, len(steps))
    breakdown = profile["breakdown"]
    busy = breakdown.filter(pc.is_in(breakdown["class"], pa.array(BUSY_CLASSES)))
    busy = busy.filter(pc.equal(busy["kind"], "step"))
    sums = busy.group_by(["lane", "window", "step", "window_ps"]).aggregate([("exclusive_ps", "sum")])
    rows = []
    for row in sums.to_pylist():
        lane, step, window_ps, busy_ps = row["lane"], row["step"], row["window_ps"], row["exclusive_ps_sum"]
        ran, launched = int(runs_of[lane, step]), int(count[step])
        if not ran or not launched or not window_ps:
            continue
        function, times, source = most[step]
        idle_ps, dispatch_ps = int(idle[row["window"]]), int(dispatch[step])
        rows.append(
            {
                "host": profile.host,
                "lane": lane,
                "step": step,
                "name": steps[step]["name"],
                "number": steps[step]["number"],
                "phase": steps[step]["phase"],
                "window_ps": window_ps,
                "busy_ps": busy_ps,
                "launches": launched,
                "runs": ran,
                "dispatch_ps": dispatch_ps,
                "idle_ps": idle_ps,
                "launch_bound": idle_ps * WORTH_NAMING >= window_ps and busy_ps * launched < dispatch_ps * ran,
                "function": function,
                "function_launches": times,
                "source": source,
            }
        )
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _runs_of(profile: Profile, events: Events, steps: int) -> Int64:
    """Per lane and step how many runs it had; where kernels have launches, how many of these started something."""
    runs, ops = profile["runs"], profile["ops"]
    lane, run_step = integers(runs, "lane"), integers(runs, "step")
    out = np.zeros((profile["lanes"].num_rows, steps), np.int64)
    np.add.at(out, (lane[run_step >= 0], run_step[run_step >= 0]), 1)
    event, run = integers(ops, "event"), integers(ops, "run")
    has_id, correlation = events.argument_of("correlation_id", event)
    own = has_id & (correlation != 0) & (run >= 0)
    own[own] = ~events.verdicts(kernel_names.is_copy)[events.name[event[own]]]
    if not own.any():
        return out
    first, _ = distinct(run[own], correlation[own])
    run = run[own][first]
    run = run[run_step[run] >= 0]
    out[np.unique(lane[run])] = 0
    np.add.at(out, (lane[run], run_step[run]), 1)
    return out


class _Calls:
    """The calls by which a process launched: the outermost around each launch.

    ``launch_step``: the step per launch, -1 for none and for what is not counted.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.events = events = Events.of(profile)
        launches = profile["launches"]
        event = integers(launches, "event")
        copies = events.verdicts(kernel_names.COPY_CALL.search)
        called = events.having("correlation_id")[0]
        self._copying = called[copies[events.name[called]]]
        self.launch_step = np.where(among(event, self._copying), -1, integers(launches, "step"))
        self._line, self._start = integers(launches, "line"), integers(launches, "start_ps")
        self._end = events.end_ps[event]
        around = events.rows_where(
            lambda name: host_names.JIT_CALL.match(name) is not None or host_names.is_launch_range(name)
        )
        self._around = np.union1d(around, events.rows_of_kind(Kind.HOST_OP))

    def _of_line(self, line: int) -> tuple[Int64, Intervals, Int64]:
        """(launches of the line that count, the outermost calls around them, which of these each is in)."""
        events = self.events
        mine = np.flatnonzero((self._line == line) & (self.launch_step >= 0))
        around = self._around[events.line[self._around] == line]
        start, end = np.r_[events.start_ps[around], self._start[mine]], np.r_[events.end_ps[around], self._end[mine]]
        order = np.lexsort((-end, start))
        start, end = start[order], end[order]
        before = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, end])[:-1]
        start, end = start[start >= before], end[start >= before]
        used, place = np.unique(np.searchsorted(start, self._start[mine], side="right") - 1, return_inverse=True)
        return mine, (start[used], end[used]), place.reshape(-1)

    def dispatch_ps(self, steps: int) -> Int64:
        """Per step the time of the calls that made its launches, each call counted once."""
        events, profile = self.events, self._profile
        ops = leaves(profile)
        waits = profile["device_waits"]
        leaf_start, wait_start = integers(ops, "start_ps"), integers(waits, "start_ps")
        other_line = np.r_[events.line[integers(ops, "event")], integers(waits, "line"), events.line[self._copying]]
        other_start = np.r_[leaf_start, wait_start, events.start_ps[self._copying]]
        other_end = np.r_[
            leaf_start + integers(ops, "duration_ps"), integers(waits, "end_ps"), events.end_ps[self._copying]
        ]
        out = np.zeros(steps, np.int64)
        for line in np.unique(self._line).tolist():
            mine, calls, place = self._of_line(line)
            inside = other_line == line
            other = intervals.union(other_start[inside], other_end[inside])
            length = calls[1] - calls[0] - intervals.cover(other, *calls)
            # The launches of one call share its time, the first ones taking the rest.
            shared = np.bincount(place, minlength=len(length))
            rank = np.arange(len(mine)) - np.searchsorted(place, place)
            each = length[place] // shared[place] + (rank < length[place] % shared[place])
            np.add.at(out, self.launch_step[mine], each)
        return out

    def idle_ps(self) -> Int64:
        """Per window the gaps of cause `host` whose evidence is an event of dispatch."""
        events, gaps = self.events, self._profile["gaps"]
        event = integers(gaps, "event")
        is_host = np.asarray(pc.equal(gaps["cause"], "host").to_numpy(zero_copy_only=False), np.bool_)
        mine = np.flatnonzero(is_host & (event >= 0) & (integers(gaps, "stack") < 0))
        shown, group = np.unique(event[mine], return_inverse=True)
        name, kind = events.name[shown], events.kind[shown]
        dispatch = events.verdicts(host_names.is_dispatch)[name] & (kind == Kind.PLAIN)
        dispatch |= events.verdicts(host_names.is_launch_range)[name] & (kind == Kind.SPAN)
        operations = np.flatnonzero(kind == Kind.HOST_OP)
        for line in np.unique(events.line[shown[operations]]).tolist():
            at = operations[events.line[shown[operations]] == line]
            low, high = self._of_line(line)[1]
            place = np.searchsorted(low, events.start_ps[shown[at]], side="right") - 1
            dispatch[at] = (place >= 0) & (events.start_ps[shown[at]] < np.append(high, 0)[place])
        mine = mine[dispatch[group.reshape(-1)]]
        out = np.zeros(self._profile["windows"].num_rows, np.int64)
        np.add.at(out, integers(gaps, "window")[mine], integers(gaps, "length_ps")[mine])
        return out


def _most_launched(profile: Profile, launch_step: Int64, steps: int) -> list[tuple[str, int, str]]:
    """Per step (function, how often, file:line or "") of what it launched most often; ties to the lesser name."""
    places: dict[str, set[str]] = {}
    for row in profile["program_functions"].to_pylist():
        if row["file"] is not None:
            places.setdefault(row["function"], set()).add(f"{row['file']}:{row['source_line']}")
    of = np.flatnonzero(launch_step >= 0)
    name_code, names = dictionary(profile["launches"], "name")
    source = [places.get(host_names.function_name(name), set()) for name in names]
    first, which = distinct(launch_step[of], name_code[of])
    counted = (launch_step[of[first]], name_code[of[first]], np.bincount(which, minlength=len(first)))
    out: list[tuple[str, int, str]] = [("", 0, "")] * steps
    for step, code, times in zip(*(column.tolist() for column in counted), strict=True):
        if (-times, names[code]) < (-out[step][1], out[step][0]):
            out[step] = (names[code], times, next(iter(source[code])) if len(source[code]) == 1 else "")
    return out


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Rows of both: a window belongs to one profile."""
    return pa.concat_tables([a, b])


def finish(merged: pa.Table) -> pa.Table:
    """The same rows, by host, lane and step."""
    return merged.sort_by(_ORDER)


def over_steps(finished: pa.Table, phases: tuple[str, ...]) -> dict[str, Any] | None:
    """Sums over the step windows of these phases; None where there is none.

    windows, launch_bound (how many are), launches, runs, dispatch_ps, busy_ps, idle_ps, window_ps over the launch-bound
    ones, and the function that they launched most often with its place.
    """
    used = finished.filter(pc.is_in(finished["phase"], pa.array(phases)))
    if not used.num_rows:
        return None
    bound = used.filter(used["launch_bound"])
    sums = {
        name: int(pc.sum(bound[name]).as_py() or 0)
        for name in ("launches", "runs", "dispatch_ps", "busy_ps", "idle_ps", "window_ps")
    }
    functions = bound.group_by(["function", "source"]).aggregate([("function_launches", "sum")])
    functions = functions.sort_by([("function_launches_sum", "descending"), ("function", "ascending")])
    named = functions.slice(0, 1).to_pylist()
    return {
        "windows": used.num_rows,
        "launch_bound": bound.num_rows,
        **sums,
        "function": host_names.function_name(named[0]["function"]) if named else "",
        "source": named[0]["source"] if named else "",
    }
