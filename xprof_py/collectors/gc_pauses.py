"""Garbage collections of Python as spans of kind GC: pauses that no annotation of the program shows."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from typing import Any

from xprof_py import _native

# schema.Kind.GC, which the SDK does not import; a test holds the two together.
GC_KIND = 8
LEAST_PAUSE_NS = 100_000
"""Shorter collections come by the thousand and explain nothing: they are counted, not recorded."""

OWN_THREADS = "xprof_py"
"""How the names of this package's threads begin."""


class GcPauses:
    """Listens to the collector through ``gc.callbacks``. ``pauses`` and ``pause_ns`` count all collections."""

    def __init__(self) -> None:
        self._began_ns = 0
        self.pauses = 0
        self.recorded = 0
        self.pause_ns = 0

    def start(self) -> None:
        """Listen from now on."""
        gc.callbacks.append(self._heard)

    def stop(self) -> None:
        """Stop listening; harmless where nothing listens."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, details: dict[str, Any]) -> None:
        """Called by the collector on the thread that it stopped. Collections do not overlap."""
        if phase == "start":
            self._began_ns = time.monotonic_ns()
        elif self._began_ns:
            pause_ns = time.monotonic_ns() - self._began_ns
            self._began_ns = 0
            self.pauses += 1
            self.pause_ns += pause_ns
            # A pause that falls on a thread of the capture's own is no work of the program's threads.
            if pause_ns >= LEAST_PAUSE_NS and not threading.current_thread().name.startswith(OWN_THREADS):
                collected = details.get("collected", 0)
                _native.record_past("gc", GC_KIND, pause_ns, generation=details["generation"], collected=collected)
                self.recorded += 1
