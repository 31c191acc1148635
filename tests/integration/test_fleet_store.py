"""A store of runs: what it keeps of a run is what the run's analysis says, and its report says what was planted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from xprof_py.cli import main
from xprof_py.errors import BadInputError, UsageError
from xprof_py.postprocess.fleet import store as stores
from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.fleet.schedulers import InProcess
from xprof_py.postprocess.fleet.store import SCHEMA, add_runs, find_runs, read_store
from xprof_py.postprocess.rules.fleet_report import fleet_report
from xprof_py.postprocess.schema import CLASSES

RECORDED = Path(__file__).parent.parent / "data" / "jax_cpu"
DAY_NS = 86_400 * 10**9


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """ROOT/<job>/<run> with two jobs of two and one run."""
    for place in ("small/input", "small/compute", "large/idle"):
        folder = tmp_path / "root" / place
        folder.mkdir(parents=True)
        shutil.copy(RECORDED / f"planted_{folder.name}.xplane.pb.gz", folder)
    return tmp_path / "root"


def add(root: Path, store: Path) -> list[dict[str, Any]]:
    return add_runs(store, find_runs(root), InProcess())


def files(store: Path) -> dict[str, bytes]:
    return {str(f.relative_to(store)): f.read_bytes() for f in sorted(store.rglob("*")) if f.is_file()}


def test_a_store_holds_what_the_analysis_of_each_run_says(root: Path, tmp_path: Path) -> None:
    assert add(root, tmp_path / "store") == []
    runs, _ = read_store(tmp_path / "store")
    assert {(r["job"], r["run"]) for r in runs.to_pylist()} == {
        ("small", "input"),
        ("small", "compute"),
        ("large", "idle"),
    }
    for name in ("input", "compute"):
        found = analyse([root / "small" / name]).summary
        mine = runs.filter(pc.equal(runs["run"], name)).to_pylist()
        whole = sum(row["exclusive_ps"] for row in mine)
        shares = {row["class"]: row["exclusive_ps"] / whole for row in mine}
        assert shares == pytest.approx({c: found["breakdown"][c]["share"] for c in CLASSES})
        assert {row["bottleneck"] for row in mine} == {found["verdict"]["bottleneck"]}
        assert {row["window_ps"] for row in mine} == {whole}


def test_the_energy_of_a_step_is_kept_where_it_is_known(root: Path, tmp_path: Path) -> None:
    (run,) = [run for run in find_runs(root) if run.run == "input"]
    result = analyse([run.path])
    (name,) = {row["step_name"] for row in stores.rows_of(run, result).to_pylist()}
    assert set(stores.rows_of(run, result)["step_energy_uj"].to_pylist()) == {None}
    result.summary["power"] = {"name": name, "joules_per_step": 60.25, "joules_per_step_error": None}
    rows = stores.rows_of(run, result)
    assert set(rows["step_energy_uj"].to_pylist()) == {60_250_000}
    assert set(rows["step_energy_error_uj"].to_pylist()) == {None}
    assert fleet_report(rows, [])["jobs"][0]["runs"][0]["step_j"] == 60.25
    # A file of before has no such columns.
    store = tmp_path / "store" / "day=unknown"
    store.mkdir(parents=True)
    pq.write_table(rows.drop_columns(["step_energy_uj", "step_energy_error_uj"]), store / f"{run.key}.parquet")
    before, _ = read_store(store.parent)
    assert set(before["step_energy_uj"].to_pylist()) == {None}
    assert fleet_report(before, [])["jobs"][0]["runs"][0]["step_j"] is None


def test_days_are_folders_and_adding_again_replaces(root: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    add(root, store)
    before = files(store)
    started = analyse([root / "small" / "input"]).summary["capture"]["started_ns"]
    day = datetime.fromtimestamp(started / 1e9, UTC).date().isoformat()
    assert len([name for name in before if name.startswith(f"day={day}/")]) >= 1
    add(root, store)
    assert files(store) == before
    shutil.copy(RECORDED / "planted_memory.xplane.pb.gz", root / "small" / "input" / "planted_input.xplane.pb.gz")
    add(root / "small", store)
    # Below another root a run has another job: nothing of it was replaced.
    assert len(files(store)) == len(before)
    add(root, store)
    assert len(files(store)) == len(before)
    assert files(store) != before


def test_a_run_that_moves_to_another_day_is_there_once(tmp_path: Path) -> None:
    (run,) = find_runs_of(tmp_path / "root", "run")
    for day in (5, 9, 5):
        stores._put(tmp_path / "store", run, rows([10], start=day))
        assert [f.parent.name for f in (tmp_path / "store").glob("day=*/*")] == [f"day=1970-01-{day + 1:02}"]


def find_runs_of(root: Path, *names: str) -> list[Any]:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "0.xplane.pb").touch()
    return find_runs(root)


def test_a_run_that_cannot_be_read_is_named_and_costs_no_other(root: Path, tmp_path: Path) -> None:
    bad = root / "small" / "bad" / "0.xplane.pb"
    bad.parent.mkdir()
    bad.write_bytes(b"\x0a\xff\xff\xff\xff\x0f no profile")
    (row,) = add(root, tmp_path / "store")
    assert (row["job"], row["run"], row["file"]) == ("small", "bad", str(bad))
    runs, failed = read_store(tmp_path / "store")
    assert len(pc.unique(runs["run"])) == 3
    assert failed == [row]
    shutil.copy(RECORDED / "planted_input.xplane.pb.gz", bad.with_name("0.xplane.pb.gz"))
    bad.unlink()
    assert add(root, tmp_path / "store") == []
    assert read_store(tmp_path / "store")[1] == []


def test_a_run_of_many_processes_has_the_rows_of_one_analysed_at_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for copy in "ab":
        shutil.copy(RECORDED / "planted_input.xplane.pb.gz", root / "small" / "input" / f"{copy}.xplane.pb.gz")
    add(root, tmp_path / "at_once")
    monkeypatch.setattr(stores, "MANY_PROCESSES", 1)
    add(root, tmp_path / "by_process")
    assert files(tmp_path / "by_process") == files(tmp_path / "at_once")


def test_runs_without_steps_are_in_the_store_too(tmp_path: Path) -> None:
    (run,) = find_runs_of(tmp_path, "run")
    found = analyse([RECORDED / "planted_input.xplane.pb.gz"])
    found.tables["step_classes"] = found.tables["step_classes"].slice(0, 0)
    (row,) = stores.rows_of(run, found).to_pylist()
    assert (row["run"], row["step_name"], row["class"]) == ("run", None, None)
    (job,) = fleet_report(stores.rows_of(run, found), [])["jobs"]
    assert job["runs"][0]["step_ms"] is None


def test_what_is_no_store_is_not_written_to(root: Path, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not a store of runs"):
        add(root, tmp_path / "else")
    assert main(["fleet", "analyze", str(root), "-o", str(tmp_path / "else")]) == 2
    with pytest.raises(BadInputError, match="holds no run"):
        read_store(tmp_path / "root" / "small" / "input")
    with pytest.raises(BadInputError, match="holds no run"):
        find_runs(tmp_path / "else")


def rows(
    input_ms: Sequence[int], *, start: int = 0, job: str = "job", hosts: int = 1, late_ms: int = 0, lanes: int = 2
) -> pa.Table:
    """One run a day, of steps of 100 ms compute and collectives and so much input; the last host computes longer."""
    out = []
    for day, milliseconds in enumerate(input_ms, start):
        for host in range(hosts):
            late = late_ms if host == hosts - 1 else 0
            classes = {"compute": 80 + late, "collective": 20 + late_ms - late, "input": milliseconds}
            step = sum(classes.values())
            same = {
                "job": job,
                "run": f"r{day:03}",
                "started_ns": day * DAY_NS + 1,
                "host": f"h{host}",
                "step_name": "t",
            }
            same |= {
                "process_index": host,
                "steps": 10,
                "lanes": lanes,
                "step_ps": step * 10**9,
                "bottleneck": "compute",
            }
            same |= {"window_ps": step * 10**10 * lanes, "xprof_py": "0", "source": ""}
            out += [{**same, "class": c, "exclusive_ps": classes.get(c, 0) * 10**10 * lanes} for c in CLASSES]
    return pa.Table.from_pylist(out, schema=SCHEMA)


def test_a_regression_is_named_with_its_run_size_and_class() -> None:
    slower = [10 + i % 3 for i in range(12)] + [30 + i % 3 for i in range(12)]
    report = fleet_report(pa.concat_tables([rows(slower), rows([10] * 12, job="calm")]), [])
    calm, job = report["jobs"]
    assert calm["job"] == "calm"
    assert calm["changes"] == []
    (change,) = job["changes"]
    assert (change["run"], change["kind"]) == ("r012", "regression")
    assert (change["before_ms"], change["after_ms"]) == (111, 131)
    assert change["classes"] == [{"class": "input", "change_ms": pytest.approx(20)}]
    assert change["p"] <= 0.01
    json.dumps(report)


def test_few_runs_say_that_they_are_few() -> None:
    (job,) = fleet_report(rows([10, 10, 10, 60, 60]), [])["jobs"]
    assert job["changes"] == []
    assert job["note"] == "5 runs: a change can be told from 10 on"


def test_causes_are_weighted_by_device_time() -> None:
    # 1 run of 2 lanes with 50 of 150 ms input, 3 runs of 8 lanes with none: 1 : 24 in lanes.
    report = fleet_report(pa.concat_tables([rows([50], job="a"), rows([0, 0, 0], job="b", lanes=8)]), [])
    shares = {row["class"]: row["share"] for row in report["causes"]}
    whole = 150 * 2 + 3 * 100 * 8
    assert shares == pytest.approx({"compute": 80 * 26 / whole, "collective": 20 * 26 / whole, "input": 100 / whole})
    (found,) = [row for row in report["causes"] if row["class"] == "input"]
    assert found["jobs"] == [{"job": "a", "device_s": pytest.approx(1.0)}]


def test_the_host_that_the_others_wait_for_is_the_straggler() -> None:
    report = fleet_report(pa.concat_tables([rows([10], hosts=4, late_ms=30), rows([10], hosts=4, job="even")]), [])
    (straggler,) = report["stragglers"]
    assert (straggler["job"], straggler["host"]) == ("job", "h3")
    # 110 + 10 against 80 + 10 of its own, in a step of 140 ms.
    assert straggler["lost_ms_per_step"] == pytest.approx(30)
    assert straggler["share"] == pytest.approx(30 / 140)
    assert straggler["lost_s"] == pytest.approx(0.3)


def test_the_command_adds_and_reports(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    assert main(["fleet", "analyze", str(root), "-o", str(store), "--workers", "2"]) == 0
    assert "3 runs added" in capsys.readouterr().err
    alone = files(store)
    assert main(["fleet", "report", str(store)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 jobs · 3 runs · 0 regressions\n")
    assert "device time of the fleet" in said
    assert "note: 2 runs: a change can be told from 10 on" in said
    assert main(["fleet", "report", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == fleet_report(*read_store(store))
    shutil.rmtree(store)
    assert main(["fleet", "analyze", str(root), "-o", str(store), "--workers", "1"]) == 0
    assert files(store) == alone
    assert main(["fleet", "report", str(tmp_path / "nowhere")]) == 1
