"""The job as a whole: what no process can say by itself. Between the passes, and behind them.

map 1     per process: endpoints of its collectives (ProcessPart), which are gathered; activity of its lanes and
          timeline (ProcessDetail), which stay where they are and are asked (Details)
solve     on one node: collectives, steps and clocks of all processes, who was last where      (solve_job)
map 2     per process: its lanes on fleet time, knowing whom they waited for                   (own_windows)
finish    rounds of questions between ranks, then tables                                       (job_tables)

What one node holds is therefore some columns per collective and rank, and per window of a lane. Only the replay of a
job reads all timelines together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses import stragglers
from xprof_py.postprocess.analyses.collectives import (
    Arrivals,
    arrivals,
    collectives_table,
    ends_too_early,
    participants_table,
)
from xprof_py.postprocess.analyses.job_view import (
    JobSteps,
    JobTime,
    answer,
    follow_own,
    job_breakdown,
    job_steps,
    own_windows,
    waits_of,
)
from xprof_py.postprocess.analyses.lane_activity import ProcessActivity, Questions, read_activity
from xprof_py.postprocess.clocks.curve import Curve
from xprof_py.postprocess.clocks.exchanges import resolved
from xprof_py.postprocess.clocks.solve import Solution
from xprof_py.postprocess.fleet.job_clocks import solve_job_clocks
from xprof_py.postprocess.join.columns import Bool
from xprof_py.postprocess.match.collectives import Collectives, match_collectives
from xprof_py.postprocess.match.endpoints import Endpoints, read_endpoints
from xprof_py.postprocess.match.fleet_time import REFERENCE, Theta, fleet_ns, fleet_ps
from xprof_py.postprocess.match.programs import stages
from xprof_py.postprocess.match.steps import MatchedSteps, match_steps
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.replay.job_replay import Met, ProcessTimeline, read_process, replay_job

_PHASES = ("unmeasured", "partial", "warmup", "outlier", "steady")
"""A step of the job has the first of these that it has on any host."""


@dataclass(frozen=True)
class ProcessPart:
    """What one process gives the job, small enough to gather. ``replayed``: it has a timeline."""

    endpoints: Endpoints
    origin_ns: int
    replayed: bool


@dataclass(frozen=True)
class ProcessDetail:
    """What of one process grows with its operations, on its own clock."""

    activity: ProcessActivity
    timeline: ProcessTimeline | None


def process_part(
    joined: Profile, process_index: int | None, *, alone: bool = False
) -> tuple[ProcessPart, ProcessDetail | None]:
    """Map 1. ``alone``: in its job; then of a process with one lane nobody asks for details, and there are none."""
    endpoints = read_endpoints(joined, process_index)
    # Alone in its job a process without collectives is replayed as every process is (replay/step_replay.py).
    replayed = endpoints.table.num_rows > 0
    part = ProcessPart(endpoints, joined.origin_ns, replayed)
    if alone and endpoints.lanes < 2:
        return part, None
    return part, ProcessDetail(read_activity(joined), read_process(joined) if replayed else None)


class Details(Protocol):
    """The details of all processes, by number, wherever they are."""

    def each(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """``function(activity, *rest)`` of each task (number, *rest), in order. A function of a module, its arguments
        and what it returns can be pickled."""

    def timeline(self, number: int) -> ProcessTimeline | None:
        """Of one process."""


class AtHand:
    """Details that are all in memory."""

    def __init__(self, details: Sequence[ProcessDetail]) -> None:
        self._details = details

    def each(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        for number, *rest in tasks:
            yield function(self._details[number].activity, *rest)

    def timeline(self, number: int) -> ProcessTimeline | None:
        return self._details[number].timeline


@dataclass(frozen=True)
class JobSolution:
    """``clocks``: theta per clock of ``collectives``, None where it is not known. ``time``: None unless all processes'
    are."""

    hosts: tuple[str, ...]
    collectives: Collectives
    steps: MatchedSteps
    clocks: tuple[Theta | None, ...]
    arrivals: Arrivals
    time: JobTime | None
    solved: Solution


def solve_job(
    parts: Sequence[ProcessPart], samples: pa.Table, clocks: Sequence[Curve | None] | None = None
) -> JobSolution:
    """Match what the processes saw, in order of process index, and solve their clocks.

    The first process's clock is the reference. ``samples``: the table `clock_samples` of the job. ``clocks``: where
    they are known already, theta per distinct clock in order of the first process that has it. Raises BadInputError
    where two processes have one index.
    """
    endpoints = [part.endpoints for part in parts]
    found = match_collectives(endpoints)
    steps = match_steps(endpoints, found)
    solved = solve_job_clocks(endpoints, found, samples)
    if clocks is not None:
        known = [
            replace(clock, method="given", curve=curve) for clock, curve in zip(solved.clocks, clocks, strict=True)
        ]
        solved = replace(solved, clocks=(solved.clocks[0], *known[1:]))
    thetas = (REFERENCE, *(clock.curve for clock in solved.clocks[1:]))
    of_process = [thetas[number] for number in solved.clock_of]
    tied = tuple(theta for theta in of_process if theta is not None)
    time = JobTime(tied, parts[0].origin_ns) if len(tied) == len(of_process) else None
    hosts = tuple(e.host for e in endpoints)
    return JobSolution(hosts, found, steps, thetas, arrivals(found, thetas), time, solved)


@dataclass(frozen=True)
class Job:
    """``parts``: of all processes, in order of process index; ``solution``: what they say together."""

    parts: Sequence[ProcessPart]
    solution: JobSolution

    @staticmethod
    def of(parts: Sequence[ProcessPart], samples: pa.Table, clocks: Sequence[Curve | None] | None = None) -> Job:
        """solve_job with what it was made of. ``samples``: rows of exchanges.of_profile of all processes."""
        return Job(parts, solve_job(parts, resolved(samples), clocks))


def renamed(part: ProcessPart, host: str) -> ProcessPart:
    """The part with another name of its host, which is that of its clock too where no file names that."""
    was = part.endpoints
    clock = host if was.clock == was.host else was.clock
    return replace(part, endpoints=replace(was, host=host, clock=clock))


def job_tables(job: Job, details: Details, breakdown: pa.Table, phases: tuple[str, ...]) -> dict[str, pa.Table]:
    """The tables of the job: rank_programs, collectives, participants, and with clocks that match job_breakdown,
    job_steps, stragglers, straggler_reasons, job_replay.

    ``breakdown``: the merged table of all processes. ``phases``: of the steps that count. A job of one lane has none.
    """
    solution = job.solution
    found = solution.collectives
    if len(found.ranks) < 2:
        return {}
    tables = {
        "rank_programs": _rank_programs([part.endpoints for part in job.parts]),
        "collectives": collectives_table(solution.arrivals, solution.steps),
        "participants": participants_table(solution.arrivals),
    }
    if solution.time is None:
        return tables
    waits = waits_of(solution.arrivals, solution.time)

    def ask(asked: Sequence[tuple[int, Questions]], why: bool) -> Iterator[Any]:
        return details.each(answer, [(number, waits[number], questions, why) for number, questions in asked])

    own = list(details.each(own_windows, list(enumerate(waits))))
    tables["job_breakdown"] = job_breakdown(breakdown, solution.hosts, own, follow_own(own, found.ranks, ask))
    took = job_steps(own, solution.steps)
    tables["job_steps"] = _steps_table(solution, took, breakdown)
    used = took.common & np.isin(tables["job_steps"]["phase"].to_pylist(), phases)
    begins_ps = np.concatenate([of.begins_ps for of in own])
    late = stragglers.lateness(solution.arrivals, solution.steps, ask, solution.time, begins_ps)
    tables["stragglers"] = stragglers.stragglers_table(late, solution.arrivals, used)
    tables["straggler_reasons"] = stragglers.reasons_table(late, solution.arrivals, used)
    replayed = _replayed(job, details, took, used, tables["stragglers"])
    if replayed is not None:
        tables["job_replay"] = replayed
    return tables


_RANK_PROGRAMS = pa.schema(
    [
        *(("host", pa.string()), ("stage", pa.int32()), ("program", pa.string()), ("name", pa.string())),
        ("device_ps", pa.int64()),
    ]
)


def _rank_programs(processes: Sequence[Endpoints]) -> pa.Table:
    """One row per host and program that ran there, the longest first, and the stage of the host (match/programs.py).

    `program` is equal for equal programs on all hosts, `name` is the host's own. A host of which no program is known
    has no row.
    """
    of_host = stages([{key: ps for key, (_, ps) in e.programs.items()} for e in processes])
    rows = [
        {"host": e.host, "stage": stage, "program": program, "name": name, "device_ps": ps}
        for e, stage in zip(processes, of_host, strict=True)
        for program, (name, ps) in sorted(e.programs.items(), key=lambda entry: (-entry[1][1], entry[0]))
    ]
    return pa.Table.from_pylist(rows, schema=_RANK_PROGRAMS)


def _replayed(job: Job, details: Details, took: JobSteps, used: Bool, ranks: pa.Table) -> pa.Table | None:
    """replay/job_replay.py for these processes, and without the rank that costs most; None where one has no
    timeline."""
    solution, parts = job.solution, job.parts
    assert solution.time is not None
    if not all(part.replayed for part in parts):
        return None
    found = (details.timeline(number) for number in range(len(parts)))
    processes = [timeline for timeline in found if timeline is not None]
    met, shifts, step_of = [], [], []
    for number, (part, process) in enumerate(zip(parts, processes, strict=True)):
        theta, origin_ns = solution.time.clocks[number], part.origin_ns
        met.append(_met(number, part, solution, theta))
        end = process.windows[3]
        order = np.argsort(end, kind="stable")
        shift = np.zeros(len(end), np.int64)
        shift[order] = fleet_ps(theta, origin_ns, end[order], solution.time.origin_ns) - end[order]
        shifts.append(shift)
        step_of.append(np.array(solution.steps.of_process[number] or np.zeros(0), np.int64))
    worst = solution.hosts.index(ranks["host"][0].as_py()) if ranks.num_rows else -1
    return replay_job(processes, met, step_of, shifts, used, took.step_ps, worst)


def _met(number: int, part: ProcessPart, solution: JobSolution, theta: Theta) -> Met:
    found, of = solution.arrivals, solution.collectives
    assert solution.time is not None
    process = np.array([rank.process for rank in of.ranks], np.int64)
    mine = np.flatnonzero((process[of.rank] == number) & found.told[of.of])
    count, origin_ns = part.endpoints.table.num_rows, part.origin_ns
    columns = [np.full(count, fill, np.int64) for fill in (-1, 0, 0, 0)]
    own = of.waits_from_ns[mine]
    last = found.last[of.of[mine]]
    row = of.row[mine]
    columns[0][row] = of.of[mine]
    columns[1][row] = (of.start_ns[mine] - origin_ns) * 1000
    columns[2][row] = np.maximum(found.start_ns[last] - fleet_ns(theta, own), 0) * 1000
    columns[3][row] = (found.start_ns[mine] - solution.time.origin_ns - (of.start_ns[mine] - origin_ns)) * 1000
    return Met(*columns)


def _steps_table(solution: JobSolution, took: JobSteps, breakdown: pa.Table) -> pa.Table:
    """One row per step of the job: name, number, occurrence, phase, end_ns (fleet time, UTC), step_ps (null where not
    every host has it and the step before), hosts that have it."""
    assert solution.time is not None
    number_of = {key: number for number, key in enumerate(solution.steps.keys)}
    phase = [len(_PHASES) - 1] * len(number_of)
    rows = breakdown.filter(pc.equal(breakdown["kind"], "step"))
    rows = rows.group_by(["host", "name", "number", "occurrence", "phase"]).aggregate([])
    # Occurrences are each host's own: its rows of steps say which step of the job they are.
    for host, name, number, occurrence, said in zip(
        *(rows[n].to_pylist() for n in ("host", "name", "number", "occurrence", "phase")), strict=True
    ):
        at = number_of.get(solution.steps.moved[host].get((name, number, occurrence), ("", 0, 0)))
        if at is not None and said in _PHASES:
            phase[at] = min(phase[at], _PHASES.index(said))
    hosts = np.zeros(len(number_of), np.int64)
    for mine in solution.steps.of_process:
        hosts[mine] += 1
    return pa.table(
        {
            "name": pa.array([key[0] for key in solution.steps.keys], pa.string()),
            "number": pa.array([key[1] for key in solution.steps.keys], pa.int64()),
            "occurrence": pa.array([key[2] for key in solution.steps.keys], pa.int32()),
            "phase": pa.array([_PHASES[code] for code in phase], pa.string()),
            "hosts": hosts,
            "end_ns": solution.time.origin_ns + took.end_ps // 1000,
            "step_ps": pa.array(took.step_ps, mask=~took.common),
        }
    )


def job_notes(solution: JobSolution) -> list[dict[str, Any]]:
    """Diagnostics rows: what could not be matched, and what contradicts the clocks."""
    notes = [*solution.collectives.diagnostics, *solution.solved.diagnostics]
    early = ends_too_early(solution.arrivals)
    if early:
        why = "participations that end before the last participant has started: the clocks or the matching are wrong"
        notes.append(
            {
                "severity": "warning",
                "code": "ends_before_last_start",
                "file": "",
                "place": "",
                "count": early,
                "message": why,
            }
        )
    unclaimed = (solution.arrivals.told & ~solution.arrivals.claimed & (solution.arrivals.late_by_ns > 0)).sum()
    if unclaimed:
        why = "collectives whose last participant came later by less than clocks can be wrong by: nobody is called last"
        notes.append(
            {
                "severity": "note",
                "code": "lateness_below_bound",
                "file": "",
                "place": "",
                "count": int(unclaimed),
                "message": why,
            }
        )
    return notes
