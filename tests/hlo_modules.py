"""HLO modules made by hand for tests: instructions with shapes, attributes and called computations.

hlo = Module()
main = hlo.computation("main")
a = main.op("parameter", f32(8, 4))
hlo.entry(main)
tables = hlo.tables()
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from xprof_py.postprocess import schema
from xprof_py.postprocess.hlo.cost import CostModel
from xprof_py.postprocess.hlo.module import read_programs
from xprof_py.postprocess.hlo.shapes import Instructions
from xspace_schema import HloProto

TYPES = {"pred": 1, "s32": 4, "f32": 11, "c64": 15, "bf16": 16, "s4": 21}
Shape = tuple[str, tuple[int, ...]]


def f32(*dimensions: int) -> Shape:
    return ("f32", dimensions)


def s32(*dimensions: int) -> Shape:
    return ("s32", dimensions)


class Computation:
    """``op`` adds an instruction and returns its message; the last one added is the root."""

    def __init__(self, message: Any) -> None:
        self.message = message

    def op(
        self, opcode: str, shape: Shape | list[Shape], *operands: Any, calls: tuple[Any, ...] = (), **fields: Any
    ) -> Any:
        number = len(self.message.instructions) + 1
        op = self.message.instructions.add(id=number, name=f"{opcode}.{number}", opcode=opcode)
        if isinstance(shape, list):
            op.shape.element_type = 13
            for part in shape:
                op.shape.tuple_shapes.add(element_type=TYPES[part[0]], dimensions=part[1])
        else:
            op.shape.element_type = TYPES[shape[0]]
            op.shape.dimensions.extend(shape[1])
        op.operand_ids.extend(operand.id for operand in operands)
        op.called_computation_ids.extend(called.message.id for called in calls)
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(op, name).extend(value)
            else:
                setattr(op, name, value)
        self.message.root_id = number
        return op

    def parameters(self, *shapes: Shape) -> list[Any]:
        return [self.op("parameter", shape, parameter_number=number) for number, shape in enumerate(shapes)]

    def constant(self, value: int) -> Any:
        op = self.op("constant", s32())
        op.literal.s32s.append(value)
        return op


class Module:
    """One module; ``cost(op)`` is the cost of an instruction of it, by its message."""

    def __init__(self) -> None:
        self.proto = HloProto()
        self.module = self.proto.hlo_module
        self.module.name = "jit_f"

    def computation(self, name: str, *, entry: bool = False) -> Computation:
        message = self.module.computations.add(id=len(self.module.computations) + 1, name=name)
        if entry:
            self.module.entry_computation_id = message.id
        return Computation(message)

    def binary(self, opcode: str) -> Computation:
        """A function of two scalars, for reductions."""
        function = self.computation(opcode)
        function.op(opcode, f32(), *function.parameters(f32(), f32()))
        return function

    def tables(self) -> dict[str, pa.Table]:
        programs = schema.table(
            "programs",
            {
                "program_id": [1],
                "name": ["jit_f"],
                "hlo": pa.array([self.proto.SerializeToString()], pa.large_binary()),
            },
        )
        tables = read_programs(programs)
        assert tables["diagnostics"].num_rows == 0
        return tables

    def model(self) -> CostModel:
        return CostModel(Instructions(self.tables()))

    def row(self, op: Any) -> int:
        """The row of hlo_ops of an instruction."""
        before = 0
        for computation in self.module.computations:
            for instruction in computation.instructions:
                if instruction is op:
                    return before
                before += 1
        raise KeyError(op.name)
