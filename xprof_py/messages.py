"""Messages to the person who runs the program: warnings that can never become an exception inside their training."""

from __future__ import annotations

import contextlib
import sys
import warnings

from xprof_py.errors import XprofPyWarning


def warn(text: str) -> None:
    """Show ``text`` on stderr as an :class:`XprofPyWarning`; never raises.

    Under ``-W error`` the warning machinery would raise in the middle of somebody's training: then the text is
    written to stderr directly, since a profiler's remark is no reason to end a job.
    """
    try:
        # The place in this package that speaks would tell the reader nothing; the text says what it is about.
        warnings.warn_explicit(text, XprofPyWarning, "xprof_py", 0)
    except Exception:
        # stderr may be closed or full as well; then nobody can be told here, and the run file still holds the text.
        with contextlib.suppress(Exception):
            sys.stderr.write(f"xprof_py: {text}\n")
