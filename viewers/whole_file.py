"""Writing a result of one file to wherever a person points: a file, a link to one, a pipe, a device."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) so that a reader of a regular file never sees half of it.

    A regular file, or one that does not exist yet, is replaced by a finished one; where ``path`` is a symbolic link
    that is its target, and the link stays. What exists and is no regular file (a pipe, a terminal, /dev/null) cannot be
    replaced without destroying it and is written straight through. Missing parent folders are made.

    Raises:
        OSError: it cannot be written; what was there before stays, except in a pipe or device.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    target = Path(os.path.realpath(path))
    try:
        found = path.stat()
    except FileNotFoundError:
        mode = None
    else:
        if not (stat.S_ISREG(found.st_mode) and _is_same(target, found)):
            with path.open("w", encoding="utf-8") as opened:
                opened.write(text)
            return
        mode = stat.S_IMODE(found.st_mode)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        if mode is not None:
            partial.chmod(mode)
        partial.replace(target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def _is_same(path: Path, found: os.stat_result) -> bool:
    """Whether ``path`` is that file: a link of /proc to an open file that was deleted resolves to a name of no file."""
    try:
        return os.path.samestat(path.stat(), found)
    except OSError:
        return False
