"""A chunk lost from the shard of a program with JAX: XLA's own markers stand for the steps whose marks it held."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from xprof_py.postprocess.join.joined import join_profile
from xprof_py.postprocess.readers.process import read_process
from xprof_py.postprocess.readers.sources import find_sources

pytest.importorskip("jax", reason="jax is not installed: the extra `test` brings it")
pytestmark = pytest.mark.live

EVENTS = 4


def step_windows(run: Path) -> dict[int, tuple[int, int, str]]:
    """Number -> (begin, end, phase) of every step's window."""
    (source,) = find_sources([run]).processes
    profile = join_profile(read_process(source))
    rows = profile["steps"].to_pylist()
    windows = [row for row in profile["windows"].to_pylist() if row["kind"] == "step"]
    assert len(windows) == len(rows)
    return {
        rows[row["step"]]["number"]: (row["start_ps"], row["end_ps"], rows[row["step"]]["phase"]) for row in windows
    }


def test_every_window_is_that_of_the_whole_shard(model):  # type: ignore[no-untyped-def]
    outcome = model(
        """
with capture(RUN, stacks=False):
    for i in range(8):
        train(x, 5 * i, 5 * i + 5)
        time.sleep(0.12)
"""
    )
    whole = step_windows(outcome.run)
    assert list(whole) == list(range(40))
    path = outcome.run / outcome.document()["files"]["shard"]
    content, at, chunks = bytearray(path.read_bytes()), 128, []
    while at < len(content):
        _, kind, _, size = struct.unpack_from("<IHHQ", content, at)
        if kind == EVENTS:
            chunks.append(at)
        at += 32 + size
    content[chunks[len(chunks) // 2] + 32 + 8] ^= 0xFF
    path.write_bytes(bytes(content))
    found = step_windows(outcome.run)
    assert {n: row[:2] for n, row in found.items()} == {n: row[:2] for n, row in whole.items()}
    lost = [n for n in found if found[n][2] != whole[n][2]]
    assert 2 <= len(lost) <= 30
    assert {found[n][2] for n in lost} == {"unmeasured"}
    assert lost == list(range(lost[0], lost[-1] + 1))
