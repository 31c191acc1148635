"""Exports of Nsight Systems give the same answers as any trace of the same program. Times in microseconds."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_traces import US, Trace, classes, codes, windows
from nsys_exports import BEGAN_NS, MARK, PUSH_POP, START_END, VERSIONS, Report, three_steps

from xprof_py.errors import BadInputError, UsageError
from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.nsys import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    NVTX,
    RUNTIME,
    SYNC,
    nsys_processes,
    read_nsys,
)
from xprof_py.postprocess.readers.nsys_steps import step_numbers
from xprof_py.postprocess.readers.sources import find_sources
from xprof_py.postprocess.readers.sqlite_columns import ABSENT, SqliteColumns
from xprof_py.postprocess.schema import Kind


def arguments(profile: Profile, key: str) -> dict[int, int]:
    rows = profile["args"].to_pylist()
    return {row["event"]: row["value"] for row in rows if row["key"] == key}


def named(profile: Profile) -> list[str]:
    return [str(name) for name in profile["events"]["name"].to_pylist()]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_kernel_belongs_to_the_step_that_launched_it(tmp_path: Path, version: str) -> None:
    joined = three_steps(Report(version)).joined(tmp_path)
    assert windows(joined) == {0: (0, 1400), 1: (1400, 2400), 2: (2400, 3400)}
    assert [classes(joined, number)["compute"] for number in range(3)] == [700, 700, 700]
    assert joined["runs"]["join"].unique().to_pylist() == ["id"]
    assert joined["steps"]["name"].to_pylist() == ["step"] * 3


@pytest.mark.parametrize("version", VERSIONS)
def test_the_same_program_has_the_same_breakdown_as_in_a_trace_of_pytorch(tmp_path: Path, version: str) -> None:
    report, trace = Report(version), Trace()
    for number in range(4):
        base = 1000 * number
        report.range(f"ProfilerStep#{number}", base, base + 1000)
        trace.step(number, base, base + 1000)
        report.range("aten::mm, op_id = 3", base + 100, base + 140)
        trace.add("cpu_op", "aten::mm", base + 100, base + 140, trace.pid, trace.pid)
        for k in range(3):
            call, work = (base + 110 + 8 * k, base + 115 + 8 * k), (base + 300 + 150 * k, base + 400 + 150 * k)
            report.launched(call, work)
            trace.launched(call, work, "gemm<float>(int)")
    ours, theirs = report.joined(tmp_path), trace.joined(tmp_path)
    assert ours["breakdown"].drop_columns("host").equals(theirs["breakdown"].drop_columns("host"))
    for table in ("ops", "steps", "windows"):
        dropped = [name for name in ("event", "line") if name in ours[table].column_names]
        assert ours[table].drop_columns(dropped).to_pylist() == theirs[table].drop_columns(dropped).to_pylist()


def test_times_are_exact_and_absolute(tmp_path: Path) -> None:
    report = Report().launched((5.001, 5.002), (7.003, 9.004)).range("open", 6, None)
    profile = report.read(tmp_path)
    assert profile.origin_ns == BEGAN_NS + 5001
    times = dict(zip(named(profile), profile["events"].select(["start_ps", "duration_ps"]).to_pylist(), strict=True))
    assert times["gemm<float>(int)"] == {"start_ps": 2_002_000, "duration_ps": 2_001_000}
    assert times["cudaLaunchKernel"] == {"start_ps": 0, "duration_ps": 1000}
    assert times["open"] == {"start_ps": 999_000, "duration_ps": None}


def test_times_that_are_utc_already_stay(tmp_path: Path) -> None:
    report = Report().launched((BEGAN_NS / 1000, BEGAN_NS / 1000 + 1), (BEGAN_NS / 1000 + 8, BEGAN_NS / 1000 + 9))
    assert report.read(tmp_path).origin_ns == round(BEGAN_NS / 1000 * 1000)


def test_a_report_without_the_sessions_start_has_no_absolute_time_and_says_so(tmp_path: Path) -> None:
    profile = three_steps(Report("2020")).read(tmp_path)
    assert profile.origin_ns == 0
    assert codes(profile) == {"no_absolute_time": 1}


def test_every_process_of_a_report_is_a_rank_of_one_clock(tmp_path: Path) -> None:
    """Both count their launches from 1; the second's are 300 us later. Its thread 9 waits."""
    report = three_steps(Report(process=144))
    report.process, report._correlation = 145, 0
    for number in range(3):
        base = 1000 * number
        report.range(f"step {number}", base, base + 1000)
        for k in range(5):
            call = (base + 350 + 100 * k, base + 360 + 100 * k)
            report.launched(call, (base + 800 + 40 * k, base + 840 + 40 * k), device=1, contextId=2)
    report.call("cudaEventQuery", 5, 6, 0, thread=9)
    file = report.written(tmp_path / "both.sqlite")
    assert nsys_processes(file) == [144, 145]
    assert [source.member for source in find_sources([file]).processes] == ["144", "145"]
    first, second = (read_nsys(file, member) for member in ("144", "145"))
    assert (first.host, second.host) == ("both:144", "both:145")
    assert [line["plane"] for line in second["lines"].to_pylist()] == ["/device:GPU:1", "/host:CPU", "/host:CPU"]
    found = analyse([file])
    busy = {row["host"]: row["compute_ps"] / US for row in found.tables["step_classes"].to_pylist() if row["number"]}
    assert busy == {"both:144": 700, "both:145": 200}
    assert found.tables["clock_map"]["domain"].to_pylist() == ["both.sqlite/session"]
    assert found.tables["runs"]["join"].unique().to_pylist() == ["id"]


def test_a_file_without_member_of_several_processes_reads_none_of_them_alone(tmp_path: Path) -> None:
    file = three_steps(Report()).written(tmp_path / "a.sqlite")
    with pytest.raises(BadInputError, match="holds no process 7"):
        read_nsys(file, "7")


def test_work_that_names_no_process_is_the_only_ones_or_nobodys(tmp_path: Path) -> None:
    report = Report().launched((0, 1), (2, 3)).launched((4, 5), (6, 7), globalPid=None)
    assert len([name for name in named(report.read(tmp_path)) if name.startswith("gemm")]) == 2
    report.process = 145
    report.launched((8, 9), (10, 11))
    (tmp_path / "report.sqlite").unlink()
    assert codes(report.read(tmp_path, "144"))["work_without_process"] == 1
    assert "work_without_process" not in codes(read_nsys(tmp_path / "report.sqlite", "145"))


@pytest.mark.parametrize("version", VERSIONS)
def test_copies_and_fills_have_direction_and_bytes(tmp_path: Path, version: str) -> None:
    report = Report(version)
    kinds = [(1, 0, 2), (2, 2, 1), (8, 2, 2), (10, 2, 2), (9, 0, 0)]
    for place, (kind, source, target) in enumerate(kinds):
        report.call("cudaMemcpyAsync_v3020", 10 * place, 10 * place + 1, place + 1)
        more = {"bytes": 1000 + place, "copyKind": kind, "srcKind": source, "dstKind": target}
        report.work(MEMCPY, 10 * place + 2, 10 * place + 4, correlationId=place + 1, **more)
    report.work(MEMSET, 60, 61, bytes=64, memKind=2, correlationId=0)
    joined = report.joined(tmp_path)
    found = [(row["direction"], row["bytes"], row["source"]) for row in joined["copies"].to_pylist()]
    ways = ["to_device", "to_host", "on_device", "between_devices", "unknown"]
    assert found == [(way, 1000 + place, "bytes") for place, way in enumerate(ways)]
    assert joined["ops"]["class"].to_pylist()[:4] == ["host_device", "host_device", "memory", "collective"]
    assert [n for n in named(joined) if n.startswith("Mem")][::5] == [
        "Memcpy HtoD (Pageable -> Device)",
        "Memset (Device)",
    ]


def test_a_copy_from_one_device_to_another_is_one_whatever_its_kind(tmp_path: Path) -> None:
    more = {"copyKind": 8, "srcKind": 2, "dstKind": 2, "srcDeviceId": 0, "dstDeviceId": 1}
    joined = (
        Report()
        .work(MEMCPY, 0, 1, bytes=5, **more)
        .work(MEMCPY, 2, 3, bytes=5, **more | {"dstDeviceId": 0})
        .joined(tmp_path)
    )
    assert joined["copies"]["direction"].to_pylist() == ["between_devices", "on_device"]


def test_a_whole_graph_is_work_and_its_nodes_are_not_counted_twice(tmp_path: Path) -> None:
    report = (
        Report().range("step 0", 0, 100).call("cudaGraphLaunch_v10000", 1, 2, 1).call("cudaGraphLaunch_v10000", 3, 4, 2)
    )
    report.work(GRAPH, 10, 30, correlationId=1, graphId=5, graphExecId=6)
    report.work(GRAPH, 40, 60, correlationId=2, graphId=5, graphExecId=6)
    for k in range(2):
        name = report.string("node")
        report.work(
            KERNEL, 40 + 10 * k, 45 + 10 * k, correlationId=2, demangledName=name, shortName=name, graphNodeId=k + 1
        )
    joined = report.joined(tmp_path)
    assert classes(joined, 0)["compute"] == 20 + 5 + 5
    assert [row["leaf"] for row in joined["ops"].to_pylist()] == [True, False, True, True]


def test_waits_for_the_device_are_calls_and_no_work(tmp_path: Path) -> None:
    report = Report().range("step 0", 0, 100).launched((1, 2), (10, 60), device=1, contextId=3)
    report.call("cudaStreamSynchronize_v3020", 5, 61, 9).work(SYNC, 6, 60, device=0, contextId=3, syncType=3)
    joined = report.joined(tmp_path)
    assert joined["ops"].num_rows == 1
    assert joined["device_waits"].num_rows == 1
    assert {line["plane"] for line in joined["lines"].to_pylist()} == {"/device:GPU:1", "/host:CPU"}


def test_streams_of_two_contexts_are_two_lines(tmp_path: Path) -> None:
    report = Report().launched((0, 1), (2, 9)).launched((1, 2), (3, 8), contextId=2)
    names = [line["name"] for line in report.read(tmp_path)["lines"].to_pylist()]
    assert names == ["Stream #7 (context 1)", "Stream #7 (context 2)", "144"]


def test_operations_of_pytorch_are_work_of_the_host_under_one_name(tmp_path: Path) -> None:
    report = Report().range("aten::mm, seq = 3, op_id = 17, sizes = [[2, 2], [2, 2]]", 0, 5)
    report.range("aten::mm, op_id = 18", 6, 7).range("detach_, op_id = 1", 8, 9).range("my block, part 2", 10, 11)
    profile = report.read(tmp_path)
    assert named(profile) == ["aten::mm", "aten::mm", "detach_", "my block, part 2"]
    assert profile["events"]["kind"].to_pylist() == [Kind.HOST_OP] * 3 + [Kind.PLAIN]
    assert arguments(profile, "op_id") == {0: 17, 1: 18, 2: 1}
    assert arguments(profile, "seq") == {0: 3}


def test_registered_names_marks_and_ranges_between_threads(tmp_path: Path) -> None:
    report = Report()
    report.range(None, 0, 5, textId=report.string("ncclAllReduce")).range(None, 6, 7, textId=77)  # type: ignore[arg-type]
    report.range("here", 8, None, eventType=MARK)
    report.range("between", 1, 9, eventType=START_END, endGlobalTid=report.on_thread(3))
    report.range("domain", 0, None, eventType=75)
    profile = report.read(tmp_path)
    planes = profile["lines"]["plane"].to_pylist()
    rows = profile["events"].to_pylist()
    assert [(r["name"], planes[r["line"]], r["kind"]) for r in rows] == [
        ("ncclAllReduce", "/host:CPU", Kind.PLAIN),
        ("unknown range", "/host:CPU", Kind.PLAIN),
        ("here", "/host:CPU", Kind.MARK),
        ("between", "/profiler:NVTX", Kind.PLAIN),
    ]
    assert rows[2]["duration_ps"] == 0
    assert codes(profile)["missing_strings"] == 1


@pytest.mark.parametrize(
    ("names", "wanted", "found"),
    [
        (["step 3", "step 4"], "", [("step", 3), ("step", 4)]),
        (["train_step_3", "Iteration 4", "ITER=5"], "", [("train_step", 3), ("Iteration", 4), ("ITER", 5)]),
        (["ProfilerStep#7", "ProfilerStep#8"], "", [("ProfilerStep", 7), ("ProfilerStep", 8)]),
        (["step", "step", "step"], "", [("step", 0), ("step", 1), ("step", 2)]),
        (["training step", "step 4"], "", [None, ("step", 4)]),
        (["optimizer.step", "step size 3", "iterate 4", "stepper", "steps 2", "forward"], "", [None] * 6),
        (["batch 3 of 9", "batch 4 of 9"], r"batch (\d+) of 9", [("batch", 3), ("batch", 4)]),
        (["fwd", "step 3", "fwd"], "fwd", [("fwd", 0), None, ("fwd", 1)]),
        (["step 9999999999999999999"], "", [("step 9999999999999999999", 0)]),
    ],
)
def test_which_ranges_are_steps(names: list[str], wanted: str, found: list[tuple[str, int] | None]) -> None:
    distinct = list(dict.fromkeys(names))
    code = np.array([distinct.index(name) for name in names], np.int64)
    start = np.arange(len(names)) * 10
    none = np.full(len(names), ABSENT)
    steps = step_numbers(pa.array(distinct, pa.string()), code, start, none, np.ones(len(names), np.bool_), wanted)
    shown = [(steps.names[n], int(k)) if k >= 0 else None for n, k in zip(steps.name, steps.number, strict=True)]
    assert shown == found


def test_a_step_without_number_in_its_name_takes_it_from_its_payload(tmp_path: Path) -> None:
    report = Report().range("step", 0, 10, int64Value=40).range("step", 10, 20, int64Value=41)
    assert sorted(arguments(report.read(tmp_path), "step_num").values()) == [40, 41]


def test_the_steps_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = three_steps(Report(), "microbatch")
    file = report.written(tmp_path / "a.sqlite")
    found = analyse([file])
    assert found.summary["steps"]["count"] == 0
    assert "XPROF_PY_NVTX_STEPS" in next(
        d["message"] for d in found.summary["diagnostics"] if d["code"] == "no_step_ranges"
    )
    monkeypatch.setenv("XPROF_PY_NVTX_STEPS", r"microbatch (\d+)")
    assert analyse([file]).summary["steps"]["count"] == 3
    monkeypatch.setenv("XPROF_PY_NVTX_STEPS", "microbatch (")
    with pytest.raises(UsageError, match="no regular expression"):
        analyse([file])


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_has_no_say(tmp_path: Path, seed: int) -> None:
    report = three_steps(Report())
    report.process, report._correlation = 145, 0
    three_steps(report).range("a", 0, 1000).range("b", 0, 1000).call("cudaEventRecord", 5, 6, 0)
    file = tmp_path / "a.sqlite"
    before = json.dumps(analyse([report.written(file)]).summary)
    file.unlink()
    assert json.dumps(analyse([report.written(file, seed)]).summary) == before


def test_it_is_read_from_gzip_and_by_content_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    file = three_steps(Report()).written(tmp_path / "a.sqlite")
    wanted = json.dumps(analyse([tmp_path]).summary["breakdown"])
    packed = tmp_path / "packed.anything"
    packed.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
    assert json.dumps(analyse([packed]).summary["breakdown"]) == wanted
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.sqlite", "packed.anything"]


# --- what is broken ---------------------------------------------------------------------------------------------


def test_a_table_that_breaks_off_is_read_up_to_there(tmp_path: Path) -> None:
    report = Report()
    for k in range(4000):
        report.launched((10 * k, 10 * k + 1), (10 * k + 2, 10 * k + 9))
    file = report.written(tmp_path / "a.sqlite")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 6 // 10])
    profile = read_nsys(file)
    rows = [row for row in profile["diagnostics"].to_pylist() if row["code"] == "damaged"]
    read = {row["place"]: row["count"] for row in rows}
    assert {row["file"] for row in rows} == {str(file)}
    assert KERNEL not in read
    assert sum(name.startswith("gemm") for name in named(profile)) == 4000
    # The page in which the file ends has rows of nothing.
    calls = named(profile).count("cudaLaunchKernel")
    assert calls > 200
    assert read[RUNTIME] == calls + codes(profile)["event_without_time"]


def test_rows_of_something_else_than_integers_cost_themselves(tmp_path: Path) -> None:
    file = three_steps(Report()).written(tmp_path / "a.sqlite")
    with sqlite3.connect(file) as database:
        database.execute(f"update {KERNEL} set start = 'soon' where rowid in (3, 4)")
        database.execute(f"update {NVTX} set start = 0.5 where rowid = 1")
    database.close()
    profile = read_nsys(file)
    damaged = {r["place"]: r["count"] for r in profile["diagnostics"].to_pylist() if r["code"] == "damaged_rows"}
    assert damaged == {KERNEL: 2, NVTX: 1}
    assert sorted(arguments(profile, "step_num").values()) == [1, 2]
    assert sum(name.startswith("gemm") for name in named(profile)) == 13


def test_times_that_cannot_be_cost_themselves(tmp_path: Path) -> None:
    report = (
        three_steps(Report())
        .launched((10, 11), (0, 0))
        .launched((12, 13), (9e12, 9e12 + 1))
        .launched((14, 15), (30, 20))
    )
    report.launched((16, 17), (-9.2e15, 5))
    found = codes(report.read(tmp_path))
    assert found == {"work_without_time": 1, "time_out_of_range": 2, "negative_duration": 1}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"SQLite format 3\0", "is no whole SQLite database"),
        (b"SQLite format 3\0" + bytes(range(256)) * 40, "is no whole SQLite database"),
        (gzip.compress(b"SQLite format 3\0" + bytes(5000), mtime=0)[:40], "gzip"),
    ],
)
def test_what_is_no_database_is_named(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "a.sqlite"
    file.write_bytes(content)
    for read in (read_nsys, lambda path: analyse([path])):
        with pytest.raises(BadInputError, match=why):
            read(file)


def test_a_database_of_another_tool_is_named_with_its_tables_and_passed_over_in_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "bookmarks.sqlite"
    with sqlite3.connect(file) as database:
        database.execute("create table bookmarks (url)")
    database.close()
    with pytest.raises(BadInputError, match=r"no export of Nsight Systems \(tables: bookmarks\)"):
        analyse([file])
    with pytest.raises(BadInputError, match="no profile in this folder"):
        analyse([tmp_path])
    three_steps(Report()).written(tmp_path / "report.sqlite")
    assert analyse([tmp_path]).summary["steps"]["count"] == 3


def test_a_report_that_only_nsys_can_read_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.nsys-rep").write_bytes(b"anything")
    with pytest.raises(BadInputError, match=r"nsys export --type sqlite a\.nsys-rep"):
        analyse([tmp_path / "a.nsys-rep"])


def test_a_report_without_cuda_or_without_calls_says_what_is_missing(tmp_path: Path) -> None:
    report = Report()
    for table in (KERNEL, MEMCPY, MEMSET, GRAPH, SYNC):
        del report.schema[table]
    profile = report.range("step 0", 0, 5).read(tmp_path)
    row = next(row for row in profile["diagnostics"].to_pylist() if row["code"] == "no_device_work")
    assert KERNEL in row["message"]
    report = three_steps(Report())
    del report.schema[RUNTIME]
    (tmp_path / "report.sqlite").unlink()
    assert "no_driver_calls" in codes(report.read(tmp_path))


def test_missing_columns_are_named(tmp_path: Path) -> None:
    report = three_steps(Report())
    report.schema[KERNEL] = report.schema[KERNEL].replace("correlationId INTEGER, ", "")
    for row in report.rows[KERNEL]:
        del row["correlationId"]
    row = next(r for r in report.read(tmp_path)["diagnostics"].to_pylist() if r["code"] == "missing_columns")
    assert (row["place"], row["message"].split(":")[0]) == (KERNEL, "the table has no column correlationId")


STAMP = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**9), st.text(max_size=3), st.floats())
ROW = st.tuples(STAMP, STAMP, STAMP, STAMP, STAMP)


@given(st.lists(ROW, max_size=12), st.lists(ROW, max_size=12))
@settings(max_examples=60, deadline=None)
def test_every_row_is_an_event_or_counted(
    tmp_path_factory: pytest.TempPathFactory, kernels: list[tuple[Any, ...]], ranges: list[tuple[Any, ...]]
) -> None:
    file = tmp_path_factory.mktemp("nsys") / "a.sqlite"
    with sqlite3.connect(file) as database:
        database.execute(f"create table {KERNEL} (start, end, deviceId, correlationId, demangledName)")
        database.execute(f"create table {NVTX} (start, end, textId, globalTid, int64Value, eventType)")
        marks = "?, ?, ?, ?, ?"
        database.executemany(f"insert into {KERNEL} values ({marks})", kernels)
        database.executemany(f"insert into {NVTX} values ({marks}, {PUSH_POP})", ranges)
    database.close()
    try:
        profile = read_nsys(file)
    except BadInputError as error:
        if "holds no event" not in error.reason:
            raise
        return
    lost = {"event_without_time", "work_without_time", "time_out_of_range", "damaged_rows", "other_processes"}
    rows = [row for row in profile["diagnostics"].to_pylist() if row["code"] in lost]
    if len(nsys_processes(file)) <= 1:
        # Those of several are divided among them.
        assert profile["events"].num_rows + sum(row["count"] for row in rows) == len(kernels) + len(ranges)
    starts = np.asarray(profile["events"]["start_ps"])
    assert starts.min() == 0


def test_integers_keep_all_their_bits(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    values = [2**63 - 1, -(2**63) + 1, None, 0, 2**53 + 1]
    with sqlite3.connect(file) as database:
        database.execute("create table t (x)")
        database.executemany("insert into t values (?)", [(value,) for value in values])
    database.close()
    with SqliteColumns(file) as opened:
        assert opened.integers("t", ["x", "y"])["x"].tolist() == [ABSENT if v is None else v for v in values]
        assert opened.integers("t", ["x", "y"])["y"].tolist() == [ABSENT] * 5
