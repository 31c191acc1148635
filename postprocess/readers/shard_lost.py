"""Where events of a shard are lost: between the last event before what is gone and the first one behind it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from xprof_py import _native
from xprof_py.postprocess import schema
from xprof_py.postprocess.readers.shard_clock import TickMap

DAMAGED, DROPPED = "damaged", "dropped"

_Bytes = np.ndarray[Any, Any]
_U64 = np.dtype("<u8")
_CHUNK_MAGIC = 0x43525058
_HEADER_BYTES, _SIZE_AT, _CHECKSUM_AT, _SLOT_BYTES = 32, 8, 24, 32
_KIND_MORE, _PAST, _OPEN = 0xFF, 0x10, 2**64 - 1
_WORDS = 1 << 17


@dataclass
class ShardLost:
    """Places among a shard's chunks of events at which some are missing.

    ``places``: (index of the thread, None where it may be any; how many chunks of events were read before it; cause).
    """

    places: list[tuple[int | None, int, str]] = field(default_factory=list)

    def add(self, thread: int | None, chunks: int, cause: str = DAMAGED) -> None:
        """``chunks``: how many chunks of events have been read."""
        self.places.append((thread, chunks, cause))

    def table(
        self, slots: Sequence[tuple[int, _Bytes]], line_of: Mapping[int, int], ticks: TickMap | None, end_ps: int
    ) -> pa.Table:
        """The table lost_events. ``slots``: (thread, its slots) of every chunk that was read; ``line_of``: lines by
        thread; ``end_ps``: of the capture."""
        chunks_of: dict[int, list[int]] = {}
        for number, (thread, _) in enumerate(slots if self.places else ()):
            chunks_of.setdefault(thread, []).append(number)
        rows = set()
        for stated, place, cause in self.places:
            for one in line_of if stated is None else {stated} & line_of.keys():
                if ticks is None:
                    continue
                chunks = chunks_of.get(one, [])
                behind = bisect_left(chunks, place)
                # A drop is told behind the events that were in the ring with it: it may lie before them.
                before = chunks[: max(behind - (cause == DROPPED), 0)]
                since = _end_tick((slots[number][1] for number in reversed(before)), last=True)
                until = _end_tick((slots[number][1] for number in chunks[behind:]), last=False)
                low = 0 if since is None else _ps(ticks, since)
                high = end_ps if until is None else _ps(ticks, until)
                if low < high:
                    rows.add((line_of[one], low, high, cause))
        columns = zip(*sorted(rows), strict=True) if rows else [()] * 4
        return schema.table("lost_events", dict(zip(schema.TABLES["lost_events"].names, columns, strict=True)))


def next_chunk(content: _Bytes, at: int) -> int | None:
    """Where the first whole chunk from byte ``at``, a multiple of 8, on begins: one whose checksum is right."""
    words = content[at : at + (len(content) - at) // 8 * 8].view(_U64)
    for block in range(0, len(words), _WORDS):
        low = words[block : block + _WORDS] & np.uint64(0xFFFFFFFF)
        for word in np.flatnonzero(low == _CHUNK_MAGIC).tolist():
            begin = at + 8 * (block + word)
            if begin + _HEADER_BYTES > len(content):
                return None
            size, checksum = (int(content[begin + i : begin + i + 8].view(_U64)[0]) for i in (_SIZE_AT, _CHECKSUM_AT))
            end = begin + _HEADER_BYTES + size
            whole = size % 8 == 0 and end <= len(content)
            if whole and _native.shard_checksum(content[begin:end], _CHECKSUM_AT) == checksum:
                return begin
    return None


def _end_tick(bodies: Iterable[_Bytes], *, last: bool) -> int | None:
    """When the last, or the first, event of these chunks ended, in their order; None where none has an end."""
    for body in bodies:
        slots = body[: len(body) // _SLOT_BYTES * _SLOT_BYTES].view(_U64).reshape(-1, 4)
        word = slots[:, 2]
        ended = np.flatnonzero(((word >> np.uint64(32)) & np.uint64(0xFF) != _KIND_MORE) & (slots[:, 1] != _OPEN))
        if len(ended):
            start, duration, word, _ = slots[ended[-1 if last else 0]].tolist()
            return int(start if word >> 40 & _PAST else start + duration)
    return None


def _ps(ticks: TickMap, tick: int) -> int:
    return int(ticks.to_ps(np.array([tick % 2**64], _U64))[0])
