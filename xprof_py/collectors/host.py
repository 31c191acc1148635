"""The recorder of this package: annotations of all threads into the shard."""

from __future__ import annotations

from typing import Any

from xprof_py import _native


class HostRecorder:
    """Starts and stops the recorder of ``_native`` for one shard file."""

    def __init__(self, budget_bytes: int, ring_bytes: int, window_s: float = 0.0) -> None:
        """Args: ``budget_bytes``: of the shard; ``ring_bytes``: per thread; ``window_s``: what is kept, 0: all."""
        self._budget_bytes = budget_bytes
        self._ring_bytes = ring_bytes
        self._window_s = window_s
        self.running = False

    def start(self, shard_path: str) -> None:
        """Record into ``shard_path``.

        Raises:
            OSError: the file cannot be created.
            RuntimeError: something else in this process is recording already.
        """
        _native.recorder_start(
            shard_path, budget_bytes=self._budget_bytes, ring_bytes=self._ring_bytes, window_s=self._window_s
        )
        self.running = True

    def stop(self, timeout_s: float) -> dict[str, Any]:
        """Stop and return the recorder's totals; ``error`` in them says what the disk did not take."""
        self.running = False
        totals: dict[str, Any] = _native.recorder_stop(timeout_s)
        return totals
