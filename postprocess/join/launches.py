"""Dispatches of programs by host threads, and which run each of them started (BREAKDOWN.md 2)."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from xprof_py.postprocess.join import host_names
from xprof_py.postprocess.join.columns import Bool, Events, Int64, Integers
from xprof_py.postprocess.join.device_ops import DeviceOps


@dataclass
class Launches:
    """Dispatches in order of start. ``key`` is host_names.module_key of the program's name, "" where nothing names it.

    ``run_id`` holds where ``has_run_id``; ``line`` is the host line that launched. ``call_start_ps``, ``call_end_ps``:
    of the outermost call of a jitted function around it, else its own.
    """

    event: Int64
    line: Integers
    start_ps: Int64
    end_ps: Int64
    call_start_ps: Int64
    call_end_ps: Int64
    open: Bool
    key: list[str]
    name: list[str]
    has_run_id: Bool
    run_id: Int64


@dataclass
class RunJoin:
    """Per run: the launch (row of Launches, -1 without) and how it was found (``join`` of the runs table)."""

    launch: Int64
    how: list[str]
    in_flight: list[int] = field(default_factory=list)
    """Launches near the end of the capture whose run never showed."""


def read_launches(events: Events, host_line: Bool) -> Launches:
    """The launch events on host lines (``host_line`` per line), each named by the innermost PjitFunction around it."""
    single = events.rows_named(host_names.LAUNCH)
    many = events.rows_where(lambda name: host_names.LAUNCH_MANY.match(name) is not None)
    many = many[events.argument_of("run_id", many)[0]]
    rows = np.union1d(single, many)
    rows = rows[host_line[events.line[rows]]]
    # On several devices every device's own helper runs inside the one launch.
    inside = _covered_by(events, rows, many)
    rows = rows[~(np.isin(rows, single) & inside)]
    rows = rows[np.argsort(events.start_ps[rows], kind="stable")]
    calls, outermost = _calls(events, rows)
    whole = np.where(outermost >= 0, outermost, rows)
    has_run_id, run_id = events.argument_of("run_id", rows)
    names, keys = [], []
    codes, codes_of_calls = events.name[rows].tolist(), events.name[np.maximum(calls, 0)].tolist()
    for code, call, code_of_call in zip(codes, calls.tolist(), codes_of_calls, strict=True):
        named = host_names.LAUNCH_MANY.match(events.names[code])
        if named is not None:
            name = named["module"]
        elif call >= 0:
            called = host_names.JIT_CALL.match(events.names[code_of_call])
            name = called["function"] if called else ""
        else:
            name = ""
        names.append(name)
        keys.append(host_names.module_key(name))
    return Launches(
        event=rows,
        line=events.line[rows],
        start_ps=events.start_ps[rows],
        end_ps=events.end_ps[rows],
        call_start_ps=events.start_ps[whole],
        call_end_ps=events.end_ps[whole],
        open=events.duration_ps[rows] < 0,
        key=keys,
        name=names,
        has_run_id=has_run_id,
        run_id=run_id,
    )


def _covered_by(events: Events, rows: Int64, outer: Int64) -> Bool:
    """True where a row lies inside one of the outer events that began before it, on any line."""
    if not len(outer):
        return np.zeros(len(rows), np.bool_)
    outer = outer[np.argsort(events.start_ps[outer], kind="stable")]
    reach = np.maximum.accumulate(events.end_ps[outer])
    before = np.searchsorted(events.start_ps[outer], events.start_ps[rows], side="left")
    covered: Bool = (before > 0) & (reach[np.maximum(before - 1, 0)] >= events.end_ps[rows])
    return covered


def _calls(events: Events, rows: Int64) -> tuple[Int64, Int64]:
    """Per launch the innermost and the outermost PjitFunction event that encloses it on its line, -1 without."""
    calls = events.rows_where(lambda name: host_names.JIT_CALL.match(name) is not None)
    innermost = np.full(len(rows), -1, np.int64)
    outermost = innermost.copy()
    line_of_row, line_of_call = events.line[rows], events.line[calls]
    for line in np.unique(line_of_row):
        stack: list[int] = []
        mine = np.flatnonzero(line_of_row == line)
        candidates = calls[line_of_call == line]
        # Lists: what is looked at one by one takes ten times as long in a column.
        begun, ended = events.start_ps[candidates].tolist(), events.end_ps[candidates].tolist()
        place = 0
        for i, start in zip(mine.tolist(), events.start_ps[rows[mine]].tolist(), strict=True):
            while place < len(begun) and begun[place] <= start:
                while stack and ended[stack[-1]] <= begun[place]:
                    stack.pop()
                stack.append(place)
                place += 1
            while stack and ended[stack[-1]] <= start:
                stack.pop()
            if stack:
                innermost[i], outermost[i] = candidates[stack[-1]], candidates[stack[0]]
    return innermost, outermost


def join_runs(
    ops: DeviceOps,
    launches: Launches,
    launch_step: Int64,
    program_key: list[str],
    drained_end: bool | None,
    drained_start: frozenset[str],
) -> RunJoin:
    """Find every run's launch.

    By run_id where launches carry it. Else per device and program name the j-th launch is the j-th run, with each
    program's runs in run_id order and several programs of one name merged by first start. Accepted only where no run
    starts before its launch. Where the numbers differ the lists are aligned at the edge that was drained.

    ``launch_step``: row of steps per launch. ``program_key``: module_key per row of programs. A run of a program that
    is not in the profile is named by nothing. ``drained_end``: whether no work was in flight at the end of the capture,
    None where nothing says; ``drained_start``: keys of which none can have been in flight at its start.
    """
    count = len(ops.run_id)
    result = RunJoin(np.full(count, -1, np.int64), ["none"] * count)
    by_id: dict[tuple[str, int], int] = {}
    for i in np.flatnonzero(launches.has_run_id):
        by_id[launches.key[i], int(launches.run_id[i])] = int(i)
    pending: dict[str, list[int]] = defaultdict(list)
    for run in range(count):
        program = ops.run_program[run]
        key = program_key[program] if program >= 0 else ""
        launch = by_id.get((key, int(ops.run_id[run])), by_id.get(("", int(ops.run_id[run]))))
        if launch is not None:
            causal = launches.start_ps[launch] <= ops.run_start_ps[run]
            result.launch[run] = launch if causal else -1
            result.how[run] = "id" if causal else "ambiguous"
        else:
            pending[key].append(run)

    ordered: dict[str, list[int]] = defaultdict(list)
    for i in np.flatnonzero(~launches.has_run_id):
        ordered[launches.key[i]].append(int(i))
    unnamed = ordered.pop("", [])
    left_over: list[int] = []
    for key, runs in sorted(pending.items()):
        sequence = _in_launch_order(ops, runs)
        if key in ordered:
            _align(ops, launches, launch_step, ordered[key], sequence, drained_end, key in drained_start, result)
        else:
            left_over += sequence
    # A compiled executable called directly leaves a launch without a name: what is left on both sides, in order.
    left_over.sort(key=lambda run: int(ops.run_start_ps[run]))
    if unnamed and len(unnamed) == len(left_over) and _causal(ops, launches, unnamed, left_over):
        for launch, run in zip(unnamed, left_over, strict=True):
            result.launch[run], result.how[run] = launch, "inferred"
    elif unnamed:
        for run in left_over:
            result.how[run] = "ambiguous"
    return result


def _in_launch_order(ops: DeviceOps, runs: list[int]) -> list[int]:
    """Runs of one name in the order of their launches; on several lanes, each lane's own order is kept."""
    programs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for run in runs:
        programs[int(ops.run_lane[run]), int(ops.run_program[run])].append(run)
    queues: list[list[int]] = []
    for members in programs.values():
        # run_id is a 32-bit counter that wraps: its order begins after the widest gap of the circle.
        runs_of = np.array(members, np.int64)
        ids = ops.run_id[runs_of] & 0xFFFFFFFF
        order = np.argsort(ids, kind="stable")
        first = int(np.argmax((ids[order] - np.roll(ids[order], 1)) % (1 << 32)))
        queues.append(np.roll(runs_of[order], -first).tolist())
    if len(queues) == 1:
        return queues[0]
    return list(heapq.merge(*queues, key=lambda run: (int(ops.run_start_ps[run]), run)))


def _causal(ops: DeviceOps, launches: Launches, mine: list[int], runs: list[int]) -> bool:
    return bool((launches.start_ps[np.array(mine, np.int64)] <= ops.run_start_ps[np.array(runs, np.int64)]).all())


def _align(
    ops: DeviceOps,
    launches: Launches,
    launch_step: Int64,
    mine: list[int],
    runs: list[int],
    drained_end: bool | None,
    drained_start: bool,
    result: RunJoin,
) -> None:
    extra = len(mine) - len(runs)
    if extra == 0 or (extra < 0 and drained_end is not False):
        # Counted from the drained end: the launches of the first runs lie before the capture.
        pairs = list(zip(mine, runs[-extra if extra else 0 :], strict=True))
    elif drained_start and not (extra > 0 and drained_end):
        pairs = list(zip(mine[: len(runs)], runs[: len(mine)], strict=True))
        result.in_flight += mine[len(runs) :]
    else:
        # A run follows its launch: where some never showed, the end was not drained, whatever is said of it.
        pairs = []
    if not pairs or not _causal(ops, launches, [p[0] for p in pairs], [p[1] for p in pairs]):
        for run in runs:
            result.how[run] = "ambiguous"
        return
    for stretch in _stretches(ops, launches, pairs):
        # Lanes work at their own pace: which of their runs was launched first the order does not say.
        several_lanes = len({int(ops.run_lane[run]) for _, run in stretch}) > 1
        several_steps = len({int(launch_step[launch]) for launch, _ in stretch}) > 1
        for launch, run in stretch:
            if several_lanes and several_steps:
                result.how[run] = "ambiguous"
            else:
                result.launch[run], result.how[run] = launch, "inferred" if several_lanes else "order"


def _stretches(ops: DeviceOps, launches: Launches, pairs: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The pairs, cut where every run so far began before the next launch: no run can belong beyond such a cut."""
    out: list[list[tuple[int, int]]] = []
    launched, ran = (np.array(one, np.int64) for one in zip(*pairs, strict=True))
    latest = np.iinfo(np.int64).min
    starts = zip(launches.start_ps[launched].tolist(), ops.run_start_ps[ran].tolist(), strict=True)
    for pair, (launched_ps, ran_ps) in zip(pairs, starts, strict=True):
        if not out or latest < launched_ps:
            out.append([])
        out[-1].append(pair)
        latest = max(latest, ran_ps)
    return out
