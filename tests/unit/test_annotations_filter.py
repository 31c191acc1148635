"""set_filter leaves out what it is asked to, and nothing else, whenever it is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xprof_py import _native
from xprof_py.annotations import checkpoint, counter, input_wait, mark, set_filter, step, trace
from xprof_py.collectors.host import HostRecorder
from xprof_py.config import Settings
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


CAPTURE = """
import sys
from xprof_py import capture, mark, set_filter, step, trace
if sys.argv[2] != "-":
    set_filter(level=int(sys.argv[2]))
def use(where):
    for level in (1, 2, 3):
        with trace(f"{where} {level}", level=level):
            pass
    mark(f"{where} io", category="io")
    mark(f"{where} net", category="net")
with capture(sys.argv[1], xla=False, stacks=False):
    with step(0):
        use("in")
with capture(sys.argv[1] + "2", xla=False, stacks=False):
    use("again")
"""


@pytest.mark.parametrize(
    ("settings", "before", "kept"),
    [
        ({}, "-", ["1", "2", "3", "io", "net"]),
        ({}, "1", ["1", "io", "net"]),
        ({"LEVEL": "2"}, "-", ["1", "2", "io", "net"]),
        ({"LEVEL": "2"}, "1", ["1", "2", "io", "net"]),
        ({"CATEGORIES": "io, gpu"}, "1", ["1", "2", "3", "io"]),
        ({"LEVEL": "1", "CATEGORIES": "net"}, "-", ["1", "net"]),
    ],
)
def test_the_settings_of_a_capture_filter_while_it_records(
    tmp_path: Path, settings: dict[str, str], before: str, kept: list[str]
) -> None:
    environment = {**os.environ, **{f"XPROF_PY_{name}": value for name, value in settings.items()}}
    command = [sys.executable, "-c", CAPTURE, str(tmp_path / "run"), before]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for run, where in (("run", "in"), ("run2", "again")):
        (shard,) = (tmp_path / run / "shards").glob("*.xpr")
        names = read_shard(shard)["events"]["name"].to_pylist()
        assert [name for name in names if name.startswith(where)] == [f"{where} {what}" for what in kept]
        (document,) = (tmp_path / run / "run").glob("*.json")
        said = json.loads(document.read_text(encoding="utf-8"))["capture"]
        assert (said["level"] is not None, said["categories"] is not None) == (
            "LEVEL" in settings,
            "CATEGORIES" in settings,
        )


def test_the_filter_of_the_settings_ends_with_the_capture() -> None:
    """The program's own is in force again, but for one that it set meanwhile."""
    settings = replace(Settings(), level=2, categories=("io",))
    for during in (None, 7):
        set_filter(level=5)
        recorder = HostRecorder(settings)
        with pytest.raises(FileNotFoundError):
            recorder.start("/nowhere/x.xpr")
        with tempfile.TemporaryDirectory() as folder:
            recorder.start(f"{folder}/x.xpr")
            assert _native.set_filter(2, ["io"]) == (2, frozenset(["io"]))
            if during is not None:
                set_filter(level=during)
            recorder.stop(5.0)
        assert _native.set_filter(None, None) == (5 if during is None else during, None)


@pytest.mark.parametrize(
    ("level", "categories", "error", "said"),
    [
        ("1", None, TypeError, "level: a whole number or None, not '1'"),
        (1.5, None, TypeError, "level: a whole number or None, not 1.5"),
        (True, None, TypeError, "level: a whole number or None, not True"),
        (2**63, None, ValueError, "does not fit 64 bits"),
        (None, "io", TypeError, "a list of texts, not one text"),
        (None, ["io", 3], TypeError, "categories: a list of texts, and 3 is none"),
        (None, [b"io"], TypeError, "categories: a list of texts, and b'io' is none"),
    ],
)
def test_a_filter_that_makes_no_sense_is_an_error_and_changes_nothing(
    level: Any, categories: Any, error: type[Exception], said: str
) -> None:
    set_filter(2, ["net"])
    with pytest.raises(error, match=said):
        set_filter(level, categories)
    assert _native.set_filter(None, None) == (2, frozenset({"net"}))


def test_a_level_or_category_that_makes_no_sense_is_told_once_and_recorded() -> None:
    program = """
import tempfile, warnings
from xprof_py import _native, set_filter, trace, mark
from xprof_py.postprocess.readers.shard import read_shard
path = tempfile.mkdtemp() + "/x.xpr"
_native.recorder_start(path)
set_filter(1, ["io"])
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(3):
        with trace("a", level="high"): pass
        with trace("b", category=7): pass
        mark("c", level=1.5)
        mark("d", level=None, category=None)
_native.recorder_stop()
print(*[str(one.message) for one in said], sep="\\n")
print(sorted(read_shard(path)["events"]["name"].to_pylist()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == [
        "level= of a span or mark wants a whole number, not 'high': the filter passes such ones, whatever it is set to",
        "category= of a span or mark wants a text, not 7: the filter passes such ones, whatever it is set to",
        str(sorted(["a", "b", "c", "d"] * 3)),
    ]
