"""The sampled stacks of a shard: its FRAMES, STACKS, SAMPLES and SAMPLER chunks as the tables of schema.py."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from xprof_py.postprocess import schema
from xprof_py.postprocess.readers.shard_clock import Note

FRAMES, STACKS, SAMPLES, SAMPLER = range(8, 12)
"""Chunk types, as in shard_format.h."""

_FRAME_BYTES = 16
_SAMPLE = np.dtype(
    [("tick", "<u8"), ("cpu_ns", "<u8"), ("interval_us", "<u4"), ("os_tid", "<u4"), ("stack", "<u4"), ("flags", "<u4")]
)
_ON_CPU = 1
_LONGEST_NS = 2**62 // 1000

Array = np.ndarray[Any, Any]


@dataclass
class ShardStacks:
    """What the chunks of one shard hold, not yet joined. Ids are those of the file."""

    frames: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    stacks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    samples: list[Array] = field(default_factory=list)
    totals: tuple[int, int, int, int] | None = None

    def take(self, kind: int, body: Array) -> bool:
        """Take one chunk apart; False: it is of another type. Raises struct.error or ValueError for nonsense in it."""
        if kind == FRAMES:
            for identity, file, function, line in struct.iter_unpack("<4I", body.tobytes()):
                self.frames[identity] = (file, function, line)
        elif kind == STACKS:
            self._take_stacks(body.tobytes())
        elif kind == SAMPLES:
            if len(body) % _SAMPLE.itemsize:
                raise ValueError(len(body))
            self.samples.append(body)
        elif kind == SAMPLER:
            self.totals = struct.unpack_from("<4Q", body.data)
        else:
            return False
        return True

    def take_cut(self, kind: int, body: Array) -> None:
        """Take the whole records of a chunk that the end of the file cuts."""
        size = {FRAMES: _FRAME_BYTES, SAMPLES: _SAMPLE.itemsize}.get(kind)
        if size is not None and len(body) >= size:
            self.take(kind, body[: len(body) // size * size])

    def _take_stacks(self, raw: bytes) -> None:
        at = 0
        while at < len(raw):
            identity, count = struct.unpack_from("<2I", raw, at)
            self.stacks[identity] = struct.unpack_from(f"<{count}I", raw, at + 8)
            at += 8 + (4 * count + 7) // 8 * 8

    def sampled_tids(self) -> list[int]:
        """The kernel's ids of the threads that have samples, ascending."""
        tids: list[int] = np.unique(self._all()["os_tid"]).tolist()
        return tids

    def _all(self) -> Array:
        if not self.samples:
            return np.zeros(0, _SAMPLE)
        return np.concatenate(self.samples).view(_SAMPLE)

    def tables(
        self,
        strings: Mapping[int, str],
        line_of_tid: Mapping[int, int],
        to_ps: Callable[[Array], Array] | None,
        note: Note,
    ) -> dict[str, pa.Table]:
        """The tables stack_samples, stacks and frames.

        Args:
            strings: of the shard, by id.
            line_of_tid: row of `lines` for every thread of ``sampled_tids``.
            to_ps: ticks to picoseconds; None where the shard has too few clock samples to tell.
            note: takes (severity, code, place, count, message) for what could not be read.
        """
        samples = self._all()
        self._note_losses(note)
        if to_ps is None or not len(samples):
            return {name: schema.empty(name) for name in ("stack_samples", "stacks", "frames")}
        frame_row = {identity: row for row, identity in enumerate(sorted(self.frames))}
        stack_row = {identity: row for row, identity in enumerate(sorted(self.stacks))}
        used = [int(i) for i in np.unique(samples["stack"]) if i]
        lost = [i for i in used if i not in stack_row]
        if lost:
            count = int(np.isin(samples["stack"], lost).sum())
            note("error", "unknown_stack", "", count, "samples whose stack's record is damaged; read without it")
        row_of = np.full(max(used, default=0) + 1, -1, np.int64)
        for identity in used:
            row_of[identity] = stack_row.get(identity, -1)
        stack = row_of[samples["stack"]]
        tids, thread = np.unique(samples["os_tid"], return_inverse=True)
        line = np.array([line_of_tid[int(tid)] for tid in tids], np.int32)[thread]
        time_ps = to_ps(samples["tick"].astype(np.uint64))
        interval_ps = samples["interval_us"].astype(np.int64) * 1_000_000
        cpu_ps = np.minimum(samples["cpu_ns"], _LONGEST_NS).astype(np.int64) * 1000
        order = np.lexsort((time_ps, line))
        return {
            "stack_samples": schema.table(
                "stack_samples",
                {
                    "line": line[order],
                    "time_ps": time_ps[order],
                    "interval_ps": interval_ps[order],
                    "cpu_ps": cpu_ps[order],
                    "on_cpu": (samples["flags"][order] & _ON_CPU) != 0,
                    "stack": pa.array(stack[order], pa.int32(), mask=stack[order] < 0),
                },
            ),
            "stacks": self._stacks_table(stack_row, frame_row, note),
            "frames": self._frames_table(frame_row, strings, note),
        }

    def _stacks_table(self, stack_row: dict[int, int], frame_row: dict[int, int], note: Note) -> pa.Table:
        members = [(row, self.stacks[identity]) for identity, row in stack_row.items()]
        frame_ids = [frame for _, frames in members for frame in frames]
        lost = sum(1 for frame in frame_ids if frame and frame not in frame_row)
        if lost:
            note("error", "unknown_frame", "", lost, "frames of stacks whose record is damaged")
        return schema.table(
            "stacks",
            {
                "stack": [row for row, frames in members for _ in frames],
                "depth": [depth for _, frames in members for depth in range(len(frames))],
                "frame": [frame_row.get(frame) for frame in frame_ids],
            },
        )

    def _frames_table(self, frame_row: dict[int, int], strings: Mapping[int, str], note: Note) -> pa.Table:
        rows = [self.frames[identity] for identity in frame_row]
        lost = {text for file, function, _ in rows for text in (file, function)} - set(strings)
        if lost:
            note("error", "unknown_string", "", len(lost), "names in stacks whose record is damaged")
        return schema.table(
            "frames",
            {
                "file": [strings.get(file, f"(unknown {file})") for file, _, _ in rows],
                "function": [strings.get(function, f"(unknown {function})") for _, function, _ in rows],
                "source_line": [min(line, 2**31 - 1) for _, _, line in rows],
            },
        )

    def _note_losses(self, note: Note) -> None:
        if self.totals is None:
            return
        _, dropped, more_frames, more_stacks = self.totals
        for code, severity, count, message in (
            ("samples_dropped", "warning", dropped, "sampled stacks dropped: the shard's budget, its disk or memory"),
            ("more_frames", "warning", more_frames, "frames of sampled stacks past the limit of places in code"),
            ("more_stacks", "warning", more_stacks, "samples whose stack is past the limit of distinct stacks"),
        ):
            if count:
                note(severity, code, "", count, message)
