"""Laying kernels over a plan: against trying out every way there is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xprof_py.postprocess.hlo.kernel_names import is_library
from xprof_py.postprocess.join.launch_plan import LaunchPlan, Slot, lay_over, ops_of_kernels, plain, stem
from xprof_py.postprocess.readers.xla_ranges import XlaRange, xla_range


def test_names_of_kernels_and_of_instructions_have_one_stem() -> None:
    assert (
        stem(plain("loop_add_fusion.4")) == stem("loop_add_fusion_12") == stem("loop_add_fusion") == "loop_add_fusion"
    )
    assert stem("input_reduce_fusion__1") == "input_reduce_fusion"
    assert stem(plain("fused-add.3.2")) == "fused_add"


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN", True),
        ("sm90_xmma_gemm_f32f32_tf32f32", True),
        ("_ZN7cutlass6KernelI", True),
        ("void cub::DeviceReduceKernel<int>", True),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", True),
        ("gemm_fusion_dot_1", False),
        ("loop_add_fusion", False),
        ("sort_6_1", False),
    ],
)
def test_which_kernels_are_a_librarys(name: str, library: bool) -> None:
    assert is_library(name) is library


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Thunk:#name=blk1/dot_general,hlo_op=gemm_fusion_dot.1#", XlaRange("gemm_fusion_dot.1")),
        ("Thunk:#hlo_op=conv.1,unique_hlo_op_id=31#", XlaRange("conv.1")),
        ("Thunk:#name=a,hlo_op=no,b=[1,2]/dot,hlo_op=dot.2,unique_hlo_op_id=3#", XlaRange("dot.2")),
        ("XlaModule:#prefix=jit(f),hlo_module=jit_f,program_id=12#", XlaRange("", "jit_f", 12)),
        ("XlaModule:#hlo_module=jit_f,program_id=18446744073709551615#", XlaRange("", "jit_f", -1)),
        ("XlaModule:#hlo_module=jit_f,program_id=99999999999999999999#", XlaRange("", "jit_f", None)),
        ("XlaPass:#name=fusion,hlo_op=no.1#", XlaRange()),
        ("forward", XlaRange()),
        ("Thunk:##", XlaRange()),
        ("", XlaRange()),
    ],
)
def test_what_ranges_say(text: str, said: XlaRange) -> None:
    assert xla_range(text) == said


def test_a_sequence_that_is_too_long_to_lay_out_stays_without() -> None:
    fits = np.ones((9000, 1000), np.bool_)
    assert not lay_over(fits, np.ones(1000, np.bool_), np.zeros(1000, np.bool_), ()).any()


def test_kernels_that_fit_nowhere_are_passed_over() -> None:
    plan = LaunchPlan((Slot(5, 0, "a", True), Slot(6, 0, "b", True)), (), {})
    fits = np.array([[False, False], [True, False], [False, False], [False, True]])
    assert ops_of_kernels(plan, fits).tolist() == [-1, 5, -1, 6]
    assert ops_of_kernels(plan, fits[[3, 1]]).tolist() == [-1, -1]
    assert ops_of_kernels(plan, fits[:0]).tolist() == []


Loop = tuple[int, int, int]


def steps(at: int, several: list[bool], needed: list[bool], loops: tuple[Loop, ...]) -> Iterator[tuple[int, int]]:
    """(next slot, slots passed over that were needed) from slot ``at``; the end of the plan is a slot as well."""
    slots = len(needed)
    for following in range(at + 1, slots + 1):
        yield following, sum(needed[at + 1 : following])
    if several[at]:
        yield at, 0
    for low, body, high in loops:
        if low <= at < high:
            for following in range(low, high):
                yield following, sum(needed[at + 1 : high]) + sum(needed[low:following])
        if low <= at < body:
            for following in range(high, slots + 1):
                yield following, sum(needed[at + 1 : body]) + sum(needed[high:following])


def every_way(
    fits: list[list[bool]], several: list[bool], needed: list[bool], loops: tuple[Loop, ...]
) -> list[tuple[int, tuple[int, ...]]]:
    """(counted against it, slot per kernel) of every way there is."""
    slots = len(needed)
    ways = [(sum(needed[:j]), (j,)) for j in range(slots) if fits[0][j]]
    for kernel in fits[1:]:
        ways = [
            (against + more, (*way, j))
            for against, way in ways
            for j, more in steps(way[-1], several, needed, loops)
            if j < slots and kernel[j]
        ]
    return [
        (against + more, way)
        for against, way in ways
        for j, more in steps(way[-1], several, needed, loops)
        if j == slots
    ]


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[list[bool]], list[bool], list[bool], tuple[Loop, ...]]:
    slots = draw(st.integers(1, 5))
    names = draw(st.lists(st.sampled_from("abL"), min_size=slots, max_size=slots))
    kernels = draw(st.lists(st.sampled_from("abL"), min_size=1, max_size=5))
    needed = draw(st.lists(st.booleans(), min_size=slots, max_size=slots))
    loops: tuple[Loop, ...] = ()
    for _ in range(draw(st.integers(0, 2))):
        low, body, high = sorted(draw(st.lists(st.integers(0, slots), min_size=3, max_size=3)))
        if body < high:
            loops += ((low, body, high),)
    return [[name == kernel for name in names] for kernel in kernels], [n == "L" for n in names], needed, loops


@settings(max_examples=300, deadline=None)
@given(plan=plans())
def test_what_is_found_is_what_all_best_ways_have(
    plan: tuple[list[list[bool]], list[bool], list[bool], tuple[Loop, ...]],
) -> None:
    fits, several, needed, loops = plan
    ways = every_way(fits, several, needed, loops)
    least = min((against for against, _ in ways), default=0)
    wanted = np.zeros((len(fits), len(needed)), np.bool_)
    for against, way in ways:
        if against == least:
            wanted[np.arange(len(way)), way] = True
    found = lay_over(np.array(fits), np.array(several), np.array(needed), loops)
    assert found.tolist() == wanted.tolist()
