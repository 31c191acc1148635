"""Partials on disk: OUT/.partials, one file per process and pass, and per node of the tree of merges.

A file's name is the hash of all that its content depends on: of pass 1 the process's files (size, time of change, head
and tail), the code, the schema and the settings; of pass 2 that key and what was solved of the process; of a merge the
keys of what it merges. So a file that is there is right, and an analysis that was killed goes on where it was. Files
come to their names by a rename; one that is not whole (a power cut) counts as missing.

The format: b"XPRPART1", int64 length of the JSON header, the header {"tables": {name: [offset, bytes]}, "said": ...,
"bytes": of the whole body}, the body of Arrow IPC streams. Files are of this machine's byte order and of this code
version: they are a cache, not a format to exchange.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

import xprof_py
from xprof_py import _native
from xprof_py.errors import BadInputError
from xprof_py.postprocess.hlo.cpu_peaks import cache_folder, machine, stored_file
from xprof_py.postprocess.readers.remote import stamp_and_ends
from xprof_py.postprocess.readers.shard_left import left_beside
from xprof_py.postprocess.readers.sources import Source
from xprof_py.postprocess.schema import SCHEMA_VERSION

FOLDER = ".partials"
_MAGIC = b"XPRPART1"
_ENDS_BYTES = 64 << 10
_SETTINGS = ("XPROF_PY_PEAKS", "XPROF_PY_CALIBRATE", "XPROF_PY_NVTX_STEPS")
"""Environment variables that a partial depends on."""


class SpoolError(OSError):
    """A partial cannot be written: the disk is full, the folder is gone. No fault of what was read."""


@dataclass(frozen=True)
class Part:
    """The content of one file: tables by name, and a JSON object."""

    tables: dict[str, pa.Table]
    said: dict[str, Any]


def key_of(*parts: str) -> str:
    """A key made of others and of text."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()


def key_of_source(source: Source, *, calibrate: bool) -> str:
    """The key of a process's partials of pass 1. Raises BadInputError where a file cannot be looked at."""
    said = [code_version(), str(SCHEMA_VERSION), source.key, source.base, source.member, str(calibrate)]
    said += [f"{name}={os.environ.get(name, '')}" for name in _SETTINGS]
    measured = stored_file(cache_folder(os.environ), *machine())
    for file in (Path(os.environ.get("XPROF_PY_PEAKS") or os.devnull), measured):
        said.append(hashlib.blake2b(file.read_bytes()).hexdigest() if file.is_file() else "")
    for name in ("xspace", "shard", "run_file", "programs", "trace", "saved"):
        path = getattr(source, name)
        said += [name, "" if path is None else f"{path} {_fingerprint(source.base, path)}"]
    if source.shard is not None and not source.base:
        said += [f"{path} {_fingerprint('', path)}" for path in left_beside(source.shard)]
    return key_of(*said)


def _fingerprint(base: str, path: Path) -> str:
    if base:
        stamp, ends = stamp_and_ends(f"{base}/{path}", _ENDS_BYTES)
    else:
        try:
            with path.open("rb") as opened:
                status = os.fstat(opened.fileno())
                ends = opened.read(_ENDS_BYTES)
                opened.seek(max(status.st_size - _ENDS_BYTES, 0))
                ends += opened.read(_ENDS_BYTES)
        except OSError as error:
            raise BadInputError(str(path), "", error.strerror or str(error)) from error
        stamp = f"{status.st_size} {status.st_mtime_ns}"
    return f"{stamp} {hashlib.blake2b(ends, digest_size=20).hexdigest()}"


@cache
def code_version() -> str:
    """The version, and a hash of the code that makes partials: a checkout has one version and many states."""
    found = hashlib.blake2b(xprof_py.__version__.encode(), digest_size=20)
    here = Path(__file__).parents[1]
    for file in [*sorted(here.rglob("*.py")), Path(_native.__file__)]:
        found.update(file.name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


class Spool:
    """A folder of partials. Its ``folder`` is what workers get: all of them must see it under this name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        """Make the folder, and take away what an earlier run that was killed left half-written. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(".writing-*"):
            left.unlink(missing_ok=True)

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.part"

    def table_path(self, key: str, table: str) -> Path:
        return self.folder / f"{key}.{table}.parquet"

    def said(self, key: str) -> dict[str, Any] | None:
        """The JSON object of a part, None where there is none that is whole."""
        header = self._header(key)
        return None if header is None else header[0]["said"]

    def read(self, key: str, names: Sequence[str] | None = None) -> Part:
        """A part, or these tables of it alone. Raises BadInputError where it is not there or not whole."""
        header = self._header(key)
        if header is None:
            reason = "is not there, or not whole: do all workers see this folder under this name?"
            raise BadInputError(str(self.path(key)), "", reason)
        found, body = header
        tables = {}
        with self.path(key).open("rb") as opened:
            for name in found["tables"] if names is None else names:
                offset, length = found["tables"][name]
                opened.seek(body + offset)
                tables[name] = pa.ipc.open_stream(pa.py_buffer(opened.read(length))).read_all()
        return Part(tables, found["said"])

    def write(self, key: str, tables: Mapping[str, pa.Table], said: Mapping[str, Any]) -> None:
        """All or nothing. Raises SpoolError."""
        bodies = {name: _ipc(table) for name, table in sorted(tables.items())}
        places, at = {}, 0
        for name, body in bodies.items():
            places[name] = [at, body.size]
            at += body.size
        header = orjson.dumps({"tables": places, "said": said, "bytes": at})

        def fill(path: Path) -> None:
            with path.open("wb") as out:
                out.write(_MAGIC + struct.pack("=q", len(header)) + header)
                for body in bodies.values():
                    out.write(body)

        self._placed(self.path(key), fill)

    def write_table(self, key: str, name: str, table: pa.Table) -> None:
        """A table that is not merged, as it will lie in OUT. Raises SpoolError."""
        self._placed(self.table_path(key, name), lambda path: pq.write_table(table, path, compression="zstd"))

    def keep_only(self, keys: Sequence[str]) -> None:
        """Remove the files of other keys: of input and code that are no more."""
        wanted = set(keys)
        for file in self.folder.iterdir():
            if file.name.split(".", 1)[0] not in wanted:
                file.unlink(missing_ok=True)

    def _header(self, key: str) -> tuple[dict[str, Any], int] | None:
        try:
            with self.path(key).open("rb") as opened:
                start = opened.read(16)
                if len(start) < 16 or start[:8] != _MAGIC:
                    return None
                (length,) = struct.unpack("=q", start[8:])
                header = orjson.loads(opened.read(length))
                size = os.fstat(opened.fileno()).st_size
        except (OSError, ValueError):
            return None
        return (header, 16 + length) if size == 16 + length + header["bytes"] else None

    def _placed(self, path: Path, fill: Callable[[Path], None]) -> None:
        # Not mkstemp: its files are for their owner alone, and these become files of OUT.
        fresh = self.folder / f".writing-{uuid.uuid4().hex}"
        try:
            fill(fresh)
            os.replace(fresh, path)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise SpoolError(error.errno, reason, str(path)) from error
        finally:
            fresh.unlink(missing_ok=True)


def packed(value: object) -> pa.Table:
    """A value made of arrays and tables, as a table."""
    return pa.table({"pickled": pa.array([pickle.dumps(value, protocol=5)], pa.large_binary())})


def unpacked(table: pa.Table) -> Any:
    """The value that ``packed`` made a table of: like every pickle, of a folder that only its owner writes to."""
    return pickle.loads(table["pickled"][0].as_buffer())


def _ipc(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()
