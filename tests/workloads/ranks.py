"""A data-parallel JAX (CPU) training over gloo, one process per host, one thing wrong with it, recorded with the SDK.

    python ranks.py RUN_DIR [--mbit RATE | --plant CAUSE] [--cause-removed] [--steps N] [--loopback] [--skew SO]

The launcher makes the hosts (network.py), starts one rank on each, and takes them away again; with --loopback all ranks
are processes of this host. Every step takes a batch, trains the perceptron of planted.py's size on it and averages the
gradients: 4 MiB. What is wrong is one of

    --mbit RATE           what every host (with --slow-host the last one) may send, in Mbit/s. With --cause-removed
                          the ranks train at once, but keep their gradients to themselves: programs without collectives
    --plant input         the last rank waits SLOW_S for each batch, in `wrap_input`
    --plant loader        the same without an annotation
    --plant compute       the last rank prepares each batch on its device, TRAININGS times a step's work
    --plant late_capture  the last rank is recorded from step LATE_STEPS of the others' recording on

and --cause-removed takes a plant away. Where there is a core for every rank, each has its own: they share a network,
not a processor. With --skew (skewclock.c, compiled) the wall clock of each rank but the first is wrong by a third of a
second and 50 ppm more than that of the rank before it.

The run folder gets the recordings of all ranks, and measured.json with `step_s` (the slowest rank's), `planted_s` (the
last rank's stopwatch around what was planted, per step), `wall_s`, `others_cores` and `delayed_cores` as planted.py
writes them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cores import CoreSeconds, delayed_cores, others_cores, wait_until_quiet
from network import hosts, why_unavailable

ROWS, WIDTH, LAYERS = 256, 512, 4
PLANTED_ROWS = 64
"""Beside a plant, so that what a busy machine adds to the training is small beside it."""
WARM_UP_STEPS = 3
PLANTS = ("input", "loader", "compute", "late_capture")
SLOW_S = 0.06
TRAININGS = 6
"""What is computed for a batch takes so many times the operations of a step's training."""
LATE_STEPS = 4
SKEW_NS, SKEW_PPM = 333_000_000, 50
PORT = 45123
TIMEOUT_S = 150


def load_batch(batch: Any, seconds: float) -> Any:
    """A batch, after a wait of ``seconds``."""
    time.sleep(seconds)
    return batch


def batches(batch: Any, seconds: float) -> Iterator[Any]:
    """The same batch without end, a wait of ``seconds`` before each."""
    while True:
        yield load_batch(batch, seconds) if seconds else batch


def rank_main(options: argparse.Namespace) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= options.world:
        os.sched_setaffinity(0, {cores[options.rank]})
    import jax
    import jax.experimental.multihost_utils
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from xprof_py import capture, step, wrap_input

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(options.coordinator, options.world, options.rank)
    mesh = jax.make_mesh((options.world,), ("d",))

    def exchanged(value: Any) -> Any:
        return value if options.cause_removed and not options.plant else jax.lax.pmean(value, "d")

    def loss_of(parameters: list[Any], x: Any) -> Any:
        for weights in parameters:
            x = jnp.tanh(x @ weights)
        return (x**2).mean()

    def local_step(parameters: list[Any], x: Any) -> tuple[list[Any], Any]:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x)
        with jax.named_scope("average_gradients"):
            gradients = [exchanged(gradient) for gradient in gradients]
        return [w - 0.1 * g for w, g in zip(parameters, gradients, strict=True)], loss[None]

    # Unchecked: with the cause removed nothing keeps the parameters of the ranks equal.
    mapped = jax.shard_map(local_step, mesh=mesh, in_specs=(P(), P("d")), out_specs=(P(), P("d")), check_vma=False)
    train_step = jax.jit(mapped)
    random = np.random.default_rng(0)
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
    parameters = [
        jax.device_put((random.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32), everywhere)
        for _ in range(LAYERS)
    ]
    is_last = options.rank == options.world - 1
    planted = None if options.cause_removed or not is_last else options.plant
    device = jax.local_devices()[0]
    count = PLANTED_ROWS if options.plant else ROWS
    rows = np.ones((count, WIDTH), np.float32)
    identity = jax.device_put(np.eye(WIDTH, dtype=np.float32), device)

    @jax.jit
    def prepare(x: Any, weights: Any, times: Any) -> Any:
        return jax.lax.fori_loop(0, times, lambda _, y: y @ weights, x)

    # Forwards and backwards a layer is three products of the batch and a matrix.
    times = TRAININGS * 3 * LAYERS if planted == "compute" else 0
    step_s: list[float] = []
    planted_s: list[float] = []
    loader = iter(batches(rows, SLOW_S if planted in ("input", "loader") else 0.0))
    if options.plant == "input":
        loader = iter(wrap_input(loader))

    def train(numbers: range) -> None:
        nonlocal parameters
        for number in numbers:
            start = time.perf_counter()
            with step(number):
                local = jax.device_put(next(loader), device)
                if times:
                    start = time.perf_counter()
                    local = prepare(local, identity, times)
                    local.block_until_ready()
                planted_s.append(time.perf_counter() - start)
                batch = jax.make_array_from_single_device_arrays((count * options.world, WIDTH), split, [local])
                parameters, loss = train_step(parameters, batch)
                loss.block_until_ready()
            step_s.append(time.perf_counter() - start)

    train(range(WARM_UP_STEPS))
    if options.rank == 0:
        wait_until_quiet(options.wait_quiet)
    # All ranks begin the captured steps together, also where no collective would make them.
    jax.experimental.multihost_utils.sync_global_devices("captured")
    step_s.clear()
    planted_s.clear()
    end = WARM_UP_STEPS + options.steps
    begin = WARM_UP_STEPS + (LATE_STEPS if planted == "late_capture" else 0)
    train(range(WARM_UP_STEPS, begin))
    with capture(options.run_dir):
        before = CoreSeconds.now()
        train(range(begin, end))
        used = before.until_now()
    own = {"jax": jax.__version__, "step_s": step_s, "planted_s": planted_s, "cores": used}
    (options.run_dir / f"measured-{options.rank}.json").write_text(json.dumps(own))
    jax.distributed.shutdown()


def free_port(kind: socket.SocketKind) -> int:
    with socket.socket(socket.AF_INET, kind) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def environment(options: argparse.Namespace, rank: int, began_ns: int) -> dict[str, str]:
    """What the process of a rank gets: its clock, and on one host a port of its own for the clock probe."""
    added = {"XPROF_PY_PROBE_ADDRESS": options.probe} if options.probe else {}
    if options.skew:
        skew = {"SKEW_OFF_NS": rank * SKEW_NS, "SKEW_PPM": rank * SKEW_PPM, "SKEW_T0_NS": began_ns}
        added |= {"LD_PRELOAD": str(options.skew), **{name: str(value) for name, value in skew.items()}}
        # Its clock is none that others have: without a name of its own it would count as this machine's.
        added["XPROF_PY_CLOCK_DOMAIN"] = f"clock-{rank}"
    return {**os.environ, **added}


def launch(options: argparse.Namespace) -> int:
    """All ranks on hosts of their own, or all on this one; the worst exit status. A rank that fails ends the others."""
    options.run_dir.mkdir(parents=True, exist_ok=True)
    if options.loopback:
        options.probe = f"127.0.0.1:{free_port(socket.SOCK_DGRAM)}"
        return run_ranks(options, f"127.0.0.1:{free_port(socket.SOCK_STREAM)}", [()] * options.world)
    why = why_unavailable()
    if why:
        print(f"cannot make hosts: {why}", file=sys.stderr)
        return 1
    with hosts(options.world) as made:
        if options.mbit:
            for host in made[-1:] if options.slow_host else made:
                host.limit(options.mbit)
        return run_ranks(options, f"{made[0].address}:{PORT}", [host.prefix for host in made])


def run_ranks(options: argparse.Namespace, coordinator: str, prefixes: list[tuple[str, ...]]) -> int:
    """Start a process per rank, each with its prefix, and wait for all."""
    flags = ["--world", str(options.world), "--steps", str(options.steps), "--wait-quiet", str(options.wait_quiet)]
    flags += ["--cause-removed"] if options.cause_removed else []
    flags += ["--plant", options.plant] if options.plant else []
    flags += ["--coordinator", coordinator]
    began_ns = time.time_ns()
    with contextlib.ExitStack() as started:
        ranks: list[subprocess.Popen[bytes]] = []
        for number, prefix in enumerate(prefixes):
            command = [*prefix, sys.executable, __file__, str(options.run_dir), *flags, "--rank", str(number)]
            ranks.append(subprocess.Popen(command, env=environment(options, number, began_ns)))
            started.callback(ranks[-1].wait)
            started.callback(ranks[-1].kill)
        deadline = time.monotonic() + TIMEOUT_S
        while any(rank.poll() is None for rank in ranks):
            failed = [rank.returncode for rank in ranks if rank.returncode]
            if failed or time.monotonic() > deadline:
                return failed[0] if failed else 1
            time.sleep(0.05)
    worst = max(rank.returncode for rank in ranks)
    if worst == 0:
        write_measured(options)
    return worst


def write_measured(options: argparse.Namespace) -> None:
    """One measured.json of what the ranks wrote."""
    own = [json.loads((options.run_dir / f"measured-{rank}.json").read_text()) for rank in range(options.world)]
    cores = [rank["cores"] for rank in own]
    measured = {
        "name": options.plant or "collective",
        "cause_removed": options.cause_removed,
        "jax": own[0]["jax"],
        "step_s": [max(seconds) for seconds in zip(*(rank["step_s"] for rank in own), strict=True)],
        "planted_s": own[-1]["planted_s"],
        "wall_s": max(rank["wall_s"] for rank in cores),
        "others_cores": others_cores(cores),
        "delayed_cores": delayed_cores(cores),
    }
    (options.run_dir / "measured.json").write_text(json.dumps(measured, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--mbit", type=float, help="what every host may send, in Mbit/s; default: no limit")
    parser.add_argument("--slow-host", action="store_true", help="--mbit limits the last host alone")
    parser.add_argument("--plant", choices=PLANTS, help="what is wrong with the last rank; default: nothing")
    parser.add_argument("--cause-removed", action="store_true", help="without the plant; without one, no collectives")
    parser.add_argument("--loopback", action="store_true", help="all ranks on this host")
    parser.add_argument("--skew", type=Path, metavar="SO", help="skewclock.c, compiled: wrong clocks")
    parser.add_argument("--wait-quiet", type=float, default=0.0, metavar="S", help="wait S s for a quiet machine")
    parser.set_defaults(probe=None)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is None:
        sys.exit(launch(options))
    rank_main(options)


if __name__ == "__main__":
    main()
