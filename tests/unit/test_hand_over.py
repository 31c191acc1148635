"""Which program's result is another one's state, on programs made by hand: a gradient, an update, an evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

from hlo_modules import Shape, f32, s32
from xprof_py.postprocess import schema
from xprof_py.postprocess.hlo.hand_over import HandOver
from xprof_py.postprocess.profile import Profile

WEIGHTS = f32(8, 8)


@dataclass
class Program:
    takes: list[Shape]
    returns: list[Shape]


def profile_of(programs: list[Program], *, shapes: bool = True) -> Profile:
    """One entry computation a program: its parameters, and a root that returns ``returns``."""
    ops: list[tuple[object, ...]] = []
    arrays: list[tuple[object, ...]] = []
    for row, program in enumerate(programs):
        for opcode, results in [*(("parameter", [shape]) for shape in program.takes), ("tuple", program.returns)]:
            for element, (kind, dimensions) in enumerate(results):
                size = 4
                for dimension in dimensions:
                    size *= dimension
                arrays.append((len(ops), element, kind, list(dimensions), size, 0))
            ops.append((row, f"{opcode}.{len(ops)}", opcode, row, "", "", 0, ""))
    roots = [(row, max(i for i, op in enumerate(ops) if op[0] == row)) for row in range(len(programs))]

    def table(name: str, rows: list[tuple[object, ...]]) -> pa.Table:
        names = schema.TABLES[name].names
        return schema.table(name, {key: [row[i] for row in rows] for i, key in enumerate(names)})

    return Profile("host", 0, 0, 1).with_tables(
        hlo_ops=table("hlo_ops", ops),
        hlo_shapes=table("hlo_shapes", arrays if shapes else []),
        hlo_computations=table("hlo_computations", [(row, "main", True) for row in range(len(programs))]),
        hlo_roots=table("hlo_roots", roots),
    )


GRADIENT = Program([WEIGHTS, WEIGHTS, f32(4, 8)], [WEIGHTS, f32()])
UPDATE = Program([WEIGHTS, WEIGHTS], [WEIGHTS])
EVALUATION = Program([WEIGHTS, f32(4, 8)], [f32(), s32()])


def test_an_update_hands_on_what_the_gradient_takes() -> None:
    assert HandOver(profile_of([GRADIENT, UPDATE])).hands_on(1, [0]) is True


def test_a_few_figures_are_no_state_even_if_their_shapes_fit() -> None:
    step = Program([WEIGHTS, f32(), s32()], [WEIGHTS, f32()])
    assert HandOver(profile_of([step, EVALUATION])).hands_on(1, [0]) is False


@pytest.mark.parametrize("takers", [[0], [], [5]])
def test_without_shapes_or_programs_nothing_is_known(takers: list[int]) -> None:
    shapes = takers != [0]
    assert HandOver(profile_of([GRADIENT, UPDATE], shapes=shapes)).hands_on(1, takers) is None
