"""Threads that share the work on one large file.

What takes time there is C, numpy and Arrow, which release the interpreter's lock; nothing has to be carried from one
process to another. No result depends on how many there are, nor on which one did what.

The standard library alone: work begins here while numpy and Arrow are still being imported (begun_xspace.py).
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from xprof_py.postprocess.readers.begun_xspace import BegunXSpace

WORTH_A_WORKER_BYTES = 8 << 20
"""Input that takes about as long to analyse as a worker process takes to start."""

_SLICES_PER_THREAD = 4
"""More than one: the thread that imports joins in when it has done that."""
_SLICE_BYTES = 16 << 20
"""At most: with what becomes of them, so many bytes for each thread are in memory while a file is decoded."""

T = TypeVar("T")


def worker_count(asked: int | None, input_bytes: int) -> int:
    """How many workers so much input is worth: one per core and at most one per WORTH_A_WORKER_BYTES, if not told."""
    return asked or min(len(os.sched_getaffinity(0)), 1 + input_bytes // WORTH_A_WORKER_BYTES)


def slice_count(content_bytes: int, threads: int) -> int:
    """How many slices of a file ``threads`` decode."""
    return max(threads * _SLICES_PER_THREAD, -(-content_bytes // _SLICE_BYTES))


class Workers:
    """``count`` threads, the calling one included; ``begun``: a file whose decoding has begun already."""

    def __init__(self, count: int = 1, begun: BegunXSpace | None = None) -> None:
        self.count = count
        self.begun = begun

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """What the tasks return, in their order. Where some raise, the first one's error, when all have ended."""
        results: dict[int, T] = {}
        errors: dict[int, BaseException] = {}
        left = iter(range(len(tasks)))

        def work() -> None:
            # Two threads never get one number: the lock of the interpreter is held while an iterator advances.
            for place in left:
                try:
                    results[place] = tasks[place]()
                except BaseException as error:
                    errors[place] = error

        # In the caller's context: numpy's allocator is part of it (column_memory.py).
        contexts = [contextvars.copy_context() for _ in range(min(self.count, len(tasks)) - 1)]
        helpers = [threading.Thread(target=context.run, args=(work,)) for context in contexts]
        for helper in helpers:
            helper.start()
        work()
        for helper in helpers:
            helper.join()
        if errors:
            raise errors[min(errors)]
        return [results[place] for place in range(len(tasks))]


ALONE = Workers()
"""The calling thread."""
