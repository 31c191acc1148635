"""Where did the time of the job's steps go? The lanes' breakdown with waiting handed on to who was waited for.

A mean over lanes names the victim. So each exposed part of a collective's wait is replaced by what the last participant
was doing in that interval: its own classes and causes, and where it waited itself, what the one that it waited for was
doing, and so on (docs/breakdown.md). What lies outside its capture is unknown. Lanes are averaged afterwards.

A wait is replaced where it is surely more than none (analyses/collectives.py); else it stays `collective`. So does
what is left after MOST_HANDED hands.

Windows are on fleet time here, so that a wait and what replaces it are of one length: their sums are equal to the
picosecond. The replay that follows waits from host to host is replay/job_replay.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses.collectives import Arrivals
from xprof_py.postprocess.analyses.lane_activity import (
    AnsweringLane,
    ProcessActivity,
    Questions,
    Told,
    on_fleet_time,
)
from xprof_py.postprocess.join.columns import Bool, Int64, integers, united
from xprof_py.postprocess.join.windows import step_times
from xprof_py.postprocess.match.collectives import Rank
from xprof_py.postprocess.match.fleet_time import Theta, fleet_ps
from xprof_py.postprocess.match.steps import MatchedSteps
from xprof_py.postprocess.schema import CLASSES

MOST_HANDED = 16
_COLLECTIVE = CLASSES.index("collective")


@dataclass(frozen=True)
class JobTime:
    """What puts a job on one clock: theta per process, and what job times in ps count from (ns UTC, the
    reference's)."""

    clocks: tuple[Theta, ...]
    origin_ns: int


@dataclass(frozen=True)
class Waits:
    """What the job's solution says to one process: its clock, and per execution of its endpoints the rank that was last
    (-1: nobody was waited for) and when it came, ps since ``job_origin_ns`` on fleet time. 16 bytes a collective."""

    clock: Theta
    job_origin_ns: int
    first_rank: int
    whom: Int64
    until_ps: Int64


def waits_of(found: Arrivals, time: JobTime) -> list[Waits]:
    """Of every process."""
    of = found.collectives
    rank_process = np.array([rank.process for rank in of.ranks], np.int64)
    process = rank_process[of.rank]
    # By process, in the order of participations.
    order = np.argsort(process, kind="stable")
    edges = np.searchsorted(process[order], np.arange(len(time.clocks) + 1))
    first_rank = np.searchsorted(rank_process, np.arange(len(time.clocks)))
    out = []
    for number, clock in enumerate(time.clocks):
        mine = order[edges[number] : edges[number + 1]]
        rows = int(of.row[mine].max(initial=-1)) + 1
        whom = np.full(rows, -1, np.int64)
        until = np.zeros(rows, np.int64)
        waiting = mine[found.waits[mine]]
        last = found.last[of.of[waiting]]
        whom[of.row[waiting]] = of.rank[last]
        until[of.row[waiting]] = (found.start_ns[last] - time.origin_ns) * 1000
        out.append(Waits(clock, time.origin_ns, int(first_rank[number]), whom, until))
    return out


def answering_lane(activity: ProcessActivity, waits: Waits, lane: int) -> AnsweringLane:
    """One lane of a process on fleet time, knowing whom it waited for and until when."""
    found = activity.lanes[lane]
    # Executions behind the last that was matched wait for nobody.
    missing = max(int(found.execution.max(initial=-1)) + 1 - len(waits.whom), 0)
    return AnsweringLane(
        on_fleet_time(found, waits.clock, activity.origin_ns, waits.job_origin_ns),
        np.append(waits.whom, np.full(missing, -1)),
        np.append(waits.until_ps, np.zeros(missing, np.int64)),
    )


@dataclass(frozen=True)
class OwnWindows:
    """Windows of one process, lane by lane, on fleet time, and what was done in them.

    Columns of one length: ``lane``, ``window`` (row of its table `windows`), ``step`` (row of its outermost steps, -1
    for none), ``start_ps``, ``end_ps``; ``done_ps`` of shape (windows, CLASSES). ``further``: what must be asked of
    those it waited for; their ``row`` is a row here. ``begins_ps``: per lane where its capture begins; 0 for a lane of
    nothing.
    """

    lane: Int64
    window: Int64
    step: Int64
    start_ps: Int64
    end_ps: Int64
    done_ps: Int64
    further: Questions
    begins_ps: Int64


def own_windows(activity: ProcessActivity, waits: Waits) -> OwnWindows:
    """Map 2 of one process. Asking a lane about its own windows gives what it did itself, and follows its waits."""
    columns: list[tuple[Int64, ...]] = []
    further = []
    begins = np.zeros(len(activity.windows), np.int64)
    begin = 0
    for lane, windows in enumerate(activity.windows):
        low, high = _window_bounds(activity, lane, waits)
        own = Questions(np.arange(len(low)), np.full(len(low), waits.first_rank + lane), low, high)
        answering = answering_lane(activity, waits, lane)
        done, more = answering.answer(own)
        begins[lane] = answering.start[0] if len(answering.start) else 0
        columns.append((np.full(len(low), lane), windows.window, windows.step, low, high, done))
        further.append(Questions(more.row + begin, more.rank, more.start_ps, more.end_ps))
        begin += len(low)
    none = (*([np.empty(0, np.int64)] * 5), np.empty((0, len(CLASSES)), np.int64))
    number, window, step, low, high, done = (np.concatenate([c[i] for c in (none, *columns)]) for i in range(6))
    return OwnWindows(number, window, step, low, high, done, Questions.together(further), begins)


@dataclass(frozen=True)
class Answer:
    """Of one process: ``done_ps``, of shape (rows, CLASSES), for each of ``rows``; ``told``: the same by reason, where
    that was asked for; ``further``: what must be asked of others, by the same rows."""

    rows: Int64
    done_ps: Int64
    told: Told | None
    further: Questions


def answer(activity: ProcessActivity, waits: Waits, asked: Questions, why: bool) -> Answer:
    """What a process says when it is asked about its lanes: one amount per row that it was asked for. ``why``: with
    reasons."""
    rows, place = np.unique(asked.row, return_inverse=True)
    out = np.zeros((len(rows), len(CLASSES)), np.int64)
    told: list[Told] = []
    further = []
    for rank in np.unique(asked.rank).tolist():
        mine = np.flatnonzero(asked.rank == rank)
        answering, questions = answering_lane(activity, waits, rank - waits.first_rank), asked.take(mine)
        done, more = answering.answer(questions)
        np.add.at(out, place[mine], done)
        if why:
            told.append(answering.tell(questions, activity.reasons))
        further.append(Questions(asked.row[mine[more.row]], more.rank, more.start_ps, more.end_ps))
    return Answer(rows, out, Told.together(told) if why else None, Questions.together(further))


Ask = Callable[[Sequence[tuple[int, Questions]], bool], Iterator[Answer]]
"""((process, questions to its lanes) of some processes, with reasons?) -> their answers in that order, wherever they
are at hand."""


def follow(
    asked: Questions,
    out: Int64,
    ranks: Sequence[Rank],
    ask: Ask,
    hands: int = MOST_HANDED,
    told: list[Told] | None = None,
) -> None:
    """Add who did what to ``out``: picoseconds of shape (rows, CLASSES), with every wait followed to its end.

    Rounds, ``hands`` at most: in each, every process that is asked answers for itself and names whom it waited for.
    ``told``: gets the same by reason; what is left after the last round has none.
    """
    process_of = np.array([rank.process for rank in ranks], np.int64)
    for _ in range(hands):
        if not len(asked.row):
            return
        process = process_of[asked.rank]
        order = np.argsort(process, kind="stable")
        numbers, first = np.unique(process[order], return_index=True)
        some = [asked.take(mine) for mine in np.split(order, first[1:])]
        further = []
        for said in ask(list(zip(numbers.tolist(), some, strict=True)), told is not None):
            out[said.rows] += said.done_ps
            if told is not None and said.told is not None:
                told.append(said.told)
            further.append(said.further)
        asked = Questions.together(further)
    np.add.at(out[:, _COLLECTIVE], asked.row, asked.end_ps - asked.start_ps)
    if told is not None:
        told.append(Told.without_reason(asked.row, _COLLECTIVE, asked.end_ps - asked.start_ps))


def follow_own(own: Sequence[OwnWindows], ranks: Sequence[Rank], ask: Ask) -> list[Int64]:
    """``done_ps`` of every process with its waits handed on to whom they were for."""
    edges = np.concatenate(([0], np.cumsum([len(of.window) for of in own])))
    out = np.concatenate([np.empty((0, len(CLASSES)), np.int64), *(of.done_ps for of in own)])
    asked = [
        Questions(of.further.row + begin, of.further.rank, of.further.start_ps, of.further.end_ps)
        for of, begin in zip(own, edges.tolist(), strict=False)
    ]
    # A lane's own windows were the first to be asked.
    follow(Questions.together(asked), out, ranks, ask, MOST_HANDED - 1)
    return np.split(out, edges[1:-1])


def job_breakdown(
    breakdown: pa.Table, hosts: Sequence[str], own: Sequence[OwnWindows], exclusive_ps: Sequence[Int64]
) -> pa.Table:
    """The table `breakdown` of all hosts in job view: windows on fleet time, waits handed on.

    ``own``, ``exclusive_ps``: own_windows of every process, and what follow_own made of them. Nested windows are left
    out. `start_ps` counts from the job's origin; `total_ps` is the lane's own, and for what was handed to it at least
    that; `foreign_ps` the lane's own.
    """
    parts = []
    whose = integers(pa.table({"host": pc.index_in(breakdown["host"], pa.array(hosts, pa.string()))}), "host")
    order = np.argsort(whose, kind="stable")
    edges = np.searchsorted(whose[order], np.arange(len(hosts) + 1))
    width = len(CLASSES)
    for process, (windows, exclusive) in enumerate(zip(own, exclusive_ps, strict=True)):
        mine = breakdown.take(pa.array(order[edges[process] : edges[process + 1]]))
        mine = mine.sort_by([("window", "ascending")])
        place = np.searchsorted(integers(mine, "window")[::width], windows.window)
        table = mine.take(pa.array((place[:, None] * width + np.arange(width)).reshape(-1)))
        columns = {
            "start_ps": np.repeat(windows.start_ps, width),
            "window_ps": np.repeat(windows.end_ps - windows.start_ps, width),
            "exclusive_ps": exclusive.reshape(-1),
            "total_ps": np.maximum(integers(table, "total_ps"), exclusive.reshape(-1)),
        }
        for name, column in columns.items():
            table = table.set_column(table.schema.get_field_index(name), name, pa.array(column))
        parts.append(table)
    return pa.concat_tables(parts).cast(breakdown.schema) if parts else breakdown.slice(0, 0)


def _window_bounds(activity: ProcessActivity, lane: int, waits: Waits) -> tuple[Int64, Int64]:
    """The windows of a lane on fleet time. They tile, so each begins where the one before ended."""
    windows = activity.windows[lane]
    edges = np.append(windows.start_ps, windows.end_ps[-1:]) if len(windows.window) else windows.start_ps
    # Moved with the lane's segments, which begin and end where windows do.
    bounds = activity.lanes[lane].bounds_ps
    together = united(bounds, edges)
    moved = fleet_ps(waits.clock, activity.origin_ns, together, waits.job_origin_ns)
    found = moved[np.searchsorted(together, edges)]
    return found[:-1], found[1:]


@dataclass(frozen=True)
class JobSteps:
    """Per step of MatchedSteps.keys: ``end_ps`` (the last lane's b(k)) and ``step_ps`` on fleet time; ``common``: every
    host has it and the one before it (or it is the first), so that ``step_ps`` is its time."""

    end_ps: Int64
    step_ps: Int64
    common: Bool


def job_steps(own: Sequence[OwnWindows], steps: MatchedSteps) -> JobSteps:
    """The job's steps: differences of the maximum over lanes of b(k). ``own``: own_windows of every process."""
    count = len(steps.keys)
    columns: list[tuple[Int64, Int64, Int64, Int64]] = []
    seen = np.zeros((len(own), count), np.bool_)
    lane_number = 0
    for process, windows in enumerate(own):
        of_process = np.array(steps.of_process[process] or np.zeros(0), np.int64)
        for lane in np.unique(windows.lane).tolist():
            mine = np.flatnonzero(windows.lane == lane)
            low, high, step = windows.start_ps[mine], windows.end_ps[mine], windows.step[mine]
            rows = np.flatnonzero((step >= 0) & (step < len(of_process)))
            key = of_process[step[rows]]
            filled = high[rows] > low[rows]
            seen[process, key[filled]] = True
            order = np.argsort(key, kind="stable")
            columns.append((np.full(len(rows), lane_number), key[order], low[rows[order]], high[rows[order]]))
            lane_number += 1
    lane_of, key, low, high = (np.concatenate([c[i] for c in columns] or [np.empty(0, np.int64)]) for i in range(4))
    took = step_times(lane_of, key, low, high, count)
    end = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(end, key, high)
    has_steps = np.array([len(of) > 0 for of in steps.of_process] or [False], np.bool_)
    everywhere: Bool = np.all(seen[has_steps], axis=0) if has_steps.any() else np.zeros(count, np.bool_)
    # Where nobody has more steps before it the first one begins where its windows do.
    common = everywhere & np.append(True, everywhere[:-1]) if count else everywhere
    return JobSteps(np.maximum.accumulate(end) if count else end, took, common)
