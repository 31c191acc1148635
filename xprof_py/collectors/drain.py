"""The end of a capture on the device: waiting until the work that was launched before it is done.

Dispatch is asynchronous: when the program leaves the block, its last steps may not have begun. Two things are waited
for: every array that the program holds, and a fence, a tiny program on each local device. An accelerator's stream and,
per launching thread, the CPU's queue run in order, so the fence ends after work whose results nobody holds any more,
such as that of a training function that has returned. (Measured on CPU: without the fence 1 of 3 runs is in the
trace.) On CPU, work that other threads launched and whose results are dropped is not covered.

Readiness is asked for, not blocked on: the wait can end, and signals get through.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass
from typing import Any

from xprof_py.rank import jax_backend_is_up

FENCE_NAME = "xprof_py_fence"


@dataclass(frozen=True)
class Drain:
    """How the end was reached: ``complete`` if nothing was left after ``waited_s``; ``arrays`` were not ready at once;
    ``fenced`` if the fence ran, else only arrays that the program holds were waited for."""

    complete: bool
    waited_s: float
    arrays: int
    fenced: bool


class Fence:
    """A tiny program on every local device, compiled before the capture so that its end need not compile.

    Compiled once per process; the program ``jit_xprof_py_fence`` is seen in XLA's profile, after the last step.
    """

    def __init__(self) -> None:
        self._launches: list[tuple[Any, Any]] = []

    def prepare(self) -> None:
        """Compile and run the program once on each local device of the default backend; does not wait for it.

        Does nothing while JAX traces the program's own function: what is called then becomes part of it.
        """
        if self._launches or not _is_outside_tracing():
            return
        jax = sys.modules["jax"]
        with contextlib.suppress(Exception):

            def xprof_py_fence(value: Any) -> Any:
                return value + 1

            program = jax.jit(xprof_py_fence)
            launches = [(program, value) for value in _fence_inputs(jax)]
            for launch, value in launches:
                launch(value)
            self._launches = launches

    def launch(self) -> list[Any]:
        """Put the fence behind the work launched so far; the arrays to wait for, none where it cannot be had."""
        if not _is_outside_tracing():
            return []
        for _ in range(2):
            self.prepare()
            try:
                return [launch(value) for launch, value in self._launches]
            except Exception:
                # The program may have thrown its backends away since; the fence is then made anew, once.
                self._launches = []
        return []


fence = Fence()


def drain(timeout_s: float) -> Drain | None:
    """Wait for the device work launched so far, at most ``timeout_s``; None where JAX has no devices."""
    if not jax_backend_is_up():
        return None
    started = time.monotonic()
    fences = fence.launch()
    pending = [array for array in (*_live_arrays(), *fences) if not _is_ready(array)]
    arrays = len(pending)
    pause_s = 0.0002
    while pending:
        if time.monotonic() - started > timeout_s:
            return Drain(False, time.monotonic() - started, arrays, bool(fences))
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.005)
        pending = [array for array in pending if not _is_ready(array)]
    return Drain(True, time.monotonic() - started, arrays, bool(fences))


def _fence_inputs(jax: Any) -> list[Any]:
    """One array per fence program: over all local devices where there are several, and on CPU one on each as well.

    CPU runs a program of one device on the launching thread's queue and a program of several on a queue per device, and
    neither waits for the other.
    """
    # JAX depends on numpy; taken from there, it stays out of programs that have no JAX.
    numpy = sys.modules["numpy"]
    devices = jax.local_devices()
    arrays = []
    if len(devices) == 1 or devices[0].platform == "cpu":
        arrays = [jax.device_put(numpy.ones((1,), "float32"), device) for device in devices]
    if len(devices) > 1:
        mesh = jax.sharding.Mesh(numpy.array(devices), (FENCE_NAME,))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(FENCE_NAME))
        arrays.append(jax.device_put(numpy.ones((len(devices),), "float32"), sharding))
    return arrays


def _is_outside_tracing() -> bool:
    clean = getattr(sys.modules.get("jax._src.core"), "trace_state_clean", None)
    try:
        return bool(clean()) if clean is not None else False
    except Exception:
        return False


def _live_arrays() -> list[Any]:
    jax = sys.modules["jax"]
    bridge = sys.modules["jax._src.xla_bridge"]
    platforms = list(getattr(bridge, "_backends", None) or [None])
    arrays: list[Any] = []
    for platform in platforms:
        with contextlib.suppress(Exception):
            arrays.extend(jax.live_arrays(platform))
    return arrays


def _is_ready(array: Any) -> bool:
    try:
        return bool(array.is_ready())
    except Exception:
        # Deleted or donated meanwhile, or its computation failed: nothing is left to wait for.
        return True
