"""What recording costs: steps off, on, and with XLA's ranges; a range pushed into CUPTI; the CPU time of a launch.

    costs.py RUN ROUNDS STEPS

Each way is captured by itself, below RUN, in turns, so that what changes on the machine changes for all. Prints ms of
every step by way, the medians of the two costs in ns, and what was lost.
"""

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from devices import XlaRanges, device

from xprof_py import capture, step

RUN, ROUNDS, STEPS = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
LAUNCHES, KERNEL_US = 200, 20
"""A step is 4 ms of the device's time, more than launching takes: what a launch costs is a figure of its own."""
PAIRS, BURST = 20_000, 20_000
gpu = device()
in_op = XlaRanges("jit_costs")
gpu.many(LAUNCHES)
gpu.wait()
step_ms: dict[str, list[float]] = {"off": [], "on": [], "with_ranges": []}
push_ns: dict[bool, list[float]] = {True: [], False: []}
launch_ns: dict[bool, list[float]] = {True: [], False: []}
lost = number = 0


def captured(cuda: bool) -> Any:
    global number
    number += 1
    return capture(RUN / str(number), cuda=cuda, xla=False, stacks=False, power=False, probe=False)


def steps(how: str) -> None:
    for i in range(STEPS):
        begin = time.perf_counter()
        with step(i):
            for _ in range(LAUNCHES // 10):
                with in_op("op") if how == "with_ranges" else nullcontext():
                    gpu.many(10, KERNEL_US)
            gpu.wait()
        step_ms[how].append((time.perf_counter() - begin) * 1e3)


for _ in range(ROUNDS):
    steps("off")
    for how in ("on", "with_ranges"):
        with captured(cuda=True):
            steps(how)
    for cuda in (False, True):
        with captured(cuda=cuda):
            in_op("op")
            begin_ns = time.thread_time_ns()
            for _ in range(PAIRS):
                with in_op:
                    pass
            push_ns[cuda].append((time.thread_time_ns() - begin_ns) / (2 * PAIRS))  # two ranges at a time
        with captured(cuda=cuda):
            begin_ns = time.process_time_ns()
            gpu.many(BURST)
            gpu.wait()
        launch_ns[cuda].append((time.process_time_ns() - begin_ns) / BURST)
for path in RUN.glob("*/run/*.json"):
    document = json.loads(path.read_text(encoding="utf-8"))
    totals = document["overhead"].get("cuda", {})
    lost += sum(totals.get(name, 0) for name in ("dropped", "buffers_refused", "no_memory", "cut_buffers"))
print(
    json.dumps(
        {
            "step_ms": step_ms,
            "lost": lost,
            "push_and_pop_ns": median(push_ns[True]) - median(push_ns[False]),
            "launch_cpu_ns": median(launch_ns[True]) - median(launch_ns[False]),
        }
    )
)
