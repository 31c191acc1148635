"""Which files make up a job: from what a person names (run folder, folder, glob, files) to one entry per process."""

from __future__ import annotations

import glob
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xprof_py.errors import BadInputError, UsageError
from xprof_py.postprocess.profile import SAVED
from xprof_py.postprocess.readers.chrome_text import TAR_SUFFIXES, traces_in
from xprof_py.postprocess.readers.sniff import Format, is_trace, sniff

XSPACE_SUFFIXES = (".xplane.pb", ".xplane.pb.gz", ".xspace.pb")
SHARD_SUFFIX = ".xpr"
PROGRAMS_SUFFIX = ".hlo.pb"
"""Of the programs that a capture stored beside its shard: RUN/programs/<rank>-<pid>.hlo.pb."""
TRACE_SUFFIXES = (".pt.trace.json", ".pt.trace.json.gz", ".trace.json", ".trace.json.gz", ".json", ".json.gz")
"""Of traces of PyTorch. Beside XSpaces and shards such files are other tools' renderings of them."""
NSYS_SUFFIXES = (".sqlite", ".sqlite.gz")
"""Of exports of Nsight Systems; its reports themselves (.nsys-rep) no other program can read."""
REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
_SKIPPED_FOLDERS = frozenset({"analysis", ".git", "__pycache__"})


@dataclass(frozen=True)
class Source:
    """The files of one process. At least one of ``xspace`` and ``shard`` is there, or one of these alone:

    ``programs``: compiled programs that the capture stored, beside a shard. ``torch``: traces of PyTorch's profiler,
    likewise.
    ``trace``: a trace in JSON, or the archive that holds it as ``member``; or an export of Nsight Systems, of which
    ``member`` is the process id where it has several. ``saved``: the `profile.json` of a saved Profile.
    """

    key: str
    xspace: Path | None = None
    shard: Path | None = None
    run_file: Path | None = None
    programs: Path | None = None
    torch: tuple[Path, ...] = ()
    trace: Path | None = None
    member: str = ""
    saved: Path | None = None

    base: str = ""
    """The URL that the paths are relative to; empty where they are local."""

    def paths(self) -> list[Path]:
        """The files that hold the profile."""
        found = [path for path in (self.xspace, self.shard, self.trace, self.saved) if path is not None]
        return [*found, *self.torch]


@dataclass
class Sources:
    """The processes of one job, in order of key; ``root`` is the run folder where there is one."""

    processes: list[Source]
    root: Path | None
    diagnostics: list[dict[str, Any]] = field(default_factory=list)


def size_of(source: Source) -> int:
    """Bytes of a process's files, as far as they are here: large ones are begun first."""
    if source.base:
        return 0
    return sum(file.stat().st_size for file in source.paths() if file.exists())


def find_sources(paths: Sequence[str | os.PathLike[str]]) -> Sources:
    """Find the profiles that ``paths`` name, all of one job.

    A path is a run folder, a run file in one (that process of it alone), a folder of profiles, a file or a glob
    pattern. Caches of other tools are passed over.
    Raises BadInputError where a path does not exist, holds no profile, or holds those of several jobs (it lists them),
    UsageError where one is empty: that would be the current folder, which nobody named.
    """
    if not all(os.fspath(path) for path in paths):
        raise UsageError("an empty path (is a variable not set?)")
    urls = [os.fspath(path) for path in paths if "://" in os.fspath(path)]
    if urls:
        # Imported here: the listing of a URL is made a folder, and comes back to this function.
        from xprof_py.postprocess.readers.remote import find_remote

        remote, here = find_remote(urls), [path for path in paths if os.fspath(path) not in urls]
        local = find_sources(here) if here else Sources([], None)
        both = [*local.processes, *remote.processes]
        return Sources(_unique_keys(both), None, [*local.diagnostics, *remote.diagnostics])
    expanded = [found for path in paths for found in _expand(os.fspath(path))]
    if len(expanded) == 1 and expanded[0].is_dir():
        return _run_folder(expanded[0]) if is_run_folder(expanded[0]) else _folder(expanded[0])
    files: list[Path] = []
    of_runs: list[Source] = []
    diagnostics: list[dict[str, Any]] = []
    for path in expanded:
        if (path.is_dir() and is_run_folder(path)) or _is_run_file(path):
            run = _run_folder(path) if path.is_dir() else _run_folder(path.parent.parent, only=path)
            of_runs += run.processes
            diagnostics += run.diagnostics
        else:
            files += _profiles_below(path) if path.is_dir() else [path]
    return Sources(_unique_keys([*of_runs, *_pair(sorted(set(files)))]), None, diagnostics)


def is_run_folder(path: Path) -> bool:
    """Whether ``capture`` made this folder."""
    return any((path / "run").glob("*.json")) or any((path / "shards").glob(f"*{SHARD_SUFFIX}"))


def folders_of_runs(root: Path) -> list[Path]:
    """The folders at or below ``root`` that each hold the profiles of one run, sorted."""
    out = []
    for where, folders, files in os.walk(root):
        path = Path(where)
        if is_run_folder(path):
            folders.clear()
            out.append(path)
            continue
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS)
        if any(f.endswith((*XSPACE_SUFFIXES, SHARD_SUFFIX)) for f in files):
            out.append(path)
    return sorted(out)


def profile_name(path: Path) -> str:
    """The name of a profile or folder without the ending that says its format: two names stay two."""
    return path.name if path.is_dir() else _stem(path)


def _expand(path: str) -> list[Path]:
    if Path(path).exists():
        return [Path(path)]
    if glob.has_magic(path):
        found = sorted(Path(p) for p in glob.glob(path, recursive=True))
        if found:
            return found
        raise BadInputError(path, "", "no file matches this pattern")
    raise BadInputError(path, "", "no such file or folder")


def _profiles_below(folder: Path) -> list[Path]:
    found = []
    for where, folders, files in os.walk(folder):
        if SAVED in files and _is_saved(Path(where, SAVED)):
            folders.clear()
            found.append(Path(where, SAVED))
            continue
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS)
        found += [Path(where, f) for f in sorted(files)]
    profiles = [f for f in found if f.name.endswith((*XSPACE_SUFFIXES, SHARD_SUFFIX))]
    profiles += [f for f in found if f.name == SAVED and _is_saved(f)]
    profiles += [f for f in found if f.name.endswith(NSYS_SUFFIXES) and _is_nsys(f)]
    return profiles or [f for f in found if f.name.endswith(TRACE_SUFFIXES) and _is_trace(f)]


def _is_trace(file: Path) -> bool:
    try:
        return is_trace(file)
    except (OSError, BadInputError):
        # Nobody named it, and nothing says that it is a trace.
        return False


def _is_saved(file: Path) -> bool:
    try:
        return sniff(file) == "profile"
    except BadInputError:
        return False


def _is_nsys(file: Path) -> bool:
    from xprof_py.postprocess.readers.nsys import nsys_processes

    try:
        # Nobody named it: a database of another tool is passed over. A damaged one keeps its place, and is named.
        nsys_processes(file)
    except BadInputError as error:
        return "no export" not in error.reason
    return True


def _newest_session(sessions: Iterable[Path]) -> tuple[Path | None, list[dict[str, Any]]]:
    """The session folder written last, and a diagnostics row where there are others."""
    known = sorted((s for s in sessions if s.is_dir()), key=lambda s: (s.stat().st_mtime_ns, s.name))
    if not known:
        return None, []
    rows = []
    if len(known) > 1:
        rows.append(
            {
                "severity": "warning",
                "code": "several_sessions",
                "file": str(known[-1].parent),
                "place": "",
                "count": len(known),
                "message": f"several sessions: only the newest is read, {known[-1].name}; the others are "
                + ", ".join(s.name for s in known[:-1]),
            }
        )
    return known[-1], rows


def _is_run_file(path: Path) -> bool:
    return path.suffix == ".json" and path.absolute().parent.name == "run" and is_run_folder(path.parent.parent)


def _run_folder(root: Path, only: Path | None = None) -> Sources:
    """``only``: of the process whose run file this is."""
    session, diagnostics = _newest_session((root / "plugins" / "profile").glob("*"))
    files = _profiles_below(session) if session is not None else []
    files += sorted((root / "shards").glob(f"*{SHARD_SUFFIX}"))
    run_files = sorted((root / "run").glob("*.json"))
    paired = _pair(files, run_files)
    processes, repeated = _newest_of_each_rank([s for s in paired if only is None or s.key == only.stem])
    programs = {f.name.removesuffix(PROGRAMS_SUFFIX): f for f in (root / "programs").glob(f"*{PROGRAMS_SUFFIX}")}
    traces = [file for file in sorted((root / "torch").glob("*")) if file.name.endswith(TRACE_SUFFIXES[:2])]
    processes = [
        replace(
            source,
            programs=programs.get(source.key),
            torch=tuple(t for t in traces if t.name.rsplit("-", 1)[0] == source.key),
        )
        for source in processes
    ]
    diagnostics += repeated
    if not processes and only is not None:
        raise BadInputError(str(only), "", "neither a shard nor an XSpace is there of this process")
    if not processes:
        raise BadInputError(str(root), "", "the run folder holds no profile: neither a shard nor an XSpace")
    return Sources(processes, root, diagnostics)


def _newest_of_each_rank(processes: list[Source]) -> tuple[list[Source], list[dict[str, Any]]]:
    """One process per rank, the one that began last, and diagnostics rows for the others: they are another run."""

    def begun(source: Source) -> tuple[int, str]:
        files = [f for f in (source.run_file, source.shard, source.xspace) if f is not None]
        return files[0].stat().st_mtime_ns, source.key

    by_rank: dict[str, list[Source]] = defaultdict(list)
    for source in processes:
        by_rank[source.key.rsplit("-", 1)[0]].append(source)
    kept, rows = [], []
    for rank, sources in by_rank.items():
        newest = max(sources, key=begun)
        # XLA's profile is named by the rank alone: it is that of the last to write it.
        space = next((s.xspace for s in sources if s.xspace is not None), None)
        kept.append(Source(newest.key, space, newest.shard, newest.run_file))
        if len(sources) > 1:
            left_out = ", ".join(s.key for s in sources if s is not newest)
            row = {"severity": "warning", "code": "several_recordings", "place": "", "count": len(sources)}
            row["file"] = str(newest.run_file or newest.shard or newest.xspace)
            row["message"] = f"several recordings of rank {rank}: only the newest is read, not {left_out}"
            rows.append(row)
    return sorted(kept, key=lambda source: _natural(source.key)), rows


def _folder(root: Path) -> Sources:
    files = _profiles_below(root)
    if not files:
        why = (
            "no profile in this folder (looked for *.xplane.pb, *.xpr, *.sqlite of Nsight Systems "
            "and traces of PyTorch in *.json)"
        )
        archives = sorted(file.name for file in root.iterdir() if file.name.endswith(TAR_SUFFIXES))
        if archives:
            why += f"; archives are read where they are named: {', '.join(archives[:5])}"
        raise BadInputError(str(root), "", why)
    by_folder: dict[Path, list[Path]] = defaultdict(list)
    for file in files:
        # A saved profile has a folder to itself: those of a job lie side by side.
        by_folder[file.parent.parent if file.name == SAVED else file.parent].append(file)
    diagnostics: list[dict[str, Any]] = []
    if len(by_folder) > 1 and len({folder.parent for folder in by_folder}) == 1:
        parent = next(iter(by_folder)).parent
        if parent.name == "profile":
            session, diagnostics = _newest_session(by_folder)
            by_folder = {session: by_folder[session]} if session is not None else by_folder
    if len(by_folder) > 1:
        listed = "\n".join(f"  {folder} ({len(found)} files)" for folder, found in sorted(by_folder.items()))
        raise BadInputError(
            str(root), "", f"holds the profiles of several jobs; name one of them, or its files:\n{listed}"
        )
    return Sources(_pair(next(iter(by_folder.values()))), None, diagnostics)


def _pair(files: Sequence[Path], run_files: Sequence[Path] = ()) -> list[Source]:
    """One Source per process: shards `<rank>-<pid>.xpr` and XSpaces `<rank>.xplane.pb` of one rank belong together."""
    shards: dict[str, Path] = {}
    spaces: dict[str, Path] = {}
    out: list[Source] = []
    for file in files:
        if file.name.endswith(TAR_SUFFIXES):
            out += [Source(_stem(Path(member)), trace=file, member=member) for member in _members(file)]
        elif file.name.endswith(REPORT_SUFFIXES):
            why = "is a report of Nsight Systems, which only it can read: nsys export --type sqlite " + file.name
            raise BadInputError(str(file), "", why)
        elif (found := _by_content(file)) == "chrome_json":
            out.append(Source(_stem(file), trace=file))
        elif found == "sqlite":
            out += _of_report(file)
        elif found == "profile":
            out.append(Source(file.absolute().parent.name, saved=file))
        elif file.name.endswith(SHARD_SUFFIX) or (not _is_space(file) and sniff(file) == "shard"):
            shards[_unique(_stem(file), shards)] = file
        else:
            spaces[_unique(_stem(file), spaces)] = file
    runs = {_stem(file): file for file in run_files}
    for key, shard in shards.items():
        rank = key.rsplit("-", 1)[0]
        space = spaces.pop(rank if rank in spaces else key, None)
        out.append(Source(key, space, shard, runs.get(key)))
    for key, space in spaces.items():
        run_file = next((file for name, file in runs.items() if name.rsplit("-", 1)[0] == key), None)
        out.append(Source(key, space, None, run_file))
    return sorted(out, key=lambda source: (_natural(source.key), [str(path) for path in source.paths()], source.member))


def _by_content(file: Path) -> Format:
    """What a file is whose name does not say it."""
    return "other" if file.name.endswith((*XSPACE_SUFFIXES, SHARD_SUFFIX)) else sniff(file)


def _of_report(file: Path) -> list[Source]:
    """One Source per process of an export of Nsight Systems; one for all of it where it cannot be looked into."""
    from xprof_py.postprocess.readers.nsys import nsys_processes

    try:
        processes = nsys_processes(file)
    except BadInputError:
        processes = []
    if len(processes) <= 1:
        return [Source(_stem(file), trace=file)]
    return [Source(f"{_stem(file)}-{process}", trace=file, member=str(process)) for process in processes]


def _members(archive: Path) -> list[str]:
    found = traces_in(archive)
    if not found:
        raise BadInputError(str(archive), "", "the archive holds no trace of PyTorch (looked for *.json and *.json.gz)")
    return found


def _is_space(file: Path) -> bool:
    return file.name.endswith(XSPACE_SUFFIXES)


def _stem(file: Path) -> str:
    for suffix in (*XSPACE_SUFFIXES, SHARD_SUFFIX, *TAR_SUFFIXES, *TRACE_SUFFIXES, *NSYS_SUFFIXES):
        if file.name.endswith(suffix):
            return file.name.removesuffix(suffix)
    return file.name


def _unique(key: str, taken: Collection[str]) -> str:
    number, out = 2, key
    while out in taken:
        out = f"{key} ({number})"
        number += 1
    return out


def _unique_keys(processes: Sequence[Source]) -> list[Source]:
    """The same with keys that differ: files of several folders may have one name. The order of paths has no say."""
    out: dict[str, Source] = {}
    for source in sorted(
        processes, key=lambda s: (_natural(s.key), s.base, *map(str, (s.xspace, s.shard, s.trace, s.member, s.saved)))
    ):
        key = _unique(source.key, out)
        out[key] = replace(source, key=key)
    return list(out.values())


def _natural(key: str) -> tuple[int, int, str]:
    head = key.split("-", 1)[0]
    return (0, int(head), key) if head.isdigit() else (1, 0, key)
