"""Where an analysis goes and what stands there afterwards: all of the new one, nothing of the old, what is others'."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from xprof_py.cli import analyze as command
from xprof_py.cli import main
from xprof_py.postprocess.fleet import analysis
from xprof_py.postprocess.fleet.analysis import Analysis, analyse, default_out, read_analysis, write_analysis
from xprof_py.postprocess.readers import sources
from xprof_py.postprocess.readers.sources import find_sources
from xprof_py.postprocess.readers.workers import Workers

GOOD = Path(__file__).parent.parent / "data" / "jax_cpu" / "planted_compute.xplane.pb.gz"


@cache
def analysed() -> Analysis:
    return analyse([GOOD])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def older(out: Path) -> None:
    """An analysis in ``out`` that had one more table, beside what other people put there."""
    found = analysed()
    table = pa.table({"x": [1]})
    tables = {**found.tables, "renamed_since": table}
    write_analysis(Analysis({**found.summary, "accounted": 0.5, "tables": sorted(tables)}, tables), out)
    (out / "report.html").write_text("a page")
    (out / "notes" / "deep").mkdir(parents=True)
    (out / "notes" / "deep" / "today.txt").write_text("look at step 5")
    (out / "latest").symlink_to("notes")
    pq.write_table(table, out / "my_query.parquet")


def test_the_new_analysis_replaces_the_old_and_keeps_what_is_others(tmp_path: Path) -> None:
    write_analysis(analysed(), tmp_path / "alone")
    older(tmp_path / "out")
    assert (tmp_path / "out" / "renamed_since.parquet").exists()
    write_analysis(analysed(), tmp_path / "out")
    found, alone = contents(tmp_path / "out"), contents(tmp_path / "alone")
    assert set(found) - set(alone) == {"report.html", "notes/deep/today.txt", "my_query.parquet"}
    assert {name: found[name] for name in alone} == alone
    assert (tmp_path / "out" / "latest").readlink() == Path("notes")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alone", "out"]


def test_a_table_of_somebody_else_is_no_table_of_the_analysis(tmp_path: Path) -> None:
    older(tmp_path / "out")
    write_analysis(analysed(), tmp_path / "out")
    found = read_analysis(tmp_path / "out")
    assert sorted(found.tables) == found.summary["tables"] == sorted(analysed().tables)


@pytest.mark.parametrize(
    ("failing", "workers"), [("write_table", 1), ("write_table", 3), ("out.replace", 1), ("fresh.replace", 1)]
)
def test_a_failure_leaves_the_old_analysis_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, workers: int
) -> None:
    out = tmp_path / "out"
    older(out)
    before = contents(out)
    if failing == "write_table":
        written = iter(range(4))
        real_write = pq.write_table

        def full(table: pa.Table, where: Path, **options: str) -> None:
            if next(written, None) is None:
                raise OSError(28, "No space left on device")
            real_write(table, where, **options)

        monkeypatch.setattr(analysis.pq, "write_table", full)
    else:
        real = Path.replace
        refused = "out" if failing == "out.replace" else ".out-"

        def replace(self: Path, target: Path) -> Path:
            if self.name == refused or (
                refused == ".out-" and self.name.startswith(refused) and "old" not in self.name
            ):
                raise OSError(16, "Device or resource busy")
            return real(self, target)

        monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(OSError, match=r"space|busy"):
        write_analysis(analysed(), out, Workers(workers))
    assert contents(out) == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_the_folder_one_stands_in_stays_the_folder_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older(tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    write_analysis(analysed(), Path())
    assert os.stat(".").st_ino == (tmp_path / "out").stat().st_ino
    assert not Path("renamed_since.parquet").exists()
    assert Path("my_query.parquet").exists()
    assert read_analysis(Path()).summary == analysed().summary
    assert not [p for p in Path().iterdir() if p.name.startswith(".")]


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    older(tmp_path / "real")
    (tmp_path / "out").symlink_to("real")
    write_analysis(analysed(), tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    assert not (tmp_path / "real" / "renamed_since.parquet").exists()


def out_of(*paths: Path | str) -> str:
    return str(default_out(paths, find_sources(paths)))


def test_two_names_have_two_outs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = Path("runs.2026")
    runs.mkdir()
    for name in ("llm.v1.lr0.1.xplane.pb.gz", "llm.v1.lr0.2.xplane.pb.gz"):
        shutil.copy(GOOD, runs / name)
    assert out_of(runs / "llm.v1.lr0.1.xplane.pb.gz") == "llm.v1.lr0.1-analysis"
    assert out_of(runs / "llm.v1.lr0.2.xplane.pb.gz") == "llm.v1.lr0.2-analysis"
    # Several files are their folder, not the first of them.
    assert out_of(runs / "llm.v1.lr0.1.xplane.pb.gz", runs / "llm.v1.lr0.2.xplane.pb.gz") == "runs.2026-analysis"
    assert out_of("runs.2026/*.xplane.pb.gz") == "runs.2026-analysis"
    assert out_of(runs) == "runs.2026-analysis"


def test_the_files_are_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = []

    def counted(paths: list[str]) -> sources.Sources:
        asked.append(paths)
        return find_sources(paths)

    monkeypatch.setattr(sources, "find_sources", counted)
    monkeypatch.setattr(analysis, "find_sources", counted)
    command.analyze([GOOD])
    assert len(asked) == 1


def test_files_in_any_order_give_the_same_bytes_through_the_command(tmp_path: Path) -> None:
    """Four hosts, one of them damaged, named in three orders; once as a folder."""
    data = GOOD.parent
    job = tmp_path / "job"
    job.mkdir()
    for rank, name in enumerate(("planted_input", "planted_compute", "planted_recompile")):
        shutil.copy(data / f"{name}.xplane.pb.gz", job / f"{rank}.xplane.pb.gz")
    (job / "3.xplane.pb").write_bytes(b"\x0a\xff\x01")
    files = sorted(str(file) for file in job.iterdir())
    named = [files, files[::-1], [files[2], files[0], files[3], files[1]], [str(job)]]
    written = []
    for number, paths in enumerate(named):
        assert main(["analyze", *paths, "-o", str(tmp_path / f"out{number}")]) == 0
        written.append(contents(tmp_path / f"out{number}"))
    assert written[0] == written[1] == written[2] == written[3]
