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
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from xprof_py.postprocess.hlo.peaks import Peaks, from_document
from xprof_py.run_folder import boot_id

METHOD = 1
"""Raised when the measurement changes: results of another method are not taken for this one's."""
MEASURE_TIMEOUT_S = 20.0


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

    Returns None where there is none, or where it cannot be made or stored.
    """
    model, cores = machine()
    file = stored_file(folder, model, cores)
    found = _stored(file)
    if found is not None or not measure:
        return found
    measured = measure_cpu(model, cores)
    if measured is None:
        return None
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


def measure_cpu(model: str, cores: int) -> Peaks | None:
    """Measure this machine now, in a process of its own; None where that fails."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-P", str(Path(__file__).with_name("measure_cpu.py"))]
    try:
        ran = subprocess.run(
            command, env={**os.environ, **threads}, capture_output=True, timeout=MEASURE_TIMEOUT_S, check=True
        )
        rates = orjson.loads(ran.stdout)
        matmul = {name: int(rates["matmul_flops_per_s"][name]) for name in ("float32", "float64")}
        memory = int(rates["memory_bytes_per_s"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return None
    whole = physical_cores(os.sched_getaffinity(0))
    return Peaks(
        device=f"{model}, {cores} cores",
        source="measured on this machine",
        flops_per_s={"f32": matmul["float32"] * whole, "f64": matmul["float64"] * whole},
        vector_flops_per_s=matmul["float32"] * whole,
        memory_bytes_per_s=memory,
    )


def physical_cores(cpus: Iterable[int], folder: Path = Path("/sys/devices/system/cpu")) -> int:
    """How many cores these CPUs are: threads of one core share its arithmetic. A virtual machine may not tell."""
    cores = set()
    for cpu in cpus:
        try:
            cores.add((folder / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(f"cpu{cpu}")
    return len(cores)
