"""A shard's ticks on the axis of its host: from clock samples to a map of ticks to picoseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Note = Callable[[str, str, str, int, str], None]

MONOTONIC = 3
"""The kind of clock whose ticks are nanoseconds of CLOCK_MONOTONIC."""
# A clock that is steered gains or loses at most 500 ppm; what is more was a step.
_STEP_NS = 1_000_000
_STEER_PPM = 600
_FAR_PS = float(2**62)

U64 = np.dtype("<u8")


@dataclass(frozen=True)
class TickMap:
    """Ticks to picoseconds since the origin: linear between the clock samples, the outer pieces extended."""

    ticks: np.ndarray[Any, Any]
    at_ps: np.ndarray[Any, Any]
    ps_per_tick: np.ndarray[Any, Any]

    def to_ps(self, ticks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        piece = np.clip(np.searchsorted(self.ticks, ticks, side="right") - 1, 0, len(self.ps_per_tick) - 1)
        # A piece is about a second long: its ticks fit a double exactly, and the product is good to a nanosecond.
        distance = (ticks - self.ticks[piece]).view(np.int64).astype(np.float64)
        # Only a damaged event lies 50 days from the samples; it is kept within what the column can hold.
        distance_ps = np.clip(np.rint(distance * self.ps_per_tick[piece]), -_FAR_PS, _FAR_PS)
        at_ps: np.ndarray[Any, Any] = self.at_ps[piece] + distance_ps.astype(np.int64)
        return at_ps


@dataclass(frozen=True)
class RealtimeMap:
    """Stamps of CLOCK_REALTIME on the axis of a shard, from which steps of that clock are left out.

    One row per stretch between two steps: the stamps that can be of it reach from ``low_ns`` to ``high_ns``, and its
    axis begins at ``zero_ns``.
    """

    low_ns: Array
    high_ns: Array
    zero_ns: Array

    def to_ps(self, at_ns: Array) -> tuple[Array, Array]:
        """(picoseconds since the origin, whether another answer would fit as well) of each stamp.

        After a step back the clock says the same times again: the later stretch is taken, which was longer the truth.
        """
        at_ns = at_ns.astype(np.int64)
        last = np.zeros(len(at_ns), np.int64)
        fits = np.zeros(len(at_ns), np.int64)
        for stretch, (low, high) in enumerate(zip(self.low_ns.tolist(), self.high_ns.tolist(), strict=True)):
            inside = (at_ns >= low) & (at_ns <= high)
            last[inside] = stretch
            fits += inside
        return (at_ns - self.zero_ns[last]) * 1000, fits != 1


def realtime_map_of(clock: Sequence[Array]) -> RealtimeMap | None:
    """The map of a shard's clock samples (as tick_map_of takes them), None without any."""
    if not any(len(samples) for samples in clock):
        return None
    samples = np.concatenate(clock).view(U64).reshape(-1, 4)
    ticks, monotonic_ns, realtime_ns = samples[:, 0], samples[:, 1].astype(np.int64), samples[:, 2].astype(np.int64)
    highest = np.maximum.accumulate(ticks)
    keep = np.concatenate([[True], ticks[1:] > highest[:-1]])
    monotonic_ns, realtime_ns = monotonic_ns[keep], realtime_ns[keep]
    passed_ns, stepped = _steps(monotonic_ns, realtime_ns)
    cut = np.flatnonzero(stepped)
    first, last = np.append(0, cut + 1), np.append(cut, len(realtime_ns) - 1)
    # A step lies anywhere between the two samples around it: either side may reach as far as time passed.
    far = np.iinfo(np.int64)
    low_ns = np.append(far.min, realtime_ns[cut + 1] - passed_ns[cut])
    high_ns = np.append(realtime_ns[cut] + passed_ns[cut], far.max)
    jumped = realtime_ns[first[1:]] - realtime_ns[last[:-1]] - passed_ns[cut]
    return RealtimeMap(low_ns, high_ns, realtime_ns[0] + np.append(0, np.cumsum(jumped)))


def _steps(monotonic_ns: Array, realtime_ns: Array) -> tuple[Array, Array]:
    """(time passed, whether the system's clock was set) between each sample and the next."""
    passed_ns = np.diff(monotonic_ns)
    steered_ns = np.diff(realtime_ns - monotonic_ns)
    return passed_ns, np.abs(steered_ns) > _STEP_NS + passed_ns * _STEER_PPM // 1_000_000


def tick_map_of(clock: Sequence[Array], clock_kind: int, note: Note) -> tuple[int, TickMap | None]:
    """The origin (REALTIME ns at the first sample) and the map; None without two samples (one for MONOTONIC ticks).

    Args:
        clock: bytes of the shard's clock samples, in their order.
        clock_kind: of its header.
        note: takes (severity, code, place, count, message); told of steps of the system's clock.
    """
    if not any(len(samples) for samples in clock):
        return 0, None
    samples = np.concatenate(clock).view(U64).reshape(-1, 4)
    ticks = samples[:, 0].copy()
    monotonic_ns = samples[:, 1].astype(np.int64)
    realtime_ns = samples[:, 2].astype(np.int64)
    origin_ns = int(realtime_ns[0])
    highest = np.maximum.accumulate(ticks)
    keep = np.concatenate([[True], ticks[1:] > highest[:-1]])
    ticks, monotonic_ns, realtime_ns = ticks[keep], monotonic_ns[keep], realtime_ns[keep]
    if len(ticks) == 1:
        if clock_kind != MONOTONIC:
            return origin_ns, None
        return origin_ns, TickMap(ticks, np.zeros(1, np.int64), np.array([1000.0]))
    passed_ns, stepped = _steps(monotonic_ns, realtime_ns)
    steered_ns = np.diff(realtime_ns - monotonic_ns)
    for i in np.flatnonzero(stepped).tolist():
        place = f"{(int(monotonic_ns[i]) - int(monotonic_ns[0])) / 1e9:.3f} s"
        message = f"the system's clock was set by {int(steered_ns[i]) / 1e6:+.3f} ms; later times are on the old one"
        note("warning", "clock_stepped", place, 1, message)
    at_ps = np.concatenate([[0], np.cumsum(passed_ns + np.where(stepped, 0, steered_ns))]) * 1000
    return origin_ns, TickMap(ticks, at_ps, np.diff(at_ps) / np.diff(ticks.view(np.int64)))
