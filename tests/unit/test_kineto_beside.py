"""A trace of PyTorch's profiler beside the capture around it: hand-made shards and traces whose answers are known.

Times in microseconds since the shard's beginning; the thread is 900 in both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu_shards import START_NS, GpuShard
from kineto_traces import Trace, classes, codes, windows

from conformance.invariants import broken
from xprof_py.postprocess.analyses import breakdown
from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.process import read_process
from xprof_py.postprocess.readers.sources import Source, find_sources

TID = 900


def kineto(base_us: float = 0) -> Trace:
    """A trace whose times count from ``base_us`` after the shard's beginning."""
    trace = Trace(rank=None, pid=TID)
    trace.top["baseTimeNanoseconds"] = START_NS + round(base_us * 1000)
    return trace


def shard(end_us: int, steps: list[tuple[int, int]]) -> GpuShard:
    made = GpuShard(end_us * 1000)
    for number, (start, end) in enumerate(steps):
        made.span(TID, "train", start * 1000, end * 1000, number=number)
    return made


def written(folder: Path, own: GpuShard, *traces: Trace) -> Source:
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    (folder / "torch").mkdir(exist_ok=True)
    own.write(folder / "shards" / "0-77.xpr")
    for number, trace in enumerate(traces):
        trace.written(folder / "torch" / f"0-77-{number}.pt.trace.json")
    (source,) = find_sources([folder]).processes
    return source


def joined(folder: Path, own: GpuShard, *traces: Trace) -> Profile:
    out = join_profile(read_process(written(folder, own, *traces)))
    assert not list(broken(out, breakdown.partial(out)))
    return out


def kernels_by_step(profile: Profile) -> dict[str, int | None]:
    names, numbers = profile["events"]["name"].to_pylist(), profile["steps"]["number"].to_pylist()
    runs = profile["runs"]["step"].to_pylist()
    found: dict[str, int | None] = {}
    for op in profile["ops"].to_pylist():
        step = None if op["run"] is None else runs[op["run"]]
        found[names[op["event"]]] = None if step is None else numbers[step]
    return found


def test_kernels_of_kineto_belong_to_our_step_that_launched_them(tmp_path: Path) -> None:
    """Two steps [0, 1000), [1000, 2000). `late` is launched at 900 in step 0 and runs from 1100 to 1500, beside the
    second step on the host: it is step 0's. Windows end with the last kernel: 1500 and 2300."""
    trace = kineto()
    trace.launched((100, 110), (200, 600), "early").launched((900, 910), (1100, 1500), "late")
    trace.launched((1600, 1610), (1700, 2300), "second")
    found = joined(tmp_path, shard(2500, [(0, 1000), (1000, 2000)]), trace)
    assert kernels_by_step(found) == {"early": 0, "late": 0, "second": 1}
    assert windows(found) == {0: (0, 1500), 1: (1500, 2300)}
    assert (classes(found, 0)["compute"], classes(found, 1)["compute"]) == (800, 600)


def test_the_two_clocks_are_one_whatever_the_trace_counts_from(tmp_path: Path) -> None:
    """The same work told from a base 700 us later."""
    trace = kineto(700).launched((-600, -590), (-500, -100), "kernel")
    found = joined(tmp_path, shard(1000, [(0, 1000)]), trace)
    assert kernels_by_step(found) == {"kernel": 0}
    assert windows(found) == {0: (0, 600)}


def test_our_steps_win_over_profiler_steps(tmp_path: Path) -> None:
    """Kineto's steps 7 and 8 lie across ours: they are events and no steps."""
    trace = kineto().step(7, 0, 700).step(8, 700, 1900)
    trace.launched((650, 660), (700, 800), "a").launched((1200, 1210), (1300, 1400), "b")
    found = joined(tmp_path, shard(2000, [(0, 1000), (1000, 2000)]), trace)
    assert [(s["name"], s["number"]) for s in found["steps"].to_pylist()] == [("train", 0), ("train", 1)]
    assert kernels_by_step(found) == {"a": 0, "b": 1}


def test_without_steps_of_ours_those_of_the_profiler_count(tmp_path: Path) -> None:
    trace = kineto().step(7, 0, 1000).step(8, 1000, 2000)
    trace.launched((650, 660), (700, 800), "a").launched((1200, 1210), (1300, 1400), "b")
    found = joined(tmp_path, shard(2000, []), trace)
    assert kernels_by_step(found) == {"a": 7, "b": 8}


def test_our_spans_say_why_the_device_waited_for_kinetos_kernels(tmp_path: Path) -> None:
    """A step of 1000: 400 of reading, noted by us; operators from 400 to 500; the kernel runs from 500 on. The gap
    [0, 500) is input for 400, and 100 of the host, whose work the operator shows."""
    own = shard(1000, [(0, 1000)])
    own.span(TID, "load", 0, 400_000, kind=3)
    trace = kineto().add("cpu_op", "aten::mm", 400, 500, TID, TID).launched((490, 500), (500, 1000))
    assert classes(joined(tmp_path, own, trace), 0) == {"compute": 500, "input": 400, "host": 100}


def test_a_trace_of_a_cpu_adds_its_operators_to_the_host(tmp_path: Path) -> None:
    """No device: a step of 1000 is 600 of an operator, which is host, and 400 of which nothing is known."""
    trace = kineto().add("cpu_op", "aten::mm", 100, 700, TID, TID)
    found = joined(tmp_path, shard(1000, [(0, 1000)]), trace)
    assert found["lanes"]["device"].to_pylist() == ["host"]
    assert classes(found, 0) == {"host": 600, "unknown": 400}


def test_what_cupti_gave_us_and_what_it_gave_kineto_are_one_lane(tmp_path: Path) -> None:
    """CUPTI was ours in step 0, was lent in step 1 and ours again in step 2; ids go on counting."""
    own = shard(3000, [(0, 1000), (1000, 2000), (2000, 3000)])
    own.launch("ours", (100_000, 110_000), (200_000, 600_000), correlation=1)
    own.launch("again", (2_100_000, 2_110_000), (2_200_000, 2_300_000), correlation=3)
    trace = kineto().launched((1100, 1110), (1200, 1700), "theirs", correlation=2)
    found = joined(tmp_path, own, trace)
    assert found["lanes"].num_rows == 1
    assert kernels_by_step(found) == {"ours": 0, "theirs": 1, "again": 2}
    assert [classes(found, n)["compute"] for n in range(3)] == [400, 500, 100]


def test_what_both_recorded_counts_once(tmp_path: Path) -> None:
    """A CUPTI that serves both: the same call and kernel, 2 us apart by their clocks."""
    own = shard(1000, [(0, 1000)])
    own.launch("gemm", (100_000, 110_000), (200_000, 600_000), correlation=5)
    trace = kineto().launched((102, 112), (202, 602), "gemm", correlation=5)
    trace.launched((700, 710), (750, 800), "theirs alone", correlation=6)
    found = joined(tmp_path, own, trace)
    assert classes(found, 0)["compute"] == 450
    assert codes(found)["torch_doubles"] == 2


def test_an_id_that_comes_again_is_other_work(tmp_path: Path) -> None:
    """The counter began anew as Kineto subscribed: id 5 is ours at 100 and its own at 700."""
    own = shard(1000, [(0, 1000)])
    own.launch("ours", (100_000, 110_000), (200_000, 300_000), correlation=5)
    found = joined(tmp_path, own, kineto().launched((700, 710), (750, 800), "theirs", correlation=5))
    assert kernels_by_step(found) == {"ours": 0, "theirs": 0}
    assert "torch_doubles" not in codes(found)


def test_several_windows_of_a_schedule_are_all_read(tmp_path: Path) -> None:
    one = kineto().add("cpu_op", "op", 100, 110, TID, TID).launched((110, 120), (200, 300), "a")
    two = kineto(1000).add("cpu_op", "op", 100, 110, TID, TID).launched((110, 120), (200, 300), "b", correlation=9)
    found = joined(tmp_path, shard(2000, [(0, 1000), (1000, 2000)]), two, one)
    assert kernels_by_step(found) == {"a": 0, "b": 1}


def test_steps_that_nothing_saw_are_none_and_counted(tmp_path: Path) -> None:
    """Eight steps of 1000, of which Kineto was on from 3 to 5: 3 steps with 800 of compute each, and a verdict."""
    trace = kineto()
    for n in (3, 4, 5):
        trace.step(n, 1000 * n - 5, 1000 * n + 995)
        trace.launched((1000 * n + 10, 1000 * n + 20), (1000 * n + 100, 1000 * n + 900))
    run = tmp_path / "run-a"
    found = joined(run, shard(8000, [(1000 * n, 1000 * n + 990) for n in range(8)]), trace)
    assert [(s["number"], s["phase"]) for s in found["steps"].to_pylist()] == [(n, "steady") for n in (3, 4, 5)]
    assert codes(found)["steps_not_profiled"] == 5
    summary = analyse([run]).summary
    assert summary["breakdown"]["compute"]["exclusive_s"] == pytest.approx(3 * 800e-6)
    assert summary["verdict"]["bottleneck"] == "compute"


def test_where_our_collector_had_the_gpus_otherwise_every_step_counts(tmp_path: Path) -> None:
    own = shard(2000, [(0, 1000), (1000, 2000)])
    own.launch("ours", (100_000, 110_000), (200_000, 600_000), correlation=1)
    trace = kineto().step(1, 1000, 2000).launched((1100, 1110), (1200, 1700), "theirs", correlation=2)
    found = joined(tmp_path, own, trace)
    assert [s["number"] for s in found["steps"].to_pylist()] == [0, 1]


def test_a_trace_that_was_written_twice_is_read_once_and_said(tmp_path: Path) -> None:
    trace = kineto().add("cpu_op", "op", 100, 500, TID, TID).launched((110, 120), (200, 300), "a")
    found = joined(tmp_path, shard(1000, [(0, 1000)]), trace, trace)
    assert classes(found, 0)["compute"] == 100
    assert codes(found)["torch_trace_again"] == 1


def test_a_damaged_trace_costs_itself_alone(tmp_path: Path) -> None:
    source = written(tmp_path, shard(1000, [(0, 1000)]), kineto().launched((110, 120), (200, 300), "a"))
    (tmp_path / "torch" / "0-77-1.pt.trace.json").write_text("not a trace")
    (source,) = find_sources([tmp_path]).processes
    found = join_profile(read_process(source))
    assert kernels_by_step(found) == {"a": 0}
    (row,) = [row for row in found["diagnostics"].to_pylist() if row["code"] == "unreadable"]
    assert row["file"].endswith("0-77-1.pt.trace.json")


def test_a_trace_that_was_not_copied_is_read_where_it_lies(tmp_path: Path) -> None:
    """Unless it is another one by now: then that is said."""
    run = tmp_path / "run-a"
    written(run, shard(1000, [(0, 1000)]))
    lies = kineto().launched((110, 120), (200, 300), "a").written(tmp_path / "a.json")
    entries: list[dict[str, Any]] = [
        {"path": str(lies), "bytes": lies.stat().st_size, "copied": False, "why": "not copied"},
        {"path": str(tmp_path / "gone.json"), "bytes": 10, "copied": False, "why": "not copied"},
    ]
    document = {"collectors": {"torch": {"used": True, "traces": entries}}, "files": {}}
    (run / "run").mkdir()
    (run / "run" / "0-77.json").write_text(json.dumps(document))
    (source,) = find_sources([run]).processes
    found = join_profile(read_process(source))
    assert kernels_by_step(found) == {"a": 0}
    assert codes(found)["torch_trace_missing"] == 1


def test_a_run_folder_is_analysed_with_its_traces_and_twice_the_same(tmp_path: Path) -> None:
    """Four steps of 1000 with 800 of compute each; each window ends with its kernel."""
    run = tmp_path / "run-a"
    trace = kineto()
    for n in range(4):
        trace.launched((1000 * n + 10, 1000 * n + 20), (1000 * n + 100, 1000 * n + 900))
    written(run, shard(4000, [(1000 * n, 1000 * n + 1000) for n in range(4)]), trace)
    first, again = analyse([run]), analyse([run])
    assert json.dumps(first.summary) == json.dumps(again.summary)
    assert {name: table.to_pylist() for name, table in first.tables.items()} == {
        name: table.to_pylist() for name, table in again.tables.items()
    }
    assert first.summary["steps"]["count"] == 4
    assert first.summary["breakdown"]["compute"]["exclusive_s"] == pytest.approx(4 * 800e-6)
    assert [Path(name).name for name in first.summary["hosts"][0]["source"]] == ["0-77.xpr", "0-77-0.pt.trace.json"]
