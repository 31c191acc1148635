"""Which instructions of a program launch kernels, in which order, and which kernels an execution's can have been.

XLA names a fusion's kernel after the fusion, and gives equal fusions one kernel, named after the first. So a name says
that an instruction is one of several, and the order of launches says which: a plan is the program's schedule with
loops, and a sequence of kernels is laid over it in every way that fits. What all the best ways agree on is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from xprof_py.postprocess.hlo import kernel_names
from xprof_py.postprocess.hlo.classes import COLLECTIVES
from xprof_py.postprocess.join.columns import Bool, Int64, dictionary, integers
from xprof_py.postprocess.profile import Profile

NAMED, LIBRARY, COLLECTIVE = range(3)
"""What an instruction's kernels are called: after it, as a library likes, as NCCL likes."""
_SILENT = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"}
    | {
        "optimization-barrier",
        "domain",
        "add-dependency",
        "infeed",
        "outfeed",
        "send",
        "recv",
        "send-done",
        "recv-done",
    }
)
"""Opcodes that launch nothing."""
_LIBRARY = frozenset({"custom-call", "dot", "convolution", "fft", "cholesky", "triangular-solve"})
_LIBRARY_CALL = re.compile(r"__(cublas|cudnn|cusolver|cub|gpu\$xla\.gpu\.triton)")
"""Targets of custom calls that certainly launch something; others may only tell the compiler something."""
_MOST_CELLS = 8_000_000
"""Kernels times slots that are laid over one another at once: 64 MB. A longer execution stays without."""
_FAR = np.int32(1 << 29)


def plain(name: str) -> str:
    """The identifier that XLA makes of an instruction's name."""
    return re.sub(r"[^A-Za-z0-9]", "_", name)


def stem(name: str) -> str:
    """A plain name without the numbers that tell equal ones apart."""
    return re.sub(r"(_+\d+)*_*$", "", name)


@dataclass(frozen=True)
class Slot:
    """One instruction at one place of the schedule. ``needed``: it launches something whenever the program runs."""

    op: int
    kind: int
    plain: str
    needed: bool
    several: bool = False
    """It may launch several kernels, one after the other."""


@dataclass(frozen=True)
class LaunchPlan:
    """The slots of a program in the order of its schedule; ``loops``: (low, body, high) of those that may run again.

    A loop's condition [low, body) runs before its body [body, high), and once more. ``named``: per instruction of kind
    NAMED that the program can execute its plain name; ``holds``: of fusions the stems of what is fused.
    """

    slots: tuple[Slot, ...]
    loops: tuple[tuple[int, int, int], ...]
    named: dict[int, str]
    holds: dict[int, frozenset[str]] = field(default_factory=dict)

    def candidates(self, kernels: frozenset[str]) -> dict[str, tuple[int, ...]]:
        """Per plain name of a kernel of the program (``kernels``: all of them) the instructions it can be of.

        An instruction that a kernel is named after launches that one; others of its stem share that of an equal one.
        Where none has its name it is named after what is fused (a sort).
        """
        named: dict[str, list[int]] = {}
        sharing: dict[str, list[int]] = {}
        for op, name in self.named.items():
            named.setdefault(name, []).append(op)
            if name not in kernels:
                sharing.setdefault(stem(name), []).append(op)
        fused: dict[str, list[int]] = {}
        for op, stems in self.holds.items():
            for one in stems:
                fused.setdefault(one, []).append(op)
        out = {}
        for kernel in kernels:
            mine = named.get(kernel, []) + sharing.get(stem(kernel), [])
            out[kernel] = tuple(sorted(mine or fused.get(stem(kernel), [])))
        return out


class LaunchPlans:
    """The plans of a profile's programs, made where they are asked for."""

    def __init__(self, profile: Profile) -> None:
        ops, calls, schedule = profile["hlo_ops"], profile["hlo_calls"], profile["hlo_schedule"]
        self._name, self._names = dictionary(ops, "name")
        code, opcodes = dictionary(ops, "opcode")
        self._opcode = [opcodes[c] for c in code.tolist()]
        self._program, self._computation = integers(ops, "program"), integers(ops, "computation")
        texts = profile["hlo_texts"]
        key, keys = dictionary(texts, "key")
        mine = key == keys.index("custom_call_target") if "custom_call_target" in keys else np.zeros(0, np.bool_)
        text, known = dictionary(texts, "text")
        targets = [known[t] for t in text[mine].tolist()] if len(mine) else []
        self._target = dict(zip(integers(texts, "op")[mine].tolist() if len(mine) else [], targets, strict=True))
        self._called: dict[int, list[int]] = {}
        for op, computation in zip(
            integers(calls, "op").tolist(), integers(calls, "computation").tolist(), strict=True
        ):
            self._called.setdefault(op, []).append(computation)
        self._scheduled: dict[int, list[int]] = {}
        columns = (integers(schedule, name).tolist() for name in ("computation", "op"))
        for computation, op in zip(*columns, strict=True):
            self._scheduled.setdefault(computation, []).append(op)
        computations = profile["hlo_computations"]
        entry = np.asarray(computations["entry"].to_numpy(zero_copy_only=False), np.bool_)
        self._entry = dict(zip(integers(computations, "program")[entry].tolist(), np.flatnonzero(entry), strict=True))
        self._plans: dict[int, LaunchPlan] = {}

    def of(self, program: int) -> LaunchPlan:
        """The plan of a row of programs: without slots where its HLO has no schedule, empty where it has no HLO."""
        if program not in self._plans:
            self._plans[program] = self._make(program)
        return self._plans[program]

    def _make(self, program: int) -> LaunchPlan:
        entry = self._entry.get(program)
        if entry is None:
            return LaunchPlan((), (), {})
        executed = [op for op in self._executed(program, int(entry)) if self._kind(op) == NAMED]
        named = {op: plain(self._names[self._name[op]]) for op in executed}
        members = self._members(program)
        holds = {
            op: frozenset(stem(plain(self._names[self._name[inner]])) for inner in self._inside(op, members))
            for op in executed
            if self._opcode[op] == "fusion"
        }
        slots: list[Slot] = []
        loops: list[tuple[int, int, int]] = []
        if int(entry) in self._scheduled:
            self._walk(members, int(entry), True, slots, loops, depth=0)
        return LaunchPlan(tuple(slots), tuple(loops), named, holds)

    def _members(self, program: int) -> dict[int, list[int]]:
        """The instructions of each of a program's computations."""
        out: dict[int, list[int]] = {}
        for op in np.flatnonzero(self._program == program).tolist():
            out.setdefault(int(self._computation[op]), []).append(op)
        return out

    def _inside(self, op: int, members: dict[int, list[int]]) -> list[int]:
        """What is fused in a fusion and computes something."""
        inner = (i for computation in self._called.get(op, ()) for i in members.get(computation, ()))
        return [i for i in inner if self._opcode[i] not in _SILENT]

    def _executed(self, program: int, entry: int) -> list[int]:
        """Instructions of the entry and of what it calls; those inside fusions and reductions execute nothing."""
        members = self._members(program)
        out: list[int] = []
        seen, waiting = {entry}, [entry]
        while waiting:
            for op in members.get(waiting.pop(), ()):
                out.append(op)
                if _holds_ops(self._opcode[op]):
                    inner = [c for c in self._called.get(op, ()) if c not in seen]
                    seen.update(inner)
                    waiting += inner
        return sorted(out)

    def _kind(self, op: int) -> int:
        """What the kernels of an instruction are called; -1 where it launches none itself."""
        opcode = self._opcode[op]
        if opcode in _SILENT or opcode.endswith(("-done", "-update")) or _holds_ops(opcode):
            return -1
        head = opcode.removesuffix("-start")
        if head in COLLECTIVES:
            return COLLECTIVE
        return LIBRARY if opcode in _LIBRARY else NAMED

    def _walk(
        self,
        members: dict[int, list[int]],
        computation: int,
        needed: bool,
        slots: list[Slot],
        loops: list[tuple[int, int, int]],
        depth: int,
    ) -> None:
        """Add the slots of a computation. One that calls itself, which HLO does not allow, ends at some depth."""
        for op in self._scheduled.get(computation, ()) if depth < 64 else ():
            opcode, called = self._opcode[op], self._called.get(op, [])
            if opcode == "while" and len(called) == 2:
                # XLA names the body first; the condition runs before it, on the device only where it must.
                low = len(slots)
                self._walk(members, called[1], False, slots, loops, depth + 1)
                body = len(slots)
                self._walk(members, called[0], needed, slots, loops, depth + 1)
                loops.append((low, body, len(slots)))
            elif _holds_ops(opcode):
                for inner in called:
                    self._walk(members, inner, needed and opcode != "conditional", slots, loops, depth + 1)
            elif (kind := self._kind(op)) >= 0:
                certain = needed and (opcode == "fusion" or _LIBRARY_CALL.match(self._target.get(op, "")) is not None)
                sorts = opcode == "sort" or any(self._opcode[i] == "sort" for i in self._inside(op, members))
                several = kind != NAMED or sorts
                slots.append(Slot(op, kind, plain(self._names[self._name[op]]), certain, several))


def _holds_ops(opcode: str) -> bool:
    return opcode in ("while", "conditional", "call", "async-start")


def kind_of_kernel(name: str, is_named: bool) -> int:
    """The kind of the instructions that a kernel can be of, -1 for none; ``is_named``: one has its name."""
    if is_named:
        return NAMED
    if kernel_names.is_copy(name):
        return -1  # a fusion may be a copy as well: nothing tells
    if kernel_names.class_of_kernel(name, "") == "collective":
        return COLLECTIVE
    return LIBRARY if kernel_names.is_library(name) else -1


def lay_over(fits: Bool, several: Bool, needed: Bool, loops: tuple[tuple[int, int, int], ...]) -> Bool:
    """Which kernel can be of which slot, in the best ways to lay a sequence of kernels over a plan.

    Args:
        fits: kernel i can be of slot j, by name; shape (kernels, slots).
        several: slots that may launch several kernels one after the other.
        needed: slots of which each that is passed over without a kernel counts 1 against a way.
        loops: (low, body, high), as LaunchPlan has them.

    Returns an array of the shape of ``fits``: which pairs are part of a way with least counted against it, all kernels
    in order. All False where there is no way, or where it is too large to be laid out.
    """
    kernels, slots = fits.shape
    if not kernels or not slots or kernels * slots > _MOST_CELLS:
        return np.zeros_like(fits)
    before = np.concatenate(([0], np.cumsum(needed))).astype(np.int32)
    at, behind = before[:-1], before[1:]  # counted up to a slot, and up to behind it
    ways = np.full((kernels, slots), _FAR, np.int32)
    ways[0] = np.where(fits[0], at, _FAR)
    for i in range(1, kernels):
        last = ways[i - 1]
        step = np.full(slots, _FAR, np.int32)
        step[1:] = np.minimum.accumulate(last - behind)[:-1] + at[1:]
        step = np.where(several, np.minimum(step, last), step)
        for low, body, high in loops:
            again = (last[low:high] + before[high] - behind[low:high]).min(initial=_FAR)
            step[low:high] = np.minimum(step[low:high], again + at[low:high] - before[low])
            left = (last[low:body] + before[body] - behind[low:body]).min(initial=_FAR)
            step[high:] = np.minimum(step[high:], left + at[high:] - before[high])
        ways[i] = np.where(fits[i], np.minimum(step, _FAR), _FAR)
    to_the_end = before[-1] - behind
    for low, body, high in loops:
        left = before[body] - behind[low:body] + before[-1] - before[high]
        to_the_end[low:body] = np.minimum(to_the_end[low:body], left)
    rest = to_the_end
    best = int((ways[-1] + rest).min())
    if best >= _FAR:
        return np.zeros_like(fits)
    found = np.zeros_like(fits)
    found[-1] = ways[-1] + rest == best
    for i in range(kernels - 2, -1, -1):
        following = np.where(fits[i + 1], rest, _FAR)
        step = np.full(slots, _FAR, np.int32)
        step[:-1] = np.minimum.accumulate((following + at)[::-1])[::-1][1:] - behind[:-1]
        step = np.where(several, np.minimum(step, following), step)
        for low, body, high in loops:
            again = (following[low:high] + at[low:high] - before[low]).min(initial=_FAR)
            step[low:high] = np.minimum(step[low:high], again + before[high] - behind[low:high])
            left = (following[high:] + at[high:] - before[high]).min(initial=_FAR)
            step[low:body] = np.minimum(step[low:body], left + before[body] - behind[low:body])
        rest = np.minimum(step, _FAR)
        found[i] = fits[i] & (ways[i] + rest == best)
    return found


def ops_of_kernels(plan: LaunchPlan, fits: Bool) -> Int64:
    """Per kernel of one execution, in order of the launches, the instruction that all best ways give it; -1 without.

    ``fits``: (kernels, slots of the plan). A kernel that fits nowhere is passed over.
    """
    out = np.full(len(fits), -1, np.int64)
    rows = np.flatnonzero(fits.any(axis=1))
    several = np.array([slot.several for slot in plan.slots], np.bool_)
    needed = np.array([slot.needed for slot in plan.slots], np.bool_)
    possible = lay_over(fits[rows], several, needed, plan.loops)
    if not possible.any():
        return out
    op = np.array([slot.op for slot in plan.slots], np.int64)
    least = np.where(possible, op, np.iinfo(np.int64).max).min(axis=1)
    most = np.where(possible, op, -1).max(axis=1)
    out[rows] = np.where(least == most, least, -1)
    return out
