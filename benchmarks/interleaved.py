"""Time small statements against each other in one process, in an order that is shuffled every round.

A round runs a short chunk of every statement. Chunks are timed with the calling thread's CPU clock, so that time spent
descheduled does not count. What a loaded machine does to one statement it does to all of them within a round; so ratios
are taken within rounds and reported as their median with the 10th and 90th percentile. Nanoseconds are those of this
machine and this interpreter.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

CLOCK = time.CLOCK_THREAD_CPUTIME_ID
CHUNK_NS = 300_000
SMALLEST_CHUNK = 20
EMPTY = "empty loop"


@dataclass(frozen=True)
class Spread:
    """A median with the 10th and the 90th percentile of the same samples."""

    low: float
    middle: float
    high: float

    @staticmethod
    def of(samples: list[float]) -> Spread:
        ordered = sorted(samples)
        return Spread(ordered[len(ordered) // 10], median(ordered), ordered[-1 - len(ordered) // 10])


@dataclass(frozen=True)
class Case:
    """``statement`` is the body of a ``for i in ...`` loop; ``names`` is what it may use."""

    name: str
    statement: str
    names: dict[str, Any]


def compile_loop(case: Case) -> Callable[[range], int]:
    """A function that runs the statement for every i of a range and returns the CPU nanoseconds that it took."""
    body = "\n".join(f"        {line}" for line in case.statement.splitlines())
    source = (
        "def loop(numbers):\n"
        "    start = _clock(_which)\n"
        "    for i in numbers:\n"
        f"{body}\n"
        "    return _clock(_which) - start\n"
    )
    space = {**case.names, "_clock": time.clock_gettime_ns, "_which": CLOCK}
    exec(compile(source, f"<{case.name}>", "exec"), space)
    loop: Callable[[range], int] = space["loop"]
    return loop


def measure(
    cases: list[Case], rounds: int, between_rounds: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Nanoseconds of one execution of each case per round, the empty loop's own time of the same round taken off.

    Returns case name -> ``rounds`` samples. ``between_rounds`` runs untimed after every round.
    """
    loops = {case.name: compile_loop(case) for case in [Case(EMPTY, "pass", {}), *cases]}
    counts = {}
    for name, loop in loops.items():
        once = min(loop(range(64)) for _ in range(5)) / 64
        counts[name] = max(SMALLEST_CHUNK, int(CHUNK_NS / max(once, 1.0)))
        between_rounds()
    samples: dict[str, list[float]] = {case.name: [] for case in cases}
    order = list(loops)
    for _ in range(rounds):
        random.shuffle(order)
        spent = {name: loops[name](range(counts[name])) / counts[name] for name in order}
        for case in cases:
            samples[case.name].append(spent[case.name] - spent[EMPTY])
        between_rounds()
    return samples


def ratio(samples: dict[str, list[float]], ours: str, theirs: str) -> Spread:
    """How ours compares with theirs, round by round; below 1 ours is cheaper."""
    return Spread.of([a / b for a, b in zip(samples[ours], samples[theirs], strict=True) if b > 0])
