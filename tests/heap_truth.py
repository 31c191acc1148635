"""XLA's own simulation of its heaps, replayed in the plainest way: the truth for the lives of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from xprof_py.postprocess.hlo.liveness import Lives

Trace = tuple[int, int]
"""(program, trace of it)."""


def simulated_peaks(tables: Mapping[str, Any]) -> dict[Trace, int]:
    """Most bytes that each heap held: a shared place counts once, as the buffer that took it first."""
    size = tables["hlo_buffers"]["bytes"].to_pylist()
    peaks: dict[Trace, int] = {}
    held: dict[Trace, dict[int, set[int]]] = {}
    place: dict[int, int] = {}
    for event in tables["hlo_heap_events"].to_pylist():
        trace, buffer = (event["program"], event["trace"]), event["buffer"]
        places = held.setdefault(trace, {})
        if event["kind"] == "free":
            places[place[buffer]].discard(buffer)
        else:
            place[buffer] = place[event["shares_with"]] if event["kind"] == "share" else buffer
            places.setdefault(place[buffer], set()).add(buffer)
        peaks[trace] = max(peaks.get(trace, 0), sum(size[first] for first, users in places.items() if users))
    return peaks


def peaks_by_lives(tables: Mapping[str, Any], lives: Lives) -> dict[Trace, int]:
    """The same from the lives of the buffers in each trace, time by time."""
    buffers = tables["hlo_buffers"].to_pylist()
    in_trace: dict[Trace, set[int]] = {}
    for event in tables["hlo_heap_events"].to_pylist():
        in_trace.setdefault((event["program"], event["trace"]), set()).add(event["buffer"])
    peaks = {}
    for trace, members in in_trace.items():
        times = max(int(lives.end[b]) for b in members) + 1
        levels = np.zeros(times, np.int64)
        for place in sorted({(buffers[b]["allocation"], buffers[b]["offset"]) for b in members}):
            largest = np.zeros(times, np.int64)
            for b in members:
                if (buffers[b]["allocation"], buffers[b]["offset"]) == place:
                    own = largest[int(lives.start[b]) : int(lives.end[b]) + 1]
                    np.maximum(own, buffers[b]["bytes"], out=own)
            levels += largest
        peaks[trace] = int(levels.max())
    return peaks
