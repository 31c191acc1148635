"""When a GPU waits because its host launches too slowly, and when not: small traces whose answer is worked out by hand.

Times in microseconds. Every step has ten kernels, unless it says otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu_shards import GpuShard
from kineto_traces import US, Trace

from xprof_py.postprocess.analyses import launch_bound
from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.join import host_names
from xprof_py.postprocess.profile import Profile

STEPS = 6
OTHERS = (
    "cudaMemcpyAsync cuMemsetD32Async cudaStreamSynchronize cudaLaunchHostFunc "
    "hipMemcpyAsync custom_launch_kernel cudaMalloc XlaCompile:#module=a#"
)
LAUNCHES = (
    "cuLaunchKernel cuLaunchKernelEx cudaLaunchKernel cudaLaunchKernel_v7000 "
    "cudaLaunchKernelExC_v11060 cuGraphLaunch cudaGraphLaunch_v10000 "
    "cuLaunchCooperativeKernel cudaLaunchCooperativeKernel hipLaunchKernel "
    "hipGraphLaunch hipModuleLaunchKernel hipExtModuleLaunchKernel "
    "Thunk:#hlo_op=dot.1#"
)


def rows(joined: Profile) -> list[dict[str, Any]]:
    """The rows of the steps between the first, before which nothing ran, and the last."""
    return launch_bound.finish(launch_bound.partial(joined)).to_pylist()[1:-1]


def an_op(trace: Trace, name: str, at: float, took: float, call: float, ran: tuple[float, float]) -> None:
    """An operation of PyTorch that ends with the call, of ``call``, which launches its kernel."""
    trace.add("cpu_op", name, at, at + took, trace.pid, trace.pid)
    trace.launched((at + took - call, at + took), ran)


def slow_host() -> Trace:
    """Operations of 100, 40 of them in cudaLaunchKernel, whose kernels take 20: 80 of every 100 the GPU has nothing."""
    trace = Trace()
    for number in range(STEPS):
        trace.step(number, 1000 * number, 1000 * number + 1000)
        for k in range(10):
            at = 1000 * number + 100 * k
            an_op(trace, "aten::add", at, 100, 40, (at + 100, at + 120))
    return trace


def test_operations_that_take_longer_than_their_kernels_are_launch_bound(tmp_path: Path) -> None:
    for row in rows(slow_host().joined(tmp_path)):
        assert (row["window_ps"], row["busy_ps"], row["idle_ps"]) == (1000 * US, 200 * US, 800 * US)
        assert (row["launches"], row["runs"], row["dispatch_ps"]) == (10, 10, 1000 * US)
        assert row["launch_bound"]


def test_the_verdict_says_so_and_what_to_do_about_kernels(tmp_path: Path) -> None:
    summary = analyse([slow_host().written(tmp_path / "rank0.json")]).summary
    found = summary["launch_bound"]
    assert found["mostly"]
    assert (found["launches_per_step"], found["dispatch_us"], found["device_us"]) == (10, 100, 20)
    assert "CUDA graph" in found["advice"]
    assert summary["verdict"]["bottleneck"] == "host"
    assert "launch-bound: 10 launches a step" in summary["verdict"]["evidence"][0]["text"]


def test_a_host_that_runs_ahead_of_long_kernels_is_not(tmp_path: Path) -> None:
    """The same operations, whose kernels take 200: after the first one the GPU never waits."""
    trace = Trace()
    for number in range(STEPS):
        trace.step(number, 1000 * number, 1000 * number + 1000)
        for k in range(10):
            n = 10 * number + k
            an_op(trace, "aten::add", 100 * n, 100, 40, (100 + 200 * n, 300 + 200 * n))
    assert [(row["idle_ps"], row["launch_bound"]) for row in rows(trace.joined(tmp_path))] == [(0, False)] * 4


def test_work_on_the_cpu_between_the_launches_is_no_dispatch(tmp_path: Path) -> None:
    """An operation of 800 on the CPU, then one of 20 that launches a kernel of 10: the host is late, but not with
    launching."""
    trace = Trace()
    for number in range(STEPS):
        at = 1000 * number
        trace.step(number, at, at + 1000)
        trace.add("cpu_op", "aten::sort", at, at + 800, trace.pid, trace.pid)
        an_op(trace, "aten::add", at + 800, 20, 10, (at + 820, at + 830))
    joined = trace.joined(tmp_path)
    gaps = joined["gaps"].to_pylist()
    assert sum(row["length_ps"] for row in gaps if row["cause"] == "host" and row["evidence"] == "aten::sort") > 0
    assert [(row["idle_ps"], row["launch_bound"]) for row in rows(joined)] == [(0, False)] * 4


def test_a_wait_inside_an_operation_that_launches_is_no_dispatch(tmp_path: Path) -> None:
    """A first launch of 150 that the GPU waits for, nine of 10; then an operation that launches, copies and waits for
    all ten kernels of 90. Launching takes 150 + 9 * 10 + 10 for 11 launches, less than their kernels."""
    trace = Trace()
    for number in range(STEPS):
        at = 1200 * number
        trace.step(number, at, at + 1200)
        an_op(trace, "aten::embedding", at, 150, 10, (at + 150, at + 240))
        for k in range(1, 10):
            an_op(trace, "aten::add", at + 140 + 10 * k, 10, 5, (at + 150 + 90 * k, at + 240 + 90 * k))
        trace.add("cpu_op", "aten::nonzero", at + 240, at + 1130, trace.pid, trace.pid)
        trace.launched((at + 240, at + 250), (at + 1050, at + 1090))
        trace.launched((at + 250, at + 1090), (at + 1090, at + 1095), "Memcpy DtoH (Device -> Pageable)")
        trace.add("cuda_runtime", "cudaStreamSynchronize", at + 1090, at + 1130, trace.pid, trace.pid)
    for row in rows(trace.joined(tmp_path)):
        assert (row["launches"], row["runs"], row["dispatch_ps"]) == (11, 11, 250 * US)
        assert row["idle_ps"] * 10 >= row["window_ps"]
        assert not row["launch_bound"]


@pytest.mark.parametrize(("kernel", "bound"), [(100, False), (2, True)])
def test_a_graph_is_one_launch_and_its_kernels_one_run(tmp_path: Path, kernel: int, bound: bool) -> None:
    """cudaGraphLaunch takes 300, its ten kernels ten times ``kernel``, then the host waits for them."""
    trace = Trace()
    for number in range(STEPS):
        at = number * (350 + 10 * kernel)
        done = at + 300 + 10 * kernel
        trace.step(number, at, done + 20)
        call = {"correlation": number + 1}
        trace.add("cuda_runtime", "cudaGraphLaunch", at, at + 300, trace.pid, trace.pid, **call)
        for k in range(10):
            nodes = {"graph id": 5, "graph node id": 10 + k}
            trace.work((at + 300 + kernel * k, at + 300 + kernel * (k + 1)), **call, **nodes)
        trace.add("cuda_runtime", "cudaDeviceSynchronize", at + 300, done + 10, trace.pid, trace.pid)
    for row in rows(trace.joined(tmp_path)):
        assert (row["launches"], row["runs"], row["dispatch_ps"]) == (1, 1, 300 * US)
        assert row["busy_ps"] == 10 * kernel * US
        assert row["idle_ps"] == 300 * US
        assert row["launch_bound"] is bound


def test_our_own_records_of_a_gpu_say_the_same(tmp_path: Path) -> None:
    """Ranges of XLA of 40 around calls of 30, kernels of 5: what is launched here is a program's thunks."""
    shard = GpuShard(2_000_000)
    for number in range(STEPS):
        shard.span(900, "train", 400_000 * number // 2, 400_000 * (number + 1) // 2, number=number)
        for k in range(5):
            at = 200_000 * number + 40_000 * k
            shard.span(900, f"Thunk:#name=fusion.{k},hlo_op=fusion.{k}#", at, at + 40_000)
            shard.launch("fusion", (at + 10_000, at + 40_000), (at + 40_000, at + 45_000))
    for row in rows(shard.joined(tmp_path)):
        assert (row["launches"], row["runs"], row["dispatch_ps"]) == (5, 5, 200 * US)
        assert (row["window_ps"], row["idle_ps"]) == (200 * US, 175 * US)
        assert row["launch_bound"]


@pytest.mark.parametrize(
    "name",
    LAUNCHES.split(),
)
def test_calls_that_launch_kernels_are_dispatch(name: str) -> None:
    assert host_names.is_dispatch(name)


@pytest.mark.parametrize(
    "name",
    OTHERS.split(),
)
def test_calls_that_launch_none_are_not(name: str) -> None:
    assert not host_names.is_dispatch(name)
