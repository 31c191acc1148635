"""The GPU that the programs here launch on: a real one through CuPy, or the double, which both take the same calls.

``device()`` is the double where FAKES names the folder of its libraries, else CuPy's.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[2]))

MAIN, SIDE = "main", "side"


class XlaRanges:
    """Ranges as XLA opens them around its work: of its domain, with its texts."""

    def __init__(self, module: str) -> None:
        import nvtx

        self._domain: Any = nvtx.get_domain("TSL")
        self._module = self._domain.get_event_attributes(message=f"XlaModule:#hlo_module={module},program_id=7#")
        self._of: dict[str, Any] = {}

    def __call__(self, op: str) -> XlaRanges:
        if op not in self._of:
            self._of[op] = self._domain.get_event_attributes(message=f"Thunk:#name=m/{op},hlo_op={op}#")
        self._next = self._of[op]
        return self

    def __enter__(self) -> None:
        self._domain.push_range(self._module)
        self._domain.push_range(self._next)

    def __exit__(self, *_: object) -> None:
        self._domain.pop_range()
        self._domain.pop_range()


class Double:
    """Kernels that take their time on paper: one after the other on a stream, ``late_ns`` behind the host at least."""

    def __init__(self, late_ns: int = 0) -> None:
        from fake_gpu import FakeGpu, load_driver

        load_driver(os.environ["FAKES"])
        self.gpu = FakeGpu(os.environ["FAKES"])
        self.gpu.device(0, "NVIDIA H200")
        self._lock = threading.Lock()
        self._late_ns = late_ns
        self._correlation = self._nodes = 0
        self._free_ns = {MAIN: 0, SIDE: 0}
        self._stream = {MAIN: 7, SIDE: 8}

    def compile(self, names: Sequence[str]) -> None:
        """Nothing to do."""

    def until_recorded(self) -> None:
        """Wait until a capture collects kernels."""
        end = time.monotonic() + 30
        while not self.gpu.get("kernels_on") and time.monotonic() < end:
            time.sleep(0.005)

    def _called(self, number: int) -> tuple[int, int]:
        with self._lock:
            self._correlation += 1
            correlation = self._correlation
        begin = time.time_ns()
        self.gpu.call(1, number, correlation, begin, begin + 4000)
        return correlation, begin + 4000

    def _run(self, name: str, stream: str, took_ns: int, called: tuple[int, int], **of_graph: int) -> None:
        start = max(called[1] + self._late_ns, self._free_ns[stream])
        self._free_ns[stream] = start + took_ns
        self.gpu.kernel(name, called[0], start, start + took_ns, stream=self._stream[stream], **of_graph)

    def launch(self, name: str, stream: str, took_us: int) -> None:
        """One kernel of this name, which runs for ``took_us``."""
        self._run(name, stream, took_us * 1000, self._called(211))

    def graph(self, names: Sequence[str], took_us: int, around: Callable[[str], Any]) -> Callable[[str], None]:
        """A graph of these kernels, each made within ``around(name)``; what it returns launches it on a stream."""
        nodes = []
        for name in names:
            self._nodes += 1
            with around(name):
                self.gpu.graph_node(100, self._nodes)
            nodes.append((name, self._nodes))
        clones = [(name, node + 1000) for name, node in nodes]
        for (_, node), (_, clone) in zip(nodes, clones, strict=True):
            self.gpu.graph_node(101, clone, original=node)

        def launch(stream: str) -> None:
            called = self._called(311)
            for name, clone in clones:
                self._run(name, stream, took_us * 1000, called, graph=101, node=clone)

        return launch

    def many(self, count: int, took_us: int = 0) -> None:
        """``count`` launches one after the other, of kernels of ``took_us``, from as tight a loop as there is."""
        self.gpu.launches("spin", self._correlation + 1, count)
        self._correlation += count

    def wait(self) -> None:
        """Until all is done."""
        called = self._called(165)
        time.sleep(max(0, max(self._free_ns.values()) - called[1]) / 1e9 + 0.001)


class Cupy:
    """The same on the first GPU."""

    _SOURCE = """
extern "C" __global__ void NAME(unsigned long long ns) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < ns);
}
"""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._streams = {MAIN: cupy.cuda.Stream(non_blocking=True), SIDE: cupy.cuda.Stream(non_blocking=True)}
        self._kernels: dict[str, Any] = {}
        self.compile(["spin"])

    def compile(self, names: Sequence[str]) -> None:
        """Kernels of these names, loaded, so that no later launch waits for a compiler."""
        module = self._cupy.RawModule(code="".join(self._SOURCE.replace("NAME", name) for name in names))
        for name in names:
            self._kernels[name] = module.get_function(name)
            # Asking loads it, which is forbidden while a graph is captured.
            assert self._kernels[name].attributes["max_threads_per_block"]
        self._cupy.cuda.runtime.deviceSynchronize()

    def until_recorded(self) -> None:
        """A capture looks for CUDA four times a second; what was launched before is not of the test."""
        time.sleep(2)

    def launch(self, name: str, stream: str, took_us: int) -> None:
        """One kernel of this name, which runs for ``took_us``."""
        with self._streams[stream]:
            self._kernels[name]((1,), (1,), (self._cupy.uint64(took_us * 1000),))

    def graph(self, names: Sequence[str], took_us: int, around: Callable[[str], Any]) -> Callable[[str], None]:
        """A graph of these kernels, each captured within ``around(name)``; what it returns launches it on a stream."""
        stream = self._streams[MAIN]
        with stream:
            stream.begin_capture()
            for name in names:
                with around(name):
                    self.launch(name, MAIN, took_us)
            graph = stream.end_capture()
        return lambda on: graph.launch(self._streams[on])

    def many(self, count: int, took_us: int = 0) -> None:
        """``count`` launches one after the other, of kernels of ``took_us``, from as tight a loop as there is."""
        kernel, arguments = self._kernels["spin"], (self._cupy.uint64(took_us * 1000),)
        with self._streams[MAIN]:
            for _ in range(count):
                kernel((1,), (1,), arguments)

    def wait(self) -> None:
        """Until all is done."""
        self._cupy.cuda.runtime.deviceSynchronize()


def device(late_ns: int = 0) -> Double | Cupy:
    """The GPU of this process. ``late_ns``: how far the double's device is behind the host."""
    return Double(late_ns) if os.environ.get("FAKES") else Cupy()
