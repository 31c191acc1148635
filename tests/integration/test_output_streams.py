"""Output that cannot be written: exit code 1 and one line that names it, never a traceback or exit code 120."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = Path(__file__).parent.parent / "data" / "jax_cpu" / "planted_recompile.xplane.pb.gz"
FULL = "xprof-py: standard output: No space left on device\n"


@pytest.fixture
def shell(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``shell(script, **environment)`` runs a bash script; ``$xprof_py`` is the program, ``$GOOD`` a profile."""

    def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        known = {"xprof_py": f"{sys.executable} -m xprof_py", "GOOD": os.fspath(GOOD), "PYTHONUNBUFFERED": ""}
        return subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=tmp_path,
            env={**os.environ, **known, **environment},
        )

    return run


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["analyze $GOOD --json -o out", "--help", "analyze --help", "--version"])
def test_a_full_disk(arguments: str, unbuffered: str, shell: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    ran = shell(f"$xprof_py {arguments} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (ran.returncode, ran.stderr) == (1, FULL)


def test_what_was_done_before_the_failure_stays(
    tmp_path: Path, shell: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    ran = shell("$xprof_py report $GOOD -o page.html > /dev/full")
    assert ran.returncode == 1
    assert ran.stderr.endswith(FULL)
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!")


def test_a_reader_that_went_away(shell: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    ran = shell('exec 3> >(exec true); wait $!; $xprof_py analyze $GOOD --json >&3; echo "code $?"')
    assert (ran.stdout, ran.stderr) == ("code 1\n", "xprof-py: standard output: Broken pipe\n")


def test_a_closed_standard_output_is_said_before_the_work(
    tmp_path: Path, shell: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    ran = shell("$xprof_py analyze $GOOD >&-")
    assert (ran.returncode, ran.stderr) == (1, "xprof-py: standard output: is closed\n")
    assert list(tmp_path.iterdir()) == []


def test_a_closed_standard_error_keeps_messages_out_of_the_result(
    shell: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ran = shell("$xprof_py report $GOOD -o page.html 2>&-")
    assert (ran.returncode, ran.stdout) == (0, "page.html\n")


@pytest.mark.parametrize("stderr", ["/dev/full", "&-"])
def test_an_error_that_can_be_told_nowhere_is_an_exit_code(
    stderr: str, shell: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    ran = shell(f"$xprof_py analyze nowhere 2>{stderr}")
    assert (ran.returncode, ran.stdout) == (1, "")


def test_an_error_without_a_file_is_said_without_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from xprof_py import cli

    def fail(argv: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main([]) == 1
    assert capsys.readouterr().err == "xprof-py: Too many open files\n"


def test_an_analysis_that_cannot_be_written_still_gives_the_report_that_was_named(
    tmp_path: Path, shell: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    # No file may grow: a pipe is no file, so the report gets through.
    ran = shell("ulimit -f 0; $xprof_py report $GOOD -o /dev/stdout")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("<!doctype html>")
    assert "step-chart" in ran.stdout
    assert "planted_recompile-analysis: cannot be written: File too large; the report is made without" in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["report", "analyze"])
def test_without_a_file_of_ones_own_the_error_names_the_folder_and_the_way_out(
    command: str, tmp_path: Path, shell: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    run = tmp_path / "my run"
    (run / "shards").mkdir(parents=True)
    (run / "plugins" / "profile" / "run").mkdir(parents=True)
    (run / "run").mkdir()
    (run / "run" / "0-1.json").write_text("{}")
    (run / "plugins" / "profile" / "run" / "0.xplane.pb.gz").write_bytes(GOOD.read_bytes())
    ran = shell(f"ulimit -f 0; $xprof_py {command} 'my run'")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        "xprof-py: my run/analysis: cannot be written: File too large. "
        "Write the analysis elsewhere: xprof-py analyze 'my run' -o OUT\n"
    )
    assert not (run / "analysis").exists()


def test_the_command_that_analyze_suggests_is_what_a_shell_takes(
    shell: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ran = shell("$xprof_py analyze $GOOD -o 'my out' > /dev/null")
    (said,) = [line for line in ran.stderr.splitlines() if line.startswith("report: xprof-py ")]
    again = shell(said.replace("report: xprof-py", "$xprof_py", 1))
    assert (again.returncode, again.stdout) == (0, "my out/report.html\n"), again.stderr
