"""From a shard's bytes to the columns of its tables: CPU nanoseconds per event, and events per second of one core.

    python benchmarks/shard_columns.py [--events 10000000] [--rounds 5]

Shards of made-up spans, one after the other (flat), inside one another to three levels (nested: 100 in 10 in 1), and
nested with one integer argument each. Measured with warm files, CPU time of the process, the least of the rounds:

new memory  storing into as much new memory as the columns of an event take: the kernel's part of `decode`
read file   np.fromfile: the file's bytes into new memory
checksum    over all chunks
decode      the slots, in memory, to sorted columns
arguments   those of the slots to columns
read_shard  the whole: the last four and what joins them
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from xprof_py import _native
from xprof_py.postprocess.readers.shard import read_shard

EVENTS_OF_A_CHUNK = 65_536
COLUMN_BYTES = 8 + 8 + 4 + 4 + 1
SLOT = np.dtype([("start", "<u8"), ("duration", "<u8"), ("name", "<u4"), ("kind", "u1"), ("flags", "u1")])
SLOT = np.dtype([*((name, SLOT[name]) for name in SLOT.names or ()), ("schema", "<u2"), ("value", "<u8")])


def spans(count: int, nested: bool, schema: int) -> np.ndarray[Any, Any]:
    """Slots in the order in which the spans end; with ``nested`` every tenth encloses nine, every hundredth those."""
    slots = np.zeros(count, SLOT)
    i = np.arange(count, dtype=np.uint64)
    slots["start"], slots["duration"] = 10_000 + 100 * i, 60
    if nested:
        for every in (10, 100):
            outer = slots[every - 1 :: every]
            outer["duration"] = 100 * every - 40 + (every == 100)
            outer["start"] -= np.uint64(100 * (every - 1) + (every == 100))
    slots["name"], slots["kind"], slots["flags"], slots["schema"] = 2 + i % 30, 1, 1, schema
    slots["value"] = i
    return slots


def chunk(sequence: int, kind: int, body: bytes) -> bytes:
    raw = struct.pack("<IHHQIIQ", 0x43525058, kind, 0, len(body), sequence, 0, 0) + body
    return raw[:24] + struct.pack("<Q", _native.shard_checksum(raw, 24)) + raw[32:]


def write(path: Path, slots: np.ndarray[Any, Any]) -> None:
    raw = struct.pack("<8sIIQIIQQ40s32xQ", b"XPRSHARD", 1, 128, 77, 3, 0, 1 << 34, 4096, b"boot", 0)
    raw = raw[:-8] + struct.pack("<Q", _native.shard_checksum(raw, 120))
    last = 20_000 + 100 * len(slots)
    clock = b"".join(struct.pack("<QqqQ", at, at, at, 5) for at in np.linspace(1000, last, 20).astype(int).tolist())
    names = b"".join(struct.pack("<II8s", i, 8, b"name  %02d" % i) for i in range(2, 33))
    schemas = struct.pack("<IIQII", 1, 1, 1, 32, 0)
    bodies = [(5, clock), (1, names), (2, schemas), (3, struct.pack("<IIQ8s", 0, 6, 900, b"worker"))]
    with path.open("wb") as file:
        file.write(raw)
        for sequence, (kind, body) in enumerate(bodies):
            file.write(chunk(sequence, kind, body))
        for i, begin in enumerate(range(0, len(slots), EVENTS_OF_A_CHUNK)):
            file.write(chunk(4 + i, 4, slots[begin : begin + EVENTS_OF_A_CHUNK].tobytes()))


def least(rounds: int, work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time_ns()
        work()
        best = min(best, time.process_time_ns() - began)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{options.events} events, ns of CPU time an event (M events/s of one core)")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.xpr")
        for case, nested, schema in (("flat", False, 0), ("nested", True, 0), ("nested, one argument", True, 1)):
            slots = spans(options.events, nested, schema)
            write(path, slots)
            raw = slots.view(np.uint8)
            parts = [(0, raw[i : i + 32 * EVENTS_OF_A_CHUNK]) for i in range(0, len(raw), 32 * EVENTS_OF_A_CHUNK)]
            ticks = np.linspace(1000, 20_000 + 100 * len(slots), 20).astype(np.uint64)
            points = (ticks, ticks.astype(np.int64) * 1000, np.full(19, 1000.0))

            def decode(parts: Any = parts, points: Any = points) -> object:
                return _native.decode_shard_events(parts, 1, *points, 33)

            def sums(parts: Any = parts) -> object:
                return [_native.shard_checksum(body, 24) for _, body in parts]

            first = np.arange(options.events, dtype=np.uint32)
            schemas = (
                np.array([255, 1], np.uint8),
                np.zeros(2, np.uint32),
                np.zeros(1, np.uint32),
                np.ones(2, np.uint64),
            )

            bodies = [body for _, body in parts]

            def arguments(bodies: Any = bodies, first: Any = first, of: Any = schemas) -> object:
                return _native.decode_shard_args(bodies, first, *of, 33)

            assert read_shard(path)["events"].num_rows == options.events
            works: list[tuple[str, Callable[[], object]]] = [
                ("new memory", lambda: np.empty(COLUMN_BYTES * options.events, np.uint8).fill(1)),
                ("read file", lambda: np.fromfile(path, np.uint8)),
                ("checksum", sums),
                ("decode", decode),
                *([("arguments", arguments)] if schema else []),
                ("read_shard", lambda: read_shard(path)),
            ]
            for name, work in works:
                ns = least(options.rounds, work) / options.events
                print(f"  {case:22}{name:12}{ns:8.1f}  ({1000 / ns:.0f})")


if __name__ == "__main__":
    main()
