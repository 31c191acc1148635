"""Traces in the JSON of Kineto, made by hand: microseconds in, a joined profile or an analysis out."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.chrome_json import read_chrome_json

US = 10**6
BASE_NS = 1_711_964_646_000_000_000
HOST = 1000


class Trace:
    """Events of one rank; ``rank`` None: the file does not say."""

    def __init__(self, rank: int | None = 0, ranks: int = 1, pid: int = HOST, device: int = 0) -> None:
        self.pid, self.device = pid, device
        self.events: list[dict[str, Any]] = []
        self.top: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS}
        if rank is not None:
            self.top["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": ranks}
        self._correlation = 0

    def add(self, category: str, name: str, start: float, stop: float, pid: Any, tid: Any, **args: Any) -> Trace:
        """An event of [start, stop) microseconds."""
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start}
        self.events.append({**event, "dur": round(stop - start, 3), "args": args})
        return self

    def step(self, number: int, start: float, stop: float) -> Trace:
        return self.add("user_annotation", f"ProfilerStep#{number}", start, stop, self.pid, self.pid)

    def launched(
        self, call: tuple[float, float], work: tuple[float, float], name: str = "gemm", *, stream: int = 7, **more: Any
    ) -> Trace:
        """A kernel (a copy, by its name) and the call that launched it."""
        self._correlation += 1
        correlation, tid = more.pop("correlation", self._correlation), more.pop("tid", self.pid)
        calls = "cudaMemcpyAsync" if name.startswith("Mem") else "cudaLaunchKernel"
        self.add("cuda_runtime", calls, *call, self.pid, tid, correlation=correlation)
        return self.work(work, name, stream=stream, correlation=correlation, **more)

    def work(self, span: tuple[float, float], name: str = "gemm", *, stream: int = 7, **args: Any) -> Trace:
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        return self.add(category, name, *span, self.device, stream, device=self.device, stream=stream, **args)

    def text(self, **how: Any) -> str:
        return json.dumps({**self.top, "traceEvents": self.events}, **how)

    def written(self, file: Path, **how: Any) -> Path:
        file.write_text(self.text(**how))
        return file

    def read(self, folder: Path) -> Profile:
        return read_chrome_json(self.written(folder / "trace.json"))

    def joined(self, folder: Path) -> Profile:
        return join_profile(self.read(folder))


def classes(joined: Profile, number: int) -> dict[str, float]:
    """Exclusive microseconds of the classes of a step, of all lanes."""
    out: dict[str, float] = defaultdict(float)
    for row in joined["breakdown"].to_pylist():
        if row["kind"] == "step" and row["number"] == number and row["exclusive_ps"]:
            out[row["class"]] += row["exclusive_ps"] / US
    return dict(out)


def windows(joined: Profile) -> dict[int, tuple[float, float]]:
    """Per step number its window in microseconds since the profile's first event."""
    numbers = joined["steps"]["number"].to_pylist()
    return {
        numbers[row["step"]]: (row["start_ps"] / US, row["end_ps"] / US)
        for row in joined["windows"].to_pylist()
        if row["kind"] == "step"
    }


def codes(profile: Profile) -> dict[str, int]:
    """Count per code of the diagnostics."""
    return {row["code"]: row["count"] for row in profile["diagnostics"].to_pylist()}
