"""A live program that compiles again for every reason there is; each is told from the recording alone."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from xprof_py.postprocess.fleet.analysis import analyse

pytestmark = pytest.mark.live

PROGRAM = """
import functools, sys
import jax, jax.numpy as jnp
from xprof_py import capture, step

@jax.jit
def widened(a, b):
    return a * 2 + b

@functools.partial(jax.jit, static_argnums=1)
def scaled(x, factor):
    return (x * factor).sum()

@jax.jit
def layer(p, x):
    return jnp.tanh(p[0] @ x) + p[1]

@jax.jit
def shifted(x, by):
    return x + by

@jax.jit
def update(w, x):
    loss, g = jax.value_and_grad(lambda w: (jax.checkpoint(lambda w: jnp.tanh(jnp.tanh(x @ w) @ w))(w) ** 2).sum())(w)
    return w - 0.1 * g / (jnp.abs(g) + 1), loss

x, short = jnp.ones((8, 8)), jnp.ones((8, 8), jnp.bfloat16)
p, mixed = [jnp.ones((4, 8)), jnp.ones((4, 8))], [jnp.ones((4, 8), jnp.bfloat16), jnp.ones((4, 8))]
one, w, batch = jnp.float32(1), jnp.ones((64, 64)), jnp.ones((32, 64))
jax.block_until_ready((short, mixed))

with capture(sys.argv[1]):
    for i in range(6):
        with step(i):
            a = widened(x, x if i < 1 else short)
            b = scaled(x, 2 if i < 2 else 3)
            c = layer(p if i < 3 else mixed, x)
            d = shifted(x, one if i < 4 else 1.0)
            e = jax.jit(lambda v: v * 3.5)(x) if i in (0, 5) else None
            w, loss = update(w, batch)
            jax.block_until_ready((a, b, c, d, e, w, loss))
"""


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("recompiles") / "run"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XPROF_PY_", "JAX_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={**environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return analyse([folder]).summary


def recompiles(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """function -> its one recompile."""
    found = {row["function"]: row for row in summary["compiles"]["recompiles"]}
    assert len(found) == len(summary["compiles"]["recompiles"]) == 5
    return found


@pytest.mark.parametrize(
    ("function", "step", "kind", "cause"),
    [
        ("widened", 1, "arguments", {"argument": "b", "was": "f32[8,8]", "is": "bf16[8,8]"}),
        ("scaled", 2, "same_arguments", None),
        ("layer", 3, "arguments", {"argument": "p[0]", "was": "f32[4,8]", "is": "bf16[4,8]"}),
        ("shifted", 4, "same_program", None),
        ("<lambda>", 5, "same_program", None),
    ],
)
def test_each_recompile_tells_its_cause(
    summary: dict[str, Any], function: str, step: int, kind: str, cause: dict[str, str] | None
) -> None:
    row = recompiles(summary)[function]
    assert (row["step"], row["kind"], row["cause"]) == (step, kind, [] if cause is None else [cause])
    assert row["seconds"] > 0


def test_the_evidence_says_it_in_words(summary: dict[str, Any]) -> None:
    assert summary["verdict"]["bottleneck"] == "compiler"
    texts = [row["text"] for row in summary["verdict"]["evidence"]]
    assert any(
        "`layer` was compiled once in step 3 because `p[0]` changed from f32[4,8] to bf16[4,8]" in t for t in texts
    )
    assert any(
        "`scaled` was compiled once in step 2 with the same argument shapes and dtypes: a static" in t for t in texts
    )


def test_the_training_step_has_all_phases(summary: dict[str, Any]) -> None:
    phases = summary["op_phases"]
    assert all(phases[name]["total_s"] > 0 for name in ("forward", "backward", "remat", "optimizer"))


def test_passes_are_there(summary: dict[str, Any]) -> None:
    passes = summary["compiles"]["passes"]
    assert passes
    assert {row["function"] for row in passes} & {"widened", "scaled", "layer", "shifted", "<lambda>", "update"}
