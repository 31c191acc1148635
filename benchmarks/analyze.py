"""What `xprof-py analyze` costs, next to XProf's overview page of the same XPlane file.

    XPROF_PY_PEERS_PYTHON=/path/to/python python benchmarks/analyze.py [RUN] [--repeats 5]

RUN is a run folder, or an XPlane file (benchmarks/long_capture.py makes large ones); without one the demo's training is
recorded first, once with few and once with many steps: the first shows what starting costs, the second what events
cost. XPROF_PY_PEERS_PYTHON names an interpreter in whose environment the package `xprof` is installed; without it only
our side is measured. Both sides start a fresh process each time, without caches, and take turns; CPU seconds and peak
memory are those of the whole process, imports included.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from interleaved import Spread

RECORDED_STEPS = (10, 600)

OVERVIEW_PAGE = """
import sys
from xprof.convert import raw_to_tool_data
page, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], "overview_page", {})
assert page
"""


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    peak_mb: float


def cost_of(command: list[str]) -> Cost:
    """CPU seconds and peak resident megabytes of one process. Raises CalledProcessError if it fails."""
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            said.seek(0)
            raise subprocess.CalledProcessError(child.returncode, command, said.read()[-2000:])
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def ours(run: Path) -> Cost:
    with tempfile.TemporaryDirectory() as out:
        return cost_of([sys.executable, "-m", "xprof_py", "analyze", str(run), "-o", f"{out}/analysis"])


def overview_page(python: str, trace: Path) -> Cost:
    # XProf leaves caches beside the trace: every time gets a copy of its own.
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(trace, folder)
        return cost_of([python, "-c", OVERVIEW_PAGE, copy])


def peer(trace: Path) -> Callable[[], Cost] | str:
    """The function that measures XProf once, or why there is none."""
    python = os.environ.get("XPROF_PY_PEERS_PYTHON")
    if not python:
        return "XPROF_PY_PEERS_PYTHON is not set"
    if subprocess.run([python, "-c", "import xprof.convert"], capture_output=True, check=False).returncode != 0:
        return f"{python} cannot import xprof"
    return lambda: overview_page(python, trace)


def show(name: str, costs: list[Cost]) -> None:
    cpu, memory = Spread.of([cost.cpu_s for cost in costs]), Spread.of([cost.peak_mb for cost in costs])
    print(f"  {name:28}{cpu.middle:7.2f} ({cpu.low:.2f} - {cpu.high:.2f})   {memory.middle:8.0f}")


def compare(run: Path, repeats: int) -> None:
    traces = [run] if run.is_file() else sorted(run.glob("plugins/profile/*/*.xplane.pb"))
    if not traces:
        raise SystemExit(f"{run} holds no XPlane file")
    print(f"\n{run.name}: {traces[0].stat().st_size / 1e6:.2f} MB of XPlane, {repeats} times each")
    other = peer(traces[0])
    mine, theirs = [], []
    for _ in range(repeats):
        mine.append(ours(run))
        if not isinstance(other, str):
            theirs.append(other())
    print(f"  {'':28}CPU s: median (10 % - 90 %)   peak MB")
    show("xprof-py analyze", mine)
    if isinstance(other, str):
        print(f"  {'XProf overview_page':28}skipped: {other}")
        return
    show("XProf overview_page", theirs)
    by_cpu = median(a.cpu_s / b.cpu_s for a, b in zip(mine, theirs, strict=True))
    by_memory = median(a.peak_mb / b.peak_mb for a, b in zip(mine, theirs, strict=True))
    print(f"  ours / XProf: CPU {by_cpu:.2f}, memory {by_memory:.2f}")


def record(run: Path, steps: int) -> None:
    command = [sys.executable, "-m", "xprof_py.demo_training", "--fast-input", "--run-dir", str(run)]
    subprocess.run([*command, "--steps", str(steps)], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print("Cost of one analysis, whole processes")
    if options.run is not None:
        compare(options.run, options.repeats)
        return
    with tempfile.TemporaryDirectory(prefix="xprof_py-analyze-") as folder:
        for steps in RECORDED_STEPS:
            run = Path(folder) / f"{steps} steps"
            record(run, steps)
            compare(run, options.repeats)


if __name__ == "__main__":
    main()
