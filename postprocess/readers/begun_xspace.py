"""An XSpace that a thread reads and decodes before its reader asks for it: while the reader is still being imported.

Importing numpy, Arrow and the analyses takes as long as decoding some millions of events. Which file is meant is a
guess from the paths that a person named; a wrong one costs time, and a result that nobody takes. Whatever goes wrong
here goes wrong again where the file is read, and is told there.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from xprof_py import _native
from xprof_py.postprocess.readers.column_memory import Content, bound, read_content
from xprof_py.postprocess.readers.workers import WORTH_A_WORKER_BYTES, slice_count, worker_count

_ENDINGS = (".xplane.pb", ".xspace.pb")
_GZIP_MAGIC = b"\x1f\x8b"


def begin(paths: Sequence[str | os.PathLike[str]], workers: int | None) -> BegunXSpace | None:
    """Begin with the one large XSpace that ``paths`` name; None where there is none, or only one worker for it."""
    if len(paths) != 1 or not os.fspath(paths[0]):
        return None
    path = Path(paths[0])
    try:
        if path.is_dir():
            found = [file for pattern in ("*", "plugins/profile/*/*") for file in path.glob(pattern)]
            found = [file for file in found if file.name.endswith(_ENDINGS)]
            if len(found) != 1:
                return None
            path = found[0]
        status = path.stat()
    except OSError:
        return None
    if not path.name.endswith(_ENDINGS) or not stat.S_ISREG(status.st_mode):
        return None
    if status.st_size < WORTH_A_WORKER_BYTES or worker_count(workers, status.st_size) < 2:
        return None
    bound()
    return BegunXSpace(path, worker_count(workers, status.st_size))


class BegunXSpace:
    """One file on its way to columns, in a thread of its own. ``take`` gives them, once."""

    def __init__(self, path: Path, threads: int) -> None:
        self._path, self._threads = path, threads
        self._content: Content = b""
        self._stamp: tuple[int, ...] = ()
        self._slices: _native.XSpaceSlices | None = None
        self._left: Iterator[int] = iter(())
        self._cut = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            with self._path.open("rb", buffering=0) as opened:
                self._stamp = _stamp(os.fstat(opened.fileno()))
                self._content = read_content(opened)
            if memoryview(self._content)[:2] == _GZIP_MAGIC:
                return
            slices = _native.XSpaceSlices(self._content, slice_count(len(self._content), self._threads))
            self._left = iter(range(len(slices)))
            self._slices = slices
        except (OSError, MemoryError):
            return
        finally:
            self._cut.set()
        self._read(slices)

    def _read(self, slices: _native.XSpaceSlices) -> None:
        for index in self._left:
            slices.read(index)

    def take(self, path: Path) -> tuple[Content, _native.XSpaceSlices] | None:
        """(content, its slices, all of them read) of ``path``; None where that is another file, or changed meanwhile.

        The calling thread helps to decode.
        """
        if not path.exists() or not self._path.samefile(path):
            return None
        self._cut.wait()
        content, slices = self._content, self._slices
        self._content, self._slices = b"", None
        if slices is None or _stamp(path.stat()) != self._stamp:
            return None
        self._read(slices)
        self._thread.join()
        return content, slices


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
