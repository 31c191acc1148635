"""Profiles behind URLs (s3://, gs://, memory://): listed by the rules for folders, fetched one process at a time.

Needs fsspec and the store's own package (`pip install "xprof_py[remote]" s3fs`). A listing is mirrored as a folder of
empty files, so that one set of rules says what makes up a job. A worker copies the files of one process to a temporary
folder while it reads them: the disk holds one process per worker.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from xprof_py.errors import BadInputError, UsageError
from xprof_py.postprocess.readers import sources
from xprof_py.postprocess.readers.sources import Source, Sources


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether fsspec is to open it."""
    return "://" in os.fspath(path)


_FILES = ("xspace", "shard", "run_file", "programs", "trace", "saved")
"""The fields of Source that name one file each; `torch` names several."""


def find_remote(urls: Sequence[str]) -> Sources:
    """find_sources for URLs of folders or files. Raises BadInputError and UsageError as it does.

    Paths in the result are relative to ``Source.base``, the URL.
    """
    processes: list[Source] = []
    diagnostics: list[dict[str, Any]] = []
    for url in urls:
        with tempfile.TemporaryDirectory(prefix="xprof_py-listing-") as mirror:
            # The folder's own name is in messages and in the name of the analysis.
            root = Path(mirror, PurePosixPath(url.rstrip("/")).name or "profiles")
            is_file = _mirror(url, root)
            try:
                found = sources.find_sources([root])
            except BadInputError as error:
                shown = [str(text).replace(str(root), url) for text in (error.file, error.place, error.reason)]
                raise BadInputError(*shown) from error
            at = root.parent if is_file else root
            base = url.rstrip("/").rsplit("/", 1)[0] if is_file else url.rstrip("/")
            processes += [_relative(source, at, base) for source in found.processes]
            diagnostics += [{k: _text(v, str(root), url) for k, v in row.items()} for row in found.diagnostics]
    return Sources(processes, None, diagnostics)


@dataclass(frozen=True)
class Fetched(Source):
    """A source whose files lie here; ``shown`` puts their own names into a text."""

    replaced: tuple[str, str] | None = None

    def shown(self, text: str) -> str:
        """The text with the URL of a file in place of its copy's name."""
        return text if self.replaced is None else text.replace(*self.replaced)


@contextmanager
def fetched(source: Source) -> Iterator[Fetched]:
    """The files of one process as local files for the length of the block. Raises BadInputError."""
    names: dict[str, Any] = {n: getattr(source, n) for n in _FILES if getattr(source, n) is not None}
    if not source.base:
        yield Fetched(source.key, member=source.member, torch=source.torch, **names)
        return
    folder = tempfile.mkdtemp(prefix="xprof_py-fetched-")
    try:

        def copied(path: Path) -> Path:
            url, local = f"{source.base}/{path}", Path(folder, path)
            local.parent.mkdir(parents=True, exist_ok=True)
            files, inside = file_system(url)
            _said(url, files.get_file, inside, str(local))
            return local

        local: dict[str, Any] = {name: copied(path) for name, path in names.items()}
        local["torch"] = tuple(map(copied, source.torch))
        here = Fetched(source.key, **local, member=source.member, replaced=(folder, source.base))
        try:
            yield here
        except BadInputError as error:
            raise BadInputError(here.shown(error.file), here.shown(error.place), here.shown(error.reason)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def stamp_and_ends(url: str, length: int) -> tuple[str, bytes]:
    """(what the store says of the version of a file, its first and last ``length`` bytes). Raises BadInputError."""
    files, inside = file_system(url)
    found = _said(url, files.info, inside)
    stamp = {
        k: str(found[k]) for k in ("size", "ETag", "etag", "mtime", "LastModified", "updated", "created") if k in found
    }
    size = int(found["size"])
    head = _said(url, files.cat_file, inside, start=0, end=min(length, size))
    tail = _said(url, files.cat_file, inside, start=max(size - length, 0), end=size)
    return repr(sorted(stamp.items())), bytes(head) + bytes(tail)


def _mirror(url: str, root: Path) -> bool:
    """Make ``root`` look like what is at ``url``, without content; returns whether that is one file."""
    files, inside = file_system(url)
    if _said(url, files.isfile, inside):
        root.touch()
        return True
    listed = _said(url, files.find, inside, detail=True)
    if not listed:
        raise BadInputError(url, "", "no such file or folder")
    prefix = files._strip_protocol(url).rstrip("/")
    newest: dict[Path, float] = {}
    for name, found in listed.items():
        path = root / str(name).removeprefix(prefix).lstrip("/")
        if not path.resolve().is_relative_to(root.resolve()):
            raise BadInputError(url, str(name), "is a name outside the folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        changed = found.get("mtime") or found.get("LastModified") or found.get("updated") or found.get("created") or 0
        seconds = changed.timestamp() if isinstance(changed, datetime) else changed
        if isinstance(seconds, int | float):
            os.utime(path, (seconds, seconds))
            newest[path.parent] = max(newest.get(path.parent, 0), seconds)
    # Stores have no folders: one is as new as its newest file.
    for folder, seconds in newest.items():
        os.utime(folder, (seconds, seconds))
    return False


def file_system(url: str) -> tuple[Any, str]:
    """(what fsspec opens a URL with, its name there). Raises UsageError where a package for that is not there."""
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(f'{url}: URLs need fsspec: pip install "xprof_py[remote]"') from error
    try:
        files, inside = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{url}: {error}") from error
    return files, str(inside)


def _said(url: str, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a store answers. Each has errors of its own kind: all of them are reasons why a file cannot be read."""
    try:
        return ask(*arguments, **options)
    except Exception as error:
        raise BadInputError(url, "", f"{type(error).__name__}: {error}") from error


def _relative(source: Source, root: Path, base: str) -> Source:
    moved = {n: getattr(source, n) for n in _FILES}
    moved = {n: p and p.relative_to(root) for n, p in moved.items()}
    return replace(source, base=base, **moved, torch=tuple(p.relative_to(root) for p in source.torch))


def _text(value: Any, old: str, new: str) -> Any:
    return value.replace(old, new) if isinstance(value, str) else value
