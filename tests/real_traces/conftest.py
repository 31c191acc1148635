"""Tests here read real traces, which are not part of the repository: XPROF_PY_REAL_TRACES names their folder.

Where it is absent the tests skip and say so. Its subfolders jax_cpu and xspace hold .xplane.pb files at any depth.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("XPROF_PY_REAL_TRACES", ROOT.parent / "shared" / "traces"))
HOW = "set XPROF_PY_REAL_TRACES to the folder of real traces"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument, folders in (("xspace_file", ("jax_cpu", "xspace")), ("jax_cpu_file", ("jax_cpu",))):
        if argument not in metafunc.fixturenames:
            continue
        files = sorted(file for folder in folders for file in (TRACES / folder).rglob("*.xplane.pb"))
        absent = pytest.param(
            None, marks=pytest.mark.skip(reason=f"no .xplane.pb files below {TRACES}; {HOW}"), id="absent"
        )
        chosen = [pytest.param(file, id=str(file.relative_to(TRACES))) for file in files] or [absent]
        metafunc.parametrize(argument, chosen)


@pytest.fixture
def trace_files() -> Callable[[str], list[Path]]:
    """The .xplane.pb files below a subfolder of the real traces; the test skips where there are none."""

    def below(folder: str) -> list[Path]:
        files = sorted((TRACES / folder).rglob("*.xplane.pb"))
        if not files:
            pytest.skip(f"no .xplane.pb files below {TRACES / folder}; {HOW}")
        return files

    return below
