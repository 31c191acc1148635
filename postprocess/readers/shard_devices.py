"""What GPUs did, as a shard has it: its DEVICES, ACTIVITIES, CALLS, GRAPH_NODES and COLLECTOR chunks.

They become what other recordings of CUPTI become (nsys.py, XLA's planes), so that the join knows one layout:

- kernels, copies, fills and whole graphs lie on lines `Stream #N` of `/device:GPU:D`, with `correlation_id` and what
  they did (`kernel_details`, `bytes`); waits and the tracer's own time lie beside them, and are no work.
- calls of CUDA lie on the line of the thread that made them, among its spans.
- what XLA's ranges say of a record (xla_ranges.py) are its arguments `hlo_op`, `hlo_module` and `program_id`. A kernel
  of a graph is launched by one call for all: its op is that of the range in which its node was made
  (`graph_node_op`).

All stamps are CLOCK_REALTIME, put on the shard's axis (shard_clock.py), which is the domain of every line.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from xprof_py.postprocess import schema
from xprof_py.postprocess.readers.shard_clock import Note, RealtimeMap
from xprof_py.postprocess.readers.xla_ranges import xla_range
from xprof_py.postprocess.schema import ArgKind, Kind

DEVICES, ACTIVITIES, CALLS, GRAPH_NODES, COLLECTOR = range(15, 20)
"""Chunk types, as in shard_format.h; so are the layouts and numbers below."""

_DEVICE = struct.Struct("<II16sIIIIQQ")
_TIMES = (("start_ns", "<i8"), ("end_ns", "<i8"))
_OF_ACTIVITY = ("kind", "name", "device", "context", "stream", "correlation", "graph", "range")
_ACTIVITY = np.dtype([*_TIMES, *((name, "<u4") for name in _OF_ACTIVITY), ("node", "<u8"), ("shape", "<u4", 10)])
_OF_CALL = ("os_tid", "correlation", "api", "number", "name", "result", "range", "reserved")
_CALL = np.dtype([*_TIMES, *((name, "<u4") for name in _OF_CALL)])
_NODE = np.dtype([("node", "<u8"), ("original", "<u8"), ("graph", "<u4"), ("range", "<u4")])
_COLLECTOR = struct.Struct("<9Q2I")
_TOTALS = (
    *("written", "dropped_source", "dropped_buffers", "dropped_budget", "dropped_error", "unknown_kinds", "clamped"),
    *("buffers", "cpu_ns", "version", "shared"),
)
KERNEL, MEMCPY, MEMSET, GRAPH, SYNC, OVERHEAD = range(1, 7)
_NO_STRING = 0xFFFFFFFF
_ALL_STREAMS = _NO_DEVICE = 0xFFFFFFFF
_COPIES = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
"""CUpti_ActivityMemcpyKind."""
_BETWEEN = 10
_MEMORY = ("Unknown", "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
"""CUpti_ActivityMemoryKind."""
_SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_OVERHEADS = {
    1: "Driver Compiler",
    1 << 16: "Buffer Flush",
    2 << 16: "Instrumentation",
    3 << 16: "Resource",
    4 << 16: "Module Loading by the Runtime",
    5 << 16: "Lazy Function Loading",
    6 << 16: "Command Buffer Full",
}
_API_VERSION = re.compile(r"_v\d{4,}$")
"""CUPTI names the CUDA version that a call of the runtime came with (`cudaMemcpyAsync_v3020`)."""
_LONGEST_CHAIN = 8
"""Clones of clones of a graph's node that are followed back."""
_FAR_PS = 25 * 86_400 * 10**12
"""25 days: what lies further than this from the shard's beginning is not believed (0 is how CUPTI says "not known")."""

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]


@dataclass
class _Rows:
    """Events to be added. ``args``: key -> (kind, of which rows, values); a text's value is a row of the new texts."""

    line: Int64
    names: list[str]
    name: Int64
    start_ps: Int64
    duration_ps: Int64
    args: dict[str, tuple[ArgKind, Int64, Int64]] = field(default_factory=dict)

    def say(self, key: str, rows: Int64 | npt.NDArray[np.bool_], values: Array, kind: ArgKind = ArgKind.INT) -> None:
        """Argument ``key`` of ``rows`` (numbers of rows, or a mask)."""
        chosen: Int64 = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.int64)
        if len(chosen):
            self.args[key] = (kind, chosen, values.astype(np.int64))


@dataclass
class ShardDevices:
    """What the chunks of one shard hold, not yet joined. Ids are those of the file."""

    devices: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    activities: list[Array] = field(default_factory=list)
    calls: list[Array] = field(default_factory=list)
    nodes: list[Array] = field(default_factory=list)
    totals: dict[str, int] | None = None

    def take(self, kind: int, body: Array) -> bool:
        """Take one chunk apart; False: it is of another type. Raises struct.error or ValueError for nonsense in it."""
        if kind == DEVICES:
            for ordinal, *said in _DEVICE.iter_unpack(body.tobytes()):
                self.devices[ordinal] = tuple(said)
        elif kind in (ACTIVITIES, CALLS, GRAPH_NODES):
            into, layout = self._records(kind)
            if len(body) % layout.itemsize:
                raise ValueError(len(body))
            into.append(body.view(layout))
        elif kind == COLLECTOR:
            self.totals = dict(zip(_TOTALS, _COLLECTOR.unpack_from(body.data), strict=True))
        else:
            return False
        return True

    def take_cut(self, kind: int, body: Array) -> None:
        """Take the whole records of a chunk that the end of the file cuts."""
        if kind in (ACTIVITIES, CALLS, GRAPH_NODES):
            into, layout = self._records(kind)
            into.append(body[: len(body) // layout.itemsize * layout.itemsize].view(layout))

    def _records(self, kind: int) -> tuple[list[Array], np.dtype[Any]]:
        return {
            ACTIVITIES: (self.activities, _ACTIVITY),
            CALLS: (self.calls, _CALL),
            GRAPH_NODES: (self.nodes, _NODE),
        }[kind]

    def forget_records(self) -> None:
        """Their files are read again, each once."""
        for records in (self.activities, self.calls, self.nodes):
            records.clear()

    def calling_tids(self) -> list[int]:
        """The kernel's ids of the threads that made calls, ascending; without those that are not known."""
        tids: list[int] = np.unique(_all(self.calls, _CALL)["os_tid"]).tolist()
        return [tid for tid in tids if tid]

    def metadata(self) -> dict[str, Any]:
        """The collector's totals, empty where it was not used."""
        return dict(self.totals or {})

    def add_to(
        self,
        tables: dict[str, pa.Table],
        strings: Mapping[int, str],
        line_of_tid: Mapping[int, int],
        plane: str,
        domain: str,
        clock: RealtimeMap | None,
        note: Note,
    ) -> int:
        """Add lines, events, args, texts and plane_args to ``tables``; returns the end of the latest event, in ps.

        ``line_of_tid``: the line of every calling thread; ``plane``: of the line for calls of unknown threads. ``note``
        takes (severity, code, place, count, message).
        """
        self._note_losses(note)
        if not (self.devices or self.activities or self.calls):
            return 0
        plane_args = self._plane_args(strings)
        if plane_args.num_rows:
            tables["plane_args"] = plane_args
        rows = _DeviceRows(self, strings, line_of_tid, plane, clock, note, first_line=tables["lines"].num_rows)
        rows.read()
        _merge(tables, rows, domain)
        return max((int((p.start_ps + p.duration_ps).max(initial=0)) for p in rows.parts), default=0)

    def _plane_args(self, strings: Mapping[int, str]) -> pa.Table:
        """The facts of every device, by the keys that XLA gives them."""
        found: list[tuple[str, str, ArgKind, int, str | None]] = []
        for ordinal, said in sorted(self.devices.items()):
            name, uuid, major, minor, cores, clock_khz, memory, bandwidth_kbs = said
            plane = f"/device:GPU:{ordinal}"
            texts = {"device_type_string": strings.get(name, ""), "device_vendor": "Nvidia"}
            texts["uuid"] = uuid.hex() if any(uuid) else ""
            found += [(plane, key, ArgKind.TEXT, -1, text) for key, text in texts.items() if text]
            numbers = {
                "compute_cap_major": major,
                "compute_cap_minor": minor if major else 0,
                "core_count": cores,
                "clock_rate": clock_khz,
                "memory_size": min(memory, 2**63 - 1),
                "memory_bandwidth": min(bandwidth_kbs, (2**63 - 1) // 1000) * 1000,
            }
            of_capability = ("compute_cap_major", "compute_cap_minor")
            shown = {k: v for k, v in numbers.items() if v or (major and k in of_capability)}
            found += [(plane, key, ArgKind.INT, value, None) for key, value in shown.items()]
        columns = zip(*found, strict=True) if found else ((),) * 5
        return schema.table("plane_args", dict(zip(schema.TABLES["plane_args"].names, map(list, columns), strict=True)))

    def _note_losses(self, note: Note) -> None:
        totals = self.totals
        there = sum(len(part) for part in (*self.activities, *self.calls, *self.nodes))
        if totals is None:
            if there:
                message = "the collector of device activity did not end: what it lost is not known"
                note("warning", "gpu_not_finished", "", 1, message)
            return
        for code, severity, message in (
            ("dropped_source", "error", "records of device activity dropped by CUPTI itself"),
            ("dropped_buffers", "error", "buffers that CUPTI asked for and did not get: the records are lost"),
            ("dropped_budget", "error", "records of device activity dropped: the shard had reached its budget"),
            (
                "dropped_error",
                "error",
                "records of device activity dropped: it could not be written, or memory ran out",
            ),
            ("unknown_kinds", "note", "records of kinds of device activity that are not read"),
            ("clamped", "warning", "device activity that ended before it began, or with no end: it has no duration"),
        ):
            if totals[code]:
                note(severity, f"gpu_{code}", "", totals[code], message)
        if totals["written"] > there:
            note(
                "error", "gpu_records_missing", "", totals["written"] - there, "records that were written are not there"
            )


class _DeviceRows:
    """The records on their way to tables."""

    def __init__(
        self,
        shard: ShardDevices,
        strings: Mapping[int, str],
        line_of_tid: Mapping[int, int],
        plane: str,
        clock: RealtimeMap | None,
        note: Note,
        first_line: int,
    ) -> None:
        self.shard, self.strings, self.line_of_tid, self.plane = shard, strings, line_of_tid, plane
        self.clock, self.note, self.first_line = clock, note, first_line
        self.lines: list[tuple[str, str, int]] = []
        """(plane, name, line id) of the lines that are new."""
        self.texts: list[str] = []
        self.parts: list[_Rows] = []
        self.doubtful = self.backwards = 0
        self.lost_texts: set[int] = set()

    def read(self) -> None:
        calls = self._timed(_all(self.shard.calls, _CALL), "calls")
        activities = self._timed(_all(self.shard.activities, _ACTIVITY), "activities")
        unknown = ~np.isin(activities["kind"], range(KERNEL, OVERHEAD + 1))
        if unknown.any():
            self.note("warning", "gpu_unknown_activity", "", int(unknown.sum()), "written by a newer release; not read")
            activities = activities[~unknown]
        self._contexts(activities)
        if len(calls):
            self._calls(calls)
        for kind, read in (
            (KERNEL, self._kernels),
            (MEMCPY, self._copies),
            (MEMSET, self._fills),
            (GRAPH, self._graphs),
            (SYNC, self._waits),
            (OVERHEAD, self._overhead),
        ):
            mine = activities[activities["kind"] == kind]
            if len(mine):
                read(mine)
        for count, severity, code, message in (
            (self.backwards, "warning", "negative_duration", "device activity that ends before it starts: instants"),
            (self.doubtful, "warning", "gpu_times_doubtful", "device times beside a step of the system's clock"),
            (len(self.lost_texts), "error", "unknown_string", "names whose record is damaged, shown as (unknown N)"),
        ):
            if count:
                self.note(severity, code, "", count, message)

    def _timed(self, records: Array, what: str) -> Array:
        """Those whose time can be believed."""
        if not len(records):
            return records
        if self.clock is None:
            message = f"{what} of devices without a clock sample: their times cannot be told"
            self.note("error", "no_clock", "", len(records), message)
            return records[:0]
        # Judged in ns: a damaged stamp would not fit in ps.
        zero_ns, far_ns = int(self.clock.zero_ns[0]), _FAR_PS // 1000
        low, high = zero_ns - far_ns, zero_ns + far_ns
        good = (records["start_ns"] >= low) & (records["start_ns"] <= high) & (records["end_ns"] <= high)
        if not good.all():
            message = f"{what} of devices more than 25 days from the others are left out"
            self.note("error", "time_out_of_range", "", int((~good).sum()), message)
        return records if good.all() else records[good]

    def _rows(self, records: Array, line: Int64, names: list[str], name: Int64) -> _Rows:
        assert self.clock is not None
        start_ps, doubtful = self.clock.to_ps(records["start_ns"])
        length = np.maximum(records["end_ns"], 0) - records["start_ns"]
        self.doubtful += int(doubtful.sum())
        self.backwards += int((length < 0).sum())
        rows = _Rows(line, names, name, start_ps, np.maximum(length, 0) * 1000)
        self.parts.append(rows)
        return rows

    # --- texts ---------------------------------------------------------------------------------------------------

    def _string(self, identity: int) -> str:
        if identity not in self.strings:
            self.lost_texts.add(identity)
        return self.strings.get(identity, f"(unknown {identity})")

    def _text(self, texts: list[str]) -> Int64:
        """Rows of ``texts`` for these."""
        first = len(self.texts)
        self.texts += texts
        return np.arange(first, first + len(texts), dtype=np.int64)

    def _ranges(self, rows: _Rows, ranges: Array, op_key: str = "hlo_op") -> None:
        """What the ranges of records say, as their arguments; decided per distinct range."""
        stated = np.flatnonzero(ranges != _NO_STRING)
        if not len(stated):
            return
        row, code = _distinct(ranges[stated])
        texts = [self._string(identity) for identity in ranges[stated][row].tolist()]
        said = [xla_range(text) for text in texts]
        for key, values in ((op_key, [r.hlo_op for r in said]), ("hlo_module", [r.hlo_module for r in said])):
            has = np.array([bool(value) for value in values] or [False], np.bool_)[code]
            rows.say(key, stated[has], self._text(values)[code[has]], ArgKind.TEXT)
        has = np.array([r.program_id is not None for r in said] or [False], np.bool_)[code]
        number = np.array([r.program_id or 0 for r in said] or [0], np.int64)[code]
        rows.say("program_id", stated[has], number[has])
        if op_key == "hlo_op":
            rows.say("nvtx_range", stated, self._text(texts)[code], ArgKind.TEXT)

    # --- host ----------------------------------------------------------------------------------------------------

    def _calls(self, calls: Array) -> None:
        row, place = _distinct(calls["os_tid"])
        tids = calls["os_tid"][row]
        lines = [self.line_of_tid[t] if t else self._line(self.plane, "thread not known", 0) for t in tids.tolist()]
        row, name = _distinct(calls["name"])
        used = calls["name"][row].tolist()
        names = [_API_VERSION.sub("", self._string(i)) if i != _NO_STRING else "call" for i in used]
        rows = self._rows(calls, np.array(lines, np.int64)[place], names, name)
        rows.say("correlation_id", calls["correlation"] > 0, calls["correlation"][calls["correlation"] > 0])
        rows.say("result", calls["result"] > 0, calls["result"][calls["result"] > 0])
        self._ranges(rows, calls["range"])

    # --- devices -------------------------------------------------------------------------------------------------

    def _contexts(self, activities: Array) -> None:
        """Contexts of each device that worked: where there are several, a stream's number alone is no name."""
        work = activities[activities["kind"] <= GRAPH]
        self.contexts: dict[int, set[int]] = {}
        rows = _distinct(work["device"], work["context"])[0] if len(work) else np.empty(0, np.int64)
        for device, context in zip(work["device"][rows].tolist(), work["context"][rows].tolist(), strict=True):
            self.contexts.setdefault(device, set()).add(context)

    def _line(self, plane: str, name: str, number: int) -> int:
        line = (plane, name, number)
        if line not in self.lines:
            self.lines.append(line)
        return self.first_line + self.lines.index(line)

    def _streams(self, records: Array, work: bool) -> Int64:
        keys = [records[name] for name in ("device", "context", "stream")]
        row, place = _distinct(*keys)
        found = np.stack([key[row] for key in keys], 1)
        lines = []
        for device, context, stream in found.tolist():
            if device == _NO_DEVICE:
                lines.append(self._line("/profiler:CUPTI", "waits", 0))
                continue
            said = "all streams" if stream == _ALL_STREAMS else str(stream)
            name = f"Stream #{stream}" if work else f"not work, {said}"
            if len(self.contexts.get(device, ())) > 1:
                name += f" (context {context})"
            lines.append(self._line(f"/device:GPU:{device}", name, stream))
        return np.array(lines, np.int64)[place.reshape(-1)]

    def _work(self, records: Array, names: list[str], name: Int64) -> _Rows:
        rows = self._rows(records, self._streams(records, work=True), names, name.reshape(-1))
        for key, column in (
            ("correlation_id", "correlation"),
            ("cuda_graph_id", "graph"),
            ("cuda_graph_node_id", "node"),
        ):
            has = records[column] > 0
            rows.say(key, has, records[column][has].view(np.int64) if column == "node" else records[column][has])
        self._ranges(rows, np.where(records["node"] > 0, _NO_STRING, records["range"]))
        of_node = self._range_of_nodes(records["node"])
        if (of_node != _NO_STRING).any():
            self._ranges(rows, of_node, op_key="graph_node_op")
        return rows

    def _range_of_nodes(self, node: Array) -> Array:
        """The range in which a graph's node was made, through the nodes that it is a clone of; else none."""
        out = np.full(len(node), _NO_STRING, np.uint32)
        known = _all(self.shard.nodes, _NODE)
        if not len(known) or not node.any():
            return out
        # Of a node that is told twice (it was made, then cloned into) the one that says a range counts.
        known = known[np.lexsort((known["range"] != _NO_STRING, known["node"]))]
        wanted, at = node.copy(), known["node"]
        for _ in range(_LONGEST_CHAIN):
            place = np.searchsorted(at, wanted, side="right") - 1
            found = (wanted > 0) & (place >= 0) & (at[place] == wanted) & (out == _NO_STRING)
            if not found.any():
                break
            out[found] = known["range"][place[found]]
            wanted = np.where(found & (out == _NO_STRING), known["original"][place], 0).astype(np.uint64)
        return out

    def _kernels(self, kernels: Array) -> None:
        row, name = _distinct(kernels["name"])
        names = [self._string(i) if i != _NO_STRING else "kernel" for i in kernels["name"][row].tolist()]
        rows = self._work(kernels, names, name)
        row, place = _distinct(*(kernels["shape"][:, i] for i in range(9)))
        told = [
            f"regs:{regs} static_shared:{static} dynamic_shared:{dynamic} grid:{x},{y},{z} block:{u},{v},{w}"
            for x, y, z, u, v, w, regs, static, dynamic in kernels["shape"][row, :9].tolist()
        ]
        rows.say("kernel_details", np.arange(len(kernels)), self._text(told)[place.reshape(-1)], ArgKind.TEXT)

    def _copies(self, copies: Array) -> None:
        shape = copies["shape"]
        between = (shape[:, 2] == 8) & (shape[:, 5] != copies["device"])
        kind = np.where(between, _BETWEEN, shape[:, 2])
        row, name = _distinct(kind, shape[:, 3], shape[:, 4])
        names = []
        for way, source, target in np.stack((kind, shape[:, 3], shape[:, 4]), 1)[row].tolist():
            head = f"Memcpy {_of(_COPIES, way, '')}".rstrip()
            said = [_of(_MEMORY, code, "Unknown") for code in (source, target)]
            names.append(f"{head} ({' -> '.join(said)})" if said != ["Unknown"] * 2 else head)
        rows = self._work(copies, names, name)
        rows.say("bytes", np.arange(len(copies)), _bytes(shape))

    def _fills(self, fills: Array) -> None:
        used, name = np.unique(fills["shape"][:, 4], return_inverse=True)
        rows = self._work(fills, [f"Memset ({_of(_MEMORY, code, 'Unknown')})" for code in used.tolist()], name)
        rows.say("bytes", np.arange(len(fills)), _bytes(fills["shape"]))

    def _graphs(self, graphs: Array) -> None:
        used, name = np.unique(graphs["graph"], return_inverse=True)
        self._work(graphs, [f"CUDA graph {graph}" for graph in used.tolist()], name)

    def _waits(self, waits: Array) -> None:
        used, name = np.unique(waits["shape"][:, 0], return_inverse=True)
        names = [_SYNCS.get(kind, "Sync") for kind in used.tolist()]
        self._rows(waits, self._streams(waits, work=False), names, name)

    def _overhead(self, overhead: Array) -> None:
        used, name = np.unique(overhead["shape"][:, 0], return_inverse=True)
        names = [_OVERHEADS.get(kind, "overhead") for kind in used.tolist()]
        line = np.full(len(overhead), self._line("/profiler:CUPTI", "overhead", 0), np.int64)
        self._rows(overhead, line, names, name)


def _merge(tables: dict[str, pa.Table], rows: _DeviceRows, domain: str) -> None:
    """Put what is new among what there is; the tables keep their orders."""
    parts = rows.parts
    # New lines in the order of their names: which record came first has no say.
    order = sorted(range(len(rows.lines)), key=lambda i: (rows.lines[i][0], rows.lines[i][2], rows.lines[i][1]))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    lines = schema.table(
        "lines",
        {
            "plane": [rows.lines[i][0] for i in order],
            "name": [rows.lines[i][1] for i in order],
            "line_id": [rows.lines[i][2] for i in order],
            "thread_id": pa.nulls(len(order), pa.int64()),
            "source": ["shard"] * len(order),
            "clock_domain": [domain] * len(order),
        },
    )
    tables["lines"] = pa.concat_tables([tables["lines"], lines])
    if not parts:
        return
    old = tables["events"]
    added = [_events(part, rows.first_line, rank) for part in parts]
    both = pa.concat_tables([old, *added]).unify_dictionaries().combine_chunks()
    line, start = (both[name].to_numpy() for name in ("line", "start_ps"))
    duration = both["duration_ps"].fill_null(2**63 - 1).to_numpy()
    # Of equal intervals what the thread itself recorded is the outer one, in its own order.
    name = np.concatenate((np.full(old.num_rows, -1), *(_by_text(part) for part in parts)))
    by = np.lexsort((name, -duration, start, line))
    tables["events"] = both.take(pa.array(by)).cast(schema.TABLES["events"])
    row = np.empty(len(by), np.int64)
    row[by] = np.arange(len(by))
    first = old.num_rows
    pieces = [tables["args"]]
    for part in parts:
        pieces += list(_args(part, first, tables["texts"].num_rows))
        first += len(part.line)
    args = pa.concat_tables(pieces).unify_dictionaries().combine_chunks()
    event = row[args["event"].to_numpy()] if args.num_rows else np.empty(0, np.int64)
    args = args.set_column(0, args.schema.field(0), pa.array(event)).take(pa.array(np.argsort(event, kind="stable")))
    tables["args"] = args.combine_chunks().cast(schema.TABLES["args"])
    texts = schema.table("texts", {"text": pa.array(rows.texts, pa.large_string())})
    tables["texts"] = pa.concat_tables([tables["texts"], texts]).combine_chunks()


def _events(part: _Rows, first_line: int, rank: Int64) -> pa.Table:
    new = part.line >= first_line
    line = part.line.copy()
    line[new] = first_line + rank[part.line[new] - first_line]
    name = pa.DictionaryArray.from_arrays(pa.array(part.name.reshape(-1).astype(np.int32)), pa.array(part.names))
    kind = np.full(len(line), int(Kind.PLAIN), np.uint8)
    columns = {"line": line.astype(np.int32), "name": name, "kind": kind, "start_ps": part.start_ps}
    return schema.table("events", {**columns, "duration_ps": part.duration_ps})


def _by_text(part: _Rows) -> Int64:
    """A number per row that orders rows by their names, so that equal intervals come in one order."""
    order = np.argsort(np.array(part.names))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[part.name.reshape(-1)]


def _args(part: _Rows, first_event: int, first_text: int) -> Iterator[pa.Table]:
    for key, (kind, rows, values) in sorted(part.args.items()):
        yield schema.table(
            "args",
            {
                "event": rows + first_event,
                "key": pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(rows), np.int32)), pa.array([key])),
                "kind": np.full(len(rows), int(kind), np.uint8),
                "value": values + (first_text if kind == ArgKind.TEXT else 0),
            },
        )


def _distinct(*columns: Array) -> tuple[Int64, Int64]:
    """(one row of each distinct combination, which one each row is), in order of the columns, the first leading.

    By counting where the numbers are small, which they mostly are: sorting rows takes ten times as long.
    """
    code, count = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low, high = int(column.min(initial=column[0])), int(column.max(initial=column[0]))
        code = code * (high - low + 1) + (column.astype(np.int64) - low)
        count *= high - low + 1
        if count > 4 * len(code) + 4096:
            used, code = np.unique(code, return_inverse=True)
            code, count = code.reshape(-1), len(used)
    there = np.zeros(count, np.int64)
    there[code] = 1
    code = (np.cumsum(there) - 1)[code]
    row = np.empty(int(there.sum()), np.int64)
    row[code] = np.arange(len(code))
    return row, code


def _bytes(shape: Array) -> Int64:
    size = shape[:, 0].astype(np.uint64) | shape[:, 1].astype(np.uint64) << np.uint64(32)
    return np.minimum(size, np.uint64(2**63 - 1)).astype(np.int64)


def _all(parts: list[Array], layout: np.dtype[Any]) -> Array:
    return np.concatenate(parts) if parts else np.zeros(0, layout)


def _of(texts: tuple[str, ...], code: int, otherwise: str) -> str:
    return texts[code] if 0 <= code < len(texts) else otherwise
