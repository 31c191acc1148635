"""The checks on a GPU share one table: what each came to, its figures, and the versions that it ran with."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu.recorded import document, joined, told
from gpu.table import rows_of, write_table
from xprof_py.postprocess.profile import Profile

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = Path(os.environ.get("GPU_ENVIRONMENTS") or ROOT / "build" / "gpu")


@pytest.fixture(scope="session")
def no_gpu() -> str:
    """Why no program can use a GPU here, "" where one can; asked in a process of its own."""
    code = "from gpu.environments import no_gpu; print(no_gpu())"
    variables = {**os.environ, "PYTHONPATH": os.fspath(ROOT / "tests")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=variables)
    return done.stdout.strip()


@pytest.fixture
def python_with(no_gpu: str, record_property: Callable[[str, object], None]) -> Callable[..., str]:
    """``python_with(environment, *modules) -> interpreter``; skips the test in words where there is none."""

    def find(name: str, *modules: str) -> str:
        if no_gpu:
            pytest.skip(no_gpu)
        try:
            made = json.loads((ENVIRONMENTS / "environments.json").read_text(encoding="utf-8"))[name]
        except FileNotFoundError:
            pytest.skip("no environments: `make test-gpu` makes them")
        for module in ("xprof_py", *modules):
            if module not in made["packages"]:
                pytest.skip(f"no {module}: {made['missing'].get(module, 'not installed')}")
        record_property("versions", {module: made["packages"][module] for module in modules})
        return str(made["python"])

    return find


@dataclass(frozen=True)
class Planted:
    """A recording of programs/planted.py: what it says of itself, its run file, and what was read and joined."""

    told: dict[str, Any]
    document: Mapping[str, Any]
    profile: Profile


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted]:
    """``planted(interpreter)``: recorded once for all tests."""

    @functools.cache
    def record_it(python: str) -> Planted:
        run = tmp_path_factory.mktemp("planted") / "run"
        options = ["--backend", "cupti", "--step-range", "step"]
        return Planted(told(python, "planted", "hold", run=run, options=options), document(run), joined(run))

    return record_it


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Callable[[dict[str, Any]], None]:
    """``record(figures)``: into the table's row of this test."""
    return lambda figures: record_property("figures", figures)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write and show the table, if tests on a GPU were chosen."""
    reports = [report for found in terminalreporter.stats.values() for report in found if hasattr(report, "when")]
    rows = rows_of([report for report in reports if "/test_on_a_gpu.py::" in getattr(report, "nodeid", "")])
    if not rows:
        return
    folder = Path(os.environ.get("OUT") or ENVIRONMENTS)
    terminalreporter.section("on a GPU")
    terminalreporter.write(write_table(rows, folder))
    terminalreporter.write_line(f"{folder / 'checks.json'}, {folder / 'checks.md'}")
