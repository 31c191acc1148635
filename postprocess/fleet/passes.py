"""The two passes over a job's processes, and the one place between them where all of them are known.

    map 1   first_pass(source)              read and join one process; its partials, under the name its files give it
    solve   solve(endpoints) -> Solution    one node, small: what no process can know by itself
    map 2   second_pass(partials, its part of the solution)   the same partials, with what was solved put in

What is solved is the names of hosts, the job's collectives and its clocks (job.py). What that needs of a process is a
field of Endpoints; what pass 2 needs of it one of Solved.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.errors import BadInputError
from xprof_py.postprocess.fleet.job import Job, ProcessDetail, ProcessPart, process_part, renamed
from xprof_py.postprocess.fleet.questions import LONGEST, QUESTIONS
from xprof_py.postprocess.fleet.ranks import captures_apart, one_of_each_rank
from xprof_py.postprocess.hlo.known_peaks import with_peaks
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.join.device_ops import NO_DEVICE
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.column_memory import FOLDER, bounded, refused
from xprof_py.postprocess.readers.process import read_process
from xprof_py.postprocess.readers.remote import Fetched, fetched
from xprof_py.postprocess.readers.sources import Source
from xprof_py.postprocess.readers.workers import ALONE, Workers

STORED = ("lanes", "launches", "runs", "steps", "windows", "gaps", "compiles", "copies", "power")
"""Tables of every process that are written with a column `host`; rows refer to rows of the same host's tables."""


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
    detail: ProcessDetail | None
    """And what it asks of it; None where that is kept apart (run_job.py), and where nobody asks."""


@dataclass(frozen=True)
class Endpoints:
    """What of a process is gathered on one node."""

    key: str
    """Source.key: unique in the job."""
    host: str
    """The name that its files give the host; several processes may have the same."""
    process_index: int | None
    run_file: str | None
    trace: str | None = None
    """The file, where its rank comes without a run file (ranks.py): a trace in JSON, say."""
    process_count: int | None = None
    captured_ns: tuple[int, int] | None = None
    """UTC of the capture's start and end, where the files say when it was."""
    job: ProcessPart | None = None
    clock_samples: pa.Table | None = None
    """Of this process, as exchanges.of_profile has them; with ``job`` or not at all."""


@dataclass(frozen=True)
class Solved:
    """What the solution says of one process. Plain values: they are part of the key of its partials of pass 2."""

    host: str
    """The name in reports, unique in the job."""


@dataclass(frozen=True)
class Solution:
    """What all processes together say, by Source.key. A process that is not among ``of`` is left out."""

    of: Mapping[str, Solved]
    job: Job | None
    """None where the processes' parts of it were not gathered."""
    diagnostics: tuple[dict[str, Any], ...] = ()


def first_pass(
    source: Source, *, calibrate: bool = False, alone: bool = False, workers: Workers = ALONE
) -> tuple[Partials, Endpoints]:
    """Read and join one process. Raises BadInputError where none of its files can be read.

    ``calibrate``, ``alone``: as in ``partials``; ``workers`` share the work on it.

    A file that grew in the meantime is analysed as far as it was whole, and has a row in the diagnostics.
    """
    with bounded(), fetched(source) as local:
        files = local.paths()
        before = [_size(file) for file in files]
        profile = read_process(local, workers)
        shown = [f"{path}:{local.member}" if local.member else str(path) for path in files]
        told = replace(profile, metadata={**profile.metadata, "source": shown})
        part = partials(told, calibrate=calibrate, alone=alone, workers=workers)
        for file, size in zip(files, before, strict=True):
            if (now := _size(file)) != size:
                part.diagnostics.append(_changed(str(file), size, now))
        if (why := refused()) is not None:
            part.diagnostics.append(_in_memory(str(files[0]), why))
        run = profile.metadata.get("run") or {}
        index, count = run.get("process_index"), run.get("process_count")
        endpoints = Endpoints(
            key=source.key,
            host=profile.host,
            process_index=index if isinstance(index, int) else None,
            run_file=None if local.run_file is None else local.shown(str(local.run_file)),
            trace=_trace_of(local, profile),
            process_count=count if isinstance(count, int) else None,
            captured_ns=_captured_ns(profile),
            job=part.job,
            clock_samples=part.answers["clock_samples"],
        )
        part.process["source"] = [local.shown(file) for file in shown]
        part.diagnostics = [
            {**row, "file": local.shown(row["file"]), "message": local.shown(row["message"])}
            for row in part.diagnostics
        ]
    return part, endpoints


def _trace_of(source: Fetched, profile: Profile) -> str | None:
    if source.saved is not None:
        return str(source.saved)
    return None if source.trace is None else source.shown(str(profile.metadata.get("file") or source.trace))


def _captured_ns(profile: Profile) -> tuple[int, int] | None:
    start, end = (profile.origin_ns + edge // 1000 for edge in (profile.capture_start_ps, profile.capture_end_ps))
    return (start, end) if profile.origin_ns else None


def solve(endpoints: Sequence[Endpoints]) -> Solution:
    """What only all processes together can say. The order of ``endpoints`` does not matter.

    Hosts of one name get their source's key added. Raises BadInputError where two processes have one index: they are
    two runs, and their average would be nobody's.
    """
    ordered, rows = one_of_each_rank(sorted(endpoints, key=lambda e: e.key))
    rows += captures_apart(ordered)
    seen: dict[int, str] = {}
    for process in ordered:
        index, file = process.process_index, process.run_file
        if index is None or file is None:
            continue
        if index in seen:
            both = " and ".join(sorted((seen[index], file)))
            raise BadInputError(both, "", f"are two runs, both with a process {index}: name one of them")
        seen[index] = file
    count = Counter(process.host for process in ordered)
    of = {e.key: Solved(e.host if count[e.host] == 1 else f"{e.host}:{e.key}") for e in ordered}
    return Solution(of, _solved_job(ordered, of), tuple(rows))


def _solved_job(endpoints: Sequence[Endpoints], of: Mapping[str, Solved]) -> Job | None:
    parts, samples = [], []
    for e in sorted(endpoints, key=lambda e: _order(e.process_index, of[e.key].host)):
        if e.job is None or e.clock_samples is None:
            return None
        parts.append(renamed(e.job, of[e.key].host))
        samples.append(_renamed(e.clock_samples, of[e.key].host))
    return Job.of(parts, pa.concat_tables(samples))


def second_pass(part: Partials, solved: Solved) -> Partials:
    """The partials with what was solved put in."""
    before = part.process["host"]
    if solved == Solved(before):
        return part
    return Partials(
        process={**part.process, "host": solved.host},
        answers={name: _renamed(table, solved.host) for name, table in part.answers.items()},
        stored={name: _renamed(table, solved.host) for name, table in part.stored.items()},
        # Rows about no file in particular name the host.
        diagnostics=[{**r, "file": solved.host if r["file"] == before else r["file"]} for r in part.diagnostics],
        job=renamed(part.job, solved.host),
        detail=part.detail,
    )


def partials(profile: Profile, *, calibrate: bool = False, alone: bool = False, workers: Workers = ALONE) -> Partials:
    """Join one process and reduce it to its partials.

    ``calibrate``: whether this machine's CPU may be measured, if it is the one that was profiled (hlo/cpu_peaks.py).
    ``alone``: whether it is the only process of its job, so that details that only others ask for are left out.
    ``workers`` share the questions.
    """
    joined = join_profile(with_peaks(profile, os.environ, calibrate=calibrate), workers)
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
        "format": joined.metadata.get("format"),
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
    job, detail = process_part(joined, run.get("process_index"), alone=alone)
    begun = sorted(QUESTIONS, key=lambda name: name not in LONGEST)
    found = workers.run([partial(QUESTIONS[name].partial, joined) for name in begun])
    answers = dict(zip(begun, found, strict=True))
    return Partials(
        process=process,
        answers={name: answers[name] for name in QUESTIONS},
        stored={name: _with_host(joined[name], joined.host) for name in STORED},
        diagnostics=joined["diagnostics"].to_pylist(),
        job=job,
        detail=detail,
    )


def process_order(process: Mapping[str, Any]) -> tuple[int, str]:
    """The order of processes in every result: by index, then by name."""
    return _order(process["process_index"], process["host"])


def _order(index: Any, host: str) -> tuple[int, str]:
    return index if isinstance(index, int) else 1 << 30, host


def unreadable(error: BadInputError) -> dict[str, Any]:
    """The diagnostics row of a process that is left out."""
    row = {"file": error.file, "place": error.place, "count": 1, "message": error.reason}
    return {"severity": "error", "code": "unreadable", **row}


def none_readable(failures: Sequence[BadInputError]) -> BadInputError:
    """The error where no process of a job could be read."""
    first = failures[0]
    if len(failures) == 1:
        return first
    return BadInputError(first.file, first.place, f"{first.reason} ({len(failures)} files, none could be read)")


_PLAIN = ("key", "host", "process_index", "run_file", "trace", "process_count", "captured_ns")


def as_json(endpoints: Endpoints) -> dict[str, Any]:
    """Endpoints as a JSON object; Endpoints(**that) is them again, without ``job`` and ``clock_samples``."""
    return {name: getattr(endpoints, name) for name in _PLAIN}


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _in_memory(file: str, why: str) -> dict[str, Any]:
    message = f"columns that should lie in files were in memory: {why} ({FOLDER} names another folder)"
    return {"severity": "note", "code": "columns_in_memory", "file": file, "place": "", "count": 1, "message": message}


def _changed(file: str, before: int, now: int) -> dict[str, Any]:
    what = f"grew from {before} to {now} bytes" if now > before else f"went from {before} to {now} bytes"
    message = f"the file {what} while it was read: what was whole then is analysed. Analyse again when it is finished"
    row = {"file": file, "place": f"byte {before}", "count": 1, "message": message}
    return {"severity": "warning", "code": "changed_while_read", **row}


def _renamed(table: pa.Table, host: str) -> pa.Table:
    index = table.schema.get_field_index("host")
    if index < 0:
        return table
    field = table.schema.field(index)
    return table.set_column(index, field, pc.cast(pa.repeat(pa.scalar(host), table.num_rows), field.type))


def _with_host(table: pa.Table, host: str) -> pa.Table:
    return table.add_column(
        0, pa.field("host", pa.string(), nullable=False), pa.repeat(pa.scalar(host), table.num_rows)
    )
