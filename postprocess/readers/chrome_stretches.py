"""The text of a trace in JSON to columns, by several threads: the same columns, numbers and errors as by one.

Threads take turns at three things: one unpacks, which fills stretches of the text; each may scan a stretch that is
full; one joins those that are scanned, in the order of the text (native/decode/chrome_slices.h). A few stretches are in
memory at a time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from xprof_py import _native
from xprof_py.postprocess.readers.chrome_text import Pieces
from xprof_py.postprocess.readers.workers import WORTH_A_WORKER_BYTES, Workers

_STRETCH_BYTES = 2 << 20
_STRETCHES_PER_THREAD = 2
_TRIES = 8
"""So many more stretches wrong about where an event begins than right: then no more are scanned ahead."""


def scan(pieces: Pieces, workers: Workers) -> dict[str, Any]:
    """The columns of a trace (ChromeScanner.finish). Raises BadInputError as ``pieces`` do, DecodeError."""
    if workers.count > 1 and pieces.about_bytes() >= WORTH_A_WORKER_BYTES:
        return scan_in_stretches(pieces, workers, _STRETCH_BYTES)
    scanner = _native.ChromeScanner()
    for piece in pieces:
        scanner.feed(piece)
    return scanner.finish()


def scan_in_stretches(pieces: Iterable[bytes], workers: Workers, stretch_bytes: int) -> dict[str, Any]:
    """The same, by all of the workers, in stretches of at least so many bytes."""
    stretches = _Stretches(pieces, stretch_bytes, _STRETCHES_PER_THREAD * workers.count)
    workers.run([stretches.work] * workers.count)
    return stretches.scanner.finish()


class _Stretches:
    """What is to be done, for any number of threads that do it."""

    def __init__(self, pieces: Iterable[bytes], stretch_bytes: int, at_once: int) -> None:
        self.scanner = _native.ChromeScanner()
        self._pieces = iter(pieces)
        self._at_once = at_once
        self._turn = threading.Condition()
        # Guarded by it; the stretch that is being filled belongs to the thread that fills.
        self._open: _native.ChromeStretch | None = _native.ChromeStretch(stretch_bytes)
        self._full: deque[_native.ChromeStretch] = deque()
        self._in_order: deque[_native.ChromeStretch] = deque()
        self._scanned: set[_native.ChromeStretch] = set()
        self._joined: deque[_native.ChromeStretch] = deque()
        self._fills = self._joins = self._failed = False
        self._tries = _TRIES

    def work(self) -> None:
        """Do what is to be done until nothing is left, or another thread has failed."""
        try:
            while (task := self._next()) is not None:
                task()
        except BaseException:
            with self._turn:
                self._failed = True
                self._turn.notify_all()
            raise

    def _next(self) -> Callable[[], None] | None:
        with self._turn:
            while not self._failed:
                if not self._joins and self._in_order and self._in_order[0] in self._scanned:
                    self._joins = True
                    return partial(self._join, self._in_order[0])
                if not self._fills and self._open is not None and len(self._in_order) < self._at_once:
                    self._fills = True
                    return partial(self._fill, self._open)
                if self._full:
                    return partial(self._scan, self._full.popleft(), ahead=self._tries > 0)
                if self._open is None and not self._in_order:
                    return None
                self._turn.wait()
            return None

    def _fill(self, stretch: _native.ChromeStretch) -> None:
        following, spare = None, self._joined.popleft() if self._joined else None
        for piece in self._pieces:
            following = stretch.hold(piece, spare)
            if following is not None:
                break
        with self._turn:
            self._full.append(stretch)
            self._in_order.append(stretch)
            self._open = following
            self._fills = False
            self._turn.notify_all()

    def _scan(self, stretch: _native.ChromeStretch, *, ahead: bool) -> None:
        if ahead:
            stretch.scan()
        with self._turn:
            self._scanned.add(stretch)
            self._turn.notify_all()

    def _join(self, stretch: _native.ChromeStretch) -> None:
        proven = self.scanner.join(stretch)
        with self._turn:
            self._tries = min(self._tries + 1, _TRIES) if proven else self._tries - 1
            self._joined.append(self._in_order.popleft())
            self._scanned.remove(stretch)
            self._joins = False
            self._turn.notify_all()
