"""`diff` as a person and a CI job use it: exit codes, JSON, what is analysed and when."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from xspace_rename import rename_ops
from xspace_stretch import stretch_op

from xprof_py.cli import main

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"
STEADY = DATA / "mlp_async40.xplane.pb.gz"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run(*arguments) -> (exit code, stdout, stderr)`` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command


@pytest.fixture
def slower(tmp_path: Path) -> Callable[[str, Fraction], Path]:
    """``slower(op, by)``: the recorded capture, with one op that takes ``by`` of its time more."""

    def stretched(op: str, by: Fraction) -> Path:
        file = tmp_path / "slower" / "vm.xplane.pb"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(stretch_op(gzip.decompress(STEADY.read_bytes()), op, by))
        return file

    return stretched


def as_json(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def test_an_op_5_percent_slower_is_found_and_fails_a_limit_of_4(
    run: Run, slower: Callable[[str, Fraction], Path]
) -> None:
    after = slower("ynn_fusion.5", Fraction(1, 20))
    code, out, _ = run("diff", STEADY, after, "--fail-over", "op=4%", "--fail-over", "5%", "--json")
    found = as_json(out)
    assert code == 3
    assert [(row["op"], round(row["relative"], 4)) for row in found["ops"] if row["changed"]] == [
        ("ynn_fusion.5", 0.05)
    ]
    assert found["step"]["changed"] is False
    assert [row["exceeded"] for row in found["limits"]] == [True, False]
    assert found["limits"][0]["by"][0]["name"] == "ynn_fusion.5"


def test_a_limit_above_the_regression_is_kept(run: Run, slower: Callable[[str, Fraction], Path]) -> None:
    after = slower("ynn_fusion.5", Fraction(1, 20))
    code, out, err = run("diff", STEADY, after, "--fail-over", "op=6%", "--fail-over", "1%")
    assert code == 0
    assert "1 of 22 ops changed" in out
    assert "ynn_fusion.5" in out
    assert "kept" in out
    assert err == ""


def test_a_faster_op_fails_nothing(run: Run, slower: Callable[[str, Fraction], Path]) -> None:
    after = slower("ynn_fusion.5", Fraction(1, 20))
    code, out, _ = run("diff", after, STEADY, "--fail-over", "op=0%", "--fail-over", "0%", "--fail-over", "compute=0%")
    assert code == 0
    assert "−4.8%" in out or "-4.8%" in out


def test_two_equal_runs_are_silent(run: Run, tmp_path: Path) -> None:
    """The same bytes in another folder: another run as far as the command can know."""
    (tmp_path / "again").mkdir()
    again = Path(shutil.copy(STEADY, tmp_path / "again"))
    code, out, _ = run("diff", STEADY, again, "--fail-over", "0%", "--fail-over", "op=0%", "--json")
    found = as_json(out)
    assert code == 0
    assert not any(row["changed"] for row in (found["step"], *found["classes"], *found["ops"]))
    assert found["warnings"] == []


def test_ops_and_programs_of_other_names_are_the_same_ops(
    run: Run, slower: Callable[[str, Fraction], Path], tmp_path: Path
) -> None:
    """Another compile names every instruction and program anew: the ops are matched by what they are."""
    after = slower("ynn_fusion.5", Fraction(1, 20))
    renamed = tmp_path / "renamed" / "vm.xplane.pb"
    renamed.parent.mkdir()
    renamed.write_bytes(rename_ops(after.read_bytes()))
    assert b"ynn_fusion.5" not in renamed.read_bytes()
    code, out, _ = run("diff", STEADY, renamed, "--fail-over", "op=4%", "--json")
    plain_code, plain_out, _ = run("diff", STEADY, after, "--fail-over", "op=4%", "--json")
    found, plain = as_json(out), as_json(plain_out)
    assert code == plain_code == 3
    (row,) = [row for row in found["ops"] if row["changed"]]
    assert row["op_in_a"] == "ynn_fusion.5"
    assert row["op_in_b"] != "ynn_fusion.5"
    assert all(row["op_in_a"] and row["op_in_b"] for row in found["ops"])

    def numbers(comparison: dict[str, Any]) -> dict[str, tuple[float, ...]]:
        return {row["op_in_a"]: (row["a_ms"], row["b_ms"], row["p"], row["q"]) for row in comparison["ops"]}

    assert numbers(found) == numbers(plain)


def test_a_step_that_takes_longer_ends_with_3_only_where_asked(run: Run) -> None:
    before, after = DATA / "planted_input.xplane.pb.gz", DATA / "planted_recompile.xplane.pb.gz"
    code, out, _ = run("diff", before, after)
    assert code == 0
    assert out.startswith("A step is 342.0% longer: 58.1 ms before, 257 ms after")
    assert run("diff", before, after, "--fail-over", "5%")[0] == 3
    assert run("diff", before, after, "--fail-over", "compiler=5%")[0] == 3
    assert run("diff", before, after, "--fail-over", "unknown=5%")[0] == 0
    assert run("diff", after, before, "--fail-over", "5%")[0] == 0


def test_folders_of_analyze_are_compared_as_they_are(run: Run, tmp_path: Path) -> None:
    assert run("analyze", STEADY, "-o", "a")[0] == 0
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    assert run("diff", "a", "b")[0] == 0
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before


def test_two_profiles_of_one_name_are_not_taken_for_each_other(
    run: Run, slower: Callable[[str, Fraction], Path], tmp_path: Path
) -> None:
    """Both have the OUT ./vm-analysis here; the older file comes second."""
    after = slower("ynn_fusion.5", Fraction(1, 20))
    before = tmp_path / "before" / "vm.xplane.pb"
    before.parent.mkdir()
    before.write_bytes(gzip.decompress(STEADY.read_bytes()))
    for one, other in ((before, after), (after, before)):
        _, out, _ = run("diff", one, other, "--json")
        assert [row["op"] for row in as_json(out)["ops"] if row["changed"]] == ["ynn_fusion.5"]


def test_an_out_of_an_earlier_version_is_made_again(run: Run, tmp_path: Path) -> None:
    """Without the table op_steps: from the run it is made again, alone it cannot be."""
    assert run("analyze", STEADY)[0] == 0
    (tmp_path / "mlp_async40-analysis" / "op_steps.parquet").unlink()
    code, _, err = run("diff", "mlp_async40-analysis", STEADY)
    assert code == 1
    assert "earlier version" in err
    assert run("diff", STEADY, STEADY)[0] == 0
    assert pq.read_table(tmp_path / "mlp_async40-analysis" / "op_steps.parquet").num_rows == 42


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nowhere", STEADY), 1, "nowhere"),
        ((STEADY, STEADY, "--fail-over", "five"), 2, "no threshold"),
        ((STEADY, STEADY, "--name", "eval"), 2, "'eval'"),
    ],
)
def test_what_cannot_work_is_said(run: Run, arguments: tuple[str | Path, ...], code: int, said: str) -> None:
    found, out, err = run("diff", *arguments)
    assert (found, out) == (code, "")
    assert said in err


def test_the_same_comparison_prints_the_same_bytes(run: Run) -> None:
    arguments = ("diff", DATA / "planted_input.xplane.pb.gz", DATA / "planted_recompile.xplane.pb.gz", "--json")
    assert run(*arguments) == run(*arguments)
