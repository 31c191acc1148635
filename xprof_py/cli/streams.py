"""Standard output and standard error that say their names in their errors and never fail after the command is over."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

STANDARD_OUTPUT = "standard output"
STANDARD_ERROR = "standard error"


class _NamedStream:
    """A text stream whose OSErrors carry its name as their file name, as those of opened files do."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self._failed: OSError | None = None

    def write(self, text: str) -> int:
        with self._naming():
            return self._stream.write(text)

    def flush(self) -> None:
        if self._failed is not None:
            # argparse swallows what its writing raised.
            raise self._failed
        with self._naming():
            self._stream.flush()

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # What could not be written stays in the buffer: at the interpreter's end it would fail again, with a
            # traceback and exit code 120.
            discard(self._stream)
            self._failed = OSError(error.errno, error.strerror or str(error), self._name)
            raise self._failed from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def named_streams() -> Iterator[None]:
    """Around a command: its output is flushed at the end, and a failure of either stream is an OSError that names it.

    A closed standard output is such an error at once: the first file that the command opens would get its descriptor. A
    closed standard error swallows the messages.
    """
    if sys.stdout is None:
        raise OSError(errno.EBADF, "is closed", STANDARD_OUTPUT)
    with contextlib.ExitStack() as streams:
        error = sys.stderr
        if error is None:
            error = streams.enter_context(open(os.devnull, "w", encoding="utf-8"))
        streams.enter_context(contextlib.redirect_stderr(cast(TextIO, _NamedStream(error, STANDARD_ERROR))))
        output = cast(TextIO, _NamedStream(sys.stdout, STANDARD_OUTPUT))
        streams.enter_context(contextlib.redirect_stdout(output))
        try:
            yield
        except SystemExit:
            # argparse after --help: its text may still be in the buffer.
            output.flush()
            raise
        except BaseException:
            # What ended the command is the news, not that its output could not be flushed either.
            with contextlib.suppress(OSError):
                output.flush()
            raise
        output.flush()


def discard(stream: TextIO) -> None:
    """Send what is written to ``stream`` from now on, and what it still holds, nowhere."""
    with contextlib.suppress(OSError, ValueError):
        target = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, target)
        os.close(null)


def tell(message: str) -> None:
    """One line on standard error, if anybody can be told there."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"xprof-py: {message}\n")
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)
