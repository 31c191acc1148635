"""The peaks of a CPU, measured: no datasheet says what a virtual machine with two cores can do.

numpy's matmul in f32 and f64 with all threads that it takes, and copying 128 MiB with one thread
per core, reads and writes counted: the best of several tries within less than a second. The result is stored once per
CPU model and number of cores in the user's cache folder, so that analysing twice gives the same answer. What cannot be
stored is not used.

The peak must be that of the machine that was profiled. It is taken from the run file (``cpu_peaks``) if it is there;
else it is measured here, if the run file names this host and this boot of it; else there is none.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from xprof_py.postprocess.hlo.peaks import Peaks, from_document
from xprof_py.run_folder import boot_id

METHOD = 1
"""Raised when the measurement changes: results of another method are not taken for this one's."""
_MATMUL_S = 0.2
_MATMUL_SIZE = 512
"""Short tries: on a busy machine one of them is likely to be left alone. The larger the matrix, the likelier not."""
_MEMORY_S = 0.35
_PIECES = 8
_MEMORY_BYTES = 256 << 20
"""Larger than the caches of most machines, and filled within the time; where caches are larger, so is the peak."""


def machine() -> tuple[str, int]:
    """(CPU model, cores that this process may use)."""
    return cpu_model(), len(os.sched_getaffinity(0))


def cpu_model(file: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's model as the kernel names it; on arm64 its implementer and part numbers."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for pattern in (r"^model name\s*:\s*(.+)$", r"^(CPU implementer\s*:.*(?:\n.*)*?^CPU part\s*:.*)$"):
        found = re.search(pattern, text, re.MULTILINE)
        if found:
            return " ".join(found.group(1).split())
    return platform.processor() or platform.machine()


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where measurements are stored: $XDG_CACHE_HOME/xprof_py, by default ~/.cache/xprof_py."""
    chosen = environ.get("XDG_CACHE_HOME") or ""
    return (Path(chosen) if chosen else Path.home() / ".cache") / "xprof_py"


def profiled_here(run: Mapping[str, Any]) -> bool:
    """Whether a run file names this host and this boot of it."""
    boot = boot_id()
    return bool(boot) and run.get("boot_id") == boot and run.get("hostname") == os.uname().nodename


def stored_file(folder: Path, model: str, cores: int) -> Path:
    """The file of one CPU model and number of cores."""
    digest = hashlib.sha256(f"{model}|{cores}|{METHOD}".encode()).hexdigest()[:16]
    return folder / f"cpu-peaks-{digest}.json"


def cpu_peaks(folder: Path, *, measure: bool) -> Peaks | None:
    """The stored measurement of this machine; measured and stored first where there is none and ``measure`` is true.

    Returns None where there is none, or where it cannot be stored.
    """
    model, cores = machine()
    file = stored_file(folder, model, cores)
    found = _stored(file)
    if found is not None or not measure:
        return found
    measured = measure_cpu(model, cores)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("wb", dir=folder, prefix=".cpu-peaks-", delete=False) as fresh:
            fresh.write(orjson.dumps(measured.document(), option=orjson.OPT_INDENT_2))
        try:
            # The first of several that measure at once wins: all go on with its numbers.
            os.link(fresh.name, file)
        except FileExistsError:
            if _stored(file) is None:
                os.replace(fresh.name, file)
        finally:
            Path(fresh.name).unlink(missing_ok=True)
    except OSError:
        return None
    return _stored(file)


def _stored(file: Path) -> Peaks | None:
    try:
        return from_document(orjson.loads(file.read_bytes()))
    except (OSError, ValueError):
        return None


def measure_cpu(model: str, cores: int) -> Peaks:
    """Measure this machine now; takes about a second and 256 MiB of memory."""
    f32 = _matmul_flops_per_s(np.dtype(np.float32))
    f64 = _matmul_flops_per_s(np.dtype(np.float64))
    return Peaks(
        device=f"{model}, {cores} cores",
        source="measured on this machine",
        flops_per_s={"f32": f32, "f64": f64},
        vector_flops_per_s=f32,
        memory_bytes_per_s=_memory_bytes_per_s(cores),
    )


def _matmul_flops_per_s(dtype: np.dtype[Any]) -> int:
    size = _MATMUL_SIZE
    matrix = np.ones((size, size), dtype)
    result = np.empty_like(matrix)
    best_ns = 1 << 62
    end_ns = time.perf_counter_ns() + int(_MATMUL_S * 1e9)
    tries = 0
    while tries < 3 or time.perf_counter_ns() < end_ns:
        started_ns = time.perf_counter_ns()
        np.matmul(matrix, matrix, out=result)
        best_ns = min(best_ns, time.perf_counter_ns() - started_ns)
        tries += 1
    return 2 * size**3 * 10**9 // max(best_ns, 1)


def _memory_bytes_per_s(cores: int) -> int:
    """In rounds over pieces of the arrays, the fastest: a copy (2 bytes moved per byte) or adding in place (3).

    One thread per core; numpy gives up the GIL in both. A copy of that size goes around the caches, adding goes through
    them: which one the memory serves faster differs from machine to machine.
    """
    each = _MEMORY_BYTES // (2 * cores * 8)
    gate = threading.Barrier(cores)
    over = threading.Event()
    spans_ns: list[list[tuple[int, int]]] = [[] for _ in range(cores)]
    end_ns = time.perf_counter_ns() + int(_MEMORY_S * 1e9)

    def move(thread: int) -> None:
        # Filled by the thread that moves them: the pages are then on its own memory node.
        source, target = np.ones(each), np.ones(each)
        pieces = list(zip(np.array_split(target, _PIECES), np.array_split(source, _PIECES), strict=True))
        rounds = 0
        while not over.is_set():
            to, by = pieces[rounds // 2 % _PIECES]
            gate.wait()
            started_ns = time.perf_counter_ns()
            if rounds % 2:
                np.add(to, by, out=to)
            else:
                np.copyto(to, by)
            spans_ns[thread].append((started_ns, time.perf_counter_ns()))
            rounds += 1
            # Thread 0 says when time is over, between the gates, so that all leave after the same round.
            if thread == 0 and rounds > 1 and time.perf_counter_ns() > end_ns:
                over.set()
            gate.wait()

    threads = [threading.Thread(target=move, args=(thread,)) for thread in range(1, cores)]
    for worker in threads:
        worker.start()
    move(0)
    for worker in threads:
        worker.join()
    best = 0
    for number, together in enumerate(zip(*spans_ns, strict=True)):
        took_ns = max(end for _, end in together) - min(start for start, _ in together)
        best = max(best, (3 if number % 2 else 2) * (each // _PIECES) * 8 * cores * 10**9 // max(took_ns, 1))
    return best
