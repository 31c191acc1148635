"""Messages to the person who runs the program: warnings that can never become an exception inside their training."""

from __future__ import annotations

import contextlib
import sys
import warnings
from types import FrameType

from xprof_py.errors import XprofPyWarning

# Frames of these are not the program's: it did not write the line that they would show.
_NOT_THE_PROGRAM = frozenset({"xprof_py", "threading", "contextlib", "jax", "jaxlib"})

_last_place = ("xprof_py", 0)


def warn(text: str) -> None:
    """Show ``text`` on stderr as an :class:`XprofPyWarning` at the program's line that led here; never raises.

    From a thread of this package's own no line of the program leads here: then it is the last one that did.

    Under ``-W error`` the warning machinery would raise in the middle of somebody's training: then the text is
    written to stderr directly, since a profiler's remark is no reason to end a job.
    """
    try:
        file, line = remember_place()
        warnings.warn_explicit(text, XprofPyWarning, file, line, module="xprof_py")
    except Exception:
        # stderr may be closed or full as well; then nobody can be told here, and the run file still holds the text.
        with contextlib.suppress(Exception):
            sys.stderr.write(f"xprof_py: {text}\n")


def remember_place() -> tuple[str, int]:
    """The file and line of the program that the calling thread is at, kept for warnings of threads that have none."""
    global _last_place
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).split(".", 1)[0] not in _NOT_THE_PROGRAM:
            _last_place = (frame.f_code.co_filename, frame.f_lineno)
            break
        frame = frame.f_back
    return _last_place
