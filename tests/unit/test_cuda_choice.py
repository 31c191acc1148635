"""Who has the devices: this package's collector, or XLA's profiler."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from xprof_py.collectors.cuda import decide
from xprof_py.injection import NVTX_VARIABLE, XLA_RANGES_VARIABLE, nvtx_library, xla_ranges_are_taken

SEEN = {"in_use": True, "jax_platform": "", "nvtx_is_taken": False}


def chosen(cuda: Any = "auto", backend: Any = "auto", xla: Any = "auto", **seen: Any) -> tuple[bool | None, str]:
    decision = decide(cuda, backend, xla, **{**SEEN, **seen})
    return decision.use, decision.why


@pytest.mark.parametrize("platform", ["gpu", "cuda"])
def test_jax_on_a_gpu_is_xla_s_which_knows_the_ops(platform: str) -> None:
    assert chosen(jax_platform=platform) == (
        False,
        "XLA's profiler has the devices: it knows the op of each of its kernels",
    )


def test_a_program_without_jax_is_ours() -> None:
    assert chosen(jax_platform="") == (True, "the program uses CUDA, and not through JAX")
    assert chosen(jax_platform="cpu")[0] is True


def test_without_xla_s_profiler_jax_on_a_gpu_is_ours() -> None:
    assert chosen(xla=False, jax_platform="gpu") == (True, "XLA's profiler is switched off")


def test_where_nvtx_is_taken_xla_s_profiler_would_not_know_the_ops() -> None:
    assert chosen(nvtx_is_taken=True, jax_platform="gpu")[0] is True


def test_it_waits_for_a_program_that_does_not_use_cuda_yet_and_for_jax_s_devices() -> None:
    assert chosen(in_use=False) == (None, "the program does not use CUDA")
    assert chosen(jax_platform=None) == (None, "JAX's devices are not up")


@pytest.mark.parametrize("in_use", [True, False])
def test_who_asks_for_it_gets_it_at_once(in_use: bool) -> None:
    assert chosen(cuda=True, jax_platform="gpu", in_use=in_use) == (True, "asked for")
    assert chosen(backend="cupti", jax_platform=None, in_use=in_use) == (True, "asked for")


def test_off_means_off_and_the_backend_excludes_the_other() -> None:
    for in_use, platform, nvtx in itertools.product((True, False), ("", None, "cpu", "gpu"), (True, False)):
        seen = {"in_use": in_use, "jax_platform": platform, "nvtx_is_taken": nvtx}
        assert chosen(cuda=False, **seen) == (False, "switched off")
        assert chosen(backend="xla", **seen) == (False, 'backend is "xla": its profiler has the devices')
        assert chosen(cuda=True, backend="xla", **seen)[0] is False


def test_xla_keeps_its_ranges_where_our_library_leaves_them_to_it() -> None:
    ours, theirs = {NVTX_VARIABLE: str(nvtx_library())}, {NVTX_VARIABLE: "/opt/tool/libtool.so"}
    left = {XLA_RANGES_VARIABLE: "0"}
    taken = [xla_ranges_are_taken(environ) for environ in ({}, ours, {**ours, **left}, theirs, {**theirs, **left})]
    assert taken == [False, True, False, True, True]
