"""The run store: what stays of every run of a fleet, as Parquet files that any tool reads.

    STORE/day=2026-11-30/<key>.parquet    one file per run, in the folder of the UTC day on which it started; a day's
                                          files are put together when they are many (store_files.py)
    STORE/failed/<key>.json               a run that could not be analysed: file, place, reason

A file has one row per host, step name and class, over the steps that count (docs/breakdown.md): picoseconds summed over
lanes and steps. <key> is a hash of job and run name, so adding a run again replaces it. Files come by a rename.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.errors import BadInputError, UsageError
from xprof_py.postprocess.analyses import breakdown
from xprof_py.postprocess.fleet.analysis import Analysis, analyse_sources
from xprof_py.postprocess.fleet.run_job import BadInput, Progress, analyse_job
from xprof_py.postprocess.fleet.schedulers import Failed, Scheduler, Task
from xprof_py.postprocess.fleet.spool import FOLDER, Spool
from xprof_py.postprocess.fleet.store_files import MANY_FILES, compact, key_of_run, put_run, read_runs, write_file
from xprof_py.postprocess.readers.sources import Sources, find_sources, folders_of_runs
from xprof_py.postprocess.rules.power_words import UJ_PER_J
from xprof_py.postprocess.schema import CLASSES

MANY_PROCESSES = 16
"""A run of more is analysed process by process, by all workers; one of fewer is one task."""
_UNKNOWN_DAY = "unknown"

SCHEMA = pa.schema(
    [
        ("job", pa.string()),
        ("run", pa.string()),
        # Of the capture, UTC; null where no file says so.
        ("started_ns", pa.int64()),
        ("host", pa.string()),
        ("process_index", pa.int64()),
        # Null, with all that follows but the bottleneck, for a host without a step that counts.
        ("step_name", pa.string()),
        ("steps", pa.int64()),
        ("lanes", pa.int64()),
        # The median step of the host.
        ("step_ps", pa.int64()),
        # Of all lanes and steps: the sum of exclusive_ps over the classes.
        ("window_ps", pa.int64()),
        ("class", pa.string()),
        ("exclusive_ps", pa.int64()),
        ("bottleneck", pa.string()),
        ("xprof_py", pa.string()),
        ("source", pa.string()),
        # Of the run: energy of all sampled devices in one step of this name, and how far it can be off at most; null
        # where the summary's `power` does not know it. Files of before have no such columns: null too.
        ("step_energy_uj", pa.int64()),
        ("step_energy_error_uj", pa.int64()),
    ]
)


@dataclass(frozen=True)
class RunFolder:
    """One run below a ROOT."""

    job: str
    run: str
    path: Path

    @property
    def key(self) -> str:
        return key_of_run(self.job, self.run)


def find_runs(root: Path, *, job: str | None = None) -> list[RunFolder]:
    """The runs below ``root``: run folders and folders that hold profiles, each by its place.

    A run's name is that of its folder; its job is the path from ``root`` to it, or ``root``'s own name where that is
    empty, or ``job``. Raises BadInputError where there is none.
    """
    if not root.is_dir():
        raise BadInputError(str(root), "", "no such folder")
    root = root.resolve()
    out = []
    for path in folders_of_runs(root):
        above = path.parent.relative_to(root) if path != root else Path()
        own = root.parent.name if path == root else root.name
        out.append(RunFolder(job or (above.as_posix() if above.parts else own), path.name, path))
    if not out:
        raise BadInputError(str(root), "", "holds no run: neither run folders nor folders of profiles")
    return out


def add_runs(
    store: Path,
    runs: Sequence[RunFolder],
    scheduler: Scheduler,
    *,
    progress: Progress = lambda what, done, of: None,
) -> list[dict[str, Any]]:
    """Analyse runs and put them into ``store``; returns what failed, as {job, run, file, place, reason}.

    Raises UsageError where ``store`` is something else or two runs have one name, OSError where it cannot be written.
    """
    require_store(store)
    by_key: dict[str, RunFolder] = {}
    for run in runs:
        if (other := by_key.setdefault(run.key, run)).path != run.path:
            raise UsageError(f"{other.path} and {run.path} are both run {run.run} of job {run.job}: add them apart")
    runs = sorted(by_key.values(), key=lambda run: (run.job, run.run))
    store.mkdir(parents=True, exist_ok=True)
    failed: list[dict[str, Any]] = []
    sources: dict[RunFolder, Sources] = {}
    for run in runs:
        try:
            sources[run] = find_sources([run.path])
        except BadInputError as error:
            failed.append(_failed(store, run, BadInput((error.file, error.place, error.reason))))
    done = 0
    large = [run for run in sources if len(sources[run].processes) > MANY_PROCESSES]
    small = [run for run in sources if len(sources[run].processes) <= MANY_PROCESSES]
    tasks: list[Task] = [(run, sources[run]) for run in small]
    for place, result in scheduler.run(rows_of_run, tasks):
        done += 1
        progress("analysing", done, len(runs))
        if isinstance(result, Failed | BadInput):
            failed.append(_failed(store, small[place], result))
        else:
            _put(store, small[place], result)
    for run in large:
        spool = Spool((store / FOLDER / run.key).absolute())
        try:
            # A fleet that was killed goes on within its large runs.
            result = analyse_job(sources[run], spool, scheduler, resume=True)
        except BadInputError as error:
            failed.append(_failed(store, run, BadInput((error.file, error.place, error.reason))))
        else:
            _put(store, run, rows_of(run, result))
            spool.keep_only([])
            spool.folder.rmdir()
        done += 1
        progress("analysing", done, len(runs))
    compact(store, SCHEMA)
    return sorted(failed, key=lambda row: (row["job"], row["run"]))


def rows_of_run(run: RunFolder, sources: Sources) -> pa.Table | BadInput:
    """The rows of a run of few processes."""
    try:
        return rows_of(run, analyse_sources(sources))
    except BadInputError as error:
        return BadInput((error.file, error.place, error.reason))


def rows_of(run: RunFolder, result: Analysis) -> pa.Table:
    """The rows of an analysed run (SCHEMA), sorted by host, step name and class."""
    merged, table = result.tables["breakdown"], result.tables["step_classes"]
    phases = breakdown.used_phases(merged)
    used = table.filter(pc.and_(pc.equal(table["kind"], "step"), pc.is_in(table["phase"], pa.array(phases))))
    verdict = result.summary["verdict"] or {}
    capture = result.summary["capture"] or {}
    same = {
        "job": run.job,
        "run": run.run,
        "started_ns": capture.get("started_ns"),
        "bottleneck": verdict.get("bottleneck"),
        "xprof_py": capture.get("xprof_py"),
        "source": str(run.path),
    }
    power = result.summary["power"]
    rows = []
    for host in sorted(result.summary["hosts"], key=lambda h: h["host"]):
        of_host = {**same, "host": host["host"], "process_index": host["process_index"]}
        mine = used.filter(pc.equal(used["host"], host["host"]))
        of_all_phases = table.filter(pc.equal(table["host"], host["host"]))
        if not mine.num_rows:
            rows.append(of_host)
        for name in sorted(set(mine["name"].to_pylist())):
            steps = mine.filter(pc.equal(mine["name"], name))
            times = sorted(breakdown.step_times_ps(of_all_phases, phases, name))
            measured = {
                "step_name": name,
                "steps": len(times),
                "lanes": len(steps["lane"].unique()),
                "step_ps": times[(len(times) - 1) // 2],
                "window_ps": pc.sum(steps["window_ps"]).as_py(),
                **(_step_energy(power) if power and power["name"] == name else {}),
            }
            rows += [
                {**of_host, **measured, "class": c, "exclusive_ps": pc.sum(steps[f"{c}_ps"]).as_py()} for c in CLASSES
            ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _step_energy(power: Mapping[str, Any]) -> dict[str, int | None]:
    """The columns of a run's energy from its summary's `power`."""
    joules = {"step_energy_uj": power["joules_per_step"], "step_energy_error_uj": power["joules_per_step_error"]}
    return {column: None if value is None else round(value * UJ_PER_J) for column, value in joules.items()}


def require_store(store: Path) -> None:
    """Raises UsageError where ``store`` exists and is no store of runs."""
    if store.exists() and not (store.is_dir() and all(is_of_store(entry.name) for entry in store.iterdir())):
        raise UsageError(f"{store} exists and is not a store of runs: name another folder with -o")


def read_store(store: Path) -> tuple[pa.Table, list[dict[str, Any]]]:
    """(the rows of all runs, what failed). Sorted by job, start, run; then as rows_of sorts.

    Raises BadInputError where there is no store or a file of it cannot be read.
    """
    if not store.is_dir():
        raise BadInputError(str(store), "", "no such folder")
    tables = read_runs(store, SCHEMA)
    failed = [orjson.loads(file.read_bytes()) for file in sorted((store / "failed").glob("*.json"))]
    if not tables and not failed:
        raise BadInputError(str(store), "", "holds no run: `xprof-py fleet analyze ROOT -o STORE` adds some")
    order = [(name, "ascending") for name in ("job", "started_ns", "run")]
    return pa.concat_tables([SCHEMA.empty_table(), *tables]).sort_by(order), failed


def compact_store(store: Path, *, many: int = MANY_FILES) -> int:
    """store_files.compact for a folder that somebody named. Raises BadInputError and UsageError as the others do."""
    if not store.is_dir():
        raise BadInputError(str(store), "", "no such folder")
    require_store(store)
    return compact(store, SCHEMA, many=many)


def is_of_store(name: str) -> bool:
    """Whether a store has a file or folder of that name."""
    return name.startswith("day=") or name in ("failed", FOLDER)


def _put(store: Path, run: RunFolder, rows: pa.Table) -> None:
    started_ns = rows["started_ns"][0].as_py()
    day = _UNKNOWN_DAY if started_ns is None else datetime.fromtimestamp(started_ns / 1e9, UTC).date().isoformat()
    put_run(store, run.key, day, rows)
    (store / "failed" / f"{run.key}.json").unlink(missing_ok=True)


def _failed(store: Path, run: RunFolder, why: BadInput | Failed) -> dict[str, Any]:
    """Note a run that cannot be analysed. What an earlier analysis of it found stays."""
    file, place, reason = why if isinstance(why, BadInput) else (str(run.path), why.place, why.reason)
    row = {"job": run.job, "run": run.run, "file": file, "place": place, "reason": reason}
    write_file(store / "failed" / f"{run.key}.json", lambda path: path.write_bytes(orjson.dumps(row)))
    return row
