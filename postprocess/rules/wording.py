"""What sentences are made of: the words for classes; numbers of three digits, with a unit that a person would use."""

from __future__ import annotations

from typing import Final

CLASS_WORDS: Final = {
    "compute": "compute",
    "memory": "memory-bound",
    "collective": "collective",
    "host_device": "host–device copy",
    "compiler": "compiler",
    "input": "input",
    "checkpoint": "checkpoint",
    "host": "host work",
    "device_wait": "device wait",
    "no_work": "no work",
    "unknown": "unknown",
}
"""Class of the breakdown -> what a person reads."""


def duration(seconds: float) -> str:
    """``37.8 ms``, ``2.46 s``, ``850 µs``."""
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs"), (1e9, "ns")):
        if seconds * scale >= 1 or unit == "ns":
            value = seconds * scale
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    raise AssertionError("unreachable: ns takes every value")


def times(count: int) -> str:
    """``once``, ``twice``, ``41 times``."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def counted(count: int, one: str, many: str) -> str:
    """``1 checkpoint``, ``8 checkpoints``."""
    return f"{count} {one if count == 1 else many}"


def byte_rate(bytes_per_s: float) -> str:
    """``1.25 GB/s``, ``850 MB/s``: of 1e9 and 1e6 bytes, as links are sold."""
    for scale, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_s >= scale:
            value = bytes_per_s / scale
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{bytes_per_s:.0f} B/s"
