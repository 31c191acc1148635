"""The command `report`."""

from __future__ import annotations

import argparse
import sys

from xprof_py.cli.arguments import named_path
from xprof_py.errors import UsageError


class Report:
    """Write the report of a run: one HTML file with the verdict, the steps and where their time went."""

    name = "report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of `report`."""
        parser.add_argument(
            "path", metavar="PATH", type=named_path, help="a run folder, or a folder that `analyze` wrote"
        )
        parser.add_argument(
            "-o",
            "--output",
            metavar="FILE",
            type=named_path,
            help="the HTML file to write (default: report.html in the analysed folder)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Analyse ``args.path`` if needed, write the report and print its path. Returns 0.

        Where the analysis cannot be written, a FILE that was named is still made, from memory.

        Raises:
            XprofPyError: the path cannot be analysed, or the report cannot be written.
        """
        from xprof_py.cli.analyze import UnwrittenAnalysisError, ensure_analysis
        from xprof_py.postprocess.fleet.analysis import analyse
        from xprof_py.viewers.html_report import render_report, write_page, write_report

        if args.output is not None and not args.output.parent.is_dir():
            raise UsageError(f"{args.output}: there is no folder {args.output.parent}")
        try:
            written = write_report(ensure_analysis(args.path), args.output)
        except UnwrittenAnalysisError as error:
            if args.output is None:
                raise
            sys.stderr.write(f"{error.out}: cannot be written: {error.reason}; the report is made without its tables\n")
            found = error.result or analyse([args.path], calibrate=True)
            written = write_page(render_report(found.summary, found.tables), args.output)
        sys.stderr.write("open it in a browser; it needs no network and can be sent as it is\n")
        print(written)
        return 0
