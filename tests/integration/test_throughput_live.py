"""Tokens per second and flops of a real program, against its own stopwatch and XLA's own count of its flops."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from xprof_py.postprocess.fleet.analysis import analyse

pytestmark = pytest.mark.live

PROGRAM = """
import json, os, sys, time
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, jax.numpy as jnp
from xprof_py import capture, step

x = jnp.ones((512, 512))
twice = jax.jit(lambda a: (a @ a) @ a)
twice(x).block_until_ready()
starts = []
with capture(sys.argv[1], steps=(8, 24)):
    for i in range(60):
        starts.append(time.perf_counter())
        with step(i, tokens=1000, model_flops=2.0 * 512**3):
            twice(x).block_until_ready()
        if i == 24:
            time.sleep(1.5)
flops = twice.lower(x).compile().cost_analysis()["flops"]
print(json.dumps({"flops": flops, "seconds": starts[24] - starts[8]}))
"""


def test_the_stopwatch_and_xla_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPROF_PY_PEAKS", json.dumps({"flops_per_s": {"f32": 10**12}}))
    run_dir = tmp_path / "run"
    command = [sys.executable, "-c", PROGRAM, str(run_dir)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert ran.returncode == 0, ran.stderr
    measured = json.loads(ran.stdout)
    summary = analyse([run_dir]).summary
    found = summary["throughput"]
    assert found["hlo_flops_per_step"] == measured["flops"] == 2 * 2 * 512**3
    assert found["model_flops_per_step"] == 2 * 512**3
    assert (found["basis"], found["peak_flops_per_s"]) == ("model_flops", 10**12)
    assert found["hfu"] == pytest.approx(2 * found["mfu"])
    mean_s = summary["step_ms"]["mean"] / 1e3
    assert found["mfu"] == pytest.approx(2 * 512**3 / (mean_s * 1e12), rel=1e-6)
    assert found["tokens_per_s"] == pytest.approx(1000 / mean_s)
    # Sixteen steps, the first with the recorder's start and the last with its end, which are no time of a step.
    assert found["tokens_per_s"] >= 16 * 1000 / measured["seconds"]
    observer = summary["observer"]
    assert (observer["steps_before"], observer["steps_inside"]) == (8, 15)
    assert observer["steps_after"] > 20
    assert observer["step_ms_inside"] == pytest.approx(summary["step_ms"]["median"], rel=0.2)
