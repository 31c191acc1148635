"""``xprof-py fleet``: many runs of many jobs, kept in a store."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xprof_py.cli.analyze import add_worker_arguments, on_terminal
from xprof_py.cli.arguments import named, named_path
from xprof_py.cli.progress import ProgressBar
from xprof_py.errors import BadInputError


class Fleet:
    """Keep what every run of many jobs took, and say what got slower and why.

    `fleet analyze ROOT... -o STORE` adds the runs below ROOT to a store that grows; a run that is added again replaces
    itself. `fleet report STORE` shows the trend of each job, where its step time changed by more than chance, what
    the fleet's device time goes to, and the worst stragglers. `fleet compact STORE` puts the files of many runs
    together, as adding does by itself where a day has many.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """analyze and report, with theirs."""
        commands = parser.add_subparsers(dest="fleet_command", metavar="COMMAND", required=True)
        adding = commands.add_parser("analyze", help="add the runs below ROOT to a store")
        adding.add_argument("roots", nargs="+", type=named_path, metavar="ROOT", help="a folder of runs: ROOT/JOB/RUN")
        adding.add_argument("-o", "--out", type=named, metavar="STORE", required=True, help="the store's folder or URL")
        adding.add_argument("--job", type=named, help="the job of all of them (default: the folders above the run)")
        add_worker_arguments(adding)
        reporting = commands.add_parser("report", help="say what a store holds")
        reporting.add_argument("store", type=named, metavar="STORE")
        shown = reporting.add_mutually_exclusive_group()
        shown.add_argument("--json", action="store_true", help="print the report as JSON")
        shown.add_argument("--html", type=named_path, metavar="FILE", help="write the report as one HTML file")

        compacting = commands.add_parser("compact", help="put the files of a store's runs together")
        compacting.add_argument("store", type=named, metavar="STORE")

    def run(self, args: argparse.Namespace) -> int:
        """Add, report or compact. Returns 0, or 1 where no run could be analysed."""
        commands = {"analyze": self._analyze, "report": self._report, "compact": self._compact}
        return commands[args.fleet_command](args)

    def _compact(self, args: argparse.Namespace) -> int:
        from xprof_py.postprocess.fleet.store import compact_store

        with _store(args.store, changes=True) as store:
            fewer = compact_store(store, many=2)
        sys.stderr.write(f"{args.store}: {fewer} files fewer\n")
        return 0

    def _analyze(self, args: argparse.Namespace) -> int:
        from xprof_py.postprocess.fleet.schedulers import scheduler_for
        from xprof_py.postprocess.fleet.store import add_runs, find_runs, require_store

        runs = [run for root in args.roots for run in find_runs(root, job=args.job)]
        size = sum(file.stat().st_size for run in runs for file in run.path.rglob("*") if file.is_file())
        running = scheduler_for(args.scheduler, args.workers, tasks=len(runs), input_bytes=size)
        try:
            with _store(args.out, changes=True, new=True) as store, ProgressBar() as bar:
                require_store(store)
                failed = add_runs(store, runs, running, progress=bar.show)
        finally:
            running.close()
        for row in failed:
            error = BadInputError(row["file"], row["place"], row["reason"])
            sys.stderr.write(f"{row['job']}, {row['run']}: left out: {error}\n")
        added = len({(run.job, run.run) for run in runs}) - len(failed)
        sys.stderr.write(f"{added} runs added to {args.out}\nreport: xprof-py fleet report {args.out}\n")
        return 0 if added else 1

    def _report(self, args: argparse.Namespace) -> int:
        from xprof_py.postprocess.fleet.store import read_store
        from xprof_py.postprocess.rules.fleet_report import fleet_report
        from xprof_py.viewers.terminal_fleet import render_fleet

        with _store(args.store, changes=False) as store:
            found = fleet_report(*read_store(store))
        if args.html is not None:
            from xprof_py.viewers.html_fleet import render_fleet_page
            from xprof_py.viewers.html_report import write_page

            print(write_page(render_fleet_page(found), args.html))
            return 0
        sys.stdout.write(json.dumps(found, indent=1) + "\n" if args.json else on_terminal(render_fleet, found))
        return 0


@contextmanager
def _store(named: str, *, changes: bool, new: bool = False) -> Iterator[Path]:
    """The store of that name: a folder, or a copy of what is at a URL."""
    from xprof_py.postprocess.fleet.remote_out import store_at
    from xprof_py.postprocess.readers.remote import is_url

    if not is_url(named):
        yield Path(named)
        return
    with store_at(named, changes=changes, new=new) as store:
        yield store
