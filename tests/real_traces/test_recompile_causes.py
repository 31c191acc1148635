"""A capture of a loop that compiles again in steps 5 and 8: what changed, and who pays."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from xprof_py.postprocess.fleet.analysis import Analysis, analyse
from xprof_py.postprocess.hlo.signature import read_signature
from xprof_py.postprocess.readers.xspace import read_xspace

pytestmark = pytest.mark.real_traces


@pytest.fixture
def recompiling(trace_files: Callable[[str], list[Path]]) -> Analysis:
    return analyse(trace_files("xspace/jax_cpu_recompile"))


def test_the_argument_that_changed_is_named(recompiling: Analysis) -> None:
    rows = [row for row in recompiling.summary["compiles"]["recompiles"] if row["function"] == "f"]
    assert [(row["step"], row["cause"]) for row in rows] == [
        (5, [{"argument": "x", "was": "f32[32,64]", "is": "f32[48,64]"}]),
        (8, [{"argument": "x", "was": "f32[48,64]", "is": "f32[64,64]"}]),
    ]
    text = recompiling.summary["verdict"]["evidence"][0]["text"]
    assert "compiled twice in steps 5 and 8 because `x` changed from f32[32,64] to f32[48,64]" in text


def test_an_array_of_a_new_shape_is_a_static_argument_of_its_maker(recompiling: Analysis) -> None:
    (row,) = [row for row in recompiling.summary["compiles"]["recompiles"] if row["function"] != "f"]
    assert (row["function"], row["step"], row["kind"], row["cause"]) == ("broadcast_in_dim", 5, "same_arguments", [])
    assert row["text"].endswith("its result changed from f32[32,64] to f32[48,64]")


def test_the_compiler_pays_for_the_two_slow_steps(recompiling: Analysis) -> None:
    """What the two steps took longer than the others, to within 10 %; no other step pays the compiler."""
    steps = [row for row in recompiling.tables["step_classes"].to_pylist() if row["kind"] == "step"]
    slow = [row for row in steps if row["number"] in (5, 8)]
    usual_ps = statistics.median(row["window_ps"] for row in steps if row not in slow)
    excess_ps = sum(row["window_ps"] - usual_ps for row in slow)
    assert sum(row["compiler_ps"] for row in slow) == pytest.approx(excess_ps, rel=0.10)
    assert sum(row["compiler_ps"] for row in steps if row not in slow) == 0
    assert recompiling.summary["verdict"]["bottleneck"] == "compiler"


def test_gpu_and_tpu_programs_have_named_arguments(trace_files: Callable[[str], list[Path]]) -> None:
    for folder, program, expected in (
        ("xspace/amd_jax08_gemm", "jit_", ("a", "bf16[8192,4096]")),
        ("xspace/tpu_inference_2", "jit_f", ("ws[1]", "f32[5,1024,1024,256]")),
    ):
        programs = read_xspace(trace_files(folder)[0])["programs"]
        found = {
            (argument.name, argument.type)
            for name, hlo in zip(programs["name"].to_pylist(), programs["hlo"], strict=True)
            if name.startswith(program) and hlo.is_valid
            for argument in read_signature(hlo.as_buffer()).arguments
        }
        assert expected in found
