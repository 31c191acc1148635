"""One job: find its files, join every process, merge the partials, finish, sum up, write.

All processes are read first, because their hosts need names that differ; each is then joined by itself and leaves
only its partials.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
from xprof_py.postprocess.fleet.job import (
    JobSolution,
    ProcessPart,
    job_notes,
    job_tables,
    process_part,
    solve_job,
)
from xprof_py.postprocess.fleet.questions import QUESTIONS
from xprof_py.postprocess.fleet.ranks import one_of_each_rank
from xprof_py.postprocess.hlo.known_peaks import with_peaks
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.join.device_ops import NO_DEVICE
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.process import read_process
from xprof_py.postprocess.readers.sources import Source, Sources, find_sources, profile_name
from xprof_py.postprocess.rules.summary import build_summary

SUMMARY = "summary.json"
STORED = ("lanes", "launches", "runs", "steps", "windows", "gaps", "compiles", "copies")
"""Tables of every process that are written with a column `host`; rows refer to rows of the same host's tables."""


@dataclass
class Analysis:
    """A finished analysis: the summary (a JSON object) and its tables by name."""

    summary: dict[str, Any]
    tables: dict[str, pa.Table] = field(default_factory=dict)


@dataclass
class Partials:
    """What one process leaves behind."""

    process: dict[str, Any]
    answers: dict[str, pa.Table]
    """The partial of every question, by its name."""
    stored: dict[str, pa.Table]
    diagnostics: list[dict[str, Any]]
    job: ProcessPart
    """What the job needs of it beyond the answers."""


def load_processes(sources: Sources) -> tuple[list[Profile], list[dict[str, Any]]]:
    """Read every process, each with a host name of its own, and diagnostics rows for those that cannot be read.

    Raises BadInputError where none can be read: with the message of each.
    """
    profiles: list[Profile] = []
    rows = list(sources.diagnostics)
    failures: list[BadInputError] = []
    read: list[tuple[Source, Profile]] = []
    for source in sources.processes:
        try:
            read.append((source, read_process(source)))
        except BadInputError as error:
            failures.append(error)
    if not read:
        raise (
            failures[0]
            if len(failures) == 1
            else BadInputError(
                failures[0].file, failures[0].place, f"{failures[0].reason} ({len(failures)} files, none could be read)"
            )
        )
    rows += [
        {"severity": "error", "code": "unreadable", "file": e.file, "place": e.place, "count": 1, "message": e.reason}
        for e in failures
    ]
    _refuse_two_runs(read)
    read, of_ranks = one_of_each_rank(read)
    rows += of_ranks
    names = [profile.host for _, profile in read]
    for source, profile in read:
        host = profile.host if names.count(profile.host) == 1 else f"{profile.host}:{source.key}"
        where = [f"{path}:{source.member}" if source.member else str(path) for path in source.paths()]
        profiles.append(replace(profile, host=host, metadata={**profile.metadata, "source": where}))
    return profiles, rows


def _refuse_two_runs(read: Sequence[tuple[Source, Profile]]) -> None:
    """Two processes of one index are two runs: their average would be nobody's. Raises BadInputError."""
    seen: dict[int, Path] = {}
    for source, profile in read:
        index = (profile.metadata.get("run") or {}).get("process_index")
        if not isinstance(index, int) or source.run_file is None:
            continue
        if index in seen:
            both = f"{seen[index]} and {source.run_file}"
            raise BadInputError(both, "", f"are two runs, both with a process {index}: analyse one at a time")
        seen[index] = source.run_file


def partials(profile: Profile, *, calibrate: bool = False) -> Partials:
    """Join one process and reduce it to its partials.

    ``calibrate``: whether this machine's CPU may be measured, if it is the one that was profiled (hlo/cpu_peaks.py).
    """
    joined = join_profile(with_peaks(profile, os.environ, calibrate=calibrate))
    run = joined.metadata.get("run") or {}
    versions = run.get("versions") or {}
    process = {
        "host": joined.host,
        "hostname": run.get("hostname") or joined.host,
        "process_index": run.get("process_index"),
        "devices": [name for name in joined["lanes"]["device"].to_pylist() if name != NO_DEVICE],
        "source": joined.metadata.get("source", []),
        "overhead": run.get("overhead"),
        "stacks": (run.get("collectors") or {}).get("stacks"),
        "peaks": joined.metadata.get("peaks") or {},
        "observer": run.get("observer"),
        "steps_source": next(iter(joined["steps"]["source"].unique().to_pylist()), None),
        "capture": {
            "command": run.get("command"),
            "xprof_py": versions.get("xprof_py"),
            "jax": versions.get("jax"),
            "python": versions.get("python"),
            "started_ns": joined.origin_ns or None,
            "seconds": (joined.capture_end_ps - joined.capture_start_ps) / 1e12,
            "mode": (run.get("capture") or {}).get("mode"),
            "steps": (run.get("capture") or {}).get("steps"),
        },
    }
    return Partials(
        process=process,
        answers={name: question.partial(joined) for name, question in QUESTIONS.items()},
        stored={name: _with_host(joined[name], joined.host) for name in STORED},
        diagnostics=joined["diagnostics"].to_pylist(),
        job=process_part(joined, run.get("process_index")),
    )


def reduce_partials(
    parts: Sequence[Partials], diagnostics: Sequence[dict[str, Any]], clocks: Sequence[Curve | None] | None = None
) -> Analysis:
    """Merge the partials and finish. The order of ``parts`` does not matter.

    ``clocks``: where they are known already, theta per distinct clock, in order of the first process that has it;
    without, they are solved. Raises BadInputError where two processes are one rank.
    """
    parts = sorted(parts, key=lambda part: (_index(part.process), part.process["host"]))
    merged = {
        name: functools.reduce(question.merge, (p.answers[name] for p in parts)) for name, question in QUESTIONS.items()
    }
    phases = breakdown.used_phases(merged["breakdown"])
    finished: dict[str, pa.Table] = {}
    for name, question in QUESTIONS.items():
        finished |= question.finish(merged[name], phases)
    job = [p.job for p in parts]
    solution = solve_job(job, finished["clock_samples"], clocks)
    finished["clock_map"] = clock_map_table(solution.solved)
    finished |= job_tables(job, solution, merged["breakdown"], phases)
    summary = build_summary(
        processes=[p.process for p in parts],
        tables=finished,
        diagnostics=[*diagnostics, *(row for p in parts for row in p.diagnostics), *job_notes(solution)],
        missing=_missing(solution),
        clocks=clock_rows(solution.solved),
    )
    stored = {name: pa.concat_tables([p.stored[name] for p in parts]) for name in STORED}
    tables = {**finished, **stored}
    return Analysis({**summary, "tables": sorted(tables)}, tables)


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


def analyse_sources(sources: Sources, *, calibrate: bool = False) -> Analysis:
    """The same for what find_sources found."""
    profiles, diagnostics = load_processes(sources)
    parts = []
    while profiles:
        parts.append(partials(profiles.pop(0), calibrate=calibrate))
    return reduce_partials(parts, diagnostics)


def default_out(paths: Sequence[str | os.PathLike[str]], sources: Sources) -> Path:
    """Where an analysis of ``paths`` goes by default: RUN/analysis for a run folder, else ./<name>-analysis.

    ``sources``: what find_sources found there. The name is that of the one file or folder that was named, without the
    ending that says its format; of several files it is that of the folder that holds them all.
    """
    if sources.root is not None:
        return sources.root / "analysis"
    named = Path(os.fspath(paths[0])).resolve()
    if len(paths) > 1 or not named.exists():
        found = [f.resolve().parent for s in sources.processes for f in s.paths()]
        named = Path(os.path.commonpath(found))
    return Path(f"{profile_name(named) or 'profile'}-analysis")


def is_foreign(out: Path) -> bool:
    """Whether ``out`` exists and is neither an analysis nor an empty folder: then it is not ours to write to."""
    return out.exists() and not (out.is_dir() and ((out / SUMMARY).exists() or not any(out.iterdir())))


def write_analysis(analysis: Analysis, out: Path) -> None:
    """Write summary.json and one Parquet file per table into ``out``, all or nothing.

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
        for name, table in sorted(analysis.tables.items()):
            pq.write_table(table, fresh / f"{name}.parquet", compression="zstd")
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
        (out / name).unlink(missing_ok=True)
    for name in (*sorted(new - {SUMMARY}), SUMMARY):
        (fresh / name).replace(out / name)


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


def _index(process: dict[str, Any]) -> int:
    index = process["process_index"]
    return index if isinstance(index, int) else 1 << 30


def _with_host(table: pa.Table, host: str) -> pa.Table:
    return table.add_column(
        0, pa.field("host", pa.string(), nullable=False), pa.repeat(pa.scalar(host), table.num_rows)
    )
