"""Findings of compiled code: patterns of HLO made by hand, and the time that they cost, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hlo_modules import Computation, Module, f32, s32
from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import code_findings, roofline
from xprof_py.postprocess.hlo.cost import cost_tables
from xprof_py.postprocess.hlo.peaks import Peaks
from xprof_py.postprocess.hlo.shapes import Instructions
from xprof_py.postprocess.profile import Profile

BF16 = ("bf16", (1000, 1000))
# One byte takes a picosecond times 1e12/1e12: 1 TB/s is one byte a picosecond.
PEAKS = Peaks("made up", "here", {"f32": 10**13, "bf16": 8 * 10**13}, 10**13, 10**12)
Ran = tuple[Any, str, Sequence[int]]
"""(instruction, class, picoseconds of each execution)."""


def measured(hlo: Module, *ran: Ran, peaks: Peaks | None = PEAKS) -> Profile:
    """A joined profile of one steady step in which the instructions of ``hlo`` ran, one after the other."""
    tables = hlo.tables()
    tables.pop("diagnostics")
    executed = [(hlo.row(op), name, ps) for op, name, durations in ran for ps in durations]
    count = len(executed)
    starts = [sum(ps for _, _, ps in executed[:i]) for i in range(count)]
    end = sum(ps for _, _, ps in executed)
    columns: dict[str, dict[str, Any]] = {
        "programs": {"program_id": [1], "name": ["jit_f"], "hlo": [None]},
        "lanes": {"device": ["cpu:0"], "ordinal": [0]},
        "steps": {
            "name": ["train"],
            "number": [0],
            "occurrence": [0],
            "parent": [None],
            "line": [0],
            "start_ps": [0],
            "end_ps": [end],
            "phase": ["steady"],
            "reason": [""],
            "source": ["annotated"],
            "tokens": [None],
            "model_flops": [None],
        },
        "windows": {"lane": [0], "kind": ["step"], "step": [0], "start_ps": [0], "end_ps": [end]},
        "runs": {
            "lane": [0],
            "program": [0],
            "run_id": [1],
            "launch": [None],
            "step": [0],
            "start_ps": [0],
            "end_ps": [end],
            "join": ["order"],
        },
        "ops": {
            "event": range(count),
            "lane": [0] * count,
            "run": [0] * count,
            "hlo_op": [row for row, _, _ in executed],
            "class": [name for _, name, _ in executed],
            "leaf": [True] * count,
            "start_ps": starts,
            "duration_ps": [ps for _, _, ps in executed],
            "join": ["stated"] * count,
            "open_ps": [0] * count,
            "stated_op": [None] * count,
        },
    }
    costs = cost_tables(Instructions(tables), sorted({row for row, _, _ in executed}), [0])
    joined = {name: schema.table(name, made) for name, made in columns.items()}
    metadata = {"peaks": {"cpu": peaks.document()}} if peaks is not None else {}
    return Profile("host0", 0, 0, end, {**tables, **costs, **joined}, metadata)


def findings(hlo: Module, *ran: Ran, peaks: Peaks | None = PEAKS) -> list[dict[str, Any]]:
    table = code_findings.finish(code_findings.partial(measured(hlo, *ran, peaks=peaks)), ("steady",))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def main_of(hlo: Module) -> Computation:
    return hlo.computation("main", entry=True)


@pytest.mark.parametrize(
    ("opcode", "kind"), [("copy", "copy"), ("transpose", "transpose"), ("bitcast-convert", "bitcast_convert")]
)
def test_a_layout_op_of_its_own_costs_all_its_time(opcode: str, kind: str) -> None:
    hlo = Module()
    main = main_of(hlo)
    moved = main.op(opcode, f32(10, 10), *main.parameters(f32(10, 10)))
    (row,) = findings(hlo, (moved, "memory", [300, 500]))
    assert (row["kind"], row["op"], row["lost_ps"], row["count"]) == (kind, moved.name, 800, 2)
    assert row["advice"] == code_findings.ADVICE[kind]


def test_a_fusion_that_only_moves_is_one_too_and_one_that_computes_is_not() -> None:
    hlo = Module()
    moves, adds = hlo.computation("moves"), hlo.computation("adds")
    (p,) = moves.parameters(f32(10, 20))
    moves.op("bitcast", f32(200), moves.op("copy", f32(20, 10), moves.op("transpose", f32(20, 10), p)))
    (q,) = adds.parameters(f32(10, 20))
    adds.op("add", f32(20, 10), *[adds.op("transpose", f32(20, 10), q)] * 2)
    main = main_of(hlo)
    (x,) = main.parameters(f32(10, 20))
    moving = main.op("fusion", f32(200), x, calls=(moves,))
    adding = main.op("fusion", f32(20, 10), x, calls=(adds,))
    rows = findings(hlo, (moving, "memory", [7]), (adding, "memory", [9]))
    assert [(row["kind"], row["op"]) for row in rows] == [("transpose", moving.name)]


def test_a_call_of_one_fusion_is_looked_into() -> None:
    hlo = Module()
    inner, outer = hlo.computation("inner"), hlo.computation("outer")
    inner.op("copy", f32(4), *inner.parameters(f32(4)))
    outer.op("fusion", f32(4), *outer.parameters(f32(4)), calls=(inner,))
    main = main_of(hlo)
    call = main.op("call", f32(4), *main.parameters(f32(4)), calls=(outer,))
    assert [row["kind"] for row in findings(hlo, (call, "compute", [5]))] == ["copy"]


def test_a_copy_between_memories_is_no_layout_copy() -> None:
    hlo = Module()
    main = main_of(hlo)
    copy = main.op("copy", f32(4), *main.parameters(f32(4)))
    copy.shape.layout.memory_space = 1
    assert findings(hlo, (copy, "memory", [5])) == []


def test_an_elementwise_chain_loses_the_bytes_between_its_parts() -> None:
    """Three maps of 1e6 f32: the two arrays between them are written and read for nothing, 4 x 4e6 bytes a step."""
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(1000, 1000))
    first = main.op("multiply", f32(1000, 1000), x, x)
    second = main.op("add", f32(1000, 1000), first, x)
    third = main.op("negate", f32(1000000), main.op("bitcast", f32(1000000), second))
    ran = [(op, "memory", [12_000_000] * 2) for op in (first, second, third)]
    (row,) = findings(hlo, *ran)
    assert (row["kind"], row["op"], row["count"]) == ("unfused_chain", third.name, 2)
    assert row["parts"] == f"{first.name} {second.name} {third.name}"
    assert row["lost_ps"] == 2 * 4 * 4_000_000
    assert row["total_ps"] == 6 * 12_000_000
    (unknown,) = findings(hlo, *ran, peaks=None)
    assert unknown["lost_ps"] is None


def test_two_that_feed_one_are_one_chain() -> None:
    hlo = Module()
    main = main_of(hlo)
    x, y = main.parameters(f32(100), f32(100))
    left, right = main.op("negate", f32(100), x), main.op("abs", f32(100), y)
    both = main.op("add", f32(100), left, right)
    (row,) = findings(hlo, *((op, "memory", [10_000]) for op in (left, right, both)))
    assert (row["op"], row["lost_ps"]) == (both.name, 4 * 400)


@pytest.mark.parametrize("broken_by", ["second reader", "result", "root", "reduction", "compute", "smaller"])
def test_what_no_fusion_would_save_is_no_chain(broken_by: str) -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(100))
    first = main.op("negate", f32(100), x)
    size = 50 if broken_by == "smaller" else 100
    opcode = "reduce" if broken_by == "reduction" else "abs"
    second = main.op(opcode, f32(size), first)
    if broken_by == "second reader":
        main.op("dot", f32(), first, second)
    if broken_by == "result":
        main.op("tuple", [f32(100), f32(100)], first, second)
    if broken_by == "root":
        main.message.root_id = first.id
    name = "compute" if broken_by == "compute" else "memory"
    assert findings(hlo, (first, name, [1000]), (second, "memory", [1000])) == []


def test_a_chain_loses_no_more_than_it_takes() -> None:
    """From a cache the two take less than moving their bytes from memory would."""
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(1000))
    first = main.op("negate", f32(1000), x)
    second = main.op("abs", f32(1000), first)
    (row,) = findings(hlo, (first, "memory", [1000]), (second, "memory", [1500]))
    assert row["lost_ps"] == 2500  # 8000 bytes are 8000 ps


@pytest.mark.parametrize(
    ("path", "name"), [("jit(f)/jvp(checkpoint)/rematted_computation/tanh", ""), ("", "tanh.3.remat2")]
)
def test_what_is_computed_again_costs_all_its_time(path: str, name: str) -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(10))
    again = main.op("tanh", f32(10), x)
    again.metadata.op_name = path
    again.name = name or again.name
    other = main.op("transpose", f32(10), x)
    rows = findings(hlo, (again, "compute", [40, 60]), (other, "memory", [1]))
    assert [(row["kind"], row["lost_ps"]) for row in rows] == [("rematerialised", 100), ("transpose", 1)]


def test_slices_in_a_loop_are_its_own_cost_and_outside_they_are_not() -> None:
    hlo = Module()
    body, condition = hlo.computation("body"), hlo.computation("condition")
    condition.op("compare", ("pred", ()), *condition.parameters(s32()))
    carried, index = body.parameters(f32(100, 8), s32())
    read = body.op("dynamic-slice", f32(1, 8), carried, index)
    work = body.op("tanh", f32(1, 8), read)
    write = body.op("dynamic-update-slice", f32(100, 8), carried, work, index)
    main = main_of(hlo)
    x, i = main.parameters(f32(100, 8), s32())
    loop = main.op("while", f32(100, 8), x, calls=(body, condition))
    outside = main.op("dynamic-slice", f32(1, 8), loop, i)
    rows = findings(
        hlo,
        (read, "memory", [10] * 5),
        (write, "memory", [20] * 5),
        (work, "compute", [99] * 5),
        (outside, "memory", [7]),
    )
    assert [(row["kind"], row["op"], row["lost_ps"]) for row in rows] == [
        ("loop_slice", write.name, 100),
        ("loop_slice", read.name, 50),
    ]


def test_a_matmul_of_widened_bf16_loses_the_difference_of_the_rates() -> None:
    """2e9 flops: 200 us in f32 at 1e13, 25 us in bf16 at 8e13; 12 MB move in 12 us. So 175 us each."""
    hlo = Module()
    main = main_of(hlo)
    x, y = main.parameters(BF16, BF16)
    a = main.op("convert", f32(1000, 1000), x)
    b = main.op("transpose", f32(1000, 1000), main.op("convert", f32(1000, 1000), y))
    dot = main.op("dot", f32(1000, 1000), a, b)
    dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    (row,) = findings(hlo, (dot, "compute", [250_000_000] * 3))
    assert (row["kind"], row["lost_ps"]) == ("f32_from_bf16", 3 * 175_000_000)
    (unknown,) = findings(hlo, (dot, "compute", [250_000_000]), peaks=None)
    assert (unknown["kind"], unknown["lost_ps"]) == ("f32_from_bf16", None)


def test_a_matmul_with_one_operand_in_f32_is_a_note_without_time() -> None:
    hlo = Module()
    main = main_of(hlo)
    x, y = main.parameters(BF16, f32(1000, 1000))
    dot = main.op("dot", f32(1000, 1000), main.op("convert", f32(1000, 1000), x), y)
    dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    (row,) = findings(hlo, (dot, "compute", [250_000_000]))
    assert (row["kind"], row["lost_ps"], row["total_ps"]) == ("slow_type", None, 250_000_000)
    even = Peaks("made up", "here", {"f32": 10**13, "bf16": 10**13}, 10**13, 10**12)
    assert findings(hlo, (dot, "compute", [250_000_000]), peaks=even) == []


def test_findings_are_ranked_by_time_lost_and_what_is_not_known_comes_last() -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(1000, 1000))
    small, large = main.op("copy", f32(1000, 1000), x), main.op("transpose", f32(1000, 1000), x)
    dot = main.op("dot", f32(1000, 1000), small, large)
    dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    rows = findings(hlo, (small, "memory", [10]), (large, "memory", [20]), (dot, "compute", [10**9]))
    assert [row["kind"] for row in rows] == ["transpose", "copy", "slow_type"]


def test_merging_adds_up_and_its_order_does_not_matter() -> None:
    hlo = Module()
    main = main_of(hlo)
    copy = main.op("copy", f32(10), *main.parameters(f32(10)))
    a, b, c = (code_findings.partial(measured(hlo, (copy, "memory", [n]))) for n in (1, 10, 100))
    left = code_findings.finish(code_findings.merge(code_findings.merge(a, b), c), ("steady",))
    right = code_findings.finish(code_findings.merge(c, code_findings.merge(b, a)), ("steady",))
    assert left.equals(right)
    assert left["lost_ps"].to_pylist() == [111]


def test_codegen_excess_is_what_exceeds_the_ideal() -> None:
    """1e6 f32 read and written at 1 TB/s: 8 us ideal. A collective waits for others, and a sort is of unknown cost."""
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(1000, 1000))
    slow, fast = main.op("negate", f32(1000, 1000), x), main.op("abs", f32(1000, 1000), x)
    reduced = main.op("all-reduce", f32(1000, 1000), fast, calls=(hlo.binary("add"),))
    sort = main.op("sort", f32(1000, 1000), reduced)
    profile = measured(
        hlo,
        (slow, "memory", [20_000_000, 10_000_000]),
        (fast, "memory", [5_000_000]),
        (reduced, "collective", [50_000_000]),
        (sort, "compute", [3_000_000]),
    )
    partial = roofline.partial(profile)
    excess = {row["op"]: row["excess_ps"] for row in roofline.finish(partial, ("steady",)).to_pylist()}
    assert excess == {slow.name: 30_000_000 - 2 * 8_000_000, fast.name: 0, reduced.name: None, sort.name: None}
    (program,) = roofline.programs(partial, ("steady",)).to_pylist()
    assert (program["excess_ps"], program["excess_unknown_ps"]) == (14_000_000, 3_000_000)
    without = measured(hlo, (slow, "memory", [20_000_000]), peaks=None)
    (program,) = roofline.programs(roofline.partial(without), ("steady",)).to_pylist()
    assert (program["excess_ps"], program["excess_unknown_ps"]) == (None, 20_000_000)
