"""A progress bar on standard error: only on a terminal, and only for what takes longer than a second."""

from __future__ import annotations

import contextlib
import sys
import time
from types import TracebackType

SHOWN_AFTER_S = 1.0
REDRAWN_EVERY_S = 0.1
_WIDTH = 30


class ProgressBar:
    """``with ProgressBar() as bar: bar.show("reading", 3, 16)``. The line is gone at the end."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._drawn = 0.0

    def __enter__(self) -> ProgressBar:
        return self

    def show(self, what: str, done: int, of: int) -> None:
        """Draw that ``done`` of ``of`` are done, if it is time to."""
        now = time.monotonic()
        if now - self._begun < SHOWN_AFTER_S or (now - self._drawn < REDRAWN_EVERY_S and done < of):
            return
        if sys.stderr is None or not sys.stderr.isatty():
            return
        self._drawn = now
        filled = _WIDTH * done // max(of, 1)
        self._write(f"\r\x1b[K{what:10} {'#' * filled}{'.' * (_WIDTH - filled)} {done}/{of}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        # A terminal that has gone away ends no analysis.
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
