"""Buffer assignments made by hand for modules of hlo_modules: who is kept where, and in which order ops run.

plan = Plan(hlo)
plan.allocation("argument", (x, 40))
plan.allocation("temporary", (a, 400), (b, 800, 400))
profile = plan.profile()
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from hlo_modules import Module
from xprof_py.postprocess import schema
from xprof_py.postprocess.hlo.module import read_programs
from xprof_py.postprocess.profile import Profile

_FLAGS = {
    "argument": ("is_entry_computation_parameter",),
    "donated": ("is_entry_computation_parameter", "maybe_live_out"),
    "output": ("maybe_live_out",),
    "constant": ("is_constant",),
    "thread_local": ("is_thread_local",),
    "temporary": (),
}


class Plan:
    """The buffer assignment of ``hlo``, whose computations run in the order in which their ops were added."""

    def __init__(self, hlo: Module, *, scheduled: bool = True) -> None:
        self.hlo = hlo
        # The ids of hlo_modules count within a computation; XLA's are a module's.
        for computation in hlo.module.computations:
            base = computation.id << 32
            for op in computation.instructions:
                op.id += base
                operands = [operand + base for operand in op.operand_ids]
                del op.operand_ids[:]
                op.operand_ids.extend(operands)
            computation.root_id += base
            if scheduled:
                hlo.module.schedule.sequences[computation.id].instruction_ids.extend(
                    op.id for op in computation.instructions
                )
        self.assignment = hlo.proto.buffer_assignment

    def allocation(self, kind: str, *values: tuple[Any, ...], size: int | None = None, space: int = 0) -> list[int]:
        """One allocation that holds ``values``: (op, bytes, offset = 0, element = none). Returns the buffers' ids."""
        allocation = self.assignment.buffer_allocations.add(index=len(self.assignment.buffer_allocations), color=space)
        for flag in _FLAGS[kind]:
            setattr(allocation, flag, True)
        ids = []
        for op, count, *place in values:
            offset, element = [*place, None, None][:2]
            buffer = self.assignment.logical_buffers.add(id=len(self.assignment.logical_buffers), size=count)
            buffer.defined_at.instruction_id = op.id
            if element is not None:
                buffer.defined_at.shape_index.append(element)
            allocation.assigned.add(logical_buffer_id=buffer.id, offset=offset or 0, size=count)
            if kind in ("argument", "donated"):
                allocation.parameter_number = op.parameter_number
            ids.append(buffer.id)
        ends = [a.offset + a.size for a in allocation.assigned]
        allocation.size = max(ends, default=0) if size is None else size
        return ids

    def profile(self) -> Profile:
        """A profile with this program alone, and no run."""
        hlo = pa.array([self.hlo.proto.SerializeToString()], pa.large_binary())
        programs = schema.table("programs", {"program_id": [7], "name": ["jit_f"], "hlo": hlo})
        return Profile("host0", 0, 0, 1, {"programs": programs, **read_programs(programs)})
