"""The stack sampler: what the launching threads were doing where no annotation says so.

A thread of the native core reads the Python stacks of the threads that record steps or input spans (of the main thread
while there are none) up to 100 times a second, with the thread's CPU time since the last look. It reads them from
memory while the program runs, without the GIL; where that cannot be done, it takes the GIL. Its own cost is measured
while it runs and kept below 0.2 % of one core's time by looking less often.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

from xprof_py import _native

PERIOD_NS = 10_000_000
"""Usual time between two looks, where their cost allows it."""


def unavailable() -> str | None:
    """Why stacks cannot be sampled in this Python, None where they can."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "this Python runs without its global lock: another thread's frames cannot be read safely"
    return None


def takes_gil() -> str | None:
    """Why the sampler has to take the GIL for every look, None where it reads frames from memory.

    The calling thread's own frames are read both ways, a generator's and those around a call of C among them.
    """

    def compared(_: None) -> str | None:
        return _native.sampler_self_test()

    def in_between() -> Iterator[str | None]:
        yield from map(compared, [None])

    return next(in_between())


class StackSampler:
    """Starts and stops the sampler of ``_native``; the recorder runs before and after."""

    def __init__(self) -> None:
        self.running = False

    def start(self) -> str | None:
        """Sample from now on into the shard that is being recorded; returns what ``takes_gil`` says.

        Raises:
            RuntimeError: this Python cannot be sampled, or nothing records.
            OSError: the sampler's thread or its tables cannot be had.
        """
        reason = unavailable()
        if reason:
            raise RuntimeError(reason)
        main = threading.main_thread()
        if main.ident is None or main.native_id is None:
            raise RuntimeError("the main thread has no id")
        switch_ns = round(sys.getswitchinterval() * 1e9)
        reason = takes_gil()
        _native.sampler_start(main.ident, main.native_id, switch_ns, reason is not None, period_ns=PERIOD_NS)
        self.running = True
        return reason

    def stop(self) -> dict[str, Any]:
        """Stop and return the totals: looks, samples, cost_ns and so on; {} if nothing ran. Waits at most 2 s."""
        self.running = False
        totals: dict[str, Any] = _native.sampler_stop()
        return totals
