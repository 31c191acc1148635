"""`query` reads the tables of an analysis, exactly, and nothing else."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import table_pages
from hypothesis import given, settings
from hypothesis import strategies as st
from nsys_exports import Report, three_steps

from xprof_py.cli import main
from xprof_py.postprocess.fleet.analysis import read_analysis
from xprof_py.postprocess.fleet.query import opened
from xprof_py.viewers.rows import aligned, csv_pieces, json_pieces

pytest.importorskip("duckdb", reason="duckdb is not installed: pip install 'xprof_py[query]'")

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"
CAPTURES = ("collectives_4dev", "planted_recompile")


@pytest.fixture(scope="module")
def outs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Analyses: of two captures, and of a job of two processes, whose tables are folders."""
    root = tmp_path_factory.mktemp("analyses")
    report = three_steps(Report(process=144))
    report.process, report._correlation = 145, 0
    report.range("step 0", 0, 1000).range("inner step 4", 0, 1).range("step 1", 1000, 2000).launched((1, 2), (3, 900))
    inputs = {name: DATA / f"{name}.xplane.pb.gz" for name in CAPTURES}
    inputs["job"] = report.written(root / "job.sqlite")
    for name, file in inputs.items():
        assert main(["analyze", str(file), "-o", str(root / name), "--workers", "1"]) == 0
    return {name: root / name for name in inputs}


def ask(capsys: pytest.CaptureFixture[str], out: Path, sql: str, *more: str) -> Any:
    capsys.readouterr()
    assert main(["query", str(out), sql, "--format", "json", *more]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", [*CAPTURES, "job"])
def test_every_table_has_the_rows_that_were_written(
    outs: dict[str, Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis = read_analysis(outs[name])
    names = [row["name"] for row in ask(capsys, outs[name], "show tables")]
    assert names == sorted(analysis.tables)
    union = " union all ".join(f"select '{table}' as t, count(*) as n from \"{table}\"" for table in names)
    assert {row["t"]: row["n"] for row in ask(capsys, outs[name], union)} == {
        table: rows.num_rows for table, rows in analysis.tables.items()
    }


def test_rows_refer_to_rows_of_their_host(outs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Process 144 has steps 0 to 2 of 5 runs each, 145 steps 0 and 1 with one run in step 0."""
    sql = (
        "select r.host, s.number, count(*) as runs from runs r join launches l on l.host = r.host and l.row = r.launch "
        "join steps s on s.host = r.host and s.row = l.step group by all order by all"
    )
    found = [(row["host"], row["number"], row["runs"]) for row in ask(capsys, outs["job"], sql)]
    assert found == [("job:144", 0, 5), ("job:144", 1, 5), ("job:144", 2, 5), ("job:145", 0, 1)]


def test_sums_are_exact(outs: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = read_analysis(outs["job"]).tables["breakdown"]
    wanted = sum(table["exclusive_ps"].to_pylist()) << 60
    sql = "select sum(exclusive_ps::hugeint * (1::hugeint << 60)) as s from breakdown"
    assert ask(capsys, outs["job"], sql) == [{"s": wanted}]
    assert main(["query", str(outs["job"]), sql, "--format", "csv"]) == 0
    assert capsys.readouterr().out == f'"s"\n{wanted}\n'
    assert main(["query", str(outs["job"]), sql, "-o", str(tmp_path / "a.parquet")]) == 0
    assert int(pq.read_table(tmp_path / "a.parquet")["s"][0].as_py()) == wanted


def test_every_example_of_the_page_runs_and_most_have_an_answer(outs: dict[str, Path]) -> None:
    answered = set()
    for out in outs.values():
        with opened(out) as connection:
            present = {name for (name,) in connection.sql("show tables").fetchall()}
            assert set(table_pages.ABOUT) - present <= table_pages.OF_JOBS
            for name in present:
                example = table_pages.ABOUT[name][1]
                assert f" {name}" in example
                if connection.sql(example).fetchall():
                    answered.add(name)
    # No capture here has a prober, a GPU, an allocator's events, a straggler, spans of its own, findings in its code.
    assert set(table_pages.ABOUT) - answered <= {
        "allocations",
        "clock_samples",
        "network",
        "memory_allocators",
        "code_findings",
        "collectives",
        "host_spans",
        "launch_bound",
        "copies",
        "copy_sizes",
        "throughput",
        "power",
        "energy",
        "throttling",
    }


def test_the_page_is_what_the_tables_are(outs: dict[str, Path]) -> None:
    found = table_pages.schemas(read_analysis(outs["collectives_4dev"]).tables)
    assert set(found) == set(table_pages.ABOUT)
    undefined = [(t, c) for t, schema in found.items() for c in schema.names if table_pages.meaning(t, c) is None]
    assert undefined == []
    written = table_pages.PAGE.read_text(encoding="utf-8").split(table_pages.BEGIN)[1]
    assert table_pages.BEGIN + written == table_pages.page(found), "python tests/table_pages.py writes it anew"
    for out in outs.values():
        for name, table in read_analysis(out).tables.items():
            assert [c for c in found[name].names if c != "row"] == table.column_names


def test_a_run_is_analysed_and_a_stale_analysis_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = three_steps(Report()).written(tmp_path / "a.sqlite")
    sql = "select count(*) as n from steps"
    assert ask(capsys, file, sql) == [{"n": 3}]
    file.unlink()
    three_steps(Report()).range("step 3", 3000, 3100).written(file)
    os.utime(file, ns=(2**62, 2**62))
    assert ask(capsys, file, sql) == [{"n": 4}]
    assert ask(capsys, tmp_path / "a-analysis", sql) == [{"n": 4}]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("select * from stepz", "Tables: allocations, breakdown"),
        ("select * from stepz", "there is no table stepz: did you mean steps"),
        ("select name from spans", "there is no table spans: did you mean host_spans?"),
        ("select nummer from steps", 'Candidate bindings: "number"'),
        ("selec 1", "syntax error"),
        ("select 1; select 2", "one SELECT"),
        ("", "an empty query"),
        ("drop view steps", "one SELECT"),
        ("copy (select 1) to '{out}/steps.parquet'", "one SELECT"),
        ("explain analyze copy (select 1) to '{out}/steps.parquet'", "one SELECT"),
        ("set enable_external_access = true", "one SELECT"),
        ("attach '{tmp}/a.db'", "one SELECT"),
        ("install httpfs", "one SELECT"),
        ("select * from read_csv('/etc/passwd')", "disabled by configuration"),
        ("select * from read_text('{out}/summary.json')", "disabled by configuration"),
        ("select * from glob('/*')", "disabled by configuration"),
        ("from '{tmp}/other.parquet'", "disabled by configuration"),
        ("select name::int from steps", "Could not convert"),
    ],
)
def test_a_query_that_cannot_be_is_wrong_usage_and_reads_and_writes_nothing(
    outs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], sql: str, why: str
) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    out = outs["collectives_4dev"]
    before = {file.name: file.read_bytes() for file in [*out.iterdir(), *tmp_path.iterdir()]}
    capsys.readouterr()
    output = tmp_path / "result.csv"
    assert main(["query", str(out), sql.format(out=out, tmp=tmp_path), "-o", str(output)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert why in printed.err
    assert {file.name: file.read_bytes() for file in [*out.iterdir(), *tmp_path.iterdir()]} == before


def test_python_variables_are_no_tables(outs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    secret = pa.table({"x": [1]})
    assert main(["query", str(outs["job"]), "select * from secret"]) == 2
    assert secret.num_rows


def test_a_broken_table_is_named(outs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in outs["planted_recompile"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    whole = (tmp_path / "gaps.parquet").read_bytes()
    (tmp_path / "gaps.parquet").write_bytes(whole[:-40])
    assert main(["query", str(tmp_path), "select 1"]) == 1
    assert f"{tmp_path / 'gaps.parquet'}: Invalid" in capsys.readouterr().err
    (tmp_path / "gaps.parquet").unlink()
    assert main(["query", str(tmp_path), "select 1"]) == 1
    assert "is not there: analyse again" in capsys.readouterr().err


def test_without_duckdb_it_says_how_to_get_it(outs: dict[str, Path]) -> None:
    code = "import sys; sys.modules['duckdb'] = None; from xprof_py.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "query", str(outs["job"]), "select 1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'xprof_py[query]'" in done.stderr


def test_a_table_is_cut_at_its_limit_and_says_so(outs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for count, said in ((4, True), (5, False), (6, False)):
        assert main(["query", str(outs["job"]), "select * from range(5) t(x)", "--limit", str(count)]) == 0
        printed = capsys.readouterr()
        assert printed.out.split() == ["x", "-", *"01234"[:count]]
        assert ("there are more" in printed.err) == said


def test_the_format_is_that_of_the_files_ending_and_the_file_is_replaced_as_a_whole(
    outs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "select name, number from steps order by all"
    for ending in ("csv", "json", "parquet", "txt"):
        assert main(["query", str(outs["job"]), sql, "-o", str(tmp_path / f"a.{ending}")]) == 0
    assert capsys.readouterr().out == ""
    rows = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert json.loads((tmp_path / "a.json").read_text()) == rows
    with (tmp_path / "a.csv").open(newline="") as opened:
        assert [{"name": r["name"], "number": int(r["number"])} for r in csv.DictReader(opened)] == rows
    assert (tmp_path / "a.txt").read_text().splitlines()[0].split() == ["name", "number"]
    kept = (tmp_path / "a.csv").read_bytes()
    late = "select case when x = 200000 then 'x' else '1' end::int as y from range(300000) t(x)"
    assert main(["query", str(outs["job"]), late, "-o", str(tmp_path / "a.csv")]) == 2
    assert (tmp_path / "a.csv").read_bytes() == kept
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.json", "a.parquet", "a.txt"]
    assert main(["query", str(outs["job"]), sql, "--format", "parquet"]) == 2
    assert main(["query", str(outs["job"]), sql, "-o", str(tmp_path / "no" / "a.csv")]) == 1


# --- rows as text ------------------------------------------------------------------------------------------------


def reader(table: pa.Table) -> pa.RecordBatchReader:
    return table.to_reader(max_chunksize=2)


def test_a_name_from_a_trace_cannot_move_the_cursor() -> None:
    text = aligned(pa.table({"n": ["\x1b[2Jred", "a\nb", "x" * 99], "v": [1, None, -30]}), encoding="ascii")
    assert "\x1b" not in text
    lines = text.splitlines()
    assert len(lines) == 5
    assert [line.split()[-1] for line in lines[2:]] == ["1", "b", "-30"]


def test_json_has_no_two_columns_of_one_name() -> None:
    with pytest.raises(Exception, match="two columns are called 'x'"):
        list(json_pieces(reader(pa.Table.from_arrays([pa.array([1])] * 2, names=["x", "x"]))))


TEXT = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
ROWS = st.lists(st.tuples(TEXT, st.none() | st.integers(-(2**63), 2**63 - 1), st.booleans()), max_size=7)


@given(ROWS)
@settings(max_examples=80, deadline=None)
def test_csv_and_json_give_the_rows_back(rows: list[tuple[Any, ...]]) -> None:
    kinds = (pa.string(), pa.int64(), pa.bool_())
    table = pa.table({n: pa.array([row[i] for row in rows], kinds[i]) for i, n in enumerate(("a,", "b", 'c"'))})
    assert json.loads("".join(json_pieces(reader(table)))) == table.to_pylist()
    text = "".join(csv_pieces(reader(table)))
    read = pa_csv.read_csv(
        pa.BufferReader(text.encode()),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict(zip(table.column_names, kinds, strict=True)),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )
    assert read.to_pylist() == table.to_pylist()
