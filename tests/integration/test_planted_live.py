"""Trainings with one planted bottleneck: the verdict names it, its share is what the program measured about itself, and
the step time promised without it is that of the same training with the cause taken away.

The answers come from the recording alone; `measured.json` is read afterwards, to compare. Shares are compared, not
milliseconds: the machine may be slow and shared.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("live")]

PLANTED = Path(__file__).resolve().parents[1] / "workloads" / "planted.py"
TOLERANCE = 0.10
STEPS = {
    "input": 12,
    "recompile": 8,
    "compute": 40,
    "memory": 24,
    "checkpoint": 10,
    "h2d": 12,
    "idle": 12,
    "launches": 12,
}
BUSY_CLASSES = ("compute", "memory", "collective", "host_device")


@dataclass(frozen=True)
class Run:
    """One recorded training: what it measured itself, and what the analysis says."""

    measured: dict[str, Any]
    summary: dict[str, Any]

    @property
    def wall_s(self) -> float:
        return float(sum(self.measured["step_s"]))

    def stopwatch_share(self, phase: str) -> float:
        return float(sum(step.get(phase, 0.0) for step in self.measured["phases_s"])) / self.wall_s

    def compile_share(self) -> float:
        """Time in which jax.monitoring saw tracing, lowering or compiling. Tracing nests, so intervals are united."""
        intervals = sorted(
            (ended_ns - seconds * 1e9, ended_ns)
            for ended_ns, key, seconds, _ in self.measured["monitoring"]
            if seconds is not None and key.startswith("/jax/core/compile/")
        )
        covered_ns, reached = 0.0, 0.0
        for start, end in intervals:
            covered_ns += max(0.0, end - max(start, reached))
            reached = max(reached, end)
        return covered_ns / 1e9 / self.wall_s

    def share(self, name: str) -> float:
        return float(self.summary["breakdown"][name]["share"])

    def share_of_busy_time(self, name: str) -> float:
        breakdown = self.summary["breakdown"]
        return float(breakdown[name]["exclusive_s"] / sum(breakdown[busy]["exclusive_s"] for busy in BUSY_CLASSES))


def promised_saving(run: Run) -> float:
    """The part of a step that the verdict says would be saved without the bottleneck."""
    verdict = run.summary["verdict"]
    return float(1 - verdict["step_ms_without"] / verdict["step_ms"])


def complete(command: list[str]) -> str:
    """Run a command to its end; its stdout. Fails the test with everything it said if it fails."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert ran.returncode == 0, f"{command} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def train_and_analyse(name: str, run_dir: Path, *flags: str) -> Run:
    complete([sys.executable, str(PLANTED), name, str(run_dir), "--steps", str(STEPS[name]), *flags])
    summary = json.loads(complete([sys.executable, "-m", "xprof_py", "analyze", str(run_dir), "--json"]))
    return Run(json.loads((run_dir / "measured.json").read_text()), summary)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The CPU is measured anew for these tests, not taken from the user's cache, and not left there."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """planted(name, *flags) -> Run; each variant is recorded once."""

    @cache
    def run(name: str, *flags: str) -> Run:
        return train_and_analyse(name, tmp_path_factory.mktemp(name) / "run", *flags)

    return run


def test_input_is_found(planted: Any) -> None:
    run = planted("input")
    assert run.summary["verdict"]["bottleneck"] == "input"
    assert run.share("input") == pytest.approx(run.stopwatch_share("input"), abs=TOLERANCE)


def test_recompiling_is_found(planted: Any) -> None:
    run = planted("recompile")
    assert run.summary["verdict"]["bottleneck"] == "compiler"
    assert run.share("compiler") == pytest.approx(run.compile_share(), abs=TOLERANCE)


def test_compute_is_found(planted: Any) -> None:
    # On CPU every step also waits for its thread pool to wake up, which the program's stopwatch counts as computing.
    run = planted("compute")
    assert run.summary["verdict"]["bottleneck"] == "compute"
    assert run.share_of_busy_time("compute") == pytest.approx(run.stopwatch_share("compute"), abs=TOLERANCE)


def test_checkpoints_are_found(planted: Any) -> None:
    run = planted("checkpoint")
    assert run.summary["verdict"]["bottleneck"] == "checkpoint"
    assert run.share("checkpoint") == pytest.approx(run.stopwatch_share("checkpoint"), abs=TOLERANCE)


def test_copies_to_the_device_are_found(planted: Any) -> None:
    run = planted("h2d")
    assert run.summary["verdict"]["bottleneck"] == "host_device"
    assert run.share("host_device") == pytest.approx(run.stopwatch_share("h2d"), abs=TOLERANCE)


def test_many_tiny_launches_are_found(planted: Any) -> None:
    """The stopwatch around the calls holds dispatching, the work itself (it runs inside the call) and the loop."""
    run = planted("launches")
    assert run.summary["verdict"]["bottleneck"] == "host"
    found = run.summary["launch_bound"]
    assert found["mostly"]
    assert found["launches_per_step"] == 400
    assert found["device_us"] < found["dispatch_us"]
    calls = sum(step["dispatch"] for step in run.measured["phases_s"]) / len(run.measured["phases_s"]) / 400
    assert 0.5 * calls < (found["dispatch_us"] + found["device_us"]) / 1e6 < calls
    evidence = run.summary["verdict"]["evidence"][0]
    assert evidence["what"] == "launch"
    assert "planted.py" in evidence["source"]
    assert "lax.scan" in run.summary["verdict"]["advice"]


def test_one_program_instead_of_many_launches_is_faster(planted: Any) -> None:
    before, after = planted("launches"), planted("launches", "--cause-removed")
    assert after.summary["launch_bound"] is None or after.summary["launch_bound"]["launches_per_step"] == 1
    assert after.summary["step_ms"]["median"] < 0.2 * before.summary["step_ms"]["median"]


def test_sleep_is_not_explained_away(planted: Any) -> None:
    run = planted("idle")
    assert run.summary["verdict"]["bottleneck"] == "unknown"
    assert run.share("unknown") == pytest.approx(run.stopwatch_share("idle"), abs=TOLERANCE)


def test_memory_is_found(planted: Any) -> None:
    """`analyze` measures this machine, which is the one that was profiled, and says so."""
    run = planted("memory")
    assert run.summary["verdict"]["bottleneck"] == "memory"
    assert run.share_of_busy_time("memory") == pytest.approx(run.stopwatch_share("compute"), abs=TOLERANCE)
    codes = [row["code"] for row in run.summary["diagnostics"]]
    assert "cpu_peaks" in codes
    assert "memory_unavailable" not in codes
    op = run.summary["top_ops"][0]
    assert (op["bytes"], op["bound"]) == (run.measured["cost"]["bytes accessed"], "memory")


def test_a_matmul_is_not_bound_by_memory(planted: Any) -> None:
    run = planted("compute")
    assert run.summary["breakdown"]["memory"]["share"] < 0.01
    op = run.summary["top_ops"][0]
    assert (op["flops"], op["bound"], op["class"]) == (run.measured["cost"]["flops"], "compute", "compute")


@pytest.mark.parametrize("name", ["input", "recompile", "checkpoint", "h2d"])
def test_the_promise_is_what_the_cause_costs(planted: Any, name: str) -> None:
    """Nothing overlaps the planted causes, so removing one saves its share of the same run."""
    run = planted(name)
    cost = run.compile_share() if name == "recompile" else run.stopwatch_share(name)
    assert promised_saving(run) == pytest.approx(cost, abs=TOLERANCE)


def test_no_promise_is_made_about_the_work_itself(planted: Any) -> None:
    verdict = planted("compute").summary["verdict"]
    assert verdict["step_ms_without"] is None
    assert verdict["step_ms_without_why"]


@pytest.mark.parametrize("name", ["input", "recompile", "checkpoint", "h2d"])
def test_removing_the_cause_keeps_the_promise(planted: Any, name: str) -> None:
    before, after = planted(name), planted(name, "--cause-removed")
    assert after.summary["verdict"]["bottleneck"] != before.summary["verdict"]["bottleneck"]
    really_saved = 1 - after.summary["step_ms"]["median"] / before.summary["step_ms"]["median"]
    assert really_saved >= promised_saving(before) - TOLERANCE


def test_compute_is_not_named_where_there_is_next_to_none(planted: Any) -> None:
    assert planted("compute", "--cause-removed").summary["verdict"]["bottleneck"] != "compute"
