"""``xprof_py.load`` and what a loaded run offers. The one file of the SDK that reaches into postprocess and viewers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from xprof_py.postprocess.fleet import analysis


class Run:
    """A loaded run: its tables (``run["step_classes"]`` is a pyarrow.Table), summary, verdict and report."""

    def __init__(self, result: analysis.Analysis) -> None:
        self._result = result

    def __getitem__(self, name: str) -> pa.Table:
        try:
            return self._result.tables[name]
        except KeyError:
            raise KeyError(f"no table {name!r}; there are {', '.join(sorted(self._result.tables))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._result.tables))

    def summary(self) -> dict[str, Any]:
        """The object that summary.json holds."""
        return self._result.summary

    def verdict(self) -> dict[str, Any] | None:
        """What to attack first, with evidence; None where no step could be measured."""
        found: dict[str, Any] | None = self._result.summary["verdict"]
        return found

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the report, one HTML file that needs no network, and return its path.

        A file is replaced as a whole, links are followed. Raises XprofPyError where it cannot be written.
        """
        from xprof_py.viewers.html_report import render_report, write_page

        return write_page(render_report(self._result.summary, self._result.tables), Path(path))


def load(*paths: str | os.PathLike[str]) -> Run:
    """Load and analyse the profiles of one job: a run folder, a folder of profiles, globs, files, or an analysis.

    Writes nothing. Raises BadInputError where nothing can be read, UsageError without a path.
    """
    if not paths:
        from xprof_py.errors import UsageError

        raise UsageError("load needs the path of a run folder or of profiles")
    if len(paths) == 1 and (Path(paths[0]) / analysis.SUMMARY).exists():
        return Run(analysis.read_analysis(Path(paths[0])))
    return Run(analysis.analyse(paths))
