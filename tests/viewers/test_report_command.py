"""`report` analyses what it is given, writes one file and prints where."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from xprof_py.cli import main

CAPTURES = Path(__file__).parents[1] / "data" / "jax_cpu"


def test_the_report_lies_in_the_analysed_folder(
    sample: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = sample.write_out(tmp_path / "analysis", sample.input_bound())
    assert main(["report", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out / 'report.html'}\n"
    assert "browser" in printed.err
    assert "<h1>" in (out / "report.html").read_text(encoding="utf-8")


def test_or_where_it_is_wanted(sample: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = sample.write_out(tmp_path / "analysis", sample.input_bound())
    target = tmp_path / "a.html"
    assert main(["report", str(out), "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert target.exists()
    assert not (out / "report.html").exists()


def test_a_place_that_cannot_be_written_ends_with_exit_code_1(
    sample: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = sample.write_out(tmp_path / "analysis", sample.input_bound())
    too_long = "a" * 300 + ".html"
    assert main(["report", str(out), "-o", str(tmp_path / too_long)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "cannot write the report" in printed.err


def test_a_capture_is_analysed_first_and_its_report_names_the_planted_cause(
    parse: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(CAPTURES / "planted_recompile.xplane.pb.gz", tmp_path)
    assert main(["report", "planted_recompile.xplane.pb.gz"]) == 0
    page = Path(capsys.readouterr().out.strip())
    tree = parse(page.read_text(encoding="utf-8"))
    assert "is-compiler" in tree.one("header").attributes["class"]
    assert "mlp_step" in tree.one("section", id="evidence").text
    shares = {row[0]: row[2] for row in tree.one("section", id="classes").body_rows()}
    (compiler,) = (share for name, share in shares.items() if name.startswith("compiler"))
    assert float(compiler.rstrip("%")) > 90
