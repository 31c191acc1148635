"""Trainings with one planted bottleneck: the verdict names it, its share is what the program measured about itself, and
the step time promised without it is that of the same training with the cause taken away.

The answers come from the recording alone; `measured.json` is read afterwards, to compare. Verdicts hold however busy
the machine is. Where a figure misses, all is recorded again, twice at most; where it always misses and the program
measured that others kept the cores busy, the test skips and says how busy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.live

PLANTED = Path(__file__).resolve().parents[1] / "workloads" / "planted.py"
WITHIN = 0.05
WITHIN_BUSY_TIME = 0.10
"""For `compute` and `memory`, judged among the time in which the device works: waking its threads is not theirs."""
OF_MEASURED, OF_STEP = 0.15, 0.02
"""What a promised step time may be off: of the step without the cause, or of the step with it, whichever is more.
Two trainings one after the other differ by themselves; benchmarks/counterfactual.py takes them in turns, on a quiet
machine, and holds the promise to 10 %."""
ATTEMPTS = 3
BUSY_CORES = 0.3
"""From here on a missed figure says more about the machine than about us."""
STEPS = {"recompile": 12, "compute": 40, "launches": 12}
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

    @property
    def step_ms(self) -> float:
        """From the begin of the first step to the end of the last one's device work, by the program's own clock."""
        return 1e3 * float(self.measured["wall_s"]) / len(self.measured["step_s"])

    @property
    def others_cores(self) -> float:
        return float(self.measured["others_cores"] or 0.0)

    @property
    def bottleneck(self) -> str:
        return str(self.summary["verdict"]["bottleneck"])

    def share(self, name: str) -> float:
        return float(self.summary["breakdown"][name]["share"])

    def share_of_busy_time(self, name: str) -> float:
        breakdown = self.summary["breakdown"]
        return float(breakdown[name]["exclusive_s"] / sum(breakdown[busy]["exclusive_s"] for busy in BUSY_CLASSES))


def complete(command: list[str]) -> str:
    """Run a command to its end; its stdout. Fails the test with everything it said if it fails."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert ran.returncode == 0, f"{command} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def train_and_analyse(name: str, run_dir: Path, *flags: str) -> Run:
    complete([sys.executable, str(PLANTED), name, str(run_dir), "--steps", str(STEPS.get(name, 24)), *flags])
    summary = json.loads(complete([sys.executable, "-m", "xprof_py", "analyze", str(run_dir), "--json"]))
    return Run(json.loads((run_dir / "measured.json").read_text()), summary)


def shown(planted: Any, recordings: list[tuple[str, ...]], claim: Callable[..., None]) -> None:
    """``claim`` holds of these recordings, or of others like them; see the module's docstring."""
    least_busy = float("inf")
    for attempt in range(ATTEMPTS):
        runs = [planted(*recording, attempt=attempt) for recording in recordings]
        least_busy = min(least_busy, max(run.others_cores for run in runs))
        try:
            claim(*runs)
        except AssertionError:
            if attempt < ATTEMPTS - 1:
                continue
            if least_busy > BUSY_CORES:
                pytest.skip(f"other programs always kept {least_busy:.1f} cores busy: run it on a quiet machine")
            raise
        else:
            return


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
    def run(name: str, *flags: str, attempt: int = 0) -> Run:
        return train_and_analyse(name, tmp_path_factory.mktemp(name) / "run", *flags)

    return run


@pytest.mark.parametrize(
    ("recording", "phase", "cause"),
    [
        (("input",), "input", "input"),
        (("input", "--no-annotations"), "input", "input"),
        (("neutral_input", "--no-annotations"), "input", "host"),
        (("h2d",), "h2d", "host_device"),
        (("recompile",), "", "compiler"),
        (("checkpoint",), "checkpoint", "checkpoint"),
        (("checkpoint", "--no-annotations"), "checkpoint", "checkpoint"),
        (("rare_checkpoint",), "checkpoint", "checkpoint"),
        (("idle",), "idle", "unknown"),
    ],
    ids=" ".join,
)
def test_the_cause_is_named_with_its_share(planted: Any, recording: tuple[str, ...], phase: str, cause: str) -> None:
    """The share is that of the program's own stopwatch, of compiling that of jax.monitoring."""
    assert planted(*recording).bottleneck == cause

    def claim(run: Run) -> None:
        truth = run.stopwatch_share(phase) if phase else run.compile_share()
        assert run.share(cause) == pytest.approx(truth, abs=WITHIN)

    shown(planted, [recording], claim)


def test_two_causes_at_once_have_their_shares_and_the_larger_is_named(planted: Any) -> None:
    def claim(run: Run) -> None:
        truth = {name: run.stopwatch_share(name) for name in ("input", "checkpoint")}
        assert {name: run.share(name) for name in truth} == pytest.approx(truth, abs=WITHIN)
        assert run.bottleneck == max(truth, key=lambda name: truth[name])

    shown(planted, [("input_and_checkpoint",)], claim)


def test_run_ahead_input_costs_what_the_device_does_not_hide(planted: Any) -> None:
    """Batches take 50 ms, the device half of it: the loop waits for batches alone, but cost only the other half."""

    def claim(run: Run, without: Run) -> None:
        assert run.bottleneck == "input"
        assert run.share("input") == pytest.approx(1 - without.step_ms / run.step_ms, abs=WITHIN)
        assert run.share("input") < run.stopwatch_share("input") - 0.2

    shown(planted, [("async_input",), ("async_input", "--cause-removed")], claim)


def test_input_that_the_device_hides_is_no_bottleneck(planted: Any) -> None:
    run = planted("hidden_input")
    assert run.bottleneck == "compute"
    assert run.share("input") < WITHIN < run.stopwatch_share("input")


def test_a_sum_over_devices_inside_a_scan_is_collective(planted: Any) -> None:
    run = planted("layers")
    assert run.bottleneck == "collective"
    # XLA notes no wait for several devices; were it not taken for one, the host's silence would keep the step as long.
    assert run.summary["verdict"]["step_ms_without"] < 0.75 * run.summary["verdict"]["step_ms"]
    assert run.summary["predictions"]["believed"]
    assert planted("layers", "--cause-removed").share("collective") == 0


@pytest.mark.parametrize("name", ["input", "idle"])
def test_without_evidence_the_advice_says_what_would_tell(planted: Any, name: str) -> None:
    run = planted(name, "--no-annotations", "--no-sampler")
    assert run.bottleneck in ("unknown", "host")
    assert "wrap_input" in run.summary["verdict"]["advice"]


def test_compute_is_found(planted: Any) -> None:
    # On CPU every step also waits for its thread pool to wake up, which the program's stopwatch counts as computing.
    run = planted("compute")
    assert run.bottleneck == "compute"
    assert run.share_of_busy_time("compute") == pytest.approx(run.stopwatch_share("compute"), abs=WITHIN_BUSY_TIME)


def test_many_tiny_launches_are_found(planted: Any) -> None:
    """The stopwatch around the calls holds dispatching, the work itself (it runs inside the call) and the loop."""
    run = planted("launches")
    assert run.bottleneck == "host"
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


def test_memory_is_found(planted: Any) -> None:
    """`analyze` measures this machine, which is the one that was profiled, and says so."""
    run = planted("memory")
    assert run.summary["verdict"]["bottleneck"] == "memory"
    assert run.share_of_busy_time("memory") == pytest.approx(run.stopwatch_share("compute"), abs=WITHIN_BUSY_TIME)
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


def test_no_promise_is_made_about_the_work_itself(planted: Any) -> None:
    verdict = planted("compute").summary["verdict"]
    assert verdict["step_ms_without"] is None
    assert verdict["step_ms_without_why"]


@pytest.mark.parametrize(
    "recording",
    [
        ("input",),
        ("h2d",),
        ("recompile",),
        ("checkpoint",),
        ("rare_checkpoint",),
        ("idle",),
        ("async_input",),
        ("input", "--no-annotations"),
    ],
    ids=" ".join,
)
def test_without_the_cause_a_step_takes_what_was_promised(planted: Any, recording: tuple[str, ...]) -> None:
    def claim(run: Run, without: Run) -> None:
        promised_ms = run.summary["verdict"]["step_ms_without"]
        allowed_ms = max(OF_MEASURED * without.step_ms, OF_STEP * run.step_ms)
        assert promised_ms == pytest.approx(without.step_ms, abs=allowed_ms)
        assert without.bottleneck != run.bottleneck

    shown(planted, [recording, (*recording, "--cause-removed")], claim)


def test_hidden_input_promises_nothing(planted: Any) -> None:
    predictions = planted("hidden_input").summary["predictions"]
    assert predictions["without_ms"].get("input", predictions["step_ms"]) > 0.95 * predictions["step_ms"]


def test_compute_is_not_named_where_there_is_next_to_none(planted: Any) -> None:
    assert planted("compute", "--cause-removed").summary["verdict"]["bottleneck"] != "compute"
