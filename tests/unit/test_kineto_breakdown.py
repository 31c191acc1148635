"""What other tools get wrong about traces of PyTorch, as small traces whose answer is known. Times in microseconds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from kineto_traces import BASE_NS, US, Trace, classes, codes, windows

from xprof_py.errors import BadInputError
from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.process import read_process
from xprof_py.postprocess.readers.sources import find_sources


def steps_of_runs(joined: Profile) -> list[int]:
    """Per run, in order of its start, the number of its step; -1 for none."""
    numbers = joined["steps"]["number"].to_pylist()
    rows = sorted(joined["runs"].to_pylist(), key=lambda row: row["start_ps"])
    return [-1 if row["step"] is None else numbers[row["step"]] for row in rows]


def test_a_kernel_belongs_to_the_step_that_launched_it(tmp_path: Path) -> None:
    """Three steps of 1000 us; each launches 5 kernels of 140 us that run on into the next step on the host, and whose
    copy of the step's span on the device (gpu_user_annotation) overlaps the next step's launches."""
    trace = Trace()
    for number in range(3):
        base = 1000 * number
        trace.step(number, base, base + 1000)
        trace.add("gpu_user_annotation", f"ProfilerStep#{number}", base + 700, base + 1400, 0, 7)
        for k in range(5):
            trace.launched((base + 50 + 100 * k, base + 60 + 100 * k), (base + 700 + 140 * k, base + 840 + 140 * k))
    joined = trace.joined(tmp_path)
    assert joined["launches"].num_rows == 15
    assert steps_of_runs(joined) == [0] * 5 + [1] * 5 + [2] * 5
    assert windows(joined) == {0: (0, 1400), 1: (1400, 2400), 2: (2400, 3400)}
    assert [classes(joined, number)["compute"] for number in range(3)] == [700, 700, 700]
    assert [step["number"] for step in joined["steps"].to_pylist()] == [0, 1, 2]  # step 0 counts


def test_kernels_shorter_than_a_microsecond_last_what_they_last(tmp_path: Path) -> None:
    """1000 kernels of 0.6 us, one every 2 us: 600 us busy. Rounded to whole microseconds they last -1 us each."""
    trace = Trace().step(0, 0, 2100)
    for k in range(1000):
        trace.launched((2 * k + 1, round(2 * k + 1.4, 3)), (round(20.35 + 2 * k, 3), round(20.95 + 2 * k, 3)))
    joined = trace.joined(tmp_path)
    assert classes(joined, 0)["compute"] == 600
    gaps = [row for row in joined["gaps"].to_pylist() if row["start_ps"] > 20_000_000]
    inside = [row["duration_ps"] if "duration_ps" in row else row["end_ps"] - row["start_ps"] for row in gaps]
    assert min(inside) > 0
    # 999 gaps of 1.4 us between kernels, and what came before the first.
    assert sum(classes(joined, 0).values()) == pytest.approx(20.35 + 600 + 999 * 1.4)


def test_a_duration_that_reaches_over_later_kernels_is_cut_and_said(tmp_path: Path) -> None:
    """40 kernels of 40 us every 50 us, the 11th noted with 1.6 s: it lasts until the next one at most."""
    trace = Trace().step(0, 0, 2100)
    for k in range(40):
        trace.launched((k, k + 0.5), (100 + 50 * k, 140 + 50 * k if k != 10 else 1_600_600))
    joined = trace.joined(tmp_path)
    assert codes(joined)["suspect_durations"] == 1
    assert classes(joined, 0)["compute"] == 39 * 40 + 50


def test_kernels_that_overlap_at_their_edges_are_left_alone(tmp_path: Path) -> None:
    """Programmatic dependent launch: the next kernel begins 2 us before the last one ends."""
    trace = Trace().step(0, 0, 2100)
    for k in range(40):
        trace.launched((k, k + 0.5), (100 + 50 * k, 152 + 50 * k))
    joined = trace.joined(tmp_path)
    assert "suspect_durations" not in codes(joined)
    assert classes(joined, 0)["compute"] == 39 * 50 + 52
    assert joined["ops"]["duration_ps"].to_pylist() == [52 * US] * 40


def test_a_long_collective_beside_other_streams_is_left_alone(tmp_path: Path) -> None:
    trace = Trace().step(0, 0, 1000).launched((0, 1), (10, 900), "ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=20)
    for k in range(8):
        trace.launched((k + 1, k + 1.5), (20 + 100 * k, 60 + 100 * k))
    joined = trace.joined(tmp_path)
    assert "suspect_durations" not in codes(joined)
    assert (classes(joined, 0)["compute"], classes(joined, 0)["collective"]) == (320, 890 - 320)


def test_a_graph_is_one_launch_of_many_kernels(tmp_path: Path) -> None:
    """Two replays of a graph of 50 kernels, all with the correlation of their cudaGraphLaunch."""
    trace = Trace()
    for number in range(2):
        base = 1000 * number
        trace.step(number, base, base + 1000)
        trace.add(
            "cuda_runtime", "cudaGraphLaunch", base + 10, base + 30, trace.pid, trace.pid, correlation=500 + number
        )
        for k in range(50):
            start = base + 40 + 10 * k
            trace.work((start, start + 8), f"node{k}", correlation=500 + number, **{"graph id": 3, "graph node id": k})
    joined = trace.joined(tmp_path)
    assert joined["launches"].num_rows == 2
    assert joined["launches"]["name"].to_pylist() == ["cudaGraphLaunch"] * 2
    assert joined["ops"].num_rows == 100
    assert joined["ops"]["leaf"].to_pylist() == [True] * 100
    assert steps_of_runs(joined) == [0, 1]
    assert [classes(joined, number)["compute"] for number in range(2)] == [400, 400]


def replays(shown: int) -> Trace:
    """Three replays of a graph of 50 kernels, one a step; of the second one only ``shown`` are in the trace."""
    trace = Trace()
    for number in range(3):
        base = 1000 * number
        trace.step(number, base, base + 1000)
        call = (base + 10, base + 30, trace.pid, trace.pid)
        trace.add("cuda_runtime", "cudaGraphLaunch", *call, correlation=500 + number)
        for k in range(shown if number == 1 else 50):
            start = base + 40 + 10 * k
            trace.work((start, start + 8), f"node{k}", correlation=500 + number, **{"graph id": 3, "graph node id": k})
    return trace


def test_a_graph_that_lost_its_kernels_makes_no_idle_time(tmp_path: Path) -> None:
    """45 of the 50 kernels of the second replay are lost: its step is not measured, and says why."""
    joined = replays(5).joined(tmp_path)
    assert codes(joined)["graph_kernels_lost"] == 45
    steps = joined["steps"].to_pylist()
    assert [step["phase"] for step in steps] == ["steady", "unmeasured", "steady"]
    assert steps[1]["reason"].startswith("5 of the 50 kernels of a graph are in the trace")


def test_a_graph_with_a_branch_not_taken_is_whole(tmp_path: Path) -> None:
    joined = replays(40).joined(tmp_path)
    assert "graph_kernels_lost" not in codes(joined)
    assert {step["phase"] for step in joined["steps"].to_pylist()} == {"steady"}


def test_touching_intervals_do_not_overlap(tmp_path: Path) -> None:
    """compute [100,200) and [200,300), communication [200,300) and [300,400): half of it is hidden."""
    trace = Trace().step(0, 0, 400)
    trace.launched((10, 11), (100, 200)).launched((12, 13), (200, 300), "ncclDevKernel_AllGather", stream=20)
    trace.launched((14, 15), (200, 300)).launched((16, 17), (300, 400), "ncclDevKernel_AllGather", stream=20)
    joined = trace.joined(tmp_path)
    row = next(r for r in joined["breakdown"].to_pylist() if r["class"] == "collective" and r["kind"] == "step")
    assert (row["exclusive_ps"], row["total_ps"]) == (100 * US, 200 * US)
    assert classes(joined, 0)["compute"] == 200


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "collective"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("nvshmemi_barrier_all", "collective"),
        ("Memcpy HtoD (Pageable -> Device)", "host_device"),
        ("Memcpy DtoH (Device -> Pinned)", "host_device"),
        ("Memcpy DtoD (Device -> Device)", "memory"),
        ("Memcpy PtoP (Device -> Device)", "collective"),
        ("Memset (Device)", "memory"),
        ("void at::native::vectorized_elementwise_kernel<4>", "compute"),
    ],
)
def test_classes_by_name(tmp_path: Path, name: str, found: str) -> None:
    # A copy is part of no run: the kernel behind it ends the window.
    trace = Trace().step(0, 0, 100).launched((0, 5), (10, 50), name).launched((5, 8), (50, 51))
    assert classes(trace.joined(tmp_path), 0)[found] == (41 if found == "compute" else 40)


@pytest.mark.parametrize("categories", [("cpu_op", "cuda_runtime", "kernel"), ("Operator", "Runtime", "Kernel")])
def test_an_input_bound_loop(tmp_path: Path, categories: tuple[str, str, str]) -> None:
    """Each step waits 60 us for its batch, dispatches 20 us, and runs 40 us on the device: without input it takes 40 us
    or little more. Before 2021 categories had other names, and thread ids were texts."""
    operator, runtime, kernel = categories
    trace = Trace(pid=25738)
    for number in range(8):
        base = 100 * number
        trace.add(operator, f"ProfilerStep#{number}", base, base + 100, 25738, "25738")
        loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        trace.add(operator, loader, base, base + 60, 25738, "25738")
        trace.add(operator, "aten::stack", base + 5, base + 50, 25738, "25738")
        trace.add(operator, "aten::mm", base + 60, base + 80, 25738, "25738")
        trace.add(runtime, "cudaLaunchKernel", base + 70, base + 80, 25738, "25738", correlation=number + 1)
        trace.add(kernel, "gemm", base + 82, base + 122, 0, "stream 7", device=0, stream=7, correlation=number + 1)
    summary = analyse([trace.written(tmp_path / "a.json")]).summary
    assert summary["steps"]["count"] == 8
    assert summary["verdict"]["bottleneck"] == "input"
    # The first window is (0, 122], each of the other seven 100 long: 40 compute, 2 from the launch's end to the kernel.
    # Of the 80 before the first launch 60 were input and 20 dispatch. Of the 58 from a kernel's end to the next
    # launch's the same parts, by what the thread did in the 100 since its last launch:
    # 60 input, 20 dispatch, 20 nothing shown.
    total_us = 122 + 7 * 100
    shared = {
        "compute": 320,
        "device_wait": 16,
        "input": 60 + 7 * 58 * 0.6,
        "host": 20 + 7 * 58 * 0.2,
        "unknown": 7 * 58 * 0.2,
    }
    found = {name: row["exclusive_s"] * US for name, row in summary["breakdown"].items() if row["share"]}
    assert found == pytest.approx(shared)
    assert sum(shared.values()) == pytest.approx(total_us)
    # Without input the host takes 40 us for a step and the device 42, with its 2 between launch and kernel; the first
    # one waits for its launch at 20.
    assert summary["verdict"]["step_ms_without"] == pytest.approx((20 + 8 * 42) / 8 / 1000)


def test_what_another_thread_launches_while_the_step_waits_for_it_is_the_steps(tmp_path: Path) -> None:
    """The backward pass: autograd's thread launches, the step's thread is blocked and shows nothing. Both are one
    thread of control: without the 60 us of input the step takes 60 us less."""
    trace = Trace()
    for number in range(8):
        base = 200 * number
        trace.step(number, base, base + 200)
        trace.add("user_annotation", "enumerate(DataLoader)#_Iter.__next__", base, base + 60, trace.pid, trace.pid)
        trace.add("cpu_op", "aten::mm", base + 60, base + 100, trace.pid, trace.pid)
        trace.launched((base + 90, base + 95), (base + 100, base + 120))
        trace.add("cpu_op", "autograd::engine::evaluate_function: MmBackward0", base + 100, base + 195, trace.pid, 77)
        trace.launched((base + 185, base + 190), (base + 195, base + 205), tid=77)
    summary = analyse([trace.written(tmp_path / "a.json")]).summary
    replay = {row["removed"]: row for row in analyse([tmp_path / "a.json"]).tables["replay"].to_pylist()}
    assert replay["nothing"]["replayed_ps"] == replay["nothing"]["measured_ps"]
    saved_us = (replay["nothing"]["replayed_ps"] - replay["input"]["replayed_ps"]) / US
    assert saved_us == pytest.approx(60, abs=2)
    assert summary["breakdown"]["unknown"]["share"] < 0.1


def test_a_thread_that_works_beside_the_step_is_a_thread_of_its_own(tmp_path: Path) -> None:
    from xprof_py.postprocess.join.columns import Events
    from xprof_py.postprocess.join.threads import thread_of_line

    trace = Trace().step(0, 0, 1000)
    for k in range(10):
        trace.add("cpu_op", "aten::mm", 100 * k, 100 * k + 60, trace.pid, trace.pid)
        trace.add("cpu_op", "aten::pin", 100 * k + 40, 100 * k + 90, trace.pid, 78)
        trace.launched((100 * k + 50, 100 * k + 55), (100 * k + 60, 100 * k + 70), tid=78)
    profile = trace.read(tmp_path)
    host = [i for i, plane in enumerate(profile["lines"]["plane"].to_pylist()) if plane == "/host:CPU"]
    assert len(set(thread_of_line(profile, Events.of(profile))[host].tolist())) == 2


# --- several ranks --------------------------------------------------------------------------------------------------


def rank_trace(rank: int | None, ranks: int = 4) -> Trace:
    return Trace(rank, ranks).step(0, 0, 100).launched((10, 20), (30, 90))


def test_compact_files_of_four_ranks_are_four_ranks(tmp_path: Path) -> None:
    """One without distributedInfo takes its rank from its name, one breaks off, one counts from another base time."""
    for rank in (0, 3):
        rank_trace(rank).written(tmp_path / f"host_{rank}.json", separators=(",", ":"))
    rank_trace(None).written(tmp_path / "rank1.json", separators=(",", ":"))
    moved = rank_trace(2)
    moved.top["baseTimeNanoseconds"] = BASE_NS - 7_889_238 * 10**9
    for event in moved.events:
        event["ts"] += 7_889_238_000_000
    text = moved.text(separators=(",", ":"))
    (tmp_path / "host_2.json").write_text(text[: text.rindex('"ph"') + 3])
    rank_trace(3).written(tmp_path / "host_3_c.json")
    summary = analyse([tmp_path]).summary
    assert [host["process_index"] for host in summary["hosts"]] == [0, 1, 2, 3]
    rows = {row["code"]: row for row in summary["diagnostics"]}
    assert rows["duplicate_rank"]["file"].endswith("host_3_c.json")
    assert "host_3.json" in rows["duplicate_rank"]["message"]
    assert rows["truncated"]["file"].endswith("host_2.json")
    assert "missing_ranks" not in rows
    # All four are of the same microseconds: 10 to launch, 10 in time, 60 of work; of rank 2 the kernel is lost.
    begun = {
        p.metadata["run"]["process_index"]: p.origin_ns for p in map(read_process, find_sources([tmp_path]).processes)
    }
    assert begun == dict.fromkeys(range(4), BASE_NS)
    # The summary is the same whatever the order of the files.
    files = sorted(tmp_path.glob("*.json"))
    assert analyse(files[::-1]).summary["breakdown"] == summary["breakdown"]


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    for rank in (0, 5):
        rank_trace(rank, 8).written(tmp_path / f"{rank}.json")
    row = next(r for r in analyse([tmp_path]).summary["diagnostics"] if r["code"] == "missing_ranks")
    assert (row["count"], row["message"]) == (6, "6 of 8 ranks have no trace here: 1-4, 6-7")


def test_other_json_in_the_folder_is_passed_over(tmp_path: Path) -> None:
    rank_trace(0, 1).written(tmp_path / "rank0.json")
    (tmp_path / "settings.json").write_text('{"lr": 0.1}')
    assert len(analyse([tmp_path]).summary["hosts"]) == 1
    with pytest.raises(BadInputError, match="holds no events"):
        analyse([tmp_path / "settings.json"])


def merged(kernels: tuple[int, ...]) -> Trace:
    """Ranks in one file: processes 1000, 1001, ..., devices 0, 1, ..., so many kernels, and the same ids in each."""
    out = Trace()
    del out.top["distributedInfo"]
    for rank, count in enumerate(kernels):
        one = Trace(pid=1000 + rank, device=rank).step(0, 0, 1000)
        for k in range(count):
            one.launched((100 * k, 100 * k + 5), (100 * k + 30, 100 * k + 80))
        out.events += one.events
    return out


def launching(joined: Profile) -> dict[tuple[int, int | None], int]:
    """How many runs of (lane, process that launched them or None) there are."""
    lines, launches = joined["lines"].to_pylist(), joined["launches"].to_pylist()
    rows = joined["runs"].to_pylist()
    return Counter(
        (row["lane"], None if row["launch"] is None else lines[launches[row["launch"]]["line"]]["line_id"])
        for row in rows
    )


def test_ids_of_one_process_launch_no_work_of_another(tmp_path: Path) -> None:
    """Three ranks in one file, with the same correlation ids: TraceLens joined them across ranks."""
    joined = merged((5, 6, 7)).joined(tmp_path)
    assert codes(joined)["several_processes"] == 3
    assert launching(joined) == {(0, 1000): 5, (1, 1001): 6, (2, 1002): 7}


def test_where_nothing_tells_processes_apart_no_launch_is_claimed(tmp_path: Path) -> None:
    joined = merged((5, 5, 7)).joined(tmp_path)
    assert codes(joined)["launching_process_unclear"] == 10
    assert launching(joined) == {(0, None): 5, (1, None): 5, (2, 1002): 7}


def test_collectives_keep_what_the_trace_says_of_them(tmp_path: Path) -> None:
    trace = Trace(0, 2).step(0, 0, 100)
    said = {
        "Collective name": "allreduce",
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Seq": 7,
    }
    trace.launched((10, 20), (30, 90), "ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=20, **said)
    trace.top["distributedInfo"]["pg_config"] = [{"pg_name": "0", "ranks": [0, 1]}]
    profile = trace.read(tmp_path)
    texts = profile["texts"]["text"].to_pylist()
    kept = {
        row["key"]: texts[row["value"]] if row["kind"] == 4 else row["value"]
        for row in profile["args"].to_pylist()
        if row["key"] in said
    }
    assert kept == said
    assert profile.metadata["process_groups"] == [{"pg_name": "0", "ranks": [0, 1]}]
    assert np.unique(profile["lines"]["source"]).tolist() == ["chrome_json"]
    assert json.dumps(profile.metadata["run"])
