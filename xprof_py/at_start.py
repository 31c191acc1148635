"""Recording a program that does not know of it: what `xprof-py run` has every recorded process do as it starts.

The capture stays open until the interpreter ends, or SIGTERM comes. XLA's profiler begins once the program has imported
JAX and brought its devices up, as in any capture; a program without annotations has no step to notice that at, so the
import itself is noticed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from types import FrameType
from typing import Any

from xprof_py.imports import after_import
from xprof_py.injection import XLA_RANGES_VARIABLE
from xprof_py.session import capture, collects, end_open_capture, try_xla_now

SIGTERM_PATIENCE_S = 20.0
"""How long SIGTERM waits for the capture's end: schedulers send SIGKILL 30 s after it."""


def open_capture(text: str, again: bool = False) -> None:
    """Open the capture that ``text`` describes, until the interpreter ends.

    Args:
        text: JSON: ``path``, and other arguments of :func:`xprof_py.capture` by name.
        again: this process has replaced itself and was being recorded before: its files make place.

    Raises:
        UsageError, CaptureError: as capture does; the caller lets the program run on.
    """
    told: dict[str, Any] = json.loads(text)
    if told.get("steps") is not None:
        told["steps"] = tuple(told["steps"])
    if again:
        told["overwrite"] = True
    backend = told.get("backend")
    capture(told.pop("path"), **told).__enter__()
    if backend != "cupti" and not collects("cuda"):
        # Then the devices are XLA's profiler's, which names their operations only while XLA's ranges are its own. XLA
        # asks for a domain once, when it is loaded, which is later than this.
        os.environ.setdefault(XLA_RANGES_VARIABLE, "0")
    after_import("jax", try_xla_now)
    _end_on_sigterm()


def _end_on_sigterm() -> None:
    """Have SIGTERM end the capture first, where the program leaves it to the system: it ends by it all the same."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    pid = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        # It may come twice: to the whole group, and passed on by `xprof-py run`.
        signal.signal(number, signal.SIG_IGN)
        try:
            if os.getpid() == pid:
                # Not here: what this interrupted may hold a lock that ending needs, and is not going on meanwhile.
                ending = threading.Thread(target=end_open_capture, args=(KeyboardInterrupt,), daemon=True)
                ending.start()
                ending.join(SIGTERM_PATIENCE_S)
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGTERM, end)
