"""Spans handed between threads, entered again, left twice or never, and generators resumed anywhere.

What is recorded is what a model in plain Python says.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from xprof_py import _native
from xprof_py.annotations import mark, step, trace
from xprof_py.postprocess.readers.shard import read_shard

THREADS = 3
OPERATIONS = st.tuples(
    st.sampled_from(["enter", "exit", "next", "close"]), st.integers(0, 2), st.integers(0, THREADS - 1)
)
Operation = tuple[str, int, int]


@dataclass
class Model:
    """Spans by the number of the operation that began and ended them, and the thread that ended them."""

    closed: list[tuple[str, int, int, int]] = field(default_factory=list)
    open: dict[str, int] = field(default_factory=dict)
    counted: int = 0
    entries: dict[str, list[int]] = field(default_factory=dict)
    depth: dict[str, int] = field(default_factory=dict)

    def enter(self, name: str, at: int) -> None:
        if not self.depth.get(name):
            self.entries[name] = []
        self.depth[name] = self.depth.get(name, 0) + 1
        self.entries[name].append(at)
        self.open.pop(name, None)
        if len(self.entries[name]) == 1:
            self.open[name] = at
        else:  # which exit belongs to which entry cannot be told: all of them are counted, none is recorded
            self.counted += 2 if len(self.entries[name]) == 2 else 1

    def exit(self, name: str, at: int, thread: int) -> None:
        if not self.depth.get(name):
            return
        self.depth[name] -= 1
        if name in self.open:
            self.closed.append((name, self.open.pop(name), at, thread))


@trace("generator")
def numbers() -> Generator[int, None, None]:
    yield 1
    yield 2


def play(operations: list[Operation], model: Model) -> None:
    """Performs each operation on its thread, one after the other, with a mark before it."""
    spans: list[Any] = [trace("a", n=1), step(7, name="b"), trace("c")]
    generators: dict[int, Any] = {}
    asked: dict[int, int] = {}
    workers = [ThreadPoolExecutor(1) for _ in range(THREADS)]
    try:
        for at, (what, which, thread) in enumerate(operations):
            name = "abc"[which]
            perform: Callable[[], Any]
            if what == "enter":
                perform = spans[which].__enter__
                model.enter(name, at)
            elif what == "exit":
                perform = _leave(spans[which])
                model.exit(name, at, thread)
            else:
                generator = generators.setdefault(which, numbers())
                key = f"generator {which}"
                if what == "next":
                    perform = _advance(generator)
                    asked[which] = asked.get(which, 0) + 1
                    if asked[which] == 1:
                        model.enter(key, at)
                    ends = asked[which] == 3
                else:
                    perform = generator.close
                    ends = 0 < asked.get(which, 0) < 3
                    asked[which] = 4
                if ends:
                    model.exit(key, at, thread)
            workers[thread].submit(_marked, at, perform).result()
        workers[0].submit(_marked, len(operations), int).result()
        # Kept until the recording is over: a generator that is dropped would end its span.
        model.keep = generators, spans  # type: ignore[attr-defined]
    finally:
        for worker in workers:
            worker.shutdown()


def _marked(at: int, perform: Callable[[], Any]) -> None:
    mark(f"before {at}")
    perform()


def _leave(span: Any) -> Callable[[], Any]:
    return lambda: span.__exit__(None, None, None)


def _advance(generator: Any) -> Callable[[], Any]:
    return lambda: next(generator, None)


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATIONS, max_size=25))
@example([("enter", 0, 0), ("exit", 0, 1)])
@example([("enter", 1, 0), ("enter", 1, 1), ("exit", 1, 0), ("exit", 1, 1), ("enter", 1, 2), ("exit", 1, 0)])
@example([("next", 0, 0), ("next", 1, 0), ("next", 0, 1), ("close", 1, 2), ("next", 0, 2)])
def test_spans_are_those_of_the_model(operations: list[Operation]) -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.xpr"
        _native.recorder_start(path)
        try:
            play(operations, model)
        finally:
            totals = _native.recorder_stop()
        profile = read_shard(path)
    assert totals["reentered"] == model.counted
    events = profile["events"].to_pylist()
    at = {int(e["name"].split()[1]): e["start_ps"] for e in events if e["name"].startswith("before")}
    lines = {
        operations[int(e["name"].split()[1])][2]: e["line"]
        for e in events
        if e["name"].startswith("before") and int(e["name"].split()[1]) < len(operations)
    }
    spans = [e for e in events if not e["name"].startswith("before")]

    def told(event: dict[str, Any]) -> tuple[Any, ...]:
        """What the model says of a span, from its times: the marks around its start and its end."""
        began = max(i for i, t in at.items() if t <= event["start_ps"])
        if event["duration_ps"] is None:
            return event["name"], began, None, None
        end = event["start_ps"] + event["duration_ps"]
        return event["name"], began, max(i for i, t in at.items() if t <= end), event["line"]

    expected: list[tuple[Any, ...]] = [(n.split()[0], a, b, lines[t]) for n, a, b, t in model.closed]
    expected += [(n.split()[0], a, None, None) for n, a in model.open.items()]
    assert sorted(map(repr, map(told, spans))) == sorted(map(repr, expected))
