"""``xprof-py analyze``: profiles -> summary.json and Parquet tables, and the verdict on the terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xprof_py.cli.arguments import at_least_one, named
from xprof_py.cli.progress import ProgressBar
from xprof_py.errors import UsageError, XprofPyError

if TYPE_CHECKING:
    from xprof_py.postprocess.fleet.analysis import Analysis
    from xprof_py.postprocess.readers.sources import Sources


class Analyze:
    """Say for every step where the time went, and what to attack first.

    PATH is a run folder of capture(), a folder of profiles, a glob or profile files (.xplane.pb, .xpr, PyTorch's .json,
    .sqlite of Nsight Systems, saved profiles), all of one job, or URLs of these (s3://, gs://). Writes summary.json and
    Parquet tables to OUT, a folder or a URL; by default to RUN/analysis for a run folder, else to ./<name>-analysis.
    Several processes are analysed by several workers, on this machine or on a Dask cluster.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """PATH..., -o OUT, --json, --workers, --scheduler, --resume."""
        parser.add_argument(
            "paths", nargs="+", type=named, metavar="PATH", help="run folder, folder, glob or files of one job"
        )
        parser.add_argument("-o", "--out", type=named, metavar="OUT", help="folder or URL for the results")
        parser.add_argument("--json", action="store_true", help="print summary.json instead of the table")
        add_worker_arguments(parser)
        parser.add_argument(
            "--resume",
            action="store_true",
            help="go on where an analysis that was ended stood, and keep OUT/.partials for the next time",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Analyse, write, print."""
        from xprof_py.postprocess.readers.remote import is_url

        if args.out is not None and is_url(args.out):
            return self._run_to_url(args)
        out, summary = analyze(args.paths, args.out, workers=args.workers, scheduler=args.scheduler, resume=args.resume)
        if args.json:
            sys.stdout.write((out / "summary.json").read_text(encoding="utf-8"))
        else:
            print_summary(summary)
            reported = args.paths[0] if args.out is None and len(args.paths) == 1 else os.fspath(out)
            print(f"tables: {out}", file=sys.stderr)
            print(f"report: xprof-py report {shlex.quote(reported)}", file=sys.stderr)
        return 0

    def _run_to_url(self, args: argparse.Namespace) -> int:
        if args.resume or args.scheduler is not None:
            raise UsageError("--resume and --scheduler need partials in OUT: name a folder with -o, not a URL")
        summary, written = analyze_to_url(args.paths, args.out, workers=args.workers)
        if args.json:
            sys.stdout.write(written)
        else:
            print_summary(summary)
            print(f"tables: {args.out}", file=sys.stderr)
        return 0


class UnwrittenAnalysisError(XprofPyError):
    """The analysis cannot be written where it belongs; ``reason``: the system's words.

    ``result``: the analysis, where all of it is in memory.
    """

    def __init__(
        self, paths: Sequence[str | os.PathLike[str]], out: Path, reason: str, result: Analysis | None
    ) -> None:
        command = shlex.join(["xprof-py", "analyze", *(os.fspath(path) for path in paths), "-o", "OUT"])
        super().__init__(f"{out}: cannot be written: {reason}. Write the analysis elsewhere: {command}")
        self.out = out
        self.reason = reason
        self.result = result


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    """--workers and --scheduler."""
    parser.add_argument(
        "--workers",
        type=at_least_one,
        metavar="N",
        help="processes that work at once, of one profile threads (default: by size)",
    )
    parser.add_argument("--scheduler", type=named, metavar="ADDRESS", help="a Dask scheduler, as tcp://host:8786")


def analyze(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
    scheduler: Any = None,
    resume: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """Analyse the profiles of one job and write the results; returns (OUT, summary).

    ``workers``, ``scheduler``: as scheduler_for takes them. ``resume``: use the partials that OUT/.partials holds, and
    keep them there. Raises BadInputError where nothing could be read, UsageError where OUT is something else,
    UnwrittenAnalysisError where OUT cannot be written, XprofPyError where the cluster is gone.
    """
    from xprof_py.postprocess.readers import begun_xspace

    # Before numpy and Arrow are imported, which takes as long as decoding a large file.
    begun = None if resume or scheduler is not None else begun_xspace.begin(paths, workers)
    import pyarrow as pa

    # numpy and Arrow take turns: from one allocator each uses what the other gave back.
    pa.set_memory_pool(pa.system_memory_pool())
    from xprof_py.postprocess.fleet import analysis
    from xprof_py.postprocess.readers.remote import is_url
    from xprof_py.postprocess.readers.sources import find_sources, size_of
    from xprof_py.postprocess.readers.workers import Workers, worker_count

    if out is not None and is_url(out):
        raise UsageError(f"{out} is a URL: analyze_to_url writes there")
    sources = find_sources(paths)
    where = Path(out) if out is not None else analysis.default_out(paths, sources)
    if analysis.is_foreign(where):
        raise UsageError(f"{where} exists and is not an analysis: name another folder with -o")
    result = None
    try:
        if len(sources.processes) == 1 and not resume and scheduler is None:
            shared = Workers(worker_count(workers, sum(map(size_of, sources.processes))), begun)
            # One process here, its work shared by threads where it is large.
            result = analysis.analyse_sources(sources, calibrate=True, workers=shared)
            analysis.write_analysis(result, where, shared)
        else:
            result = _analyze_many(sources, where, workers=workers, scheduler=scheduler, resume=resume)
    except OSError as error:
        # The error's own words are those of a temporary file or of Arrow, which say nothing to anybody.
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UnwrittenAnalysisError(paths, where, reason, result) from error
    return where, result.summary


def analyze_to_url(
    paths: Sequence[str | os.PathLike[str]], url: str, *, workers: int | None = None
) -> tuple[dict[str, Any], str]:
    """Analyse the profiles of one job and put the results at ``url``; returns (summary, the text of summary.json).

    Raises as :func:`analyze` does, and XprofPyError where ``url`` cannot be written to.
    """
    from xprof_py.postprocess.fleet import remote_out

    # Before the work, not behind it.
    remote_out.require_analysis(url)
    with tempfile.TemporaryDirectory(prefix="xprof_py-out-") as folder:
        out, summary = analyze(paths, Path(folder, "analysis"), workers=workers)
        remote_out.put_analysis(out, url)
        return summary, (out / "summary.json").read_text(encoding="utf-8")


def _analyze_many(sources: Sources, out: Path, *, workers: int | None, scheduler: Any, resume: bool) -> Analysis:
    """Analyse with partials in OUT/.partials and write. They stay where it fails: --resume goes on from them."""
    from xprof_py.postprocess.fleet import analysis
    from xprof_py.postprocess.fleet.run_job import analyse_job
    from xprof_py.postprocess.fleet.schedulers import scheduler_for
    from xprof_py.postprocess.fleet.spool import FOLDER, Spool
    from xprof_py.postprocess.readers.sources import size_of

    size = sum(map(size_of, sources.processes))
    running = scheduler_for(scheduler, workers, tasks=len(sources.processes), input_bytes=size)
    spool = Spool((out / FOLDER).absolute())
    try:
        with ProgressBar() as bar:
            result = analyse_job(sources, spool, running, resume=resume, calibrate=True, progress=bar.show)
    except XprofPyError:
        # Where nothing was found out nothing is left behind.
        with contextlib.suppress(OSError):
            spool.folder.rmdir()
            out.rmdir()
        raise
    finally:
        running.close()
    analysis.write_analysis(result, out)
    if not resume:
        shutil.rmtree(out / FOLDER, ignore_errors=True)
    return result


def print_summary(summary: dict[str, Any]) -> None:
    """The short table on stdout: coloured on a terminal (unless NO_COLOR is set), plain when piped."""
    from xprof_py.viewers.terminal import render_summary

    sys.stdout.write(on_terminal(render_summary, summary))


def on_terminal(render: Callable[..., str], found: dict[str, Any]) -> str:
    """What ``render(found, color=, width=, encoding=)`` draws for the stdout that there is."""
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = min(shutil.get_terminal_size((80, 24)).columns, 120)
    return render(found, color=color, width=width, encoding=sys.stdout.encoding)


def read_run(path: str | os.PathLike[str], needed: Sequence[str]) -> Analysis:
    """The analysis of a run folder, of profiles, or of an OUT, made first where it is missing, stale or lacks tables.

    ``needed``: names of tables. Raises BadInputError where ``path`` is an OUT that lacks one: its run is not known.
    """
    from xprof_py.errors import BadInputError
    from xprof_py.postprocess.fleet import analysis

    out = ensure_analysis(path)
    found = analysis.read_analysis(out)
    missing = [name for name in needed if name not in found.tables]
    if missing and out == Path(path):
        why = f"an earlier version wrote it, without the table {missing[0]}: run `xprof-py analyze` on the run again"
        raise BadInputError(str(out), "", why)
    if missing:
        analyze([path], out)
        found = analysis.read_analysis(out)
    return found


def ensure_analysis(path: str | os.PathLike[str]) -> Path:
    """OUT of a run folder or of an OUT itself; analysed first where it is missing or older than what it was made of.

    Raises as :func:`analyze` does.
    """
    from xprof_py.postprocess.fleet import analysis
    from xprof_py.postprocess.readers.sources import find_sources

    given = Path(path)
    if (given / analysis.SUMMARY).exists():
        return given
    sources = find_sources([path])
    out = analysis.default_out([path], sources)
    summary = out / analysis.SUMMARY
    files = [f for s in sources.processes for f in (*s.paths(), s.run_file) if f is not None]
    if summary.exists():
        made = summary.stat().st_mtime_ns
        found = _readable(analysis.read_analysis, out)
        if found is not None and all(file.stat().st_mtime_ns <= made for file in files):
            # Two profiles of one name in two folders have one OUT here: what it was made of decides.
            profiles = {str(f) for s in sources.processes for f in s.paths()}
            if sources.root is not None or _made_of(found.summary) == profiles:
                return out
    analyze([path], out)
    return out


def _made_of(summary: dict[str, Any]) -> set[str]:
    """The files that an analysis was asked to read, those that could not be read included."""
    unread = {row["file"] for row in summary["diagnostics"] if row["code"] == "unreadable"}
    return unread.union(*(host["source"] for host in summary["hosts"]))


def _readable(read: Any, out: Path) -> Analysis | None:
    from xprof_py.errors import BadInputError

    try:
        found: Analysis = read(out)
    except BadInputError:
        return None
    return found
