"""Steps of a process that marks none: its launches as a sequence of programs, each repetition in it a step.

What counts as a repetition: launch_period.py.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from xprof_py.postprocess.hlo.hand_over import HandOver
from xprof_py.postprocess.join import intervals
from xprof_py.postprocess.join.columns import Bool, Events, Int64
from xprof_py.postprocess.join.device_ops import DeviceOps
from xprof_py.postprocess.join.host_activity import HostActivity
from xprof_py.postprocess.join.launch_period import Period, find_period
from xprof_py.postprocess.join.launches import Launches, join_runs
from xprof_py.postprocess.join.steps import Steps
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import Kind

NAME = "inferred"
"""The name of inferred steps; their numbers count from 0."""

_MAIN = 2 / 3
"""Part of the device's work that one thread must have launched for its launches to say what a step is."""
_ANNOTATE = "put `with step(i):` around the body of the loop to say what a step is"
_SHOWN = 6


@dataclass(frozen=True)
class Inferred:
    """``steps``: None where none were found. ``words``: what a step was taken to be, or why there are none."""

    steps: Steps | None
    words: str


def infer_steps(
    profile: Profile,
    ops: DeviceOps,
    launches: Launches,
    thread_of_line: Int64,
    activity: HostActivity,
    program_key: list[str],
    program_name: list[str],
) -> Inferred:
    """Find steps in the order of launches of the thread that launched most of the device's work.

    ``program_key``, ``program_name``: per row of programs (launches.join_runs, the source place included in the name).
    """
    if not len(launches.event):
        return Inferred(None, f"no steps: no launch of a program is in the capture; {_ANNOTATE}")
    # Every launch as a step of its own: what several lanes leave open stays open.
    drained = profile.metadata.get("drained")
    joined = join_runs(ops, launches, np.arange(len(launches.event)), program_key, drained, frozenset())
    program = np.full(len(launches.event), -1, np.int64)
    work = np.ones(len(launches.event), np.int64)
    for run in np.flatnonzero(joined.launch >= 0).tolist():
        program[joined.launch[run]] = ops.run_program[run]
        work[joined.launch[run]] += int(ops.run_end_ps[run] - ops.run_start_ps[run])
    thread = thread_of_line[launches.line]
    by_thread = np.bincount(thread, weights=work)
    main = int(by_thread.argmax())
    if by_thread[main] < _MAIN * by_thread.sum():
        return Inferred(None, f"no steps: several threads launch, and which of them has the steps is open; {_ANNOTATE}")
    mine = np.flatnonzero(thread == main)
    names = _kinds([launches.key[i] for i in mine], [int(program[i]) for i in mine], program_name)
    order = {name: number for number, name in enumerate(dict.fromkeys(names))}
    kind = np.array([order[name] for name in names], np.int64)
    programs: dict[int, int] = {}
    for number, row in zip(kind.tolist(), program[mine].tolist(), strict=True):
        if row >= 0:
            programs.setdefault(number, row)
    interfaces = HandOver(profile)

    def hands_on(rare: int, regular: list[int]) -> bool | None:
        if any(number not in programs for number in (rare, *regular)):
            return None
        return interfaces.hands_on(programs[rare], [programs[number] for number in regular])

    start, end = launches.call_start_ps[mine], launches.call_end_ps[mine]
    found = find_period(kind, work[mine], _idle_after(start, end, activity, main), hands_on)
    if isinstance(found, str):
        return Inferred(None, f"no steps: none are annotated, and {found}; {_ANNOTATE}")
    shown = [launches.name[i] or "an unnamed program" for i in mine]
    label = dict(zip(kind.tolist(), shown, strict=True))
    pattern = _words([label[number] for number in found.pattern])
    words = f"no step is annotated: each {pattern} in the order of launches is taken for one"
    if found.extras:
        words += f", and {_words(sorted(label[number] for number in found.extras))} for no part of it"
    return Inferred(_steps(found, start, end, main), f"{words}; {_ANNOTATE}")


def infer_from_ranges(events: Events, thread_of_line: Int64, host_line: Bool) -> Inferred | None:
    """Steps of a process that launched nothing: the repetition in the order of the outermost spans of the thread that
    spent most in them, by the rules for launches. None where there is none.

    A span's length is its weight, what lies between two the host's idle time: there a loop begins anew.
    """
    spans = np.isin(events.kind, (Kind.SPAN, Kind.INPUT, Kind.CHECKPOINT))
    rows = np.flatnonzero(spans & host_line[events.line] & (events.duration_ps >= 0))
    thread = thread_of_line[events.line[rows]]
    end_ps = events.end_ps[rows]
    order = np.lexsort((-end_ps, events.start_ps[rows], thread))
    rows, thread, end_ps = rows[order], thread[order], end_ps[order]
    if not len(rows):
        return None
    # Outermost: no span of the thread before it, in order of start, ends after it.
    reach = np.maximum.accumulate(end_ps + thread * (int(end_ps.max()) + 1))
    begins = np.concatenate(([True], thread[1:] != thread[:-1]))
    outer = begins | (reach > np.concatenate(([np.int64(-1)], reach[:-1])))
    rows, thread = rows[outer], thread[outer]
    spent = np.bincount(thread, weights=events.duration_ps[rows])
    main = int(spent.argmax())
    if spent[main] < _MAIN * spent.sum():
        return None
    mine = rows[thread == main]
    _, kind = np.unique(events.name[mine], return_inverse=True)
    start, end = events.start_ps[mine], events.end_ps[mine]
    idle = np.concatenate((start[1:], end[-1:])) - end
    found = find_period(kind.astype(np.int64), events.duration_ps[mine] + 1, idle, lambda *_: None)
    if isinstance(found, str):
        return None
    label = dict(zip(kind.tolist(), (events.names[code] for code in events.name[mine]), strict=True))
    pattern = _words([label[number] for number in found.pattern])
    words = f"no step is annotated and nothing was launched: each {pattern} in the order of ranges is taken for one"
    return Inferred(_steps(found, start, end, main), f"{words}; {_ANNOTATE}")


def _kinds(keys: list[str], programs: list[int], program_name: list[str]) -> list[tuple[str, str]]:
    """What tells the launches apart: the program's name, and its place where programs at several have the name."""
    places: dict[str, set[str]] = defaultdict(set)
    for key, program in zip(keys, programs, strict=True):
        if program >= 0:
            places[key].add(program_name[program])
    return [
        (key, program_name[program] if program >= 0 and len(places[key]) > 1 else "")
        for key, program in zip(keys, programs, strict=True)
    ]


def _idle_after(start: Int64, end: Int64, activity: HostActivity, thread: int) -> Int64:
    """How long after each launch the thread neither launched nor waited for the device; 0 after the last."""
    waits = activity.waits(thread)
    waiting = intervals.union(waits.start_ps, waits.end_ps)
    until = np.maximum(np.concatenate((start[1:], end[-1:])), end)
    return until - end - intervals.cover(waiting, end, until)


def _steps(period: Period, start_ps: Int64, end_ps: Int64, thread: int) -> Steps:
    """The repetitions as steps of ``thread``: each from the end of the call before its first one to that of its own
    last one, so that the wait for its input, and a checkpoint before it, are its own. ``start_ps``, ``end_ps`` (n,): of
    the launches. Nothing ends before the first one, which begins with its first launch."""
    stop = end_ps[period.ends]
    count = len(stop)
    return Steps(
        event=np.full(count, -1, np.int64),
        thread=np.full(count, thread, np.int64),
        start_ps=np.concatenate(([start_ps[period.first]], stop[:-1])),
        end_ps=stop,
        open=[False] * count,
        name=[NAME] * count,
        number=list(range(count)),
        occurrence=[0] * count,
        parent=np.full(count, -1, np.int64),
        outer=count,
        source="inferred",
    )


def _words(names: list[str]) -> str:
    """A sequence of programs, each with how often it comes in a row."""
    runs = [(name, sum(1 for _ in same)) for name, same in groupby(names)]
    shown = [name if count == 1 else f"{count} x {name}" for name, count in runs[:_SHOWN]]
    if len(runs) > _SHOWN:
        shown.append(f"{sum(count for _, count in runs[_SHOWN:])} more")
    return ", ".join(shown)
