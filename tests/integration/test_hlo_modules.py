"""Compiled programs stored by the capture itself, as they are where GPUs are recorded without XLA's profiler.

A CPU has programs too: the captures here say that CUDA was used, which it was not.
"""

from __future__ import annotations

from typing import Any

import pytest

from xprof_py.postprocess.hlo.module import read_programs
from xprof_py.postprocess.readers.process import read_process
from xprof_py.postprocess.readers.sources import find_sources
from xprof_py.postprocess.readers.xspace import read_programs_file, read_xspace

pytestmark = pytest.mark.live

SAY_CUDA = """
    from xprof_py import session
    session._slot._open.recording._collectors["cuda"] = {"used": True}
"""


def test_programs_alive_at_the_end_and_those_that_died_are_stored(model: Any) -> None:
    pytest.importorskip("jax", reason="jax is not installed: the extra `test` brings it")
    outcome = model(
        f"""
with capture(RUN, xla=False):
{SAY_CUDA}
    train(x, 0, 2)
    def died(y):
        return jnp.sin(y) * 3
    jax.jit(died)(jnp.ones(7)).block_until_ready()
    del died
    import gc
    jax.clear_caches()
    gc.collect()
    left = [e.hlo_modules()[0].name for e in jax.devices()[0].client.live_executables()]
    assert "jit_died" not in left, left
    jax.jit(lambda y: y - 1)(jnp.ones(9))
"""
    )
    document = outcome.document()
    assert outcome.stderr == ""
    name = document["files"]["programs"]
    assert name.startswith("programs/")
    assert document["collectors"]["programs"]["used"] is True
    (source,) = find_sources([outcome.run]).processes
    assert source.programs == outcome.run / name
    profile = read_process(source)
    stored = profile["programs"]["name"].to_pylist()
    assert {"jit_died", "jit__lambda"} <= set(stored)
    assert document["collectors"]["programs"]["count"] == len(stored)
    hlo = read_programs(profile["programs"])
    assert hlo["diagnostics"].num_rows == 0
    functions = {row["function"] for row in hlo["program_functions"].to_pylist()}
    assert {"died", "<lambda>"} <= functions
    assert profile.metadata["no_device"] == ""


def test_stored_programs_are_those_that_xlas_profiler_knows_under_the_same_ids(model: Any) -> None:
    pytest.importorskip("jax", reason="jax is not installed: the extra `test` brings it")
    outcome = model(
        f"""
with capture(RUN):
{SAY_CUDA}
    train(x, 0, 2)
"""
    )
    stored = read_programs_file(outcome.run / outcome.document()["files"]["programs"])
    of_xla = read_xspace(outcome.xplane())["programs"]
    known = dict(zip(of_xla["program_id"].to_pylist(), of_xla["name"].to_pylist(), strict=True))
    found = dict(zip(stored["program_id"].to_pylist(), stored["name"].to_pylist(), strict=True))
    assert "jit_update" in found.values()
    assert {key: known.get(key) for key in found} == found
    # XLA's own say more, with the assignment of buffers: theirs are read, and each once.
    (source,) = find_sources([outcome.run]).processes
    both = read_process(source)["programs"]
    assert both.num_rows == len(known | found)
    rows = dict(zip(of_xla["program_id"].to_pylist(), of_xla["hlo"].to_pylist(), strict=True))
    for key, hlo in zip(both["program_id"].to_pylist(), both["hlo"].to_pylist(), strict=True):
        assert key not in rows or hlo == rows[key]


def test_without_cuda_nothing_is_stored(model: Any) -> None:
    pytest.importorskip("jax", reason="jax is not installed: the extra `test` brings it")
    document = model("with capture(RUN, xla=False):\n    train(x, 0, 2)\n").document()
    assert "programs" not in document["files"]
    assert "programs" not in document["collectors"]


def test_a_file_of_programs_that_is_damaged_costs_itself_alone(model: Any) -> None:
    pytest.importorskip("jax", reason="jax is not installed: the extra `test` brings it")
    outcome = model(
        f"""
with capture(RUN, xla=False):
{SAY_CUDA}
    train(x, 0, 2)
"""
    )
    file = outcome.run / outcome.document()["files"]["programs"]
    file.write_bytes(file.read_bytes()[:100])
    (source,) = find_sources([outcome.run]).processes
    profile = read_process(source)
    assert profile["programs"].num_rows == 0
    assert [(row["code"], row["file"]) for row in profile["diagnostics"].to_pylist()] == [("unreadable", str(file))]
    assert profile["events"].num_rows > 0
