"""What a program holds, where its peak is and what would lower it, against answers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hlo_memory import Plan
from hypothesis import given
from hypothesis import strategies as st

from hlo_modules import Computation, Module, Shape, f32, s32
from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import program_memory
from xprof_py.postprocess.hlo.liveness import Lives, live_ranges
from xprof_py.postprocess.hlo.module import read_programs
from xprof_py.postprocess.hlo.shapes import Instructions
from xprof_py.postprocess.profile import Profile

PRED: Shape = ("pred", ())


def lives_of(plan: Plan) -> Lives:
    profile = plan.profile()
    return live_ranges(profile, Instructions(profile))


def life(plan: Plan) -> list[tuple[int, int]]:
    lives = lives_of(plan)
    return list(zip(lives.start.tolist(), lives.end.tolist(), strict=True))


def row_of(plan: Plan) -> dict[str, Any]:
    (row,) = program_memory.partial(plan.profile()).to_pylist()
    return dict(row)


def names(rows: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in rows]


def main_of(hlo: Module) -> Computation:
    return hlo.computation("main", entry=True)


def chain() -> tuple[Plan, list[Any]]:
    """x 40 bytes -> a 400 -> b 800 -> c 200 -> d(c, a) 40: alive 400, 1200, 1400 at c, 600."""
    hlo = Module()
    main = main_of(hlo)
    x = main.op("parameter", f32(10), parameter_number=0)
    x.metadata.op_name = "params['w']"
    a = main.op("fusion", f32(100), x)
    b = main.op("fusion", f32(200), a)
    c = main.op("fusion", f32(50), b)
    c.metadata.op_name, c.metadata.source_file, c.metadata.source_line = "jit(f)/c", "train.py", 12
    d = main.op("fusion", f32(10), c, a)
    plan = Plan(hlo)
    plan.allocation("argument", (x, 40))
    plan.allocation("temporary", (a, 400), (b, 800, 400), (c, 200, 1200), size=1408)
    plan.allocation("output", (d, 40))
    return plan, [x, a, b, c, d]


def test_a_value_lives_from_its_op_to_its_last_reader() -> None:
    plan, _ = chain()
    assert life(plan) == [(0, 1), (1, 4), (2, 3), (3, 4), (4, 4)]


def test_the_peak_is_the_op_with_most_bytes_alive() -> None:
    row = row_of(chain()[0])
    assert (row["op"], row["op_name"], row["source"]) == ("fusion.4", "jit(f)/c", "train.py:12")
    assert row["live_temporary_bytes"] == 400 + 800 + 200
    assert (row["held_bytes"], row["live_bytes"], row["packing_bytes"]) == (40 + 40 + 1408, 40 + 40 + 1400, 8)
    assert (row["argument_bytes"], row["output_bytes"], row["temporary_bytes"]) == (40, 40, 1408)
    assert row["runs"] is None


def test_what_is_alive_is_listed_largest_first_with_its_life() -> None:
    row = row_of(chain()[0])
    assert names(row["alive"], "kind", "bytes", "op", "shape") == [
        ("temporary", 800, "fusion.3", "f32[200]"),
        ("temporary", 400, "fusion.2", "f32[100]"),
        ("temporary", 200, "fusion.4", "f32[50]"),
        ("argument", 40, "parameter.1", "f32[10]"),
        ("output", 40, "fusion.5", "f32[10]"),
    ]
    assert names(row["alive"][:3], "live_from", "live_to", "idle_after", "idle_until") == [
        ("fusion.3", "fusion.4", None, None),
        ("fusion.2", "fusion.5", "fusion.3", "fusion.5"),
        ("fusion.4", "fusion.5", None, None),
    ]


def test_an_idle_value_saves_as_much_as_the_next_peak_lets_it() -> None:
    """Without a at c 1000 bytes are alive; b then is the peak with 1200: 200 are saved, not 400."""
    (advice,) = [advice for advice in row_of(chain()[0])["advice"] if advice["kind"] == "idle"]
    assert (advice["op"], advice["bytes"], advice["saves_bytes"]) == ("fusion.2", 400, 200)
    assert (advice["idle_after"], advice["idle_until"]) == ("fusion.3", "fusion.5")


def test_an_argument_with_the_shape_of_an_output_can_be_donated() -> None:
    (advice,) = [advice for advice in row_of(chain()[0])["advice"] if advice["kind"] == "donate"]
    assert (advice["op_name"], advice["output"], advice["saves_bytes"]) == ("params['w']", "fusion.5", 40)


def test_an_output_is_given_to_one_argument_and_only_of_its_type() -> None:
    hlo = Module()
    main = main_of(hlo)
    x, y, z = main.parameters(s32(1000), f32(1000), f32(1000))
    out = main.op("fusion", f32(1000), x, y, z)
    plan = Plan(hlo)
    for op in (x, y, z):
        plan.allocation("argument", (op, 4000))
    plan.allocation("output", (out, 4000))
    assert names(row_of(plan)["advice"], "kind", "op", "saves_bytes") == [("donate", "parameter.2", 4000)]


def test_a_donated_argument_is_counted_once() -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(1000))
    out = main.op("fusion", f32(1000), x)
    plan = Plan(hlo)
    plan.allocation("donated", (x, 4000), (out, 4000))
    row = row_of(plan)
    assert (row["held_bytes"], row["donated_bytes"], row["argument_bytes"], row["output_bytes"]) == (4000, 4000, 0, 0)
    assert row["advice"] == []
    assert row["op"] is None  # without temporaries no op is the peak


def test_tuples_and_bitcasts_pass_a_value_on() -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(4))
    a = main.op("fusion", f32(4), x)  # 1
    b = main.op("fusion", f32(4), x)  # 2
    both = main.op("tuple", [f32(4), f32(4)], a, b)  # 3
    first = main.op("get-tuple-element", f32(4), both, tuple_index=0)  # 4
    flat = main.op("bitcast", f32(2, 2), first)  # 5
    main.op("fusion", f32(4), flat)  # 6
    plan = Plan(hlo)
    plan.allocation("temporary", (a, 16), (b, 16, 16))
    # Nobody reads b: that the tuple holds it, and that its other element is taken from it, is no reading.
    assert life(plan) == [(1, 6), (2, 2)]


def test_a_fusion_of_two_results_has_two_lives() -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(4))
    pair = main.op("fusion", [f32(4), f32(4)], x)  # 1
    second = main.op("get-tuple-element", f32(4), pair, tuple_index=1)  # 2
    main.op("fusion", f32(4), second)  # 3
    plan = Plan(hlo)
    plan.allocation("temporary", (pair, 16, 0, 0), (pair, 16, 16, 1))
    assert life(plan) == [(1, 1), (1, 3)]


def loop() -> tuple[Plan, dict[str, Any]]:
    """A loop over (carry, big): big is only passed through it, and read after it."""
    hlo = Module()
    state = [f32(4), f32(100)]
    body = hlo.computation("body")
    s = body.op("parameter", state, parameter_number=0)
    carry = body.op("get-tuple-element", f32(4), s, tuple_index=0)
    big = body.op("get-tuple-element", f32(100), s, tuple_index=1)
    inner = body.op("fusion", f32(50), carry)
    new = body.op("fusion", f32(4), inner)
    body.op("tuple", state, new, big)
    condition = hlo.computation("condition")
    condition.op("parameter", state, parameter_number=0)
    condition.op("constant", PRED)
    main = main_of(hlo)
    (x,) = main.parameters(f32(4))  # 0
    kept = main.op("fusion", f32(100), x)  # 1
    start = main.op("copy", f32(4), x)  # 2
    init = main.op("tuple", state, start, kept)  # 3; the loop: 4 to 11, itself 12
    whole = main.op("while", state, init, calls=(body, condition))
    after = main.op("get-tuple-element", f32(100), whole, tuple_index=1)  # 13
    main.op("fusion", f32(4), after)  # 14
    plan = Plan(hlo)
    plan.allocation("temporary", (kept, 400), (start, 16, 400), (inner, 200, 512), (new, 16, 400))
    return plan, {"inner": inner}


def test_what_passes_through_a_loop_lives_through_it() -> None:
    plan, _ = loop()
    kept, start, inner, new = life(plan)
    # The body runs at 4..9, the condition at 10..11, the loop itself at 12.
    assert kept == (1, 14)
    assert start == (2, 7)  # read by the body's fusion at 7
    assert inner == (7, 8)
    assert new == (8, 9)  # to the end of the body


def test_a_value_that_a_loop_does_not_touch_is_idle_in_it() -> None:
    row = row_of(loop()[0])
    assert row["op"] == "fusion.4"  # the fusion of 200 bytes in the body
    assert row["live_temporary_bytes"] == 400 + 16 + 200
    (idle,) = [advice for advice in row["advice"] if advice["kind"] == "idle"]
    assert (idle["op"], idle["bytes"]) == ("fusion.2", 400)
    assert idle["idle_until"] == "fusion.7"


def test_what_is_being_copied_is_held_until_the_copy_is_done_and_is_not_idle() -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(100))
    a = main.op("fusion", f32(100), x)  # 1
    start = main.op("copy-start", [f32(100), f32(100), s32()], a)  # 2
    other = main.op("fusion", f32(200), x)  # 3
    main.op("fusion", f32(1), other)  # 4
    done = main.op("copy-done", f32(100), start)  # 5
    main.op("fusion", f32(1), done)  # 6
    plan = Plan(hlo)
    plan.allocation("temporary", (a, 400), (start, 400, 400, 0), (other, 800, 800))
    assert life(plan) == [(1, 5), (2, 6), (3, 4)]
    row = row_of(plan)
    assert row["op"] == "fusion.4"
    assert [advice for advice in row["advice"] if advice["kind"] == "idle"] == []


def test_padding_is_what_the_elements_do_not_need() -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(100, 3))
    out = main.op("fusion", f32(100), x)
    plan = Plan(hlo)
    plan.allocation("argument", (x, 100 * 128 * 4))
    plan.allocation("output", (out, 400))
    (advice,) = row_of(plan)["advice"]
    assert (advice["kind"], advice["op"], advice["saves_bytes"]) == ("padding", "parameter.1", 100 * 125 * 4)


def test_memory_of_the_host_is_apart() -> None:
    hlo = Module()
    main = main_of(hlo)
    x, y = main.parameters(f32(1000), f32(10))
    plan = Plan(hlo)
    plan.allocation("argument", (x, 4000), space=5)
    plan.allocation("argument", (y, 40))
    plan.allocation("temporary", (main.message.instructions[0], 4000), space=1)
    row = row_of(plan)
    assert (row["held_bytes"], row["host_bytes"]) == (40, 4000)


def test_a_program_without_a_buffer_assignment_has_no_row() -> None:
    hlo = Module()
    main_of(hlo).parameters(f32(1000))
    assert program_memory.partial(Plan(hlo).profile()).num_rows == 0


def test_a_program_without_a_schedule_has_its_sums_and_no_peak() -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(1000))
    a = main.op("fusion", f32(500), x)
    plan = Plan(hlo, scheduled=False)
    plan.allocation("argument", (x, 4000))
    plan.allocation("temporary", (a, 2000))
    row = row_of(plan)
    assert (row["held_bytes"], row["op"]) == (6000, None)


def test_ids_that_are_not_in_the_module_cost_only_themselves() -> None:
    plan, _ = chain()
    plan.assignment.logical_buffers.add(id=99, size=1 << 40).defined_at.instruction_id = 12345
    plan.assignment.buffer_allocations[1].assigned.add(logical_buffer_id=98, offset=0, size=1 << 40)
    plan.assignment.buffer_allocations[1].assigned.add(logical_buffer_id=99, offset=0, size=1 << 40)
    plan.hlo.module.schedule.sequences[1].instruction_ids.append(777)
    assert row_of(plan)["live_temporary_bytes"] == 1400


@pytest.mark.parametrize("sizes", [(-1,), (2**62,), (2**61, 2**61)])
def test_sizes_that_cannot_be_cost_only_their_program(sizes: tuple[int, ...]) -> None:
    good, _ = chain()
    broken, _ = chain()
    for size in sizes:
        broken.allocation("temporary", size=size)
    hlo = pa.array([plan.hlo.proto.SerializeToString() for plan in (broken, good)], pa.large_binary())
    programs = schema.table("programs", {"program_id": [1, 2], "name": ["broken", "good"], "hlo": hlo})
    tables = read_programs(programs, file="rank0")
    (row,) = tables["diagnostics"].to_pylist()
    assert (row["code"], row["file"], row["place"]) == ("hlo_buffer_sizes", "rank0", "program broken(1)")
    found = program_memory.partial(Profile("host0", 0, 0, 1, {"programs": programs, **tables})).to_pylist()
    assert [(row["program"], row["live_temporary_bytes"]) for row in found] == [("good", 1400)]


def test_a_module_that_calls_itself_ends() -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(10))
    a = main.op("call", f32(10), x)
    a.called_computation_ids.append(main.message.id)
    plan = Plan(hlo)
    plan.allocation("temporary", (a, 40))
    assert life(plan) == [(1, 1)]


@given(data=st.data())
def test_the_peak_is_that_of_a_program_run_by_hand(data: st.DataObject) -> None:
    """Random straight programs: a set of values in use, op by op, has the same peak; idle advice lowers it as told."""
    count = data.draw(st.integers(1, 12))
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    hlo = Module()
    main = main_of(hlo)
    made = [main.op("parameter", f32(1), parameter_number=0)]
    reads: list[list[int]] = []
    for size in sizes:
        operands = data.draw(st.lists(st.integers(0, len(made) - 1), min_size=1, max_size=3, unique=True))
        reads.append(operands)
        made.append(main.op("fusion", f32(size), *(made[i] for i in operands)))
    plan = Plan(hlo)
    offset, values = 0, []
    for op, size in zip(made[1:], sizes, strict=True):
        values.append((op, 4 * size, offset))
        offset += 4 * size
    plan.allocation("temporary", *values)
    last = {i: max([t for t, operands in enumerate(reads, 1) if i in operands], default=i) for i in range(1, count + 1)}
    last[count] = count
    level = np.array(
        [sum(4 * sizes[i - 1] for i in last if i <= t <= last[i]) for t in range(count + 1)], dtype=np.int64
    )
    row = row_of(plan)
    assert row["live_temporary_bytes"] == level.max()
    assert row["op"] == made[int(level.argmax())].name
    assert row["live_bytes"] + row["packing_bytes"] == row["held_bytes"]
    assert sum(piece["bytes"] for piece in row["alive"]) == row["live_bytes"]
    by_name = {op.name: i for i, op in enumerate(made)}
    for advice in row["advice"]:
        before = level.max()
        first, until = by_name[advice["idle_after"]], by_name[advice["idle_until"]]
        assert not any(by_name[advice["op"]] in reads[t - 1] for t in range(first + 1, until))
        level[first + 1 : until] -= advice["bytes"]
        assert advice["saves_bytes"] == before - level.max() > 0


def test_merging_in_any_order_gives_the_same_tables() -> None:
    one, two = program_memory.partial(chain()[0].profile()), program_memory.partial(loop()[0].profile())
    ab, ba = (program_memory.finish(program_memory.merge(*pair)) for pair in ((one, two), (two, one)))
    assert ab == ba
    assert ab["memory_alive"]["rank"].to_pylist()[:5] == [0, 1, 2, 3, 4]
    assert ab["program_memory"].num_rows == 2


@pytest.mark.parametrize("name", ["program_memory", "memory_alive", "memory_advice"])
def test_no_program_gives_empty_tables(name: str) -> None:
    hlo = Module()
    main_of(hlo)
    finished = program_memory.finish(program_memory.partial(Plan(hlo).profile()))
    assert finished[name].num_rows == 0


@pytest.mark.parametrize("seed", range(4))
def test_damaged_programs_are_read_or_refused(seed: int) -> None:
    """Whatever a file says of its buffers: an answer or a diagnostics row, never an exception."""
    random = np.random.default_rng(seed)
    answered = 0
    for plan, _ in [chain(), loop()] * 50:
        content = bytearray(plan.hlo.proto.SerializeToString())
        for at in random.integers(0, len(content), random.integers(1, 4)).tolist():
            content[at] = int(random.integers(0, 256))
        hlo = pa.array([bytes(content)], pa.large_binary())
        programs = schema.table("programs", {"program_id": [1], "name": ["jit_f"], "hlo": hlo})
        tables = read_programs(programs)
        found = program_memory.partial(Profile("host0", 0, 0, 1, {"programs": programs, **tables}))
        answered += program_memory.finish(found)["program_memory"].num_rows
        assert found.num_rows or tables["diagnostics"].num_rows or not tables["hlo_allocations"].num_rows
    assert 10 < answered < 100
