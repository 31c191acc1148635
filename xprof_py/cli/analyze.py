"""``xprof-py analyze``: profiles -> summary.json and Parquet tables, and the verdict on the terminal."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xprof_py.postprocess.fleet.analysis import Analysis


class Analyze:
    """Say for every step where the time went, and what to attack first.

    PATH is a run folder of capture(), a folder of profiles, a glob or profile files (.xplane.pb, .xpr), all of one job.
    Writes summary.json and Parquet tables to OUT: RUN/analysis for a run folder, else ./<name>-analysis.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """PATH..., -o OUT, --json."""
        parser.add_argument("paths", nargs="+", metavar="PATH", help="run folder, folder, glob or files of one job")
        parser.add_argument("-o", "--out", metavar="OUT", help="folder for the results")
        parser.add_argument("--json", action="store_true", help="print summary.json instead of the table")

    def run(self, args: argparse.Namespace) -> int:
        """Analyse, write, print."""
        out, summary = analyze(args.paths, args.out)
        if args.json:
            sys.stdout.write((out / "summary.json").read_text())
        else:
            print_summary(summary)
            print(f"tables: {out}", file=sys.stderr)
            print(f"report: xprof-py report {args.paths[0] if len(args.paths) == 1 else out}", file=sys.stderr)
        return 0


def analyze(
    paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None = None
) -> tuple[Path, dict[str, Any]]:
    """Analyse the profiles of one job and write the results; returns (OUT, summary).

    Raises BadInputError where nothing could be read, UsageError where OUT is something else.
    """
    from xprof_py.postprocess.fleet import analysis

    where = Path(out) if out is not None else analysis.default_out(paths)
    result = analysis.analyse(paths, calibrate=True)
    analysis.write_analysis(result, where)
    return where, result.summary


def print_summary(summary: dict[str, Any]) -> None:
    """The short table on stdout: coloured on a terminal (unless NO_COLOR is set), plain when piped."""
    from xprof_py.viewers.terminal import render_summary

    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = min(shutil.get_terminal_size((80, 24)).columns, 120)
    sys.stdout.write(render_summary(summary, color=color, width=width, encoding=sys.stdout.encoding))


def ensure_analysis(path: str | os.PathLike[str]) -> Path:
    """OUT of a run folder or of an OUT itself; analysed first where it is missing or older than what it was made of."""
    from xprof_py.postprocess.fleet import analysis
    from xprof_py.postprocess.readers.sources import find_sources

    given = Path(path)
    if (given / analysis.SUMMARY).exists():
        return given
    sources = find_sources([path])
    out = analysis.default_out([path])
    summary = out / analysis.SUMMARY
    files = [f for s in sources.processes for f in (s.xspace, s.shard, s.run_file) if f is not None]
    if summary.exists():
        made = summary.stat().st_mtime_ns
        if all(file.stat().st_mtime_ns <= made for file in files) and _readable(analysis.read_analysis, out):
            return out
    analyze([path], out)
    return out


def _readable(read: Any, out: Path) -> Analysis | None:
    from xprof_py.errors import BadInputError

    try:
        found: Analysis = read(out)
    except BadInputError:
        return None
    return found
