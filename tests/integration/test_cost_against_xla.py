"""Costs of whole compiled programs beside XLA's own analysis of the same programs (``compiled.cost_analysis()``)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from xprof_py.postprocess import schema
from xprof_py.postprocess.hlo.cost import CostModel, Total
from xprof_py.postprocess.hlo.module import read_programs
from xprof_py.postprocess.hlo.shapes import Instructions

PROGRAM = Path(__file__).resolve().parents[1] / "workloads" / "compiled_programs.py"
LOOP_FREE = (
    "dot",
    "dot_bf16",
    "batched_dot",
    "convolution",
    "convolution_gradients",
    "axpy",
    "elementwise",
    "softmax",
    "sum",
    "max_pool",
    "block_gradients",
    "unrolled",
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return folder


def xla_cost(folder: Path, name: str) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "costs.json").read_text())[name]
    return found


def our_cost(folder: Path, name: str) -> Total:
    hlo = (folder / f"{name}.hlo").read_bytes()
    columns: dict[str, Any] = {"program_id": [1], "name": [name], "hlo": pa.array([hlo], pa.large_binary())}
    model = CostModel(Instructions(read_programs(schema.table("programs", columns))))
    total = model.of_computation(model.instructions.entries[0])
    assert (total.unknown_flops, total.unknown_bytes, total.unknown_network) == (0, 0, 0)
    return total


@pytest.mark.parametrize("name", LOOP_FREE)
def test_flops_are_those_of_xla(compiled: Path, name: str) -> None:
    xla, ours = xla_cost(compiled, name), our_cost(compiled, name)
    assert ours.flops.total == pytest.approx(xla.get("flops", 0.0), rel=0.01)
    assert ours.flops.transcendentals == pytest.approx(xla.get("transcendentals", 0.0), rel=0.01)


@pytest.mark.parametrize("name", LOOP_FREE)
def test_bytes_are_those_of_xla(compiled: Path, name: str) -> None:
    assert our_cost(compiled, name).bytes == pytest.approx(xla_cost(compiled, name)["bytes accessed"], rel=0.01)


def test_a_scan_costs_what_it_does_unrolled(compiled: Path) -> None:
    """XLA counts the body of a loop once; ten matmuls are ten matmuls."""
    scanned, unrolled = our_cost(compiled, "scanned").flops, our_cost(compiled, "unrolled").flops
    assert scanned.matmul == unrolled.matmul
    assert sum(scanned.matmul.values()) == 10 * 2 * 64**3
    assert scanned.transcendentals == unrolled.transcendentals == 10 * 64**2
    assert scanned.other == 10 * 2  # the counter's addition and comparison
    assert xla_cost(compiled, "scanned")["flops"] < 2 * 2 * 64**3
