"""Planes of TPUs and GPUs through the reader and the join: each layout with an answer worked out by hand.

All times are picoseconds. `classes` are the exclusive ones of one window; they sum to its length.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from device_spaces import Planes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.invariants import broken
from xprof_py.postprocess.analyses import breakdown, top_ops
from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import BUSY_CLASSES

MS = 1000
"""Times below are small numbers times this: a session's stop is stated in nanoseconds."""


def classes(joined: Profile, lane: str, kind: str = "step", number: int | None = None) -> dict[str, int]:
    """Exclusive picoseconds of a lane's window, in thousands; only what is not 0."""
    row = joined["lanes"]["device"].to_pylist().index(lane)
    return {
        r["class"]: r["exclusive_ps"] // MS
        for r in breakdown.partial(joined).to_pylist()
        if r["lane"] == row and r["kind"] == kind and r["number"] == number and r["exclusive_ps"]
    }


def said(joined: Profile) -> dict[str, int]:
    return {row["code"]: row["count"] for row in joined["diagnostics"].to_pylist()}


def ops(joined: Profile) -> list[tuple[str, str, bool]]:
    """(event name, class, leaf) of every op, in order of lane and start."""
    names = joined["events"]["name"].to_pylist()
    return [(names[row["event"]], row["class"], row["leaf"]) for row in joined["ops"].to_pylist()]


# --- TPU ------------------------------------------------------------------------------------------------------------


def tpu(end: int = 100) -> Planes:
    """One core, two steps: a fusion, a loop of two trips (fusion, all-reduce), an async copy, a gap.

    step 4 [0, 50): module [2, 40): fusion [2, 10) while [10, 30){ dot [10, 16) all-reduce [16, 20) dot [20, 26)
    all-reduce [26, 30) } async all-gather [12, 38): after 30 it is alone to 38.
    step 5 [50, 90): module [52, 80), the same shifted by 50, but the all-gather ends at 78.
    """
    planes = Planes(end * MS)
    planes.program(
        11,
        "jit_f",
        {"fusion.1": "fusion", "while.1": "while", "all-gather-start.1": "all-gather-start"},
        {"dot.1": "dot", "all-reduce.1": "all-reduce"},
    )
    plane = "/device:TPU:0"
    planes.plane(plane, device_type_string="TPU v6 Lite", peak_teraflops_per_second=918.0)
    modules, line, overlap = (planes.line(plane, n) for n in ("XLA Modules", "XLA Ops", "Async XLA Ops"))
    steps = planes.line(plane, "Steps")
    derived = planes.line(plane, "Framework Ops")
    once = {"program_id": 11}
    for number, at, gathered, module_end in ((4, 0, 38, 40), (5, 50, 78, 80)):
        steps.event(str(number), at * MS, (at + (50 if number == 4 else 40)) * MS)
        modules.event("jit_f(11)", (at + 2) * MS, module_end * MS, run_id=number + 100)
        derived.event("jit(f)/while", at * MS, (at + 45) * MS)
        for text, start, stop in (
            ("%fusion.1 = f32[8]{0} fusion(f32[8]{0} %a), kind=kLoop", 2, 10),
            ("%while.1 = (s32[], f32[8]{0}) while((s32[], f32[8]{0}) %t)", 10, 30),
            ("%dot.1 = f32[8]{0} dot(f32[8]{0} %a)", 10, 16),
            ("%all-reduce.1 = f32[8]{0} all-reduce(f32[8]{0} %a)", 16, 20),
            ("%dot.1 = f32[8]{0} dot(f32[8]{0} %a)", 20, 26),
            ("%all-reduce.1 = f32[8]{0} all-reduce(f32[8]{0} %a)", 26, 30),
        ):
            line.event(text, (at + start) * MS, (at + stop) * MS, once)
        overlap.event(
            "%all-gather-start.1 = (f32[8]{0}) all-gather-start(f32[8]{0} %a)", (at + 12) * MS, gathered * MS, once
        )
    return planes


def test_a_tpu_core_is_measured_by_its_own_steps_line(tmp_path: Path) -> None:
    joined = tpu().joined(tmp_path)
    assert joined["lanes"]["device"].to_pylist() == ["/device:TPU:0"]
    assert [(s["number"], s["phase"]) for s in joined["steps"].to_pylist()] == [(4, "steady"), (5, "steady")]
    assert set(joined["runs"]["join"].to_pylist()) == {"steps_line"}
    # Step 4: (0, 38]. fusion 8 + dots 12 are compute; all-reduce 8, and the gather alone from 30 to 38; 2 before.
    assert classes(joined, "/device:TPU:0", number=4) == {"compute": 20, "collective": 16, "unknown": 2}
    # Step 5: (38, 80], with the gather hidden but for the all-reduces. The gap of 14 before its module has no launch in
    # the trace: nothing says why.
    assert classes(joined, "/device:TPU:0", number=5) == {"compute": 20, "collective": 8, "unknown": 14}
    assert broken(joined, breakdown.partial(joined)) == []


def test_hidden_communication_shows_in_the_total(tmp_path: Path) -> None:
    joined = tpu().joined(tmp_path)
    rows = [r for r in breakdown.partial(joined).to_pylist() if r["class"] == "collective" and r["number"] == 4]
    assert rows[0]["total_ps"] == 26 * MS  # the gather from 12 to 38 covers both all-reduces


def test_a_loop_is_no_work_and_its_ops_are(tmp_path: Path) -> None:
    found = Counter(ops(tpu().joined(tmp_path)))
    leaves = {(name.split(" ")[0], cls): count for (name, cls, leaf), count in found.items() if leaf}
    assert leaves == {
        ("%fusion.1", "compute"): 2,
        ("%dot.1", "compute"): 4,
        ("%all-reduce.1", "collective"): 4,
        ("%all-gather-start.1", "collective"): 2,
    }
    assert [name.split(" ")[0] for name, _, leaf in found if not leaf] == ["%while.1"]


@pytest.mark.parametrize("seed", range(4))
def test_lines_and_planes_in_another_order_give_the_same_answer(tmp_path: Path, seed: int) -> None:
    first, second = tpu().joined(tmp_path), tpu().shuffled(seed).joined(tmp_path)
    assert breakdown.partial(first).equals(breakdown.partial(second))
    assert first["runs"].equals(second["runs"])
    assert ops(first) == ops(second)


def test_without_hlo_a_tpu_op_is_classed_by_its_text_and_category(tmp_path: Path) -> None:
    planes = Planes(100 * MS)
    line = planes.line("/device:TPU:0", "XLA Ops")
    planes.line("/device:TPU:0", "XLA Modules").event("jit_g(5)", 0, 80 * MS, run_id=1)
    for text, category, start, stop in (
        ("%while.2 = (f32[]) while((f32[]) %t)", "while", 0, 20),
        ("%fusion.9 = bf16[8] fusion(bf16[8] %a)", "loop fusion", 2, 8),
        ("%fusion.3 = f32[8] fusion(f32[8] %a)", "all-reduce fusion", 8, 20),
        ("%send.1 = (f32[8]) send(f32[8] %a)", "host send", 20, 24),
        ("%send.2 = (f32[8]) send(f32[8] %a)", "send", 24, 30),
        ("%copy.1 = f32[8]{0} copy(f32[8]{0} %a)", "copy", 30, 40),
        ("%copy-done.1 = f32[8]{0:S(5)} copy-done((f32[8]{0:S(5)}, f32[8]{0}, u32[]{:S(2)}) %c)", "copy-done", 40, 50),
    ):
        line.event(text, start * MS, stop * MS, {"hlo_category": category})
    planes.line("/device:TPU:0", "XLA TraceMe").event("barrier-cores", 50 * MS, 55 * MS).event(
        "dependency-wait", 55 * MS, 60 * MS
    )
    found = [(name.split(" ")[0], cls, leaf) for name, cls, leaf in ops(planes.joined(tmp_path))]
    assert found == [
        ("%while.2", "compute", False),
        ("%fusion.9", "compute", True),
        ("%fusion.3", "collective", True),
        ("%send.1", "host_device", True),
        ("%send.2", "collective", True),
        ("%copy.1", "memory", True),
        ("%copy-done.1", "host_device", True),
        ("barrier-cores", "collective", True),
    ]


def test_a_module_of_which_no_op_shows_is_a_leaf_itself(tmp_path: Path) -> None:
    planes = Planes(100 * MS)
    modules = planes.line("/device:TPU:0", "XLA Modules")
    modules.event("jit_f(1)", 10 * MS, 20 * MS, run_id=1).event("jit_h(2)", 30 * MS, 35 * MS, run_id=2)
    planes.line("/device:TPU:0", "XLA Ops").event("%dot.1 = f32[] dot(f32[] %a)", 12 * MS, 18 * MS)
    joined = planes.joined(tmp_path)
    assert ops(joined) == [("%dot.1 = f32[] dot(f32[] %a)", "compute", True), ("jit_h(2)", "compute", True)]
    # Inside jit_f, from 18 on, nothing runs; the gap up to jit_h has no launch.
    assert classes(joined, "/device:TPU:0", "head") == {"compute": 11, "unknown": 89 - 0}


def test_sparse_cores_are_lanes_of_their_own(tmp_path: Path) -> None:
    planes = tpu()
    own = "/device:TPU:0 SparseCore 1"
    planes.line(own, "Sparse Core Modules").event("jit_f(11)", 5 * MS, 20 * MS, run_id=104)
    planes.line(own, "Sparse Core Ops").event("%all-to-all.1 = f32[8] all-to-all(f32[8] %a)", 6 * MS, 9 * MS)
    planes.line(own, "Sparse Core Steps").event("4", 5 * MS, 20 * MS)
    joined = planes.joined(tmp_path)
    assert joined["lanes"]["device"].to_pylist() == ["/device:TPU:0", own]
    assert classes(joined, own, number=4) == {"collective": 3, "unknown": 6}
    assert classes(joined, "/device:TPU:0", number=4) == {"compute": 20, "collective": 16, "unknown": 2}


def test_a_tpu_run_belongs_to_the_step_of_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    """The host runs ahead: both programs are enqueued by a worker, the second one while step 2 is already over."""
    planes = Planes(200 * MS)
    main = planes.line("/host:CPU", "main", 1)
    queue = planes.line("/host:CPU", "tfrt-non-blocking-queue", 2)
    modules = planes.line("/device:TPU:0", "XLA Modules")
    line = planes.line("/device:TPU:0", "XLA Ops")
    for number, step, asked, worked, ran in ((1, (10, 20), 12, 30, 40), (2, (20, 30), 22, 60, 100)):
        main.event("train", step[0] * MS, step[1] * MS, _r=1, step_num=number)
        main.event("TfrtTpuLoadedExecutable::Execute", asked * MS, (asked + 2) * MS, _pt=5, _p=number)
        queue.event("tpu::System::Execute=>IssueSequencedEvent", worked * MS, (worked + 8) * MS, _ct=5, _c=number)
        queue.event("DoEnqueueProgram", (worked + 2) * MS, (worked + 6) * MS, run_id=number, _pt=12, _p=70 + number)
        modules.event("jit_f(3)", ran * MS, (ran + 40) * MS, run_id=number, _ct=12, _c=70 + number)
        line.event("%dot.1 = f32[] dot(f32[] %a)", ran * MS, (ran + 40) * MS)
    joined = planes.joined(tmp_path)
    runs = joined["runs"].to_pylist()
    steps = joined["steps"].to_pylist()
    assert [(r["join"], steps[r["step"]]["number"]) for r in runs] == [("id", 1), ("id", 2)]
    launches = joined["launches"].to_pylist()
    assert [(ln["start_ps"] // MS, ln["end_ps"] // MS) for ln in launches] == [(12, 36), (22, 66)]
    # Step 1 from its start on the host, 10, to 80: enqueued at 36, begun at 40. The host's thread dispatched for 2 of
    # the 26 after 10; its step says nothing about the rest.
    assert classes(joined, "/device:TPU:0", number=1) == {"compute": 40, "host": 4, "device_wait": 4, "unknown": 22}
    # Step 2: (80, 140]. Enqueued at 66, long before the device was free at 80: it waited for itself.
    assert classes(joined, "/device:TPU:0", number=2) == {"compute": 40, "device_wait": 20}


# --- NVIDIA ---------------------------------------------------------------------------------------------------------


def nvidia() -> Planes:
    """Two streams, a graph, NCCL, copies; the host's calls by correlation id.

    step 1 [0, 60) on the host: copy to the device [10, 20) on stream 3; kernels of jit_f on stream 1: gemm [20, 40),
    nccl [30, 50) on stream 2. step 2 [60, 100): a graph [90, 120) on stream 1 of two kernels [90, 100), [110, 120).
    """
    planes = Planes(200 * MS)
    planes.program(7, "jit_f", {"gemm.1": "dot", "all-reduce.1": "all-reduce-start", "loop_fusion.2": "fusion"})
    gpu = "/device:GPU:0"
    planes.plane(gpu, compute_cap_major=9, compute_cap_minor=0, core_count=132, memory_size=80 << 30)
    one, two, three = (
        planes.line(gpu, f"Stream #{n}({what})", n) for n, what in ((1, "Compute"), (2, "Compute"), (3, "MemcpyH2D"))
    )
    host = planes.line("/host:CPU", "python", 1)
    host.event("train", 0, 60 * MS, _r=1, step_num=1).event("train", 60 * MS, 100 * MS, _r=1, step_num=2)
    host.event("cuMemcpyHtoDAsync", 5 * MS, 8 * MS, correlation_id=1, memcpy_details="size:8")
    host.event("GpuExecutable::ExecuteThunks", 9 * MS, 16 * MS)
    host.event("cuLaunchKernel", 10 * MS, 11 * MS, correlation_id=2)
    host.event("cuLaunchKernel", 12 * MS, 13 * MS, correlation_id=3)
    host.event("GpuExecutable::ExecuteThunks", 70 * MS, 90 * MS)
    host.event("cuGraphLaunch", 72 * MS, 86 * MS, correlation_id=4)
    of_f = {"hlo_module": "jit_f", "program_id": 7, "kernel_details": "regs:32"}
    three.event("MemcpyH2D", 10 * MS, 20 * MS, correlation_id=1, memcpy_details="size:8")
    one.event("sm90_xmma_gemm_bf16", 20 * MS, 40 * MS, correlation_id=2, hlo_op="gemm.1", **of_f)
    two.event("ncclDevKernel_AllReduce_Sum", 30 * MS, 50 * MS, correlation_id=3, hlo_op="all-reduce.1", **of_f)
    one.event("command_buffer", 90 * MS, 120 * MS, correlation_id=4, cuda_graph_id=9)
    for start, stop, node in ((90, 100, 1), (110, 120, 2)):
        one.event(
            "loop_fusion_2", start * MS, stop * MS, correlation_id=4, cuda_graph_id=9, cuda_graph_node_id=node, **of_f
        )
    # What a file may have baked in: none of it is work.
    for derived in ("XLA Ops", "XLA Modules", "Steps", "TensorFlow Name Scope", "Source code"):
        planes.line(gpu, derived).event("17", 0, 150 * MS)
    return planes


def test_kernels_of_two_streams_are_one_lane_by_launch(tmp_path: Path) -> None:
    joined = nvidia().joined(tmp_path)
    assert joined["lanes"]["device"].to_pylist() == ["/device:GPU:0"]
    assert broken(joined, breakdown.partial(joined)) == []
    # Step 1: (0, 50]. Copy 10, gemm 20, NCCL alone from 40 to 50; until 10 the copy was not launched before 8: of
    # these 8 the host's call took 3, and no span but the step's the first 5; then 2 in time.
    assert classes(joined, "/device:GPU:0", number=1) == {
        "host_device": 10,
        "compute": 20,
        "collective": 10,
        "host": 3,
        "device_wait": 2,
        "unknown": 5,
    }
    found = {r["class"]: r["total_ps"] // MS for r in breakdown.partial(joined).to_pylist() if r["number"] == 1}
    assert found["collective"] == 20
    # Step 2: (50, 120]. The graph's launch ended at 86, after the gap's start: late by 36 of 40. Inside the graph the
    # 10 between its kernels are its own.
    # Of the 78 since the last late launch ended, at 8, the host was in calls for 7 in step 1 and 16 in step 2.
    found = {r["class"]: r["exclusive_ps"] for r in breakdown.partial(joined).to_pylist() if r["number"] == 2}
    assert (found["compute"], found["device_wait"]) == (20 * MS, (4 + 10) * MS)
    assert (found["host"], found["unknown"]) == (3231 + 7385, 20769 + 4615)  # 36000 by 7 : 16 : 45 : 10
    assert set(joined["runs"]["join"].to_pylist()) == {"id"}


def test_a_graph_holds_its_kernels_and_they_are_joined_by_name(tmp_path: Path) -> None:
    joined = nvidia().joined(tmp_path)
    found = ops(joined)
    assert ("command_buffer", "compute", False) in found
    hlo = joined["hlo_ops"]["name"].to_pylist()
    named = {
        joined["events"]["name"][row["event"]].as_py(): hlo[row["hlo_op"]]
        for row in joined["ops"].to_pylist()
        if row["hlo_op"] is not None
    }
    assert named == {
        "sm90_xmma_gemm_bf16": "gemm.1",
        "ncclDevKernel_AllReduce_Sum": "all-reduce.1",
        "loop_fusion_2": "loop_fusion.2",
    }


def test_executions_on_the_host_are_the_runs_of_a_gpu(tmp_path: Path) -> None:
    runs = nvidia().joined(tmp_path)["runs"].to_pylist()
    assert [(r["start_ps"] // MS, r["end_ps"] // MS, r["program"]) for r in runs] == [(20, 50, 0), (90, 120, 0)]


def test_a_graph_whose_kernels_do_not_show_is_work_itself(tmp_path: Path) -> None:
    planes = Planes(100 * MS)
    planes.line("/device:GPU:0", "Stream #1(Compute)").event(
        "graph", 10 * MS, 40 * MS, correlation_id=1, cuda_graph_id=3
    )
    joined = planes.joined(tmp_path)
    assert ops(joined) == [("graph", "compute", True)]
    assert classes(joined, "/device:GPU:0", "head") == {"compute": 30, "unknown": 70}


@pytest.mark.parametrize("plane", ["/host:CUPTI", "/host:ROCTRACER"])
def test_calls_on_a_plane_of_their_own_are_those_of_their_thread(tmp_path: Path, plane: str) -> None:
    """Where XLA did not merge the planes the driver's calls lie beside the thread that made them, with its id."""
    merged = nvidia().joined(tmp_path)
    apart = nvidia()
    host = next(p for p in apart.space.planes if p.name == "/host:CPU")
    (python,) = host.lines
    calls = apart.plane(plane)
    calls.stat_metadata.MergeFrom(host.stat_metadata)
    calls.event_metadata.MergeFrom(host.event_metadata)
    of_driver = [event for event in python.events if host.event_metadata[event.metadata_id].name.startswith("cu")]
    rest = [event for event in python.events if event not in of_driver]
    line = calls.lines.add(id=python.id, name="Driver API")
    line.events.extend(of_driver)
    kept = [type(event).FromString(event.SerializeToString()) for event in rest]
    del python.events[:]
    python.events.extend(kept)
    assert len(of_driver) == 4
    joined = apart.joined(tmp_path)
    assert breakdown.partial(joined).equals(breakdown.partial(merged))
    assert joined["runs"].to_pylist() == merged["runs"].to_pylist()


def test_custom_planes_are_kept_and_count_nowhere(tmp_path: Path) -> None:
    """Megascale, Mosaic, NVTX, sampled counters, python's tracer: all that they say is read, none of it is device work,
    and none is called a device that cannot be read."""
    names = (
        "/device:CUSTOM:Megascale Trace",
        "/device:CUSTOM:MOSAIC",
        "/host:NVTX-CUPTI",
        "/host:__ScopeRangeCallStack__",
        "/host:tfstreamz",
        "#Chip0",
        "Syscalls",
        "Host CPUs",
        "/host:python-tracer",
    )
    planes, plain = nvidia(), nvidia().joined(tmp_path)
    for number, name in enumerate(names):
        planes.line(name, "a line", 900 + number).event(f"of {name}", 0, 150 * MS, some_stat=number)
    joined = planes.joined(tmp_path)
    assert joined["lanes"].to_pylist() == plain["lanes"].to_pylist()
    assert breakdown.partial(joined).equals(breakdown.partial(plain))
    assert said(joined) == said(plain)
    lines, kept = joined["lines"].to_pylist(), joined["events"].to_pylist()
    found = {lines[row["line"]]["plane"]: row["name"] for row in kept if row["name"].startswith("of ")}
    assert found == {name: f"of {name}" for name in names}
    args = joined["args"].to_pylist()
    assert sorted(row["value"] for row in args if row["key"] == "some_stat") == list(range(len(names)))


@pytest.mark.parametrize("seed", range(3))
def test_a_gpu_in_another_order_gives_the_same_answer(tmp_path: Path, seed: int) -> None:
    first, second = nvidia().joined(tmp_path), nvidia().shuffled(seed).joined(tmp_path)
    assert breakdown.partial(first).equals(breakdown.partial(second))


def test_a_launch_without_work_at_the_end_leaves_its_step_partial(tmp_path: Path) -> None:
    planes = nvidia()
    planes.line("/host:CPU", "python 2", 2).event("cuLaunchKernel", 95 * MS, 96 * MS, correlation_id=77)
    joined = planes.joined(tmp_path)
    assert [s["phase"] for s in joined["steps"].to_pylist()] == ["steady", "partial"]


def test_a_launch_whose_work_was_lost_is_counted(tmp_path: Path) -> None:
    planes = nvidia()
    planes.line("/host:CPU", "python 2", 2).event("cuLaunchKernel", 30 * MS, 31 * MS, correlation_id=77)
    joined = planes.joined(tmp_path)
    assert said(joined)["launch_without_work"] == 1
    assert [s["phase"] for s in joined["steps"].to_pylist()] == ["steady", "steady"]


def test_a_kernel_that_starts_before_its_launch_keeps_it_and_is_counted(tmp_path: Path) -> None:
    planes = Planes(100 * MS)
    planes.line("/host:CPU", "python", 1).event("train", 0, 50 * MS, _r=1, step_num=3).event(
        "cuLaunchKernel", 20 * MS, 24 * MS, correlation_id=5
    )
    planes.line("/device:GPU:0", "Stream #7(Compute)").event("k", 18 * MS, 40 * MS, correlation_id=5)
    joined = planes.joined(tmp_path)
    assert [(r["join"], r["step"]) for r in joined["runs"].to_pylist()] == [("id", 0)]
    assert said(joined)["device_clock_off"] == 1


def test_without_executions_a_run_ends_where_an_instruction_comes_again(tmp_path: Path) -> None:
    planes = Planes(100 * MS)
    planes.program(7, "jit_f", {"a.1": "fusion", "w.1": "while", "b.1": "custom-call"}, {"c.1": "fusion"})
    line = planes.line("/device:GPU:0", "Stream #1(Compute)")
    kernels = [("a_1", "a.1"), ("c_1", "c.1"), ("c_1", "c.1"), ("Im3d2Col", "b.1"), ("Cijk_BBS", "b.1")]
    for at, (kernel, op) in enumerate([*kernels, *kernels, ("a_1", "a.1")]):
        line.event(kernel, at * 2 * MS, (at * 2 + 1) * MS, hlo_op=op, program_id=7, hlo_module="jit_f")
    joined = planes.joined(tmp_path)
    assert Counter(joined["ops"]["run"].to_pylist()) == {0: 5, 1: 5, 2: 1}


# --- AMD ------------------------------------------------------------------------------------------------------------


def amd(old: bool) -> Planes:
    planes = Planes(100 * MS)
    gpu = "/device:GPU:1"
    if old:
        line = planes.line(gpu, "Stream #8(MemcpyOther)")
        names = {
            "h": "CopyHostToDevice",
            "d": "CopyDeviceToDevice",
            "p": "CopyDeviceToDevice",
            "u": "CopyDeviceToDevice",
        }
    else:
        line = planes.line(gpu, "Stream #8(Kernel)")
        names = dict.fromkeys("hdpu", "__amd_rocclr_copyBuffer.kd")
    pool = planes.line("/host:CPU", "tf_pjrt_thread_pool", 5)
    pool.event("PjRtStreamExecutorBuffer::CopyToDeviceHelper::async_copy_to_device", 30 * MS, 36 * MS)
    for number, (key, call) in enumerate(
        (("h", "hipMemcpyHtoDAsync"), ("d", "hipMemcpyDtoDAsync"), ("p", "hipMemcpyDtoDAsync")), 1
    ):
        pool.event(
            call, (10 * number + 1) * MS, (10 * number + 2) * MS, correlation_id=number, memcpy_details="kind:Unknown"
        )
        line.event(names[key], (10 * number + 3) * MS, (10 * number + 8) * MS, correlation_id=number)
    line.event(names["u"], 60 * MS, 65 * MS, correlation_id=99)
    line.event("ncclDevKernel_Generic.kd" if not old else "rcclKernel", 70 * MS, 75 * MS, correlation_id=98)
    return planes


@pytest.mark.parametrize("old", [True, False])
def test_copies_of_both_rocm_layouts_take_the_direction_of_their_launch(tmp_path: Path, old: bool) -> None:
    joined = amd(old).joined(tmp_path)
    found = [cls for _, cls, _ in ops(joined)]
    assert found == ["host_device", "memory", "collective", "memory", "collective"]
    # Only the old layout says in the event's name that the unlaunched copy stays on the device.
    assert said(joined).get("copy_without_direction", 0) == (0 if old else 1)
    assert said(joined)["kernel_without_launch"] == 2


# --- what cannot be read ---------------------------------------------------------------------------------------------


def test_a_plane_without_known_lines_is_an_error_and_its_steps_are_unmeasured(tmp_path: Path) -> None:
    planes = Planes(100 * MS)
    planes.line("/host:CPU", "python", 1).event("train", 0, 50 * MS, _r=1, step_num=1)
    planes.line("/device:GPU:0", "Queue 3").event("k", 10 * MS, 20 * MS)
    joined = planes.joined(tmp_path)
    assert said(joined)["device_planes_not_read"] == 1
    (step,) = joined["steps"].to_pylist()
    assert step["phase"] == "unmeasured"
    assert "/device:GPU:0" in step["reason"]


def test_a_device_of_another_kind_is_named_and_the_known_one_is_measured(tmp_path: Path) -> None:
    planes = nvidia()
    planes.line("/device:NPU:0", "Ops").event("k", 10 * MS, 20 * MS)
    joined = planes.joined(tmp_path)
    messages = [r["message"] for r in joined["diagnostics"].to_pylist() if r["code"] == "device_planes_not_read"]
    assert len(messages) == 1
    assert "/device:NPU:0" in messages[0]
    assert [s["phase"] for s in joined["steps"].to_pylist()] == ["steady", "steady"]


def test_an_idle_device_is_no_lane_and_is_named(tmp_path: Path) -> None:
    planes = nvidia()
    planes.plane("/device:GPU:1", core_count=132)
    joined = planes.joined(tmp_path)
    assert joined["lanes"]["device"].to_pylist() == ["/device:GPU:0"]
    assert said(joined)["idle_devices"] == 1


def test_a_device_without_any_work_does_not_pass_for_a_host_without_a_device(tmp_path: Path) -> None:
    planes = Planes(100 * MS)
    planes.line("/host:CPU", "python", 1).event("train", 0, 50 * MS, _r=1, step_num=1)
    planes.plane("/device:GPU:0", core_count=132)
    (step,) = planes.joined(tmp_path)["steps"].to_pylist()
    assert (step["phase"], step["reason"]) == ("unmeasured", "the trace has /device:GPU:0, and no work on it")


def test_copies_of_a_gpu_keep_their_names(tmp_path: Path) -> None:
    rows = top_ops.finish(top_ops.partial(nvidia().joined(tmp_path)), ("steady",)).to_pylist()
    assert "MemcpyH2D" in {row["op"] for row in rows}


def test_every_layout_is_analysed_to_the_end(tmp_path: Path) -> None:
    """A verdict or a reason for each; a file of copies alone has no run at all."""
    copies = Planes(100 * MS)
    copies.line("/device:GPU:0", "Stream #3(MemcpyH2D)").event("MemcpyH2D", 10 * MS, 20 * MS, correlation_id=1)
    for name, planes, bottleneck in (
        ("tpu", tpu(), "compute"),
        ("nvidia", nvidia(), None),
        ("amd", amd(old=True), None),
        ("copies", copies, None),
    ):
        file = tmp_path / f"{name}.xplane.pb"
        file.write_bytes(planes.space.SerializeToString())
        found = analyse([file])
        assert found.summary == analyse([file]).summary
        verdict = found.summary["verdict"]
        assert (verdict is None) == (name in ("amd", "copies")), name
        if bottleneck:
            assert verdict["bottleneck"] == bottleneck
            assert verdict["step_ms_without"] is None


# --- property --------------------------------------------------------------------------------------------------------

_KERNEL = st.tuples(
    st.integers(0, 2),
    st.integers(0, 60),
    st.integers(1, 20),
    st.sampled_from(["gemm", "ncclKernel", "MemcpyH2D", "MemcpyD2D", "Memset"]),
)
_CLASS = {"gemm": "compute", "ncclKernel": "collective", "MemcpyH2D": "host_device"}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kernels=st.lists(_KERNEL, min_size=1, max_size=12))
def test_every_busy_picosecond_has_one_class(tmp_path: Path, kernels: list[tuple[int, int, int, str]]) -> None:
    """Against a count of single time units: the first class of schema.BUSY_CLASSES that runs has the unit."""
    planes = Planes(100 * MS)
    lines = [planes.line("/device:GPU:0", f"Stream #{n}(Compute)", n) for n in range(3)]
    expected: Counter[str] = Counter()
    running: list[set[str]] = [set() for _ in range(100)]
    for stream, start, length, name in kernels:
        lines[stream].event(name, start * MS, (start + length) * MS)
        for unit in range(start, start + length):
            running[unit].add(_CLASS.get(name, "memory"))
    for found in running:
        expected[next((c for c in BUSY_CLASSES if c in found), "idle")] += 1
    busy: dict[str, Any] = classes(planes.joined(tmp_path), "/device:GPU:0", "head")
    assert {c: busy.get(c, 0) for c in BUSY_CLASSES} == {c: expected[c] for c in BUSY_CLASSES}
    assert sum(busy.values()) == 100
