"""The command `report`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


class Report:
    """Write the report of a run: one HTML file with the verdict, the steps and where their time went."""

    name = "report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of `report`."""
        parser.add_argument("path", metavar="PATH", type=Path, help="a run folder, or a folder that `analyze` wrote")
        parser.add_argument(
            "-o",
            "--output",
            metavar="FILE",
            type=Path,
            help="the HTML file to write (default: report.html in the analysed folder)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Analyse ``args.path`` if needed, write the report and print its path. Returns 0.

        Raises:
            XprofPyError: the path cannot be analysed, or the report cannot be written.
        """
        from xprof_py.cli.analyze import ensure_analysis
        from xprof_py.viewers.html_report import write_report

        out = ensure_analysis(args.path)
        written = write_report(out, args.output)
        sys.stderr.write("open it in a browser; it needs no network and can be sent as it is\n")
        print(written)
        return 0
