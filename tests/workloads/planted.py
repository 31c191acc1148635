"""Small single-process JAX (CPU) trainings, each with one planted bottleneck, recorded with the SDK.

    python planted.py NAME RUN_DIR [--steps N] [--cause-removed] [--no-annotations] [--no-sampler] [--no-steps]

Except in `compute`, `memory` and `layers`, whose bottleneck is the device's own work, and in `launches` and
`accumulation`, which are about many launches, every step also trains a perceptron for some 25 ms: that is what is left
of the step when the cause is gone, and it is the same program on the same shapes with the cause and without it.
--no-annotations leaves the program its steps alone: what the rest went into is for the stack sampler to say;
--no-sampler takes that away as well. --no-steps takes the steps away.
The run folder gets what ``capture`` records, and ``measured.json``: what the program itself knows about its steps, for
a test to compare with the answer that comes from the recording alone:

    step_s       seconds of each captured step, from the end of the step before it (the wait for its batch included)
    phases_s     the same steps split by the program's own stopwatch: {phase: seconds}
    monitoring   every jax.monitoring event inside the capture: [time_ns at its end, key, seconds or null, arguments]
    cost         flops and bytes of one step's program, from XLA's cost_analysis
    stop_s       seconds that leaving ``capture`` took
    wall_s       seconds from the begin of the first captured step to the end of the last one's work on the device
    others_cores cores that were busy with something else meanwhile, on average; null where the machine does not say
    delayed_cores cores that the program would have used but did not get, on average; null likewise

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
from cores import CoreSeconds, delayed_cores, others_cores, wait_until_quiet

from xprof_py import capture
from xprof_py import checkpoint as annotated_checkpoint
from xprof_py import input_wait as annotated_wait
from xprof_py import step as annotated_step
from xprof_py import trace as annotated_trace
from xprof_py import wrap_input as annotated_input

WARM_UP_STEPS = 2
ROWS, WIDTH, LAYERS = 256, 512, 4
SLOW_INPUT_S = 0.05
SHORT_INPUT_S = 0.01
IDLE_S = 0.03
SAVE_EVERY = 4
DEVICES = 4
TINY_CALLS = 400

random = np.random.default_rng(0)
annotate = True
mark_steps = True


def trace(name: str) -> Any:
    return annotated_trace(name) if annotate else nullcontext()


def step(number: int) -> Any:
    return annotated_step(number) if mark_steps else nullcontext()


def checkpoint() -> Any:
    return annotated_checkpoint() if annotate else nullcontext()


def input_wait() -> Any:
    return annotated_wait() if annotate else nullcontext()


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

    ``program`` and ``arguments``: the jitted function whose cost is that of one step. ``finish`` waits for what the
    steps left running. ``prepare(numbers)`` is called before the capture of these steps.
    """

    batch: Callable[[int], Any]
    train: Callable[[int, Any], None]
    program: Any
    arguments: tuple[Any, ...]
    finish: Callable[[], None] = lambda: None
    prepare: Callable[[range], None] = lambda _: None


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
    """A perceptron of LAYERS layers: the work that a step keeps when its cause is removed."""

    def __init__(self) -> None:
        self.parameters = [square(WIDTH) for _ in range(LAYERS)]
        self.loss: jax.Array | None = None

    def launch(self, _: int, x: Any) -> None:
        with trace("train"):
            self.parameters, self.loss = mlp_step(self.parameters, x)

    def wait(self) -> None:
        if self.loss is not None:
            self.loss.block_until_ready()

    def train(self, i: int, x: Any) -> None:
        with stopwatch.phase("compute"), trace("train"):
            self.launch(i, x)
            self.wait()

    def workload(self, batch: Callable[[int], Any], train: Callable[[int, Any], None], **more: Any) -> Workload:
        return Workload(batch, train, mlp_step, (self.parameters, ready_batch(0)), **more)


def ready_batch(_: int) -> np.ndarray:
    return np.ones((ROWS, WIDTH), np.float32)


def decode_slowly(_: int, seconds: float = SLOW_INPUT_S) -> np.ndarray:
    """A slow decoder: hashes in Python until its time is over."""
    end = time.perf_counter() + seconds
    batch = np.zeros((64, 256), np.float32)
    while time.perf_counter() < end:
        digest = hashlib.sha256(batch.tobytes()[:64]).digest()
        batch = batch + np.float32(np.frombuffer(digest, np.uint8).mean() * 1e-3)
    return ready_batch(0)


def load_batch(i: int) -> np.ndarray:
    return decode_slowly(i)


def wait_for_storage(_: int) -> np.ndarray:
    """A batch that arrives late: the loader waits and leaves the cores to the device, so that both overlap in full."""
    time.sleep(SLOW_INPUT_S)
    return ready_batch(0)


def wait_shortly(_: int) -> np.ndarray:
    time.sleep(SHORT_INPUT_S)
    return ready_batch(0)


def input_bound(removed: bool) -> Workload:
    """Every batch is decoded while the training waits for it, in a function whose name says so."""
    mlp = Mlp()
    return mlp.workload(ready_batch if removed else load_batch, mlp.train)


def neutral_input_bound(removed: bool) -> Workload:
    """The same, in a function whose name does not say what it is for."""
    mlp = Mlp()
    return mlp.workload(ready_batch if removed else decode_slowly, mlp.train)


def run_ahead(batch: Callable[[int], Any]) -> Workload:
    """The loop waits for no step: the device works on one while the host prepares the next."""
    mlp = Mlp()
    return mlp.workload(batch, mlp.launch, finish=mlp.wait)


def async_input_bound(removed: bool) -> Workload:
    """Run-ahead with batches that take longer than the device: what the device does not hide of them is the cause."""
    return run_ahead(ready_batch if removed else wait_for_storage)


def hidden_input(removed: bool) -> Workload:
    """Run-ahead with batches that take less than the device: nothing is gained without them."""
    return run_ahead(ready_batch if removed else wait_shortly)


def h2d_bound(removed: bool) -> Workload:
    """Every step puts 64 MiB on the device, trains on a part of them and gives their memory back.

    Removed: the arrays of all steps lie on the device before the capture. JAX on CPU takes an array that starts on a
    64-byte line without copying it, so this one starts 16 bytes after one.
    """
    mlp = Mlp()
    elements = 16 << 20
    raw = np.empty(elements + 32, np.float32)
    offset = -raw.ctypes.data % 64 // 4 + 4
    host_array = raw[offset : offset + elements]
    host_array[:] = 1.0
    first_batch = jax.jit(lambda values: values[: ROWS * WIDTH].reshape(ROWS, WIDTH))
    on_device: dict[int, jax.Array] = {}

    def put(i: int) -> jax.Array:
        host_array[0] = i
        return jax.device_put(host_array).block_until_ready()

    def prepare(numbers: range) -> None:
        if removed:
            on_device.update((i, put(i)) for i in numbers)

    def train(i: int, _: Any) -> None:
        with stopwatch.phase("h2d"), trace("put"):
            values = on_device.pop(i) if i in on_device else put(i)
        mlp.train(i, first_batch(values))

    return mlp.workload(lambda _: None, train, prepare=prepare)


def recompile_bound(removed: bool) -> Workload:
    """Every batch has a length that was never seen before, so every step compiles its program again.

    Removed: the programs for batches of the same lengths were compiled before the capture, but never run: the first
    run of a program is slower than the next, whenever it was compiled.
    """
    mlp = Mlp()

    def ragged_batch(i: int) -> np.ndarray:
        return np.ones((ROWS + i, WIDTH), np.float32)

    def prepare(numbers: range) -> None:
        if removed:
            for i in numbers:
                mlp_step.lower(mlp.parameters, ragged_batch(i)).compile()

    return mlp.workload(ragged_batch, mlp.train, prepare=prepare)


def memory_bound(removed: bool) -> Workload:
    """x / 2 + y over 192 MiB each: 0.17 flop per byte. Removed: over 64 KiB, which stay in the cache."""
    elements = (16 << 10) if removed else (48 << 20)
    x, y = (jnp.asarray(random.random(elements, np.float32)) for _ in range(2))
    # Donated: the result takes x's memory, no step pays for fresh pages.
    axpy = jax.jit(lambda u, v: 0.5 * u + v, donate_argnums=0)

    def train(_: int, __: Any) -> None:
        nonlocal x
        with stopwatch.phase("compute"), trace("train"):
            x = axpy(x, y)
            x.block_until_ready()

    return Workload(lambda _: None, train, axpy, (x, y))


def compute_bound(removed: bool) -> Workload:
    """A 1280 x 1280 matrix product: 320 flop per byte. Removed: 16 x 16."""
    matrix = square(16 if removed else 1280)
    product = jax.jit(lambda u: u @ u)

    def train(_: int, __: Any) -> None:
        with stopwatch.phase("compute"), trace("train"):
            product(matrix).block_until_ready()

    return Workload(lambda _: None, train, product, (matrix,))


class Saved:
    """16 MiB of parameters that can be pickled to the disk, synced and hashed."""

    def __init__(self) -> None:
        self.parameters = [square(1024) for _ in range(4)]
        self.folder = tempfile.TemporaryDirectory(prefix="planted-")

    def save(self) -> None:
        with stopwatch.phase("checkpoint"), checkpoint():
            self.save_checkpoint()

    def save_checkpoint(self) -> None:
        on_host = [np.array(parameter) for parameter in self.parameters]
        with open(Path(self.folder.name) / "checkpoint", "wb") as file:
            pickle.dump(on_host, file)
            file.flush()
            os.fsync(file.fileno())
        hashlib.sha256(b"".join(parameter.tobytes() for parameter in on_host)).hexdigest()


def saving(mlp: Mlp, every: int) -> Callable[[int, Any], None]:
    """The body of a step that trains, and saves in every ``every``-th step."""
    saved = Saved()

    def train(i: int, x: Any) -> None:
        mlp.train(i, x)
        if i % every == 0:
            saved.save()

    return train


def checkpoint_bound(removed: bool) -> Workload:
    """Every step saves."""
    mlp = Mlp()
    return mlp.workload(ready_batch, mlp.train if removed else saving(mlp, 1))


def rare_checkpoint(removed: bool) -> Workload:
    """Every SAVE_EVERY-th step saves; the others do not know the cause."""
    mlp = Mlp()
    return mlp.workload(ready_batch, mlp.train if removed else saving(mlp, SAVE_EVERY))


def input_and_checkpoint(removed: bool) -> Workload:
    """Two causes in every step: a save, and twice as long a wait for the batch, which is the one that is removed."""
    mlp = Mlp()
    batch = ready_batch if removed else lambda i: decode_slowly(i, 2 * SLOW_INPUT_S)
    return mlp.workload(batch, saving(mlp, 1))


def idle_bound(removed: bool) -> Workload:
    """Every step sleeps, with nothing recorded that would say why: the honest answer is `unknown`."""
    mlp = Mlp()

    def train(i: int, x: Any) -> None:
        mlp.train(i, x)
        if not removed:
            with stopwatch.phase("idle"):
                time.sleep(IDLE_S)

    return mlp.workload(ready_batch, train)


def scanned_layers(removed: bool) -> Workload:
    """A scan over 16 layers on DEVICES devices, each of which adds up 4 MiB over the devices. Removed: no sum."""
    mesh = jax.make_mesh((DEVICES,), ("d",))
    spec = jax.sharding.PartitionSpec("d")

    def layers(x: jax.Array) -> jax.Array:
        def layer(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            h = jnp.tanh(h)
            return (h if removed else jax.lax.pmean(h, "d") + 0.0 * h), None

        return jax.lax.scan(layer, x, None, length=16)[0]

    program = jax.jit(jax.shard_map(layers, mesh=mesh, in_specs=spec, out_specs=spec))
    x = jax.device_put(random.random((DEVICES * 1024, 1024), np.float32), jax.sharding.NamedSharding(mesh, spec))

    def train(_: int, __: Any) -> None:
        with stopwatch.phase("compute"), trace("train"):
            program(x).block_until_ready()

    return Workload(lambda _: None, train, program, (x,))


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


@jax.jit
def add_gradient(parameters: list[jax.Array], gradients: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    def loss_of(parameters: list[jax.Array]) -> jax.Array:
        h = x
        for weights in parameters:
            h = jnp.tanh(h @ weights)
        return (h**2).mean()

    return [sum_ + new for sum_, new in zip(gradients, jax.grad(loss_of)(parameters), strict=True)]


@jax.jit
def update(parameters: list[jax.Array], gradients: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
    """The parameters after a step, and gradients of zero for the next one."""
    moved = [w - 0.1 * g for w, g in zip(parameters, gradients, strict=True)]
    return moved, [jnp.zeros_like(g) for g in gradients]


def accumulation_bound(removed: bool) -> Workload:
    """Four gradients and an update are a step; every micro-batch is decoded while the training waits for it."""
    parameters = [square(256), square(256)]
    gradients = [jnp.zeros_like(w) for w in parameters]

    def load_batch() -> np.ndarray:
        batch = ready_batch(0) if removed else decode_slowly(0, SLOW_INPUT_S / 4)
        return batch[:64, :256]

    def train(_: int, __: Any) -> None:
        nonlocal parameters, gradients
        for _ in range(4):
            with stopwatch.phase("input"), input_wait():
                x = load_batch()
            with stopwatch.phase("compute"):
                gradients = add_gradient(parameters, gradients, x)
        with stopwatch.phase("compute"):
            parameters, gradients = update(parameters, gradients)
            jax.block_until_ready(parameters)

    return Workload(lambda _: None, train, add_gradient, (parameters, gradients, ready_batch(0)[:64, :256]))


WORKLOADS: dict[str, Callable[[bool], Workload]] = {
    "input": input_bound,
    "neutral_input": neutral_input_bound,
    "h2d": h2d_bound,
    "recompile": recompile_bound,
    "memory": memory_bound,
    "compute": compute_bound,
    "checkpoint": checkpoint_bound,
    "idle": idle_bound,
    "async_input": async_input_bound,
    "hidden_input": hidden_input,
    "rare_checkpoint": rare_checkpoint,
    "input_and_checkpoint": input_and_checkpoint,
    "layers": scanned_layers,
    "launches": launch_bound,
    "accumulation": accumulation_bound,
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
    workload.finish()


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
    parser.add_argument("--wait-quiet", type=float, default=0.0, metavar="S", help="wait S s for a quiet machine")
    parser.add_argument("--no-sampler", action="store_true", help="no Python stacks are sampled")
    parser.add_argument("--no-steps", action="store_true", help="the steps are not annotated")
    options = parser.parse_args()
    if options.name == "layers":
        jax.config.update("jax_num_cpu_devices", DEVICES)
    global annotate, mark_steps
    annotate = not options.no_annotations
    mark_steps = not options.no_steps

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
    captured = range(WARM_UP_STEPS, WARM_UP_STEPS + options.steps)
    train(workload, range(WARM_UP_STEPS))
    workload.prepare(captured)
    wait_until_quiet(options.wait_quiet)
    with capture(options.run_dir, stacks=False if options.no_sampler else "auto"):
        monitoring.clear()
        stopwatch.restart()
        before = CoreSeconds.now()
        train(workload, captured)
        cores = before.until_now()
        monitored = list(monitoring)
        leaving = time.perf_counter()
    stop_s = time.perf_counter() - leaving

    measured = {
        "name": options.name,
        "cause_removed": options.cause_removed,
        "jax": jax.__version__,
        "step_s": stopwatch.step_s,
        "wall_s": cores["wall_s"],
        "others_cores": others_cores([cores]),
        "delayed_cores": delayed_cores([cores]),
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
