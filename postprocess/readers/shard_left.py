"""What a process that was killed left beside its shard: segments of a flight recorder, and the rings of its threads.

native/include/xprof_py/rings_format.h is the contract. Nothing here interprets events: it says which slots are in no
file yet, which strings and schemas they need, and which spans were open.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_HEADER = struct.Struct("<8sIIQQQQQQ")
_HEADER_BYTES = 65536
_CLOCK_AT, _BOOT_AT, _JOURNAL_AT = 64, 96, 192
_RING_HEADER_BYTES = 4096
_OPEN_AT = 256
_SLOT_BYTES = 32
_MOST_OPEN = 32
_MOST_LEFT = 64


@dataclass
class Ring:
    """One thread's: the slots that are in no file yet, and the spans that it was in, the outermost first, as slots."""

    thread: int
    tid: int
    name: str
    dropped: int
    slots: Array
    open: Array


@dataclass
class Rings:
    """All of a process. ``journal``: (type, payload) of chunks of strings and schemas. ``clock``: one clock sample.

    ``claimed``: (segment + 1 or 0, offset) of chunks of which the rings hold every slot.
    """

    rings: list[Ring] = field(default_factory=list)
    journal: list[tuple[int, Array]] = field(default_factory=list)
    clock: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    claimed: set[tuple[int, int]] = field(default_factory=set)
    skipped: int = 0


def left_beside(shard: str | os.PathLike[str]) -> list[Path]:
    """The files that belong to a shard that was not ended: segments in their order, then the rings."""
    path = Path(shard)
    found = [segment for _, segment in segments_beside(path)]
    rings = path.with_name(f"{path.name}.rings")
    return [*found, rings] if rings.is_file() else found


def segments_beside(shard: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    """``(number, file)`` of the segments beside a shard, in their order."""
    path = Path(shard)
    pattern = re.compile(re.escape(path.name) + r"\.(\d+)\.segment")
    try:
        names = os.listdir(path.parent)
    except OSError:
        return []
    matches = [(match, name) for name in names if (match := pattern.fullmatch(name))]
    return sorted((int(match[1]), path.with_name(name)) for match, name in matches)


def read_rings(shard: str | os.PathLike[str], shard_id: int, whole: Collection[tuple[int, int]]) -> Rings | str:
    """The rings beside a shard; a text that says why nothing of them is taken.

    Args:
        shard: the shard's path. shard_id: from its header.
        whole: (segment + 1 or 0, offset) of every whole chunk of events in the files.
    """
    path = f"{os.fspath(shard)}.rings"
    try:
        content = np.fromfile(path, np.uint8)
    except FileNotFoundError:
        return "its rings are not beside the shard"
    except OSError as error:
        return f"its rings cannot be read: {error.strerror}"
    if len(content) < _HEADER_BYTES or content[:8].tobytes() != b"XPRRINGS":
        return "its rings were being made"
    fields = _HEADER.unpack(content[: _HEADER.size].tobytes())
    _, version, header_bytes, pid, process_start, owner, journal_bytes, ring_bytes, stride = fields
    if version != 1 or header_bytes != _HEADER_BYTES:
        return f"its rings are of version {version}; this release reads version 1"
    if owner != shard_id:
        return "the rings beside it are those of another shard"
    boot_id = content[_BOOT_AT : _BOOT_AT + 40].tobytes().rstrip(b"\0").decode("ascii", "replace")
    if _is_alive(pid, process_start, boot_id):
        return "the process still records"
    first = header_bytes + journal_bytes
    if first > len(content) or ring_bytes % _SLOT_BYTES or stride < _RING_HEADER_BYTES + ring_bytes or not ring_bytes:
        return "the header of its rings makes no sense"
    left = Rings(clock=content[_CLOCK_AT : _CLOCK_AT + _SLOT_BYTES])
    left.skipped = _take_journal(content, header_bytes, journal_bytes, left.journal)
    for at in range(first, len(content) - stride + 1, stride):
        ring = _ring(content[at : at + _RING_HEADER_BYTES + ring_bytes], whole, left.claimed)
        if ring is not None:
            left.rings.append(ring)
    return left


def _ring(raw: Array, whole: Collection[tuple[int, int]], claimed: set[tuple[int, int]]) -> Ring | None:
    words = raw[:_RING_HEADER_BYTES].view("<u8")
    head, (tail, pending_offset, pending_tail, pending_segment) = int(words[0]), (int(word) for word in words[8:12])
    thread, tid, dropped = int(words[16]) & 0xFFFFFFFF, int(words[17]), int(words[18])
    ring = raw[_RING_HEADER_BYTES:].reshape(-1, _SLOT_BYTES)
    # A kernel's id that no kernel gives: the header is damaged.
    if not thread or tid >= 2**31:
        return None
    if pending_offset and tail < pending_tail <= head:
        # The recorder had begun to write these slots: either the whole chunk is in the file, or none of it counts.
        place = (pending_segment, pending_offset)
        if place in whole:
            tail = pending_tail
        else:
            claimed.add(place)
    if not (tail <= head < 2**62 and head - tail <= len(ring)):
        head = tail = 0
    slots = ring[np.arange(tail, head) % len(ring)].reshape(-1)
    name = raw[192:256].tobytes().split(b"\0", 1)[0].decode("utf-8", "replace")
    return Ring(thread - 1, tid, name, dropped, slots, _open(raw))


def _open(raw: Array) -> Array:
    """The spans that a thread was in: those noted in its ring's header, less those that were left on other threads."""
    count, _, left_count, left_taken = (int(word) for word in raw[_OPEN_AT : _OPEN_AT + 16].view("<u4"))
    at = _OPEN_AT + _SLOT_BYTES
    spans = raw[at : at + min(count, _MOST_OPEN) * _SLOT_BYTES]
    pending = (left_count - left_taken) % 2**32
    if pending > _MOST_LEFT:
        return spans[:0]
    at += _MOST_OPEN * _SLOT_BYTES
    left = raw[at : at + _MOST_LEFT * 8].view("<u8")[np.arange(left_taken, left_taken + pending) % _MOST_LEFT]
    slots = spans.reshape(-1, _SLOT_BYTES)
    return slots[~np.isin(slots[:, :8].copy().view("<u8")[:, 0], left)].reshape(-1)


def _take_journal(content: Array, at: int, size: int, into: list[tuple[int, Array]]) -> int:
    """Take the journal's records that are in no shard yet; returns how many had found no place in it."""
    head, tail, skipped = (int(word) for word in content[_JOURNAL_AT : _JOURNAL_AT + 24].view("<u8"))
    if not size or not (tail <= head < 2**62 and head - tail <= size):
        return skipped
    records = content[at : at + size][np.arange(tail, head) % size]
    place = 0
    while place + 8 <= len(records):
        kind, length = (int(word) for word in records[place : place + 8].view("<u4"))
        if place + 8 + length > len(records):
            break
        into.append((kind, records[place + 8 : place + 8 + length]))
        place += 8 + length
    return skipped


def _is_alive(pid: int, process_start: int, boot_id: str) -> bool:
    """Whether that very process runs here: a later one may have its pid, and its parent may not have waited for it."""
    try:
        ours = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    fields = stat.rpartition(")")[2].split()
    return ours == boot_id and fields[0] not in "ZX" and process_start in (0, int(fields[19]))
