"""A JAX (CPU) training whose compiled code does what the findings name: checkpointed layers, a scan over rows, a
transposed copy.

    python recomputing.py RUN_DIR

The answer is known by construction: the scan runs ROWS times a step, and every layer of the training is computed again.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

from xprof_py import capture, step

ROWS, LAYERS, STEPS = 256, 3, 6


@jax.checkpoint
def layer(x: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.tanh(jnp.tanh(x @ weights) @ weights.T)


@jax.jit
def gradients(parameters: list[jax.Array], x: jax.Array) -> Any:
    def loss(parameters: list[jax.Array]) -> jax.Array:
        h = x
        for weights in parameters:
            h = layer(h, weights)
        return (h**2).mean()

    return jax.grad(loss)(parameters)


@jax.jit
def scan_rows(x: jax.Array) -> Any:
    return jax.lax.scan(lambda total, row: (total + row.sum(), row * 2.0), 0.0, x)


@jax.jit
def transposed(x: jax.Array) -> jax.Array:
    return jnp.transpose(x.reshape(64, 16, 1024), (2, 0, 1))


def main() -> None:
    parameters = [jnp.ones((256, 256)) / 256] * LAYERS
    x, rows, large = jnp.ones((256, 256)), jnp.ones((ROWS, 512)), jnp.ones((1024, 1024))

    def work() -> None:
        jax.block_until_ready((gradients(parameters, x), scan_rows(rows), transposed(large)))

    work()
    with capture(sys.argv[1]):
        for number in range(STEPS):
            with step(number):
                work()


if __name__ == "__main__":
    main()
