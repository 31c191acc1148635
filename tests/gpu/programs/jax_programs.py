"""What JAX's client tells of its live programs, written as captures write it: jax_programs.py FILE."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

from xprof_py.collectors.hlo_modules import HloModules


@jax.jit
def double_it(x: jax.Array) -> jax.Array:
    return x + x


@jax.jit
def square(x: jax.Array) -> jax.Array:
    return x @ x


x = jnp.ones((64, 64))
jax.block_until_ready((double_it(x), square(x)))
modules = HloModules()
modules.take_all()
Path(sys.argv[1]).write_bytes(modules.xspace())
print(
    json.dumps(
        {
            "programs": ["jit_double_it", "jit_square"],
            "failed": modules.failed,
            "left_out": modules.left_out,
            "platform": jax.default_backend(),
        }
    )
)
