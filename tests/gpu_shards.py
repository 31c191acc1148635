"""Shards with what GPUs did, made by hand, byte by byte as native/include/xprof_py/shard_format.h says.

Times are nanoseconds since the shard's beginning (its ticks are nanoseconds, so spans and device work are on one axis
exactly). ``GpuShard`` collects records; ``write`` makes the file, ``joined`` reads and joins it.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xprof_py import _native
from xprof_py.postprocess import schema
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.process import with_programs
from xprof_py.postprocess.readers.shard import read_shard
from xspace_schema import HloProto

START_NS = 1_796_010_971_000_000_000
NONE = 0xFFFFFFFF
STRINGS, SCHEMAS, THREADS, EVENTS, CLOCK, _, END = range(1, 8)
DEVICES, ACTIVITIES, CALLS, GRAPH_NODES, COLLECTOR = range(15, 20)
SPAN, STEP = 1, 2
KERNEL, MEMCPY, MEMSET, GRAPH, SYNC, OVERHEAD = range(1, 7)


def chunk(sequence: int, kind: int, body: bytes, thread: int = 0) -> bytes:
    raw = struct.pack("<IHHQIIQ", 0x43525058, kind, 0, len(body), sequence, thread, 0) + body
    whole = np.frombuffer(raw, np.uint8).copy()
    return raw[:24] + struct.pack("<Q", _native.shard_checksum(whole, 24)) + raw[32:]


class GpuShard:
    """A process with threads 900, 901, ... and GPUs."""

    def __init__(self, end_ns: int, clock: list[tuple[int, int, int]] | None = None) -> None:
        """``clock``: (tick, monotonic, realtime since START_NS) of the clock samples, else one at each end."""
        self.clock = clock or [(0, 0, 0), (end_ns, end_ns, end_ns)]
        self.strings: dict[str, int] = {"(more names)": 0, "(more texts)": 1}
        self.spans: dict[int, list[tuple[int, int, bytes]]] = {}
        self.activities: list[bytes] = []
        self.calls: list[bytes] = []
        self.nodes: list[bytes] = []
        self.devices: list[bytes] = []
        self.totals: dict[str, int] = {}
        self.hlo: list[tuple[int, str, bytes]] = []
        self.next_id = 1

    def text(self, text: str | None) -> int:
        return NONE if text is None else self.strings.setdefault(text, len(self.strings))

    def span(self, tid: int, name: str, start: int, end: int, kind: int = SPAN, number: int | None = None) -> None:
        """A span of a thread; with ``number`` a step."""
        if number is not None:
            kind = STEP
        raw = struct.pack("<QQIBBHQ", start, end - start, self.text(name), kind, 1, number is not None, number or 0)
        self.spans.setdefault(tid, []).append((end, -start, raw))

    def call(
        self,
        start: int,
        end: int,
        tid: int = 900,
        name: str = "cuLaunchKernel",
        correlation: int | None = None,
        range: str | None = None,
        result: int = 0,
    ) -> int:
        """A call of CUDA; returns its correlation id."""
        number = self.next_id if correlation is None else correlation
        self.next_id = max(self.next_id, number + 1)
        times = START_NS + start, START_NS + end
        self.calls.append(
            struct.pack("<qq8I", *times, tid, number, 2, 307, self.text(name), result, self.text(range), 0)
        )
        return number

    def _activity(self, kind: int, start: int, end: int, name: str | None, shape: bytes, **at: Any) -> None:
        known = {"device": 0, "context": 1, "stream": 7, "correlation": 0, "graph": 0, "range": None, "node": 0, **at}
        ids = (known[key] for key in ("device", "context", "stream", "correlation", "graph"))
        head = struct.pack("<qq", START_NS + start, START_NS + end)
        head += struct.pack("<8IQ", kind, self.text(name), *ids, self.text(known["range"]), known["node"])
        self.activities.append(head + shape.ljust(40, b"\0"))

    def kernel(self, name: str, start: int, end: int, correlation: int = 0, **at: Any) -> None:
        self._activity(
            KERNEL, start, end, name, struct.pack("<9I", 4, 2, 1, 128, 1, 1, 32, 16, 64), correlation=correlation, **at
        )

    def copy(self, start: int, end: int, correlation: int, size: int, kind: int = 1, **at: Any) -> None:
        memory = at.pop("memory", (2, 3))
        peer = at.pop("peer", at.get("device", 0))
        shape = struct.pack("<Q4I", size, kind, *memory, peer)
        self._activity(MEMCPY, start, end, None, shape, correlation=correlation, **at)

    def fill(self, start: int, end: int, correlation: int, size: int, **at: Any) -> None:
        self._activity(
            MEMSET, start, end, None, struct.pack("<Q5I", size, 0, 0, 3, 0, 7), correlation=correlation, **at
        )

    def graph(self, start: int, end: int, correlation: int, graph: int, **at: Any) -> None:
        self._activity(GRAPH, start, end, None, b"", correlation=correlation, graph=graph, **at)

    def wait(self, start: int, end: int, kind: int, **at: Any) -> None:
        self._activity(SYNC, start, end, None, struct.pack("<2I", kind, 900), **at)

    def overhead(self, start: int, end: int, kind: int) -> None:
        self._activity(OVERHEAD, start, end, None, struct.pack("<2I", kind, 900))

    def launch(self, name: str, called: tuple[int, int], ran: tuple[int, int], tid: int = 900, **at: Any) -> int:
        """A call and the kernel that it launches."""
        range = at.pop("range", None)
        number = self.call(*called, tid=tid, range=range, correlation=at.pop("correlation", None))
        self.kernel(name, *ran, number, range=range, **at)
        return number

    def node(self, node: int, range: str | None, original: int = 0, graph: int = 1) -> None:
        self.nodes.append(struct.pack("<QQII", node, original, graph, self.text(range)))

    def device(self, ordinal: int = 0, name: str = "NVIDIA H200") -> None:
        uuid = bytes(range(16))
        self.devices.append(
            struct.pack("<II16sIIIIQQ", ordinal, self.text(name), uuid, 9, 0, 132, 1_980_000, 141 << 30, 4_800_000_000)
        )

    def program(self, program_id: int, name: str, hlo: bytes) -> None:
        """A compiled program, as XLA's HloProto."""
        self.hlo.append((program_id, name, hlo))

    def shuffled(self, seed: int) -> GpuShard:
        """The same with its records in another order: that in which a device's tracer tells is not that of time."""
        for records in (self.activities, self.calls, self.nodes):
            random.Random(seed).shuffle(records)
        return self

    def write(self, path: Path) -> Path:
        """Write the shard; several chunks of activities."""
        tids = sorted({*self.spans, 900})
        header = struct.pack("<8sIIQIIQQ40s32xQ", b"XPRSHARD", 1, 128, 77, 3, 0, 1 << 30, 4096, b"boot", 0)
        whole = np.frombuffer(header, np.uint8).copy()
        header = header[:-8] + struct.pack("<Q", _native.shard_checksum(whole, 120))
        step_num = self.text("step_num")
        strings = b"".join(
            struct.pack("<II", i, len(t.encode())) + t.encode() + bytes(-len(t.encode()) % 8)
            for t, i in self.strings.items()
        )
        stamps = b"".join(struct.pack("<QqqQ", t, m, START_NS + r, 5) for t, m, r in self.clock)
        threads = b"".join(struct.pack("<IIQ", i, 8, tid) + f"thread{i:2}".encode() for i, tid in enumerate(tids))
        chunks: list[tuple[Any, ...]] = [
            (CLOCK, stamps),
            (STRINGS, strings),
            (SCHEMAS, struct.pack("<IIQI4x", 1, 1, 1, step_num)),
            (THREADS, threads),
        ]
        for index, tid in enumerate(tids):
            spans = b"".join(raw for _, _, raw in sorted(self.spans.get(tid, []), key=lambda s: s[:2]))
            if spans:
                chunks.append((EVENTS, spans, index))
        half = len(self.activities) // 2
        for kind, records in (
            (DEVICES, self.devices),
            (GRAPH_NODES, self.nodes),
            (CALLS, self.calls),
            (ACTIVITIES, self.activities[:half]),
            (ACTIVITIES, self.activities[half:]),
        ):
            if records:
                chunks.append((kind, b"".join(records)))
        written = len(self.activities) + len(self.calls) + len(self.nodes)
        names = ("dropped_source", "dropped_buffers", "dropped_budget", "dropped_error", "unknown_kinds", "clamped")
        said = [self.totals.get("written", written), *(self.totals.get(name, 0) for name in names)]
        chunks.append((COLLECTOR, struct.pack("<9Q2I", *said, 3, 1000, 130001, 0)))
        chunks.append((END, struct.pack("<14Q", *[0] * 14)))
        path.write_bytes(header + b"".join(chunk(i, *c) for i, c in enumerate(chunks)))
        return path

    def read(self, folder: Path) -> Profile:
        """What reading makes of it, with its programs."""
        profile = read_shard(self.write(folder / "0-77.xpr"))
        if not self.hlo:
            return profile
        ids, names, hlo = (list(column) for column in zip(*self.hlo, strict=True))
        columns = {"program_id": ids, "name": names, "hlo": pa.array(hlo, pa.large_binary())}
        return with_programs(profile, schema.table("programs", columns))

    def joined(self, folder: Path) -> Profile:
        """What reading and joining make of it."""
        return join_profile(self.read(folder))


def scheduled(name: str, program_id: int, *computations: tuple[str, list[tuple[str, str, tuple[str, ...]]]]) -> bytes:
    """A scheduled HloProto: (computation, [(instruction, opcode, computations that it calls)]); the first is the entry.

    The order is the schedule's; an opcode may be `custom-call:` and its target. Of a fusion nothing inside is given:
    only what is executed has a schedule.
    """
    hlo = HloProto()
    module = hlo.hlo_module
    module.name, module.id, module.entry_computation_id = name, program_id, 1
    number = {computation: at for at, (computation, _) in enumerate(computations, 1)}
    for computation, instructions in computations:
        made = module.computations.add(name=computation, id=number[computation])
        for row, (instruction, opcode, called) in enumerate(instructions):
            code, _, target = opcode.partition(":")
            added = made.instructions.add(name=instruction, opcode=code, id=number[computation] * 1000 + row)
            added.custom_call_target = target
            added.shape.element_type = 11
            added.called_computation_ids.extend(number[inner] for inner in called)
            module.schedule.sequences[number[computation]].instruction_ids.append(added.id)
        made.root_id = number[computation] * 1000 + len(instructions) - 1
    return bytes(hlo.SerializeToString())
