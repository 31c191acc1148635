"""The errors that xprof_py raises on purpose. A command prints their message and ends with their exit code."""

from __future__ import annotations


class XprofPyError(Exception):
    """Something the user can act on; the message says what and where. Exit code 1."""

    exit_code = 1


class BadInputError(XprofPyError):
    """A file that cannot be read: names the file, the place in it and the reason."""

    def __init__(self, file: str, place: str, reason: str) -> None:
        super().__init__(f"{file}: {place}: {reason}" if place else f"{file}: {reason}")
        self.file = file
        self.place = place
        self.reason = reason


class UsageError(XprofPyError):
    """A command or call used in a way that cannot work. Exit code 2."""

    exit_code = 2


class CaptureError(XprofPyError):
    """A capture that could not start as asked. Raised before the user's block runs, never after."""


class XprofPyWarning(UserWarning):
    """Something went less well than asked while a program is being recorded; the program itself goes on."""
