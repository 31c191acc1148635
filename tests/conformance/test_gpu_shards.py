"""Breakdowns of what GPUs did, as a shard has it, worked out by hand from docs/breakdown.md; times in nanoseconds."""

from __future__ import annotations

from pathlib import Path

from gpu_shards import GpuShard

from conformance.invariants import broken
from xprof_py.postprocess.analyses import breakdown
from xprof_py.postprocess.profile import Profile


def classes(joined: Profile, number: int) -> dict[str, int]:
    return {
        row["class"]: row["exclusive_ps"] // 1000
        for row in breakdown.partial(joined).to_pylist()
        if row["number"] == number and row["kind"] == "step" and row["exclusive_ps"]
    }


def test_two_steps_of_copy_gemm_and_all_reduce(tmp_path: Path) -> None:
    """Two steps, a copy, a gemm and a reduction on another stream on streams of their own.

    step 0 on the host [0, 100), step 1 [100, 200). The copy's call is [10, 20), it runs [30, 60). The gemm is launched
    [20, 24) and runs [60, 160) on stream 7; NCCL's, launched [24, 30), runs [120, 200) on stream 8. Step 1 launches
    [150, 160) a kernel that runs [260, 300).
    """
    shard = GpuShard(400)
    for number in range(2):
        shard.span(900, "train", number * 100, (number + 1) * 100, number=number)
    copied = shard.call(10, 20, name="cuMemcpyHtoDAsync_v2")
    shard.copy(30, 60, copied, size=4096, stream=9)
    shard.launch("gemm", (20, 24), (60, 160))
    shard.launch("ncclDevKernel_AllReduce", (24, 30), (120, 200), stream=8)
    shard.launch("gemm", (150, 160), (260, 300))
    joined = shard.joined(tmp_path)
    assert broken(joined, breakdown.partial(joined)) == []
    # Step 0 is (0, 200]. Until 30 nothing runs: the copy was launched by 20, of which 10 in its call and 10 before it,
    # then 10 in time. The copy has 30, compute 100 (it wins over the collective), the collective 40 alone.
    assert classes(joined, 0) == {
        "unknown": 10,
        "host": 10,
        "device_wait": 10,
        "host_device": 30,
        "compute": 100,
        "collective": 40,
    }
    # Step 1 is (200, 300]: its kernel was launched by 160, before the device was free at 200: 60 of waiting, 40 of work
    assert classes(joined, 1) == {"device_wait": 60, "compute": 40}
    (copy,) = joined["copies"].to_pylist()
    assert (copy["bytes"], copy["direction"], copy["device"], copy["duration_ps"]) == (
        4096,
        "to_device",
        "gpu:0",
        30_000,
    )


def test_a_graph_of_two_streams_is_one_launch_of_many_kernels(tmp_path: Path) -> None:
    """step 0 is [0, 100) on the host, step 1 [100, 200). Each launches a graph of three kernels by one call.

    Step 0's call is [40, 60); its kernels run [80, 120) and [140, 160) on stream 7, [110, 150) on stream 8. Step 1's is
    [130, 150), while they run; its kernels run 100 later.
    """
    shard = GpuShard(400)
    for number in range(2):
        at = number * 100
        shard.span(900, "train", at, at + 100, number=number)
        call = shard.call(*((40, 60) if number == 0 else (130, 150)), name="cudaGraphLaunch_v10000")
        for node, (start, end, stream) in enumerate(((80, 120, 7), (110, 150, 8), (140, 160, 7)), 1):
            shard.kernel(f"k{node}", at + start, at + end, call, stream=stream, graph=5, node=node)
    joined = shard.joined(tmp_path)
    assert broken(joined, breakdown.partial(joined)) == []
    assert joined["runs"]["step"].to_pylist() == [0, 1]
    # (0, 160]: 80 idle, of which 60 until the launch's end (20 in the call, of 40 nothing is known) and 20 in time.
    # Then 80 in which a kernel runs on one stream or the other.
    assert classes(joined, 0) == {"unknown": 40, "host": 20, "device_wait": 20, "compute": 80}
    # (160, 260]: launched by 150, before the device was free: 20 of waiting, 80 of work.
    assert classes(joined, 1) == {"device_wait": 20, "compute": 80}


def test_two_gpus_of_a_process_are_two_lanes_and_a_copy_between_them_is_a_collective(tmp_path: Path) -> None:
    """One step [0, 100): a kernel on each GPU, launched [10, 20) and [20, 30), which run [40, 100) and [50, 120). Then
    the second GPU's result is copied to the first [120, 150).
    """
    shard = GpuShard(400)
    shard.span(900, "train", 0, 100, number=0)
    shard.launch("gemm", (10, 20), (40, 100), device=0)
    shard.launch("gemm", (20, 30), (50, 120), device=1)
    shard.copy(120, 150, shard.call(30, 40, name="cuMemcpyPeerAsync"), 64, kind=10, device=1, peer=0, memory=(3, 3))
    joined = shard.joined(tmp_path)
    assert joined["lanes"]["device"].to_pylist() == ["/device:GPU:0", "/device:GPU:1"]
    assert broken(joined, breakdown.partial(joined)) == []
    found = {
        lane: {
            row["class"]: row["exclusive_ps"] // 1000
            for row in breakdown.partial(joined).to_pylist()
            if row["lane"] == lane and row["kind"] == "step" and row["exclusive_ps"]
        }
        for lane in (0, 1)
    }
    # GPU 0, (0, 100]: until 20 late (10 in the call), until 40 in time. GPU 1, (0, 120]: until 30 late (20 in calls, as
    # the thread launched on the other GPU before), until 50 in time, 70 of work. The copy is of no program and ends no
    # window: it lies in the tail, (120, 400].
    assert found[0] == {"unknown": 10, "host": 10, "device_wait": 20, "compute": 60}
    assert found[1] == {"unknown": 10, "host": 20, "device_wait": 20, "compute": 70}
    rows = breakdown.partial(joined).to_pylist()
    (tail,) = (r for r in rows if r["lane"] == 1 and r["kind"] == "tail" and r["class"] == "collective")
    assert tail["exclusive_ps"] == 30_000
