"""Programs that record and are killed with SIGKILL at a random moment, with what each had recorded for certain by then.

``python -m tests.workloads.killed FOLDER COUNT SEED [SECONDS]`` forks COUNT programs one after the other; each records
into FOLDER/<n>.xpr, the last SECONDS of it where they are given. Prints one JSON line for each: {"shard", "after_ms",
"begun": {thread's name: events of which the call had begun}, "done": {...: had returned}}.

A count is stored in memory that the parent shares, right before and right after the call that records: what was done is
committed, what was begun may be, and nothing else exists.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from xprof_py import _native, mark, step, trace

THREADS = 3


def record(counts: memoryview, k: int, short: bool) -> None:
    """Record events whose ``i`` counts from 0: marks with 0, 3 or 9 arguments, now and then a new name."""
    more = {f"more_{j}": float(j) for j in range(8)}
    i = 0
    while not (short and i == 50):
        counts[2 * k] = i + 1
        if i % 7 == 0:
            mark(f"name {k} {i % 1001}", i=i)
        elif i % 3 == 0:
            mark("many", i=i, **more)
        else:
            mark("some", i=i, text="a text", value=i / 2)
        counts[2 * k + 1] = i + 1
        i += 1
        if i % 64 == 0:
            time.sleep(0.0005)


def program(shard: Path, counts: memoryview, seconds: float, early: bool) -> None:
    """Record until the end comes; the main thread is in a step, and in it in a span. ``early``: or before."""
    _native.recorder_start(shard, window_s=seconds, ring_bytes=1 << 20)
    counts[2 * (THREADS + 1)] = int(early)
    for k in range(THREADS):
        threading.Thread(target=record, args=(counts, k, False), name=f"recorder {k}", daemon=True).start()
    with step(412), trace("save"):
        counts[2 * (THREADS + 1)] = 1
        ended = threading.Thread(target=record, args=(counts, THREADS, True), name=f"recorder {THREADS}")
        ended.start()
        ended.join()
        while True:
            time.sleep(1)


def main(folder: str, count: str, seed: str, seconds: str = "0") -> None:
    """Kill ``count`` programs, each between 1 and 250 ms after it began to record."""
    chance = random.Random(int(seed))
    # One store per count: struct.pack_into would clear the bytes first, and a kill may come in between.
    counts = memoryview(mmap.mmap(-1, 4096)).cast("Q")
    for n in range(int(count)):
        counts[:] = memoryview(bytes(4096)).cast("Q")
        shard = Path(folder, f"{n}.xpr")
        pid = os.fork()
        if pid == 0:
            program(shard, counts, float(seconds), early=n % 3 == 2)
        while not counts[2 * (THREADS + 1)]:
            time.sleep(0.0002)
        after_ms = chance.choice((1, 5, 55, 110, 250)) * (0.5 + chance.random())
        time.sleep(after_ms / 1000)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        said = [(counts[2 * k], counts[2 * k + 1]) for k in range(THREADS + 1)]
        row = {
            "shard": str(shard),
            "after_ms": after_ms,
            "begun": {f"recorder {k}": begun for k, (begun, _) in enumerate(said)},
            "done": {f"recorder {k}": done for k, (_, done) in enumerate(said)},
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
