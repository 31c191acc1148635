"""The recorder of this package: annotations of all threads into the shard."""

from __future__ import annotations

from typing import Any

from xprof_py import _native
from xprof_py.config import Settings


class HostRecorder:
    """Starts and stops the recorder of ``_native`` for one shard file."""

    def __init__(self, settings: Settings, window_s: float = 0.0) -> None:
        """Args: ``window_s``: a flight recorder keeps so many last seconds, 0: everything."""
        self._options: dict[str, Any] = {
            "budget_bytes": settings.budget_bytes,
            "ring_bytes": settings.ring_bytes,
            "rings_in_memory": settings.rings_in_memory,
            "window_s": window_s,
        }
        self._filter: tuple[int | None, frozenset[str] | None] = (
            settings.level,
            None if settings.categories is None else frozenset(settings.categories),
        )
        self._filter_before: tuple[int | None, frozenset[str] | None] | None = None
        self.running = False

    def start(self, shard_path: str) -> None:
        """Record into ``shard_path``.

        Raises:
            OSError: the file cannot be created.
            RuntimeError: something else in this process is recording already.
        """
        # Before the first event: a span is looked at as it begins.
        if self._filter != (None, None):
            self._filter_before = _native.set_filter(*self._filter)
        try:
            _native.recorder_start(shard_path, **self._options)
        except BaseException:
            self._restore_filter()
            raise
        self.running = True

    def stop(self, timeout_s: float) -> dict[str, Any]:
        """Stop and return the recorder's totals; ``error`` in them says what the disk did not take."""
        self.running = False
        totals: dict[str, Any] = _native.recorder_stop(timeout_s)
        self._restore_filter()
        return totals

    def _restore_filter(self) -> None:
        """Put the program's filter back, unless it set another one while the settings' was in force."""
        if self._filter_before is None:
            return
        before, self._filter_before = self._filter_before, None
        found = _native.set_filter(*before)
        if found != self._filter:
            _native.set_filter(*found)
