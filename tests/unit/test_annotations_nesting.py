"""Any program of spans, threads and interleaved tasks, compared with a model in plain Python."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from xprof_py import _native
from xprof_py.annotations import mark, step, trace
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.shard import read_shard

# A node is (name, children, how it ends); what a program did is the list of its spans in order of their start.
Node = tuple[str, list[Any], str]
NAMES = st.sampled_from(["a", "b", "c"]) | st.text(max_size=5).filter(
    lambda s: not any("\ud800" <= c <= "\udfff" for c in s)
)
NODES: st.SearchStrategy[Node] = st.recursive(
    st.tuples(NAMES, st.just([]), st.sampled_from(["end", "raise", "mark"])),
    lambda inner: st.tuples(NAMES, st.lists(inner, max_size=4), st.sampled_from(["end", "raise", "step", "call"])),
    max_leaves=20,
)


class PlannedError(Exception):
    pass


def run(node: Node, depth: int, model: list[tuple[str, int]]) -> None:
    """Runs a node and writes down (name, depth) of each event."""
    name, children, how = node
    if how == "mark":
        model.append((name, depth))
        mark(name)
        return

    def inside() -> None:
        for child in children:
            run(child, depth + 1, model)
        if how == "raise":
            raise PlannedError

    try:
        if how == "step":
            model.append((name, depth))
            with step(len(model), name=name):
                inside()
        elif how == "call":
            model.append((name, depth))
            trace(name)(inside)()
        else:
            model.append((name, depth))
            with trace(name):
                inside()
    except PlannedError:
        pass


def record(program: Any) -> Profile:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.xpr"
        _native.recorder_start(path)
        try:
            program()
        finally:
            _native.recorder_stop()
        return read_shard(path)


def with_depth(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """(name, depth) of one line's events, the depth by containment of their times."""
    found = []
    open_ends: list[int] = []
    for event in events:
        end = event["start_ps"] + event["duration_ps"]
        while open_ends and not (event["start_ps"] < open_ends[-1] or (event["start_ps"] == end == open_ends[-1])):
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], "an event crosses the end of the one around it"
        found.append((event["name"], len(open_ends)))
        open_ends.append(end)
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(NODES, max_size=5))
def test_nesting_is_what_the_program_did(program: list[Node]) -> None:
    model: list[tuple[str, int]] = []

    def go() -> None:
        for node in program:
            run(node, 0, model)

    profile = record(go)
    assert profile["events"]["name"].to_pylist() == [name for name, _ in model]
    # Where the clock ticked between any two events their nesting in time is the program's.
    stamps = profile["events"]["start_ps"].to_pylist()
    durations = profile["events"]["duration_ps"].to_pylist()
    if len(set(stamps)) == len(stamps) and all(d > 0 for d in durations):
        assert with_depth(profile["events"].to_pylist()) == model


@settings(max_examples=10, deadline=None)
@given(st.lists(st.lists(NODES, max_size=3), min_size=2, max_size=4))
def test_threads_do_not_mix(programs: list[list[Node]]) -> None:
    models: list[list[tuple[str, int]]] = [[] for _ in programs]

    def go(i: int) -> None:
        mark(f"thread {i}")
        for node in programs[i]:
            run(node, 0, models[i])

    def all_threads() -> None:
        threads = [threading.Thread(target=go, args=(i,)) for i in range(len(programs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    events = record(all_threads)["events"].to_pylist()
    lines = [[e["name"] for e in events if e["line"] == line] for line in range(len(programs))]
    assert sorted(lines) == sorted([f"thread {i}", *(n for n, _ in model)] for i, model in enumerate(models))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=2, max_size=5))
def test_interleaved_tasks_keep_their_own_times(tasks: list[list[int]]) -> None:
    """Each task enters nested spans and yields to the others in between; the model is the order of the loop's turns."""
    turns: dict[str, tuple[int, int]] = {}
    clock = 0

    def tick() -> int:
        nonlocal clock
        clock += 1
        mark(f"tick {clock}")
        return clock

    async def task(i: int, yields: list[int]) -> None:
        name = f"task {i}.{len(yields)}"
        with trace(name):
            began = tick()
            for _ in range(yields[0]):
                await asyncio.sleep(0)
            if yields[1:]:
                await task(i, yields[1:])
            turns[name] = (began, tick())

    async def main() -> None:
        await asyncio.gather(*(task(i, yields) for i, yields in enumerate(tasks)))

    events = record(lambda: asyncio.run(main()))["events"].to_pylist()
    at = {e["name"]: e["start_ps"] for e in events if e["name"].startswith("tick")}
    spans = [e for e in events if e["name"].startswith("task")]
    assert {e["name"] for e in spans} == set(turns)
    for event in spans:
        began, ended = turns[event["name"]]
        assert event["start_ps"] <= at[f"tick {began}"]
        assert event["start_ps"] + event["duration_ps"] >= at[f"tick {ended}"]
        if began > 1:
            assert event["start_ps"] >= at[f"tick {began - 1}"]
        if f"tick {ended + 1}" in at:
            assert event["start_ps"] + event["duration_ps"] <= at[f"tick {ended + 1}"]
