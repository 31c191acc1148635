"""Results behind URLs (s3://, gs://, memory://), through fsspec: made here in a temporary folder, then put there.

Such stores replace one file at a time, whole; they have no renames of folders and no locks. So the order of changes
says what a reader sees: of an analysis summary.json goes first and comes last, and while it is absent there is none; of
a store of runs new files come before old ones go, as its rules for left-over files have it (store_files.py). One
process at a time may write to a URL.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from xprof_py.errors import BadInputError, UsageError, XprofPyError
from xprof_py.postprocess import schema
from xprof_py.postprocess.fleet.analysis import SUMMARY
from xprof_py.postprocess.fleet.spool import FOLDER
from xprof_py.postprocess.fleet.store import is_of_store
from xprof_py.postprocess.readers.remote import file_system

_UNFINISHED = ".xprof_py-unfinished"
"""A file that is there while an analysis is being put there, and stays where that was ended."""


def require_analysis(url: str) -> None:
    """Raises UsageError where there is something else at ``url``, XprofPyError where that cannot be told."""
    there = _listed(url)
    if there and not there & {SUMMARY, _UNFINISHED}:
        raise UsageError(f"{url} exists and is not an analysis: name another folder with -o")


def put_analysis(out: Path, url: str) -> None:
    """Put the folder that write_analysis made at ``url``, in place of the analysis there; other files stay.

    Raises UsageError and XprofPyError. Ended in between it leaves no summary.json: the same again makes it whole.
    """
    require_analysis(url)
    there = _listed(url)
    _asked(url, lambda files, at: files.pipe_file(f"{at}/{_UNFINISHED}", b"xprof-py analyze is writing here\n"))
    old: dict[str, Any] = {}
    if SUMMARY in there:
        try:
            found = orjson.loads(_asked(url, lambda files, at: files.cat_file(f"{at}/{SUMMARY}")))
            old = found if isinstance(found, dict) else {}
        except ValueError:
            old = {}
        _remove(url, SUMMARY)
    new = {file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()}
    # A table that was one file may be a folder of them now.
    for table in sorted(_tables(there, old)):
        _remove_table(url, table)
    for name in sorted(new - {SUMMARY}):
        _put(url, out, name)
    _put(url, out, SUMMARY)
    _remove(url, _UNFINISHED)


def _put(url: str, folder: Path, name: str) -> None:
    _asked(url, lambda files, at: files.put_file(str(folder / name), f"{at}/{name}"))


def _get(url: str, folder: Path, name: str) -> None:
    _asked(url, lambda files, at: files.get_file(f"{at}/{name}", str(folder / name)))


def _remove(url: str, name: str) -> None:
    _asked(url, lambda files, at: files.rm_file(f"{at}/{name}"))


def _remove_table(url: str, table: str) -> None:
    _asked(url, lambda files, at: files.rm(f"{at}/{table}", recursive=True))


def _tables(there: set[str], summary: dict[str, Any]) -> set[str]:
    """The tables of an analysis that are there, in one file or in a folder of files."""
    listed = summary.get("tables")
    tables = {f"{name}.parquet" for name in (*schema.TABLES, *(listed if isinstance(listed, list) else ()))}
    return {name.split("/", 1)[0] for name in there} & tables


@contextmanager
def store_at(url: str, *, changes: bool, new: bool = False) -> Iterator[Path]:
    """A copy of the store of runs at ``url`` for the length of the block; what the block ``changes`` is put there.

    Also where the block raises: the runs that are done are kept. ``new``: there need not be one. Raises UsageError
    where there is something else, BadInputError where there is none, XprofPyError where it cannot be read or written.
    """
    there = _listed(url)
    strange = sorted(name for name in there if not is_of_store(name.split("/", 1)[0]))
    if strange:
        raise UsageError(f"{url} holds {strange[0]} and is not a store of runs: name another folder with -o")
    if not there and not new:
        raise BadInputError(url, "", "no such folder")
    with tempfile.TemporaryDirectory(prefix="xprof_py-store-") as folder:
        here = Path(folder, "store")
        for name in sorted(there):
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            _get(url, here, name)
        before = _stamps(here)
        try:
            yield here
        except BadInputError as error:
            shown = (text.replace(str(here), url) for text in (error.file, error.place, error.reason))
            raise BadInputError(*shown) from error
        finally:
            after = _stamps(here)
            for name in sorted(after) if changes else ():
                if before.get(name) != after[name]:
                    _put(url, here, name)
            for name in sorted(before.keys() - after.keys()) if changes else ():
                _remove(url, name)


def _stamps(store: Path) -> dict[str, tuple[int, int]]:
    """The files of a store here; one that is replaced has another number."""
    files = (file for file in store.rglob("*") if file.is_file() and FOLDER not in file.relative_to(store).parts)
    return {file.relative_to(store).as_posix(): (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def _listed(url: str) -> set[str]:
    """Names of the files below ``url``."""

    def names(files: Any, at: str) -> set[str]:
        prefix = files._strip_protocol(url).rstrip("/") + "/"
        files.invalidate_cache()
        return {str(name).removeprefix(prefix) for name in (files.find(at) if files.exists(at) else ())}

    found: set[str] = _asked(url, names)
    return found


def _asked(url: str, ask: Callable[[Any, str], Any]) -> Any:
    """What a store answers. Each has errors of its own kind: all of them mean that it cannot be written to."""
    files, inside = file_system(url)
    try:
        return ask(files, inside.rstrip("/"))
    except Exception as error:
        raise XprofPyError(f"{url}: {type(error).__name__}: {error}") from error
