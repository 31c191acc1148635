"""What in compiled code costs time that another program would not take: patterns of instructions, from the HLO alone.

Every executed instruction is in at most one pattern, the first of KINDS that fits:

    rematerialised   computed again to save memory: `rematted_computation` on its path, `.remat` in its name
    loop_slice       in the body of a loop: only slices of what the loop carries, read (dynamic-slice) or written
                     (dynamic-update-slice), and their indices
    transpose, copy, bitcast_convert
                     not fused with arithmetic: the instruction itself, or a fusion or call that does nothing else.
                     Copies between memories (host, on the chip) are no layout copies and left out
    f32_from_bf16    a matmul in f32 of which every operand was converted from bf16 or f16
    unfused_chain    elementwise instructions that are bound by memory, where one's result, as large as the next one's,
                     is read by that one alone: fused, it would be neither written nor read again. Where several feed
                     one, they are one chain; it has the name of the last

Which are executed and which are bound by memory is the measurement's to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xprof_py.postprocess.hlo.flops import ELEMENTWISE, TRANSCENDENTALS
from xprof_py.postprocess.hlo.shapes import DEVICE_MEMORY, Array, Instructions

KINDS = (
    "rematerialised",
    "loop_slice",
    "transpose",
    "copy",
    "bitcast_convert",
    "f32_from_bf16",
    "unfused_chain",
)
_MOVING = {"transpose": "transpose", "copy": "copy", "bitcast-convert": "bitcast_convert"}
_SLICING = frozenset({"dynamic-slice", "dynamic-update-slice"})
_NOTHING = frozenset({"parameter", "tuple", "get-tuple-element", "bitcast", "reshape", "constant"})
_ANY_ELEMENT = ELEMENTWISE | TRANSCENDENTALS
_SPREADING = frozenset({"broadcast", "iota"})
_SAME_VALUES = frozenset({"transpose", "reshape", "broadcast", "slice", "copy", "bitcast"})
_NARROW = ("bf16", "f16")
_MATMULS = ("dot", "convolution")


@dataclass(frozen=True)
class Pattern:
    """``op`` stands for it (row of hlo_ops), ``parts`` are the instructions whose executions it is about, in program
    order. ``saved_bytes``: of an unfused_chain, what one execution of ``op`` moves for nothing."""

    kind: str
    op: int
    parts: tuple[int, ...]
    saved_bytes: int | None = None


class CodePatterns:
    """The patterns among the instructions of a profile."""

    def __init__(self, see: Instructions) -> None:
        self.see = see
        self._inside: dict[int, frozenset[str] | None] = {}
        self._looping = self._loop_computations()

    def find(self, executed: Iterable[int], memory_bound: Iterable[int], again: Iterable[int]) -> list[Pattern]:
        """Patterns in order of KINDS and row.

        ``executed``: rows of hlo_ops that ran as leaves of the classes compute and memory; ``memory_bound``: those of
        class memory; ``again``: those that are rematerialised.
        """
        executed, again = sorted(set(executed)), set(again)
        kinds: dict[int, str] = {}
        for op in executed:
            kind = "rematerialised" if op in again else self._single(op)
            if kind is not None:
                kinds[op] = kind
        found = [Pattern(kind, op, (op,)) for op, kind in kinds.items()]
        found += self._chains(sorted(set(memory_bound) - kinds.keys()))
        return sorted(found, key=lambda pattern: (KINDS.index(pattern.kind), pattern.op))

    def _single(self, op: int) -> str | None:
        body = self.opcodes(op)
        if body is None:
            return None
        work = body - _NOTHING
        if work & _SLICING and self.see.computation(op) in self._looping and self._only_slices(op, work):
            return "loop_slice"
        if work and work <= _MOVING.keys():
            return None if self._between_memories(op) else next(_MOVING[name] for name in _MOVING if name in work)
        if body & set(_MATMULS) and all(self._widened(dot, at) for dot, at in self._matmuls(op, ())):
            return "f32_from_bf16"
        return None

    def opcodes(self, op: int) -> frozenset[str] | None:
        """What a leaf does: its own opcode, or those in the body of a fusion or call; None where that is not told."""
        if op not in self._inside:
            opcode = self.see.opcode(op)
            if opcode not in ("fusion", "call"):
                return frozenset({opcode})
            self._inside[op] = None  # a body that holds itself: a damaged file
            parts = [self.opcodes(member) for called in self.see.called(op) for member in self.see.members(called)]
            whole = None if not parts or None in parts else frozenset().union(*(part for part in parts if part))
            self._inside[op] = whole
        return self._inside[op]

    def _loop_computations(self) -> set[int]:
        see = self.see
        inside: set[int] = set()
        pending = [called for op in range(see.count) if see.opcode(op) == "while" for called in see.called(op)]
        while pending:
            computation = pending.pop()
            if computation not in inside:
                inside.add(computation)
                pending += [called for op in see.members(computation) for called in see.called(op)]
        return inside

    def _only_slices(self, op: int, work: frozenset[str]) -> bool:
        """Whether besides slices it only moves, and computes only indices: scalars."""
        if not work <= _SLICING | _MOVING.keys() | _ANY_ELEMENT | _SPREADING:
            return False
        return all(
            all(array.elements == 1 for array in self.see.arrays(member))
            for member in self._members(op)
            if self.see.opcode(member) in _ANY_ELEMENT | _SPREADING
        )

    def _members(self, op: int) -> list[int]:
        if self.see.opcode(op) not in ("fusion", "call"):
            return [op]
        return [
            m for called in self.see.called(op) for member in self.see.members(called) for m in self._members(member)
        ]

    def _between_memories(self, op: int) -> bool:
        rows = [op, *self.see.operands(op)]
        return len({array.space for row in rows for array in self.see.arrays(row)}) > 1

    def _matmuls(self, op: int, callers: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
        if self.see.opcode(op) in _MATMULS:
            return [(op, callers)]
        if self.see.opcode(op) not in ("fusion", "call"):
            return []
        members = [member for called in self.see.called(op) for member in self.see.members(called)]
        return [found for member in members for found in self._matmuls(member, (*callers, op))]

    def _widened(self, dot: int, callers: tuple[int, ...]) -> bool:
        """Whether a matmul is in f32 and every operand of it was bf16 or f16 before."""
        see = self.see
        if _types(see.arrays(dot)) != {"f32"} or not see.operands(dot):
            return False
        for operand in see.operands(dot):
            if _types(see.arrays(operand)) != {"f32"}:
                return False
            at, inside = see.source(operand, callers)
            for _ in range(see.count):
                if see.opcode(at) not in _SAME_VALUES or not see.operands(at):
                    break
                at, inside = see.source(see.operands(at)[0], inside)
            if see.opcode(at) != "convert" or not _types(see.arrays(see.operands(at)[0])) <= set(_NARROW):
                return False
        return True

    def _chains(self, candidates: list[int]) -> list[Pattern]:
        see = self.see
        able = {op for op in candidates if self._elementwise(op)}
        users: dict[int, dict[int, set[int]]] = {}
        feeds: dict[int, int] = {}
        for op in sorted(able):
            computation = see.computation(op)
            if computation not in users:
                users[computation] = {}
                for member in see.members(computation):
                    for operand in see.operands(member):
                        users[computation].setdefault(operand, set()).add(member)
            reader = self._only_reader(op, users[computation], see.root(computation))
            if reader in able and self._as_large(op, reader):
                feeds[op] = reader
        last = {op: self._end(op, feeds) for op in {*feeds, *feeds.values()}}
        out = []
        for end in sorted(set(last.values())):
            parts = tuple(op for op in sorted(last) if last[op] == end)
            size = sum(see.arrays(op)[0].bytes or 0 for op in parts if op in feeds)
            out.append(Pattern("unfused_chain", end, parts, 2 * size))
        return out

    def _elementwise(self, op: int) -> bool:
        body = self.opcodes(op)
        return body is not None and bool(body & _ANY_ELEMENT) and body <= _ANY_ELEMENT | _SPREADING | _NOTHING

    def _only_reader(self, op: int, users: dict[int, set[int]], root: int | None) -> int:
        """The one instruction that reads the result of ``op``, seen through bitcasts; -1 where there is not one."""
        for _ in range(self.see.count):
            readers = users.get(op, set())
            if op == root or len(readers) != 1:
                return -1
            (op,) = readers
            if self.see.opcode(op) != "bitcast":
                return op
        return -1

    def _as_large(self, op: int, reader: int) -> bool:
        made, read = self.see.arrays(op), self.see.arrays(reader)
        if len(made) != 1 or len(read) != 1 or made[0].bytes is None or made[0].space != DEVICE_MEMORY:
            return False
        return made[0].elements is not None and made[0].elements == read[0].elements

    @staticmethod
    def _end(op: int, feeds: dict[int, int]) -> int:
        for _ in range(len(feeds)):
            if op not in feeds:
                break
            op = feeds[op]
        return op


def _types(arrays: list[Array]) -> set[str]:
    return {array.type for array in arrays}
