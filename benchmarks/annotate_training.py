"""What annotations cost a whole training: CPU time of a step with them, off and on, and of the same without any.

    python benchmarks/annotate_training.py [--rounds 40]

A small training of JAX on the CPU (two layers, a compiled step of some milliseconds), whose loop waits for its input,
is marked as a step, and has ten further spans, three of them with arguments. Three variants of the loop run by turns,
in an order that is shuffled every round:

without  the same Python without any annotation
off      annotated; nothing records
on       inside `capture(...)` of the annotations alone (no XLA, no stacks: those have costs of their own)

Given is the CPU time of the thread that trains and that of the whole process (drainer and XLA's threads included), and
what the annotations should cost by their number: their count times their own cost, measured as annotate.py does.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from interleaved import Case, Spread, measure

import xprof_py
from xprof_py import _native, input_wait, step, trace

STEPS = 40
PLAIN_SPANS, SPANS_WITH_ARGUMENTS = 8, 3
"""Of a step beside itself; the wait for its input is among the plain ones."""


HOST_ALONE: dict[str, Any] = dict.fromkeys(("xla", "cuda", "stacks", "power", "probe"), False)


def batches(count: int) -> Iterator[Any]:
    import numpy as np

    made = np.ones((256, 256), np.float32)
    for _ in range(count):
        yield made


def make_train_step() -> Callable[[Any, Any], Any]:
    import jax
    import jax.numpy as jnp

    def loss(weights: Any, batch: Any) -> Any:
        hidden = jnp.tanh(batch @ weights[0])
        return jnp.mean((hidden @ weights[1] - batch) ** 2)

    @jax.jit
    def train_step(weights: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, batch)
        return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)], value

    return train_step


def without(train_step: Callable[[Any, Any], Any], weights: Any, steps: int) -> Any:
    source = batches(steps)
    for _ in range(steps):
        batch = next(source)
        for _ in range(PLAIN_SPANS - 1):
            pass
        for _ in range(SPANS_WITH_ARGUMENTS - 1):
            pass
        weights, value = train_step(weights, batch)
        value.block_until_ready()
    return weights


def annotated(train_step: Callable[[Any, Any], Any], weights: Any, steps: int) -> Any:
    source = batches(steps)
    for i in range(steps):
        with step(i, tokens=256):
            with input_wait():
                batch = next(source)
            for _ in range(PLAIN_SPANS - 1):
                with trace("callback"):
                    pass
            for k in range(SPANS_WITH_ARGUMENTS - 1):
                with trace("layer", number=k):
                    pass
            with trace("train step", layers=2):
                weights, value = train_step(weights, batch)
                value.block_until_ready()
    return weights


def own_costs(rounds: int, folder: Path) -> dict[str, dict[str, float]]:
    """ns of each form, off and on."""
    cases = [
        Case("plain", "with trace('region'): pass", {"trace": trace}),
        Case("argument", "with trace('region', layer=3): pass", {"trace": trace}),
        Case("step", "with step(i, tokens=256): pass", {"step": step}),
    ]
    off = measure(cases, rounds)
    _native.recorder_start(folder / "own.xpr")
    on = measure(cases, rounds, lambda: time.sleep(0.06))
    _native.recorder_stop()
    clock_ns = Spread.of(measure([Case("clock", "read(3)", {"read": time.clock_gettime_ns})], rounds)["clock"]).middle
    costs = {
        state: {name: Spread.of(found).middle for name, found in samples.items()}
        for state, samples in (("off", off), ("on", on))
    }
    # A step of some milliseconds reads the CPU clock of its thread as it ends, which an empty one does not.
    costs["on"]["step"] += clock_ns
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds

    import jax

    train_step = make_train_step()
    weights = [jax.numpy.full((256, 256), 0.01) for _ in range(2)]
    weights = annotated(train_step, without(train_step, weights, STEPS), STEPS)
    folder = Path(tempfile.mkdtemp(prefix="xprof_py-annotate-"))
    kinds: dict[str, Callable[..., Any]] = {"without": without, "off": annotated, "on": annotated}
    thread: dict[str, list[float]] = {name: [] for name in kinds}
    process: dict[str, list[float]] = {name: [] for name in kinds}
    order = list(kinds)
    try:
        for number in range(rounds):
            random.shuffle(order)
            for name in order:
                recording = xprof_py.capture(
                    folder / f"{number}", xla=False, cuda=False, stacks=False, power=False, probe=False
                )
                with recording if name == "on" else nullcontext():
                    weights = kinds[name](train_step, weights, 4)  # what only the first events cost: a ring, new names
                    time.sleep(0.06)
                    began = time.thread_time_ns(), time.process_time_ns()
                    weights = kinds[name](train_step, weights, STEPS)
                    time.sleep(0.06)  # a round of the drainer
                    thread[name].append((time.thread_time_ns() - began[0]) / STEPS)
                    process[name].append((time.process_time_ns() - began[1]) / STEPS)
        costs = own_costs(rounds, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"\na training of JAX {jax.__version__}, {PLAIN_SPANS} plain spans, {SPANS_WITH_ARGUMENTS} with an argument and"
        f" a step's own in each step, {rounds} rounds of {STEPS} steps"
    )
    print(f"  {'us of CPU time a step':24}{'its thread':>12}{'added':>26}{'by number':>12}{'process':>10}{'added':>26}")
    for name in kinds:
        row = f"  {name:24}{Spread.of(thread[name]).middle / 1e3:12.1f}"
        if name != "without":
            cost = costs[name]
            expected = PLAIN_SPANS * cost["plain"] + SPANS_WITH_ARGUMENTS * cost["argument"] + cost["step"]
            row += f"{added(thread, name):>26}{expected / 1e3:12.2f}"
        else:
            row += " " * 38
        row += f"{Spread.of(process[name]).middle / 1e3:10.1f}"
        print(row + (f"{added(process, name):>26}" if name != "without" else ""))


def added(samples: dict[str, list[float]], name: str) -> str:
    """What a variant adds to the one without annotations, microseconds, of the same rounds."""
    spread = Spread.of([(a - b) / 1e3 for a, b in zip(samples[name], samples["without"], strict=True)])
    return f"{spread.middle:.1f} ({spread.low:.1f} - {spread.high:.1f})"


if __name__ == "__main__":
    main()
