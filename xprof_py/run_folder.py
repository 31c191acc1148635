"""The run folder of one process: its file names, who may use the folder, and writes that leave whole files only.

    RUN/run/<rank>-<pid>.json                       the run file
    RUN/shards/<rank>-<pid>.xpr                     the recorder's shard
    RUN/programs/<rank>-<pid>.hlo.pb                compiled programs, where GPUs were recorded without XLA's profiler
    RUN/torch/<rank>-<pid>-<n>.pt.trace.json[.gz]   traces that PyTorch's profiler exported in the capture
    RUN/plugins/profile/<session>/<rank>.xplane.pb  XLA's profile
    RUN/snapshots/<name>/                           a flight recorder's snapshots, each with a run file and a shard

Several processes of one job share a RUN, and all below one `xprof-py run`, at once or one after the other. What another
capture left there is in use and refused, unless it may be overwritten; then only files that a run file of that session
names are removed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from xprof_py.errors import CaptureError
from xprof_py.places import FolderPlace, Place, place_of
from xprof_py.rank import Rank
from xprof_py.startup.sitecustomize import RUN_ID

# Room kept in the run file from the start: when the disk is full at the end, its last state is still written in place.
RUN_FILE_RESERVE_BYTES = 8192
# Conditions of the machine, not mistakes of the call: the program runs on without a profile.
DEGRADING_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE})


class RunFolder:
    """One process's part of a run folder.

    ``root`` is where files are written while recording: RUN itself, or a folder in TMPDIR that :meth:`deliver` copies
    to RUN at the end (``staged``), where RUN is an address (gs://...) or lies on a network file system.
    """

    def __init__(self, path: str, session: str, rank: Rank, uses_xla: bool) -> None:
        """Args: ``path``: RUN; ``session``: folder name of XLA's profile; ``rank``: as far as known; ``uses_xla``:
        whether XLA's profile may be written. Raises CaptureError where RUN is an address that nothing here can open.
        """
        self.path = path
        self.session = session
        self.rank = rank
        self.pid = os.getpid()
        self.run_id = os.environ.get(RUN_ID) or None
        self._uses_xla = uses_xla
        self.place: Place = place_of(path)
        self.staged = not (isinstance(self.place, FolderPlace) and not self.place.is_remote)
        self.root = Path(path)
        self._take_label(rank)

    def _take_label(self, rank: Rank) -> None:
        self.rank, self._label = rank, rank.label(self.pid)
        self.xplane_name = f"plugins/profile/{self.session}/{self._label}.xplane.pb"

    @property
    def shard_name(self) -> str:
        return f"shards/{self._label}-{self.pid}.xpr"

    @property
    def programs_name(self) -> str:
        return f"programs/{self._label}-{self.pid}.hlo.pb"

    def torch_trace(self, number: int, suffix: str) -> Path:
        """Where the copy of a trace of PyTorch's profiler belongs while recording."""
        return self.root / "torch" / f"{self._label}-{self.pid}-{number}{suffix}"

    def torch_traces(self) -> list[str]:
        """Names below RUN of the copies that are there."""
        return sorted(f"torch/{path.name}" for path in (self.root / "torch").glob(f"{self._label}-{self.pid}-*"))

    @property
    def run_file_name(self) -> str:
        return f"run/{self._label}-{self.pid}.json"

    def claim(self, overwrite: bool, document: Mapping[str, Any]) -> None:
        """Take the place: refuse a RUN in use, create the folders, write the first run file.

        Raises:
            CaptureError: RUN in use, not writable, not reachable.
            OSError: with an errno of DEGRADING_ERRNOS; the program should run on without a profile.
        """
        try:
            others = self._others()
            self._refuse_or_remove(others, overwrite)
            folders = ["run", "shards", f"plugins/profile/{self.session}"]
            self.place.prepare(folders if self._uses_xla and not self.staged else folders[:2])
            if self.staged:
                self.root = Path(tempfile.mkdtemp(prefix="xprof_py-"))
                FolderPlace(self.root).prepare(folders)
            self.write_run_file(document, first=True)
            if self.staged:
                self.place.put(self.root / self.run_file_name, self.run_file_name)
        except CaptureError:
            raise
        except OSError as error:
            if error.errno in DEGRADING_ERRNOS:
                raise
            raise CaptureError(f"{self.path}: cannot record there: {error.strerror or error}") from error

    def settle(self, rank: Rank) -> Rank:
        """Take the final rank and return it; renames the shard and the run file where their names said something else.

        Programs that one `xprof-py run` starts one after the other may each be rank 0, of no job: the later is none.
        """
        shard, run_file, traces = self.shard_name, self.run_file_name, self.torch_traces()
        before = f"torch/{self._label}-"
        if rank.label(self.pid) == self._label:
            return rank
        if self.run_id is not None and rank.job is None and self._is_taken(rank):
            return replace(self.rank, count=rank.count)
        self._take_label(rank)
        moved = [
            (shard, self.shard_name),
            (f"{shard}.rings", f"{self.shard_name}.rings"),
            (run_file, self.run_file_name),
            *((name, f"torch/{self._label}-{name.removeprefix(before)}") for name in traces),
        ]
        for old, new in moved:
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.root / old, self.root / new)
        if self.staged:
            self.place.remove(run_file)
        return rank

    def write_run_file(self, document: Mapping[str, Any], first: bool = False) -> None:
        """Write the run file whole (temporary file, then rename). Raises OSError."""
        path = self.root / self.run_file_name
        text = (json.dumps(document, indent=1, default=str) + "\n").encode()
        content = text.ljust(RUN_FILE_RESERVE_BYTES - 1) + b"\n" if first else text
        try:
            _write_whole(path, content)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or first:
                raise
            with open(path, "r+b") as file:
                size = os.fstat(file.fileno()).st_size
                if size < len(text):
                    raise
                file.write(text.ljust(size - 1) + b"\n")

    def write_xplane(self, content: bytes) -> str:
        """Write XLA's profile whole and return its name below RUN. Raises OSError; nothing half written stays.

        Two processes may both be rank 0, each of a job of its own: the second one's file has the pid in its name.
        """
        path = self.root / self.xplane_name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _write_whole(path, content, replace=False):
            self.xplane_name = f"plugins/profile/{self.session}/{self._label}-{self.pid}.xplane.pb"
            _write_whole(self.root / self.xplane_name, content)
        return self.xplane_name

    def write_programs(self, content: bytes) -> str:
        """Write the compiled programs whole and return the file's name below RUN. Raises OSError."""
        path = self.root / self.programs_name
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(path, content)
        return self.programs_name

    def adopt_xplane(self, since_ns: int) -> str | None:
        """Give a profile that JAX itself exported into the session's folder its place; its name, None if there is none.

        ``since_ns``: CLOCK_REALTIME at the capture's start; older files belong to somebody else.
        """
        folder = (self.root / self.xplane_name).parent
        found = [path for path in folder.glob("*.xplane.pb") if path.stat().st_mtime_ns >= since_ns - 2_000_000_000]
        if len(found) != 1:
            return None
        os.replace(found[0], self.root / self.xplane_name)
        return self.xplane_name

    def drop_empty_session_folder(self) -> None:
        """Remove the session's folder if nobody wrote a profile: viewers would list an empty run."""
        for folder in (f"plugins/profile/{self.session}", "plugins/profile", "plugins"):
            with contextlib.suppress(OSError):
                os.rmdir(self.root / folder)

    def deliver(self) -> None:
        """Copy what was recorded in TMPDIR to RUN, the run file last, and remove the copy here. Raises OSError."""
        if not self.staged:
            return
        names = [self.shard_name, self.xplane_name, self.programs_name, *self.torch_traces()]
        names += [str(p.relative_to(self.root)) for p in sorted(self.root.glob("snapshots/**/*")) if p.is_file()]
        names.append(self.run_file_name)
        for name in names:
            if (self.root / name).exists():
                self.place.put(self.root / name, name)
        shutil.rmtree(self.root, ignore_errors=True)

    def _others(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Run files of this session that were not written by other processes of this very job."""
        found = read_run_files(self.place)
        found = [(name, said) for name, said in found if said.get("session", self.session) == self.session]
        return [(name, said) for name, said in found if not self._is_sibling(said)]

    def _is_taken(self, rank: Rank) -> bool:
        label = rank.label(self.pid)
        return any(
            said.get("run_id") == self.run_id and said.get("rank") == label and said.get("pid") != self.pid
            for _, said in read_run_files(self.place)
        )

    def _is_sibling(self, document: Mapping[str, Any]) -> bool:
        if document.get("pid") == self.pid and document.get("boot_id") == boot_id():
            return False
        if self.run_id is not None and document.get("run_id") == self.run_id:
            return True
        same_rank = self.rank.index is not None and document.get("rank") == str(self.rank.index)
        if self.rank.job is not None and document.get("job") is not None:
            # A rerun on the same address with another number of processes is another job.
            counts = {self.rank.count, document.get("job_processes")} - {None}
            return document["job"] == self.rank.job and len(counts) <= 1 and not same_rank
        # No launcher names the job: processes that one parent started and that record at this moment are one job.
        return (
            not same_rank
            and document.get("ppid") == os.getppid()
            and document.get("boot_id") == boot_id()
            and document.get("state") in ("armed", "recording", "stopping")
            and _is_alive(document.get("pid"))
        )

    def _refuse_or_remove(self, others: list[tuple[str, Mapping[str, Any]]], overwrite: bool) -> None:
        if not others:
            return
        if not overwrite:
            name, document = others[0]
            raise CaptureError(
                f"{self.path}: already holds a capture ({name}, state {document.get('state', 'unknown')}). "
                "Record into another folder, or say overwrite=True"
            )
        for name, document in others:
            files = document.get("files")
            named = list(files.values()) if isinstance(files, dict) else []
            for file in [*named, *(trace for traces in named if isinstance(traces, list) for trace in traces)]:
                # A run file is a file like any other: it does not get to name what lies outside RUN.
                if (
                    isinstance(file, str)
                    and file.startswith(("shards/", "programs/", "torch/", "plugins/profile/"))
                    and ".." not in file
                ):
                    self.place.remove(file)
                    self.place.remove(f"{file}.rings")
                    self.place.remove_numbered(f"{file}.", ".segment")
            for left in _files_of_snapshots(document, name):
                self.place.remove(left)
            self.place.remove(name)


def read_run_files(place: Place) -> list[tuple[str, Mapping[str, Any]]]:
    """(name below RUN, what it says) of every run file; one that is no JSON object says nothing."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name, content in place.read("run", ".json"):
        try:
            document = json.loads(content)
        except ValueError:
            document = {}
        found.append((name, document if isinstance(document, dict) else {}))
    return found


def boot_id() -> str | None:
    """The kernel's id of this boot, the domain of CLOCK_MONOTONIC; None where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _files_of_snapshots(document: Mapping[str, Any], run_file_name: str) -> list[str]:
    """The files that a flight recorder's snapshots hold, as its run file names them."""
    flight = document.get("flight")
    snapshots = flight.get("snapshots") if isinstance(flight, dict) else None
    files = document.get("files")
    shard = files.get("shard") if isinstance(files, dict) else None
    found = []
    for snapshot in snapshots if isinstance(snapshots, list) else []:
        name = snapshot.get("name") if isinstance(snapshot, dict) else None
        if isinstance(name, str) and "/" not in name and name != "..":
            found += [f"snapshots/{name}/{file}" for file in (shard, run_file_name) if isinstance(file, str)]
    return [file for file in found if ".." not in file.split("/")]


def _is_alive(pid: object) -> bool:
    return isinstance(pid, int) and Path(f"/proc/{pid}").exists()


def _write_whole(path: Path, content: bytes, replace: bool = True) -> bool:
    """Write a file whole; False if it exists and is not to be replaced."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        if not replace:
            try:
                os.link(temporary, path)
            except FileExistsError:
                temporary.unlink()
                return False
            except OSError:
                # A file system without hard links: the last process to write wins there.
                os.replace(temporary, path)
                return True
            temporary.unlink()
            return True
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return True
