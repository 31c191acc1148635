"""What the stack sampler costs a program: CPU time of the whole process for the same work, sampler on and off.

Each round records the same work twice, with and without stacks, in an order that is drawn anew, and takes the ratio of
the process's CPU times; what is printed is the median of the ratios with their 10th and 90th percentile, beside what
the sampler measured itself. The work holds the GIL all the time (the dearest case: every look takes it by force), or
gives it up in short turns like a training that waits for its device.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from interleaved import Spread

from xprof_py import _native, capture, step
from xprof_py.collectors.stacks import takes_gil

CLOCK = time.CLOCK_PROCESS_CPUTIME_ID


def compute(units: int) -> int:
    """Python that never gives up the GIL of its own accord; ``units`` of about 20 us."""
    total = 0
    for unit in range(units):
        for i in range(500):
            total = (total * 31 + i * unit) & 0xFFFF
    return total


def wait_and_compute(units: int) -> int:
    """A tenth of the time computing, the rest waiting."""
    total = 0
    for _ in range(units // 50):
        total += compute(50)
        time.sleep(0.009)
    return total


def recorded_cpu_ns(work: Callable[[int], int], units: int, steps: int, stacks: bool) -> tuple[int, dict[str, int]]:
    """Process CPU nanoseconds of ``steps`` steps, and the sampler's totals."""
    with tempfile.TemporaryDirectory() as folder:
        with capture(f"{folder}/run", xla=False, stacks=stacks):
            began = time.clock_gettime_ns(CLOCK)
            for number in range(steps):
                with step(number):
                    work(units)
            spent = time.clock_gettime_ns(CLOCK) - began
        (file,) = Path(folder, "run", "run").glob("*.json")
        return spent, json.loads(file.read_text())["overhead"].get("stacks", {})


def look_us(depth: int, looks: int = 2000) -> float:
    """CPU microseconds of one look from memory at a thread with ``depth`` frames; the least of five times."""
    ended = threading.Event()

    def deep(frames: int) -> bool:
        return deep(frames - 1) if frames else ended.wait()

    thread = threading.Thread(target=deep, args=(depth - 6,))
    thread.start()
    with tempfile.TemporaryDirectory() as folder, capture(f"{folder}/run", xla=False, stacks=False):
        costs = [_native.sampler_trial(thread.ident or 0, looks)["cost_ns"] for _ in range(5)]
    ended.set()
    thread.join()
    return float(min(costs)) / looks / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--units", type=int, default=2000, help="work of one step, about 20 us each")
    parser.add_argument("--steps", type=int, default=25)
    options = parser.parse_args()
    if reason := takes_gil():
        print(f"looks take the GIL: {reason}")
    else:
        costs = ", ".join(f"{look_us(depth):.1f} us at depth {depth}" for depth in (10, 30, 90))
        print(f"one look from memory: {costs}")
    for work in (compute, wait_and_compute):
        ratios: list[float] = []
        own: list[float] = []
        looks: list[float] = []
        for _ in range(options.rounds):
            spent: dict[bool, int] = {}
            for stacks in random.sample([True, False], 2):
                began = time.monotonic()
                spent[stacks], totals = recorded_cpu_ns(work, options.units, options.steps, stacks)
                if stacks:
                    wall_s = time.monotonic() - began
                    own.append(totals["cost_ns"] / 1e9 / wall_s)
                    looks.append(totals["looks"] / wall_s)
            ratios.append(spent[True] / spent[False])
        spread = Spread.of(ratios)
        print(
            f"{work.__name__}: CPU time on/off {spread.middle:.4f} ({spread.low:.4f} to {spread.high:.4f}); "
            f"the sampler's own account {100 * median(own):.3f} % of a core at {median(looks):.0f} looks a second"
        )


if __name__ == "__main__":
    main()
