"""capture(cuda=..., backend=...): who has the devices, and what the run file says of it. The GPU is a test double."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_gpu
import pytest

from xprof_py import capture
from xprof_py.errors import UsageError

GPU = f"""
import os, sys, time
sys.path.insert(0, {str(fake_gpu.HERE)!r})
from fake_gpu import FakeGpu, load_driver
from xprof_py import capture, step
from xprof_py.errors import CaptureError
RUN, FAKES = sys.argv[1], os.environ["FAKES"]
def train(gpu, first, last):
    for i in range(first, last):
        with step(i):
            gpu.launches("gemm", 1 + 100 * i, 100)
"""
ACTIVITIES, CALLS, COLLECTOR = 16, 17, 19


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_gpu.build(tmp_path_factory.mktemp("fake_gpu"))


@pytest.fixture
def driver_folder(fakes: Path, tmp_path: Path) -> str:
    """A folder in which the loader finds the driver by its name."""
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "libcuda.so.1").symlink_to(fakes / "libfake_cuda.so")
    return str(folder)


@pytest.fixture
def gpu_program(program: Callable[..., Any], fakes: Path) -> Callable[..., Any]:
    def run(source: str, *, variant: str = "both", **environment: str) -> Any:
        library = str(fakes / f"libfake_cupti_{variant}.so")
        return program(GPU + source, FAKES=str(fakes), XPROF_CUPTI_LIB=library, **environment)

    return run


def chunks(shard: Path) -> dict[int, bytes]:
    """The payloads of a shard's chunks, by type, one after the other."""
    content, found, at = shard.read_bytes(), dict[int, bytes](), 128
    while at < len(content):
        _, kind, _, length, _, _, _ = struct.unpack_from("<IHHQIIQ", content, at)
        found[kind] = found.get(kind, b"") + content[at + 32 : at + 32 + length]
        at += 32 + length
    return found


def counts(outcome: Any) -> tuple[int, int]:
    """How many activities and calls are in the shard."""
    found = chunks(outcome.run / outcome.document()["files"]["shard"])
    return len(found.get(ACTIVITIES, b"")) // 96, len(found.get(CALLS, b"")) // 48


def cuda(outcome: Any) -> dict[str, Any]:
    entry: dict[str, Any] = outcome.document()["collectors"]["cuda"]
    return entry


def test_a_program_that_uses_cuda_is_collected(gpu_program: Callable[..., Any]) -> None:
    outcome = gpu_program(
        """
load_driver(FAKES)
gpu = FakeGpu(FAKES)
with capture(RUN):
    train(gpu, 0, 3)
assert gpu.get("subscribed") == 0 and gpu.get("enabled") == 0 and gpu.get("mixed") == 0
        """
    )
    assert counts(outcome) == (300, 300)
    entry = cuda(outcome)
    assert entry["used"]
    assert entry["chosen"] == "the program uses CUDA, and not through JAX"
    assert entry["version"] == 130500
    assert entry["shared"]
    assert entry["os_threads"]
    assert entry["holder"] is None
    assert abs(entry["clock_offset_ns"]) <= entry["clock_width_ns"] + 1_000_000
    totals = outcome.document()["overhead"]["cuda"]
    assert (totals["activities"], totals["calls"], totals["dropped"], totals["buffers_refused"]) == (300, 300, 0, 0)
    assert outcome.document()["messages"] == []


def test_only_the_steps_that_are_captured(gpu_program: Callable[..., Any]) -> None:
    outcome = gpu_program(
        """
load_driver(FAKES)
gpu = FakeGpu(FAKES)
with capture(RUN, steps=(2, 5)):
    train(gpu, 0, 8)
assert gpu.get("unsubscribed") == 1
        """
    )
    assert counts(outcome) == (300, 300)


def test_it_begins_when_the_program_comes_to_use_cuda(gpu_program: Callable[..., Any], driver_folder: str) -> None:
    outcome = gpu_program(
        """
with capture(RUN):
    time.sleep(0.1)
    from xprof_py import _native
    assert not _native.cuda_is_loaded()
    load_driver(FAKES)
    gpu = FakeGpu(FAKES)
    for _ in range(2000):
        if gpu.get("kernels_on"):
            break
        time.sleep(0.01)
    train(gpu, 0, 2)
        """,
        LD_LIBRARY_PATH=driver_folder,
    )
    assert counts(outcome) == (200, 200)
    assert cuda(outcome)["used"]


def test_a_program_that_never_uses_cuda_says_so(gpu_program: Callable[..., Any], driver_folder: str) -> None:
    outcome = gpu_program(
        """
with capture(RUN), step(0):
    pass
        """,
        LD_LIBRARY_PATH=driver_folder,
    )
    assert cuda(outcome) == {"used": False, "why": "the program does not use CUDA"}
    assert outcome.document()["messages"] == []
    assert outcome.document()["state"] == "finished"


def test_without_a_driver_auto_goes_on_and_true_is_an_error(gpu_program: Callable[..., Any]) -> None:
    outcome = gpu_program(
        """
with capture(RUN), step(0):
    pass
for wanted in ({"cuda": True}, {"backend": "cupti"}):
    try:
        with capture(RUN + "-no", **wanted):
            raise SystemExit("the block ran")
    except CaptureError as error:
        print(error)
        """
    )
    assert cuda(outcome)["used"] is False
    assert "no NVIDIA driver" in cuda(outcome)["why"]
    assert outcome.document()["messages"] == []
    first, second = outcome.stdout.splitlines()
    assert first.startswith("cuda=True: no NVIDIA driver")
    assert second.startswith('backend="cupti": no NVIDIA driver')


@pytest.mark.parametrize("variant", ["both", "named"])
def test_another_tool_that_holds_cupti_is_named(gpu_program: Callable[..., Any], variant: str) -> None:
    outcome = gpu_program(
        f"""
load_driver(FAKES)
gpu = FakeGpu(FAKES, {variant!r})
gpu.set("refuse_shared", 39)
gpu.hold("CUPTI for Nsight Systems")
with capture(RUN):
    train(gpu, 0, 2)
try:
    with capture(RUN + "-no", cuda=True):
        raise SystemExit("the block ran")
except CaptureError as error:
    print(error)
        """,
        variant=variant,
    )
    assert counts(outcome) == (0, 0)
    assert cuda(outcome) == {"used": False, "why": "CUPTI is held by CUPTI for Nsight Systems"}
    assert "what the GPUs did is not recorded: CUPTI is held by CUPTI for Nsight Systems" in outcome.messages()
    assert outcome.step_numbers() == [0, 1]
    assert outcome.stdout == "cuda=True: CUPTI is held by CUPTI for Nsight Systems\n"


def test_a_library_that_is_not_there_is_an_error_that_says_where_from(gpu_program: Callable[..., Any]) -> None:
    outcome = gpu_program(
        """
load_driver(FAKES)
os.environ["XPROF_CUPTI_LIB"] = "/nowhere/libcupti.so.13"
with capture(RUN), step(0):
    pass
        """
    )
    assert "XPROF_CUPTI_LIB: /nowhere/libcupti.so.13" in cuda(outcome)["why"]


def test_the_backend_xla_and_cuda_false_call_nothing(gpu_program: Callable[..., Any]) -> None:
    outcome = gpu_program(
        """
load_driver(FAKES)
gpu = FakeGpu(FAKES)
with capture(RUN + "-off", cuda=False):
    train(gpu, 0, 1)
with capture(RUN, backend="xla"):
    train(gpu, 0, 1)
assert gpu.get("unsubscribed") == 0 and gpu.get("made") == 0
        """
    )
    assert cuda(outcome) == {"used": False, "why": 'backend is "xla": its profiler has the devices'}


def test_settings_come_from_the_environment(gpu_program: Callable[..., Any]) -> None:
    outcome = gpu_program(
        """
load_driver(FAKES)
gpu = FakeGpu(FAKES)
with capture(RUN):
    train(gpu, 0, 1)
        """,
        XPROF_PY_CUDA="0",
    )
    assert cuda(outcome) == {"used": False, "why": "switched off"}


def test_cuda_and_a_backend_that_excludes_it_are_refused(tmp_path: Path) -> None:
    for wanted in ({"cuda": True, "backend": "xla"}, {"cuda": False, "backend": "cupti"}):
        with pytest.raises(UsageError, match="exclude each other"), capture(tmp_path / "r", **wanted):  # type: ignore[arg-type]
            pass


def test_what_cupti_drops_is_said(gpu_program: Callable[..., Any]) -> None:
    outcome = gpu_program(
        """
load_driver(FAKES)
gpu = FakeGpu(FAKES)
with capture(RUN):
    train(gpu, 0, 1)
    gpu.drop(5)
        """
    )
    assert outcome.messages() == "CUPTI dropped 5 records of device activity"
    totals = chunks(outcome.run / outcome.document()["files"]["shard"])[COLLECTOR]
    written, dropped = struct.unpack_from("<QQ", totals)
    assert (written, dropped) == (200, 5)


def test_a_cupti_that_hangs_at_the_end_does_not_hang_the_program(gpu_program: Callable[..., Any]) -> None:
    outcome = gpu_program(
        """
from xprof_py.collectors import cuda
cuda.STOP_TIMEOUT_S = 0.2
load_driver(FAKES)
gpu = FakeGpu(FAKES)
with capture(RUN):
    train(gpu, 0, 1)
    gpu.set("hang_ms", 3000)
    began = time.monotonic()
print(time.monotonic() - began < 2.5)
        """
    )
    assert outcome.stdout == "True\n"
    assert "device activity is incomplete: CUPTI did not give its records back in time" in outcome.messages()
    assert outcome.document()["overhead"]["cuda"] == {"ended": False}
    assert counts(outcome) == (100, 100)


def test_captures_one_after_the_other_and_a_forked_child(gpu_program: Callable[..., Any]) -> None:
    outcome = gpu_program(
        """
load_driver(FAKES)
gpu = FakeGpu(FAKES)
with capture(RUN + "-first"):
    train(gpu, 0, 1)
with capture(RUN):
    train(gpu, 1, 2)
    child = os.fork()
    if child == 0:
        with capture(RUN + "-child"), step(0):
            pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    train(gpu, 2, 3)
        """
    )
    assert counts(outcome) == (200, 200)
    (path,) = (outcome.run.parent / (outcome.run.name + "-child") / "run").glob("*.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert "forked" in document["collectors"]["cuda"]["why"]
    assert document["state"] == "finished"


def test_jax_on_cpu_and_the_program_s_own_cuda_are_both_there(gpu_program: Callable[..., Any]) -> None:
    outcome = gpu_program(
        """
import jax, jax.numpy as jnp
jnp.ones(4).block_until_ready()
load_driver(FAKES)
gpu = FakeGpu(FAKES)
with capture(RUN):
    train(gpu, 0, 2)
    jax.jit(lambda x: x + 1)(jnp.ones(4)).block_until_ready()
        """
    )
    assert counts(outcome) == (200, 200)
    assert outcome.document()["collectors"]["xla"]["used"]
    assert outcome.xplane().is_file()
    assert cuda(outcome)["chosen"] == "the program uses CUDA, and not through JAX"


def test_jax_on_a_gpu_keeps_the_devices(gpu_program: Callable[..., Any]) -> None:
    """JAX on CPU that says it runs on a GPU: who decides only asks."""
    outcome = gpu_program(
        """
import jax, jax.numpy as jnp
jnp.ones(4).block_until_ready()
jax.default_backend = lambda: "gpu"
load_driver(FAKES)
gpu = FakeGpu(FAKES)
with capture(RUN):
    train(gpu, 0, 1)
with capture(RUN + "-cupti", backend="cupti"):
    train(gpu, 1, 2)
        """
    )
    assert cuda(outcome)["why"] == "XLA's profiler has the devices: it knows the op of each of its kernels"
    assert outcome.document()["collectors"]["xla"]["used"]
    assert counts(outcome) == (0, 0)
    (path,) = (outcome.run.parent / (outcome.run.name + "-cupti") / "run").glob("*.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["collectors"]["cuda"]["chosen"] == "asked for"
    xla = document["collectors"]["xla"]
    assert xla["used"] or "cannot profile the host alone" in xla["error"]
