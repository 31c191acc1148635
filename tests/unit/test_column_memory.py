"""Columns beyond a budget lie in files: the values are the same, memory is bounded, and what cannot be is said."""

from __future__ import annotations

import gc
import importlib
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xprof_py import _native
from xprof_py.errors import UsageError
from xprof_py.postprocess import schema
from xprof_py.postprocess.join import columns
from xprof_py.postprocess.join.columns import Events
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.column_memory import BUDGET, FOLDER, bound, bounded, read_content, refused
from xprof_py.postprocess.readers.workers import Workers

MB = 1 << 20


@pytest.fixture(autouse=True)
def no_bound_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(columns, "_BYTES_GATHERED", columns._BYTES_GATHERED)
    yield
    _native.set_column_budget((1 << 63) - 1, [])


@pytest.fixture
def in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All large columns in files of this folder."""
    monkeypatch.setenv(BUDGET, "0")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    bound()
    grown = _native.Bytes()
    grown.append(bytes(2 * MB))
    if not _native.in_file(grown):
        pytest.skip(f"{tmp_path} takes no files of columns ({refused()}): name a folder on a disk with --basetemp")
    return tmp_path


@pytest.mark.parametrize("stated", ["-1", "many", "1e3", "9" * 20, "9" * 5000])
def test_a_budget_that_is_no_amount_is_refused(monkeypatch: pytest.MonkeyPatch, stated: str) -> None:
    monkeypatch.setenv(BUDGET, stated)
    with pytest.raises(UsageError, match=BUDGET):
        bound()


def test_a_folder_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "not there"))
    with pytest.raises(UsageError, match=FOLDER):
        bound()


def test_memory_does_not_grow_beyond_the_budget(monkeypatch: pytest.MonkeyPatch, in_files: Path) -> None:
    gc.collect()
    before = _native.column_memory()
    budget = before["in_memory"] // MB + 8
    monkeypatch.setenv(BUDGET, str(budget))
    with bounded():
        held = [np.full(MB, place, np.uint8) for place in range(20)]
        held += [np.zeros(MB // 8, np.int64) for _ in range(4)]
        use = _native.column_memory()
        assert budget * MB - MB < use["in_memory"] <= budget * MB
        assert use["in_memory"] + use["in_files"] == before["in_memory"] + before["in_files"] + 24 * MB
        assert [int(column.sum()) for column in held] == [place * MB for place in range(20)] + [0] * 4
    # What the block made goes back where it came from, after it too.
    del held
    gc.collect()
    assert _native.column_memory()["in_files"] == before["in_files"]


def test_only_arrays_of_the_block_lie_in_files(in_files: Path) -> None:
    with bounded():
        assert _native.in_file(np.ones(MB, np.uint8))
    assert not _native.in_file(np.ones(MB, np.uint8))


def test_what_workers_make_lies_in_files_too(in_files: Path) -> None:
    where: dict[int, bool] = {}
    meet = threading.Barrier(3)

    def make() -> None:
        meet.wait(30)
        where[threading.get_ident()] = _native.in_file(np.ones(MB, np.uint8))

    with bounded():
        Workers(3).run([make] * 3)
    assert list(where.values()) == [True] * 3


def test_arrays_of_all_sizes_grow_and_shrink(in_files: Path) -> None:
    sizes = [1, 1000, MB // 8 - 1, MB // 8, MB // 8 + 1, 3 * MB, 5, MB]
    with bounded():
        array = np.arange(0)
        for size in sizes:
            kept = min(len(array), size)
            array = array.copy()
            array.resize(size, refcheck=False)
            assert (array[:kept] == np.arange(kept)).all()
            assert not array[kept:].any()
            array[:] = np.arange(size)


def test_files_of_columns_are_not_kept_open(in_files: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with bounded():
        held = [np.ones(MB, np.uint8) for _ in range(50)]
        assert all(map(_native.in_file, held))
        assert len(os.listdir("/proc/self/fd")) == before


pieces = st.lists(st.tuples(st.integers(0, 255), st.integers(0, MB)), max_size=6)


@settings(max_examples=20, deadline=None)
@given(pieces)
def test_bytes_that_grow_are_what_was_appended(said: list[tuple[int, int]]) -> None:
    _native.set_column_budget(0, ["/var/tmp"])
    grown, wanted = _native.Bytes(), b""
    for value, size in said:
        grown.append(bytes([value]) * size)
        wanted += bytes([value]) * size
        assert len(grown) == len(wanted)
    assert bytes(memoryview(grown)) == wanted


def test_bytes_in_use_do_not_move(in_files: Path) -> None:
    grown = _native.Bytes()
    grown.append(b"one")
    with memoryview(grown) as view:
        with pytest.raises(BufferError):
            grown.append(b"two")
        assert view.readonly
    grown.append(b"two")
    assert bytes(memoryview(grown)) == b"onetwo"


def test_the_content_of_a_large_file_lies_in_a_file(in_files: Path) -> None:
    said = os.urandom(9 * MB)
    (in_files / "large").write_bytes(said)
    with (in_files / "large").open("rb", buffering=0) as opened:
        content = read_content(opened)
    assert _native.in_file(content)
    assert bytes(memoryview(content)) == said


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 2**20 - 1), max_size=200),
    st.sampled_from(["rows", "mask", "slice"]),
    st.sampled_from([64, 1 << 20, 1 << 26]),
)
def test_rows_gathered_from_a_file_are_those_of_memory(rows: list[int], how: str, at_once: int) -> None:
    count = 1 << 20
    columns._BYTES_GATHERED = at_once
    _native.set_column_budget(0, ["/var/tmp"])
    before = _native.numpy_in_columns(None)
    try:
        start_ps = np.arange(count) // 3 * 5
        line = (np.arange(count) // (count // 2)).astype(np.int32)
        duration_ps = np.arange(count) % 7
        name, kind = np.zeros(count, np.int32), np.zeros(count, np.uint8)
    finally:
        _native.numpy_in_columns(before)
    start_ps[count // 2 :] -= start_ps[count // 2]
    table = schema.table(
        "events",
        {
            "line": line,
            "name": schema.pa.DictionaryArray.from_arrays(schema.pa.array(name), schema.pa.array(["f"])),
            "kind": kind,
            "start_ps": start_ps,
            "duration_ps": duration_ps,
        },
    )
    events = Events(Profile("h", 0, 0, 10**7, {"events": table}))
    key = np.array(rows, np.int64)
    if how == "mask":
        mask = np.zeros(count, np.bool_)
        mask[key] = True
        assert (events.start_ps[mask] == start_ps[mask]).all()
    elif how == "slice":
        low, high = (min(rows, default=0), max(rows, default=0))
        assert (events.line[low:high] == line[low:high]).all()
    else:
        assert (events.start_ps[key] == start_ps[key]).all()
        assert (events.end_ps[key] == start_ps[key] + duration_ps[key]).all()
        assert (events.line[key] == line[key]).all()
        assert [int(events.duration_ps[row]) for row in rows] == [row % 7 for row in rows]
        for at in (0, 1):
            of_line = start_ps[line == at]
            found = events.first_row_from(at, key)
            assert (found == at * (count // 2) + np.searchsorted(of_line, key)).all()


def test_what_is_computed_of_a_column_in_a_file_is_a_plain_array(in_files: Path) -> None:
    with bounded():
        start_ps = np.arange(1 << 20)
    column = columns._where_it_lies(start_ps)
    assert type(column) is not np.ndarray
    for computed in (column + 1, np.minimum(column, 5), column[column > 3], column[np.array([3, 1])], column[2:9]):
        assert type(computed) is np.ndarray
    assert int(np.add.reduce(column)) == start_ps.sum()
    with pytest.raises(IndexError):
        _ = column[np.zeros(5, np.bool_)]
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1


def limited(script: str, limit: int) -> subprocess.CompletedProcess[str]:
    """The script in a process whose files may not be larger than ``limit`` bytes."""
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )


def test_where_a_file_cannot_be_so_large_its_column_is_memory(in_files: Path) -> None:
    done = limited(
        "import numpy as np\n"
        "from xprof_py import _native\n"
        f"_native.set_column_budget(0, [{str(in_files)!r}])\n"
        "_native.numpy_in_columns(None)\n"
        "small, large = np.ones(1 << 20, np.uint8), np.ones(4 << 20, np.uint8)\n"
        "grown = _native.Bytes()\n"
        "for _ in range(5): grown.append(bytes(1 << 20))\n"
        "print(_native.in_file(small), _native.in_file(large), _native.in_file(grown), int(large.sum()), len(grown))\n"
        "print(_native.column_memory()['refused'])\n",
        3 * MB,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"True False False {4 * MB} {5 * MB}", os.strerror(27)]


def test_files_in_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("no /dev/shm here: mount a tmpfs there")
    monkeypatch.setenv(BUDGET, "0")
    monkeypatch.setenv(FOLDER, "/dev/shm")
    with bounded():
        assert not _native.in_file(np.ones(MB, np.uint8))
    assert refused() == "its files are memory"


def test_numpys_allocator_comes_back() -> None:
    multiarray = importlib.import_module("numpy._core.multiarray" if np.__version__ >= "2" else "numpy.core.multiarray")
    get_handler_name = multiarray.get_handler_name

    before = get_handler_name()
    with bounded():
        assert get_handler_name() == "xprof_py_columns"
        with bounded():
            assert get_handler_name() == "xprof_py_columns"
        assert get_handler_name() == "xprof_py_columns"
    assert get_handler_name() == before
    with pytest.raises(ValueError, match="mem_handler"):
        _native.numpy_in_columns(object())
