"""What `xprof-py analyze` costs, next to XProf's overview page of the same XPlane file.

    XPROF_PY_PEERS_PYTHON=/path/to/python python benchmarks/analyze.py [RUN] [--repeats 5]

RUN is a run folder; without one a training of 400 steps is recorded first. XPROF_PY_PEERS_PYTHON names an interpreter
in whose environment the package `xprof` is installed; without it only our side is measured. Both sides start a fresh
process each time, without caches, and take turns; CPU seconds and peak memory are those of the whole process, imports
included.
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

PLANTED = Path(__file__).resolve().parents[1] / "tests" / "workloads" / "planted.py"
RECORDED_STEPS = 400

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="xprof_py-analyze-") as folder:
        run = options.run or Path(folder) / "run"
        if options.run is None:
            record = [sys.executable, str(PLANTED), "compute", str(run), "--steps", str(RECORDED_STEPS)]
            subprocess.run(record, check=True, stdout=subprocess.DEVNULL)
        traces = sorted(run.glob("plugins/profile/*/*.xplane.pb"))
        if not traces:
            print(f"{run} holds no XPlane file", file=sys.stderr)
            return 1
        print(f"Analysis of a run with {traces[0].stat().st_size / 1e6:.2f} MB of XPlane, {options.repeats} times each")
        other = peer(traces[0])
        mine, theirs = [], []
        for _ in range(options.repeats):
            mine.append(ours(run))
            if not isinstance(other, str):
                theirs.append(other())
        print(f"  {'':28}CPU s: median (10 % - 90 %)   peak MB")
        show("xprof-py analyze", mine)
        if isinstance(other, str):
            print(f"  XProf overview_page         skipped: {other}")
        else:
            show("XProf overview_page", theirs)
            by_cpu = median(a.cpu_s / b.cpu_s for a, b in zip(mine, theirs, strict=True))
            by_memory = median(a.peak_mb / b.peak_mb for a, b in zip(mine, theirs, strict=True))
            print(f"  ours / XProf: CPU {by_cpu:.2f}, memory {by_memory:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
