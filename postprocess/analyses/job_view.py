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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.analyses.collectives import Arrivals
from xprof_py.postprocess.analyses.lane_activity import (
    AnsweringLane,
    ProcessActivity,
    Questions,
    Told,
    on_fleet_time,
)
from xprof_py.postprocess.join.columns import Int64, integers
from xprof_py.postprocess.join.windows import step_times
from xprof_py.postprocess.match.collectives import Collectives
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


def answering_lanes(process: int, activity: ProcessActivity, found: Arrivals, time: JobTime) -> list[AnsweringLane]:
    """Map 2 of one process: its lanes on fleet time, each knowing whom it waited for and until when."""
    of = found.collectives
    lanes = [number for number, rank in enumerate(of.ranks) if rank.process == process]
    mine = np.flatnonzero(np.isin(of.rank, lanes))
    rows = int(of.row[mine].max(initial=-1)) + 1
    whom = np.full(rows, -1, np.int64)
    until = np.zeros(rows, np.int64)
    waiting = mine[found.waits[mine]]
    last = found.last[of.of[waiting]]
    whom[of.row[waiting]] = of.rank[last]
    until[of.row[waiting]] = (found.start_ns[last] - time.origin_ns) * 1000
    return [
        AnsweringLane(
            on_fleet_time(lane, time.clocks[process], activity.origin_ns, time.origin_ns),
            *_padded(whom, until, lane.execution),
        )
        for lane in activity.lanes
    ]


def _padded(whom: Int64, until: Int64, execution: Int64) -> tuple[Int64, Int64]:
    """Executions behind the last that was matched wait for nobody."""
    missing = max(int(execution.max(initial=-1)) + 1 - len(whom), 0)
    return np.append(whom, np.full(missing, -1)), np.append(until, np.zeros(missing, np.int64))


Ask = Callable[[int, Questions], tuple[Int64, Questions]]
"""(rank, questions to it) -> its answer: a lane at hand, or one on another machine."""


def answers(asked: Questions, rows: int, ask: Ask, heard: list[tuple[int, Questions]] | None = None) -> Int64:
    """Who did what: picoseconds of shape (rows, CLASSES), with every wait followed to its end.

    Rounds: in each, every rank that is asked answers for itself and names whom it waited for. ``heard``: gets who was
    asked what.
    """
    out = np.zeros((rows, len(CLASSES)), np.int64)
    for _ in range(MOST_HANDED):
        if not len(asked.row):
            return out
        further = []
        for rank in np.unique(asked.rank).tolist():
            mine = asked.take(asked.rank == rank)
            amounts, more = ask(rank, mine)
            if heard is not None:
                heard.append((rank, mine))
            np.add.at(out, mine.row, amounts)
            further.append(Questions(mine.row[more.row], more.rank, more.start_ps, more.end_ps))
        asked = Questions.together(further)
    np.add.at(out[:, _COLLECTIVE], asked.row, asked.end_ps - asked.start_ps)
    return out


def job_breakdown(
    breakdown: pa.Table,
    hosts: Sequence[str],
    activities: Sequence[ProcessActivity],
    lanes: Sequence[Sequence[AnsweringLane]],
    collectives: Collectives,
    time: JobTime,
) -> pa.Table:
    """The table `breakdown` of all hosts in job view: windows on fleet time, waits handed on.

    ``lanes``: answering_lanes of every process. Nested windows are left out. `start_ps` counts from the job's origin;
    `total_ps` is the lane's own, and for what was handed to it at least that; `foreign_ps` the lane's own.
    """
    ask = asking(lanes, collectives)
    parts = []
    of_host = {host: number for number, host in enumerate(hosts)}
    whose = np.array([of_host[host] for host in breakdown["host"].to_pylist()] or np.zeros(0), np.int64)
    width = len(CLASSES)
    for process in range(len(hosts)):
        mine = breakdown.take(pa.array(np.flatnonzero(whose == process)))
        mine = mine.sort_by([("window", "ascending")])
        table_window = integers(mine, "window")[::width]
        activity = activities[process]
        rank = next((n for n, r in enumerate(collectives.ranks) if r.process == process), 0)
        for number, windows in enumerate(activity.windows):
            place = np.searchsorted(table_window, windows.window)
            low, high = _window_bounds(activity, number, time, process)
            # Asking a lane about its own windows gives what it did itself, and follows its waits.
            own = Questions(np.arange(len(low)), np.full(len(low), rank + number), low, high)
            exclusive = answers(own, len(low), ask)
            rows = (place[:, None] * width + np.arange(width)).reshape(-1)
            table = mine.take(pa.array(rows))
            total = np.maximum(integers(table, "total_ps"), exclusive.reshape(-1))
            parts.append(
                table.set_column(table.schema.get_field_index("start_ps"), "start_ps", pa.array(np.repeat(low, width)))
                .set_column(
                    table.schema.get_field_index("window_ps"), "window_ps", pa.array(np.repeat(high - low, width))
                )
                .set_column(
                    table.schema.get_field_index("exclusive_ps"), "exclusive_ps", pa.array(exclusive.reshape(-1))
                )
                .set_column(table.schema.get_field_index("total_ps"), "total_ps", pa.array(total))
            )
    return pa.concat_tables(parts).cast(breakdown.schema) if parts else breakdown.slice(0, 0)


def asking(lanes: Sequence[Sequence[AnsweringLane]], collectives: Collectives) -> Ask:
    """Ask lanes that are at hand."""

    def ask(rank: int, asked: Questions) -> tuple[Int64, Questions]:
        who = collectives.ranks[rank]
        return lanes[who.process][who.lane].answer(asked)

    return ask


def telling(lanes: Sequence[Sequence[AnsweringLane]], collectives: Collectives) -> Callable[[int, Questions], Told]:
    """Ask the same lanes for reasons."""

    def tell(rank: int, asked: Questions) -> Told:
        who = collectives.ranks[rank]
        return lanes[who.process][who.lane].tell(asked)

    return tell


def begins_ps(lanes: Sequence[Sequence[AnsweringLane]], collectives: Collectives) -> Int64:
    """Per rank where its capture begins, in job time; 0 for a lane of nothing."""
    starts = [lanes[rank.process][rank.lane].start[:1] for rank in collectives.ranks]
    return np.array([int(start[0]) if len(start) else 0 for start in starts], np.int64)


def _window_bounds(activity: ProcessActivity, lane: int, time: JobTime, process: int) -> tuple[Int64, Int64]:
    """The windows of a lane on fleet time. They tile, so each begins where the one before ended."""
    windows = activity.windows[lane]
    edges = np.append(windows.start_ps, windows.end_ps[-1:]) if len(windows.window) else windows.start_ps
    # Moved with the lane's segments, which begin and end where windows do.
    bounds = activity.lanes[lane].bounds_ps
    together = np.unique(np.concatenate((bounds, edges)))
    moved = fleet_ps(time.clocks[process], activity.origin_ns, together, time.origin_ns)
    found = moved[np.searchsorted(together, edges)]
    return found[:-1], found[1:]


@dataclass(frozen=True)
class JobSteps:
    """Per step of MatchedSteps.keys: ``end_ps`` (the last lane's b(k)) and ``step_ps`` on fleet time; ``common``: every
    host has it and the one before it (or it is the first), so that ``step_ps`` is its time."""

    end_ps: Int64
    step_ps: Int64
    common: np.ndarray[tuple[int], np.dtype[np.bool_]]


def job_steps(
    activities: Sequence[ProcessActivity],
    window_steps: Sequence[Int64],
    steps: MatchedSteps,
    time: JobTime,
) -> JobSteps:
    """The job's steps: differences of the maximum over lanes of b(k).

    ``window_steps``: per process the step of each row of its table `windows`, -1 without.
    """
    count = len(steps.keys)
    columns: list[tuple[Int64, Int64, Int64, Int64]] = []
    seen = np.zeros((len(activities), count), np.bool_)
    lane_number = 0
    for process, activity in enumerate(activities):
        of_process = np.array(steps.of_process[process] or np.zeros(0), np.int64)
        for lane, windows in enumerate(activity.windows):
            low, high = _window_bounds(activity, lane, time, process)
            step = window_steps[process][windows.window]
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
    everywhere = seen[has_steps].all(axis=0) if has_steps.any() else np.zeros(count, np.bool_)
    # Where nobody has more steps before it the first one begins where its windows do.
    common = everywhere & np.concatenate(([True], everywhere[:-1])) if count else everywhere
    return JobSteps(np.maximum.accumulate(end) if count else end, took, common)
