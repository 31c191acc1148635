"""One job of any number of processes, with partials on disk: plan, map 1, solve, map 2, a tree of merges, finish.

A worker holds one process at a time, or the partials of TREE_WIDTH. The leading process merges what they merged, and
holds per process its row of the summary, a row per step, class and program, and its collectives (job.py, ProcessPart).
The activity of its lanes and its timeline stay in the spool (ProcessDetail): workers answer what is asked of them. The
tables of a process that nobody sums (STORED, APART) are written by the workers and never gathered. Which worker does
what, and when, has no part in any result: the tree follows the order of the processes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xprof_py.errors import BadInputError, XprofPyError
from xprof_py.postprocess.fleet.analysis import Analysis, Answers, apart_tables, finish, merge_answers
from xprof_py.postprocess.fleet.passes import (
    STORED,
    Endpoints,
    Partials,
    Solved,
    as_json,
    first_pass,
    none_readable,
    process_order,
    second_pass,
    solve,
    unreadable,
)
from xprof_py.postprocess.fleet.questions import APART, QUESTIONS
from xprof_py.postprocess.fleet.schedulers import Failed, Scheduler, Task
from xprof_py.postprocess.fleet.spool import Spool, key_of, key_of_source, packed, unpacked
from xprof_py.postprocess.hlo.cpu_peaks import cache_folder, cpu_peaks, profiled_here
from xprof_py.postprocess.hlo.known_peaks import calibration_allowed
from xprof_py.postprocess.readers.run_file import read_run_file
from xprof_py.postprocess.readers.sources import Source, Sources, size_of
from xprof_py.postprocess.replay.job_replay import ProcessTimeline

TREE_WIDTH = 16
"""Partials that one merge reads at once."""

JOB, CLOCK_SAMPLES = GATHERED = ("job", "answer clock_samples")
"""Tables of pass 1 that the leading process reads: what solve asks of every process."""
ACTIVITY, TIMELINE = "activity", "timeline"
"""Tables of pass 1 that are read one process at a time."""

Progress = Callable[[str, int, int], None]
"""(what is being done, tasks done, tasks in all)"""


def analyse_job(
    sources: Sources,
    spool: Spool,
    scheduler: Scheduler,
    *,
    resume: bool = False,
    calibrate: bool = False,
    progress: Progress = lambda what, done, of: None,
) -> Analysis:
    """Analyse the processes of one job; the result's ``partitions`` lie in ``spool``.

    ``resume``: use what an earlier run left in ``spool``; else it is emptied first. Raises BadInputError where no
    process can be read, SpoolError where partials cannot be written, XprofPyError where the scheduler is gone.
    """
    spool.make()
    if not resume:
        spool.keep_only([])
    if calibrate:
        _measure_first(sources)
    folder = spool.folder
    # The largest first: the last ones to finish are then short.
    planned = sorted(sources.processes, key=lambda source: (-size_of(source), source.key))
    failures: list[BadInputError] = []
    endpoints: dict[str, Endpoints] = {}
    first: dict[str, str] = {}
    tasks: list[Task] = [(folder, source, calibrate) for source in planned]
    for place, result in _run(scheduler, map_1, tasks, progress, "reading"):
        if isinstance(result, Failed | BadInput):
            failures.append(_error(planned[place], result))
            continue
        key, said = result
        found = spool.read(key, GATHERED).tables
        endpoints[said["key"]] = Endpoints(**said, job=unpacked(found[JOB]), clock_samples=found[CLOCK_SAMPLES])
        first[said["key"]] = key
    failures.sort(key=lambda e: (e.file, e.place, e.reason))
    if not first:
        raise none_readable(failures)

    solution = solve(list(endpoints.values()))

    order = sorted(solution.of)
    tasks = [(folder, first[key], solution.of[key]) for key in order]
    second = dict(_run(scheduler, map_2, tasks, progress, "applying"))
    _raise_any(second.values())
    said = {key: _said(spool, key) for key in second.values()}
    keys = sorted(said, key=lambda key: process_order(said[key]["process"]))
    groups = [keys[at : at + TREE_WIDTH] for at in range(0, len(keys), TREE_WIDTH)]
    merges: list[Task] = [(folder, group) for group in groups]
    done = dict(_run(scheduler, merge, merges, progress, "merging"))
    _raise_any(done.values())
    nodes = [done[place] for place in range(len(groups))]
    spool.keep_only([*first.values(), *keys, *nodes])
    merged: Answers = functools.reduce(merge_answers, (spool.read(node).tables for node in nodes))

    assert solution.job is not None
    of_source = {key: second[place] for place, key in enumerate(order)}
    first_of = {of_source[key]: first[key] for key in order}
    details = _Spooled(spool, [first_of[key] for key in keys], scheduler)
    rows = [*sources.diagnostics, *map(unreadable, failures), *solution.diagnostics]
    rows += [row for key in keys for row in said[key]["diagnostics"]]
    return finish(
        merged,
        [said[key]["process"] for key in keys],
        rows,
        solution.job,
        details,
        partitions={name: [spool.table_path(key, name) for key in keys] for name in (*STORED, *APART)},
    )


class BadInput(tuple[str, str, str]):
    """(file, place, reason) of a BadInputError, which a worker returns: it is no fault of the worker's."""


def map_1(folder: Path, source: Source, calibrate: bool) -> tuple[str, dict[str, Any]] | BadInput:
    """Pass 1 of one process: (key of its partials, its endpoints as JSON). Raises SpoolError."""
    spool = Spool(folder)
    try:
        key = key_of_source(source, calibrate=calibrate)
        known = spool.said(key)
        if known is not None:
            return key, known["endpoints"]
        part, endpoints = first_pass(source, calibrate=calibrate)
    except BadInputError as error:
        return BadInput((error.file, error.place, error.reason))
    tables = {f"answer {name}": table for name, table in part.answers.items()}
    tables |= {f"stored {name}": table for name, table in part.stored.items()}
    assert part.detail is not None
    tables |= {JOB: packed(part.job), ACTIVITY: packed(part.detail.activity), TIMELINE: packed(part.detail.timeline)}
    said = {"endpoints": as_json(endpoints), "process": part.process, "diagnostics": part.diagnostics}
    spool.write(key, tables, said)
    return key, as_json(endpoints)


def map_2(folder: Path, first: str, solved: Solved) -> str:
    """Pass 2 of one process, from what pass 1 left: the key of its partials. Raises SpoolError."""
    spool = Spool(folder)
    key = key_of("pass 2", first, repr(sorted(asdict(solved).items())))
    if spool.said(key) is not None and all(spool.table_path(key, name).exists() for name in (*STORED, *APART)):
        return key
    found = spool.read(first, [JOB, *(f"answer {name}" for name in QUESTIONS), *(f"stored {name}" for name in STORED)])
    answers = {name: found.tables[f"answer {name}"] for name in QUESTIONS}
    stored = {name: found.tables[f"stored {name}"] for name in STORED}
    job = unpacked(found.tables[JOB])
    part = second_pass(Partials(found.said["process"], answers, stored, found.said["diagnostics"], job, None), solved)
    for name, table in apart_tables(part).items():
        spool.write_table(key, name, table)
    answers = {name: table for name, table in part.answers.items() if name not in APART}
    spool.write(key, answers, {"process": part.process, "diagnostics": part.diagnostics})
    return key


def merge(folder: Path, keys: Sequence[str]) -> str:
    """One node of the tree: the key of the partials of several processes merged. Raises SpoolError."""
    spool = Spool(folder)
    key = key_of("merge", *keys)
    if spool.said(key) is None:
        merged: Answers = functools.reduce(merge_answers, (spool.read(one).tables for one in keys))
        spool.write(key, merged, {})
    return key


def ask(folder: Path, key: str, function: Callable[..., Any], *rest: Any) -> Any:
    """What a process's activity says to a question of the job. Raises BadInputError where it is not there."""
    return function(unpacked(Spool(folder).read(key, [ACTIVITY]).tables[ACTIVITY]), *rest)


class _Spooled:
    """Details that pass 1 left in the spool, under these keys of the processes in order."""

    def __init__(self, spool: Spool, keys: Sequence[str], scheduler: Scheduler) -> None:
        self._spool, self._keys, self._scheduler = spool, keys, scheduler

    def each(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """Of what comes out of turn those that are before it are waited for."""
        early: dict[int, Any] = {}
        asked: list[Task] = [(self._spool.folder, self._keys[number], function, *rest) for number, *rest in tasks]
        next_place = 0
        for place, result in self._scheduler.run(ask, asked):
            _raise_any([result])
            early[place] = result
            while next_place in early:
                yield early.pop(next_place)
                next_place += 1

    def timeline(self, number: int) -> ProcessTimeline | None:
        found: ProcessTimeline | None = unpacked(self._spool.read(self._keys[number], [TIMELINE]).tables[TIMELINE])
        return found


def _run(
    scheduler: Scheduler, function: Callable[..., Any], tasks: Sequence[Task], progress: Progress, what: str
) -> list[tuple[int, Any]]:
    progress(what, 0, len(tasks))
    out = []
    for place, result in scheduler.run(function, tasks):
        out.append((place, result))
        progress(what, len(out), len(tasks))
    return out


def _error(source: Source, result: Any) -> BadInputError:
    if isinstance(result, BadInput):
        return BadInputError(*result)
    path = next(iter(source.paths()), None)
    return BadInputError(f"{source.base}/{path}" if source.base else str(path), result.place, result.reason)


def _raise_any(results: Any) -> None:
    """Partials that were made once can be read again: where that fails it is no fault of the input."""
    for result in results:
        if isinstance(result, Failed):
            raise XprofPyError(f"partials {result.reason} ({result.place})")


def _said(spool: Spool, key: str) -> dict[str, Any]:
    found = spool.said(key)
    if found is None:
        raise BadInputError(str(spool.path(key)), "", "is not there: do all workers see this folder under this name?")
    return found


def _measure_first(sources: Sources) -> None:
    """Measure this machine's CPU, if one of its own captures will ask for that, before workers keep it busy."""
    files = [s.run_file for s in sources.processes if s.run_file is not None and not s.base]
    if calibration_allowed(os.environ) and any(map(_is_of_this_machine, files)):
        cpu_peaks(cache_folder(os.environ), measure=True)


def _is_of_this_machine(run_file: Path) -> bool:
    try:
        return profiled_here(read_run_file(run_file))
    except BadInputError:
        return False
