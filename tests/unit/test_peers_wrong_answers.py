"""Where tools for traces of PyTorch were seen to fail or to answer wrongly, and what is true. Others of the kind are in
test_kineto_breakdown.py, test_kineto_ranks.py and test_chrome_json.py. Times in microseconds."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from device_spaces import Planes
from kineto_traces import US, Trace, classes, codes

from xprof_py.errors import BadInputError
from xprof_py.postprocess.fleet.analysis import Analysis, analyse
from xprof_py.postprocess.rules.difference import compare_runs

NEW_NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
OLD_NAME = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"


def job(
    folder: Path,
    late_us: dict[int, float],
    *,
    count: int,
    steps: int = 10,
    name: str = NEW_NAME,
    shift_us: dict[int, float] | None = None,
    drift: dict[int, float] | None = None,
) -> Analysis:
    """``count`` ranks. Each step is a kernel of 500 us, longer on a rank by its ``late_us``; an all-reduce that ends on
    all 20 us after the last of them began it; and one of 10 us that all begin together, which tells a late rank from a
    clock that is ahead. ``shift_us`` and ``drift``: what a rank's clock is off by, and gains."""
    files = []
    for rank in range(count):
        trace = Trace(rank, count)
        late, last = late_us.get(rank, 0), max(late_us.values(), default=0)
        for k in range(steps):
            base = 2000 * k
            trace.step(k, base, base + 2000).launched((base + 10, base + 20), (base + 30, base + 530 + late))
            said = {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float"}
            group = {"Process Group Name": "0", "Process Group Ranks": str(list(range(count))), "Group size": count}
            spans = ((base + 530 + late, base + 550 + last), (base + 600 + last, base + 610 + last))
            for number, span in enumerate(spans, 2 * k):
                trace.launched((base + 40, base + 50), span, name, stream=20, **said, **group, Seq=number)
        for event in trace.events:
            off = (shift_us or {}).get(rank, 0.0) + event["ts"] * (drift or {}).get(rank, 0.0)
            event["ts"] = round(event["ts"] + off, 3)
        files.append(trace.written(folder / f"rank{rank}.json"))
    return analyse(files)


@pytest.mark.parametrize("name", [NEW_NAME, OLD_NAME])
def test_the_slow_rank_of_eight_is_named_whatever_the_library_calls_its_kernels(tmp_path: Path, name: str) -> None:
    """HTA looks for "ncclKernel" and ends with an error since NCCL 2.19 calls them ncclDevKernel (HTA#360). Rank 7
    computes 75 us longer, 15 %: the others wait for it in every step, the first one included."""
    analysis = job(tmp_path, {7: 75}, count=8, name=name)
    found = analysis.summary["straggler"]
    assert (found["host"], found["cause"], found["steps_share"]) == ("rank7", "compute", 1)
    assert found["lost_ms_per_step"] == pytest.approx(0.075, abs=0.01)  # clocks are known to 10 us here
    last = [row for row in analysis.tables["collectives"].to_pylist() if row["claimed"]]
    assert [(row["last_host"], row["number"]) for row in last] == [("rank7", k) for k in range(10)]


@pytest.mark.parametrize("drift", [0.0, 20e-6])
def test_a_clock_that_is_off_is_no_straggler_and_the_late_rank_is(tmp_path: Path, drift: float) -> None:
    """Rank 1 is truly 200 us late, rank 2's clock 5 ms ahead, and gains 20 ppm: by raw times rank 2 is last in all
    (TraceLens), by its own clock nothing tells."""
    analysis = job(tmp_path, {1: 200}, count=4, shift_us={2: 5000}, drift={2: drift})
    (clock,) = (row for row in analysis.summary["clocks"] if row["host"] == "rank2")
    assert abs(clock["offset_ns"] - 5_000_000) <= 5_000
    assert clock["error_ns"] <= 25_000
    rows = [row for row in analysis.tables["collectives"].to_pylist() if row["claimed"]]
    assert [(row["last_host"], row["number"]) for row in rows] == [("rank1", k) for k in range(10)]
    assert analysis.summary["straggler"]["host"] == "rank1"


def test_ids_below_32768_in_a_file_of_more_events(tmp_path: Path) -> None:
    """HTA keeps ids in 16 bits where they fit, and then rows in the same column: it fails beyond row 32 767."""
    trace = Trace().step(0, 0, 200_000)
    trace.events += [{"ph": "i", "name": "m", "pid": 1000, "tid": 1000, "ts": 1, "cat": "cpu_op"}] * 40_000
    for k in range(100):
        trace.launched((10 + k, 10.5 + k), (200 + 2 * k, 201 + 2 * k))
    joined = trace.joined(tmp_path)
    assert joined["launches"].num_rows == 100
    assert classes(joined, 0)["compute"] == 100


def test_every_stream_whose_queue_is_full_keeps_its_launches(tmp_path: Path) -> None:
    """Two streams with 1100 kernels waiting on each: HTA keeps the last stream of a rank alone."""
    trace = Trace().step(0, 0, 50_000)
    for k in range(1100):
        for stream in (7, 13):
            trace.launched((k, k + 0.25), (2000 + 20 * k, 2010 + 20 * k), stream=stream)
    joined = trace.joined(tmp_path)
    assert joined["launches"].num_rows == 2200
    runs = joined["runs"].to_pylist()
    assert sorted(row["launch"] for row in runs) == list(range(2200))
    assert {row["join"] for row in runs} == {"id"}
    # Both work at the same times: busy for half of them, not for twice as long.
    assert classes(joined, 0)["compute"] == 11_000


def test_json_and_gzip_are_told_by_content(tmp_path: Path) -> None:
    """HTA writes gzip into what it calls .json, beside its input, and the next reader of the folder fails."""
    trace = Trace().step(0, 0, 100).launched((10, 20), (30, 90))
    plain = analyse([trace.written(tmp_path / "a.json")]).summary["breakdown"]
    (tmp_path / "b.json").write_bytes(gzip.compress(trace.text().encode()))
    (tmp_path / "c.json.gz").write_text(trace.text())
    assert analyse([tmp_path / "b.json"]).summary["breakdown"] == plain
    assert analyse([tmp_path / "c.json.gz"]).summary["breakdown"] == plain


def test_analysing_and_comparing_leave_what_was_analysed_as_it_was(tmp_path: Path) -> None:
    """HTA's TraceDiff puts raw traces in the place of those it was given; others write beside their input."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = job(tmp_path / "a", {}, count=2), job(tmp_path / "b", {1: 100}, count=2)
    summary, tables = repr(first.summary), dict(first.tables)
    files = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    compare_runs(first.summary, first.tables, second.summary, second.tables)
    assert repr(first.summary) == summary
    assert all(first.tables[name] is table for name, table in tables.items())
    again = analyse(sorted((tmp_path / "a").glob("*.json")))
    assert again.summary == first.summary
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == files


def test_steps_whose_work_was_not_recorded_are_not_idle(tmp_path: Path) -> None:
    """32 steps of which the device's work was recorded in 2: TraceLens#972 said "idle 0.04 %". The 14 steps before them
    are not measured, the 16 behind them may be work in flight when recording ended: neither is idle or busy, and only
    the two are in any sum."""
    trace = Trace()
    for number in range(32):
        base = 1000 * number
        trace.step(number, base, base + 1000)
        if number in (14, 15):
            trace.launched((base + 10, base + 20), (base + 30, base + 900))
        else:
            call = (base + 10, base + 20, trace.pid, trace.pid)
            trace.add("cuda_runtime", "cudaLaunchKernel", *call, correlation=10_000 + number)
    summary = analyse([trace.written(tmp_path / "a.json")]).summary
    assert summary["steps"]["count"] == 32
    phases = summary["steps"]["phases"]
    assert (phases["steady"], phases["unmeasured"], phases["partial"]) == (2, 14, 16)
    # Of each 1000 the kernel takes 870; the first window begins with its step, the second with the first one's end.
    assert summary["breakdown"]["compute"]["exclusive_s"] * US == pytest.approx(2 * 870)
    rows = {row["code"]: row for row in summary["diagnostics"]}
    assert rows["launch_without_work"]["count"] == 14


def test_numbers_beyond_64_bits(tmp_path: Path) -> None:
    """Ids and pointers are written as they come: one that fits no 64 bits costs neither its event nor the file."""
    trace = Trace().step(0, 0, 100)
    trace.launched((10, 20), (30, 90), "ncclDevKernel_AllReduce", Seq=10**24, **{"In msg nelems": 2**64 - 1})
    trace.launched((91, 92), (93, 95))
    trace.events[-1]["args"]["External id"] = -(10**30)
    joined = trace.joined(tmp_path)
    assert codes(joined)["large_numbers"] == 2
    assert {name: classes(joined, 0)[name] for name in ("collective", "compute")} == {"collective": 60, "compute": 2}
    assert joined["launches"].num_rows == 2
    far = Trace().step(0, 0, 100)
    far.events.append({**far.events[0], "ts": 10**25})
    profile = far.read(tmp_path)
    assert profile["events"].num_rows == 1
    assert sum(codes(profile).values()) == 1


def test_process_groups_of_any_shape_are_read(tmp_path: Path) -> None:
    """Third parties write one object for the list, a number for ranks, an object for the backend, or nothing."""
    shapes = (
        {"rank": 1, "world_size": 2, "pg_config": {"pg_name": "0", "ranks": 0}, "backend": {"cuda": "nccl"}},
        {"rank": 1, "world_size": 2, "pg_config": None},
        {"rank": 1, "world_size": 2, "pg_config": "0"},
    )
    for shape in shapes:
        trace = Trace().step(0, 0, 100).launched((10, 20), (30, 90))
        trace.top["distributedInfo"] = shape
        summary = analyse([trace.written(tmp_path / "a.json")]).summary
        assert [host["process_index"] for host in summary["hosts"]] == [1]
    for odd in ("rank", [1], {"rank": "1"}, {"rank": True}):
        trace.top["distributedInfo"] = odd
        file = trace.written(tmp_path / "trace.json")
        assert [host["process_index"] for host in analyse([file]).summary["hosts"]] == [None]


def test_elided_rank_lists_and_coalesced_groups_are_read(tmp_path: Path) -> None:
    """Long lists of ranks end in "..."; kernels of coalesced calls have no arguments at all (chakra#178)."""
    group = {"Process Group Name": "tp", "Process Group Ranks": "[0, 1, ..., 63]", "Group size": 64}
    for rank in (0, 1):
        trace = Trace(rank, 64).step(0, 0, 200)
        trace.launched((10, 20), (30, 90), NEW_NAME, stream=20, Seq=3, dtype="Float", **group)
        trace.launched((20, 30), (100, 150), "ncclDevKernel_Generic_4", stream=20)
        trace.written(tmp_path / f"rank{rank}.json")
    analysis = analyse([tmp_path])
    found = analysis.tables["collectives"].to_pylist()
    assert sorted(row["kind"] for row in found) == ["all-reduce", "collective"]
    assert {row["seen"] for row in found} == {2}
    assert analysis.summary["breakdown"]["collective"]["exclusive_s"] * US == pytest.approx(110)


def test_a_folder_of_two_jobs_is_refused_and_lists_them(tmp_path: Path) -> None:
    """Ranks of a job of 2 and of one of 8 have no common step: their mean would be nobody's."""
    for rank, ranks in ((0, 2), (1, 2), (3, 8)):
        Trace(rank, ranks).step(0, 0, 100).launched((10, 20), (30, 90)).written(tmp_path / f"{ranks}-{rank}.json")
    with pytest.raises(BadInputError, match=r"(?s)several jobs.*of 2 ranks: .*2-0.json, .*2-1.json.*of 8 ranks: .*8-3"):
        analyse([tmp_path])


def test_a_trace_without_steps_says_how_torch_marks_them(tmp_path: Path) -> None:
    file = Trace().launched((10, 20), (30, 90)).written(tmp_path / "a.json")
    (row,) = (r for r in analyse([file]).summary["diagnostics"] if r["code"] == "no_steps")
    assert row["message"].startswith("no steps: call `step()` of torch.profiler's profile")


@pytest.mark.parametrize(("second_starts_us", "apart"), [(50, False), (200, True)])
def test_captures_of_one_host_at_different_times_are_said_to_be_no_job(
    tmp_path: Path, second_starts_us: int, apart: bool
) -> None:
    """Four recordings made one after the other in one folder: their mean would be nobody's."""
    for name, start in (("a", 0), ("b", second_starts_us)):
        planes = Planes(100 * US)
        for plane in planes.space.planes:
            for stat in plane.stats:
                stat.int64_value += start * 1000
        planes.line("/host:CPU", "python", 1).event("train", 0, 90 * US, _r=1, step_num=1)
        (tmp_path / f"{name}.xplane.pb").write_bytes(planes.space.SerializeToString())
    found = [row for row in analyse([tmp_path]).summary["diagnostics"] if row["code"] == "captures_apart"]
    assert [(row["file"], row["count"]) for row in found] == ([("host0", 2)] if apart else [])
    assert all("a, b" in row["message"] for row in found)
