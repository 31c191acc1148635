"""What the machine does to a recording: a file system that stalls, a clock that is set or slewed.

The program's result, exit code and time are those of a run without the profiler; times recorded keep order and length.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xprof_py.postprocess.readers.shard import read_shard

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
STOP_BUDGET_S = 1.0

TRAINING = f"""
import json, os, sys, time
from pathlib import Path
from xprof_py import _native, step, trace
shard, when = sys.argv[1:3]
if shard:
    _native.recorder_start(shard)
result, steps, began = 0, 30, time.monotonic()
for i in range(steps):
    if i == 5:
        Path(when).touch()
    with step(i), trace("work"):
        time.sleep(0.01)
        result = (result * 31 + i) % 1000003
trained = time.monotonic()
totals = _native.recorder_stop({STOP_BUDGET_S}) if shard else {{}}
stopped = time.monotonic()
print(json.dumps([result, trained - began, stopped - trained, totals]))
sys.exit(7)
"""


def shim(folder: Path, name: str) -> str:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler on PATH: install cc, gcc or clang")
    library = folder / f"{name}.so"
    source = str(WORKLOADS / f"{name}.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), source, "-ldl"], check=True)
    return str(library)


def run(program: str, *arguments: str, **environment: str) -> tuple[int, list[Any], str]:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def test_a_file_system_that_stalls_costs_the_training_nothing(tmp_path: Path) -> None:
    library, when = shim(tmp_path, "stalledfs"), tmp_path / "stall"
    code, (result, seconds, _, _), _ = run(TRAINING, "", str(when))
    when.unlink()
    stalled = {"LD_PRELOAD": library, "STALL_SUFFIX": ".xpr", "STALL_WHEN": str(when)}
    shard = tmp_path / "x.xpr"
    code_then, (result_then, seconds_then, stop, totals), stderr = run(TRAINING, str(shard), str(when), **stalled)
    assert stderr == "stalled\n"
    assert (code_then, result_then) == (code, result) == (7, result)
    # A machine whose cores others keep busy: the training itself sleeps for 0.3 s, a wait for the file would never end.
    assert seconds_then < seconds + 5
    assert stop < STOP_BUDGET_S + 5
    assert not totals["finished"]
    assert "not finished within" in totals["error"]
    # What the file system did not take lies in the rings, all of it.
    profile = read_shard(shard)
    steps = [row["value"] for row in profile["args"].to_pylist() if row["key"] == "step_num"]
    assert steps == list(range(30))


CLOCKED = """
import ctypes, json, os, sys, time
from xprof_py import _native, trace
_native.recorder_start(sys.argv[1])
truth = []
shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
for i in range(8):
    if i == 4:
        ctypes.c_int64.in_dll(shim, "skewclock_step_at_ns").value = 1  # from now on
    began = time.monotonic_ns()
    with trace(f"span {i}"):
        time.sleep(0.15)
    truth.append(time.monotonic_ns() - began)
_native.recorder_stop()
print(json.dumps(truth))
"""


@pytest.mark.parametrize(
    ("step_ns", "ppm"), [(-3_600_000_000_000, 0.0), (86_400_000_000_000, 0.0), (0, 400.0), (0, -400.0)]
)
def test_a_clock_that_is_set_or_slewed_changes_neither_order_nor_length(
    tmp_path: Path, step_ns: int, ppm: float
) -> None:
    now_ns = int(subprocess.run(["date", "+%s%N"], capture_output=True, text=True, check=True).stdout)
    skew = {"SKEW_STEP_NS": str(step_ns), "SKEW_PPM": str(ppm), "SKEW_T0_NS": str(now_ns)}
    skew["LD_PRELOAD"] = shim(tmp_path, "skewclock")
    _, truth_ns, _ = run(CLOCKED, str(tmp_path / "x.xpr"), **skew)
    profile = read_shard(tmp_path / "x.xpr")
    events = profile["events"].to_pylist()
    assert [row["name"] for row in events] == [f"span {i}" for i in range(8)]
    ends = [row["start_ps"] + row["duration_ps"] for row in events]
    assert all(end <= row["start_ps"] for end, row in zip(ends, events[1:], strict=False))
    for row, true_ns in zip(events, truth_ns, strict=True):
        # Sleeping 150 ms, the span is the stopwatch's less the calls between; a slewed clock is 0.04 % off by right.
        assert 150_000_000 * (1 - 500e-6) <= row["duration_ps"] / 1000 <= true_ns * (1 + 500e-6)
    stepped = [row for row in profile["diagnostics"].to_pylist() if row["code"] == "clock_stepped"]
    assert len(stepped) == (1 if step_ns else 0)
