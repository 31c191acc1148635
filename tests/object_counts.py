"""How many Python objects something keeps alive at its peak: memory must grow by columns, not by objects."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any


def peak_objects(work: Callable[[], Any]) -> int:
    """The most memory blocks of the interpreter that ``work`` had at once, above those before it.

    A thread looks as often as the interpreter lets it, once in ten microseconds of bytecode or so: a list of a million
    objects cannot hide between two looks. Columns are one block each, whatever their length.
    """
    work()  # what is made once and stays (imports, caches) is not what is asked
    gc.collect()
    before, highest, stop = sys.getallocatedblocks(), 0, False

    def look() -> None:
        nonlocal highest
        while not stop:
            highest = max(highest, sys.getallocatedblocks())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        kept = work()
        highest = max(highest, sys.getallocatedblocks())
    finally:
        stop = True
        watcher.join()
        sys.setswitchinterval(interval)
    del kept
    return highest - before
