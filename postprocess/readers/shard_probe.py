"""What the clock prober left in a shard: its PROBES, EXCHANGES and PROBER chunks as the table clock_samples."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from xprof_py.postprocess import schema
from xprof_py.postprocess.readers.shard_clock import Note

PROBES, EXCHANGES, PROBER = range(12, 15)
"""Chunk types, as in shard_format.h."""

STAMPS = ("t1_ns", "t2_ns", "t3_ns", "t4_ns", "m1_ns", "m2_ns", "m3_ns", "m4_ns")
_EXCHANGE = np.dtype(
    [
        *((name, "<i8") for name in STAMPS),
        ("peer_session", "<u8"),
        ("peer", "<u4"),
        ("outcome", "<u4"),
        ("wait2_ns", "<u4"),
        ("wait4_ns", "<u4"),
    ]
)
_OUTCOMES = ("answered", "lost", "refused", "not_sent")
_WAIT_UNKNOWN = 2**32 - 1
_UNKNOWN = 2**64 - 1
_TOTALS = (
    "written",
    "dropped",
    "served",
    "malformed",
    "bad_token",
    "replayed",
    "late",
    "rate_limited",
    "postponed",
    "cpu_ns",
)

Array = np.ndarray[Any, Any]


@dataclass
class ShardProbe:
    """What the chunks of one shard hold. ``session`` and ``port`` are those of its own prober, None without one."""

    session: int | None = None
    port: str = ""
    addresses: dict[int, str] = field(default_factory=dict)
    exchanges: list[Array] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)

    def take(self, kind: int, body: Array) -> bool:
        """Take one chunk apart; False: it is of another type. Raises struct.error or ValueError for nonsense in it."""
        if kind == PROBES:
            self._take_probes(body.tobytes())
        elif kind == EXCHANGES:
            if len(body) % _EXCHANGE.itemsize:
                raise ValueError(len(body))
            self.exchanges.append(body)
        elif kind == PROBER:
            self.totals = dict(zip(_TOTALS, struct.unpack_from(f"<{len(_TOTALS)}Q", body.data), strict=True))
        else:
            return False
        return True

    def take_cut(self, kind: int, body: Array) -> None:
        """Take the whole exchanges of a chunk that the end of the file cuts."""
        if kind == EXCHANGES:
            self.take(kind, body[: len(body) // _EXCHANGE.itemsize * _EXCHANGE.itemsize])

    def _take_probes(self, raw: bytes) -> None:
        at = 0
        while at < len(raw):
            identity, length, session = struct.unpack_from("<IIQ", raw, at)
            if at + 16 + length > len(raw):
                raise ValueError(length)
            text = raw[at + 16 : at + 16 + length].decode("utf-8", "replace")
            if identity == 0:
                self.session, self.port = session, text
            else:
                self.addresses[identity] = text
            at += 16 + (length + 7) // 8 * 8

    def metadata(self) -> dict[str, Any] | None:
        """Session, port and totals of the shard's own prober as JSON values; None: there was none."""
        if self.session is None and not self.totals:
            return None
        totals = {name: None if value == _UNKNOWN else value for name, value in self.totals.items()}
        return {"session": self.session, "port": int(self.port) if self.port.isdecimal() else None, "totals": totals}

    def table(self, note: Note) -> pa.Table:
        """The table clock_samples, in the order of asking. ``note`` takes (severity, code, place, count, message)."""
        self._note_losses(note)
        if not self.exchanges:
            return schema.empty("clock_samples")
        rows = np.concatenate(self.exchanges).view(_EXCHANGE)
        known = (rows["outcome"] < len(_OUTCOMES)) & np.isin(rows["peer"], list(self.addresses))
        if not known.all():
            count = int((~known).sum())
            note("error", "unknown_peer", "", count, "exchanges whose peer's record is damaged; not read")
            rows = rows[known]
        rows = rows[np.lexsort((rows["peer"], rows["m1_ns"]))]
        silent = rows["outcome"] != 0
        ids = sorted(self.addresses)
        row_of = np.searchsorted(ids, rows["peer"]).astype(np.int32)
        columns: dict[str, Any] = {
            "session": pa.repeat(pa.scalar(self.session, pa.uint64()), len(rows)),
            "address": pa.DictionaryArray.from_arrays(pa.array(row_of), pa.array([self.addresses[i] for i in ids])),
            "peer_session": pa.array(rows["peer_session"], pa.uint64(), mask=silent),
            "outcome": pa.DictionaryArray.from_arrays(pa.array(rows["outcome"].astype(np.int32)), pa.array(_OUTCOMES)),
        }
        for name in STAMPS:
            columns[name] = pa.array(rows[name], pa.int64(), mask=None if name in ("t1_ns", "m1_ns") else silent)
        for name in ("wait2_ns", "wait4_ns"):
            columns[name] = pa.array(rows[name], pa.int64(), mask=silent | (rows[name] == _WAIT_UNKNOWN))
        return schema.table("clock_samples", columns)

    def _note_losses(self, note: Note) -> None:
        strangers = self.totals.get("malformed", 0) + self.totals.get("bad_token", 0) + self.totals.get("replayed", 0)
        limited = self.totals.get("rate_limited", 0)
        for code, severity, count, message in (
            (
                "exchanges_dropped",
                "warning",
                self.totals.get("dropped", 0),
                "exchanges of time stamps dropped: the shard's budget, its disk or memory",
            ),
            (
                "probe_strangers",
                "note",
                strangers,
                "packets at the clock prober that were not of this job, or were sent again; ignored",
            ),
            (
                "probe_flooded",
                "warning",
                0 if limited == _UNKNOWN else limited,
                "packets at the clock prober that came faster than it reads; those of other hosts may be among them",
            ),
        ):
            if count:
                note(severity, code, "", count, message)
