"""Every C test, built without Python under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = sorted(path.stem for path in (ROOT / "native" / "tests").glob("test_*.c"))


def test_there_are_c_tests() -> None:
    assert "test_recorder" in TESTS


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
