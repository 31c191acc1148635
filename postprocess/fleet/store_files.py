"""The files of a run store: a run each, until a day has so many that they are put together.

    STORE/day=2026-11-30/<key>.parquet                one run
    STORE/day=2026-11-30/together-000007.parquet      many runs of that day

What holds of a run is its own file, else the joint file with the largest number; other rows of it are left over, of a
run that was added again or of a kill, and the next compaction takes them away. A joint file comes by a rename before
the files it is made of go: at any time every run can be read, and is read once. Who changes files holds a lock.
"""

from __future__ import annotations

import fcntl
import functools
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from xprof_py.errors import BadInputError
from xprof_py.postprocess.fleet.spool import FOLDER

MANY_FILES = 64
"""Files of single runs in a day that are put together."""
_TOGETHER = "together-"
_ATTEMPTS = 5
"""How often a store is read again whose files were put together meanwhile."""


def key_of_run(job: str, run: str) -> str:
    """The name of a run's own file."""
    return blake2b(f"{job}\0{run}".encode(), digest_size=16).hexdigest()


def put_run(store: Path, key: str, day: str, rows: pa.Table) -> None:
    """The rows of a run, in place of all that the store has of it. Raises OSError."""
    place = store / f"day={day}" / f"{key}.parquet"
    with _changing(store):
        write_file(place, lambda path: pq.write_table(rows, path, compression="zstd"))
        for old in store.glob(f"day=*/{key}.parquet"):
            if old != place:
                old.unlink(missing_ok=True)


def write_file(place: Path, fill: Callable[[Path], object]) -> None:
    """A file two levels below its store, whole or not at all. Raises OSError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    # In .partials: a reader of the store sees whole files only.
    fresh = place.parents[1] / FOLDER / f".writing-{uuid.uuid4().hex}"
    fresh.parent.mkdir(exist_ok=True)
    try:
        fill(fresh)
        os.replace(fresh, place)
    finally:
        fresh.unlink(missing_ok=True)


def read_runs(store: Path, schema: pa.Schema) -> list[pa.Table]:
    """The rows of every run, once each, in any order. Raises BadInputError where a file cannot be read."""
    for attempt in range(_ATTEMPTS):
        time.sleep(0.1 * attempt)
        try:
            found = _Files(store, schema)
            tables = list(found.current())
        except FileNotFoundError:
            continue
        # A file that comes and those that go while they are listed can all be missed.
        if found.are_all():
            return tables
    raise BadInputError(str(store), "", "is being changed all the time: try again later")


def compact(store: Path, schema: pa.Schema, *, many: int = MANY_FILES) -> int:
    """Put the runs of each day with ``many`` files of their own together, and take left-over rows away.

    Returns how many files fewer there are. Killed at any time it has lost nothing and doubled nothing. Raises OSError,
    and BadInputError where a file cannot be read.
    """
    with _changing(store):
        found = _Files(store, schema)
        before = len(_listed(store))
        number = 1 + max((_number(file) for file in found.joint), default=0)
        for day in sorted({file.parent for file in (*found.own, *found.joint)}):
            joint = [file for file in found.joint if file.parent == day]
            own = [file for file in found.own if file.parent == day]
            own = own if len(own) >= many else []
            if not own and len(joint) < 2 and not any(found.left_over(file) for file in joint):
                continue
            kept = [table for file in (*joint, *own) if (table := found.rows(file)).num_rows]
            if kept:
                order = [(name, "ascending") for name in ("job", "started_ns", "run")]
                rows = pa.concat_tables(kept).sort_by(order)
                place = day / f"{_TOGETHER}{number:06}.parquet"
                write_file(place, functools.partial(pq.write_table, rows, compression="zstd"))
                number += 1
            for file in (*joint, *own):
                file.unlink()
        return before - len(_listed(store))


class _Files:
    """The files of a store as they are now, and which of them holds of which run."""

    def __init__(self, store: Path, schema: pa.Schema) -> None:
        self._store, self._schema = store, schema
        files = _listed(store)
        self.own = [file for file in files if not file.name.startswith(_TOGETHER)]
        self.joint = sorted((file for file in files if file.name.startswith(_TOGETHER)), key=_number)
        self._holds: dict[str, Path] = {}
        self._keys: dict[Path, tuple[list[str], np.ndarray[tuple[int], np.dtype[np.int32]]]] = {}
        for file in self.joint:
            self._keys[file] = _keys_of(self._read(file, ["job", "run"]))
            self._holds |= dict.fromkeys(self._keys[file][0], file)
        # A kill between the writing of a run that has moved to another day and the removal of the old file leaves two.
        self._holds |= {file.stem: file for file in self.own}

    def are_all(self) -> bool:
        """Whether the store still has these files, and no others."""
        return _listed(self._store) == sorted((*self.own, *self.joint))

    def left_over(self, file: Path) -> bool:
        """Whether a joint file has rows that do not hold."""
        return any(self._holds[key] != file for key in self._keys[file][0])

    def rows(self, file: Path) -> pa.Table:
        """The rows of a file that hold."""
        if file not in self._keys:
            return self._read(file, None) if self._holds[file.stem] == file else self._schema.empty_table()
        keys, of = self._keys[file]
        holds = np.array([self._holds[key] == file for key in keys], np.bool_)
        return self._read(file, None).filter(pa.array(holds[of]))

    def current(self) -> Iterator[pa.Table]:
        """The rows of every file that hold."""
        return (self.rows(file) for file in (*self.joint, *self.own))

    def _read(self, file: Path, columns: Sequence[str] | None) -> pa.Table:
        try:
            return pq.read_table(file, schema=self._schema, partitioning=None, columns=columns)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise BadInputError(str(file), "", str(error)) from error


def _listed(store: Path) -> list[Path]:
    return sorted(store.glob("day=*/*.parquet"))


def _keys_of(rows: pa.Table) -> tuple[list[str], np.ndarray[tuple[int], np.dtype[np.int32]]]:
    """(keys of the runs, which of them each row is of)."""
    named = pc.binary_join_element_wise(rows["job"], rows["run"], "\0").combine_chunks().dictionary_encode()
    keys = [key_of_run(*text.split("\0", 1)) for text in named.dictionary.to_pylist()]
    return keys, np.asarray(named.indices.to_numpy(zero_copy_only=False), np.int32)


def _number(file: Path) -> int:
    digits = file.stem.removeprefix(_TOGETHER)
    return int(digits) if digits.isdigit() else 0


@contextmanager
def _changing(store: Path) -> Iterator[None]:
    """One at a time: the lock goes with the process that holds it. Raises OSError where a file system has no locks."""
    folder = store / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
