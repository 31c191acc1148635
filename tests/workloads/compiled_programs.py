"""Compile small JAX programs and write their HLO and XLA's own cost analysis: ``python compiled_programs.py FOLDER``.

Every program is a file NAME.hlo, a serialized HloProto; costs.json has {NAME: {flops, "bytes accessed", ...}}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax import lax


def convolution(images: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(images, kernel, (1, 1), "SAME")


def strided(images: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(images, kernel, (2, 2), "SAME", rhs_dilation=(2, 1), feature_group_count=2).sum()


def elementwise(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(a > b, jnp.floor(a) * b - a.astype(jnp.int32), jnp.clip(a, 0, 1) / b)


def block(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
    h = jax.nn.gelu(x @ w1) @ w2
    h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-5)
    q = h.reshape(4, 8, 64, 16)
    return (jax.nn.softmax(q @ q.swapaxes(-1, -2) / 4.0) @ q).sum()


def scanned(x: jax.Array) -> jax.Array:
    return lax.scan(lambda carry, _: (jnp.tanh(carry @ carry), None), x, None, length=10)[0]


def unrolled(x: jax.Array) -> jax.Array:
    for _ in range(10):
        x = jnp.tanh(x @ x)
    return x


ones = jnp.ones
IMAGES = ones((4, 8, 33, 20))
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "dot": (lambda x, w: x @ w, (ones((256, 128)), ones((128, 64)))),
    "dot_bf16": (lambda x, w: x @ w, (ones((256, 128), jnp.bfloat16), ones((128, 64), jnp.bfloat16))),
    "batched_dot": (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), (ones((6, 32, 48)), ones((6, 48, 16)))),
    "convolution": (convolution, (ones((2, 3, 16, 16)), ones((8, 3, 3, 3)))),
    "convolution_gradients": (jax.grad(strided, argnums=(0, 1)), (IMAGES, ones((16, 4, 3, 3)))),
    "axpy": (lambda u, v: 0.5 * u + v, (ones(1 << 16), ones(1 << 16))),
    "elementwise": (elementwise, (ones((1000, 8)), ones((1000, 8)) * 2)),
    "softmax": (jax.nn.softmax, (ones((128, 512)),)),
    "sum": (lambda u: (u * 2).sum(0), (ones((512, 512)),)),
    "max_pool": (
        lambda a: lax.reduce_window(a, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
        (ones((2, 16, 16, 4)),),
    ),
    "block_gradients": (jax.grad(block, argnums=(1, 2)), (ones((32, 1024)), ones((1024, 256)), ones((256, 1024)))),
    "scanned": (scanned, (ones((64, 64)),)),
    "unrolled": (unrolled, (ones((64, 64)),)),
}


def length_delimited(field: int, content: bytes) -> bytes:
    """A protobuf field that holds a message."""
    length, size = b"", len(content)
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([field << 3 | 2]) + length + bytes([size]) + content


def main() -> None:
    folder = Path(sys.argv[1])
    costs = {}
    for name, (function, arguments) in PROGRAMS.items():
        compiled = jax.jit(function).lower(*arguments).compile()
        (module,) = compiled.runtime_executable().hlo_modules()
        content = length_delimited(1, module.as_serialized_hlo_module_proto())
        (folder / f"{name}.hlo").write_bytes(content)
        costs[name] = {key: float(value) for key, value in compiled.cost_analysis().items() if "{" not in key}
    (folder / "costs.json").write_text(json.dumps(costs))


if __name__ == "__main__":
    main()
