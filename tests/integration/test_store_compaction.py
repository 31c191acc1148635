"""Putting a store's files together changes what no reader sees, wherever it is killed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from xprof_py.cli import main
from xprof_py.errors import BadInputError, UsageError
from xprof_py.postprocess.fleet import store_files
from xprof_py.postprocess.fleet.schedulers import InProcess
from xprof_py.postprocess.fleet.store import SCHEMA, RunFolder, _put, add_runs, compact_store, read_store

DAY_NS = 86_400 * 10**9


def put(store: Path, run: str, *, day: int = 0, ps: int = 1) -> None:
    """A run of two rows."""
    same = {"job": "job", "run": run, "started_ns": day * DAY_NS + 1, "host": "h", "exclusive_ps": ps}
    rows = [{**same, "class": name} for name in ("compute", "input")]
    _put(store, RunFolder("job", run, store), pa.Table.from_pylist(rows, schema=SCHEMA))


def files(store: Path) -> list[str]:
    return sorted(str(file.relative_to(store)) for file in store.glob("day=*/*.parquet"))


def seen(store: Path) -> dict[str, list[int]]:
    """What a reader of ours sees: run -> its numbers."""
    return by_run(read_store(store)[0])


def by_run(rows: pa.Table) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for row in rows.to_pylist():
        out.setdefault(row["run"], []).append(row["exclusive_ps"])
    return out


def seen_by_others(store: Path) -> dict[str, list[int]]:
    """What any tool sees that reads all Parquet files of a store."""
    return by_run(pa.concat_tables([pq.read_table(store / name, partitioning=None) for name in files(store)]))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for number in range(5):
        put(tmp_path / "store", f"r{number}", ps=number)
    return tmp_path / "store"


def test_the_runs_of_a_day_are_one_file_and_are_read_as_before(store: Path) -> None:
    put(store, "alone", day=1)
    before = read_store(store)[0]
    assert compact_store(store, many=5) == 4
    assert len(files(store)) == 2
    assert read_store(store)[0].equals(before)
    assert seen_by_others(store) == seen(store)
    # Again there is nothing to do, and fewer than many stay as they are.
    assert compact_store(store, many=5) == 0


def test_adding_does_it_by_itself_where_a_day_has_many(store: Path) -> None:
    add_runs(store, [], InProcess())
    assert len(files(store)) == 5
    for number in range(5, store_files.MANY_FILES):
        put(store, f"r{number}", ps=number)
    add_runs(store, [], InProcess())
    assert len(files(store)) == 1
    assert seen(store) == {f"r{number}": [number, number] for number in range(store_files.MANY_FILES)}


@pytest.mark.parametrize("day", [0, 3])
def test_a_run_that_is_added_again_replaces_itself(store: Path, day: int) -> None:
    compact_store(store, many=2)
    put(store, "r3", day=day, ps=99)
    assert seen(store)["r3"] == [99, 99]
    # The next time its old rows go for other readers too, though few files are new.
    compact_store(store)
    assert seen_by_others(store) == seen(store) == {f"r{n}": [n, n] if n != 3 else [99, 99] for n in range(5)}
    compact_store(store, many=1)
    put(store, "r3", ps=100)
    compact_store(store, many=1)
    assert seen_by_others(store) == seen(store) == {f"r{n}": [n, n] if n != 3 else [100, 100] for n in range(5)}


class KilledError(BaseException):
    """The process ends here."""


@contextmanager
def killed_at(operation: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Ends before the n-th change of a file that can be seen in a store."""
    done = [0]

    def counted(change: Any) -> Any:
        def changed(path: Any, *rest: Any, **how: Any) -> Any:
            if ".writing-" in str(path) and not rest:
                return change(path, *rest, **how)
            done[0] += 1
            if done[0] > operation:
                raise KilledError
            return change(path, *rest, **how)

        return changed

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", counted(os.replace))
        patched.setattr(Path, "unlink", counted(Path.unlink))
        yield done


def test_killed_anywhere_nothing_is_lost_and_nothing_is_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for operation in range(100):
        store = tmp_path / f"{operation}"
        for number in range(4):
            put(store, f"r{number}", ps=number)
        compact_store(store, many=2)
        put(store, "r1", ps=11)
        put(store, "r2", day=2, ps=12)
        put(store, "new", ps=5)
        expected = {"r0": [0, 0], "r1": [11, 11], "r2": [12, 12], "r3": [3, 3], "new": [5, 5]}
        with killed_at(operation, monkeypatch) as done:
            try:
                compact_store(store, many=2)
                whole = True
            except KilledError:
                whole = False
        assert seen(store) == expected, operation
        compact_store(store, many=2)
        assert seen_by_others(store) == seen(store) == expected, operation
        if whole:
            # The rename of the joint file, and the three files that it was made of.
            assert done[0] == 4
            return
    raise AssertionError("it never ended")


def test_readers_and_writers_at_once_see_every_run_once(store: Path) -> None:
    wrong: list[Any] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                found = seen(store)
            except BadInputError as error:
                # On a busy machine it may never have the time between two changes.
                if "is being changed" in str(error):
                    continue
                raise
            if set(found) != {f"r{n}" for n in range(5)} or any(len(numbers) != 2 for numbers in found.values()):
                wrong.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(20):
        put(store, f"r{turn % 5}", ps=turn)
        compact_store(store, many=1 + turn % 3)
    over.set()
    reader.join()
    assert wrong == []


def test_the_command(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "compact", str(store)]) == 0
    assert "4 files fewer" in capsys.readouterr().err
    assert main(["fleet", "compact", str(store / "nowhere")]) == 1
    (store / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not a store of runs"):
        compact_store(store)
