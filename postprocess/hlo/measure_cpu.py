"""A program of its own: measure this machine's CPU and print its rates as JSON. About a second and 256 MiB.

    matmul_flops_per_s   {f32, f64}: of one thread, the best of many short tries. On a busy machine one of them is
                         likely to be left alone; with several threads, which wait for each other, hardly any is.
    memory_bytes_per_s   of one thread per core: the faster of a copy (2 bytes moved per byte) and of adding in place
                         (3). A large copy goes around the caches, adding goes through them: which one the memory serves
                         faster differs from machine to machine.

It is started with one BLAS thread (hlo/cpu_peaks.py), and imports numpy alone.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import numpy as np

MATMUL_S = 0.2
MATMUL_SIZE = 512
MEMORY_S = 0.35
MEMORY_BYTES = 256 << 20
PIECES = 8
"""A round moves one piece of each thread's arrays: short, and seldom still in a cache from the time before."""


def matmul_flops_per_s(dtype: np.dtype[Any]) -> int:
    """Operations per second of a square matmul, two per multiply-add."""
    matrix = np.ones((MATMUL_SIZE, MATMUL_SIZE), dtype)
    result = np.empty_like(matrix)
    best_ns = 1 << 62
    end_ns = time.perf_counter_ns() + int(MATMUL_S * 1e9)
    tries = 0
    while tries < 3 or time.perf_counter_ns() < end_ns:
        started_ns = time.perf_counter_ns()
        np.matmul(matrix, matrix, out=result)
        best_ns = min(best_ns, time.perf_counter_ns() - started_ns)
        tries += 1
    return 2 * MATMUL_SIZE**3 * 10**9 // max(best_ns, 1)


def memory_bytes_per_s(threads: int) -> int:
    """Bytes read and written per second by ``threads`` threads at a time; numpy gives up the GIL meanwhile."""
    each = MEMORY_BYTES // (2 * threads * 8)
    gate = threading.Barrier(threads)
    over = threading.Event()
    spans_ns: list[list[tuple[int, int]]] = [[] for _ in range(threads)]
    end_ns = time.perf_counter_ns() + int(MEMORY_S * 1e9)

    def move(thread: int) -> None:
        # Filled by the thread that moves them: the pages are then on its own memory node.
        source, target = np.ones(each), np.ones(each)
        pieces = list(zip(np.array_split(target, PIECES), np.array_split(source, PIECES), strict=True))
        rounds = 0
        while not over.is_set():
            to, by = pieces[rounds // 2 % PIECES]
            gate.wait()
            started_ns = time.perf_counter_ns()
            if rounds % 2:
                np.add(to, by, out=to)
            else:
                np.copyto(to, by)
            spans_ns[thread].append((started_ns, time.perf_counter_ns()))
            rounds += 1
            # The first thread says when time is over, between the gates, so that all leave after the same round.
            if thread == 0 and rounds > 1 and time.perf_counter_ns() > end_ns:
                over.set()
            gate.wait()

    workers = [threading.Thread(target=move, args=(thread,)) for thread in range(1, threads)]
    for worker in workers:
        worker.start()
    move(0)
    for worker in workers:
        worker.join()
    best = 0
    for number, together in enumerate(zip(*spans_ns, strict=True)):
        took_ns = max(end for _, end in together) - min(start for start, _ in together)
        moved_bytes = (3 if number % 2 else 2) * (each // PIECES) * 8 * threads
        best = max(best, moved_bytes * 10**9 // max(took_ns, 1))
    return best


if __name__ == "__main__":
    rates = {
        "matmul_flops_per_s": {name: matmul_flops_per_s(np.dtype(name)) for name in ("float32", "float64")},
        "memory_bytes_per_s": memory_bytes_per_s(len(os.sched_getaffinity(0))),
    }
    print(json.dumps(rates))
