"""The spans that a process was in when it was killed, of every kind; and the C spans that were open at a stop."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import xprof_py
from xprof_py import _native
from xprof_py.postprocess.readers.shard import read_shard

ENDS_IN = """
import os, signal, sys, threading, time
from xprof_py import _native, checkpoint, input_wait, step, trace
_native.recorder_start(sys.argv[1])
def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def was_doing(folder: Path, body: str) -> dict[str, list[str]]:
    """By thread, what a program that ends in SIGKILL was doing."""
    shard = folder / "x.xpr"
    done = subprocess.run(
        [sys.executable, "-c", ENDS_IN + body, str(shard)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return {row["thread"]: row["spans"] for row in read_shard(shard).metadata["was_doing"]}


def test_spans_of_every_kind_are_named_from_the_outside_in(tmp_path: Path) -> None:
    body = """
@trace("write shard")
def write():
    with input_wait("read"), trace("over", layer=3):
        with trace("done"):
            pass
        die()
with step(36), checkpoint("save"):
    write()
"""
    assert was_doing(tmp_path, body) == {"MainThread": ["train 36", "save", "write shard", "read", "over"]}


def test_a_step_whose_number_is_no_small_integer_has_its_name(tmp_path: Path) -> None:
    assert was_doing(tmp_path, "with step(2**70, name='eval'), trace('x'): die()") == {"MainThread": ["eval", "x"]}


def test_a_span_that_another_thread_left_is_not_open(tmp_path: Path) -> None:
    """The thread that entered it has not come by since: it waits, as a pool's do."""
    body = """
spans = [trace("handed over"), trace("kept")]
def enter():
    with trace("waits"):
        for span in spans:
            span.__enter__()
        entered.set()
        time.sleep(60)
entered = threading.Event()
threading.Thread(target=enter, name="pool", daemon=True).start()
entered.wait()
spans[0].__exit__(None, None, None)
with trace("main"):
    die()
"""
    assert was_doing(tmp_path, body) == {"pool": ["waits", "kept"], "MainThread": ["main"]}


def test_what_is_not_recorded_is_not_open(tmp_path: Path) -> None:
    """Entered twice, dropped while open, left out by a filter: such spans are counted elsewhere, or not wanted."""
    body = """
from xprof_py import set_filter
twice = trace("twice")
twice.__enter__(); twice.__enter__()
dropped = trace("dropped")
dropped.__enter__()
del dropped
set_filter(level=1)
with trace("too deep", level=2), trace("open"):
    die()
"""
    assert was_doing(tmp_path, body) == {"MainThread": ["open"]}


def test_deeper_spans_than_are_kept_leave_the_outer_ones(tmp_path: Path) -> None:
    body = """
from contextlib import ExitStack
for _ in range(2):
    with ExitStack() as stack:
        for i in range(40):
            stack.enter_context(trace(f"level {i}"))
        if _:
            die()
"""
    assert was_doing(tmp_path, body) == {"MainThread": [f"level {i}" for i in range(32)]}


C_SPANS = """
#include "xprof_py/trace.h"
XPROF_PY_SITE(outer, "outer");
XPROF_PY_SITE(inner, "inner");
static xprof_py_span spans[3];
__attribute__((visibility("default"))) void enter(void) {
    spans[0] = xprof_py_begin_at(&outer);
    spans[1] = xprof_py_begin_at(&inner);
    spans[2] = xprof_py_begin();
}
__attribute__((visibility("default"))) void leave(void) {
    xprof_py_end(&inner, spans[2]);
    xprof_py_end(&inner, spans[1]);
    xprof_py_end(&outer, spans[0]);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler on PATH: install cc, gcc or clang")
    folder = tmp_path_factory.mktemp("spans")
    (folder / "spans.c").write_text(C_SPANS)
    command = [compiler, "-shared", "-fPIC", "-I", xprof_py.get_include(), "spans.c", "-o", "libspans.so"]
    subprocess.run(command, cwd=folder, check=True)
    return str(folder / "libspans.so")


def test_c_spans_that_are_open_at_the_stop_are_recorded_as_open_or_counted(tmp_path: Path, library: str) -> None:
    spans = ctypes.CDLL(library)
    _native.recorder_start(tmp_path / "x.xpr")
    with xprof_py.trace("python"):
        spans.enter()
        totals = _native.recorder_stop()
    spans.leave()
    assert (totals["written"], totals["open_not_recorded"]) == (3, 1)
    profile = read_shard(tmp_path / "x.xpr")
    events = [(row["name"], row["duration_ps"]) for row in profile["events"].to_pylist()]
    assert events == [("python", None), ("outer", None), ("inner", None)]
    (row,) = [row for row in profile["diagnostics"].to_pylist() if row["code"] == "open_not_recorded"]
    assert row["count"] == 1


def test_c_spans_are_named_after_a_kill(tmp_path: Path, library: str) -> None:
    body = f"""
import ctypes
spans = ctypes.CDLL({library!r})
spans.enter(); spans.leave()
with step(3):
    spans.enter()
    die()
"""
    # Its first event came from C, which knows no name of Python's for it.
    assert list(was_doing(tmp_path, body).values()) == [["train 3", "outer", "inner"]]
