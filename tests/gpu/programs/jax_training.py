"""A small JAX training with equal blocks and library calls; prints its programs' names: jax_training.py STEPS.

Marks steps by itself, so that nothing but XLA's own ranges comes from NVTX.
"""

import json
import sys

import jax
import jax.numpy as jnp

from xprof_py import step


@jax.jit
def train_step(weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        y = x
        for w in weights:
            y = jnp.tanh(y @ w) * 0.5 + jnp.sin(y)
        return (y * y).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value


weights = [jnp.eye(512) for _ in range(6)]
x = jnp.ones((256, 512))
value = None
for i in range(int(sys.argv[1])):
    with step(i):
        weights, value = train_step(weights, x)
jax.block_until_ready((weights, value))
print(json.dumps({"programs": ["jit_train_step"], "platform": jax.default_backend(), "jax": jax.__version__}))
