"""When the values of a program are alive: from XLA's schedule and buffer assignment.

Time is a place in the flattened schedule: the ops of the entry computation in order; those of a loop's body and
condition, of a branch or a call just before the op that calls them, each once. A value lives from the op that defines
it to the last op that reads it, through tuples, bitcasts, loops and calls that only pass it on. One that is part of the
result of a computation lives to that computation's end, and what an asynchronous op reads lives until that op is done.
XLA's HloLiveRange has the same rules. Where a loop writes a value anew each time round, old and new share a place in
their allocation: it is taken from the first one's definition to the loop's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xprof_py.postprocess.hlo.shapes import Instructions

_I64 = npt.NDArray[np.int64]
_Values = dict[int, frozenset[int]]
"""Rows of hlo_buffers by the element of a tuple that they are in; -1: the whole result, for a tuple its table."""

_CONTROL_FLOW = ("while", "conditional", "call", "async-start")
_DEEPEST = 100
"""Computations that call each other deeper than this are not walked: XLA's are a few deep."""


@dataclass(frozen=True)
class Lives:
    """``start``, ``end`` per row of hlo_buffers, both included; -1 where its op is not scheduled.

    ``live_out``: part of the program's result. ``time`` per row of hlo_ops, -1 where not scheduled; times of different
    programs each count from 0. ``touched``: (buffer, time) of every definition and reading, sorted. ``loops``: rows of
    hlo_ops that are loops, with the first and the last time in them.
    """

    start: _I64
    end: _I64
    live_out: npt.NDArray[np.bool_]
    time: _I64
    touched: tuple[_I64, _I64]
    loops: list[tuple[int, int, int]]

    def of(self, buffer: int) -> _I64:
        """The times at which ``buffer`` is written or read, rising."""
        first, last = np.searchsorted(self.touched[0], [buffer, buffer + 1])
        return self.touched[1][first:last]


def live_ranges(tables: Mapping[str, Any] | Any, instructions: Instructions) -> Lives:
    """The lives of all buffers of a profile. ``tables``: a Profile or what read_programs returned."""
    walk = _Walk(tables, instructions)
    for entry in instructions.entries.values():
        walk.program(entry)
    buffer = np.array(walk.touched_buffer, np.int64)
    time = np.array(walk.touched_time, np.int64)
    order = np.lexsort((time, buffer))
    return Lives(
        np.array(walk.start, np.int64),
        np.array(walk.end, np.int64),
        np.array(walk.live_out, np.bool_),
        np.array(walk.time, np.int64),
        (buffer[order], time[order]),
        walk.loops,
    )


class _Walk:
    """Runs through the schedule of one program after the other, with the values that every op's result is made of."""

    def __init__(self, tables: Mapping[str, Any] | Any, instructions: Instructions) -> None:
        self._instructions = instructions
        self._order: dict[int, list[int]] = {}
        schedule = tables["hlo_schedule"]
        for computation, op in zip(schedule["computation"].to_pylist(), schedule["op"].to_pylist(), strict=True):
            self._order.setdefault(computation, []).append(op)
        buffers = tables["hlo_buffers"]
        self._defined: dict[int, dict[int, list[int]]] = {}
        for buffer, (op, element) in enumerate(
            zip(buffers["op"].to_pylist(), buffers["element"].to_pylist(), strict=True)
        ):
            if op is not None:
                self._defined.setdefault(op, {}).setdefault(element, []).append(buffer)
        self.start = [-1] * buffers.num_rows
        self.end = self.start.copy()
        self.live_out = [False] * buffers.num_rows
        self.time = [-1] * instructions.count
        self.touched_buffer: list[int] = []
        self.touched_time: list[int] = []
        self.loops: list[tuple[int, int, int]] = []
        self._clock = 0
        self._values: dict[int, _Values] = {}
        self._reads: dict[int, frozenset[int]] = {}
        self._walked: set[int] = set()
        self._depth = 0

    def program(self, entry: int) -> None:
        self._clock = 0
        for buffer in self._computation(entry, []):
            self.live_out[buffer] = True
        self._values.clear()
        self._reads.clear()

    def _computation(self, computation: int, arguments: list[_Values]) -> frozenset[int]:
        """Walks a computation whose parameters have these values; the values of its result live to its end."""
        self._walked.add(computation)
        for op in self._order.get(computation, ()):
            if self._instructions.opcode(op) == "parameter":
                number = self._instructions.value(op, "parameter_number")
                self._values[op] = self._result(op, arguments[number] if number < len(arguments) else {})
                self._tick(op)
            else:
                self._step(op)
        root = self._instructions.root(computation)
        result = frozenset() if root is None else _all(self._values.get(root, {}))
        self._live_until(result, self._clock - 1)
        return result

    def _step(self, op: int) -> None:
        opcode = self._instructions.opcode(op)
        operands = [self._values.get(operand, {}) for operand in self._instructions.operands(op)]
        begins = self._clock
        passed: _Values = {}
        if opcode == "tuple":
            passed = {element: _all(values) for element, values in enumerate(operands)}
        elif opcode == "get-tuple-element" and operands:
            element = self._instructions.value(op, "tuple_index")
            passed = {-1: operands[0].get(element, operands[0].get(-1, frozenset()))}
        elif opcode in _CONTROL_FLOW:
            passed = self._call(op, opcode, operands)
        elif opcode.endswith("-done") and operands:
            passed = {-1: _made(opcode, operands[0])}
        elif len(operands) == 1 or opcode in ("add-dependency", "optimization-barrier"):
            passed = operands[0]
        self._values[op] = self._result(op, passed)
        if opcode == "while" and begins < self._clock:
            self.loops.append((op, begins, self._clock - 1))
        self._tick(op)
        if opcode not in ("tuple", "domain"):
            # These read a tuple's table alone, and pass on what is in it.
            whole = opcode not in ("get-tuple-element", "copy")
            read = frozenset().union(*(_all(v) if whole else v.get(-1, frozenset()) for v in operands))
            self._touch(read, begins if opcode == "while" else self.time[op])
            if opcode.endswith(("-start", "-update", "-done")):
                self._asynchronous(op, read)

    def _asynchronous(self, op: int, read: frozenset[int]) -> None:
        """What the first of a chain of start, update and done reads is read until the last of them."""
        before = [self._reads[operand] for operand in self._instructions.operands(op) if operand in self._reads]
        self._reads[op] = read.union(*before)
        for earlier in before:
            self._live_until(earlier, self.time[op])

    def _call(self, op: int, opcode: str, operands: list[_Values]) -> _Values:
        results: list[_Values] = operands[:1] if opcode == "while" else []
        for branch, computation in enumerate(self._instructions.called(op)):
            if computation in self._walked or computation not in self._order or self._depth == _DEEPEST:
                continue
            arguments = operands if opcode != "conditional" else operands[branch + 1 : branch + 2]
            self._depth += 1
            self._computation(computation, arguments)
            self._depth -= 1
            root = self._instructions.root(computation)
            # XLA writes a loop's body first and its condition second.
            if root is not None and (opcode != "while" or branch == 0):
                results.append(self._values.get(root, {}))
        merged: _Values = {}
        for values in results:
            for element, buffers in values.items():
                merged[element] = merged.get(element, frozenset()) | buffers
        return merged

    def _result(self, op: int, passed: _Values) -> _Values:
        """Values that ``op`` defines, and in its other elements those that it passes on."""
        own = {element: frozenset(buffers) for element, buffers in self._defined.get(op, {}).items()}
        # An op that makes its array passes none on; one that makes a tuple's table may pass on what is in it.
        if -1 in own and not any(element >= 0 for element in passed):
            return own
        return {**passed, **own}

    def _tick(self, op: int) -> None:
        self.time[op] = self._clock
        for buffers in self._defined.get(op, {}).values():
            for buffer in buffers:
                self.start[buffer] = self.end[buffer] = self._clock
            self._touch(buffers, self._clock)
        self._clock += 1

    def _touch(self, buffers: Iterable[int], time: int) -> None:
        for buffer in buffers:
            self.touched_buffer.append(buffer)
            self.touched_time.append(time)
            self.end[buffer] = max(self.end[buffer], time)

    def _live_until(self, buffers: Iterable[int], time: int) -> None:
        for buffer in buffers:
            self.end[buffer] = max(self.end[buffer], time)


def _all(values: _Values) -> frozenset[int]:
    return frozenset().union(*values.values())


def _made(opcode: str, start: _Values) -> frozenset[int]:
    """What an asynchronous op has made when it is done: XLA's place for it in the result of its start."""
    element = 0 if opcode in ("copy-done", "recv-done", "send-done") else 1
    return start.get(element, start.get(-1, frozenset()))
