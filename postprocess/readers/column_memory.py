"""Memory of columns while a profile is read and analysed: bounded, whatever the size of the files.

Columns beyond a budget, the decoders' and numpy's, lie in files without a name (native/columns/memory.h). It takes as
long to fill one as memory never touched before, and what is not in use may leave memory at any time.
XPROF_PY_COLUMNS_MB is the budget of one process, 256 by default; XPROF_PY_COLUMNS_DIR the folder of the files, by
default the first of TMPDIR, /var/tmp and /tmp that is on a disk.

The standard library alone: work begins here while numpy is still being imported (begun_xspace.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

from xprof_py import _native
from xprof_py.errors import UsageError

BUDGET, FOLDER = "XPROF_PY_COLUMNS_MB", "XPROF_PY_COLUMNS_DIR"
_BUDGET_MB = 256
_LARGE_BYTES = 8 << 20

Content = bytes | _native.Bytes
"""What a file holds: a buffer."""


def bound() -> None:
    """Bound the memory of columns as the environment says. Raises UsageError where that is no amount or no folder."""
    stated = os.environ.get(BUDGET, "")
    if stated and not (stated.isascii() and stated.isdigit() and len(stated) < 13):
        raise UsageError(f"{BUDGET}={stated!r}: wanted is a number of megabytes")
    folder = os.environ.get(FOLDER, "")
    if folder and not os.path.isdir(folder):
        raise UsageError(f"{FOLDER}={folder!r} is no folder")
    folders = [folder] if folder else [os.environ.get("TMPDIR", ""), "/var/tmp", "/tmp"]
    _native.set_column_budget((int(stated) if stated else _BUDGET_MB) << 20, [name for name in folders if name])


@contextmanager
def bounded() -> Iterator[None]:
    """The same for what is made in this block, numpy's arrays included. Raises UsageError."""
    bound()
    before = _native.numpy_in_columns(None)
    try:
        yield
    finally:
        _native.numpy_in_columns(before)
        _native.give_back_columns()


def refused() -> str | None:
    """Why columns that should lie in files are in memory, None where none is."""
    why: str | None = _native.column_memory()["refused"]
    return why


def read_content(opened: FileIO) -> Content:
    """All that an open file holds; in the memory of columns where that is much. Raises OSError."""
    expected = os.fstat(opened.fileno()).st_size
    if expected < _LARGE_BYTES:
        return opened.read()
    content = _native.Bytes()
    content.read(opened.fileno(), expected)
    return content
