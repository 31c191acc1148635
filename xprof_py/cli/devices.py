"""What NVIDIA's libraries on this machine say of themselves, asked as little as possible."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
CUPTI_VARIABLE, NVML_VARIABLE = "XPROF_CUPTI_LIB", "XPROF_NVML_LIB"
_CUPTI = ("libcupti.so.13", "libcupti.so.12")
_WHEELS = ("nvidia/cu13/lib", "nvidia/cuda_cupti/lib")
_TOOLKIT = "/usr/local/cuda"
_TRY = "import json; from xprof_py.collectors.cuda import check; print(json.dumps(check()))"
_TRY_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Library:
    """``version``: as it says itself, None where it is not usable; ``why`` not. ``path``: "" where none was found."""

    path: str
    version: str | None
    why: str = ""


def _load(path: str) -> Any:
    return ctypes.CDLL(path)


def cuda_driver() -> Library:
    """The CUDA driver; cuDriverGetVersion needs no device and makes no context."""
    try:
        number = ctypes.c_int(0)
        result = _load(CUDA).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as error:
        return Library("", None, f"no {CUDA}: {error}" if isinstance(error, AttributeError) else f"no {CUDA}")
    if result or not number.value:
        return Library(CUDA, None, f"{CUDA} gives no version: error {result}")
    return Library(CUDA, f"{number.value // 1000}.{number.value % 1000 // 10}")


def find_cupti(environ: Mapping[str, str], path: Sequence[str]) -> str:
    """Where CUPTI lies: XPROF_CUPTI_LIB, a wheel on ``path``, the toolkit; "" where it is nowhere."""
    if environ.get(CUPTI_VARIABLE):
        return environ[CUPTI_VARIABLE]
    folders = [Path(entry or ".", wheel) for entry in path for wheel in _WHEELS]
    toolkit = environ.get("CUDA_HOME") or environ.get("CUDA_PATH") or _TOOLKIT
    folders += [Path(toolkit, "lib64"), Path(toolkit, "extras/CUPTI/lib64")]
    return next((os.fspath(folder / name) for folder in folders for name in _CUPTI if (folder / name).is_file()), "")


def _what_is_wrong(environ: Mapping[str, str], variable: str, function: str) -> str:
    """Why what a variable names is not the library that it is to be, "" where it may be. Nothing of it is loaded."""
    file = environ.get(variable, "")
    if "/" not in file:
        return ""  # a name, which the loader looks for
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        return f"{variable} names {file}: {error.strerror or error}"
    # An ELF file holds the names of its functions.
    if content.startswith(b"\x7fELF") and function.encode() in content:
        return ""
    return f"{variable} names {file}, which is no library that has {function}"


def cupti(environ: Mapping[str, str], path: Sequence[str]) -> Library:
    """CUPTI. Some versions end the process when they are asked anything without a driver: then nothing is asked."""
    where = find_cupti(environ, path)
    if not where:
        return Library("", None, "not found: what GPUs do is recorded through XLA's profiler only")
    named_wrongly = _what_is_wrong(environ, CUPTI_VARIABLE, "cuptiGetVersion")
    driver = cuda_driver()
    if driver.version is None:
        return Library(where, None, named_wrongly or "not asked, as there is no driver")
    try:
        number = ctypes.c_uint32(0)
        result = _load(where).cuptiGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as error:
        return Library(where, None, named_wrongly or f"cannot be loaded: {error}")
    if result:
        return Library(where, None, f"gives no version: error {result}")
    return Library(where, str(number.value))


def subscription() -> dict[str, Any]:
    """What comes of subscribing to CUPTI as a capture does, in a process of its own: a library may crash or hang.

    Returns what ``collectors.cuda.check`` does; of a process that did not answer only ``why``.
    """
    command = [sys.executable, "-c", _TRY]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TRY_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"why": f"CUPTI did not answer within {_TRY_TIMEOUT_S:g} s"}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    last = done.stderr.strip().splitlines()[-1:]
    return {
        "why": f"a process that subscribes to CUPTI ends with {done.returncode}{': ' if last else ''}{''.join(last)}"
    }


def nvml(environ: Mapping[str, str]) -> Library:
    """NVML: its driver's version and how many GPUs it sees."""
    name = environ.get(NVML_VARIABLE) or NVML
    try:
        library = _load(name)
        result = library.nvmlInit_v2()
    except (OSError, AttributeError):
        why = _what_is_wrong(environ, NVML_VARIABLE, "nvmlInit_v2") or f"no {name}"
        return Library("", None, f"{why}: power and heat are not recorded")
    if result:
        return Library(name, None, f"{name} does not start: error {result}")
    try:
        text, count = ctypes.create_string_buffer(96), ctypes.c_uint(0)
        failed = library.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))) or library.nvmlDeviceGetCount_v2(
            ctypes.byref(count)
        )
    finally:
        library.nvmlShutdown()
    if failed:
        return Library(name, None, f"{name} says nothing: error {failed}")
    devices = f"{count.value} GPU{'' if count.value == 1 else 's'}"
    return Library(name, f"driver {text.value.decode('ascii', 'replace')}, {devices}")
