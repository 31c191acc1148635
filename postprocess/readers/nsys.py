"""SQLite exports of Nsight Systems (`nsys export --type sqlite`), to Profiles with the layout of GPU planes.

A report holds all processes that were profiled; each is a Profile of its own, as a rank is. What becomes of its tables:

- CUPTI_ACTIVITY_KIND_KERNEL, MEMCPY, MEMSET and GRAPH_TRACE lie on lines `Stream #N` of `/device:GPU:D`, with names as
  CUPTI's other users write them (`Memcpy HtoD (Pinned -> Device)`). SYNCHRONIZATION is no work and lies beside them.
- CUPTI_ACTIVITY_KIND_RUNTIME, the driver's calls, and NVTX_EVENTS lie on the host threads' lines. Calls and work carry
  `correlation_id`, which counts within one process: the join goes by it (join/device_launches.py).
- NVTX ranges are host spans. What `torch.autograd.profiler.emit_nvtx` wrote is work of a framework, without its numbers
  in the name. Steps are the ranges that say so (nsys_steps.py).

Times are ns since the session's start, whose UTC TARGET_INFO_SESSION_START_TIME has, or UTC already
(`--ts-normalize true`). A table or column that a version does not have is absent, and named where it is missed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.errors import BadInputError
from xprof_py.postprocess import schema
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.nsys_steps import VARIABLE, framework_ops, step_numbers
from xprof_py.postprocess.readers.sqlite_columns import ABSENT, Int64, SqliteColumns
from xprof_py.postprocess.schema import ArgKind, Kind

_Bool = npt.NDArray[np.bool_]

_ACTIVITY = "CUPTI_ACTIVITY_KIND_"
KERNEL, MEMCPY, MEMSET, GRAPH, SYNC, RUNTIME = (
    f"{_ACTIVITY}{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION", "RUNTIME")
)
NVTX = "NVTX_EVENTS"
_WORK = (KERNEL, MEMCPY, MEMSET, GRAPH)
EVENT_TABLES = (*_WORK, SYNC, RUNTIME, NVTX)
"""One of these makes a database an export of Nsight Systems."""

_COPIES = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "HtoD", "DtoH", "DtoD")
"""ENUM_CUDA_MEMCPY_OPER; the last three move unified memory."""
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
_SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_MARK, _PUSH_POP, _START_END = (34, 65), (59, 70), (60, 71)
"""NVTX_EVENTS.eventType: of NVTX, and of its text files."""
_API_VERSION = re.compile(r"_v\d{4,}$")
"""nsys adds the CUDA version that a call came with (`cudaLaunchKernel_v7000`)."""
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d+)|^(\d+)(?=[-_.])", re.I)
_FAR_NS = 25 * 86_400 * 10**9
"""25 days: what lies further than this from the middle of a report is not believed, and 64 bits hold the rest in ps."""
_ABSOLUTE_NS = 10**17


def nsys_processes(path: str | Path) -> list[int]:
    """Process ids in a report whose device work or, without any, host events it has; empty where it names no process.

    Raises BadInputError where the file is no export of Nsight Systems.
    """
    with SqliteColumns(path) as database:
        _require_events(database)
        return _processes(database)


def _require_events(database: SqliteColumns) -> None:
    if any(table in database.columns for table in EVENT_TABLES):
        return
    found = ", ".join(list(database.columns)[:5]) or "none"
    if "META_DATA_EXPORT" in database.columns:
        raise BadInputError(database.file, "", "is an export of Nsight Systems without kernels, calls or NVTX ranges")
    raise BadInputError(database.file, "", f"is an SQLite database, but no export of Nsight Systems (tables: {found})")


def _processes(database: SqliteColumns) -> list[int]:
    for tables, owner in ((_WORK, "globalPid"), ((RUNTIME, NVTX), "globalTid")):
        found = {pid for table in tables for pid in database.distinct(table, owner, f"({owner} >> 24) & {0xFFFFFF}")}
        if found:
            return sorted(found)
    return []


def read_nsys(path: str | Path, member: str = "", *, step_range: str = "") -> Profile:
    """Read one process of a report; ``member``: its process id, not needed where the report has one.

    ``step_range``: a regular expression; NVTX ranges whose name it matches whole are the steps, numbered by its first
    group or, without one, in order. Returns a Profile with the tables lines, events, args, texts and diagnostics.
    ``metadata["run"]`` has the `process_index` where the file of a single process says it in its name.

    Raises BadInputError where the file cannot be read, is no export of Nsight Systems or holds no event.
    """
    with SqliteColumns(path) as database:
        _require_events(database)
        processes = _processes(database)
        if member and member not in map(str, processes):
            raise BadInputError(str(path), "", f"holds no process {member}")
        return _Reader(database, Path(path), member, processes, step_range).profile()


@dataclass
class _Rows:
    """Rows of one table. ``name`` counts in ``names``; ``args``: argument -> value, ABSENT without."""

    start_ns: Int64
    end_ns: Int64
    line: list[tuple[int, str, int, str]]
    """(sort, plane, line id, name) of each line that ``line_of`` counts in."""
    line_of: Int64
    names: pa.StringArray
    name: Int64
    kind: npt.NDArray[np.uint8]
    args: dict[str, Int64]


class _Reader:
    def __init__(self, database: SqliteColumns, path: Path, member: str, processes: list[int], step_range: str) -> None:
        self.database, self.path, self.step_range = database, path, step_range
        self.pid = int(member) if member else (processes[0] if len(processes) == 1 else None)
        self.processes, self.alone = processes, len(processes) <= 1
        self.file = f"{path}:{member}" if member else str(path)
        self.stem = path.name.removesuffix(".gz").removesuffix(".sqlite")
        self.diagnostics: list[dict[str, Any]] = []
        ids, values = database.rows("StringIds", ["id"], "value")
        order = np.argsort(ids["id"], kind="stable")
        self.string_ids, self.strings = ids["id"][order], values.take(pa.array(order))

    def say(self, severity: str, code: str, message: str, *, count: int = 1, place: str = "") -> None:
        row = {"severity": severity, "code": code, "file": self.file, "place": place, "count": count}
        self.diagnostics.append({**row, "message": message})

    # --- tables ----------------------------------------------------------------------------------------------------

    def rows_of(
        self, table: str, owner: str, columns: tuple[str, ...], text: str = ""
    ) -> tuple[dict[str, Int64], pa.StringArray]:
        """Integer columns of the process's rows and one of text. ``owner``: the column that names the process."""
        if table not in self.database.columns:
            return {name: np.empty(0, np.int64) for name in (owner, *columns)}, pa.array([], pa.string())
        where = ""
        if owner in self.database.columns[table] and self.pid is not None:
            mine = f"(({owner} >> 24) & {0xFFFFFF}) = {self.pid}"
            where = f"({mine} or {owner} is null)" if self.alone else mine
        missing = [name for name in columns if name in _NEEDED and name not in self.database.columns[table]]
        if missing:
            message = f"the table has no column {', '.join(missing)}: {_NEEDED[missing[0]]}"
            self.say("warning", "missing_columns", message, count=len(missing), place=table)
        return self.database.rows(table, (owner, *columns), text, where)

    def named(self, ids: Int64, fallback: str) -> tuple[pa.StringArray, Int64]:
        """(names, code per row) of rows of StringIds."""
        used, code = np.unique(ids, return_inverse=True)
        place = np.minimum(np.searchsorted(self.string_ids, used), max(len(self.string_ids) - 1, 0))
        known = self.string_ids[place] == used if len(self.string_ids) else np.zeros(len(used), np.bool_)
        names = self.strings.take(pa.array(np.where(known, place, 0), mask=~known)) if len(self.strings) else None
        if names is None:
            names = pa.nulls(len(used), pa.string())
        lost = int((~known[code]).sum()) if len(code) else 0
        if lost:
            message = "names that the table StringIds does not have"
            self.say("warning", "missing_strings", message, count=lost, place=fallback)
        return pc.fill_null(names, f"unknown {fallback}"), code.reshape(-1).astype(np.int64)

    # --- device ----------------------------------------------------------------------------------------------------

    def streams(self, columns: dict[str, Int64], work: bool) -> tuple[list[tuple[int, str, int, str]], Int64]:
        keys = np.stack([np.maximum(columns[name], 0) for name in ("deviceId", "contextId", "streamId")], axis=1)
        found, line_of = np.unique(keys, axis=0, return_inverse=True)
        lines = []
        for device, context, stream in found.tolist():
            many = len(self.contexts.get(device, ())) > 1
            name = (
                f"Stream #{stream}"
                if work
                else "not work, all streams"
                if stream >= 0xFFFFFFFF
                else f"not work, {stream}"
            )
            name += f" (context {context})" if many else ""
            lines.append((2 if work else 1, f"/device:GPU:{device}", stream, name))
        return lines, line_of.reshape(-1).astype(np.int64)

    def work(self) -> list[_Rows]:
        where = ("deviceId", "contextId", "streamId", "start", "end", "correlationId")
        wanted = {
            KERNEL: ("demangledName", "shortName", "mangledName", "graphNodeId"),
            MEMCPY: ("bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId", "graphNodeId"),
            MEMSET: ("bytes", "memKind", "graphNodeId"),
            GRAPH: ("graphId", "graphExecId"),
            SYNC: ("syncType",),
        }
        read = {table: self.rows_of(table, "globalPid", (*where, *more))[0] for table, more in wanted.items()}
        self.contexts: dict[int, set[int]] = {}
        for table in _WORK:
            pairs = np.unique(np.stack([read[table][n] for n in ("deviceId", "contextId")], axis=1), axis=0)
            for device, context in pairs.tolist():
                self.contexts.setdefault(max(device, 0), set()).add(context)
        # A wait of the driver's names device 0, whatever device its context is of.
        of_context = {context: device for device, contexts in self.contexts.items() for context in contexts}
        sync = read[SYNC]
        contexts, place = np.unique(sync["contextId"], return_inverse=True)
        known = np.array([of_context.get(context, -1) for context in contexts.tolist()], np.int64)[place.reshape(-1)]
        sync["deviceId"] = np.where(known >= 0, known, sync["deviceId"])
        return [self._work_of(table, columns) for table, columns in read.items() if len(columns["start"])]

    def _work_of(self, table: str, columns: dict[str, Int64]) -> _Rows:
        args = {"correlation_id": np.where(columns["correlationId"] > 0, columns["correlationId"], ABSENT)}
        if table == KERNEL:
            best = columns["demangledName"]
            for other in ("shortName", "mangledName"):
                best = np.where(best == ABSENT, columns[other], best)
            names, name = self.named(best, "kernel")
        elif table == MEMCPY:
            names, name = _copy_names(columns)
            args["bytes"] = columns["bytes"]
        elif table == MEMSET:
            names, name = _texts_of(columns["memKind"], lambda kind: f"Memset ({_of(_MEMORY, kind)})")
        elif table == GRAPH:
            names, name = _texts_of(columns["graphId"], "CUDA graph {}".format)
            args |= {"cuda_graph_id": columns["graphId"], "cuda_graph_exec_id": columns["graphExecId"]}
        else:
            names, name = _texts_of(columns["syncType"], lambda kind: _SYNCS.get(kind, "Sync"))
            # A wait is no work that a call launched.
            args = {}
        if "graphNodeId" in columns:
            args["cuda_graph_node_id"] = np.where(columns["graphNodeId"] > 0, columns["graphNodeId"], ABSENT)
        lines, line_of = self.streams(columns, work=table != SYNC)
        kind = np.full(len(name), int(Kind.PLAIN), np.uint8)
        return _Rows(columns["start"], columns["end"], lines, line_of, names, name, kind, args)

    # --- host ------------------------------------------------------------------------------------------------------

    def threads(self, of: Int64) -> tuple[list[tuple[int, str, int, str]], Int64]:
        found, line_of = np.unique(of, return_inverse=True)
        lines = []
        for thread in found.tolist():
            number = thread & 0xFFFFFF if thread > 0 else -1
            lines.append((0, "/host:CPU", number, self.thread_names.get(thread, str(number))))
        return lines, line_of.reshape(-1).astype(np.int64)

    def _thread_names(self) -> dict[int, str]:
        columns = self.database.integers("ThreadNames", ["globalTid", "nameId"])
        if not len(columns["globalTid"]):
            return {}
        names, code = self.named(columns["nameId"], "thread")
        return dict(zip(columns["globalTid"].tolist(), names.take(pa.array(code)).to_pylist(), strict=True))

    def calls(self) -> _Rows | None:
        columns, _ = self.rows_of(RUNTIME, "globalTid", ("start", "end", "nameId", "correlationId"))
        if not len(columns["start"]):
            return None
        names, name = self.named(columns["nameId"], "call")
        names = pa.array([_API_VERSION.sub("", text) for text in names.to_pylist()], pa.string())
        lines, line_of = self.threads(columns["globalTid"])
        args = {"correlation_id": np.where(columns["correlationId"] > 0, columns["correlationId"], ABSENT)}
        kind = np.full(len(name), int(Kind.PLAIN), np.uint8)
        return _Rows(columns["start"], columns["end"], lines, line_of, names, name, kind, args)

    def ranges(self) -> _Rows | None:
        wanted = ("start", "end", "eventType", "textId", "endGlobalTid", "int64Value", "uint64Value")
        columns, texts = self.rows_of(NVTX, "globalTid", (*wanted, "int32Value", "uint32Value"), "text")
        if not len(columns["start"]):
            return None
        event_type = columns["eventType"]
        mark = np.isin(event_type, _MARK)
        shown = np.flatnonzero(mark | np.isin(event_type, (*_PUSH_POP, *_START_END)))
        columns = {key: value[shown] for key, value in columns.items()}
        mark = mark[shown]
        own = texts.take(pa.array(shown)).dictionary_encode()
        registered = np.asarray(own.indices.is_null())
        names, name = self.named(np.where(registered, columns["textId"], ABSENT)[registered], "range")
        code = np.zeros(len(shown), np.int64)
        code[registered] = name + len(own.dictionary)
        code[~registered] = np.asarray(own.indices.drop_null())
        names = pa.concat_arrays([own.dictionary, names])
        payload = np.full(len(shown), ABSENT, np.int64)
        for key in ("int64Value", "uint64Value", "int32Value", "uint32Value"):
            payload = np.where(payload == ABSENT, columns[key], payload)
        ops = framework_ops(names)
        steps = step_numbers(names, code, columns["start"], payload, ~mark, self.step_range)
        kind = np.where(ops.is_op[code], int(Kind.HOST_OP), int(Kind.PLAIN)).astype(np.uint8)
        kind[mark], kind[steps.number >= 0] = int(Kind.MARK), int(Kind.STEP)
        if not (steps.number >= 0).any():
            message = f"no NVTX range has the name of a step: {VARIABLE} can name one, as a regular expression"
            self.say("note", "no_step_ranges", message, place=NVTX)
        args = {
            "step_num": np.where(steps.number >= 0, steps.number, ABSENT),
            "op_id": np.where(mark, ABSENT, ops.op_id[code]),
            "seq": np.where(mark, ABSENT, ops.seq[code]),
        }
        names = pa.concat_arrays([ops.names, pa.array(steps.names, pa.string())])
        code = np.where(steps.number >= 0, steps.name + len(ops.names), code)
        lines, line_of = self._range_lines(columns)
        end_ns = np.where(mark, columns["start"], columns["end"])
        return _Rows(columns["start"], end_ns, lines, line_of, names, code, kind, args)

    def _range_lines(self, columns: dict[str, Int64]) -> tuple[list[tuple[int, str, int, str]], Int64]:
        """Ranges that end on another thread than they began on are on a line of their own: they do not nest there."""
        thread, ends_on = columns["globalTid"], columns["endGlobalTid"]
        apart = np.isin(columns["eventType"], _START_END) & (ends_on > 0) & (ends_on != thread)
        lines, line_of = self.threads(thread)
        if apart.any():
            lines = [*lines, (0, "/profiler:NVTX", 0, "ranges between threads")]
            line_of = np.where(apart, len(lines) - 1, line_of)
        return lines, line_of

    # --- together --------------------------------------------------------------------------------------------------

    def profile(self) -> Profile:
        self.thread_names = self._thread_names()
        parts = [*self.work(), *(part for part in (self.calls(), self.ranges()) if part is not None)]
        if not parts:
            raise BadInputError(self.file, "", "holds no event of this process")
        lines = sorted({line for part in parts for line in part.line}, key=lambda line: (line[1], line[2], line[3]))
        row_of = {line: row for row, line in enumerate(lines)}
        line = np.concatenate([np.array([row_of[x] for x in p.line], np.int64)[p.line_of] for p in parts])
        start_ns, end_ns = (np.concatenate([getattr(p, name) for p in parts]) for name in ("start_ns", "end_ns"))
        kind = np.concatenate([p.kind for p in parts])
        is_work = np.array([x[0] == 2 for x in lines], np.bool_)[line]
        offsets = np.cumsum([0, *(len(p.names) for p in parts)])
        encoded = pa.concat_arrays([p.names for p in parts]).dictionary_encode()
        texts = np.concatenate([p.name + offset for p, offset in zip(parts, offsets.tolist(), strict=False)])
        # In the order of the names, so that equal intervals come in one order whatever that of the file.
        by_name = np.asarray(pc.sort_indices(encoded.dictionary)).astype(np.int64)
        rank = np.empty(len(by_name), np.int64)
        rank[by_name] = np.arange(len(by_name))
        name, dictionary = rank[np.asarray(encoded.indices)[texts]], encoded.dictionary.take(pa.array(by_name))
        kept, origin_ns, start_ps, duration_ps = self._times(start_ns, end_ns, is_work)
        longest_first = -np.where(duration_ps < 0, np.iinfo(np.int64).max, duration_ps)
        order = np.lexsort((name[kept], longest_first, start_ps, line[kept]))
        kept, start_ps, duration_ps = kept[order], start_ps[order], duration_ps[order]
        self._say_what_was_lost(kept, is_work)
        tables = {
            "lines": self._lines_table(lines),
            "events": schema.table(
                "events",
                {
                    "line": line[kept].astype(np.int32),
                    "name": pa.DictionaryArray.from_arrays(pa.array(name[kept].astype(np.int32)), dictionary),
                    "kind": kind[kept],
                    "start_ps": start_ps,
                    "duration_ps": pa.array(duration_ps, mask=duration_ps < 0),
                },
            ),
            "args": _args_table(parts, kept),
            "texts": schema.empty("texts"),
        }
        tables["diagnostics"] = pa.Table.from_pylist(self.diagnostics, schema=schema.TABLES["diagnostics"])
        process_index = self._rank()
        return Profile(
            host=f"rank{process_index}"
            if process_index is not None
            else self.stem
            if self.alone
            else f"{self.stem}:{self.pid}",
            origin_ns=origin_ns,
            capture_start_ps=0,
            capture_end_ps=int((start_ps + np.maximum(duration_ps, 0)).max(initial=0)),
            tables=tables,
            metadata={
                "format": "nsys",
                "file": self.file,
                "run": {"process_index": process_index, "process_count": None, "versions": self._versions()},
            },
        )

    def _lines_table(self, lines: list[tuple[int, str, int, str]]) -> pa.Table:
        return schema.table(
            "lines",
            {
                "plane": [plane for _, plane, _, _ in lines],
                "name": [name for *_, name in lines],
                "line_id": [number for _, _, number, _ in lines],
                "thread_id": pa.nulls(len(lines), pa.int64()),
                "source": ["nsys"] * len(lines),
                "clock_domain": [f"{self.path.name}/session"] * len(lines),
            },
        )

    def _times(self, start_ns: Int64, end_ns: Int64, is_work: _Bool) -> tuple[Int64, int, Int64, Int64]:
        """(rows whose time can be believed, origin in ns, starts in ps since it, durations in ps, -1 while open)."""
        timeless = start_ns == ABSENT
        empty = is_work & ~timeless & ((end_ns == ABSENT) | ((start_ns == 0) & (end_ns == 0)))
        known = ~timeless & ~empty
        middle = int(np.median(start_ns[known])) if known.any() else 0
        low, high = max(middle - _FAR_NS, -(1 << 62)), min(middle + _FAR_NS, 1 << 62)
        ends = np.where(end_ns == ABSENT, start_ns, end_ns)
        far = known & ((start_ns < low) | (start_ns > high) | (ends < low) | (ends > high))
        good = np.flatnonzero(known & ~far)
        backwards = int((ends[good] < start_ns[good]).sum())
        for count, severity, code, message in (
            (int(timeless.sum()), "error", "event_without_time", "events that state no time are left out"),
            (int(empty.sum()), "error", "work_without_time", "kernels and copies without an end are left out"),
            (int(far.sum()), "error", "time_out_of_range", "events more than 25 days from the others are left out"),
            (backwards, "warning", "negative_duration", "events that end before they start, taken as instants"),
        ):
            if count:
                self.say(severity, code, message, count=count)
        if not len(good):
            raise BadInputError(self.file, "", "holds no event with a time")
        first_ns = int(start_ns[good].min())
        duration_ps = np.where(end_ns[good] == ABSENT, -1, np.maximum(ends[good] - start_ns[good], 0) * 1000)
        return good, self._origin_ns(first_ns), (start_ns[good] - first_ns) * 1000, duration_ps

    def _origin_ns(self, first_ns: int) -> int:
        if first_ns >= _ABSOLUTE_NS:
            return first_ns
        began = self.database.integers("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])["utcEpochNs"]
        began = began[began > 0]
        if len(began):
            return int(began[0]) + first_ns
        message = "the report does not say when its session began: its times cannot be set against other hosts"
        self.say("warning", "no_absolute_time", message)
        return 0

    def _say_what_was_lost(self, kept: Int64, is_work: _Bool) -> None:
        database = self.database
        for table, read, reason in database.broken:
            message = f"the table breaks off ({reason}): {read} rows of it could be read"
            self.say("error", "damaged", message, count=read, place=table)
        for table, lost in database.lost:
            self.say(
                "error", "damaged_rows", "rows with values that are no integers are left out", count=lost, place=table
            )
        if self.path.with_name(self.path.name + "-wal").exists():
            message = "a log of changes lies beside the file (-wal): what is in it is not read"
            self.say("warning", "unfinished_export", message)
        if not is_work[kept].any():
            absent = [table for table in _WORK[:2] if table not in database.columns]
            message = f"no device work{': the report has no table ' + ' and '.join(absent) if absent else ''}"
            self.say("warning", "no_device_work", message)
        elif RUNTIME not in database.columns:
            message = "the report has no table of the driver's calls: what launched the device's work is not known"
            self.say("warning", "no_driver_calls", message, place=RUNTIME)
        if self.processes and self.pid == self.processes[0]:
            self._say_what_nobody_has()

    def _say_what_nobody_has(self) -> None:
        """Rows of processes that are no Profile, and of none: once per report, by its first process."""
        ours = ", ".join(map(str, self.processes))
        for table in EVENT_TABLES:
            owner = "globalTid" if table in (RUNTIME, NVTX) else "globalPid"
            if owner not in self.database.columns.get(table, ()):
                continue
            others = f"(({owner} >> 24) & {0xFFFFFF}) not in ({ours})"
            count = self.database.count(table, others if self.alone else f"{owner} is null or {others}")
            if count and table in _WORK:
                message = "kernels and copies that name none of the report's processes are left out"
                self.say("error", "work_without_process", message, count=count, place=table)
            elif count:
                message = "events of processes without device work, or of none, are left out"
                self.say("note", "other_processes", message, count=count, place=table)

    def _rank(self) -> int | None:
        found = _RANK_IN_NAME.search(self.stem) if self.alone else None
        return int(found[1] or found[2]) if found else None

    def _versions(self) -> dict[str, str]:
        names, values = (self.database.rows("META_DATA_EXPORT", (), column)[1] for column in ("name", "value"))
        found = dict(zip(names.to_pylist(), values.to_pylist(), strict=False))
        wanted = {"nsys": "EXPORT_PRODUCT_VERSION", "nsys_schema": "EXPORT_SCHEMA_VERSION"}
        return {key: found[name] for key, name in wanted.items() if found.get(name)}


_NEEDED = {
    "correlationId": "its rows cannot be joined to what launched them",
    "demangledName": "the short names of kernels are shown",
    "nameId": "the calls have no names",
    "deviceId": "device 0 is taken",
    "eventType": "its rows are not read",
    "start": "its rows have no time",
    "end": "its rows have no end",
}
"""Columns that every version has, and what is missed without them."""


def _of(texts: tuple[str, ...], code: int) -> str:
    return texts[code] if 0 <= code < len(texts) else "Unknown"


def _texts_of(codes: Int64, text_of: Any) -> tuple[pa.StringArray, Int64]:
    found, place = np.unique(codes, return_inverse=True)
    return pa.array([text_of(code) for code in found.tolist()], pa.string()), place.reshape(-1).astype(np.int64)


def _copy_names(columns: dict[str, Int64]) -> tuple[pa.StringArray, Int64]:
    """`Memcpy HtoD (Pinned -> Device)`; what goes from one device to another is a PtoP, whatever its kind."""
    source, target = columns["srcDeviceId"], columns["dstDeviceId"]
    between = (source != ABSENT) & (target != ABSENT) & (source != target) & (columns["copyKind"] == 8)
    kind = np.where(between, 10, columns["copyKind"])
    kinds, place = np.unique(np.stack((kind, columns["srcKind"], columns["dstKind"]), 1), axis=0, return_inverse=True)
    names = []
    for way, source_kind, target_kind in kinds.tolist():
        said = [_of(_MEMORY, code) for code in (source_kind, target_kind)]
        head = f"Memcpy {_of(_COPIES, way)}".rstrip()
        names.append(f"{head} ({' -> '.join(said)})" if said != ["Unknown"] * 2 else head)
    return pa.array(names, pa.string()), place.reshape(-1).astype(np.int64)


def _args_table(parts: list[_Rows], kept: Int64) -> pa.Table:
    """Arguments of the rows ``kept`` of all parts, sorted by event; all are integers."""
    keys = sorted({key for part in parts for key in part.args})
    row = np.full(sum(len(part.name) for part in parts), -1, np.int64)
    row[kept] = np.arange(len(kept))
    owners, codes, values, at = [], [], [], 0
    for part in parts:
        for key, value in part.args.items():
            mine = np.flatnonzero(value != ABSENT)
            owner = row[at + mine]
            mine, owner = mine[owner >= 0], owner[owner >= 0]
            owners.append(owner)
            values.append(value[mine])
            codes.append(np.full(len(mine), keys.index(key), np.int32))
        at += len(part.name)
    none = [np.empty(0, np.int64)]
    owner, value = np.concatenate(owners or none), np.concatenate(values or none)
    code = np.concatenate(codes or [np.empty(0, np.int32)])
    order = np.lexsort((code, owner))
    return schema.table(
        "args",
        {
            "event": owner[order],
            "key": pa.DictionaryArray.from_arrays(pa.array(code[order]), pa.array(keys, pa.string())),
            "kind": np.full(len(order), int(ArgKind.INT), np.uint8),
            "value": value[order],
        },
    )
