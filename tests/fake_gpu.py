"""A GPU that is not there: builds the test doubles of libcupti and of the driver, and says what a program did on it.

The doubles are native/tests/fakes/cupti.c and cuda.c. A program finds the driver once :func:`load_driver` was
called in it, and CUPTI through XPROF_CUPTI_LIB.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
VARIANTS = {
    "both": ["-DFAKE_V1", "-DFAKE_V2"],  # 13.3 and later
    "named": ["-DFAKE_V1", "-DFAKE_NAMED"],  # 13.0
    "old": ["-DFAKE_V1", "-DFAKE_12_0"],
    "too_old": [],  # from before the activity calls
}


def build(folder: Path) -> Path:
    """``folder`` with libfake_cupti_<variant>.so and libfake_cuda.so; skips the test where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on PATH: install gcc")
    plain = [compiler, "-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
    include = ["-I", str(ROOT / "native")]
    sources = ROOT / "native" / "tests" / "fakes"
    commands = [
        [*plain, *flags, *include, str(sources / "cupti.c"), "-o", str(folder / f"libfake_cupti_{name}.so")]
        for name, flags in VARIANTS.items()
    ]
    driver = ["-Wl,-soname,libcuda.so.1", str(sources / "cuda.c"), "-o", str(folder / "libfake_cuda.so")]
    for command in [*commands, [*plain, *driver]]:
        subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return folder


def machine(folder: Path) -> dict[str, str]:
    """Builds NVML's double too; returns variables by which a process finds all in ``folder`` as it would NVIDIA's."""
    source = ROOT / "native" / "tests" / "fakes" / "nvml.c"
    nvml = os.fspath(folder / "libnvidia-ml.so.1")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", nvml, os.fspath(source)], check=True)
    (folder / "libcuda.so.1").symlink_to(folder / "libfake_cuda.so")
    return {
        "LD_LIBRARY_PATH": os.fspath(folder),
        "XPROF_CUPTI_LIB": os.fspath(folder / "libfake_cupti_both.so"),
        "FAKES": os.fspath(folder),
        "FAKE_NVML": "devices=1 power=300000 uuids=cupti",
    }


def load_driver(folder: Path | str) -> None:
    """Load the driver into this process: from now on it is a program that uses CUDA, and stays one."""
    ctypes.CDLL(os.fspath(Path(folder) / "libfake_cuda.so"))


class FakeGpu:
    """What a program does on the GPU. Times are CLOCK_REALTIME in ns, as CUPTI's."""

    def __init__(self, folder: Path | str, variant: str = "both") -> None:
        self.path = os.fspath(Path(folder) / f"libfake_cupti_{variant}.so")
        self._library = ctypes.CDLL(self.path)
        self._library.fake_name.restype = ctypes.c_void_p
        self._library.fake_get.restype = ctypes.c_int64
        self._names: dict[str, ctypes.c_void_p] = {}

    def _name(self, name: str) -> ctypes.c_void_p:
        if name not in self._names:
            self._names[name] = ctypes.c_void_p(self._library.fake_name(name.encode()))
        return self._names[name]

    def set(self, name: str, value: int) -> None:
        """A setting of the fake: refuse, hang_ms, hold_back, version, ... (see fake_set)."""
        assert self._library.fake_set(name.encode(), ctypes.c_int64(value)) == 0, name

    def get(self, name: str) -> int:
        """A count of the fake: made, dropped, subscribed, enabled, ... (see fake_get)."""
        return int(self._library.fake_get(name.encode()))

    def hold(self, name: str | None) -> None:
        """Another tool takes CUPTI, under this name; None: it lets go."""
        self._library.fake_hold(None if name is None else name.encode())

    def device(self, ordinal: int, name: str, multiprocessors: int = 132, memory_bytes: int = 80 << 30) -> None:
        self._library.fake_device(ordinal, self._name(name), multiprocessors, ctypes.c_uint64(memory_bytes))

    def call(self, api: int, number: int, correlation: int, start_ns: int, end_ns: int) -> None:
        """A call of the runtime (``api`` 1) or driver (2) on this thread: 211 launches a kernel, 131 waits, ..."""
        self._library.fake_call(api, number, correlation, ctypes.c_uint64(start_ns), ctypes.c_uint64(end_ns))

    def kernel(
        self,
        name: str,
        correlation: int,
        start_ns: int,
        end_ns: int,
        *,
        stream: int = 7,
        device: int = 0,
        context: int = 1,
        graph: int = 0,
        node: int = 0,
    ) -> None:
        start, end = ctypes.c_uint64(start_ns), ctypes.c_uint64(end_ns)
        self._library.fake_kernel(
            self._name(name), correlation, device, context, stream, start, end, graph, ctypes.c_uint64(node)
        )

    def graph_node(self, graph: int, node: int, original: int = 0) -> None:
        """A node is added to a graph that this thread builds; with ``original`` it is a clone of that one."""
        self._library.fake_graph_node(ctypes.c_uint64(graph), ctypes.c_uint64(node), ctypes.c_uint64(original))

    def launches(self, name: str, first: int, count: int, start_ns: int | None = None) -> None:
        """``count`` calls and kernels, correlation ids from ``first``, 1000 ns apart."""
        at = time.time_ns() if start_ns is None else start_ns
        self._library.fake_launches(self._name(name), first, count, ctypes.c_uint64(at))

    def drop(self, count: int) -> None:
        """CUPTI drops records by itself."""
        self._library.fake_drop(ctypes.c_uint64(count))

    def throw_away(self, on: bool) -> None:
        """A tool of the fake's own has launches recorded, and throws the records away."""
        self._library.fake_throw_away(int(on))

    def push(self, external_id: int) -> None:
        """Open a range on the calling thread, as CUPTI is told of one."""
        assert self._library.fake_push(ctypes.c_uint64(external_id)) == 0

    def pop(self) -> None:
        self._library.fake_pop()
