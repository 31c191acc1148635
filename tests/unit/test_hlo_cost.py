"""Flops, bytes and network bytes of HLO instructions, against counts made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hlo_modules import Computation, Module, f32, s32
from xprof_py.postprocess.hlo.cost import Cost, Total


def cost_of(hlo: Module, op: Any) -> Cost:
    return hlo.model().of(hlo.row(op))


def flops_of(hlo: Module, op: Any) -> int:
    flops = cost_of(hlo, op).flops
    assert flops is not None
    return flops.total


def total_of(hlo: Module) -> Total:
    model = hlo.model()
    return model.of_computation(model.instructions.entries[0])


def main_of(hlo: Module) -> Computation:
    return hlo.computation("main", entry=True)


def test_a_matmul_is_two_flops_a_multiply_add() -> None:
    hlo = Module()
    main = main_of(hlo)
    dot = main.op("dot", f32(5, 7, 9), *main.parameters(f32(5, 7, 3), f32(5, 3, 9)))
    numbers = dot.dot_dimension_numbers
    numbers.lhs_contracting_dimensions.append(2)
    numbers.rhs_contracting_dimensions.append(1)
    numbers.lhs_batch_dimensions.append(0)
    cost = cost_of(hlo, dot)
    assert cost.flops is not None
    assert dict(cost.flops.matmul) == {"f32_default": 2 * 5 * 7 * 9 * 3}
    assert (cost.bytes_read, cost.bytes_written) == (4 * 5 * 3 * (7 + 9), 4 * 5 * 7 * 9)


def test_a_matmul_of_stated_precision_is_no_default() -> None:
    hlo = Module()
    main = main_of(hlo)
    dot = main.op("dot", f32(2, 2), *main.parameters(f32(2, 2), f32(2, 2)))
    dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    dot.precision_config.operand_precision.extend([2, 2])
    flops = cost_of(hlo, dot).flops
    assert flops is not None
    assert dict(flops.matmul) == {"f32": 16}


def test_a_complex_multiply_add_is_eight_flops() -> None:
    hlo = Module()
    main = main_of(hlo)
    dot = main.op("dot", ("c64", (2, 2)), *main.parameters(("c64", (2, 3)), ("c64", (3, 2))))
    dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    assert flops_of(hlo, dot) == 8 * 2 * 2 * 3


@pytest.mark.parametrize(
    ("window", "result", "met"),
    [
        # Pairs of result place and kernel place on an input of 5, kernel 3.
        ({"size": 3, "stride": 1}, 3, 9),
        ({"size": 3, "stride": 1, "padding_low": 1, "padding_high": 1}, 5, 13),  # two fall on padding
        ({"size": 3, "stride": 2}, 2, 6),
        ({"size": 3, "stride": 1, "window_dilation": 2}, 1, 3),
        # The input with holes is x.x.x.x.x: three places meet 2, 1, 2, 1, 2, 1, 2 elements.
        ({"size": 3, "stride": 1, "base_dilation": 2}, 7, 11),
    ],
)
def test_a_convolution_counts_what_meets_the_input(window: dict[str, int], result: int, met: int) -> None:
    hlo = Module()
    main = main_of(hlo)
    # Input [batch 2, features 6, width 5], kernel [features in 3, out 8, width 3], two feature groups.
    conv = main.op(
        "convolution", f32(2, 8, result), *main.parameters(f32(2, 6, 5), f32(3, 8, 3)), feature_group_count=2
    )
    conv.window.dimensions.add(**window)
    numbers = conv.convolution_dimension_numbers
    numbers.input_feature_dimension = numbers.output_feature_dimension = numbers.kernel_output_feature_dimension = 1
    for spatial in (numbers.input_spatial_dimensions, numbers.kernel_spatial_dimensions):
        spatial.append(2)
    numbers.output_spatial_dimensions.append(2)
    assert flops_of(hlo, conv) == 2 * met * 3 * 8 * 2


def test_elementwise_and_transcendental_are_counted_apart() -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(10, 10))
    add, tanh = main.op("add", f32(10, 10), x, x), main.op("tanh", f32(10, 10), x)
    added, curved = cost_of(hlo, add), cost_of(hlo, tanh)
    assert added.flops is not None
    assert curved.flops is not None
    assert (added.flops.total, added.flops.transcendentals) == (100, 0)
    assert (curved.flops.total, curved.flops.transcendentals) == (0, 100)
    assert (added.bytes_read, added.bytes_written) == (400, 400)  # x is read once


def test_a_reduction_applies_its_function() -> None:
    hlo = Module()
    adder = hlo.binary("add")
    main = main_of(hlo)
    x, zero = main.parameters(f32(8, 100), f32())
    reduced = main.op("reduce", f32(8), x, zero, calls=(adder,), dimensions=[1])
    assert flops_of(hlo, reduced) == 8 * 99 + 8 - 8
    windows = main.op("reduce-window", f32(8, 50), x, zero, calls=(adder,))
    windows.window.dimensions.add(size=1, stride=1)
    windows.window.dimensions.add(size=2, stride=2)
    assert flops_of(hlo, windows) == 8 * 50


def test_a_fourier_transform_is_five_n_log_n() -> None:
    hlo = Module()
    main = main_of(hlo)
    x, real = main.parameters(("c64", (3, 256)), f32(3, 256))
    whole = main.op("fft", ("c64", (3, 256)), x, fft_length=[256])
    half = main.op("fft", ("c64", (3, 129)), real, fft_length=[256], fft_type=2)
    assert flops_of(hlo, whole) == 3 * 5 * 256 * 8
    assert flops_of(hlo, half) == 3 * 5 * 256 * 8 // 2


def test_what_depends_on_values_is_unknown() -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(100))
    assert cost_of(hlo, main.op("sort", f32(100), x)).flops is None
    assert cost_of(hlo, main.op("custom-call", f32(100), x, custom_call_target="mystery")) == Cost(None, None, None)


def fused(hlo: Module, body: Computation, shape: Any, *operands: Any, main: Computation) -> Any:
    return main.op("fusion", shape, *operands, calls=(body,), fusion_kind="kLoop")


def test_a_fusion_is_its_body_and_moves_its_ends() -> None:
    hlo = Module()
    body = hlo.computation("fused")
    a, b = body.parameters(f32(64), f32(64))
    body.op("add", f32(64), body.op("multiply", f32(64), a, b), b)
    main = main_of(hlo)
    cost = cost_of(hlo, fused(hlo, body, f32(64), *main.parameters(f32(64), f32(64)), main=main))
    assert cost.flops is not None
    assert (cost.flops.total, cost.bytes_read, cost.bytes_written) == (128, 512, 256)


def test_a_fusion_reads_the_slice_that_it_takes() -> None:
    hlo = Module()
    body = hlo.computation("fused")
    table, index = body.parameters(f32(1000, 8), s32())
    row = body.op("dynamic-slice", f32(1, 8), table, index, index)
    body.op("negate", f32(1, 8), row)
    main = main_of(hlo)
    cost = cost_of(hlo, fused(hlo, body, f32(1, 8), *main.parameters(f32(1000, 8), s32()), main=main))
    assert (cost.bytes_read, cost.bytes_written) == (4 * 8 + 4, 4 * 8)


def test_a_fusion_that_also_uses_the_whole_reads_the_whole() -> None:
    hlo = Module()
    body = hlo.computation("fused")
    (table,) = body.parameters(f32(1000, 8))
    row = body.op("slice", f32(1, 8), table)
    body.op("tuple", [f32(1, 8), f32(1000, 8)], row, body.op("negate", f32(1000, 8), table))
    main = main_of(hlo)
    cost = cost_of(hlo, fused(hlo, body, [f32(1, 8), f32(1000, 8)], *main.parameters(f32(1000, 8)), main=main))
    assert (cost.bytes_read, cost.bytes_written) == (32_000, 32_032)


def test_an_update_in_place_moves_the_update() -> None:
    hlo = Module()
    body = hlo.computation("fused")
    stack, row, index = body.parameters(f32(1000, 8), f32(1, 8), s32())
    body.op("dynamic-update-slice", f32(1000, 8), stack, row, index, index)
    fresh = hlo.computation("fused_fresh")
    row, index = fresh.parameters(f32(1, 8), s32())
    empty = fresh.op("broadcast", f32(1000, 8), fresh.op("constant", f32()))
    fresh.op("dynamic-update-slice", f32(1000, 8), empty, row, index, index)
    main = main_of(hlo)
    stack, row, index = main.parameters(f32(1000, 8), f32(1, 8), s32())
    in_place = cost_of(hlo, fused(hlo, body, f32(1000, 8), stack, row, index, main=main))
    assert (in_place.bytes_read, in_place.bytes_written) == (32 + 4, 32)
    made_anew = cost_of(hlo, fused(hlo, fresh, f32(1000, 8), row, index, main=main))
    assert (made_anew.bytes_read, made_anew.bytes_written) == (32 + 4, 32_000)


def test_bytes_on_the_chip_or_the_host_are_not_memory_traffic() -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(100))
    x.shape.layout.memory_space = 5
    cost = cost_of(hlo, main.op("copy", f32(100), x))
    assert (cost.bytes_read, cost.bytes_written) == (0, 400)


def test_packed_types_take_what_the_layout_says() -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(("s4", (101,)))
    copied = main.op("copy", ("s4", (101,)), x)
    copied.shape.layout.element_size_in_bits = 4
    cost = cost_of(hlo, copied)
    assert (cost.bytes_read, cost.bytes_written) == (101, 51)


def test_bounds_are_no_sizes() -> None:
    hlo = Module()
    main = main_of(hlo)
    (x,) = main.parameters(f32(100))
    x.shape.is_dynamic_dimension.append(True)
    added = main.op("add", f32(100), x, x)
    added.shape.is_dynamic_dimension.append(True)
    assert cost_of(hlo, added) == Cost(None, None, None)


# --- loops ------------------------------------------------------------------------------------------------------------


def loop(*, start: int, limit: int, step: int, direction: str = "LT", stated: int | None = None) -> tuple[Module, Any]:
    """``for (i = start; i < limit; i += step) x = x @ x`` with x f32[16, 16], as XLA writes it: through fusions."""
    hlo = Module()
    state = [s32(), f32(16, 16)]
    adding = hlo.computation("adding")
    adding.op("add", s32(), *adding.parameters(s32(), s32()))
    body = hlo.computation("body")
    given = body.op("parameter", state)
    i = body.op("get-tuple-element", s32(), given)
    x = body.op("get-tuple-element", f32(16, 16), given, tuple_index=1)
    following = body.op("fusion", s32(), i, body.constant(step), calls=(adding,))
    dot = body.op("dot", f32(16, 16), x, x)
    dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    body.op("tuple", state, following, dot)
    comparing = hlo.computation("comparing")
    comparing.op("compare", ("pred", ()), *comparing.parameters(s32(), s32()), comparison_direction=direction)
    condition = hlo.computation("condition")
    i = condition.op("get-tuple-element", s32(), condition.op("parameter", state))
    condition.op("fusion", ("pred", ()), i, condition.constant(limit), calls=(comparing,))
    main = main_of(hlo)
    (x,) = main.parameters(f32(16, 16))
    begin = main.op("tuple", state, main.op("copy", s32(), main.constant(start)), x)
    known = {} if stated is None else {"known_trip_count": {"n": str(stated)}}
    op = main.op("while", state, begin, calls=(body, condition), backend_config=json.dumps(known).encode())
    return hlo, op


ONCE = 2 * 16**3 + 1 + 1  # the dot, the counter's addition, the comparison


@pytest.mark.parametrize(
    ("start", "limit", "step", "direction", "trips"),
    [
        (0, 10, 1, "LT", 10),
        (3, 10, 2, "LT", 4),
        (0, 10, 1, "LE", 11),
        (10, 0, -1, "GT", 10),
        (10, 0, -3, "GE", 4),
        (5, 5, 1, "LT", 0),
    ],
)
def test_a_loop_counts_by_its_counter(start: int, limit: int, step: int, direction: str, trips: int) -> None:
    hlo, op = loop(start=start, limit=limit, step=step, direction=direction)
    assert flops_of(hlo, op) == trips * ONCE
    total = total_of(hlo)
    assert (total.flops.total, total.unknown_flops) == (trips * ONCE, 0)


def test_what_xla_states_goes_before_the_counter() -> None:
    hlo, op = loop(start=0, limit=10, step=1, stated=7)
    assert flops_of(hlo, op) == 7 * ONCE


@pytest.mark.parametrize(("step", "direction"), [(0, "LT"), (-1, "LT"), (1, "GT"), (1, "NE")])
def test_a_loop_without_a_plain_counter_is_unknown(step: int, direction: str) -> None:
    hlo, op = loop(start=0, limit=10, step=step, direction=direction)
    assert cost_of(hlo, op).flops is None
    assert total_of(hlo).unknown_flops == 1


def test_a_branch_is_known_where_all_cost_the_same() -> None:
    def conditional(other: str) -> Total:
        hlo = Module()
        branches = []
        for opcode in ("add", other):
            branch = hlo.computation(opcode)
            (x,) = branch.parameters(f32(50))
            branch.op(opcode, f32(50), x, x)
            branches.append(branch)
        main = main_of(hlo)
        main.op("conditional", f32(50), *main.parameters(("pred", ()), f32(50), f32(50)), calls=tuple(branches))
        return total_of(hlo)

    assert (conditional("multiply").flops.total, conditional("multiply").unknown_flops) == (50, 0)
    assert conditional("sort").unknown_flops == 1


def test_a_computation_that_calls_itself_is_unknown() -> None:
    hlo = Module()
    main = main_of(hlo)
    op = main.op("call", f32(2), *main.parameters(f32(2)))
    op.called_computation_ids.append(main.message.id)
    assert total_of(hlo).unknown_flops == 1
    assert cost_of(hlo, op).flops is None


# --- custom calls -----------------------------------------------------------------------------------------------------


def test_a_library_matmul_says_what_it_contracts() -> None:
    hlo = Module()
    main = main_of(hlo)
    numbers = {"lhs_contracting_dimensions": ["0"], "rhs_contracting_dimensions": ["0"]}
    config = json.dumps({"gemm_backend_config": {"dot_dimension_numbers": numbers}}).encode()
    operands = main.parameters(("bf16", (32, 8)), ("bf16", (32, 4)))
    call = main.op(
        "custom-call", ("bf16", (8, 4)), *operands, custom_call_target="__cublas$gemm", backend_config=config
    )
    cost = cost_of(hlo, call)
    assert cost.flops is not None
    assert dict(cost.flops.matmul) == {"bf16": 2 * 8 * 4 * 32}
    assert cost.bytes == 2 * (32 * 8 + 32 * 4 + 8 * 4)
    onednn = main.op("custom-call", f32(8, 4), *main.parameters(f32(8, 32), f32(32, 4)))
    onednn.custom_call_target, onednn.backend_config = "__onednn$matmul", b'{"onednn_matmul_config":{}}'
    assert flops_of(hlo, onednn) == 2 * 8 * 4 * 32


def test_fused_attention_is_two_matmuls() -> None:
    hlo = Module()
    main = main_of(hlo)
    batch, heads, queries, keys, width = 2, 3, 16, 32, 8
    q, k, v = ((batch, heads, n, width) for n in (queries, keys, keys))
    numbers = {
        "lhs_contracting_dimensions": ["3"],
        "rhs_contracting_dimensions": ["3"],
        "lhs_batch_dimensions": ["0", "1"],
        "rhs_batch_dimensions": ["0", "1"],
    }
    config = json.dumps({"cudnn_fmha_backend_config": {"bmm1_dot_dimension_numbers": numbers}}).encode()
    call = main.op(
        "custom-call",
        [("bf16", q), f32(10)],
        *main.parameters(("bf16", q), ("bf16", k), ("bf16", v)),
        custom_call_target="__cudnn$fmhaSoftmax",
        backend_config=config,
    )
    assert flops_of(hlo, call) == 2 * (2 * batch * heads * queries * keys * width)
    call.custom_call_target = "__cudnn$fmhaSoftmaxBackward"
    assert cost_of(hlo, call).flops is None


def test_a_kernel_that_states_its_cost_is_believed() -> None:
    hlo = Module()
    main = main_of(hlo)
    estimate = {"flops": "1000", "transcendentals": "5", "bytes_accessed": "900"}
    config = json.dumps({"custom_call_config": {"cost_estimate": estimate}}).encode()
    call = main.op("custom-call", f32(100), *main.parameters(f32(100)), backend_config=config)
    cost = cost_of(hlo, call)
    assert cost.flops is not None
    assert (cost.flops.total, cost.flops.transcendentals, cost.bytes) == (1000, 5, 900)


# --- collectives ------------------------------------------------------------------------------------------------------


def collective(opcode: str, before: int, after: int, **groups: Any) -> int | None:
    hlo = Module()
    hlo.module.device_assignment.replica_count = groups.pop("replicas", 0)
    adder = hlo.binary("add")
    main = main_of(hlo)
    op = main.op(opcode, f32(after), *main.parameters(f32(before)), calls=(adder,))
    for ids in groups.get("written", ()):
        op.replica_groups.add(replica_ids=ids)
    if "iota" in groups:
        op.collective_device_list.iota_replica_group_list.num_replica_groups = 2
        op.collective_device_list.iota_replica_group_list.num_devices_per_group = groups["iota"]
    return cost_of(hlo, op).network_bytes


def test_each_participant_of_a_ring_sends_its_part() -> None:
    four = {"written": [[0, 1, 2, 3], [4, 5, 6, 7]]}
    assert collective("all-reduce", 100, 100, **four) == 2 * 400 * 3 // 4
    assert collective("all-gather", 100, 400, **four) == 400 * 3
    assert collective("reduce-scatter", 100, 25, **four) == 400 * 3 // 4
    assert collective("all-to-all", 100, 100, **four) == 400 * 3 // 4
    assert collective("collective-permute", 100, 100) == 400
    assert collective("all-reduce", 100, 100, iota=4) == 600
    assert collective("all-reduce", 100, 100, replicas=4) == 600


def test_a_group_that_is_not_told_is_unknown() -> None:
    assert collective("all-reduce", 100, 100) is None
    assert collective("all-reduce", 100, 100, written=[[0, 1], [2, 3, 4]]) is None
    assert collective("add", 100, 100) == 0
