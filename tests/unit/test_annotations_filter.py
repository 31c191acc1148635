"""set_filter leaves out what it is asked to, and nothing else, whenever it is called."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xprof_py import _native
from xprof_py.annotations import checkpoint, counter, input_wait, mark, set_filter, step, trace
from xprof_py.postprocess.readers.shard import read_shard


@pytest.fixture(autouse=True)
def _no_filter() -> Iterator[None]:
    yield
    set_filter()


def record(program: Any) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.xpr"
        _native.recorder_start(path)
        try:
            program()
        finally:
            totals = _native.recorder_stop()
        assert totals["reentered"] == totals["dropped"] == 0
        return [str(name) for name in read_shard(path)["events"]["name"].to_pylist()]


LEVELS = st.none() | st.integers(-3, 5) | st.just(2**70)
CATEGORIES = st.none() | st.sampled_from(["io", "net", "compute"])
EVENTS = st.tuples(st.sampled_from(["with", "decorator", "mark", "outer"]), LEVELS, CATEGORIES)
FILTERS = st.tuples(st.none() | st.integers(-3, 5), st.none() | st.sets(st.sampled_from(["io", "net", "gpu"])))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(FILTERS, st.lists(EVENTS, max_size=4)), max_size=4))
def test_any_events_under_any_filters(rounds: list[tuple[Any, list[Any]]]) -> None:
    expected = []

    def program() -> None:
        for (limit, chosen), events in rounds:
            set_filter(limit, chosen)
            for how, level, category in events:
                args = {k: v for k, v in (("level", level), ("category", category)) if v is not None}
                name = f"{len(expected)}"
                wanted = (limit is None or level is None or level <= limit) and (
                    chosen is None or category is None or category in chosen
                )
                expected.append(name if wanted else None)
                if how == "mark":
                    mark(name, **args)
                elif how == "decorator":
                    trace(name, **args)(lambda: None)()
                elif how == "outer":  # the filter changes while the span is open: its start decides
                    with trace(name, **args):
                        set_filter(-100, ())
                        set_filter(limit, chosen)
                else:
                    with trace(name, **args):
                        pass

    assert record(program) == [name for name in expected if name is not None]


def test_what_the_breakdown_rests_on_is_never_left_out() -> None:
    set_filter(0, ())

    def program() -> None:
        with step(1, name="step", level=9), input_wait("input", level=9), checkpoint("checkpoint", category="x"):
            counter("counter", 1)
            with trace("plain", layer=3):
                mark("mark")
            with trace("left out", level=1):
                mark("left out too", category="x")

    assert record(program) == ["step", "input", "checkpoint", "counter", "plain", "mark"]


def test_a_span_left_out_can_be_entered_again_like_any_other() -> None:
    set_filter(1)
    span = trace("deep", level=2)

    def program() -> None:
        for _ in range(2):
            with span:
                pass
        set_filter(2)
        with span:
            pass

    assert record(program) == ["deep"]


def test_misuse_is_said_and_changes_nothing() -> None:
    set_filter(1, ["io"])
    wrong: list[dict[str, Any]] = [{"level": "high"}, {"categories": "io"}, {"categories": 5}]
    for arguments in wrong:
        with pytest.raises(TypeError):
            set_filter(**arguments)

    def program() -> None:
        mark("a", level=2)
        mark("b", category="net")
        mark("c", level=1, category="io")

    assert record(program) == ["c"]
