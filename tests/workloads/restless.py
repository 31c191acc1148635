"""A thread that never rests, and looks at it that come as fast as they can: every stack must be one that can be.

    python restless.py RUN_DIR STACKS

It ends when that many looks found another stack than the look before, after 10 s at the latest.

Which function may call which is known (CALLERS of tests/integration/test_frames_from_memory.py), and what is made with
``exec`` says its number in its file, its name and its line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

from xprof_py import _native, capture

DEPTH = 300


# Two pairs that lie at the same addresses in turn.
def left() -> int:
    return left_leaf()


def left_leaf() -> int:
    return 1


def right() -> int:
    return right_leaf()


def right_leaf() -> int:
    return 2


def pairs() -> None:
    for _ in range(200):
        left()
        right()


def numbers() -> Iterator[int]:
    for _ in range(50):
        yield number_leaf()


def more_numbers() -> Iterator[int]:
    yield from numbers()


def number_leaf() -> int:
    return sum(range(2000))


def generators() -> int:
    total = 0
    for number in more_numbers():
        total += number
    return total


def by_key(value: int) -> int:
    return key_leaf(value)


def key_leaf(value: int) -> int:
    return -value


def through_c() -> None:
    sorted(range(50), key=by_key)


def fall(depth: int) -> int:
    return fall(depth - 1) if depth else bottom()


def bottom() -> int:
    return sum(range(100))


def throws() -> None:
    raise ValueError


def exceptions() -> None:
    for _ in range(50):
        with suppress(ValueError):
            throws()


class Dying:
    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        final_leaf()


def final_leaf() -> None: ...


def finalizers() -> None:
    for _ in range(20):
        Dying()
    gc.collect(0)


async def awaited() -> None:
    await asyncio.sleep(0)


async def ticks() -> AsyncIterator[int]:
    for tick in range(10):
        await awaited()
        yield tick


async def coroutine() -> None:
    async for _ in ticks():
        left()


def coroutines() -> None:
    asyncio.run(coroutine())


def made_code(number: int) -> None:
    source = "\n" * (number % 50) + f"def made_{number}(leaf):\n    return leaf()\n"
    space: dict[str, Any] = {}
    exec(compile(source, f"made_{number}.py", "exec"), space)
    made = space[f"made_{number}"]
    for _ in range(20):
        made(right_leaf)


def restless(ended: threading.Event, cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    number = 0
    while not ended.is_set():
        pairs()
        generators()
        through_c()
        fall(number % DEPTH)
        exceptions()
        finalizers()
        if number % 7 == 0:
            coroutines()
        made_code(number)
        number += 1


def brief() -> None:
    left()


def main() -> None:
    run, wanted = sys.argv[1], int(sys.argv[2])
    sys.setrecursionlimit(5000)
    # Each on a CPU of its own, as far as there are two: else a look finds the thread stopped.
    first, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(others) or {first})
    totals = {"read": 0, "changed": 0, "torn": 0, "threads": 0, "cost_ns": 0}
    with capture(run, xla=False, stacks=False):
        ended = threading.Event()
        thread = threading.Thread(target=restless, args=(ended, first))
        thread.start()
        until = time.monotonic() + 10
        while totals["changed"] < wanted and time.monotonic() < until:
            look_at(thread, 20_000, totals)
        ended.set()
        thread.join()
        for _ in range(500):
            thread = threading.Thread(target=brief)
            thread.start()
            look_at(thread, 50, totals)
            totals["threads"] += 1
    print(json.dumps(totals))


def look_at(thread: threading.Thread, looks: int, totals: dict[str, int]) -> None:
    try:
        found = _native.sampler_trial(thread.ident or 0, looks)
    except RuntimeError:
        return  # it has ended
    for name in ("read", "changed", "torn", "cost_ns"):
        totals[name] += found[name]


if __name__ == "__main__":
    main()
