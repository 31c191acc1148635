"""The recorder under stress: threads, full rings, full disks, forks and kills. Every event is recorded or counted."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xprof_py import _native
from xprof_py.annotations import mark, step, trace
from xprof_py.postprocess.readers.shard import read_shard


@pytest.fixture(autouse=True)
def _stopped_and_unhooked() -> Iterator[None]:
    yield
    _native.recorder_stop()
    for unset in (_native.set_thread_hook, _native.set_step_listener, _native.set_step_marker):
        unset(None)


def run_python(code: str, *arguments: str, expect: int = 0) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == expect, done.stderr
    return done.stdout


def test_every_thread_reads_back_in_order(tmp_path: Path) -> None:
    threads_count, events_count = 5, 3000

    def work(number: int) -> None:
        for i in range(events_count):
            with trace("work", number=number, i=i):
                pass

    _native.recorder_start(tmp_path / "x.xpr")
    threads = [threading.Thread(target=work, args=(n,), name=f"worker {n}") for n in range(threads_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = _native.recorder_stop()
    assert totals["recorded"] == totals["written"] == threads_count * events_count
    assert totals["threads"] == threads_count
    profile = read_shard(tmp_path / "x.xpr")
    names = profile["lines"]["name"].to_pylist()
    assert sorted(names) == [f"worker {n}" for n in range(threads_count)]
    line = profile["events"]["line"].to_numpy()
    values = profile["args"]["value"].to_numpy().reshape(-1, 2)
    assert profile["args"]["event"].to_numpy().tolist() == np.repeat(np.arange(len(line)), 2).tolist()
    for row, name in enumerate(names):
        assert set(values[line == row, 0].tolist()) == {int(name.removeprefix("worker "))}
        assert values[line == row, 1].tolist() == list(range(events_count))


@pytest.mark.parametrize("options", [{"budget_bytes": 30_000}, {"ring_bytes": 1024}, {"budget_bytes": 0}])
def test_what_does_not_fit_is_counted(tmp_path: Path, options: dict[str, int]) -> None:
    _native.recorder_start(tmp_path / "x.xpr", **options)
    for i in range(20_000):
        with trace("x", i=i, j=i):
            pass
    totals = _native.recorder_stop()
    assert totals["recorded"] + totals["dropped"] == 20_000
    assert totals["dropped"] > 0
    profile = read_shard(tmp_path / "x.xpr")
    assert profile["events"].num_rows == totals["written"] == totals["recorded"]
    codes = {d["code"]: d["count"] for d in profile["diagnostics"].to_pylist()}
    assert sum(codes.values()) == totals["dropped"]
    if "budget_bytes" in options:
        assert (tmp_path / "x.xpr").stat().st_size <= options["budget_bytes"] + 1024


def test_starting_and_stopping(tmp_path: Path) -> None:
    assert _native.recorder_stop() == {}
    with pytest.raises(FileNotFoundError):
        _native.recorder_start(tmp_path / "missing" / "x.xpr")
    with pytest.raises(IsADirectoryError):
        _native.recorder_start(tmp_path)
    for i in range(20):
        _native.recorder_start(os.fspath(tmp_path / f"{i}.xpr"))
        with pytest.raises(RuntimeError, match="already recording"):
            _native.recorder_start(tmp_path / "other.xpr")
        assert _native.recording()
        mark(f"mark {i}")
        assert _native.recorder_status()["recorded"] == 1
        totals = _native.recorder_stop()
        assert totals["finished"]
        assert not _native.recording()
        assert _native.recorder_status()["written"] == 1
        assert read_shard(tmp_path / f"{i}.xpr")["events"]["name"].to_pylist() == [f"mark {i}"]
    assert not (tmp_path / "other.xpr").exists()


def test_the_drainer_writes_while_the_program_runs(tmp_path: Path) -> None:
    _native.recorder_start(tmp_path / "x.xpr")
    mark("early")
    deadline = time.monotonic() + 10
    while _native.recorder_status()["written"] < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    profile = read_shard(tmp_path / "x.xpr")
    assert profile["events"]["name"].to_pylist() == ["early"]
    assert profile["diagnostics"]["code"].to_pylist() == ["shard_not_finished"]


def test_a_killed_process_leaves_what_it_did(tmp_path: Path) -> None:
    code = """
import os, signal, sys, time
from xprof_py import _native
from xprof_py.annotations import mark
_native.recorder_start(sys.argv[1])
for i in range(1000):
    mark("before", i=i)
while _native.recorder_status()["written"] < 1000:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run_python(code, str(tmp_path / "x.xpr"), expect=-signal.SIGKILL)
    profile = read_shard(tmp_path / "x.xpr")
    assert profile["args"]["value"].to_pylist() == list(range(1000))
    assert profile["diagnostics"]["code"].to_pylist() == ["shard_not_finished"]


def test_the_child_of_a_fork_records_nothing_and_the_parent_goes_on(tmp_path: Path) -> None:
    code = """
import os, sys
from xprof_py import _native
from xprof_py.annotations import mark, trace
path = sys.argv[1]
_native.recorder_start(path)
mark("parent 1")
with trace("around the fork"):
    child = os.fork()
    if child == 0:
        assert not _native.recording() and _native.recorder_stop() == {}
        mark("child")
if child == 0:
    _native.recorder_start(path + ".child")
    mark("its own")
    assert _native.recorder_stop()["written"] == 1
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
mark("parent 2")
totals = _native.recorder_stop()
assert totals["written"] == 3 and totals["error"] is None, totals
"""
    run_python(code, str(tmp_path / "x.xpr"))
    names = read_shard(tmp_path / "x.xpr")["events"]["name"].to_pylist()
    assert sorted(names) == ["around the fork", "parent 1", "parent 2"]
    assert read_shard(tmp_path / "x.xpr.child")["events"]["name"].to_pylist() == ["its own"]


def check_a_disk_that_fills(folder: Path, fill: Any, error: str) -> None:
    path = folder / "x.xpr"
    _native.recorder_start(path)
    mark("written")
    deadline = time.monotonic() + 10
    while _native.recorder_status()["written"] < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    with fill():
        for i in range(20_000):
            mark("x", i=i)
        time.sleep(0.2)
        mark("late")
        status = _native.recorder_status()
        totals = _native.recorder_stop()
    assert status["recording"]
    assert error in status["error"]
    assert error in totals["error"]
    assert totals["dropped_error"] > 0
    assert totals["recorded"] + totals["dropped"] == 20_002
    profile = read_shard(path)
    assert profile["events"].num_rows == totals["written"]
    assert profile["events"]["name"].to_pylist()[0] == "written"


def test_a_full_disk(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"mounting a small file system is not allowed here: {mounted.stderr.strip()}")
    try:
        check_a_disk_that_fills(tmp_path, contextlib.nullcontext, "No space left")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    @contextlib.contextmanager
    def small_files() -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    check_a_disk_that_fills(tmp_path, small_files, "File too large")


def test_a_file_that_is_removed(tmp_path: Path) -> None:
    _native.recorder_start(tmp_path / "x.xpr")
    (tmp_path / "x.xpr").unlink()
    mark("x")
    assert "removed" in _native.recorder_stop()["error"]


def test_the_thread_hook_is_called_once_per_thread_and_recording(tmp_path: Path) -> None:
    calls: list[int] = []

    def hook(tid: int) -> None:
        assert tid == threading.get_native_id()
        with trace("in the hook"):
            calls.append(tid)

    _native.set_thread_hook(hook)
    mark("off")
    for _ in range(2):
        _native.recorder_start(tmp_path / "x.xpr")
        with trace("a"):
            assert calls[-1] == threading.get_native_id()
        mark("b")
        thread = threading.Thread(target=mark, args=("c",))
        thread.start()
        thread.join()
        totals = _native.recorder_stop()
        assert totals["hook_errors"] == 0
        assert totals["recorded"] == 5
    assert len(calls) == 4
    assert calls[0] == calls[2] == threading.get_native_id()


def test_hooks_that_fail_are_counted_and_harm_nobody(tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a hook's fault")

    class Marker:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            fail()

    for unset in (_native.set_thread_hook, _native.set_step_listener, _native.set_step_marker):
        unset(fail)
    _native.recorder_start(tmp_path / "x.xpr")
    with pytest.raises(ValueError, match="the program's"), step(1):
        raise ValueError("the program's")
    assert _native.recorder_status()["hook_errors"] == 4
    _native.set_step_marker(lambda name, **_: Marker())
    with step(2):
        pass
    totals = _native.recorder_stop()
    assert totals["hook_errors"] == 4 + 3
    assert read_shard(tmp_path / "x.xpr")["events"]["name"].to_pylist() == ["train", "train"]


def test_an_interrupt_during_a_hook_reaches_the_program() -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    _native.set_step_listener(interrupted)

    def many_steps() -> None:
        for _ in range(1000):
            with step(1):
                pass

    with pytest.raises(KeyboardInterrupt):
        many_steps()


def test_the_step_listener_arms_and_ends_a_recording(tmp_path: Path) -> None:
    calls: list[tuple[str, str, int]] = []

    def listener(what: str, name: str, number: int) -> None:
        calls.append((what, name, number))
        if (what, number) == ("enter", 2):
            _native.recorder_start(tmp_path / "x.xpr")
        if (what, number) == ("exit", 3):
            assert _native.recorder_stop()["written"] == 2

    _native.set_step_listener(listener)
    for i in range(6):
        with step(i, name="loop"):
            pass
    assert calls == [(what, "loop", i) for i in range(6) for what in ("enter", "exit")]
    profile = read_shard(tmp_path / "x.xpr")
    args = profile["args"].to_pylist()
    assert [arg["value"] for arg in args if arg["key"] == "step_num"] == [2, 3]
    assert profile["events"]["duration_ps"].null_count == 0


def test_the_step_marker_lies_inside_the_step(tmp_path: Path) -> None:
    calls: list[Any] = []

    class Marker:
        def __init__(self, name: str, *, step_num: int, xprof_tid: int) -> None:
            assert xprof_tid == threading.get_native_id()
            calls.append((name, step_num))

        def __enter__(self) -> None:
            mark("marker in")

        def __exit__(self, *exception: object) -> None:
            assert exception == (None, None, None)
            mark("marker out")

    _native.set_step_marker(Marker)
    with step(0):
        pass
    assert calls == []
    _native.recorder_start(tmp_path / "x.xpr")
    with step(1, name="eval"):
        pass
    assert calls == [("eval", 1)]
    across = step(2)
    across.__enter__()
    assert _native.recorder_stop()["hook_errors"] == 0
    across.__exit__(None, None, None)  # the marker is left even though the recording is over
    inside, first, last, *rest = read_shard(tmp_path / "x.xpr")["events"].to_pylist()
    assert [inside["name"], first["name"], last["name"]] == ["eval", "marker in", "marker out"]
    assert inside["start_ps"] < first["start_ps"] < last["start_ps"] < inside["start_ps"] + inside["duration_ps"]
    assert [e["name"] for e in rest] == ["train", "marker in"]


def test_a_stop_that_may_not_wait_returns_and_the_shard_is_finished_later(tmp_path: Path) -> None:
    for _ in range(20):  # the drainer may happen to be done already
        _native.recorder_start(tmp_path / "x.xpr", ring_bytes=64 << 20)
        for i in range(400_000):
            mark("x", i=i)
        totals = _native.recorder_stop(timeout_s=0)
        assert totals["recorded"] + totals["dropped"] == 400_000
        if not totals["finished"]:
            break
    assert "not finished within 0 s" in totals["error"]
    deadline = time.monotonic() + 10
    while not _native.recorder_status()["finished"] and time.monotonic() < deadline:
        time.sleep(0.01)
    written = _native.recorder_status()["written"]
    assert written == read_shard(tmp_path / "x.xpr")["events"].num_rows == totals["recorded"]


def test_a_pipe_is_no_place_for_a_shard(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="Illegal seek"):
        _native.recorder_start(tmp_path / "pipe")
    os.close(reader)
    assert not _native.recording()
