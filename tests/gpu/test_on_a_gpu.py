"""What only a GPU can show: each test records a program there and asks checks.py about it (docs/gpu.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu import checks
from gpu.device_rows import kernels_of
from gpu.recorded import document, joined, told
from xprof_py.injection import NVTX_VARIABLE, nvtx_library
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.readers.xspace import read_programs_file, read_xspace

pytestmark = pytest.mark.gpu
ENVIRONMENTS = ["jax", "torch"]  # two releases of CUPTI, where their wheels bring them
Python = Callable[..., str]
Record = Callable[[dict[str, Any]], None]


def injected(python: str) -> dict[str, str]:
    """Variables by which a program's ranges reach the library of the environment of ``python``."""
    (library,) = Path(python).parents[1].glob(f"lib/python*/site-packages/xprof_py/{nvtx_library().name}")
    return {NVTX_VARIABLE: str(library)}


def ours(run: Path) -> Profile | None:
    """The run's shard alone, joined; None where the capture did not begin."""
    return join_profile(read_shard(run / document(run)["files"]["shard"])) if run.exists() else None


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_01_cupti_takes_us(python_with: Python, record: Record, environment: str) -> None:
    said = told(python_with(environment), "subscribe")
    release = re.match(r"\d+", said["driver"])
    figures = checks.cupti_takes_us(said["found"], int(release[0]) if release else None)
    record({"gpu": said["gpu"], "driver": said["driver"], **figures})


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_02_records_are_sane(python_with: Python, planted: Any, record: Record, environment: str) -> None:
    recorded = planted(python_with(environment, "cupy", "nvtx"))
    entry = recorded.document["collectors"]["cuda"]
    figures = checks.records_are_sane(recorded.profile, entry, recorded.told["launched"])
    record(figures | checks.kernels_find_their_place(recorded.profile, recorded.told["places"]))


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_03_ranges_reach_kernels(python_with: Python, planted: Any, record: Record, environment: str) -> None:
    recorded = planted(python_with(environment, "cupy", "nvtx"))
    record(checks.launches_carry_their_range(recorded.profile, recorded.told["ops"]))


@pytest.mark.parametrize("command_buffers", ["on", "off"])
def test_03_jax_kernels_find_their_ops(
    python_with: Python, record: Record, tmp_path: Path, command_buffers: str
) -> None:
    python, run = python_with("jax", "jax"), tmp_path / "run"
    flags = {} if command_buffers == "on" else {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}
    said = told(python, "jax_training", "20", run=run, options=["--backend", "cupti"], **flags)
    assert said["platform"] in ("gpu", "cuda"), f"JAX runs on {said['platform']}"
    profile = joined(run)
    figures = checks.kernels_find_their_ops(profile)
    stated = sum(op is not None for op in kernels_of(profile).stated_op)
    record(figures | {"with_range": stated, "programs": profile["programs"].num_rows})


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_04_graph_nodes_are_told(python_with: Python, planted: Any, record: Record, environment: str) -> None:
    recorded = planted(python_with(environment, "cupy", "nvtx"))
    record(checks.graph_nodes_are_told(recorded.profile, recorded.told["graph_ops"]))


def test_05_jax_s_profiler_beside_ours(python_with: Python, record: Record, tmp_path: Path) -> None:
    run = tmp_path / "run"
    seen = told(python_with("jax", "jax"), "beside", "jax", str(run))
    profile = ours(run)
    record(checks.one_has_the_devices({**seen, "ours": len(kernels_of(profile)) if profile else 0}))


def test_05_jax_s_profiler_has_the_devices_by_itself(python_with: Python, record: Record, tmp_path: Path) -> None:
    """`xprof-py run` as it is: XLA's profiler collects, and knows its ops, since its ranges are left to it."""
    run = tmp_path / "run"
    told(python_with("jax", "jax"), "jax_training", "20", run=run)
    said = document(run)["collectors"]
    assert said["xla"]["used"], said
    assert not said["cuda"]["used"], said
    record(checks.kernels_find_their_ops(joined(run)))


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_06_overhead_is_bounded(python_with: Python, record: Record, tmp_path: Path, environment: str) -> None:
    python = python_with(environment, "cupy", "nvtx")
    cost = told(python, "costs", str(tmp_path), "5", "40", **injected(python))
    more = {"push_and_pop": cost["push_and_pop_ns"], "launch_cpu": cost["launch_cpu_ns"]}
    record(checks.overhead_is_bounded(cost["step_ms"], cost["lost"], **more))


def test_07_kineto_beside_ours(python_with: Python, record: Record, tmp_path: Path) -> None:
    python, run = python_with("torch", "torch"), tmp_path / "run"
    seen = told(python, "beside", "torch", str(run), **injected(python))
    profile = ours(run)
    figures = checks.one_has_the_devices({**seen, "ours": len(kernels_of(profile)) if profile else 0})
    ranges = profile["events"]["name"].to_pylist().count("product") if profile else 0
    assert ranges == 20, f"{ranges} of PyTorch's 20 NVTX ranges became spans"
    record(figures | {"nvtx_ranges": ranges})


def test_08_nvml_is_quick(python_with: Python, record: Record, tmp_path: Path) -> None:
    said = told(python_with("jax"), "nvml_calls", str(tmp_path / "run"), "5")
    record(checks.nvml_is_quick(said["calls_ns"], said["overhead"]) | {"refused": said["refused"]})


def test_09_programs_are_there(python_with: Python, record: Record, tmp_path: Path) -> None:
    said = told(python_with("jax", "jax"), "jax_programs", str(tmp_path / "programs.pb"))
    assert said["platform"] in ("gpu", "cuda"), f"JAX runs on {said['platform']}"
    record(checks.programs_are_there(read_programs_file(tmp_path / "programs.pb"), said["programs"]))


def test_10_plugin_traces_the_device(python_with: Python, record: Record, tmp_path: Path) -> None:
    said = told(python_with("jax", "jax"), "jax_plugin", str(tmp_path / "plugin.xplane.pb"))
    profile = join_profile(read_xspace(tmp_path / "plugin.xplane.pb"))
    record(checks.plugin_traces_the_device(profile) | {"pjrt": ".".join(map(str, said["version"]))})
