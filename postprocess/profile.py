"""Profile: one process's named Arrow tables and its metadata. A plain bundle; it computes nothing.

Saved, it is a folder with a Parquet file per table and `profile.json`: host, times, metadata, and the hash of every
table, so that this one file stands for the content of all.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq

from xprof_py.errors import BadInputError, UsageError
from xprof_py.postprocess import schema

SAVED = "profile.json"
"""Of a saved profile: the file that names the others."""
SAVED_FORMAT = "xprof_py profile"
_DICTIONARY_BYTES = 1 << 30
"""Parquet gives up a dictionary beyond its limit; then the column would come back with another one."""


_T = TypeVar("_T")


@dataclass(frozen=True)
class Profile:
    """One process's part of a capture.

    ``tables``: name -> Arrow table (schema.TABLES); ``profile["steps"]`` is one of them, empty where nothing was
    delivered. ``origin_ns``: UTC nanoseconds that ``start_ps`` counts from. ``capture_start_ps``/``capture_end_ps``:
    the edges of the capture on the same axis. ``host``: the name that reports show, unique within a job.
    ``metadata``: what the run file and the planes said (JSON values).
    """

    host: str
    origin_ns: int
    capture_start_ps: int
    capture_end_ps: int
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    derived: dict[str, tuple[tuple[Any, ...], Any]] = field(default_factory=dict, repr=False, compare=False)
    """What `once` keeps, by name, with what it was made of; nothing depends on its being there."""

    def __getitem__(self, name: str) -> pa.Table:
        if name in self.tables:
            return self.tables[name]
        return schema.empty(name)

    def __contains__(self, name: str) -> bool:
        return name in self.tables

    def once(self, name: str, of: tuple[Any, ...], make: Callable[[], _T]) -> _T:
        """``make()``, kept under ``name`` for whoever asks next, in this profile or one that adds tables to it.

        ``of``: all that it is made of. It is made anew where one of these is not the same object, or number, as before.
        """
        before, made = self.derived.get(name, ((), None))
        if len(before) == len(of) and all(
            a is b or (type(a) is type(b) is int and a == b) for a, b in zip(before, of, strict=True)
        ):
            return cast("_T", made)
        fresh = make()
        self.derived[name] = (of, fresh)
        return fresh

    def with_tables(self, **tables: pa.Table) -> Profile:
        """A copy with these tables added or replaced; every table is checked against its schema."""
        for name, value in tables.items():
            if value.schema != schema.TABLES[name]:
                raise ValueError(
                    f"table {name} does not have its schema:\n{value.schema}\nwanted\n{schema.TABLES[name]}"
                )
        return replace(self, tables={**self.tables, **tables})

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the profile into ``folder``, all or nothing, and return that path; ``load`` gives the same back.

        ``derived`` is not kept. Raises UsageError where there is something already, ValueError where a table does not
        have its schema or ``metadata`` holds what JSON does not have, OSError where it cannot be written.
        """
        out = Path(folder)
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"{out} exists: a profile is saved into a new or empty folder")
        for name, table in self.tables.items():
            if name not in schema.TABLES or table.schema != schema.TABLES[name]:
                raise ValueError(f"table {name} does not have the schema of a table of that name")
        _require_json(self.metadata, "metadata")
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            hashes = {}
            for name, table in sorted(self.tables.items()):
                file = fresh / f"{name}.parquet"
                pq.write_table(table, file, compression="zstd", dictionary_pagesize_limit=_DICTIONARY_BYTES)
                hashes[name] = _hash(file)
            said = {"format": SAVED_FORMAT, "schema_version": schema.SCHEMA_VERSION, "host": self.host}
            times = {name: getattr(self, name) for name in ("origin_ns", "capture_start_ps", "capture_end_ps")}
            text = json.dumps({**said, **times, "metadata": dict(self.metadata), "tables": hashes}, indent=1)
            (fresh / SAVED).write_text(text + "\n", encoding="ascii")
            fresh.chmod(0o755)
            fresh.replace(out)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return out

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Profile:
        """Read what ``save`` wrote: the same values, schemas and order of rows, each column in one chunk.

        Raises BadInputError where the folder holds no saved profile, one of another schema version, or tables that are
        missing or not what was saved.
        """
        file = Path(folder) / SAVED
        try:
            said = json.loads(file.read_bytes())
        except OSError as error:
            raise BadInputError(str(file), "", error.strerror or str(error)) from error
        except ValueError as error:
            raise BadInputError(str(file), "", f"is no JSON: {error}") from error
        if not isinstance(said, dict) or said.get("format") != SAVED_FORMAT:
            raise BadInputError(str(file), "", "is not that of a saved profile")
        if said.get("schema_version") != schema.SCHEMA_VERSION:
            why = f"has schema version {said.get('schema_version')}, this is {schema.SCHEMA_VERSION}"
            raise BadInputError(str(file), "", why)
        try:
            tables = {name: _read_table(Path(folder), name, wanted) for name, wanted in said["tables"].items()}
            times = {name: int(said[name]) for name in ("origin_ns", "capture_start_ps", "capture_end_ps")}
            return cls(host=str(said["host"]), **times, tables=tables, metadata=said["metadata"])  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInputError(str(file), "", f"is not what was saved: {error!r}") from error


def _require_json(value: Any, place: str) -> None:
    """A tuple would come back as a list, a number as a key as text."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{place}: the key {key!r} is no text")
            _require_json(part, f"{place}[{key!r}]")
    elif isinstance(value, list):
        for at, part in enumerate(value):
            _require_json(part, f"{place}[{at}]")
    elif value is not None and type(value) not in (str, int, float, bool):
        raise ValueError(f"{place}: {type(value).__name__} is no value of JSON")


def _hash(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _read_table(folder: Path, name: str, wanted: str) -> pa.Table:
    file = folder / f"{name}.parquet"
    if name not in schema.TABLES:
        raise BadInputError(str(file), "", "is no table that this version knows")
    try:
        if _hash(file) != wanted:
            raise BadInputError(str(file), "", "is not what was saved: it was changed, or breaks off")
        # Not read_table: it takes `name=value` in the folder's path for columns.
        table = pq.ParquetFile(file).read()
    except OSError as error:
        raise BadInputError(str(file), "", error.strerror or str(error)) from error
    except pa.ArrowException as error:
        raise BadInputError(str(file), "", str(error)) from error
    return table.unify_dictionaries().combine_chunks().cast(schema.TABLES[name])
