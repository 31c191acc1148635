"""A program that uses a GPU, recorded as it is and analysed. Driver, CUPTI and NVML are doubles; all else is real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_gpu
import pytest

from gpu import checks
from gpu.device_rows import kernels_of
from gpu.recorded import PROGRAMS, environ, joined, told

STEPS, COMPUTE_MS = 8, 14  # of the main stream: 5 + 8 and the graph's two nodes of 0.5


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables under which a process finds the doubles as it would find NVIDIA's libraries."""
    return fake_gpu.machine(fake_gpu.build(tmp_path_factory.mktemp("machine")))


def doctor(**variables: str) -> dict[str, dict[str, str]]:
    command = [sys.executable, "-m", "xprof_py", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ(**variables))
    return {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


@pytest.fixture(scope="module")
def recorded(machine: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run folder and what the program says that it planted."""
    pytest.importorskip("nvtx", reason="nvtx is not installed: pip install 'xprof_py[test]'")
    run = tmp_path_factory.mktemp("end_to_end") / "run"
    options = ["--backend", "cupti", "--step-range", "step"]
    return run, told(sys.executable, "planted", run=run, options=options, **machine)


def test_doctor_says_beforehand_that_all_is_there(machine: dict[str, str]) -> None:
    findings = doctor(**machine)
    assert {name: findings[name]["state"] for name in ("driver", "cupti", "nvml", "nvtx")} == {
        "driver": "ok",
        "cupti": "ok",
        "nvml": "ok",
        "nvtx": "ok",
    }
    assert findings["driver"]["says"] == "libcuda.so.1 for CUDA 13.0"
    assert findings["cupti"]["says"].endswith("version 130500, shared with other tools")
    assert findings["nvml"]["says"] == "driver 580.1, 1 GPU"


def test_every_launch_is_one_kernel_after_its_call(recorded: tuple[Path, dict[str, Any]]) -> None:
    run, planted = recorded
    profile = joined(run)
    entry = profile.metadata["run"]["collectors"]["cuda"]
    figures = checks.records_are_sane(profile, entry, planted["launched"])
    assert figures["kernels"] == 5 * STEPS


def test_two_threads_three_steps_ahead_find_span_step_and_stream(recorded: tuple[Path, dict[str, Any]]) -> None:
    """By overlap in time every kernel would be of the step three later, and `augment` under the main thread's spans."""
    run, planted = recorded
    profile = joined(run)
    assert checks.kernels_find_their_place(profile, planted["places"]) == {"placed": 3 * STEPS, "streams": 2}
    ahead_ms = checks.records_are_sane(profile, profile.metadata["run"]["collectors"]["cuda"], planted["launched"])[
        "launch_to_start_median_us"
    ]
    assert ahead_ms >= 3 * 20_000


def test_xla_s_ranges_reach_kernels_by_launch_and_by_graph_node(recorded: tuple[Path, dict[str, Any]]) -> None:
    run, planted = recorded
    profile = joined(run)
    assert checks.launches_carry_their_range(profile, planted["ops"]) == {"with_range": 2 * STEPS}
    assert checks.graph_nodes_are_told(profile, planted["graph_ops"]) == {"graph_kernels": 2 * STEPS}


def test_the_summary_has_steps_device_time_and_energy(recorded: tuple[Path, dict[str, Any]]) -> None:
    run, _ = recorded
    written = []
    for out in ("one", "two"):
        command = [sys.executable, "-m", "xprof_py", "analyze", str(run), "-o", str(run.parent / out)]
        subprocess.run(command, capture_output=True, check=True, env=environ())
        written.append((run.parent / out / "summary.json").read_bytes())
    assert written[0] == written[1]
    summary = json.loads(written[0])
    assert summary["hosts"][0]["devices"] == ["/device:GPU:0"]
    assert summary["steps"]["count"] == STEPS
    assert summary["steps"]["phases"]["steady"] == STEPS
    kernels = kernels_of(joined(run))
    busy_s = covered_ps(kernels.start_ps, kernels.start_ps + kernels.duration_ps) / 1e12
    assert busy_s >= STEPS * COMPUTE_MS / 1000
    assert summary["breakdown"]["compute"]["exclusive_s"] == pytest.approx(busy_s, abs=1e-9)
    assert summary["run_ahead"]["median_steps"] >= 2
    assert summary["power"]["devices"] == 1


def covered_ps(start_ps: Any, end_ps: Any) -> int:
    """How long at least one of the intervals is open."""
    total, until = 0, 0
    for start, end in sorted(zip(start_ps.tolist(), end_ps.tolist(), strict=True)):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


USES_CUDA = """
import os, sys, time
sys.path.insert(0, os.environ["TESTS"])
import fake_gpu
from xprof_py import step
fake_gpu.load_driver(os.environ["FAKES"])
for i in range(4):
    with step(i): time.sleep(0.2)
"""


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"XPROF_CUPTI_LIB": "/nowhere/libcupti.so.13"}, "XPROF_CUPTI_LIB: /nowhere/libcupti.so.13"),
        ({"XPROF_CUPTI_LIB": "{FAKES}/libfake_cupti_too_old.so"}, "this CUPTI lacks its activity calls"),
        ({"FAKE_CUPTI_REFUSE": "15"}, "not initialised: the driver does not work, or is older than this CUPTI (15)"),
        ({"FAKE_CUPTI_HOLDER": "CUPTI for Nsight Systems"}, "CUPTI is held by CUPTI for Nsight Systems"),
    ],
    ids=["absent", "too old", "too new", "held"],
)
def test_without_cupti_the_host_alone_is_recorded_and_everybody_says_why(
    machine: dict[str, str], tmp_path: Path, changed: dict[str, str], why: str
) -> None:
    variables = machine | {name: value.format(**machine) for name, value in changed.items()}
    run = tmp_path / "run"
    program = (
        "import os, sys, time; sys.path.insert(0, os.environ['TESTS']); import fake_gpu; from xprof_py import step\n"
    )
    program += "fake_gpu.load_driver(os.environ['FAKES'])\nfor i in range(4):\n    with step(i): time.sleep(0.2)"
    command = [sys.executable, "-m", "xprof_py", "run", "-o", str(run), "--", sys.executable, "-c", program]
    variables["TESTS"] = str(PROGRAMS.parents[1])
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ(**variables))
    assert done.returncode == 0, done.stderr
    profile = joined(run)
    assert profile["steps"].num_rows == 4
    assert profile["ops"].num_rows == 0
    said = [row["message"] for row in profile["diagnostics"].to_pylist() if row["code"] == "capture"]
    assert [why in text for text in said] == [True], said
    finding = doctor(**variables)["cupti"]
    assert finding["state"] == "missing"
    assert why.removeprefix("XPROF_CUPTI_LIB: ") in finding["says"]


def test_without_a_driver_nothing_is_missing_and_doctor_says_so(machine: dict[str, str], tmp_path: Path) -> None:
    """A machine without a GPU has nothing to complain of; what was asked for is refused before the block."""
    variables = {name: value for name, value in machine.items() if name != "LD_LIBRARY_PATH"}
    program = """
import sys
from xprof_py import capture, step
from xprof_py.errors import CaptureError
with capture(sys.argv[1]), step(0): pass
try:
    with capture(sys.argv[1] + "-asked", cuda=True): raise SystemExit("the block ran")
except CaptureError as error: print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=True,
        env=environ(**variables),
    )
    assert done.stdout.startswith("cuda=True: no NVIDIA driver: libcuda.so.1")
    profile = joined(tmp_path / "run")
    assert profile.metadata["run"]["collectors"]["cuda"]["why"].startswith("no NVIDIA driver: libcuda.so.1")
    assert [row for row in profile["diagnostics"].to_pylist() if row["code"] == "capture"] == []
    findings = doctor(**variables)
    assert (findings["driver"]["state"], findings["cupti"]["state"]) == ("missing", "missing")
    assert "not asked, as there is no driver" in findings["cupti"]["says"]
    assert os.path.exists(variables["XPROF_CUPTI_LIB"])
