"""Where a run folder can lie: a folder here, a folder on a network file system, or an address that fsspec opens."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from xprof_py.errors import CaptureError

# A server that does not answer must not keep a training from starting.
REACH_TIMEOUT_S = 20.0
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "afs", "ceph")

Result = TypeVar("Result")


class Place(Protocol):
    """A folder that a capture is written or copied into. Names are relative, with slashes. All raise OSError."""

    def read(self, folder: str, suffix: str) -> Iterator[tuple[str, bytes]]:
        """``(name, content)`` of the folder's files that end with ``suffix``; none where the folder is missing."""

    def prepare(self, folders: list[str]) -> None:
        """Create the folders and make sure that files can be created in them."""

    def put(self, local: Path, name: str) -> None:
        """Copy a file from this machine to ``name``."""

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens where it is missing."""

    def remove_numbered(self, before: str, after: str) -> None:
        """Remove the files whose names are ``before``, a number, and ``after``."""


class FolderPlace:
    """A folder of this machine's file tree; ``is_remote`` where a server elsewhere holds it."""

    def __init__(self, root: Path, is_remote: bool = False) -> None:
        self.root = root
        self.is_remote = is_remote

    def read(self, folder: str, suffix: str) -> Iterator[tuple[str, bytes]]:
        try:
            names = sorted(os.listdir(self.root / folder))
        except FileNotFoundError:
            return
        for name in names:
            # A sibling may rename its file between the listing and the reading: it is then a sibling still at work.
            if name.endswith(suffix) and not name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    yield f"{folder}/{name}", (self.root / folder / name).read_bytes()

    def prepare(self, folders: list[str]) -> None:
        for folder in folders:
            path = self.root / folder
            path.mkdir(parents=True, exist_ok=True)
            probe = path / f".writable-{os.getpid()}"
            probe.touch()
            probe.unlink()

    def put(self, local: Path, name: str) -> None:
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        shutil.copyfile(local, temporary)
        os.replace(temporary, target)

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def remove_numbered(self, before: str, after: str) -> None:
        folder, _, beginning = before.rpartition("/")
        for name in os.listdir(self.root / folder) if (self.root / folder).is_dir() else ():
            number = name.removeprefix(beginning).removesuffix(after)
            if number.isdigit() and name == f"{beginning}{number}{after}":
                self.remove(f"{folder}/{name}")


class AddressPlace:
    """A folder behind an address such as gs://bucket/runs, through fsspec."""

    def __init__(self, file_system: Any, root: str) -> None:
        self._files = file_system
        self._root = root.rstrip("/")

    def read(self, folder: str, suffix: str) -> Iterator[tuple[str, bytes]]:
        self._files.invalidate_cache()
        try:
            paths = self._files.ls(f"{self._root}/{folder}", detail=False)
        except FileNotFoundError:
            return
        for path in sorted(paths):
            if path.endswith(suffix):
                yield f"{folder}/{path.rsplit('/', 1)[-1]}", self._files.cat_file(path)

    def prepare(self, folders: list[str]) -> None:
        # Object stores have no folders; file systems behind an address do. The first put shows whether it may write.
        for folder in folders:
            self._files.makedirs(f"{self._root}/{folder}", exist_ok=True)

    def put(self, local: Path, name: str) -> None:
        self._files.put_file(os.fspath(local), f"{self._root}/{name}")

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    def remove_numbered(self, before: str, after: str) -> None:
        """Nothing: what is recorded there was copied, and only whole files are."""


def place_of(path: str) -> FolderPlace | AddressPlace:
    """The place that ``path`` names. Raises CaptureError for an address without fsspec or with an unknown scheme."""
    if "://" not in path:
        return FolderPlace(Path(path), is_remote=is_far(path))
    scheme = path.split("://", 1)[0]
    try:
        fsspec: Any = importlib.import_module("fsspec")
    except ImportError:
        raise CaptureError(f"{path}: an address needs fsspec (pip install fsspec) and its {scheme} backend") from None
    try:
        file_system, root = fsspec.core.url_to_fs(path)
    except Exception as error:
        raise CaptureError(f"{path}: fsspec cannot open it: {error}") from error
    return AddressPlace(file_system, root)


def within(seconds: float, what: str, work: Callable[[], Result]) -> Result:
    """``work()`` on a thread of its own, waited for at most ``seconds``; its exception is raised here.

    Raises CaptureError after ``seconds``: a dead server holds the thread, not the program.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="xprof_py reach", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise CaptureError(f"{what}: no answer within {seconds:g} s")
    return results[0]


def is_far(path: str) -> bool:
    """Whether ``path`` is an address or lies below a network mount, told from the mount table alone: a dead server is
    not asked."""
    if "://" in path:
        return True
    try:
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    kind = file_system_of(os.path.abspath(path), table)
    return kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse.")


def file_system_of(path: str, mount_table: str) -> str:
    """The type of the file system that an absolute ``path`` lies on; ``mount_table``: text of /proc/self/mountinfo."""
    best, kind = "", ""
    for line in mount_table.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5:
            continue
        point = fields[4].replace("\\040", " ")
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, right.split(" ", 1)[0]
    return kind
