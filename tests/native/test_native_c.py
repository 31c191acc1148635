"""Builds the C core without Python under the address and undefined-behaviour sanitizers and runs every C test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = sorted(path.stem for path in (ROOT / "native" / "tests").glob("test_*.c"))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not on PATH: install it to build the C tests")
    folder = tmp_path_factory.mktemp("native")
    options = ["-DXPROF_PY_EXTENSION=OFF", "-DXPROF_PY_NATIVE_TESTS=ON", "-DXPROF_PY_SANITIZE=address,undefined"]
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=RelWithDebInfo", *options],
        [cmake, "--build", str(folder)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_there_are_c_tests() -> None:
    assert "test_recorder" in TESTS


@pytest.mark.xdist_group("native_c")
@pytest.mark.parametrize("name", TESTS)
def test_c(build: Path, tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [str(build / name)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "TMPDIR": str(tmp_path), "XPROF_PY_ROOT": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
