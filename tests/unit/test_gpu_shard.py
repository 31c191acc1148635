"""What GPUs did, from a shard to steps, spans and instructions: each answer worked out by hand in its test."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gpu_shards import START_NS, GpuShard, scheduled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.invariants import broken
from xprof_py.postprocess.analyses import breakdown, op_steps, top_ops
from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.schema import ArgKind

THUNK = "Thunk:#name={name},hlo_op={op}#"
MODULE = "XlaModule:#prefix=jit(f)/jit(main),hlo_module=jit_f,program_id=7#"


def said(profile: Profile) -> dict[str, int]:
    return {row["code"]: row["count"] for row in profile["diagnostics"].to_pylist()}


def arguments(profile: Profile) -> list[dict[str, Any]]:
    """Per event its arguments by key, texts as text."""
    texts = profile["texts"]["text"].to_pylist()
    out: list[dict[str, Any]] = [{} for _ in range(profile["events"].num_rows)]
    for row in profile["args"].to_pylist():
        out[row["event"]][row["key"]] = texts[row["value"]] if row["kind"] == ArgKind.TEXT else row["value"]
    return out


def steps_of(joined: Profile) -> dict[str, int | None]:
    """Kernel -> number of the step that its launch belongs to, None without."""
    names, steps = joined["events"]["name"].to_pylist(), joined["steps"]["number"].to_pylist()
    runs = joined["runs"]["step"].to_pylist()
    found = {}
    for op in joined["ops"].to_pylist():
        step = None if op["run"] is None else runs[op["run"]]
        found[names[op["event"]]] = None if step is None else steps[step]
    return found


def instructions(joined: Profile) -> list[tuple[str, str | None, str]]:
    """(kernel, instruction, how it was found) in order of start."""
    names, hlo = joined["events"]["name"].to_pylist(), joined["hlo_ops"]["name"].to_pylist()
    return [
        (names[op["event"]], None if op["hlo_op"] is None else hlo[op["hlo_op"]], op["join"])
        for op in joined["ops"].to_pylist()
    ]


def classes(joined: Profile, number: int) -> dict[str, int]:
    return {
        row["class"]: row["exclusive_ps"] // 1000
        for row in breakdown.partial(joined).to_pylist()
        if row["number"] == number and row["kind"] == "step" and row["exclusive_ps"]
    }


# --- reading --------------------------------------------------------------------------------------------------------


def test_every_record_is_an_event_among_the_spans_of_its_thread_or_on_its_stream(tmp_path: Path) -> None:
    shard = GpuShard(1000)
    shard.device()
    shard.span(900, "forward", 10, 200)
    name = THUNK.format(name="blk1/dot_general", op="gemm_fusion_dot.1")
    shard.launch("gemm_fusion_dot_1", (20, 30), (50, 90), range=name)
    copied = shard.call(40, 60, tid=901, name="cudaMemcpyAsync_v3020", result=2)
    shard.copy(100, 130, copied, size=(5 << 32) + 1, stream=9)
    shard.fill(140, 141, 0, 64)
    shard.wait(150, 190, 3)
    shard.wait(160, 170, 2, device=0xFFFFFFFF, context=0xFFFFFFFF, stream=0xFFFFFFFF)
    shard.overhead(300, 320, 1 << 16)
    profile = read_shard(shard.write(tmp_path / "0-77.xpr"))
    lines = [(row["plane"], row["name"], row["thread_id"], row["clock_domain"]) for row in profile["lines"].to_pylist()]
    assert lines == [
        ("/host:xprof_py", "thread 0", 900, "boot"),
        ("/host:xprof_py", "calling thread", 901, "boot"),
        ("/device:GPU:0", "Stream #7", None, "boot"),
        ("/device:GPU:0", "not work, 7", None, "boot"),
        ("/device:GPU:0", "Stream #9", None, "boot"),
        ("/profiler:CUPTI", "overhead", None, "boot"),
        ("/profiler:CUPTI", "waits", None, "boot"),
    ]
    assert profile.origin_ns == START_NS
    events = [
        (row["line"], row["name"], row["start_ps"] // 1000, row["duration_ps"] // 1000)
        for row in profile["events"].to_pylist()
    ]
    assert events == [
        (0, "forward", 10, 190),
        (0, "cuLaunchKernel", 20, 10),
        (1, "cudaMemcpyAsync", 40, 20),
        (2, "gemm_fusion_dot_1", 50, 40),
        (2, "Memset (Device)", 140, 1),
        (3, "Stream Sync", 150, 40),
        (4, "Memcpy HtoD (Pinned -> Device)", 100, 30),
        (5, "Buffer Flush", 300, 20),
        (6, "Stream Wait Event", 160, 10),
    ]
    told = arguments(profile)
    assert told[1] == {"correlation_id": 1, "hlo_op": "gemm_fusion_dot.1", "nvtx_range": name}
    assert told[2] == {"correlation_id": 2, "result": 2}
    assert told[3] == {
        "correlation_id": 1,
        "hlo_op": "gemm_fusion_dot.1",
        "nvtx_range": name,
        "kernel_details": "regs:32 static_shared:16 dynamic_shared:64 grid:4,2,1 block:128,1,1",
    }
    assert told[4] == {"bytes": 64}
    assert told[6] == {"correlation_id": 2, "bytes": (5 << 32) + 1}
    facts = {row["key"]: row["text"] or row["value"] for row in profile["plane_args"].to_pylist()}
    assert facts["device_type_string"] == "NVIDIA H200"
    assert (facts["compute_cap_major"], facts["core_count"], facts["memory_size"]) == (9, 132, 141 << 30)
    assert facts["memory_bandwidth"] == 4_800_000_000_000
    assert profile.metadata["gpu_collector"]["version"] == 130001


def test_what_was_lost_is_a_row_each(tmp_path: Path) -> None:
    shard = GpuShard(1000)
    shard.launch("k", (10, 20), (30, 40))
    shard.kernel("backwards", 60, 50)
    shard.kernel("no time", -START_NS, -START_NS + 5)
    shard.activities.append(shard.activities[0][:16] + b"\x63\0\0\0" + shard.activities[0][20:])
    shard.totals = {
        "written": 9,
        "dropped_source": 2,
        "dropped_buffers": 3,
        "dropped_budget": 4,
        "dropped_error": 5,
        "unknown_kinds": 6,
        "clamped": 7,
    }
    profile = read_shard(shard.write(tmp_path / "0-77.xpr"))
    assert said(profile) == {
        "gpu_dropped_source": 2,
        "gpu_dropped_buffers": 3,
        "gpu_dropped_budget": 4,
        "gpu_dropped_error": 5,
        "gpu_unknown_kinds": 6,
        "gpu_clamped": 7,
        "gpu_records_missing": 9 - 5,
        "time_out_of_range": 1,
        "gpu_unknown_activity": 1,
        "negative_duration": 1,
    }
    names = profile["events"]["name"].to_pylist()
    assert sorted(names) == ["backwards", "cuLaunchKernel", "k"]


def test_a_step_of_the_systems_clock_is_left_out_of_device_times(tmp_path: Path) -> None:
    """At some moment between 2 s and 3 s the clock is set one hour ahead: spans and kernels stay beside each other."""
    second, hour = 10**9, 3600 * 10**9
    clock = [(i * second, i * second, i * second + (hour if i > 2 else 0)) for i in range(5)]
    shard = GpuShard(4 * second, clock)
    shard.span(900, "step", second, 4 * second)
    shard.kernel("before", second + 5, second + 9)
    shard.kernel("after", 3 * second + hour + 5, 3 * second + hour + 9)
    profile = read_shard(shard.write(tmp_path / "0-77.xpr"))
    starts = {row["name"]: row["start_ps"] for row in profile["events"].to_pylist()}
    assert starts == {
        "step": second * 1000,
        "before": (second + 5) * 1000,
        "after": (3 * second + 5) * 1000,
    }
    assert said(profile) == {"clock_stepped": 1}


def test_after_a_step_back_times_that_came_twice_are_counted(tmp_path: Path) -> None:
    second = 10**9
    clock = [(i * second, i * second, i * second - (second // 2 if i > 2 else 0)) for i in range(5)]
    shard = GpuShard(4 * second, clock)
    shard.kernel("once", second, second + 9)
    shard.kernel("twice", 2 * second + second // 4, 2 * second + second // 4 + 9)
    profile = read_shard(shard.write(tmp_path / "0-77.xpr"))
    assert said(profile)["gpu_times_doubtful"] == 1
    starts = {row["name"]: row["start_ps"] for row in profile["events"].to_pylist()}
    assert starts == {"once": second * 1000, "twice": (2 * second + 3 * second // 4) * 1000}


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_records_has_no_say(tmp_path: Path, seed: int) -> None:
    def made() -> GpuShard:
        shard = run_ahead()
        shard.launch("a", (100, 101), (700, 710), stream=8, range=MODULE)
        shard.launch("b", (100, 101), (700, 710), tid=903, stream=9)
        return shard

    first, second = made().joined(tmp_path), made().shuffled(seed).joined(tmp_path)
    for table in ("lines", "events", "ops", "launches", "runs"):
        assert first[table].equals(second[table]), table
    assert breakdown.partial(first).equals(breakdown.partial(second))


def test_a_shard_cut_anywhere_keeps_the_records_before_the_cut(tmp_path: Path) -> None:
    content = run_ahead().write(tmp_path / "0-77.xpr").read_bytes()
    cut, seen = tmp_path / "1-77.xpr", 0
    for size in range(128, len(content), 7):
        cut.write_bytes(content[:size])
        count = read_shard(cut)["events"].num_rows
        assert count >= seen
        seen = count
    assert seen == 3 * (1 + 1 + 1)


# --- steps and spans ------------------------------------------------------------------------------------------------


def run_ahead() -> GpuShard:
    """Three steps of 100 ns on the host, all over by 300; their kernels take 200 each and end at 250, 450, 650."""
    shard = GpuShard(1000)
    for number in range(3):
        shard.span(900, "train", number * 100, (number + 1) * 100, number=number)
        shard.launch(f"k{number}", (number * 100 + 10, number * 100 + 20), (50 + number * 200, 250 + number * 200))
    return shard


def test_a_kernel_belongs_to_the_step_that_launched_it_however_late_it_runs(tmp_path: Path) -> None:
    joined = run_ahead().joined(tmp_path)
    assert steps_of(joined) == {"k0": 0, "k1": 1, "k2": 2}
    assert broken(joined, breakdown.partial(joined)) == []
    # Step 0 from 0 to 250: launched by 20, of which 10 in the call; then 30 in time. The others are busy throughout.
    assert classes(joined, 0) == {"compute": 200, "host": 10, "unknown": 10, "device_wait": 30}
    assert classes(joined, 1) == {"compute": 200}
    assert classes(joined, 2) == {"compute": 200}


def test_two_threads_launch_under_spans_of_their_own(tmp_path: Path) -> None:
    """Both launch at the same time on streams of their own, in steps of their own; what lies between is of no step."""
    shard = GpuShard(1000)
    for tid, name, number, stream in ((900, "train", 4, 7), (901, "evaluate", 9, 8)):
        shard.span(tid, name, 100, 300, number=number)
        shard.span(tid, f"part of {name}", 120, 200)
        shard.launch(f"in {name}", (150, 160), (200, 260), tid=tid, stream=stream)
        shard.launch(f"after {name}", (400, 410), (420, 430), tid=tid, stream=stream)
    joined = shard.joined(tmp_path)
    assert steps_of(joined) == {"in train": 4, "in evaluate": 9, "after train": None, "after evaluate": None}
    events, lines = joined["events"].to_pylist(), joined["lines"].to_pylist()
    for launch in joined["launches"].to_pylist():
        tid = lines[launch["line"]]["thread_id"]
        spans = [e for e in events if e["line"] == launch["line"] and e["name"].startswith("part")]
        inside = [e["name"] for e in spans if e["start_ps"] <= launch["start_ps"] < e["start_ps"] + e["duration_ps"]]
        early = launch["start_ps"] == 150_000
        assert inside == ([f"part of {'train' if tid == 900 else 'evaluate'}"] if early else [])


def test_a_kernel_before_its_launch_keeps_it_and_is_counted(tmp_path: Path) -> None:
    shard = GpuShard(1000)
    shard.span(900, "train", 0, 300, number=3)
    shard.launch("early", (100, 120), (90, 200))
    shard.launch("late", (130, 140), (200, 250))
    joined = shard.joined(tmp_path)
    assert steps_of(joined) == {"early": 3, "late": 3}
    assert said(joined)["kernel_before_launch"] == 1
    assert [text.split(":")[0] for text in broken(joined, breakdown.partial(joined))] == [
        "a run starts before its launch"
    ]
    # Before the kernel lies a gap of 90, all of it late: nothing was launched until it ended. No span says why.
    assert classes(joined, 3) == {"compute": 160, "unknown": 90}


def test_ids_that_come_again_go_by_time(tmp_path: Path) -> None:
    """CUPTI counted anew for another context: the same ids, one call after the work of the other was done."""
    shard = GpuShard(1000)
    shard.span(900, "train", 0, 200, number=1)
    shard.span(900, "train", 200, 400, number=2)
    shard.launch("first", (10, 20), (30, 90), correlation=5, context=1)
    shard.launch("second", (210, 220), (230, 290), correlation=5, context=2, stream=7)
    joined = shard.joined(tmp_path)
    assert steps_of(joined) == {"first": 1, "second": 2}
    assert "correlation_id_again" not in said(joined)
    assert {line["name"] for line in joined["lines"].to_pylist() if line["plane"].startswith("/device")} == {
        "Stream #7 (context 1)",
        "Stream #7 (context 2)",
    }


def test_ids_that_come_again_while_both_are_in_flight_are_told_by_nothing(tmp_path: Path) -> None:
    shard = GpuShard(1000)
    shard.span(900, "train", 0, 200, number=1)
    shard.span(900, "train", 200, 400, number=2)
    for at, context in ((10, 1), (210, 2)):
        shard.call(at, at + 10, correlation=5)
        shard.kernel(f"of context {context}", 300 + at, 300 + at + 50, 5, context=context)
    joined = shard.joined(tmp_path)
    assert steps_of(joined) == {"of context 1": None, "of context 2": None}
    assert said(joined)["correlation_id_again"] == 2


def test_the_runtimes_call_around_the_drivers_is_one_launch(tmp_path: Path) -> None:
    shard = GpuShard(1000)
    shard.span(900, "train", 0, 200, number=1)
    shard.call(10, 40, name="cudaLaunchKernel_v7000", correlation=8)
    shard.launch("k", (20, 30), (50, 90), correlation=8)
    shard.launch("later", (60, 70), (100, 110))
    joined = shard.joined(tmp_path)
    assert steps_of(joined) == {"k": 1, "later": 1}
    assert [row["start_ps"] for row in joined["launches"].to_pylist()] == [10_000, 60_000]
    assert not {"launch_without_work", "correlation_id_again"} & set(said(joined))


# --- instructions ---------------------------------------------------------------------------------------------------

BLOCKS = [
    instruction
    for block in range(6)
    for instruction in (
        (f"gemm_fusion_dot.{block}", "fusion", ()),
        (f"loop_fusion.{block}" if block else "loop_fusion", "fusion", ()),
    )
]


def six_blocks(lost: tuple[int, ...] = (), range: str | None = MODULE) -> GpuShard:
    """One execution of six equal blocks of two fusions. All blocks share the kernels of the first."""
    shard = GpuShard(4000)
    shard.program(7, "jit_f", scheduled("jit_f", 7, ("main", BLOCKS)))
    if range:
        shard.span(900, range, 0, 600)
    for at, (name, _, _) in enumerate(BLOCKS):
        kernel = "loop_fusion" if name.startswith("loop") else "gemm_fusion_dot_0"
        if at not in lost:
            shard.launch(kernel, (at * 40 + 5, at * 40 + 10), (1000 + at * 100, 1080 + at * 100))
    return shard


def test_equal_fusions_share_a_kernel_and_the_order_of_launches_tells_them_apart(tmp_path: Path) -> None:
    joined = six_blocks().joined(tmp_path)
    found = instructions(joined)
    assert [op for _, op, _ in found] == [name for name, _, _ in BLOCKS]  # 12 of 12
    assert {how for _, _, how in found} == {"order"}
    assert "op_ambiguous" not in said(joined)
    assert joined["runs"].num_rows == 1


def test_of_a_lost_kernel_only_what_cannot_be_told_is_unknown(tmp_path: Path) -> None:
    """The loop fusion of block 2 is lost: two gemms then follow one another, and tell where."""
    found = instructions(six_blocks(lost=(5,)).joined(tmp_path))
    assert [op for _, op, _ in found] == [name for at, (name, _, _) in enumerate(BLOCKS) if at != 5]


def test_of_a_lost_block_nothing_tells_which_one_it_was(tmp_path: Path) -> None:
    joined = six_blocks(lost=(4, 5)).joined(tmp_path)
    assert {(op, how) for _, op, how in instructions(joined)} == {(None, "ambiguous")}
    assert said(joined)["op_ambiguous"] == 10


def test_an_order_that_contradicts_the_schedule_tells_nothing(tmp_path: Path) -> None:
    shard = GpuShard(2000)
    instructions_ = [("a.1", "fusion", ()), ("a.2", "fusion", ()), ("b.1", "fusion", ()), ("b.2", "fusion", ())]
    shard.program(7, "jit_f", scheduled("jit_f", 7, ("main", instructions_)))
    shard.span(900, MODULE, 0, 600)
    for at, name in enumerate(("b_1", "b_1", "a_1", "a_1")):
        shard.launch(name, (at * 40 + 5, at * 40 + 10), (1000 + at * 100, 1080 + at * 100))
    assert {(op, how) for _, op, how in instructions(shard.joined(tmp_path))} == {(None, "ambiguous")}


def test_a_fusion_with_a_kernel_of_its_own_is_not_taken_for_one_that_shares(tmp_path: Path) -> None:
    """add.2 has a kernel named after it, so it does not launch add_1; add.3 shares that of one of the two."""
    shard = GpuShard(2000)
    plan = [("add.1", "fusion", ()), ("add.2", "fusion", ()), ("add.3", "fusion", ())]
    shard.program(7, "jit_f", scheduled("jit_f", 7, ("main", plan)))
    shard.span(900, MODULE, 0, 600)
    for at, name in enumerate(("add_1", "add_2", "add_1")):
        shard.launch(name, (at * 40 + 5, at * 40 + 10), (1000 + at * 100, 1080 + at * 100))
    found = instructions(shard.joined(tmp_path))
    assert found == [("add_1", "add.1", "order"), ("add_2", "add.2", "order"), ("add_1", "add.3", "order")]


def test_kernels_of_a_loop_are_of_its_body_however_often_it_runs(tmp_path: Path) -> None:
    shard = GpuShard(4000)
    main = [("a.1", "fusion", ()), ("w.1", "while", ("body", "condition")), ("a.2", "fusion", ())]
    body = [("b.1", "fusion", ()), ("a.3", "fusion", ())]
    computations = (("main", main), ("body", body), ("condition", [("lt.1", "compare", ())]))
    shard.program(7, "jit_f", scheduled("jit_f", 7, *computations))
    shard.span(900, MODULE, 0, 600)
    for at, name in enumerate(("a_1", *("b_1", "a_1") * 4, "a_1")):
        shard.launch(name, (at * 40 + 5, at * 40 + 10), (1000 + at * 100, 1080 + at * 100))
    found = [op for _, op, _ in instructions(shard.joined(tmp_path))]
    assert found == ["a.1", *("b.1", "a.3") * 4, "a.2"]


def test_library_kernels_are_placed_by_the_range_in_which_they_were_launched(tmp_path: Path) -> None:
    """cuBLAS, cuDNN and NCCL name their kernels as they like. Three forms of XLA's ranges; the module is the one
    around them, and an unlike program with the same instruction has no say."""
    shard = GpuShard(2000)
    for number, name in ((7, "jit_f"), (8, "jit_g")):
        plan = [("dot.1", "custom-call", ()), ("conv.1", "custom-call", ()), ("all-reduce.1", "all-reduce", ())]
        shard.program(number, name, scheduled(name, number, ("main", plan)))
    shard.span(900, "train", 0, 900, number=1)
    shard.span(900, MODULE, 10, 600)
    for at, (name, range) in enumerate(
        (
            ("sm90_xmma_gemm_f32f32", "Thunk:#name=a,b=c/dot_general,hlo_op=dot.1#"),
            ("cudnn_generated_fort_native_sdpa", "Thunk:#hlo_op=conv.1,unique_hlo_op_id=31#"),
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "Thunk:#name=psum,hlo_op=all-reduce.1,unique_hlo_op_id=32#"),
        )
    ):
        shard.span(900, range, at * 100 + 15, at * 100 + 90)
        shard.launch(name, (at * 100 + 20, at * 100 + 30), (500 + at * 100, 590 + at * 100), range=range)
    joined = shard.joined(tmp_path)
    assert [(op, how) for _, op, how in instructions(joined)] == [
        ("dot.1", "stated"),
        ("conv.1", "stated"),
        ("all-reduce.1", "stated"),
    ]
    programs = joined["hlo_ops"]["program"].to_pylist()
    assert {programs[op["hlo_op"]] for op in joined["ops"].to_pylist()} == {0}
    assert [row["class"] for row in joined["ops"].to_pylist()] == ["compute", "compute", "collective"]


def test_library_kernels_without_a_range_are_placed_by_order_where_it_is_forced(tmp_path: Path) -> None:
    """A matmul of two kernels between fusions (a split-k gemm and its reduction). Then two matmuls in a row and three
    kernels: the first and the last are certain, the middle one may be of either."""
    shard = GpuShard(4000)
    gemm = "custom-call:__cublas$gemm"
    plan = [("a.1", "fusion", ()), ("dot.1", gemm, ()), ("a.2", "fusion", ()), ("dot.2", gemm, ()), ("dot.3", gemm, ())]
    shard.program(7, "jit_f", scheduled("jit_f", 7, ("main", plan)))
    shard.span(900, MODULE, 0, 600)
    for at, name in enumerate(("a_1", "gemm", "splitKreduce", "a_1", "gemm", "gemm", "gemm")):
        shard.launch(name, (at * 40 + 5, at * 40 + 10), (1000 + at * 100, 1080 + at * 100))
    found = [op for _, op, _ in instructions(shard.joined(tmp_path))]
    assert found[:4] == ["a.1", "dot.1", "dot.1", "a.2"]
    assert found[4:] == ["dot.2", None, "dot.3"]


def a_graph(nodes: bool) -> GpuShard:
    """A graph of 50 nodes, launched twice by one call each; all fusions share one kernel but the library's 25."""
    shard = GpuShard(40_000)
    plan = [(f"add.{i}" if i % 2 else f"dot.{i}", "fusion" if i % 2 else "custom-call", ()) for i in range(50)]
    shard.program(7, "jit_f", scheduled("jit_f", 7, ("main", [("call.1", "call", ("buffer",))]), ("buffer", plan)))
    for i, (name, _, _) in enumerate(plan):
        if nodes:
            # Built under ranges, instantiated as a clone, which is what runs.
            shard.node(100 + i, THUNK.format(name="x", op=name))
            shard.node(1000 + i, None, original=100 + i, graph=2)
    for launch in range(2):
        at = launch * 20_000
        shard.span(900, "train", at, at + 500, number=launch)
        shard.span(900, MODULE, at + 10, at + 400)
        number = shard.call(at + 20, at + 60, name="cuGraphLaunch", range="Thunk:#hlo_op=call.1#")
        for i in range(50):
            kernel = "add_1" if i % 2 else "sm90_gemm"
            shard.kernel(kernel, at + 100 + i * 100, at + 190 + i * 100, number, graph=2, node=1000 + i)
    return shard


@pytest.mark.parametrize("nodes", [True, False])
def test_kernels_of_a_graph_find_their_instruction_by_their_node(tmp_path: Path, nodes: bool) -> None:
    """By what was said as the node was made, through its clone; where nobody listened, in the order of the nodes."""
    joined = a_graph(nodes).joined(tmp_path)
    found = instructions(joined)
    assert [op for _, op, _ in found] == [f"add.{i}" if i % 2 else f"dot.{i}" for i in range(50)] * 2
    assert {how for _, _, how in found} == ({"graph_node"} if nodes else {"graph_order"})
    runs = joined["runs"].to_pylist()
    assert [run["step"] for run in runs] == [0, 1]
    assert broken(joined, breakdown.partial(joined)) == []


def test_without_ranges_kernels_are_of_no_instruction_and_counted(tmp_path: Path) -> None:
    """The program is there, but nothing says that it ran: a name that fits is no evidence."""
    shard = GpuShard(2000)
    shard.program(7, "jit_f", scheduled("jit_f", 7, ("main", [("loop_fusion", "fusion", ())])))
    shard.span(900, "train", 0, 300, number=1)
    shard.launch("loop_fusion", (10, 20), (30, 90))
    shard.launch("ampere_sgemm", (20, 30), (90, 140))
    joined = shard.joined(tmp_path)
    assert instructions(joined) == [("loop_fusion", None, "none"), ("ampere_sgemm", None, "none")]
    assert said(joined)["kernel_without_program"] == 2
    assert steps_of(joined) == {"loop_fusion": 1, "ampere_sgemm": 1}


@pytest.mark.parametrize("stored", [False, True])
def test_an_instruction_that_a_range_states_is_shown_where_its_program_is_not_stored(
    tmp_path: Path, stored: bool
) -> None:
    """Two kernels under one range (a split-k matmul), one of a graph, one without a range. Another program is stored,
    or none: the names are what the ranges say, of no row of HLO."""
    shard = GpuShard(3000)
    if stored:
        shard.program(8, "jit_g", scheduled("jit_g", 8, ("main", [("dot.1", "custom-call", ())])))
    shard.span(900, "train", 0, 900, number=1)
    shard.span(900, MODULE, 10, 800)
    dot = THUNK.format(name="blk/dot_general", op="dot.1")
    shard.launch("sm90_xmma_gemm", (20, 30), (500, 590), range=dot)
    shard.launch("splitKreduce", (40, 50), (600, 610), range=dot)
    shard.node(5, THUNK.format(name="x", op="add.7"), graph=2)
    number = shard.call(60, 70, name="cuGraphLaunch", range="Thunk:#hlo_op=call.1#")
    shard.kernel("add_7", 700, 750, number, graph=2, node=5)
    shard.launch("ampere_sgemm", (80, 90), (800, 820))
    joined = shard.joined(tmp_path)
    assert [(row["stated_op"], row["join"], row["hlo_op"]) for row in joined["ops"].to_pylist()] == [
        ("dot.1", "stated", None),
        ("dot.1", "stated", None),
        ("add.7", "graph_node", None),
        (None, "none", None),
    ]
    assert said(joined).get("kernel_without_program") == (1 if stored else None)
    named = top_ops.finish(top_ops.partial(joined), ("steady", "warmup", "partial")).to_pylist()
    assert [(row["op"], row["total_ps"], row["count"]) for row in named] == [
        ("dot.1", 100_000, 2),
        ("add.7", 50_000, 1),
        ("ampere_sgemm", 20_000, 1),
    ]
    assert sorted(op_steps.partial(joined)["op"].to_pylist()) == ["add.7", "ampere_sgemm", "dot.1"]


# --- together -------------------------------------------------------------------------------------------------------


def test_a_gpus_shard_is_analysed_to_the_end(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shard = a_graph(nodes=True)
    shard.device()
    shard.write(tmp_path / "run" / "0-77.xpr")
    summary = analyse([tmp_path / "run"]).summary
    assert summary["hosts"][0]["devices"] == ["/device:GPU:0"]
    assert summary["breakdown"]["compute"]["exclusive_s"] > 0
    assert summary["accounted"] is not None


def test_top_ops_name_the_instructions(tmp_path: Path) -> None:
    found = top_ops.finish(top_ops.partial(six_blocks().joined(tmp_path)), ("steady",)).to_pylist()
    assert sorted(row["op"] for row in found) == sorted(name for name, _, _ in BLOCKS)


def test_xlas_ranges_are_evidence_of_dispatch_and_compiling(tmp_path: Path) -> None:
    """The step's kernel was launched by 100: 40 compiling, 40 in a thunk of which 10 in the call, 20 of nothing."""
    shard = GpuShard(400)
    shard.span(900, "train", 0, 200, number=1)
    shard.span(900, "XlaCompile:#module=jit_f,program_id=7#", 10, 50)
    shard.span(900, "Thunk:#hlo_op=add.1#", 60, 100)
    shard.launch("add_1", (90, 100), (100, 150))
    assert classes(shard.joined(tmp_path), 1) == {"compute": 50, "compiler": 40, "host": 40, "unknown": 20}


_WORK = st.tuples(
    st.integers(0, 2),  # stream
    st.integers(0, 400),  # launched
    st.integers(0, 60),  # begins after the launch
    st.integers(0, 50),  # lasts
    st.sampled_from(["gemm", "ncclDevKernel", "copy"]),
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(work=st.lists(_WORK, min_size=1, max_size=15), seed=st.integers(0, 5))
def test_however_streams_interleave_classes_sum_to_the_windows(
    tmp_path: Path, work: list[tuple[int, int, int, int, str]], seed: int
) -> None:
    shard = GpuShard(600)
    for number in range(4):
        shard.span(900, "train", number * 100, (number + 1) * 100, number=number)
    for stream, launched, after, lasts, name in work:
        call = shard.call(launched, launched + 3)
        start = launched + after
        if name == "copy":
            shard.copy(start, start + lasts, call, size=8, stream=stream)
        else:
            shard.kernel(name, start, start + lasts, call, stream=stream)
    joined = shard.shuffled(seed).joined(tmp_path)
    assert broken(joined, breakdown.partial(joined)) == []
    windows: Counter[int] = Counter()
    for row in breakdown.partial(joined).to_pylist():
        windows[row["window"]] += row["exclusive_ps"]
    lengths = [w["end_ps"] - w["start_ps"] for w in joined["windows"].to_pylist()]
    assert [windows[i] for i in range(len(lengths))] == lengths
    assert joined["ops"].num_rows == len(work)
    assert Counter(row["step"] for row in joined["launches"].to_pylist()) == Counter(
        min(launched // 100, 4) if launched < 400 else None for _, launched, _, _, _ in work
    )
