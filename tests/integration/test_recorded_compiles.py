"""Recorded JAX CPU captures: which argument made them compile again, the compiler's passes, the phases of their ops."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from xprof_py.postprocess.fleet.analysis import Analysis, analyse

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"


@cache
def analysed(name: str) -> Analysis:
    return analyse([DATA / f"{name}.xplane.pb.gz"])


def test_every_recompile_names_x_and_its_shapes() -> None:
    """The workload feeds batches of 100, 92, ... 44 rows; before the capture it had seen 836, 844 and 64."""
    found = analysed("planted_recompile").summary["compiles"]["recompiles"]
    rows = [64, *range(100, 36, -8)]
    assert [(row["step"], row["function"], row["cause"]) for row in found] == [
        (step, "mlp_step", [{"argument": "x", "was": f"f32[{was},256]", "is": f"f32[{now},256]"}])
        for step, (was, now) in enumerate(itertools.pairwise(rows))
    ]
    assert {row["kind"] for row in found} == {"arguments"}
    assert {row["source"].rsplit("/", 1)[1] for row in found} == {"planted.py:31"}


def test_the_bill_of_a_recompile_is_what_jax_monitoring_measured() -> None:
    """The trace has no event for tracing, so the lowering and compile times are what can be compared."""
    measured: dict[str, Any] = json.loads((DATA / "planted_recompile.measured.json").read_text())
    truth = [
        [seconds for _, key, seconds, _ in measured["monitoring"] if seconds is not None and key.endswith(stage)]
        for stage in ("jaxpr_to_mlir_module_duration", "backend_compile_duration")
    ]
    found = analysed("planted_recompile").summary["compiles"]["recompiles"]
    for row, lower_s, compile_s in zip(found, *truth, strict=True):
        assert row["seconds"] == pytest.approx(lower_s + compile_s, rel=0.05)


def test_the_verdict_says_which_argument() -> None:
    evidence = analysed("planted_recompile").summary["verdict"]["evidence"][0]
    assert evidence["text"].startswith(
        "`mlp_step` was compiled 8 times in steps 0-7 because `x` changed from f32[64,256] to f32[100,256] "
    )
    assert evidence["source"].endswith("planted.py:31")


def test_all_matches_are_by_the_launch_that_followed() -> None:
    assert set(analysed("planted_recompile").tables["recompiles"]["match"].to_pylist()) == {"launch"}


def test_what_does_not_compile_has_no_recompiles() -> None:
    for name in ("planted_compute", "transformer_blocking"):
        compiles = analysed(name).summary["compiles"]
        assert (compiles["recompiles"], compiles["recompiles_left_out"], compiles["passes"]) == ([], 0, [])


def test_passes_are_the_compile_threads_time() -> None:
    tables = analysed("planted_recompile").tables
    passes = tables["compile_passes"].to_pylist()
    assert {row["function"] for row in passes} == {"mlp_step"}
    assert all(row["self_ps"] >= row["longest_ps"] >= 0 for row in passes)
    compile_ps = sum(r["duration_ps"] for r in tables["compiles"].to_pylist() if r["stage"] == "compile")
    # One thread runs the passes all the while; two more generate code for part of it.
    assert compile_ps < sum(row["self_ps"] for row in passes) < 3 * compile_ps
    modules = {row["module"] for row in passes}
    assert "jit_mlp_step" in modules
    assert "__compute_module_wrapped_tanh" in modules


@pytest.mark.parametrize(("name", "compute"), [("transformer_blocking", 0.6), ("planted_recompile", 0.5)])
def test_backward_takes_most_of_a_training_step(name: str, compute: float) -> None:
    """A backward pass has two matrix products for each one of the forward pass."""
    phases = analysed(name).summary["op_phases"]
    assert phases["backward"]["share"] == pytest.approx(2 / 3, abs=0.12)
    assert phases["backward"]["share"] > compute > phases["forward"]["share"] > phases["optimizer"]["share"] > 0
    assert phases["unknown"]["share"] < 0.01
    assert sum(phase["share"] for phase in phases.values()) == pytest.approx(1.0)


def test_what_does_not_differentiate_has_no_phases() -> None:
    assert analysed("planted_compute").summary["op_phases"] is None
