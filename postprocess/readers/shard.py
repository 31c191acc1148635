"""Reads the recorder's shard (native/include/xprof_py/shard_format.h is its contract) into a Profile."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xprof_py import _native
from xprof_py.errors import BadInputError
from xprof_py.postprocess import schema
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.shard_clock import TickMap, realtime_map_of, tick_map_of
from xprof_py.postprocess.readers.shard_devices import ShardDevices
from xprof_py.postprocess.readers.shard_left import Rings, read_rings, segments_beside
from xprof_py.postprocess.readers.shard_lost import DROPPED, ShardLost, next_chunk
from xprof_py.postprocess.readers.shard_power import ShardPower
from xprof_py.postprocess.readers.shard_probe import ShardProbe
from xprof_py.postprocess.readers.shard_stacks import ShardStacks
from xprof_py.postprocess.readers.sniff import require_regular
from xprof_py.postprocess.schema import ArgKind

MAGIC = b"XPRSHARD"
VERSION = 1
PLANE = "/host:xprof_py"
"""Plane of the lines that shards deliver."""

_HEADER = struct.Struct("<8sIIQIIQQ40sQ24xQ")
_CHUNK = struct.Struct("<IHHQIIQ")
_CHUNK_MAGIC = 0x43525058
_STRINGS, _SCHEMAS, _THREADS, _EVENTS, _CLOCK, _LOSSES, _END = range(1, 8)
_CLOCKS = {1: "tsc", 2: "cntvct", 3: "monotonic"}
_SLOT_BYTES = 32
_KIND_MORE = 0xFF
_KIND_STEP = 2
_OPEN_PS = 2**63 - 1
_MOST_NAMES = 1 << 24
_MOST_ARGS = 43
_NO_SUCH_SCHEMA = 0xFF
_END_FIELDS = (
    "written",
    "dropped_ring",
    "dropped_budget",
    "dropped_error",
    "threads",
    "names",
    "more_names",
    "more_texts",
    "dropped_args",
    "reentered",
    "hook_errors",
    "write_errors",
    "last_errno",
    "open_not_recorded",
)
_END_FIELDS_AT_LEAST = 13

U64 = np.dtype("<u8")


@dataclass
class _Shard:
    """The chunks of one file, and of what lies beside it, taken apart but not yet joined.

    ``whole``: (segment + 1 or 0, offset) of the whole chunks of events; ``cut``: of one that the end of its file cuts,
    with its thread and what is there of it. ``was_doing``: the spans that were open when the process was killed.
    """

    file: str
    pid: int
    clock_kind: int
    boot_id: str
    budget_bytes: int
    ring_bytes: int
    shard_id: int = 0
    strings: dict[int, str] = field(default_factory=dict)
    schemas: dict[int, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    threads: dict[int, tuple[int, str]] = field(default_factory=dict)
    slots: list[tuple[int, np.ndarray[Any, Any]]] = field(default_factory=list)
    clock: list[np.ndarray[Any, Any]] = field(default_factory=list)
    whole: set[tuple[int, int]] = field(default_factory=set)
    cut: list[tuple[int, int, int, np.ndarray[Any, Any]]] = field(default_factory=list)
    was_doing: list[dict[str, Any]] = field(default_factory=list)
    losses: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    end: dict[str, int] | None = None
    lost: ShardLost = field(default_factory=ShardLost)
    stacks: ShardStacks = field(default_factory=ShardStacks)
    probe: ShardProbe = field(default_factory=ShardProbe)
    power: ShardPower = field(default_factory=ShardPower)
    devices: ShardDevices = field(default_factory=ShardDevices)
    diagnostics: list[tuple[str, str, str, str, int, str]] = field(default_factory=list)

    def note(self, severity: str, code: str, place: str, count: int, message: str) -> None:
        # A damaged total may be any number; the column holds int64.
        self.diagnostics.append((severity, code, self.file, place, min(max(count, 0), 2**63 - 1), message))


def read_shard(path: str | os.PathLike[str]) -> Profile:
    """Read one shard.

    Returns a Profile with the tables lines, events, args, texts, stack_samples, stacks, frames, clock_samples, power,
    lost_events and diagnostics; with plane_args where it says what GPUs there are.
    ``origin_ns`` is the REALTIME at the first clock sample; ``start_ps`` follows REALTIME as it was steered, without
    its steps (a step is a diagnostic). ``host`` is the file's name without its suffix. Metadata: pid, tids, boot_id,
    clock, budget_bytes, ring_bytes, totals, finished, was_doing.

    Of a process that was killed the segments and rings beside the shard are read too: they hold what it had recorded
    and not yet written. ``was_doing`` says per thread in which spans it was: [{thread, tid, spans}], outermost first.

    A shard that was cut off, or damaged after its header, gives what can be read and a row in diagnostics for the rest.
    Raises BadInputError if the file cannot be read or its header is not one of ours.
    """
    name = os.fspath(path)
    try:
        require_regular(name)
        content = np.fromfile(name, dtype=np.uint8)
    except OSError as error:
        raise BadInputError(name, "", error.strerror or str(error)) from error
    shard = _read_header(name, content)
    _read_chunks(shard, content, 0)
    if shard.end is None:
        _take_left(shard)
    shard.slots += [(thread, body) for _, _, thread, body in shard.cut]
    return _profile(shard)


def _read_header(name: str, content: np.ndarray[Any, Any]) -> _Shard:
    raw = content[: _HEADER.size].tobytes()
    if not MAGIC.startswith(raw[:8]) or not raw:
        raise BadInputError(name, "byte 0", "not a shard of xprof_py")
    if len(raw) < _HEADER.size:
        raise BadInputError(name, f"byte {len(raw)}", f"the file ends inside its header of {_HEADER.size} bytes")
    fields = _HEADER.unpack(raw)
    _, version, header_bytes, pid, clock_kind, _, budget_bytes, ring_bytes, boot_id, shard_id, checksum = fields
    if version != VERSION:
        raise BadInputError(name, "byte 8", f"shard version {version}; this release reads version {VERSION}")
    if header_bytes != _HEADER.size or _native.shard_checksum(content[: _HEADER.size], _HEADER.size - 8) != checksum:
        raise BadInputError(name, "byte 0", "the header is damaged (its checksum does not match)")
    if clock_kind not in _CLOCKS:
        raise BadInputError(name, "byte 24", f"unknown clock {clock_kind}")
    boot = boot_id.rstrip(b"\0").decode("ascii", "replace")
    return _Shard(name, pid, clock_kind, boot, budget_bytes, ring_bytes, shard_id)


def _read_chunks(shard: _Shard, content: np.ndarray[Any, Any], part: int) -> None:
    """Take a file's chunks apart; ``part``: 0 for the shard, a segment's number + 1."""
    size = len(content)
    at = _HEADER.size
    expected: int | None = 0
    unknown: dict[int, int] = {}
    while at < size:
        if at + _CHUNK.size > size:
            shard.note("warning", "shard_truncated", f"byte {at}", 1, "the file ends inside a chunk's header")
            break
        magic, kind, _, length, sequence, thread, checksum = _CHUNK.unpack_from(content.data, at)
        begins = magic == _CHUNK_MAGIC and length % 8 == 0
        body = at + _CHUNK.size
        following = body + length
        if not begins or following > size or _native.shard_checksum(content[at:following], _CHUNK.size - 8) != checksum:
            # The length may be what is damaged: the next chunk is where one is whole.
            found = next_chunk(content, at + 8)
            if found is None and begins and following > size:
                _read_cut_chunk(shard, kind, thread, content[body:], (part, at), length)
                break
            in_place = begins and following == (size if found is None else found) and expected in (sequence, None)
            if in_place:
                message = f"the checksum of a chunk of type {kind} does not match"
                # Its type may be what is damaged.
                is_known = kind == _EVENTS and thread in shard.threads
                shard.lost.add(thread if is_known else None, len(shard.slots))
            else:
                rest = "the rest is not read" if found is None else f"the next one begins at byte {found}"
                message = f"no chunk begins here; {rest}"
                shard.lost.add(None, len(shard.slots))
            shard.note("error", "shard_damaged", f"byte {at}", 1, message)
            expected = sequence + 1 if in_place else None
            at = size if found is None else found
            continue
        if expected not in (sequence, None):
            missing = f"chunk {sequence} follows chunk {expected - 1}"
            shard.note("error", "shard_damaged", f"byte {at}", abs(sequence - expected), missing)
            shard.lost.add(None, len(shard.slots))
        try:
            if not _read_chunk(shard, kind, thread, content[body:following]):
                unknown[kind] = unknown.get(kind, 0) + 1
            if kind == _EVENTS:
                shard.whole.add((part, at))
        except (struct.error, ValueError):
            message = f"the content of a chunk of type {kind} makes no sense"
            shard.note("error", "shard_damaged", f"byte {at}", 1, message)
            if kind == _EVENTS:
                shard.lost.add(thread, len(shard.slots))
        expected = sequence + 1
        at = following
    for kind, count in sorted(unknown.items()):
        shard.note("warning", "unknown_chunk", f"type {kind}", count, "written by a newer release; not read")


def _take_left(shard: _Shard) -> None:
    """The recorder was not stopped: take what its process left beside the shard."""
    segments = segments_beside(shard.file)
    if segments:
        # A recorder that is gathering its segments has appended some of them: they are read once, from their own files.
        for taken in (shard.slots, shard.clock, shard.stacks.samples, shard.cut):
            taken.clear()
        shard.devices.forget_records()
        shard.lost.places.clear()
    for number, path in segments:
        try:
            content = np.fromfile(path, dtype=np.uint8)
            _read_header(str(path), content)
            _read_chunks(shard, content, number + 1)
        except (OSError, BadInputError) as error:
            shard.note("error", "shard_damaged", path.name, 1, f"a segment cannot be read: {error}")
    rings = read_rings(shard.file, shard.shard_id, shard.whole)
    if isinstance(rings, str):
        message = (
            f"the recorder was not stopped, or the file's end was cut off: its last moments, at most about 0.1 s of a "
            f"process that was killed, are missing ({rings})"
        )
    else:
        count = _take_rings(shard, rings)
        message = f"the recorder was not stopped: {count} event slots were still in its rings, and are read from there"
    shard.note("warning", "shard_not_finished", "", 1, message)


def _take_rings(shard: _Shard, rings: Rings) -> int:
    """Returns how many slots of finished events were in the rings."""
    for kind, payload in rings.journal:
        try:
            _read_chunk(shard, kind, 0, payload)
        except (struct.error, ValueError):
            shard.note("error", "shard_damaged", "rings", 1, "a record of the journal makes no sense")
    if rings.skipped:
        shard.note("warning", "journal_full", "", rings.skipped, "new names found no place in the journal")
    if sum(len(samples) for samples in shard.clock) < 2 * _SLOT_BYTES:
        shard.clock.insert(0, rings.clock)
    shard.cut = [cut for cut in shard.cut if cut[:2] not in rings.claimed]
    count = 0
    for ring in rings.rings:
        shard.threads.setdefault(ring.thread, (ring.tid, ring.name))
        written, _, over, failed = shard.losses.get(ring.thread, (0, 0, 0, 0))
        shard.losses[ring.thread] = (written, ring.dropped, over, failed)
        if len(ring.slots):
            shard.slots.append((ring.thread, ring.slots))
            count += len(ring.slots) // _SLOT_BYTES
        _take_open(shard, ring.thread, ring.open)
    return count


def _take_open(shard: _Shard, thread: int, spans: np.ndarray[Any, Any]) -> None:
    """Take the spans that a thread was in; one that has ended was recorded an instant before it was to be taken off."""
    ended: set[int] = set()
    for of_thread, body in shard.slots:
        if of_thread == thread:
            slots = body[: len(body) // _SLOT_BYTES * _SLOT_BYTES].view(U64).reshape(-1, 4)
            ended.update(slots[(slots[:, 2] >> np.uint64(32)) & np.uint64(0xFF) != _KIND_MORE, 0].tolist())
    still = spans.view(U64).reshape(-1, 4)
    still = still[[start not in ended for start in still[:, 0].tolist()]]
    if not len(still):
        return
    shard.slots.append((thread, np.ascontiguousarray(still).view(np.uint8).reshape(-1)))
    names = []
    for _, _, word, value in still.tolist():
        name = shard.strings.get(word & 0xFFFFFFFF, "?")
        names.append(f"{name} {value}" if word >> 48 and word >> 32 & 0xFF == _KIND_STEP else name)
    tid, thread_name = shard.threads[thread]
    shard.was_doing.append({"thread": thread_name, "tid": tid, "spans": names})
    message = f"when the process was killed it was doing: {' > '.join(names)}"
    shard.note("error", "was_doing", f"thread {tid} ({thread_name})", 1, message)


def _read_cut_chunk(
    shard: _Shard, kind: int, thread: int, body: np.ndarray[Any, Any], place: tuple[int, int], length: int
) -> None:
    """A chunk that the end of the file cuts: its whole events are good, as events are written one after the other."""
    message = f"the file ends {length - len(body)} bytes before its last chunk does"
    shard.note("warning", "shard_truncated", f"byte {place[1]}", 1, message)
    if kind == _EVENTS:
        whole = len(body) // _SLOT_BYTES * _SLOT_BYTES
        if whole:
            shard.cut.append((*place, thread, body[:whole]))
    else:
        shard.stacks.take_cut(kind, body)
        shard.probe.take_cut(kind, body)
        shard.power.take_cut(kind, body)
        shard.devices.take_cut(kind, body)


def _read_chunk(shard: _Shard, kind: int, thread: int, body: np.ndarray[Any, Any]) -> bool:
    """Takes one chunk apart. False: of a type unknown here. Raises struct.error or ValueError for nonsense in it."""
    if kind in (_EVENTS, _CLOCK):
        if len(body) % _SLOT_BYTES:
            raise ValueError(len(body))
        if kind == _EVENTS:
            shard.slots.append((thread, body))
        else:
            shard.clock.append(body)
    elif kind == _STRINGS:
        for (identity, _), text in _records(body, "<II", 1):
            shard.strings[identity] = text.decode("utf-8", "replace")
    elif kind == _THREADS:
        for (index, _, tid), text in _records(body, "<IIq", 1):
            shard.threads[index] = (tid, text.decode("utf-8", "replace"))
    elif kind == _SCHEMAS:
        for (identity, count, kinds), keys in _records(body, "<IIQ", 4):
            shard.schemas[identity] = (struct.unpack(f"<{count}I", keys), kinds)
    elif kind == _LOSSES:
        for thread_index, *totals in struct.iter_unpack("<I4xqqqq", body.tobytes()):
            if sum(totals[1:]) > sum(shard.losses.get(thread_index, (0, 0, 0, 0))[1:]):
                shard.lost.add(thread_index, len(shard.slots), DROPPED)
            shard.losses[thread_index] = (totals[0], totals[1], totals[2], totals[3])
    elif kind == _END:
        # Fields that a release adds at the end are absent in the files of earlier ones.
        count = max(min(len(body) // 8, len(_END_FIELDS)), _END_FIELDS_AT_LEAST)
        shard.end = dict.fromkeys(_END_FIELDS, 0)
        shard.end.update(zip(_END_FIELDS[:count], struct.unpack_from(f"<{count}q", body.data), strict=True))
    else:
        return any(part.take(kind, body) for part in (shard.stacks, shard.probe, shard.power, shard.devices))
    return True


def _records(body: np.ndarray[Any, Any], layout: str, unit_bytes: int) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Records of a fixed part, whose second field counts what follows in units, padded to 8 bytes."""
    raw = body.tobytes()
    head = struct.calcsize(layout)
    at = 0
    while at < len(raw):
        fixed = struct.unpack_from(layout, raw, at)
        length = fixed[1] * unit_bytes
        if at + head + length > len(raw):
            raise ValueError(length)
        yield fixed, raw[at + head : at + head + length]
        at += head + (length + 7) // 8 * 8


def _profile(shard: _Shard) -> Profile:
    origin_ns, tick_map = tick_map_of(shard.clock, shard.clock_kind, shard.note)
    events, args, texts, end_ps = _event_tables(shard, tick_map)
    _note_losses(shard)
    threads = _threads(shard)
    line_of_tid = {tid: row for row, (_, tid, _) in enumerate(threads)}
    sampled = shard.stacks.tables(shard.strings, line_of_tid, tick_map.to_ps if tick_map else None, shard.note)
    clock_samples = shard.probe.table(shard.note)
    clock = realtime_map_of(shard.clock)
    power = shard.power.table(shard.strings, clock, shard.note)
    lines = schema.table(
        "lines",
        {
            "plane": [PLANE] * len(threads),
            "name": [name for _, _, name in threads],
            "line_id": [index for index, _, _ in threads],
            "thread_id": [tid for _, tid, _ in threads],
            "source": ["shard"] * len(threads),
            "clock_domain": [shard.boot_id] * len(threads),
        },
    )
    tables = {"lines": lines, "events": events, "args": args, "texts": texts, **sampled, "clock_samples": clock_samples}
    work_end_ps = shard.devices.add_to(tables, shard.strings, line_of_tid, PLANE, shard.boot_id, clock, shard.note)
    last_ps = int(tick_map.at_ps[-1]) if tick_map is not None else 0
    capture_end_ps = max(last_ps, end_ps, work_end_ps)
    line_of_thread = {index: line for line, (index, _, _) in enumerate(threads) if index in shard.threads}
    tables["lost_events"] = shard.lost.table(shard.slots, line_of_thread, tick_map, capture_end_ps)
    rows = list(zip(*shard.diagnostics, strict=True)) if shard.diagnostics else [()] * 6
    diagnostics = schema.table("diagnostics", dict(zip(schema.TABLES["diagnostics"].names, rows, strict=True)))
    metadata = {
        "pid": shard.pid,
        "tids": [tid for _, tid, _ in threads],
        "boot_id": shard.boot_id,
        "clock": _CLOCKS[shard.clock_kind],
        "budget_bytes": shard.budget_bytes,
        "ring_bytes": shard.ring_bytes,
        "finished": shard.end is not None,
        "was_doing": shard.was_doing,
        "totals": shard.end or {},
        "probe": shard.probe.metadata(),
        "gpu_collector": shard.devices.metadata(),
    }
    tables["power"] = power
    tables["diagnostics"] = diagnostics
    return Profile(
        host=Path(shard.file).stem,
        origin_ns=origin_ns,
        capture_start_ps=0,
        capture_end_ps=capture_end_ps,
        metadata=metadata,
    ).with_tables(**tables)


def _threads(shard: _Shard) -> list[tuple[int, int, str]]:
    """(index, tid, name) of every line: threads with a log, then those that were only sampled, or only called CUDA."""
    threads = [(index, tid, name) for index, (tid, name) in sorted(shard.threads.items())]
    others = dict.fromkeys(shard.stacks.sampled_tids(), "sampled thread")
    for tid in shard.devices.calling_tids():
        others.setdefault(tid, "calling thread")
    recorded = {tid for _, tid, _ in threads}
    last = max(shard.threads, default=-1)
    silent = [(tid, name) for tid, name in others.items() if tid not in recorded]
    return threads + [(last + 1 + i, tid, name) for i, (tid, name) in enumerate(silent)]


def _event_tables(shard: _Shard, tick_map: TickMap | None) -> tuple[pa.Table, pa.Table, pa.Table, int]:
    """The tables events, args and texts, and the latest end of an event."""
    nothing = schema.empty("events"), schema.empty("args"), schema.empty("texts"), 0
    lines = {thread: line for line, thread in enumerate(sorted(shard.threads))}
    known = [(lines[thread], body) for thread, body in shard.slots if thread in lines]
    lost = sum(len(body) for thread, body in shard.slots if thread not in lines) // _SLOT_BYTES
    if lost:
        shard.note("error", "unknown_thread", "", lost, "event slots of threads whose record is damaged")
    if not known:
        return nothing
    ticks = tick_map or TickMap(np.zeros(1, U64), np.zeros(1, np.int64), np.ones(1))
    names = max(shard.strings, default=0) + 1
    if names > _MOST_NAMES:
        names = _MOST_NAMES  # a damaged id: a table by id could be of any size
    found = _native.decode_shard_events(known, len(lines), ticks.ticks, ticks.at_ps, ticks.ps_per_tick, names)
    if found["broken"]:
        message = "events whose arguments are incomplete; not read"
        shard.note("warning", "event_cut", "", found["broken"], message)
    rows = np.asarray(found["line_rows"])
    count = len(found["start_ps"])
    if tick_map is None and count:
        message = "events without two clock samples before them: their times cannot be told"
        shard.note("error", "no_clock", "", count, message)
    if tick_map is None or not count:
        return nothing
    columns = {name: np.asarray(found[name]) for name in ("start_ps", "duration_ps", "name", "kind", "first")}
    for line in np.flatnonzero(np.asarray(found["line_unsorted"])).tolist():
        begin = int(rows[:line].sum())
        _sort_parents_first({name: column[begin : begin + int(rows[line])] for name, column in columns.items()})
    is_open = columns["duration_ps"] == _OPEN_PS if found["open"] else None
    if is_open is not None:
        columns["duration_ps"][is_open] = 0
    if found["odd_names"]:
        texts_of_names, columns["name"] = _dictionary(shard, columns["name"].view(np.uint32))
    else:
        texts_of_names = _texts_of(shard, np.flatnonzero(np.asarray(found["name_used"])).tolist())
    events = pa.Table.from_arrays(
        [
            pa.array(np.repeat(np.arange(len(rows), dtype=np.int32), rows)),
            pa.DictionaryArray.from_arrays(pa.array(columns["name"]), texts_of_names),
            pa.array(columns["kind"]),
            pa.array(columns["start_ps"]),
            pa.array(columns["duration_ps"], mask=is_open),
        ],
        schema=schema.TABLES["events"],
    )
    if not found["with_arguments"]:
        return events, schema.empty("args"), schema.empty("texts"), found["end_ps"]
    args, texts = _args_tables(shard, [body for _, body in known], columns["first"].view(np.uint32), names)
    return events, args, texts, found["end_ps"]


def _sort_parents_first(columns: dict[str, np.ndarray[Any, Any]]) -> None:
    """Sort rows in place by (start, length descending); of those equal in both, the one written later encloses."""
    order = np.lexsort(
        (-columns["first"].view(np.uint32).astype(np.int64), -columns["duration_ps"], columns["start_ps"])
    )
    for column in columns.values():
        column[:] = column[order]


def _dictionary(shard: _Shard, ids: np.ndarray[Any, Any]) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """The strings of these ids, each once, and for each id its row among them."""
    ids = ids.astype(np.int64)
    largest = int(ids.max()) if len(ids) else 0
    if largest > max(shard.strings, default=0) + len(ids) or (len(ids) and int(ids.min()) < 0):
        # Damaged ids: a table by id could be of any size.
        used, row = np.unique(ids, return_inverse=True)
    else:
        is_used = np.zeros(largest + 1, np.bool_)
        is_used[ids] = True
        used = np.flatnonzero(is_used)
        row_of = np.zeros(largest + 1, np.int64)
        row_of[used] = np.arange(len(used))
        row = row_of[ids]
    return _texts_of(shard, used.tolist()), row.astype(np.int32)


def _texts_of(shard: _Shard, ids: list[int]) -> pa.Array:
    missing = sum(1 for i in ids if i not in shard.strings)
    if missing:
        shard.note("error", "unknown_string", "", missing, "names whose record is damaged, shown as (unknown N)")
    return pa.array([shard.strings.get(i, f"(unknown {i})") for i in ids], pa.string())


def _args_tables(
    shard: _Shard, bodies: list[np.ndarray[Any, Any]], first: np.ndarray[Any, Any], texts_below: int
) -> tuple[pa.Table, pa.Table]:
    """The tables args and texts of the events whose first slots are ``first``."""
    # Schemas that no event can have are damaged ones.
    schemas = {i: given for i, given in shard.schemas.items() if i < 2**16 and len(given[0]) <= _MOST_ARGS}
    key_ids = sorted({key for keys, _ in schemas.values() for key in keys})
    row_of_key = {key: row for row, key in enumerate(key_ids)}
    counts = np.full(max(schemas, default=0) + 1, _NO_SUCH_SCHEMA, np.uint8)
    at, kinds = np.zeros(len(counts), np.uint32), np.zeros(len(counts), U64)
    keys_in_a_row: list[int] = []
    for identity, (keys, kinds_of) in schemas.items():
        counts[identity], at[identity], kinds[identity] = len(keys), len(keys_in_a_row), kinds_of
        keys_in_a_row += [row_of_key[key] for key in keys]
    keys_array = np.array(keys_in_a_row, np.uint32)
    found = _native.decode_shard_args(bodies, first, counts, at, keys_array, kinds, texts_below)
    if found["without_schema"]:
        message = "events whose arguments' schema is damaged; read without arguments"
        shard.note("error", "unknown_schema", "", found["without_schema"], message)
    event, key, kind, value = (np.asarray(found[name]) for name in ("event", "key", "kind", "value"))
    if not len(event):
        return schema.empty("args"), schema.empty("texts")
    if found["odd_texts"]:
        is_text = kind == ArgKind.TEXT
        texts, value[is_text] = _dictionary(shard, value[is_text])
    else:
        texts = _texts_of(shard, np.flatnonzero(np.asarray(found["text_used"])).tolist())
    keys_used = _texts_of(shard, [key_ids[row] for row in np.flatnonzero(np.asarray(found["key_used"])).tolist()])
    args = pa.Table.from_arrays(
        [
            pa.array(event),
            pa.DictionaryArray.from_arrays(pa.array(key), keys_used),
            pa.array(kind),
            pa.array(value),
        ],
        schema=schema.TABLES["args"],
    )
    return args, pa.Table.from_arrays([texts.cast(pa.large_string())], schema=schema.TABLES["texts"])


def _note_losses(shard: _Shard) -> None:
    causes = (
        "the thread's ring was full",
        "the shard had reached its budget",
        "the shard could not be written, or memory ran out",
    )
    codes = ("dropped_ring", "dropped_budget", "dropped_error")
    by_thread = dict.fromkeys(codes, 0)
    for index, (_, *dropped) in sorted(shard.losses.items()):
        tid, name = shard.threads.get(index, (0, "?"))
        for code, cause, count in zip(codes, causes, dropped, strict=True):
            by_thread[code] += count
            if count:
                shard.note("error", code, f"thread {tid} ({name})", count, f"events dropped: {cause}")
    if shard.end is None:
        return
    for code, cause in zip(codes, causes, strict=True):
        if shard.end[code] > by_thread[code]:
            rest = shard.end[code] - by_thread[code]
            shard.note("error", code, "", rest, f"events dropped: {cause}")
    for code, severity, message in (
        ("more_names", "warning", 'uses of names past the limit, recorded as "(more names)"'),
        ("more_texts", "warning", 'text arguments past the limit, recorded as "(more texts)"'),
        ("dropped_args", "warning", "arguments past the limits"),
        ("reentered", "error", "spans not recorded: their object was entered again, or dropped, while it was open"),
        (
            "open_not_recorded",
            "warning",
            "spans of C code not recorded: they were open at the stop, and begun without their site",
        ),
        ("hook_errors", "warning", "exceptions in the profiler's own hooks"),
        ("write_errors", "error", f"failed writes of the shard, the last: {_errno_text(shard.end['last_errno'])}"),
    ):
        if shard.end[code]:
            shard.note(severity, code, "", shard.end[code], message)


def _errno_text(number: int) -> str:
    return os.strerror(number) if 0 <= number < 4096 else f"error {number}"
