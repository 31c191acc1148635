"""Ten million events of eight threads come back, each once, in order, with its argument; what is lost is counted.

Numbers say where an event came from: the thread's in the upper half, the event's within its thread in the lower.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xprof_py
from xprof_py import _native
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.shard import read_shard

SOURCE = Path(__file__).resolve().parent / "trace_many.c"
THREADS = 8


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], None]:
    """``many(first, count)``: spans with the numbers [first, first + count), recorded without Python's lock."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on PATH: install cc, gcc or clang")
    library = tmp_path_factory.mktemp("many") / "many.so"
    command = [compiler, "-std=c11", "-O2", "-shared", "-fPIC", "-I", xprof_py.get_include(), str(SOURCE)]
    subprocess.run([*command, "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).many
    function.argtypes = [ctypes.c_int64, ctypes.c_int64]
    function.restype = None
    return function  # type: ignore[no-any-return]


def record(many: Callable[[int, int], None], path: Path, batches: int, batch: int, **options: Any) -> dict[str, Any]:
    """``batches`` times ``batch`` events from each thread; before each batch the rings are empty. The totals."""
    go, done = threading.Barrier(THREADS + 1), threading.Barrier(THREADS + 1)

    def work(thread: int) -> None:
        for k in range(batches):
            go.wait()
            many((thread << 32) + k * batch, batch)
            done.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    _native.recorder_start(path, **options)
    try:
        for k in range(batches):
            go.wait()
            done.wait()
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                status = _native.recorder_status()
                if status["written"] + status["dropped"] >= (k + 1) * batch * THREADS:
                    break
                time.sleep(0.002)
        for thread in threads:
            thread.join()
    finally:
        totals = _native.recorder_stop(60.0)
    assert totals["finished"]
    return totals


def numbers_of(profile: Profile) -> list[np.ndarray[Any, Any]]:
    """The numbers on each line, as they lie there; every event has one, and starts no earlier than the one before."""
    events, args = profile["events"], profile["args"]
    lines, starts = events["line"].to_numpy(), events["start_ps"].to_numpy()
    assert np.array_equal(args["event"].to_numpy(), np.arange(events.num_rows))
    assert args["key"].unique().to_pylist() == ["number"]
    assert set(events["name"].unique().to_pylist()) == {"counted"}
    assert events["duration_ps"].null_count == 0
    values = args["value"].to_numpy()
    found = []
    for line in range(profile["lines"].num_rows):
        here = lines == line
        assert (np.diff(starts[here]) >= 0).all()
        found.append(values[here])
    assert sum(map(len, found)) == events.num_rows
    return found


def test_ten_million_events_of_eight_threads(many: Callable[[int, int], None], tmp_path: Path) -> None:
    batches, batch = 25, 50_000  # a ring of 4 MiB holds 131,072 of them
    totals = record(many, tmp_path / "x.xpr", batches, batch)
    sent = batches * batch * THREADS
    assert sent == 10_000_000
    assert (totals["recorded"], totals["written"], totals["dropped"]) == (sent, sent, 0)
    found = numbers_of(read_shard(tmp_path / "x.xpr"))
    assert sorted(int(numbers[0]) >> 32 for numbers in found) == list(range(THREADS))
    for numbers in found:
        assert np.array_equal(numbers - numbers[0], np.arange(batches * batch))
        assert numbers[0] & 0xFFFFFFFF == 0


@pytest.mark.parametrize("options", [{"budget_bytes": 8_000_000}, {"ring_bytes": 1 << 16}], ids=["file", "rings"])
def test_what_does_not_fit_is_counted_and_the_rest_is_in_order(
    many: Callable[[int, int], None], tmp_path: Path, options: dict[str, int]
) -> None:
    totals = record(many, tmp_path / "x.xpr", 2, 50_000, **options)
    assert totals["recorded"] + totals["dropped"] == 2 * 50_000 * THREADS
    assert totals["dropped"] > 0
    assert totals["written"] == totals["recorded"] > 0
    profile = read_shard(tmp_path / "x.xpr")
    assert profile["events"].num_rows == totals["recorded"]
    counts = [row["count"] for row in profile["diagnostics"].to_pylist() if "dropped" in row["code"]]
    assert sum(counts) == totals["dropped"]
    for numbers in numbers_of(profile):
        assert (np.diff(numbers) > 0).all()
        assert len(set((numbers >> 32).tolist())) <= 1  # a thread may have lost all of its own
