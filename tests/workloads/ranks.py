"""A data-parallel JAX (CPU) training over gloo, one process per host, its network made slow, recorded with the SDK.

    python ranks.py RUN_DIR [--world 2] [--steps N] [--mbit RATE] [--cause-removed]

The launcher makes the hosts (network.py), starts one rank on each, and takes them away again. Every step trains the
perceptron of planted.py's size on the rank's own batch and averages the gradients: 4 MiB. With --cause-removed the same
ranks train at the same time on the same batches, but keep their gradients to themselves: same programs without the
collectives. Where there is a core for every rank, each has its own: they share a network, not a processor.

The run folder gets the recordings of all ranks, and measured.json with `step_s` (the slowest rank's), `wall_s`,
`others_cores` and `delayed_cores` as planted.py writes them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cores import CoreSeconds, delayed_cores, others_cores, wait_until_quiet
from network import hosts, why_unavailable

ROWS, WIDTH, LAYERS = 256, 512, 4
WARM_UP_STEPS = 3
PORT = 45123
TIMEOUT_S = 150


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

    from xprof_py import capture, step

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(options.coordinator, options.world, options.rank)
    mesh = jax.make_mesh((options.world,), ("d",))

    def exchanged(value: Any) -> Any:
        return value if options.cause_removed else jax.lax.pmean(value, "d")

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
    batch = jax.make_array_from_process_local_data(split, np.ones((ROWS, WIDTH), np.float32))
    step_s: list[float] = []

    def train(numbers: range) -> None:
        nonlocal parameters
        for number in numbers:
            start = time.perf_counter()
            with step(number):
                parameters, loss = train_step(parameters, batch)
                loss.block_until_ready()
            step_s.append(time.perf_counter() - start)

    train(range(WARM_UP_STEPS))
    if options.rank == 0:
        wait_until_quiet(options.wait_quiet)
    # All ranks begin the captured steps together, also where no collective would make them.
    jax.experimental.multihost_utils.sync_global_devices("captured")
    step_s.clear()
    with capture(options.run_dir):
        before = CoreSeconds.now()
        train(range(WARM_UP_STEPS, WARM_UP_STEPS + options.steps))
        used = before.until_now()
    own = {"jax": jax.__version__, "step_s": step_s, "cores": used}
    (options.run_dir / f"measured-{options.rank}.json").write_text(json.dumps(own))
    jax.distributed.shutdown()


def launch(options: argparse.Namespace) -> int:
    """All ranks on hosts of their own; the worst exit status. A rank that fails ends the others."""
    why = why_unavailable()
    if why:
        print(f"cannot make hosts: {why}", file=sys.stderr)
        return 1
    options.run_dir.mkdir(parents=True, exist_ok=True)
    flags = ["--world", str(options.world), "--steps", str(options.steps), "--wait-quiet", str(options.wait_quiet)]
    flags += ["--cause-removed"] if options.cause_removed else []
    with hosts(options.world) as made:
        if options.mbit:
            for host in made:
                host.limit(options.mbit)
        own = ["--coordinator", f"{made[0].address}:{PORT}"]
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for number, host in enumerate(made):
                command = [sys.executable, __file__, str(options.run_dir), *flags, *own, "--rank", str(number)]
                ranks.append(subprocess.Popen([*host.prefix, *command]))
            deadline = time.monotonic() + TIMEOUT_S
            while any(rank.poll() is None for rank in ranks):
                failed = [rank.returncode for rank in ranks if rank.returncode]
                if failed or time.monotonic() > deadline:
                    return failed[0] if failed else 1
                time.sleep(0.05)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    worst = max(rank.returncode for rank in ranks)
    if worst == 0:
        write_measured(options)
    return worst


def write_measured(options: argparse.Namespace) -> None:
    """One measured.json of what the ranks wrote."""
    own = [json.loads((options.run_dir / f"measured-{rank}.json").read_text()) for rank in range(options.world)]
    cores = [rank["cores"] for rank in own]
    measured = {
        "name": "collective",
        "cause_removed": options.cause_removed,
        "jax": own[0]["jax"],
        "step_s": [max(seconds) for seconds in zip(*(rank["step_s"] for rank in own), strict=True)],
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
    parser.add_argument("--cause-removed", action="store_true", help="the same programs without collectives")
    parser.add_argument("--wait-quiet", type=float, default=0.0, metavar="S", help="wait S s for a quiet machine")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is None:
        sys.exit(launch(options))
    rank_main(options)


if __name__ == "__main__":
    main()
