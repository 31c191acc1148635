"""Small single-process JAX (CPU) trainings, each with one planted bottleneck, recorded with the SDK.

    python planted.py NAME RUN_DIR [--steps N] [--cause-removed] [--no-annotations]

--no-annotations leaves the program its steps alone: what the rest went into is for the stack sampler to say.
The run folder gets what ``capture`` records, and ``measured.json``: what the program itself knows about its steps, for
a test to compare with the answer that comes from the recording alone:

    step_s       seconds of each captured step, from the end of the step before it (the wait for its batch included)
    phases_s     the same steps split by the program's own stopwatch: {phase: seconds}
    monitoring   every jax.monitoring event inside the capture: [time_ns at its end, key, seconds or null, arguments]
    cost         flops and bytes of one step's program, from XLA's cost_analysis
    stop_s       seconds that leaving ``capture`` took

The first two steps run before the capture, so that what they compile is not part of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from xprof_py import capture, step
from xprof_py import checkpoint as annotated_checkpoint
from xprof_py import trace as annotated_trace
from xprof_py import wrap_input as annotated_input

WARM_UP_STEPS = 2
SLOW_INPUT_S = 0.05
IDLE_S = 0.03
TINY_CALLS = 400

random = np.random.default_rng(0)
annotate = True


def trace(name: str) -> Any:
    return annotated_trace(name) if annotate else nullcontext()


def checkpoint() -> Any:
    return annotated_checkpoint() if annotate else nullcontext()


def wrap_input(batches: Any) -> Any:
    return annotated_input(batches) if annotate else batches


class Stopwatch:
    """The program's own view of where its time goes: one dict of phase seconds per step."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.step_s: list[float] = []
        self._current: dict[str, float] = {}
        self._step_start = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._current[name] = self._current.get(name, 0.0) + time.perf_counter() - start

    def end_step(self) -> None:
        now = time.perf_counter()
        self.step_s.append(now - self._step_start)
        self.steps.append(self._current)
        self._current, self._step_start = {}, now


stopwatch = Stopwatch()


@dataclass(frozen=True)
class Workload:
    """``batch(i)`` makes the batch of step i (inside the loader), ``train(i, batch)`` is the body of the step.

    ``program`` and ``arguments``: the jitted function whose cost is that of one step.
    """

    batch: Callable[[int], Any]
    train: Callable[[int, Any], None]
    program: Any
    arguments: tuple[Any, ...]


def square(n: int) -> jax.Array:
    """A random float32 matrix [n, n] whose powers neither explode nor vanish."""
    return jnp.asarray(random.standard_normal((n, n)).astype(np.float32) / np.sqrt(n))


@jax.jit
def mlp_step(parameters: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    def loss_of(parameters: list[jax.Array]) -> jax.Array:
        h = x
        for weights in parameters:
            h = jnp.tanh(h @ weights)
        return (h**2).mean()

    loss, gradients = jax.value_and_grad(loss_of)(parameters)
    return [w - 0.1 * g for w, g in zip(parameters, gradients, strict=True)], loss


class Mlp:
    """A two-layer perceptron that trains in well under a millisecond: never the bottleneck itself."""

    def __init__(self) -> None:
        self.parameters = [square(256), square(256)]

    def train(self, _: int, x: Any) -> None:
        with stopwatch.phase("compute"), trace("train"):
            self.parameters, loss = mlp_step(self.parameters, x)
            loss.block_until_ready()


def small_batch(_: int) -> np.ndarray:
    return np.ones((64, 256), np.float32)


def decode_slowly(_: int) -> np.ndarray:
    """A slow decoder: hashes in Python until SLOW_INPUT_S is over."""
    end = time.perf_counter() + SLOW_INPUT_S
    batch = np.zeros((64, 256), np.float32)
    while time.perf_counter() < end:
        digest = hashlib.sha256(batch.tobytes()[:64]).digest()
        batch = batch + np.float32(np.frombuffer(digest, np.uint8).mean() * 1e-3)
    return batch


def load_batch(i: int) -> np.ndarray:
    return decode_slowly(i)


def input_bound(removed: bool) -> Workload:
    """Every batch is decoded while the training waits for it, in a function whose name says so."""
    mlp = Mlp()
    return Workload(small_batch if removed else load_batch, mlp.train, mlp_step, (mlp.parameters, small_batch(0)))


def neutral_input_bound(removed: bool) -> Workload:
    """The same, in a function whose name does not say what it is for."""
    mlp = Mlp()
    return Workload(small_batch if removed else decode_slowly, mlp.train, mlp_step, (mlp.parameters, small_batch(0)))


def h2d_bound(removed: bool) -> Workload:
    """Every step puts 64 MiB on the device; the program then reads 256 numbers of it.

    JAX on CPU takes an array that starts on a 64-byte line without copying it, so this one starts 16 bytes after one.
    """
    elements = 16 << 20
    raw = np.empty(elements + 32, np.float32)
    offset = -raw.ctypes.data % 64 // 4 + 4
    host_array = raw[offset : offset + elements]
    host_array[:] = 1.0
    first_sum = jax.jit(lambda values: values[:256].sum())
    resident = jax.device_put(host_array)

    def train(i: int, _: Any) -> None:
        host_array[0] = i
        with stopwatch.phase("h2d"), trace("put"):
            values = resident if removed else jax.device_put(host_array)
            values.block_until_ready()
        with stopwatch.phase("compute"), trace("train"):
            first_sum(values).block_until_ready()

    return Workload(lambda _: None, train, first_sum, (resident,))


def recompile_bound(removed: bool) -> Workload:
    """Every batch has a length that was never seen before, so every step compiles its program again."""
    mlp = Mlp()

    def ragged_batch(i: int) -> np.ndarray:
        rows = 64 if removed else 44 + 8 * i
        return np.ones((rows, 256), np.float32)

    return Workload(ragged_batch, mlp.train, mlp_step, (mlp.parameters, small_batch(0)))


def memory_bound(removed: bool) -> Workload:
    """x / 2 + y over 64 MiB each: 0.17 flop per byte. Removed: over 64 KiB, which stay in the cache."""
    elements = (16 << 10) if removed else (16 << 20)
    x, y = (jnp.asarray(random.standard_normal(elements).astype(np.float32)) for _ in range(2))
    # Donated: the result takes x's memory, no step pays for fresh pages.
    axpy = jax.jit(lambda u, v: 0.5 * u + v, donate_argnums=0)

    def train(_: int, __: Any) -> None:
        nonlocal x
        with stopwatch.phase("compute"), trace("train"):
            x = axpy(x, y)
            x.block_until_ready()

    return Workload(lambda _: None, train, axpy, (x, y))


def compute_bound(removed: bool) -> Workload:
    """A 768 x 768 matrix product: 192 flop per byte. Removed: 16 x 16."""
    matrix = square(16 if removed else 768)
    product = jax.jit(lambda u: u @ u)

    def train(_: int, __: Any) -> None:
        with stopwatch.phase("compute"), trace("train"):
            product(matrix).block_until_ready()

    return Workload(lambda _: None, train, product, (matrix,))


def checkpoint_bound(removed: bool) -> Workload:
    """Every step pickles 16 MiB of parameters to the disk, syncs and hashes them."""
    mlp = Mlp()
    saved = [square(1024) for _ in range(4)]
    folder = tempfile.TemporaryDirectory(prefix="planted-")

    def save() -> None:
        on_host = [np.array(parameter) for parameter in saved]
        with open(Path(folder.name) / "checkpoint", "wb") as file:
            pickle.dump(on_host, file)
            file.flush()
            os.fsync(file.fileno())
        hashlib.sha256(b"".join(parameter.tobytes() for parameter in on_host)).hexdigest()

    def train(i: int, x: Any) -> None:
        mlp.train(i, x)
        if not removed:
            with stopwatch.phase("checkpoint"), checkpoint():
                save()

    return Workload(small_batch, train, mlp_step, (mlp.parameters, small_batch(0)))


def idle_bound(removed: bool) -> Workload:
    """Every step sleeps, with nothing recorded that would say why: the honest answer is `unknown`."""
    mlp = Mlp()

    def train(i: int, x: Any) -> None:
        mlp.train(i, x)
        if not removed:
            with stopwatch.phase("idle"):
                time.sleep(IDLE_S)

    return Workload(small_batch, train, mlp_step, (mlp.parameters, small_batch(0)))


def launch_bound(removed: bool) -> Workload:
    """Every step calls a tiny jitted function TINY_CALLS times. Removed: one program does the same in a scan."""
    add = jax.jit(lambda values: values + 1.0)
    all_at_once = jax.jit(lambda values: jax.lax.scan(lambda v, _: (v + 1.0, None), values, length=TINY_CALLS)[0])
    start = jnp.zeros((8,), jnp.float32)

    def train(_: int, __: Any) -> None:
        values = start
        with stopwatch.phase("dispatch"), trace("train"):
            if removed:
                values = all_at_once(values)
            else:
                for _call in range(TINY_CALLS):
                    values = add(values)
        with stopwatch.phase("wait"):
            values.block_until_ready()

    return Workload(lambda _: None, train, add, (start,))


WORKLOADS: dict[str, Callable[[bool], Workload]] = {
    "input": input_bound,
    "neutral_input": neutral_input_bound,
    "h2d": h2d_bound,
    "recompile": recompile_bound,
    "memory": memory_bound,
    "compute": compute_bound,
    "checkpoint": checkpoint_bound,
    "idle": idle_bound,
    "launches": launch_bound,
}


class Batches:
    """The loader: batch i is made when the training asks for it."""

    def __init__(self, workload: Workload, numbers: range) -> None:
        self.workload = workload
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Any]:
        for i in self.numbers:
            with stopwatch.phase("input"):
                batch = self.workload.batch(i)
            yield batch


def train(workload: Workload, numbers: range) -> None:
    """The training loop: the same inside and outside of a capture."""
    for number, batch in enumerate(wrap_input(Batches(workload, numbers)), numbers.start):
        with step(number):
            workload.train(number, batch)
        stopwatch.end_step()


def cost_of(workload: Workload) -> dict[str, float]:
    cost = workload.program.lower(*workload.arguments).compile().cost_analysis()
    return {name: float(cost.get(name, -1)) for name in ("flops", "bytes accessed")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=WORKLOADS)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--cause-removed", action="store_true", help="the same training without its planted bottleneck")
    parser.add_argument("--no-annotations", action="store_true", help="only the steps are annotated")
    options = parser.parse_args()
    global annotate
    annotate = not options.no_annotations

    monitoring: list[tuple[int, str, float | None, dict[str, str]]] = []

    def texts(arguments: dict[str, Any]) -> dict[str, str]:
        return {key: str(value) for key, value in arguments.items()}

    def on_event(key: str, **arguments: Any) -> None:
        monitoring.append((time.time_ns(), key, None, texts(arguments)))

    def on_duration(key: str, seconds: float, **arguments: Any) -> None:
        monitoring.append((time.time_ns(), key, seconds, texts(arguments)))

    jax.monitoring.register_event_listener(on_event)
    jax.monitoring.register_event_duration_secs_listener(on_duration)

    workload = WORKLOADS[options.name](options.cause_removed)
    cost = cost_of(workload)
    train(workload, range(WARM_UP_STEPS))
    with capture(options.run_dir):
        monitoring.clear()
        stopwatch.restart()
        train(workload, range(WARM_UP_STEPS, WARM_UP_STEPS + options.steps))
        monitored = list(monitoring)
        leaving = time.perf_counter()
    stop_s = time.perf_counter() - leaving

    measured = {
        "name": options.name,
        "cause_removed": options.cause_removed,
        "jax": jax.__version__,
        "step_s": stopwatch.step_s,
        "phases_s": stopwatch.steps,
        "stop_s": stop_s,
        "cost": cost,
        "monitoring": monitored,
    }
    (options.run_dir / "measured.json").write_text(json.dumps(measured, indent=1))
    phases = {name: np.median([step.get(name, 0.0) for step in stopwatch.steps]) for name in stopwatch.steps[0]}
    shown = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in phases.items())
    print(f"{options.name}: median step {np.median(stopwatch.step_s) * 1e3:.2f} ms ({shown})")


if __name__ == "__main__":
    main()
