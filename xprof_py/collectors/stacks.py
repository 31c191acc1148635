"""The stack sampler: what the launching threads were doing where no annotation says so.

A thread of the native core reads the Python stacks of the threads that record steps or input spans (of the main thread
while there are none) up to 100 times a second, with the thread's CPU time since the last look. Its own cost is
measured while it runs and kept below 0.2 % of one core's time by looking less often.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from xprof_py import _native

PERIOD_NS = 10_000_000
"""Usual time between two looks, where their cost allows it."""


def unavailable() -> str | None:
    """Why stacks cannot be sampled in this Python, None where they can."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "this Python runs without its global lock: another thread's frames cannot be read safely"
    return None


class StackSampler:
    """Starts and stops the sampler of ``_native``; the recorder runs before and after."""

    def __init__(self) -> None:
        self.running = False

    def start(self) -> None:
        """Sample from now on into the shard that is being recorded.

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
        _native.sampler_start(main.ident, main.native_id, switch_ns, period_ns=PERIOD_NS)
        self.running = True

    def stop(self) -> dict[str, Any]:
        """Stop and return the totals: looks, samples, cost_ns and so on; {} if nothing ran. Waits at most 2 s."""
        self.running = False
        totals: dict[str, Any] = _native.sampler_stop()
        return totals
