"""The commands and `load` as a person uses them, on a recorded profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import xprof_py
from xprof_py.errors import UsageError

GOOD = Path(__file__).parent.parent / "data" / "jax_cpu" / "planted_recompile.xplane.pb.gz"


def command(*args: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "xprof_py", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=cwd,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )


def test_analyze_prints_the_verdict_and_writes_beside_nobody(tmp_path: Path) -> None:
    result = command("analyze", GOOD, cwd=tmp_path)
    assert result.stdout.startswith("The program is traced and compiled for 97% of the step time")
    assert "\x1b[" not in result.stdout
    out = tmp_path / "planted_recompile-analysis"
    assert {"summary.json", "step_classes.parquet", "gaps.parquet", "runs.parquet"} <= {f.name for f in out.iterdir()}


def test_json_goes_to_stdout_whole(tmp_path: Path) -> None:
    result = command("analyze", GOOD, "--json", "-o", "out", cwd=tmp_path)
    summary = json.loads(result.stdout)
    assert summary == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert sum(line["share"] for line in summary["breakdown"].values()) == pytest.approx(1.0)


def test_report_makes_the_analysis_it_needs(tmp_path: Path) -> None:
    result = command("report", GOOD, "-o", "page.html", cwd=tmp_path)
    assert result.stdout.strip() == "page.html"
    assert "The program is traced and compiled" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "planted_recompile-analysis" / "summary.json").exists()


def test_load_gives_tables_summary_verdict_and_report(tmp_path: Path) -> None:
    run = xprof_py.load(GOOD)
    verdict = run.verdict()
    assert verdict is not None
    assert verdict["bottleneck"] == "compiler"
    assert run["step_classes"].num_rows == 10
    assert "gaps" in list(run)
    assert run.report(tmp_path / "a.html").read_text().startswith("<!")
    with pytest.raises(KeyError, match="step_classes"):
        run["steps_classes"]
    with pytest.raises(UsageError):
        xprof_py.load()


def test_load_reads_an_analysis_back(tmp_path: Path) -> None:
    command("analyze", GOOD, "-o", "out", cwd=tmp_path)
    assert xprof_py.load(tmp_path / "out").summary() == xprof_py.load(GOOD).summary()


def test_version_and_help(tmp_path: Path) -> None:
    assert command("--version", cwd=tmp_path).stdout.startswith("xprof-py 0.")
    text = command("analyze", "--help", cwd=tmp_path).stdout
    assert "Say for every step where the time went" in text


def test_a_report_into_a_folder_that_is_not_there_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        command("report", GOOD, "-o", "reprots/page.html", cwd=tmp_path)
    assert failed.value.returncode == 2
    assert "reprots/page.html: there is no folder reprots" in failed.value.stderr
    assert list(tmp_path.iterdir()) == []
