"""The analysis of one job: merge the partials, finish, sum up, write. passes.py says what is done to each process.

`analyse` keeps all of it in memory; run_job.py does the same for any number of processes, with partials on disk.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from xprof_py.errors import BadInputError, UsageError
from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import breakdown
from xprof_py.postprocess.clocks.clock_map import clock_map_table, clock_rows
from xprof_py.postprocess.clocks.curve import Curve
from xprof_py.postprocess.fleet import spool
from xprof_py.postprocess.fleet.job import AtHand, Details, Job, JobSolution, job_notes, job_tables
from xprof_py.postprocess.fleet.passes import (
    STORED,
    Endpoints,
    Partials,
    first_pass,
    none_readable,
    process_order,
    second_pass,
    solve,
    unreadable,
)
from xprof_py.postprocess.fleet.passes import partials as partials
from xprof_py.postprocess.fleet.questions import APART, QUESTIONS
from xprof_py.postprocess.readers.remote import is_url
from xprof_py.postprocess.readers.sources import Sources, find_sources, profile_name
from xprof_py.postprocess.readers.workers import ALONE, Workers
from xprof_py.postprocess.rules.summary import build_summary

SUMMARY = "summary.json"


@dataclass
class Analysis:
    """A finished analysis: the summary (a JSON object) and its tables by name."""

    summary: dict[str, Any]
    tables: dict[str, pa.Table] = field(default_factory=dict)
    partitions: dict[str, list[Path]] = field(default_factory=dict)
    """Tables that are not in memory: a Parquet file per process, in order. They are written as a folder of files."""


def reduce_partials(
    parts: Sequence[Partials],
    diagnostics: Sequence[dict[str, Any]],
    clocks: Sequence[Curve | None] | None = None,
    *,
    job: Job | None = None,
) -> Analysis:
    """Merge the partials and finish. The order of ``parts`` does not matter.

    ``clocks``: where they are known already, theta per distinct clock, in order of the first process that has it;
    without, they are solved. ``job``: what passes.solve found of them, else it is done here. Raises BadInputError where
    two processes are one rank.
    """
    parts = sorted(parts, key=lambda part: process_order(part.process))
    merged: Answers = functools.reduce(merge_answers, (p.answers for p in parts))
    rows = [*diagnostics, *(row for p in parts for row in p.diagnostics)]
    apart = [apart_tables(p) for p in parts]
    stored = {name: pa.concat_tables([tables[name] for tables in apart]) for name in (*STORED, *APART)}
    if job is None:
        job = Job.of([p.job for p in parts], merged["clock_samples"], clocks)
    details = AtHand([p.detail for p in parts if p.detail is not None])
    return finish(merged, [p.process for p in parts], rows, job, details, stored=stored)


Answers = Mapping[str, pa.Table]
"""A partial of each question, by its name."""


def merge_answers(a: Answers, b: Answers) -> Answers:
    """The partials of two sets of processes as those of both; questions that are answered apart are left out."""
    return {name: question.merge(a[name], b[name]) for name, question in QUESTIONS.items() if name not in APART}


def apart_tables(part: Partials) -> dict[str, pa.Table]:
    """The tables of a process that are not merged with those of others, as they are written."""
    return {**part.stored, **{name: QUESTIONS[name].finish(part.answers[name], ())[name] for name in APART}}


def finish(
    merged: Answers,
    processes: Sequence[dict[str, Any]],
    diagnostics: Sequence[dict[str, Any]],
    job: Job,
    details: Details,
    *,
    stored: Mapping[str, pa.Table] | None = None,
    partitions: Mapping[str, Sequence[Path]] | None = None,
) -> Analysis:
    """The analysis of a job from merged partials.

    ``processes``, ``diagnostics``, ``details`` and the parts of ``job``: of all processes, in process_order. The tables
    of STORED and APART are in ``stored``, or one file per process in ``partitions``.
    """
    phases = breakdown.used_phases(merged["breakdown"])
    finished: dict[str, pa.Table] = {}
    for name, question in QUESTIONS.items():
        if name not in APART:
            finished |= question.finish(merged[name], phases)
    finished["clock_map"] = clock_map_table(job.solution.solved)
    finished |= job_tables(job, details, merged["breakdown"], phases)
    summary = build_summary(
        processes=processes,
        tables=finished,
        diagnostics=[*diagnostics, *job_notes(job.solution)],
        missing=_missing(job.solution),
        clocks=clock_rows(job.solution.solved),
    )
    tables = {**finished, **(stored or {})}
    parts = {name: list(files) for name, files in (partitions or {}).items()}
    return Analysis({**summary, "tables": sorted([*tables, *parts])}, tables, parts)


def _missing(solution: JobSolution) -> list[dict[str, Any]]:
    return [
        {"step": number, "name": name, "host": host, "why": why}
        for (name, number, _), host, why in solution.steps.missing
    ]


def analyse(paths: Sequence[str | os.PathLike[str]], *, calibrate: bool = False) -> Analysis:
    """Analyse the profiles of one job.

    ``paths``: a run folder, a folder of profiles, globs or files. ``calibrate``: as in ``partials``; where it is false
    only a measurement that is stored already is used. Raises BadInputError where nothing could be read, UsageError
    where XPROF_PY_PEAKS cannot.
    """
    return analyse_sources(find_sources(paths), calibrate=calibrate)


def analyse_sources(sources: Sources, *, calibrate: bool = False, workers: Workers = ALONE) -> Analysis:
    """The same for what find_sources found, one process after the other; ``workers`` share the work on each."""
    read: list[tuple[Partials, Endpoints]] = []
    failures: list[BadInputError] = []
    for source in sources.processes:
        try:
            alone = len(sources.processes) == 1
            read.append(first_pass(source, calibrate=calibrate, alone=alone, workers=workers))
        except BadInputError as error:
            failures.append(error)
    if not read:
        raise none_readable(failures)
    solution = solve([endpoints for _, endpoints in read])
    parts = [second_pass(part, solution.of[e.key]) for part, e in read if e.key in solution.of]
    rows = [*sources.diagnostics, *map(unreadable, failures), *solution.diagnostics]
    return reduce_partials(parts, rows, job=solution.job)


def default_out(paths: Sequence[str | os.PathLike[str]], sources: Sources) -> Path:
    """Where an analysis of ``paths`` goes by default: RUN/analysis for a run folder, else ./<name>-analysis.

    ``sources``: what find_sources found there. The name is that of the one file or folder that was named, without the
    ending that says its format; of several files it is that of the folder that holds them all.
    """
    if sources.root is not None:
        return sources.root / "analysis"
    if is_url(paths[0]):
        return Path(f"{profile_name(Path(os.fspath(paths[0]).rstrip('/'))) or 'profile'}-analysis")
    named = Path(os.fspath(paths[0])).resolve()
    if len(paths) > 1 or not named.exists():
        found = [f.resolve().parent for s in sources.processes for f in s.paths()]
        named = Path(os.path.commonpath(found))
    return Path(f"{profile_name(named) or 'profile'}-analysis")


def is_foreign(out: Path) -> bool:
    """Whether ``out`` exists and is neither an analysis nor an empty folder: then it is not ours to write to."""
    if not out.exists() or (out / SUMMARY).exists():
        return False
    return not out.is_dir() or any(entry.name != spool.FOLDER for entry in out.iterdir())


def write_analysis(analysis: Analysis, out: Path, workers: Workers = ALONE) -> None:
    """Write summary.json and one Parquet file per table into ``out``, all or nothing; ``workers`` share the tables.

    A new folder takes the place of ``out`` by a rename. What somebody else put there (a report) is in the new one too;
    tables of the analysis before are not. The folder that a process stands in, and one that is a mount, cannot be
    replaced: there the files are, one by one, summary.json last. Raises UsageError where ``out`` exists and is not an
    analysis, OSError where it cannot be written: then a folder that is replaced is as it was.
    """
    if is_foreign(out):
        raise UsageError(f"{out} exists and is not an analysis: name another folder with -o")
    # A link stays a link, and `.` can be renamed by its real name alone.
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    in_place = out.exists() and (out.is_mount() or Path.cwd().is_relative_to(out))
    fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out if in_place else out.parent))
    try:
        largest_first = sorted(analysis.tables.items(), key=lambda named: (-named[1].nbytes, named[0]))
        workers.run(
            [
                functools.partial(pq.write_table, table, fresh / f"{name}.parquet", compression="zstd")
                for name, table in largest_first
            ]
        )
        for name, files in sorted(analysis.partitions.items()):
            folder = fresh / f"{name}.parquet"
            folder.mkdir()
            for place, file in enumerate(files):
                _link(file, folder / f"{place:06}.parquet")
        content = orjson.dumps(analysis.summary, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        (fresh / SUMMARY).write_bytes(content)
        if in_place:
            _replace_files(fresh, out)
        elif out.exists():
            fresh.chmod(out.stat().st_mode & 0o7777)
            _keep_foreign(out, fresh)
            _swap(fresh, out)
        else:
            fresh.chmod(0o755)
            fresh.replace(out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _files_of(out: Path) -> set[str]:
    """Names of the files that belong to the analysis in ``out``, of an earlier version too."""
    try:
        summary = orjson.loads((out / SUMMARY).read_bytes())
    except (OSError, ValueError):
        summary = None
    listed = summary.get("tables") if isinstance(summary, dict) else None
    tables = [*schema.TABLES, *(listed if isinstance(listed, list) else ())]
    return {SUMMARY, *(f"{name}.parquet" for name in tables)}


def _replace_files(fresh: Path, out: Path) -> None:
    new = {file.name for file in fresh.iterdir()}
    for name in _files_of(out) - new:
        _remove(out / name)
    for name in (*sorted(new - {SUMMARY}), SUMMARY):
        if (fresh / name).is_dir() or (out / name).is_dir():
            _remove(out / name)
        (fresh / name).replace(out / name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _keep_foreign(out: Path, fresh: Path) -> None:
    """Link (else copy) into ``fresh`` what is in ``out`` and is not of an analysis."""
    ours = _files_of(out) | {file.name for file in fresh.iterdir()}
    for entry in sorted(out.iterdir()):
        if entry.name in ours:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, fresh / entry.name, symlinks=True, copy_function=_link)
        else:
            _link(entry, fresh / entry.name)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        # A file system without hard links.
        shutil.copy2(source, target, follow_symlinks=False)


def _swap(fresh: Path, out: Path) -> None:
    """``fresh`` becomes ``out``. A kill between the two renames leaves both whole, each beside the place."""
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}-old-", dir=out.parent))
    try:
        out.replace(old)
    except OSError:
        old.rmdir()
        raise
    try:
        fresh.replace(out)
    except OSError:
        old.replace(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def read_analysis(out: Path) -> Analysis:
    """Read back what write_analysis wrote. Raises BadInputError where ``out`` is not an analysis."""
    file = out / SUMMARY
    try:
        summary = orjson.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInputError(str(file), "", str(error)) from error
    if not isinstance(summary, dict) or summary.get("schema_version") != schema.SCHEMA_VERSION:
        raise BadInputError(str(file), "", f"is not a summary of schema version {schema.SCHEMA_VERSION}")
    tables = {}
    listed = summary.get("tables")
    for path in sorted(out.glob("*.parquet")):
        if isinstance(listed, list) and path.stem not in listed:
            # Somebody else's file.
            continue
        try:
            tables[path.stem] = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise BadInputError(str(path), "", str(error)) from error
    return Analysis(summary, tables)
