"""The peak of one program's memory: how much, at which op, what is alive there, and what lowering it would take.

While a program runs it holds all its allocations: arguments, outputs, constants, and the block of its temporaries, from
its start to its end. XLA makes that block as large as its packing of the temporaries needs. So

    held    sum of the allocations in the device's memory, an argument that becomes an output counted once
    live    the same, with the temporaries that are alive at the peak in place of their block
    packing held - live: what is lost between temporaries in the block
    peak    the first op at which most bytes of temporaries are alive

Values that share a place (allocation and offset) at one time are one: the largest of them counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xprof_py.postprocess.hlo.liveness import Lives
from xprof_py.postprocess.hlo.shapes import DEVICE_MEMORY, Array, Instructions
from xprof_py.postprocess.hlo.trip_counts import trip_count

_I64 = npt.NDArray[np.int64]

CANDIDATES = 16
"""How many of the largest idle temporaries are tried, one after the other."""
LEAST_SAVED = 0.001
"""Advice that saves less than this part of the bytes held is left out."""
LEAST_PADDING = 0.1
"""Padding is advised on where it is at least this part of a buffer."""


class Stay(NamedTuple):
    """A place (allocation, offset) of temporaries while it is in use; ``buffers``: the values in it, their rows."""

    place: tuple[int, int]
    bytes: int
    start: int
    end: int
    buffers: tuple[int, ...]


class _Loop(NamedTuple):
    """``rounds``: its trip count, None where not known; ``first``, ``last``: the times in it."""

    op: int
    rounds: int | None
    first: int
    last: int


@dataclass(frozen=True)
class Alive:
    """One piece of memory that is held at the peak.

    ``op``: row of hlo_ops that makes its value, None where not known; ``array``: its shape, None where not known.
    ``first``, ``last``: rows of the ops between which a temporary lives; ``before``, ``after``: the ops that touch it
    last before and first after the peak, None where it is in use at the peak. All four None for what lives all along.
    """

    kind: str
    bytes: int
    op: int | None
    array: Array | None
    parameter_number: int | None = None
    first: int | None = None
    last: int | None = None
    before: int | None = None
    after: int | None = None

    @property
    def padding_bytes(self) -> int | None:
        """Bytes beyond those of the array's elements, None where its shape is not known."""
        if self.array is None or self.array.bytes is None:
            return None
        return max(self.bytes - self.array.bytes, 0)


@dataclass(frozen=True)
class Advice:
    """One change and the bytes by which it lowers the peak, given the rows of its kind above it.

    kind: `donate` (``alive`` is the argument, ``output`` what would take over its memory), `idle` (not needed between
    its ``before`` and ``after``: compute it again, or keep it elsewhere), `stacked` (a loop keeps one of each of its
    rounds for a later loop; where the body is computed again there, the largest such stack of a loop is enough, the
    loop's state), `padding` (its layout's).
    """

    kind: str
    saves_bytes: int
    alive: Alive
    output: Alive | None = None


@dataclass(frozen=True)
class Peak:
    """The memory of one program; see the module's docstring. ``bytes_of``: allocations by kind, of this space alone."""

    bytes_of: Mapping[str, int]
    host_bytes: int
    live_temporary_bytes: int
    op: int | None
    alive: list[Alive] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)

    @property
    def held_bytes(self) -> int:
        return sum(self.bytes_of.values())

    @property
    def live_bytes(self) -> int:
        return self.held_bytes - self.bytes_of["temporary"] + self.live_temporary_bytes


class Program:
    """The allocations and buffers of one program, by row of hlo_allocations and hlo_buffers."""

    def __init__(self, allocations: list[dict[str, Any]], buffers: dict[int, dict[str, Any]]) -> None:
        self.allocations = allocations
        self.buffers = buffers


def peak_of(program: Program, lives: Lives, instructions: Instructions, op_at: Mapping[int, int]) -> Peak:
    """The peak of one program. ``op_at``: its row of hlo_ops at each time."""
    host = sum(a["bytes"] for a in program.allocations if a["space"] != DEVICE_MEMORY and _is_argument_or_output(a))
    here = [a for a in program.allocations if a["space"] == DEVICE_MEMORY and a["kind"] != "thread_local"]
    bytes_of = dict.fromkeys(("argument", "donated", "output", "temporary", "constant"), 0)
    for allocation in here:
        bytes_of[allocation["kind"]] += allocation["bytes"]
    in_allocation: dict[int, list[int]] = {}
    for row, buffer in program.buffers.items():
        in_allocation.setdefault(buffer["allocation"], []).append(row)
    temporaries = [a["row"] for a in here if a["kind"] == "temporary"]
    stays = _stays([row for a in temporaries for row in in_allocation.get(a, [])], program.buffers, lives)
    level = _level(stays, max(op_at, default=0) + 1)
    loops = [
        _Loop(op, trip_count(instructions, op), first, last)
        for op, first, last in lives.loops
        if op_at.get(int(lives.time[op])) == op
    ]
    at = int(level.argmax()) if len(level) else 0

    def array(buffer: int) -> Array | None:
        return _array(program.buffers[buffer], instructions)

    alive = []
    for allocation in here:
        if allocation["kind"] == "temporary":
            continue
        stored = _result_in(in_allocation.get(allocation["row"], []), program.buffers, lives, allocation["kind"])
        alive.append(
            Alive(
                allocation["kind"],
                allocation["bytes"],
                None if stored is None else program.buffers[stored]["op"],
                None if stored is None else array(stored),
                allocation["parameter_number"],
            )
        )
    of_stay: dict[int, Stay] = {}
    for stay in stays:
        if stay.start <= at <= stay.end:
            value = max(stay.buffers, key=lambda b: (lives.start[b] <= at, int(lives.start[b]), -b))
            idle = _idle(stay, lives, at)
            before, after = (None, None) if idle is None else (op_at.get(idle[0]), op_at.get(idle[1]))
            if before is None or after is None or _in_flight(before, after, instructions):
                before = after = None
            of_stay[len(alive)] = stay
            alive.append(
                Alive(
                    "temporary",
                    stay.bytes,
                    program.buffers[value]["op"],
                    array(value),
                    first=op_at.get(stay.start),
                    last=op_at.get(stay.end),
                    before=before,
                    after=after,
                )
            )
    advice = [
        *_donate(alive, instructions),
        *_idle_advice(alive, of_stay, lives, level, at),
        *_stacked(alive, of_stay, stays, lives, level, loops),
        *_padding(alive),
    ]
    least = LEAST_SAVED * sum(bytes_of.values())
    order = sorted(range(len(alive)), key=lambda i: (-alive[i].bytes, i))
    return Peak(
        bytes_of,
        host,
        int(level[at]) if len(level) else 0,
        op_at.get(at),
        [alive[i] for i in order],
        [row for row in advice if row.saves_bytes >= least],
    )


def _is_argument_or_output(allocation: Mapping[str, Any]) -> bool:
    return allocation["kind"] in ("argument", "donated", "output")


def _stays(rows: list[int], buffers: Mapping[int, Mapping[str, Any]], lives: Lives) -> list[Stay]:
    """When each place is in use: the lives of the values in it, those that overlap in time taken together."""
    order = sorted(
        (buffers[row]["allocation"], buffers[row]["offset"], int(lives.start[row]), int(lives.end[row]), row)
        for row in rows
        if lives.start[row] >= 0 and buffers[row]["bytes"] > 0
    )
    stays: list[Stay] = []
    for allocation, offset, start, end, row in order:
        size = buffers[row]["bytes"]
        place = (allocation, offset)
        if stays and stays[-1].place == place and start <= stays[-1].end:
            last = stays[-1]
            stays[-1] = Stay(place, max(last.bytes, size), last.start, max(last.end, end), (*last.buffers, row))
        else:
            stays.append(Stay(place, size, start, end, (row,)))
    return stays


def _level(stays: list[Stay], times: int) -> _I64:
    """Bytes in use at each time."""
    change = np.zeros(times + 1, np.int64)
    for stay in stays:
        change[stay.start] += stay.bytes
        change[stay.end + 1] -= stay.bytes
    return np.cumsum(change)[:times]


def _idle(stay: Stay, lives: Lives, at: int) -> tuple[int, int] | None:
    """The last time before ``at`` and the first after it at which a value of the stay is touched.

    None where one is touched at ``at``, or no more after it.
    """
    times = np.unique(np.concatenate([lives.of(buffer) for buffer in stay.buffers]))
    times = times[(times >= stay.start) & (times <= stay.end)]
    place = int(np.searchsorted(times, at))
    if place == 0 or place == len(times) or times[place] == at:
        return None
    return int(times[place - 1]), int(times[place])


def _in_flight(before: int, after: int, instructions: Instructions) -> bool:
    """Whether a value is being copied or sent between these two ops: then it is in use."""
    return instructions.opcode(before).endswith(("-start", "-update")) and instructions.opcode(after).endswith(
        ("-done", "-update")
    )


def _result_in(rows: list[int], buffers: Mapping[int, Mapping[str, Any]], lives: Lives, kind: str) -> int | None:
    """The value that an allocation is for: the result in an output, else the one that is there first."""
    if not rows:
        return None
    if kind == "output":
        return max(rows, key=lambda b: (bool(lives.live_out[b]), int(lives.start[b]), -b))
    return min(rows, key=lambda b: (int(lives.start[b]) if lives.start[b] >= 0 else 1 << 62, b))


def _array(buffer: Mapping[str, Any], instructions: Instructions) -> Array | None:
    if buffer["op"] is None or buffer["depth"] > 1:
        return None
    found = [array for array in instructions.arrays(buffer["op"]) if array.element == buffer["element"]]
    return found[0] if len(found) == 1 else None


def _donate(alive: list[Alive], instructions: Instructions) -> list[Advice]:
    """Arguments that could become an output of the same shape, in order of arguments; each output is taken once."""
    outputs: dict[tuple[Any, ...], list[Alive]] = {}
    for piece in alive:
        if piece.kind == "output" and piece.array is not None and piece.array.dimensions:
            outputs.setdefault((piece.array.type, piece.array.dimensions, piece.bytes), []).append(piece)
    found = []
    for piece in sorted((p for p in alive if p.kind == "argument"), key=lambda p: p.parameter_number or 0):
        if piece.array is None:
            continue
        same = outputs.get((piece.array.type, piece.array.dimensions, piece.bytes))
        if same:
            found.append(Advice("donate", piece.bytes, piece, same.pop(0)))
    return sorted(found, key=lambda advice: -advice.saves_bytes)


def _idle_advice(alive: list[Alive], of_stay: Mapping[int, Stay], lives: Lives, level: _I64, at: int) -> list[Advice]:
    """Temporaries that nothing touches around the peak, largest first, each on top of those before it."""
    level = level.copy()
    idle = sorted((i for i in of_stay if alive[i].before is not None), key=lambda i: (-alive[i].bytes, i))
    found = []
    for i in idle[:CANDIDATES]:
        stretch = _idle(of_stay[i], lives, at)
        if stretch is None:
            continue
        before, after = stretch
        lowered = level.copy()
        lowered[before + 1 : after] -= alive[i].bytes
        saves = int(level.max() - lowered.max())
        if saves > 0:
            found.append(Advice("idle", saves, alive[i]))
            level = lowered
    return found


def _stacked(
    alive: list[Alive], of_stay: Mapping[int, Stay], stays: list[Stay], lives: Lives, level: _I64, loops: list[_Loop]
) -> list[Advice]:
    """Temporaries with a row for each round of a loop, which a later loop of as many rounds uses."""
    of_loop: dict[int, list[int]] = {}
    for i, stay in of_stay.items():
        array = alive[i].array
        if alive[i].before is not None or array is None or not array.dimensions or array.dimensions[0] < 2:
            continue
        times = np.concatenate([lives.of(buffer) for buffer in stay.buffers])
        used = [
            loop
            for loop in loops
            if loop.rounds == array.dimensions[0]
            and (alive[i].op == loop.op or np.any((times >= loop.first) & (times <= loop.last)))
        ]
        if used and min(loop.last for loop in used) < max(loop.first for loop in used):
            of_loop.setdefault(min(loop.first for loop in used), []).append(i)
    found = []
    level = level.copy()
    for begins, stacks in of_loop.items():
        for i in sorted(stacks, key=lambda i: (-alive[i].bytes, i))[1:]:
            before, mine = int(level.max()), of_stay[i]
            for stay in stays:
                # The stack before its loop, in it and after it is one value after the other in one place.
                if stay.place == mine.place and stay.bytes == mine.bytes and begins <= stay.end <= mine.end:
                    level[stay.start : stay.end + 1] -= stay.bytes
            found.append(Advice("stacked", before - int(level.max()), alive[i]))
    return found


def _padding(alive: list[Alive]) -> list[Advice]:
    padded = [(piece.padding_bytes or 0, piece) for piece in alive if piece.padding_bytes]
    wasteful = [(padding, piece) for padding, piece in padded if padding >= LEAST_PADDING * piece.bytes]
    wasteful.sort(key=lambda pair: -pair[0])
    return [Advice("padding", padding, piece) for padding, piece in wasteful[:CANDIDATES]]
