"""Which step is slower than the ones before it: a pure machine, steps and times in, findings out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

KEPT_STEPS = 64
"""The running median is that of so many last steps of a name."""
LEAST_STEPS = 8
"""With fewer before it no step is called slow: the first ones compile and warm up."""
LEAST_EXCESS_NS = 10_000_000
"""A step of microseconds that was interrupted once is not worth a snapshot."""


@dataclass(frozen=True)
class SlowStep:
    """A step that took ``duration_ns`` where the median of the steps of its name before it was ``median_ns``."""

    name: str
    number: int
    duration_ns: int
    median_ns: int


class SlowSteps:
    """Finds outermost steps of a thread that take more than ``factor`` times the running median of their name, and at
    least LEAST_EXCESS_NS more. Not safe for several threads at once: the caller locks.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._open: dict[int, list[int]] = {}
        self._took: dict[str, deque[int]] = {}

    def entered(self, thread: int, now_ns: int) -> None:
        """Thread ``thread`` enters a step."""
        self._open.setdefault(thread, []).append(now_ns)

    def left(self, thread: int, name: str, number: int, now_ns: int) -> SlowStep | None:
        """Thread ``thread`` leaves step ``number`` of ``name``; the finding if that step was slow."""
        stack = self._open.get(thread)
        if not stack:
            # Recording began inside the step.
            return None
        began_ns = stack.pop()
        if stack:
            return None
        # A program may begin a thread per step: none is remembered that is in no step.
        del self._open[thread]
        duration_ns = now_ns - began_ns
        took = self._took.setdefault(name, deque(maxlen=KEPT_STEPS))
        median_ns = sorted(took)[len(took) // 2] if len(took) >= LEAST_STEPS else None
        took.append(duration_ns)
        if median_ns is None or duration_ns < median_ns + LEAST_EXCESS_NS or duration_ns <= self._factor * median_ns:
            return None
        return SlowStep(name, number, duration_ns, median_ns)
