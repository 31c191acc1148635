"""A long capture made of a short one: what XLA's profiler would have written of a loop that went on.

    python benchmarks/long_capture.py SOURCE.xplane.pb[.gz] OUT.xplane.pb --events 4000000

Every line of the source is repeated, later by the capture's length each time, until the file holds so many events.
Names, stats, programs and the nesting of events stay as recorded. What must not repeat is counted on: run ids, the ids
that link the two ends of a hand-over, step numbers. Times are written as eight-byte varints whatever their value, which
is what they take from a minute on.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
TIME_BYTES = 8
COUNTED = frozenset({"run_id", "_p", "_c", "step_num"})
ID_BYTES = 10


def varint(value: int, width: int = 0) -> bytes:
    """``value`` as a base-128 varint, padded to ``width`` bytes with bits that say nothing."""
    out = bytearray()
    value &= (1 << 64) - 1
    while value >> 7 or len(out) + 1 < width:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def padded(values: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.uint8]:
    """The same for a column: shape (len(values), width)."""
    shifted = values[:, None] >> (7 * np.arange(width, dtype=np.uint64))
    out = (shifted & np.uint64(0x7F)).astype(np.uint8)
    out[:, :-1] |= 0x80
    return out


def integer_field(stat: Any) -> str | None:
    """The field that holds an XStat's integer, None where its value is something else."""
    return next((name for name in ("int64_value", "uint64_value") if stat.HasField(name)), None)


class RepeatedLine:
    """The events of one line as bytes with holes for what differs from one repetition to the next."""

    def __init__(self, line: Any, counted: dict[int, tuple[str, int]]) -> None:
        self.head = line.__class__(
            id=line.id, name=line.name, display_name=line.display_name, timestamp_ns=line.timestamp_ns
        ).SerializeToString()
        self.count = len(line.events)
        body = bytearray()
        self._times: list[tuple[int, int]] = []
        self._ids: list[tuple[int, int, int]] = []
        for event in line.events:
            parts = bytearray(b"\x08" + varint(event.metadata_id) + b"\x10")
            time_at = len(parts)
            parts += bytes(TIME_BYTES) + b"\x18" + varint(event.duration_ps)
            ids = []
            for stat in event.stats:
                field = integer_field(stat)
                if stat.metadata_id in counted and field is not None:
                    inner = b"\x08" + varint(stat.metadata_id) + (b"\x20" if field == "int64_value" else b"\x18")
                    parts += b"\x22" + varint(len(inner) + ID_BYTES) + inner
                    ids.append((len(parts), getattr(stat, field), counted[stat.metadata_id][1]))
                    parts += bytes(ID_BYTES)
                else:
                    written = stat.SerializeToString()
                    parts += b"\x22" + varint(len(written)) + written
            body += b"\x22" + varint(len(parts))
            self._times.append((len(body) + time_at, event.offset_ps))
            self._ids += [(len(body) + at, value, stride) for at, value, stride in ids]
            body += parts
        self._body = np.frombuffer(bytes(body), np.uint8)

    def nth(self, repetition: int, later_ps: int) -> bytes:
        """The bytes of the line's events, ``later_ps`` later than recorded."""
        body = self._body.copy()
        _fill(body, [at for at, _ in self._times], [offset + later_ps for _, offset in self._times], TIME_BYTES)
        _fill(body, [at for at, _, _ in self._ids], [v + repetition * by for _, v, by in self._ids], ID_BYTES)
        return body.tobytes()


def _fill(body: npt.NDArray[np.uint8], places: list[int], values: list[int], width: int) -> None:
    if places:
        columns = np.array(places)[:, None] + np.arange(width)
        body[columns] = padded(np.array([v % (1 << 64) for v in values], np.uint64), width)


def strides(space: Any) -> dict[str, int]:
    """By how much each counted stat advances with a repetition: its range in the source."""
    seen: dict[str, list[int]] = {name: [] for name in COUNTED}
    for plane in space.planes:
        names = {key: entry.name for key, entry in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                for stat in event.stats:
                    name = names.get(stat.metadata_id)
                    field = integer_field(stat)
                    if name in COUNTED and field is not None:
                        seen[name].append(getattr(stat, field))
    # One range for both ends of a hand-over, or they would part.
    seen["_p"] = seen["_c"] = seen["_p"] + seen["_c"]
    return {name: max(values) - min(values) + 1 if values else 0 for name, values in seen.items()}


def write_long(source: Path, out: Path, events: int) -> int:
    """Write at least ``events`` events; returns how many. Needs the package protobuf."""
    sys.path.insert(0, str(ROOT / "tests"))
    from xspace_schema import XSpace

    data = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    space = XSpace.FromString(data)
    step = strides(space)
    length_ps = -(-max(_ends(space), default=1) // 1_000_000) * 1_000_000
    recorded = sum(len(line.events) for plane in space.planes for line in plane.lines)
    repetitions = max(1, -(-events // max(recorded, 1)))
    lines: list[list[RepeatedLine]] = []
    for plane in space.planes:
        names = {key: entry.name for key, entry in plane.stat_metadata.items()}
        counted = {key: (name, step[name]) for key, name in names.items() if name in COUNTED}
        lines.append([RepeatedLine(line, counted) for line in plane.lines])
        del plane.lines[:]
        for stat in plane.stats:
            if names.get(stat.metadata_id) == "profile_stop_time":
                stat.uint64_value += (repetitions - 1) * length_ps // 1000
    with out.open("wb") as opened:
        _write(opened, space, lines, repetitions, length_ps)
    return recorded * repetitions


def _write(out: BinaryIO, space: Any, lines: list[list[RepeatedLine]], repetitions: int, length_ps: int) -> None:
    for plane, repeated in zip(space.planes, lines, strict=True):
        head = plane.SerializeToString()
        sizes = [len(line.head) + len(line._body) * repetitions for line in repeated]
        size = len(head) + sum(1 + len(varint(one)) + one for one in sizes)
        out.write(b"\x0a" + varint(size) + head)
        for line, one in zip(repeated, sizes, strict=True):
            out.write(b"\x1a" + varint(one) + line.head)
            for repetition in range(repetitions):
                out.write(line.nth(repetition, repetition * length_ps))
    del space.planes[:]
    out.write(space.SerializeToString())


def _ends(space: Any) -> list[int]:
    return [event.offset_ps + event.duration_ps for plane in space.planes for ln in plane.lines for event in ln.events]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    options = parser.parse_args()
    count = write_long(options.source, options.out, options.events)
    print(f"{options.out}: {count} events, {options.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
