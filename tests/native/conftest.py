"""The C core without Python and its tests, built once under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built C tests."""
    beside_python = Path(sys.executable).parent
    cmake = shutil.which("cmake", path=f"{beside_python}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if cmake is None:
        pytest.skip("cmake is missing: pip install cmake")
    # Workers of one test run have temporary folders side by side; the first to come builds for all.
    under_xdist = "PYTEST_XDIST_WORKER" in os.environ
    folder = tmp_path_factory.getbasetemp().parent / "native" if under_xdist else tmp_path_factory.mktemp("native")
    options = ["-DXPROF_PY_EXTENSION=OFF", "-DXPROF_PY_NATIVE_TESTS=ON", "-DXPROF_PY_SANITIZE=address,undefined"]
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            for command in (
                [cmake, "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=RelWithDebInfo", *options],
                [cmake, "--build", str(folder), "--parallel", "2"],
            ):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stdout + done.stderr
            (folder / "built").touch()
    return folder
