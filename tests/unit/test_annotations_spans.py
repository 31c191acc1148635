"""trace, step and their kin as context managers: what is recorded is what the program did."""

from __future__ import annotations

import contextlib
import gc
import struct
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xprof_py import _native
from xprof_py.annotations import checkpoint, counter, input_wait, mark, step, trace
from xprof_py.errors import XprofPyWarning
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.schema import ArgKind, Kind

Stop = Callable[[], tuple[Profile, dict[str, Any]]]


class _Computed:
    """An array of JAX, as far as a step's number asks: what it says, and whether that must be waited for."""

    def __init__(self, number: int, ready: bool) -> None:
        self.number, self.ready, self.asked = number, ready, 0

    def is_ready(self) -> bool:
        return self.ready

    def __index__(self) -> int:
        self.asked += 1
        return self.number


@pytest.fixture
def stop(tmp_path: Path) -> Iterator[Stop]:
    """Records from here until it is called; it gives the profile and the recorder's totals."""
    path = tmp_path / "0-1.xpr"
    _native.recorder_start(path)

    def read() -> tuple[Profile, dict[str, Any]]:
        totals = _native.recorder_stop()
        return read_shard(path), totals

    yield read
    _native.recorder_stop()


def rows(profile: Profile) -> list[tuple[str, Kind, dict[str, Any]]]:
    """(name, kind, arguments) of every event, in the table's order; without the CPU time that a long step has."""
    texts = profile["texts"]["text"].to_pylist()
    found: list[tuple[str, Kind, dict[str, Any]]] = [
        (e["name"], Kind(e["kind"]), {}) for e in profile["events"].to_pylist()
    ]
    for arg in profile["args"].to_pylist():
        value: Any = arg["value"]
        if arg["kind"] == ArgKind.TEXT:
            value = texts[value]
        elif arg["kind"] == ArgKind.DOUBLE:
            value = struct.unpack("<d", struct.pack("<q", value))[0]
        elif arg["kind"] == ArgKind.UINT:
            value %= 2**64
        elif arg["kind"] == ArgKind.BOOL:
            value = bool(value)
        found[arg["event"]][2][arg["key"]] = value
    for _, kind, args in found:
        if kind == Kind.STEP:
            assert args.pop("cpu_ns", 0) >= 0
    return found


def test_every_kind_with_its_arguments(stop: Stop) -> None:
    with step(7, tokens=8192), trace("forward", layer=3):
        mark("here", why="test")
    with step(8, name="eval"):
        counter("loss", 0.25)
    with input_wait(), checkpoint("save", bytes=10), input_wait("loader"), checkpoint():
        pass
    profile, totals = stop()
    assert rows(profile) == [
        ("train", Kind.STEP, {"step_num": 7, "tokens": 8192}),
        ("forward", Kind.SPAN, {"layer": 3}),
        ("here", Kind.MARK, {"why": "test"}),
        ("eval", Kind.STEP, {"step_num": 8}),
        ("loss", Kind.COUNTER, {"value": 0.25}),
        ("input", Kind.INPUT, {}),
        ("save", Kind.CHECKPOINT, {"bytes": 10}),
        ("loader", Kind.INPUT, {}),
        ("checkpoint", Kind.CHECKPOINT, {}),
    ]
    assert totals["recorded"] == totals["written"] == 9
    assert totals["dropped"] == 0
    assert totals["error"] is None
    assert profile["diagnostics"].num_rows == 0


def test_a_step_says_the_cpu_time_of_its_thread_unless_it_is_short(stop: Stop) -> None:
    """Between what its body used, less the 10 us that sharing a reading may cost, and what was used around it."""
    least, most = [], []
    for i in range(120):
        if i % 4 == 1:
            time.sleep(0.0001)
        before = time.thread_time_ns()
        with step(i):
            began = time.thread_time_ns()
            if i % 3 == 0:
                time.sleep(0.0002)
            until = began + (150_000 if i % 3 == 1 else 20_000)
            while time.thread_time_ns() < until:
                pass
            least.append(time.thread_time_ns() - began - 10_000)
        most.append(time.thread_time_ns() - before + 1000)
    profile, _ = stop()
    durations_ps = profile["events"]["duration_ps"].to_pylist()
    cpu_ns = {row["event"]: row["value"] for row in profile["args"].to_pylist() if row["key"] == "cpu_ns"}
    assert len(durations_ps) == 120
    for i, duration_ps in enumerate(durations_ps):
        if i in cpu_ns:
            assert duration_ps > 99_000_000
            assert least[i] <= cpu_ns[i] <= most[i]
        else:
            assert duration_ps < 101_000_000
    assert len(cpu_ns) >= 80


class Unprintable:
    def __repr__(self) -> str:
        raise AssertionError("an argument's repr must not be asked for")

    __str__ = __repr__

    def __index__(self) -> int:
        raise AssertionError("an argument must not be converted: that may wait for a device")

    __float__ = __index__


def test_argument_values(stop: Stop) -> None:
    values = {
        "small": -1,
        "wide": 2**63,
        "wider": 2**64,
        "far": 10**400,
        "real": float("inf"),
        "yes": True,
        "text": "häßlich",
        "empty": "",
        "surrogate": "\ud800",
        "none": None,
        "object": Unprintable(),
        "np_int": np.int32(-5),
        "np_uint": np.uint64(2**64 - 1),
        "np_float": np.float32(0.5),
        "np_bool": np.bool_(True),
        "array": np.zeros(3),
    }
    assert len(values) == 16
    with trace("values", **values):
        pass
    profile, totals = stop()
    (_, _, found) = rows(profile)[0]
    assert found == {
        "small": -1,
        "wide": 2**63,
        "wider": float(2**64),
        "far": "<int>",
        "real": float("inf"),
        "yes": True,
        "text": "häßlich",
        "empty": "",
        "surrogate": "\\ud800",
        "none": "<NoneType>",
        "object": "<Unprintable>",
        "np_int": -5,
        "np_uint": 2**64 - 1,
        "np_float": 0.5,
        "np_bool": True,
        "array": "<numpy.ndarray>",
    }
    assert totals["dropped_args"] == 0


def test_more_arguments_than_fit_are_counted(stop: Stop) -> None:
    with trace("many", **{f"a{i}": i for i in range(20)}):
        pass
    profile, totals = stop()
    assert rows(profile) == [("many", Kind.SPAN, {f"a{i}": i for i in range(16)})]
    assert totals["dropped_args"] == 4
    assert profile["diagnostics"].to_pylist()[0]["code"] == "dropped_args"
    assert profile["diagnostics"].to_pylist()[0]["count"] == 4


def test_a_name_that_is_no_text_is_recorded_as_its_type(stop: Stop) -> None:
    with trace(3.5), step(4, name=None):  # type: ignore[arg-type, call-overload]
        pass
    assert rows(stop()[0]) == [("<float>", Kind.SPAN, {}), ("<NoneType>", Kind.STEP, {"step_num": 4})]


def test_names_are_counted_past_their_limit(stop: Stop) -> None:
    for i in range(65_540):
        mark(f"name {i}")
    profile, totals = stop()
    assert totals["more_names"] == 4
    assert profile["events"]["name"].to_pylist().count("(more names)") == 4
    assert totals["recorded"] == 65_540


def test_an_exception_ends_the_span_and_passes(stop: Stop) -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught, trace("outer"), trace("inner"):
        raise error
    assert caught.value is error
    assert rows(stop()[0]) == [("outer", Kind.SPAN, {}), ("inner", Kind.SPAN, {})]


def test_all_ways_of_entering(stop: Stop) -> None:
    with contextlib.ExitStack() as stack:
        entered = stack.enter_context(trace("stacked"))
        assert isinstance(entered, trace)
    span = trace("explicit")
    assert span.__enter__() is span
    assert span.__exit__(None, None, None) is None
    span = trace("by type")
    assert type(span).__enter__(span) is span
    assert type(span).__exit__(span, None, None, None) is None
    with trace(*["unpacked"], a=1):
        pass
    assert isinstance(trace("x"), contextlib.AbstractContextManager)
    assert isinstance(step(1), contextlib.AbstractContextManager)
    names = [row[0] for row in rows(stop()[0])]
    assert names == ["stacked", "explicit", "by type", "unpacked"]


def test_misuse_is_a_type_error_whether_or_not_recording(stop: Stop) -> None:
    def misuse() -> None:
        for call in (
            lambda: trace(),  # type: ignore[call-overload]
            lambda: trace("a", "b"),  # type: ignore[call-overload]
            lambda: step(),  # type: ignore[call-arg]
            lambda: step(1)(print),  # type: ignore[operator]
            lambda: trace("a")(1, 2),  # type: ignore[call-arg, arg-type]
            lambda: type(trace("a")).__enter__(3),  # type: ignore[arg-type]
            lambda: counter("a"),  # type: ignore[call-arg]
            lambda: trace(int),
        ):
            with pytest.raises(TypeError):
                call()

    misuse()
    stop()
    misuse()


def test_an_object_entered_again_is_not_mistimed_but_counted(stop: Stop) -> None:
    span = trace("reused")
    for _ in range(2):
        with span:  # one after the other is fine
            pass
    with span, trace("between"), span:
        pass
    with span:  # and after all of it, too
        pass
    profile, totals = stop()
    assert [row[0] for row in rows(profile)] == ["reused", "reused", "between", "reused"]
    assert totals["reentered"] == 2
    assert [(d["code"], d["count"]) for d in profile["diagnostics"].to_pylist()] == [("reentered", 2)]


def test_an_object_dropped_while_it_is_open_is_counted(stop: Stop) -> None:
    trace("dropped").__enter__()
    with trace("kept"):
        pass
    profile, totals = stop()
    assert [row[0] for row in rows(profile)] == ["kept"]
    assert totals["reentered"] == 1


def test_open_spans_at_the_stop_have_no_duration(stop: Stop) -> None:
    outer = trace("outer", layer=1)
    outer.__enter__()
    ready, leave = threading.Event(), threading.Event()

    def wait() -> None:
        with trace("other thread"):
            ready.set()
            leave.wait()

    thread = threading.Thread(target=wait, name="worker")
    thread.start()
    ready.wait()
    with trace("closed"):
        pass
    try:
        profile, totals = stop()
    finally:
        leave.set()
        thread.join()
    outer.__exit__(None, None, None)
    events = profile["events"].to_pylist()
    lines = profile["lines"]["name"].to_pylist()
    assert {(lines[e["line"]], e["name"], e["duration_ps"] is None) for e in events} == {
        ("MainThread", "outer", True),
        ("MainThread", "closed", False),
        ("worker", "other thread", True),
    }
    assert totals["recorded"] == 3


def test_spans_across_the_edges_of_recordings(tmp_path: Path) -> None:
    before = trace("entered before the start")
    before.__enter__()
    _native.recorder_start(tmp_path / "a.xpr")
    across = trace("entered in the first")
    across.__enter__()
    before.__exit__(None, None, None)
    _native.recorder_stop()
    _native.recorder_start(tmp_path / "b.xpr")
    across.__exit__(None, None, None)
    with trace("second"):
        pass
    _native.recorder_stop()
    first, second = read_shard(tmp_path / "a.xpr"), read_shard(tmp_path / "b.xpr")
    assert [(e["name"], e["duration_ps"]) for e in first["events"].to_pylist()] == [("entered in the first", None)]
    assert second["events"]["name"].to_pylist() == ["second"]


def test_off_reads_nothing_and_keeps_nothing() -> None:
    assert not _native.recording()
    argument = Unprintable()
    alive = weakref.ref(argument)
    with trace("x", a=argument), step(argument, b=argument):  # type: ignore[arg-type]
        mark("m", c=argument)
        counter("n", argument)  # type: ignore[arg-type]
        _native.record_past("past", Kind.COMPILE, 5, d=argument)
    del argument
    gc.collect()
    assert alive() is None


def test_recording_keeps_no_argument_alive(stop: Stop) -> None:
    argument = Unprintable()
    alive = weakref.ref(argument)
    with trace("x", a=argument, b=1, c=2, d=3, e=argument):
        pass
    del argument
    gc.collect()
    assert alive() is None
    stop()


def test_record_past_ends_now(stop: Stop) -> None:
    with trace("around"):
        _native.record_past("compile", Kind.COMPILE, 2_000_000_000, fun_name="f")
    profile, _ = stop()
    past, around = profile["events"].to_pylist()
    assert (past["name"], past["kind"], past["duration_ps"]) == ("compile", Kind.COMPILE, 2_000_000_000_000)
    end = past["start_ps"] + past["duration_ps"]
    assert around["start_ps"] <= end <= around["start_ps"] + around["duration_ps"]
    for kind in (0, 2, 6, 9, 300):
        with pytest.raises(ValueError, match="kind"):
            _native.record_past("x", kind, 1)


def test_importing_is_inert() -> None:
    code = """
import sys, threading
threads = threading.active_count()
before = set(sys.modules)
import xprof_py.annotations
assert not {"numpy", "jax", "pyarrow", "dask"} & set(sys.modules), sorted(set(sys.modules) - before)
import os
assert len(os.listdir("/proc/self/task")) == 1
assert sys.getprofile() is None and sys.gettrace() is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_step_s_number_is_what_it_says_without_being_waited_for(stop: Stop) -> None:
    ready, awaited = _Computed(41, ready=True), _Computed(99, ready=False)
    given: list[Any] = [5.0, np.int64(7), True, 2**40, ready, awaited, awaited, "9", None, 2.5, np.array([1, 2])]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in given:
            with step(number):
                pass
    assert [one.category for one in said] == [XprofPyWarning]
    profile, _ = stop()
    numbers = [found["step_num"] for _, kind, found in rows(profile) if kind is Kind.STEP]
    assert numbers == [5, 7, 1, 2**40, 41, 42, 43, 44, 45, 46, 47]
    assert (ready.asked, awaited.asked) == (1, 0)
