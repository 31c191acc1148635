"""`report` analyses what it is given, writes one file and prints where."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType

import pytest

from xprof_py.cli.report import Report


@pytest.fixture
def analysed(sample: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A run whose analysis is already there: `ensure_analysis` has nothing to do but say where it is."""
    out = sample.write_out(tmp_path / "run" / "analysis", sample.input_bound())
    analyze = ModuleType("xprof_py.cli.analyze")
    asked: dict[str, Path] = {}

    def ensure_analysis(path: Path) -> Path:
        asked["path"] = path
        return Path(out)

    analyze.ensure_analysis = ensure_analysis  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "xprof_py.cli.analyze", analyze)
    monkeypatch.setattr("xprof_py.cli.analyze", analyze, raising=False)
    return asked


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command = Report()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_the_report_lies_in_the_analysed_folder(
    analysed: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(tmp_path / "run")) == 0
    assert analysed["path"] == tmp_path / "run"
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'run' / 'analysis' / 'report.html'}\n"
    assert printed.err
    assert "<h1>" in Path(printed.out.strip()).read_text(encoding="utf-8")


def test_or_where_it_is_wanted(analysed: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "a.html"
    assert run(str(tmp_path / "run"), "-o", str(target)) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert target.exists()
    assert not (tmp_path / "run" / "analysis" / "report.html").exists()
