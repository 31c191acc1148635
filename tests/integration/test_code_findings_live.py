"""Findings of code that XLA really compiled: what a training by construction computes again, slices and transposes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xprof_py.postprocess.fleet.analysis import Analysis, analyse

pytestmark = pytest.mark.live

WORKLOAD = Path(__file__).resolve().parents[1] / "workloads" / "recomputing.py"
ROWS, STEPS = 256, 6


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    run = tmp_path_factory.mktemp("recomputing") / "run"
    ran = subprocess.run(
        [sys.executable, str(WORKLOAD), str(run)], capture_output=True, text=True, timeout=180, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return analyse([run])


def of_kind(analysis: Analysis, kind: str) -> list[dict[str, Any]]:
    return [row for row in analysis.tables["code_findings"].to_pylist() if row["kind"] == kind]


def test_checkpointed_layers_are_computed_again(analysis: Analysis) -> None:
    rows = of_kind(analysis, "rematerialised")
    assert rows
    assert {row["program"] for row in rows} == {"jit_gradients"}
    assert all("rematted_computation" in row["op_name"] for row in rows)
    assert any(row["source"].endswith(f"recomputing.py:{layer_line()}") for row in rows)
    assert all(row["count"] % STEPS == 0 for row in rows)


def layer_line() -> int:
    lines = WORKLOAD.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if "return jnp.tanh(" in line)


def test_a_scan_slices_once_a_row(analysis: Analysis) -> None:
    rows = of_kind(analysis, "loop_slice")
    assert rows
    assert {(row["program"], row["count"]) for row in rows} == {("jit_scan_rows", ROWS * STEPS)}


def test_a_transposed_result_is_a_transpose_of_its_own(analysis: Analysis) -> None:
    rows = [row for row in of_kind(analysis, "transpose") if row["program"] == "jit_transposed"]
    assert [row["count"] for row in rows] == [STEPS]
    assert rows[0]["lost_ps"] == rows[0]["total_ps"] > 0


def test_an_op_is_in_one_finding_at_most(analysis: Analysis) -> None:
    named = [
        (row["program"], op)
        for row in analysis.tables["code_findings"].to_pylist()
        for op in (row["parts"] or row["op"]).split()
    ]
    assert len(named) == len(set(named))
