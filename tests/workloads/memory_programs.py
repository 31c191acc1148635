"""Compile small JAX programs and write their HLO and XLA's own sums of memory: ``python memory_programs.py FOLDER``.

Every program is a file NAME.hlo, a serialized HloProto with its buffer assignment; memory.json has {NAME: {argument,
output, alias, temp}} in bytes, what ``compiled.memory_analysis()`` says.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from compiled_programs import length_delimited
from jax import lax

LAYERS = 6


def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.sum(x * x)


def train(params: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    return [w - 0.1 * g for w, g in zip(params, jax.grad(loss)(params, x), strict=True)]


def scanned(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return lax.scan(lambda h, _: (jnp.tanh(h @ w), h), x, None, length=10)


def scanned_loss(w: jax.Array, x: jax.Array, wrap: Any = lambda body: body) -> jax.Array:
    return jnp.sum(lax.scan(wrap(lambda h, _: (jnp.tanh(h @ w), None)), x, None, length=10)[0])


def branched(i: jax.Array, x: jax.Array) -> jax.Array:
    return lax.cond(i > 0, lambda x: x @ x.T, lambda x: jnp.sin(x) @ x.T, x)


ones = jnp.ones
PARAMS = [ones((256, 256))] * LAYERS
X = ones((512, 256))
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...], tuple[int, ...]]] = {
    "gradients": (jax.grad(loss), (PARAMS, X), ()),
    "train": (train, (PARAMS, X), ()),
    "train_donated": (train, (PARAMS, X), (0,)),
    "scanned": (scanned, (PARAMS[0], X), ()),
    "scanned_gradients": (jax.grad(scanned_loss), (PARAMS[0], X), ()),
    "scanned_gradients_remat": (jax.grad(partial(scanned_loss, wrap=jax.checkpoint)), (PARAMS[0], X), ()),
    "branched": (branched, (jnp.int32(1), X), ()),
    "increment": (lambda x: x + 1, (X,), ()),
    "increment_donated": (lambda x: x + 1, (X,), (0,)),
    "passed_through": (lambda x, y: (x, x + y), (X, X), ()),
}


def main() -> None:
    folder = Path(sys.argv[1])
    sizes = {}
    for name, (function, arguments, donated) in PROGRAMS.items():
        compiled = jax.jit(function, donate_argnums=donated).lower(*arguments).compile()
        (module,) = compiled.runtime_executable().hlo_modules()
        said = compiled.memory_analysis()
        content = length_delimited(1, module.as_serialized_hlo_module_proto())
        content += length_delimited(3, said.serialized_buffer_assignment_proto)
        (folder / f"{name}.hlo").write_bytes(content)
        sizes[name] = {kind: getattr(said, f"{kind}_size_in_bytes") for kind in ("argument", "output", "alias", "temp")}
    (folder / "memory.json").write_text(json.dumps(sizes))


if __name__ == "__main__":
    main()
