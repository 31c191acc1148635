"""Which communication and which copies did steps wait for, and which were hidden behind other work?

Per kind, source line and program, over the windows of steps. Kinds: the collectives by opcode (all-reduce, all-gather,
reduce-scatter, all-to-all, ...), send, recv, and copies: h2d and d2h between host and device, d2d within a device.

    total      time in which a leaf of it ran, as `total` of its class in the breakdown
    exposed    the part of `total` that its class won (docs/breakdown.md): no compute or memory leaf of the lane ran
    in flight  total, and the time from the end of a -start to the start of its -done: what is started counts until done
    idle       the part of that time in which no leaf of the lane ran: a gap of the breakdown, mostly device_wait
    hidden     in flight - exposed - idle: a leaf of something else ran

Where two of one class overlap, an instant belongs to the one that started first, a running leaf before one that is only
in flight. So over the rows of a class `exposed_ps` sums to the class's exclusive time in the breakdown and `total_ps`
to its total, exactly, for collective and host_device; of the class memory only copies are rows here.

Bytes are the payload of one participant: what it sends; for all-gather what it has afterwards. Bus bandwidth as the
NCCL tests define it: network bytes (hlo/cost.py: 2 (n-1)/n of the payload for all-reduce, (n-1)/n for all-gather,
reduce-scatter and all-to-all) over the time from start to done. That time holds the wait for the last participant, so
it is the least that the network did. Null unless known of every execution.

A -start and a -done of one run are paired in order; where a run does not show as many of one as of the other (the
capture cut it) each stands alone, and `unpaired` counts it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses.leaves import leaves
from xprof_py.postprocess.analyses.top_ops import Instructions as Texts
from xprof_py.postprocess.hlo.classes import COLLECTIVES
from xprof_py.postprocess.hlo.shapes import HOST_MEMORY, Instructions, group_sizes
from xprof_py.postprocess.hlo.traffic import network_bytes
from xprof_py.postprocess.join import host_names, intervals
from xprof_py.postprocess.join.columns import Int64, dictionary, integers
from xprof_py.postprocess.join.windows import LaneCover, cover_leaves
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES

KEYS = ["class", "kind", "source", "program", "participants", "phase"]
TIMES = ("exposed_ps", "total_ps", "in_flight_ps", "idle_ps", "duration_ps")
_COUNT = pa.decimal128(38, 0)
_AMOUNTS = ("bytes", "network_bytes")
_SUMS = ("count", "unpaired", *TIMES, *_AMOUNTS, "bytes_known", "network_bytes_known")
_SCHEMA = pa.schema(
    [
        *((key, pa.int64() if key == "participants" else pa.string()) for key in KEYS),
        *((name, _COUNT if name in _AMOUNTS else pa.int64()) for name in _SUMS),
    ]
)
_MEMORY = CLASSES.index("memory")
_COMMUNICATING = tuple(BUSY_CLASSES.index(name) for name in ("memory", "collective", "host_device"))
_BY_NAME = (
    # Kinds by the name of an event without HLO: copies of drivers, kernels of NCCL and RCCL.
    (r"h(ost)?[ _-]?(to|2)[ _-]?d", "h2d"),
    (r"d(evice)?[ _-]?(to|2)[ _-]?h", "d2h"),
    (r"d(evice)?[ _-]?(to|2)[ _-]?d|ptop|peer", "d2d"),
    (r"all_?reduce", "all-reduce"),
    (r"all_?gather", "all-gather"),
    (r"reduce_?scatter", "reduce-scatter"),
    (r"all_?to_?all", "all-to-all"),
    (r"send_?recv", "collective-permute"),
    (r"broadcast", "collective-broadcast"),
)


@dataclass(frozen=True)
class _Transfer:
    """What one instruction moves. ``starter``: for a -done the row of its -start, else its own row."""

    kind: str
    starter: int
    done: bool = False
    participants: int | None = None
    bytes: int | None = None
    network_bytes: int | None = None


def partial(profile: Profile) -> pa.Table:
    """KEYS and sums of one joined profile; `phase` is that of the window's step, else head or tail.

    An execution is counted in the window that it starts in; its times in those in which they are spent.
    """
    ops = leaves(profile)
    class_code, names = dictionary(ops, "class")
    code = np.array([CLASSES.index(name) for name in names] or [0], np.int64)[class_code]
    if not ops.num_rows or not np.isin(code, _COMMUNICATING).any():
        return _SCHEMA.empty_table()
    sums = _Leaves(profile, ops, code)
    for lane in np.unique(sums.lane).tolist():
        sums.sum_lane(profile, lane)
    return merge(pa.Table.from_pylist(sums.rows(profile), schema=_SCHEMA), None)


class _Leaves:
    """The leaves of all lanes as columns, and the sums per (class, key of a leaf, phase of the window)."""

    def __init__(self, profile: Profile, ops: pa.Table, code: Int64) -> None:
        self.code = code
        self.lane, self.run, self.hlo = (integers(ops, name) for name in ("lane", "run", "hlo_op"))
        self.start = integers(ops, "start_ps")
        self.end = self.start + integers(ops, "duration_ps")
        self.open_end = self.end + integers(ops, "open_ps")
        event_name, self._names = dictionary(profile["events"], "name")
        self._see = Instructions(profile)
        self._transfers: dict[int, _Transfer] = {}
        # One number per instruction; without HLO, per name of the event.
        self.key = np.where(self.hlo >= 0, self.hlo, -1 - event_name[integers(ops, "event")].astype(np.int64))
        # A -done has the key of its -start.
        self.done = np.zeros(len(code), np.bool_)
        self.asynchronous = np.zeros(len(code), np.bool_)
        communicating = np.isin(code, _COMMUNICATING)
        for key in np.unique(self.key[communicating]).tolist():
            transfer = self._transfer(key)
            mine = communicating & (self.key == key)
            self.done[mine] = transfer.done
            opcode = self._see.opcode(key) if key >= 0 else ""
            self.asynchronous[mine] = transfer.done or opcode.endswith("-start") or opcode in ("send", "recv")
            self.key[mine] = transfer.starter
        phase_of_step = profile["steps"]["phase"].to_pylist()
        of_window = [
            phase_of_step[step] if kind == "step" else kind
            for kind, step in zip(*(profile["windows"][name].to_pylist() for name in ("kind", "step")), strict=True)
        ]
        self.phases = sorted(set(of_window))
        self.phase_of_window = np.array([self.phases.index(name) for name in of_window], np.int64)
        self._sums: dict[tuple[int, int, int], dict[str, int]] = {}

    def _transfer(self, key: int) -> _Transfer:
        if key not in self._transfers:
            found = _of_instruction(self._see, key) if key >= 0 else _of_name(self._names[-1 - key], key)
            self._transfers[key] = found
        return self._transfers[key]

    def sum_lane(self, profile: Profile, lane: int) -> None:
        """Add the leaves of one lane to the sums."""
        mine = np.flatnonzero(self.lane == lane)
        cover = cover_leaves(self.code[mine], self.start[mine], self.end[mine], self.open_end[mine])
        table = profile["windows"]
        kinds = table["kind"].to_pylist()
        lows, highs = integers(table, "start_ps"), integers(table, "end_ps")
        tiles = np.flatnonzero((integers(table, "lane") == lane) & np.array([k != "nested" for k in kinds]))
        tiles = tiles[highs[tiles] > lows[tiles]]
        tiles = tiles[np.argsort(lows[tiles], kind="stable")]
        windows = (lows[tiles], highs[tiles])
        for code in _COMMUNICATING:
            rows = mine[self.code[mine] == code]
            if len(rows):
                self._sum_class(code, rows, cover, self.phase_of_window[tiles], windows)

    def _sum_class(self, code: int, rows: Int64, cover: LaneCover, phase: Int64, windows: intervals.Intervals) -> None:
        if code == _MEMORY:
            keys = np.unique(self.key[rows]).tolist()
            shown = np.isin(self.key, [key for key in keys if self._transfer(key).kind == "d2d"])
        else:
            shown = np.ones(len(self.key), np.bool_)
        leaf, start, end = intervals.first_started(self.start[rows], self.open_end[rows])
        exposed = cover.exclusive[code]
        piece, tile, low, high = intervals.overlaps((start, end), windows)
        self._add(code, rows[leaf[piece]], phase[tile], shown, total_ps=high - low)
        self._add(code, rows[leaf[piece]], phase[tile], shown, in_flight_ps=high - low)
        self._add(code, rows[leaf[piece]], phase[tile], shown, exposed_ps=intervals.cover(exposed, low, high))
        first, begin, finish, unpaired = self._executions(rows)
        # What is in flight while no leaf of the class runs.
        owner, start, end = intervals.first_started(begin, finish)
        if len(owner):
            apart = intervals.complement(cover.total[code], int(start[0]), int(end.max()))
            piece, _, start, end = intervals.overlaps((start, end), apart)
            owner = owner[piece]
            piece, tile, low, high = intervals.overlaps((start, end), windows)
            by = first[owner[piece]]
            self._add(code, by, phase[tile], shown, in_flight_ps=high - low)
            idle = (high - low) - intervals.cover(cover.busy, low, high)
            self._add(code, by, phase[tile], shown, idle_ps=idle)
        place = np.searchsorted(windows[1], begin, side="right")
        inside = place < len(phase)
        at, by = phase[place[inside]], first[inside]
        self._add(code, by, at, shown, count=np.ones(len(by), np.int64))
        self._add(code, by, at, shown, unpaired=unpaired[inside].astype(np.int64))
        self._add(code, by, at, shown, duration_ps=(finish - begin)[inside])

    def _executions(self, rows: Int64) -> tuple[Int64, Int64, Int64, np.ndarray[Any, np.dtype[np.bool_]]]:
        """(leaf that speaks for it, start, end, unpaired) of every execution; a -start and its -done are one."""
        alone = rows[~self.asynchronous[rows]]
        parts = [(alone, self.start[alone], self.open_end[alone], np.zeros(len(alone), np.bool_))]
        pending = rows[self.asynchronous[rows]]
        order = np.lexsort((self.start[pending], self.done[pending], self.key[pending], self.run[pending]))
        pending = pending[order]
        if len(pending):
            done = self.done[pending]
            group = np.cumsum(np.r_[0, (np.diff(self.run[pending]) != 0) | (np.diff(self.key[pending]) != 0)])
            groups = int(group[-1]) + 1
            whole = np.bincount(group[done], minlength=groups) == np.bincount(group[~done], minlength=groups)
            # Of a whole group the k-th start and the k-th done stand at the same place of these two.
            starts, dones = pending[~done & whole[group]], pending[done & whole[group]]
            whole[group[~done & whole[group]][self.start[starts] > self.start[dones]]] = False
            starts, dones = pending[~done & whole[group]], pending[done & whole[group]]
            parts.append((starts, self.start[starts], self.open_end[dones], np.zeros(len(starts), np.bool_)))
            rest = pending[~whole[group]]
            parts.append((rest, self.start[rest], self.open_end[rest], np.ones(len(rest), np.bool_)))
        first, begin, end, unpaired = (np.concatenate([part[i] for part in parts]) for i in range(4))
        return first, begin, np.maximum(begin, end), unpaired

    def _add(self, code: int, leaf: Int64, phase: Int64, shown: np.ndarray[Any, Any], **amount: Int64) -> None:
        ((name, amounts),) = amount.items()
        keep = shown[leaf]
        pairs = np.stack([self.key[leaf[keep]], phase[keep]], axis=1)
        found, member = np.unique(pairs, axis=0, return_inverse=True)
        sums = np.zeros(len(found), np.int64)
        np.add.at(sums, member.reshape(-1), amounts[keep])
        for (key, at), value in zip(found.tolist(), sums.tolist(), strict=True):
            entry = self._sums.setdefault((code, key, at), {})
            entry[name] = entry.get(name, 0) + value

    def rows(self, profile: Profile) -> list[dict[str, Any]]:
        """The sums as rows of _SCHEMA, one per instruction and phase."""
        texts = Texts(profile)
        out = []
        for (code, key, phase), sums in sorted(self._sums.items()):
            transfer = self._transfer(key)
            said = texts.describe(key) if key >= 0 else {"source": "", "program": ""}
            row: dict[str, Any] = {
                "class": CLASSES[code],
                "kind": transfer.kind,
                "source": said["source"],
                "program": said["program"],
                "participants": transfer.participants,
                "phase": self.phases[phase],
                **{name: sums.get(name, 0) for name in ("count", "unpaired", *TIMES)},
            }
            for name in _AMOUNTS:
                value = getattr(transfer, name)
                row[name] = Decimal(0 if value is None else value * row["count"])
                row[f"{name}_known"] = 0 if value is None else row["count"]
            out.append(row)
        return out


def _of_instruction(see: Instructions, op: int) -> _Transfer:
    opcode = see.opcode(op)
    operands = see.operands(op)
    if opcode.endswith("-done") and operands:
        started = see.opcode(operands[0])
        if started in (opcode.removesuffix("-done"), f"{opcode.removesuffix('-done')}-start"):
            of = _of_instruction(see, operands[0])
            return _Transfer(of.kind, operands[0], True, of.participants, of.bytes, of.network_bytes)
    stem = opcode.removesuffix("-start").removesuffix("-done")
    if stem in COLLECTIVES:
        groups = group_sizes(see, op)
        participants = next(iter(groups)) if len(groups) == 1 and not stem.endswith(("permute", "broadcast")) else None
        size = _bytes_of(see, operands)
        if stem == "all-gather":
            size = None if size is None or participants is None else size * participants
        return _Transfer(stem, op, opcode.endswith("-done"), participants, size, network_bytes(opcode, see, op, groups))
    if stem in ("send", "recv"):
        # The first element of a receive's tuple is what is received.
        received = [array.bytes for array in see.arrays(op) if array.element <= 0]
        size = received[0] if stem == "recv" and len(received) == 1 else None
        return _Transfer(
            stem, op, opcode.endswith("-done"), None, _bytes_of(see, operands[:1]) if stem == "send" else size
        )
    if stem == "infeed":
        sizes = [array.bytes for array in see.arrays(op)]
        return _Transfer(
            "h2d", op, bytes=None if not sizes or None in sizes else sum(s for s in sizes if s is not None)
        )
    if stem == "outfeed":
        return _Transfer("d2h", op, bytes=_bytes_of(see, operands[:1]))
    if stem == "copy":
        to = [array.space for array in see.arrays(op)[:1]]
        come_from = [array.space for operand in operands[:1] for array in see.arrays(operand)[:1]]
        kind = "d2h" if HOST_MEMORY in to else "h2d" if HOST_MEMORY in come_from else "d2d"
        if HOST_MEMORY in to and HOST_MEMORY in come_from:
            kind = "h2h"
        return _Transfer(kind, op, opcode.endswith("-done"), bytes=_bytes_of(see, operands[:1]))
    return _Transfer("other", op)


def _of_name(name: str, key: int) -> _Transfer:
    if name in host_names.COPIES_TO_DEVICE:
        return _Transfer("h2d", key)
    return _Transfer(next((kind for test, kind in _BY_NAME if re.search(test, name, re.IGNORECASE)), "other"), key)


def _bytes_of(see: Instructions, operands: list[int]) -> int | None:
    sizes = [array.bytes for operand in dict.fromkeys(operands) for array in see.arrays(operand)]
    return None if not sizes or None in sizes else sum(size for size in sizes if size is not None)


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Sums per key."""
    return _summed(a if b is None else pa.concat_tables([a, b]), KEYS)


def _summed(table: pa.Table, keys: list[str]) -> pa.Table:
    summed = table.group_by(keys).aggregate([(name, "sum") for name in _SUMS])
    summed = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])
    return summed.select([*keys, *_SUMS]).cast(pa.schema([_SCHEMA.field(name) for name in (*keys, *_SUMS)]))


def finish(merged: pa.Table, phases: tuple[str, ...]) -> pa.Table:
    """Over steps of these phases (all of the capture, if there is no step), most exposed first.

    Columns: KEYS without phase, count, unpaired, TIMES, hidden_ps, bytes and network_bytes (decimal, null unless known
    of every execution), bus_bytes_per_s.
    """
    used = merged.filter(pc.is_in(merged["phase"], pa.array(phases)))
    keys = [key for key in KEYS if key != "phase"]
    table = _summed(used if used.num_rows else merged, keys)
    order = [(name, "descending") for name in ("exposed_ps", "in_flight_ps")]
    table = table.sort_by([*order, *((key, "ascending") for key in keys)])
    hidden = pc.subtract(table["in_flight_ps"], pc.add(table["exposed_ps"], table["idle_ps"]))
    columns: dict[str, Any] = {name: table[name] for name in (*keys, "count", "unpaired", *TIMES)}
    columns["hidden_ps"] = hidden
    for name in _AMOUNTS:
        known = pc.and_(pc.equal(table[f"{name}_known"], table["count"]), pc.greater(table["count"], 0))
        columns[name] = pc.if_else(known, table[name], pa.scalar(None, _COUNT))
    rates = [
        int(sent) * 10**12 // duration if sent and duration and not unpaired else None
        for sent, duration, unpaired in zip(
            columns["network_bytes"].to_pylist(),
            table["duration_ps"].to_pylist(),
            table["unpaired"].to_pylist(),
            strict=True,
        )
    ]
    return pa.table({**columns, "bus_bytes_per_s": pa.array(rates, pa.int64())})
