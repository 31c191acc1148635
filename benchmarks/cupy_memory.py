"""What the hook of CuPy's memory pool costs per allocation and release: `python benchmarks/cupy_memory.py`.

The pool is the double of the tests, whose own time, with a hook that does nothing, is taken off. CuPy's own part (it
calls six methods of every hook by keyword) is in that hook's row.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import fake_cupy

from xprof_py import _native
from xprof_py.collectors.cupy_memory import CupyMemory, _Nothing

PAIRS = 5_000
ROUNDS = 9


def nanoseconds(pool: fake_cupy.Pool, pairs: int) -> float:
    """CPU time of one allocation and its release."""
    began = time.thread_time_ns()
    for _ in range(pairs):
        pool.free(pool.malloc(1000))
    return (time.thread_time_ns() - began) / pairs


def best(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(ROUNDS))


def main() -> None:
    pool = fake_cupy.install(fake_cupy.Pool())
    table = fake_cupy.get_memory_hooks()
    bare = best(lambda: nanoseconds(pool, PAIRS))
    table["nothing"] = _Nothing()
    idle = best(lambda: nanoseconds(pool, PAIRS))
    del table["nothing"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "0-1.xpr")
        _native.recorder_start(path, budget_bytes=4 << 30, ring_bytes=64 << 20)
        collector = CupyMemory(None)
        collector.start()
        recorded = best(lambda: nanoseconds(pool, PAIRS))
        about = collector.stop()
        totals = _native.recorder_stop()
        size = path.stat().st_size
    events = about["allocations"] + about["frees"]
    print(f"a pair without a hook        {bare:7.0f} ns (of the double)")
    print(f"with a hook that does nothing {idle - bare:+6.0f} ns")
    print(f"recorded                      {recorded - bare:+6.0f} ns, {(recorded - bare) / 2:.0f} ns per event")
    print(f"{size / events:.0f} bytes of shard per event, {totals['dropped']} of {events} dropped")


if __name__ == "__main__":
    main()
