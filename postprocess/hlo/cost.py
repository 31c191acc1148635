"""What one execution of an HLO instruction, and of a whole program, needs: operations, bytes, bytes on the network.

Operations: hlo/flops.py per instruction; a fusion is the sum of its body, a reduction its function times how often it
is applied, a custom call what its text tells (hlo/custom_calls.py).

Bytes are those that must cross between the device's memory and its cores if nothing stays in a cache from one
instruction to the next: every operand once, every result once; arrays on the chip or the host do not count. A slice or
gather reads what it takes; an update in place (dynamic-update-slice, scatter) reads and writes the update alone, inside
fusions too. Instructions that only rename (tuple, bitcast, parameter, ...) move nothing.

Network bytes are what one of n participants must at least send, for arrays of s bytes in all: all-reduce 2 s (n-1)/n,
all-gather, reduce-scatter and all-to-all s (n-1)/n of the larger side, permutations and broadcasts s. That is what ring
algorithms send (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009); trees send more, never less.

An op inside a loop counts once for each time that it is executed, so its cost is that of one execution. A whole program
multiplies loops by their trip counts: XLA's known_trip_count, else inferred where the condition compares a counter that
starts at a constant and rises by a constant with a constant. None: not known, and never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from xprof_py.postprocess import schema
from xprof_py.postprocess.hlo import flops as formulas
from xprof_py.postprocess.hlo.custom_calls import call_flops, cost_estimate, parsed
from xprof_py.postprocess.hlo.flops import Flops
from xprof_py.postprocess.hlo.shapes import Instructions, group_sizes
from xprof_py.postprocess.hlo.traffic import network_bytes, op_bytes
from xprof_py.postprocess.hlo.trip_counts import trip_count

_APPLYING = ("reduce", "reduce-window", "map", "scatter")
_INLINE = ("fusion", "call", "async-start")
_HOLDING = ("call", "async-start", "while", "conditional")


@dataclass(frozen=True)
class Cost:
    """One execution; each part None where it is not known."""

    flops: Flops | None
    bytes_read: int | None
    bytes_written: int | None
    network_bytes: int | None = 0

    @property
    def bytes(self) -> int | None:
        """Read and written."""
        if self.bytes_read is None or self.bytes_written is None:
            return None
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class Total:
    """A program: the sum of what is known, and of how many executed instructions it is not known."""

    flops: Flops = formulas.NONE
    bytes: int = 0
    network_bytes: int = 0
    unknown_flops: int = 0
    unknown_bytes: int = 0
    unknown_network: int = 0

    def plus(self, more: Total) -> Total:
        """The sum."""
        return Total(
            self.flops.plus(more.flops),
            self.bytes + more.bytes,
            self.network_bytes + more.network_bytes,
            self.unknown_flops + more.unknown_flops,
            self.unknown_bytes + more.unknown_bytes,
            self.unknown_network + more.unknown_network,
        )

    def times(self, count: int) -> Total:
        """As many times; what is unknown stays as many instructions."""
        return Total(
            self.flops.times(count),
            self.bytes * count,
            self.network_bytes * count,
            self.unknown_flops,
            self.unknown_bytes,
            self.unknown_network,
        )


_UNKNOWN = Total(unknown_flops=1, unknown_bytes=1, unknown_network=1)


class CostModel:
    """Costs of the instructions of a profile; each is worked out once, when it is asked for."""

    def __init__(self, instructions: Instructions) -> None:
        self.instructions = instructions
        self._body: dict[int, Flops | None] = {}
        self._total: dict[int, Total] = {}
        self._open: set[int] = set()

    def of(self, op: int) -> Cost:
        """The cost of one execution of row ``op`` as a kernel of its own."""
        see = self.instructions
        opcode = see.opcode(op)
        if opcode in _HOLDING and see.called(op):
            # Where one is executed as a single kernel, it moves what its parts move.
            total = self._executed(op)
            size = None if total.unknown_bytes else total.bytes
            written = _result_bytes(see, op)
            known = size is not None and written is not None and written <= size
            return Cost(
                None if total.unknown_flops else total.flops,
                size - written if known and size is not None and written is not None else None,
                written if known else None,
                None if total.unknown_network else total.network_bytes,
            )
        if opcode == "custom-call":
            estimate = cost_estimate(parsed(see.text(op, "backend_config")))
            flops = call_flops(see, op)
            if flops is None:
                return Cost(None, None, None)
            read, written = op_bytes(see, op)
            if estimate is not None and written is not None and estimate["bytes_accessed"] >= written:
                read = estimate["bytes_accessed"] - written
            return Cost(flops, read, written)
        read, written = op_bytes(see, op)
        return Cost(self.flops(op), read, written, network_bytes(opcode, see, op, group_sizes(see, op)))

    def flops(self, op: int) -> Flops | None:
        """Operations of one execution, through the computations that ``op`` calls."""
        see = self.instructions
        opcode = see.opcode(op)
        called = see.called(op)
        if opcode in _INLINE:
            return self._body_flops(called[0]) if called else None
        if opcode in _APPLYING:
            times = formulas.applied(see, op)
            each = self._body_flops(called[0]) if called else None
            return None if times is None or each is None else each.times(times)
        if opcode == "while":
            count = trip_count(see, op)
            once: Flops | None = formulas.NONE
            for computation in called:
                part = self._body_flops(computation)
                once = None if once is None or part is None else once.plus(part)
            return None if count is None or once is None else once.times(count)
        if opcode == "custom-call":
            return call_flops(see, op)
        return formulas.own_flops(see, op)

    def _body_flops(self, computation: int) -> Flops | None:
        if computation not in self._body:
            if computation in self._open:  # a computation that calls itself: a damaged file
                return None
            self._open.add(computation)
            total: Flops | None = formulas.NONE
            for op in self.instructions.members(computation):
                found = self.flops(op)
                total = None if total is None or found is None else total.plus(found)
            self._open.discard(computation)
            self._body[computation] = total
        return self._body[computation]

    def of_computation(self, computation: int) -> Total:
        """The sum over the instructions of a computation that runs them one by one; loops times their trip counts."""
        if computation not in self._total:
            if computation in self._open:
                return _UNKNOWN
            self._open.add(computation)
            total = Total()
            for op in self.instructions.members(computation):
                total = total.plus(self._executed(op))
            self._open.discard(computation)
            self._total[computation] = total
        return self._total[computation]

    def _executed(self, op: int) -> Total:
        see = self.instructions
        opcode = see.opcode(op)
        called = see.called(op)
        if opcode in ("call", "async-start") and called:
            return self.of_computation(called[0])
        if opcode == "while":
            count = trip_count(see, op)
            if count is None or not called:
                return _UNKNOWN
            once = Total()
            for computation in called:
                once = once.plus(self.of_computation(computation))
            return once.times(count)
        if opcode == "conditional":
            # Which branch runs is known where all cost the same.
            totals = [self.of_computation(computation) for computation in called]
            return totals[0] if totals and all(total == totals[0] for total in totals) else _UNKNOWN
        cost = self.of(op)
        return Total(
            cost.flops or formulas.NONE,
            cost.bytes or 0,
            cost.network_bytes or 0,
            int(cost.flops is None),
            int(cost.bytes is None),
            int(cost.network_bytes is None),
        )


def _result_bytes(instructions: Instructions, op: int) -> int | None:
    sizes = [array.bytes for array in instructions.arrays(op)]
    return None if not sizes or None in sizes else sum(size for size in sizes if size is not None)


def cost_tables(instructions: Instructions, ops: Iterable[int], programs: Iterable[int]) -> dict[str, pa.Table]:
    """hlo_costs for rows ``ops`` of hlo_ops, program_costs for rows ``programs`` of programs that have HLO.

    Where the profile has no shapes, every cost is null.
    """
    model = CostModel(instructions)
    rows = []
    for op in ops:
        cost = model.of(op)
        matmul = {} if cost.flops is None else {k: v for k, v in cost.flops.matmul.items() if v}
        rows.append(
            {
                "op": op,
                "flops": _int64(None if cost.flops is None else cost.flops.total),
                "matmul_flops": _int64(None if cost.flops is None else sum(matmul.values())),
                "matmul_type": "mixed" if len(matmul) > 1 else next(iter(matmul), ""),
                "transcendentals": _int64(None if cost.flops is None else cost.flops.transcendentals),
                "bytes_read": _int64(cost.bytes_read),
                "bytes_written": _int64(cost.bytes_written),
                "network_bytes": _int64(cost.network_bytes),
            }
        )
    totals = []
    for program in programs:
        if program not in model.instructions.entries:
            continue
        total = model.of_computation(model.instructions.entries[program])
        if max(total.flops.total, total.bytes, total.network_bytes) > _LARGEST:
            continue
        totals.append(
            {
                "program": program,
                "flops": total.flops.total,
                "bytes": total.bytes,
                "network_bytes": total.network_bytes,
                "unknown_flops_ops": total.unknown_flops,
                "unknown_bytes_ops": total.unknown_bytes,
                "unknown_network_ops": total.unknown_network,
            }
        )
    return {
        "hlo_costs": pa.Table.from_pylist(rows, schema=schema.TABLES["hlo_costs"]),
        "program_costs": pa.Table.from_pylist(totals, schema=schema.TABLES["program_costs"]),
    }


_LARGEST = 2**62


def _int64(value: int | None) -> int | None:
    """Numbers beyond 2^62 come from damaged files: not known."""
    return None if value is None or value > _LARGEST else value
