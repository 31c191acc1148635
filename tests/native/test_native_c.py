"""Every C test, built without Python under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = sorted(path.stem for path in (ROOT / "native" / "tests").glob("test_*.c"))


def test_there_are_c_tests() -> None:
    assert "test_recorder" in TESTS


def test_no_data_race_in_the_recorder(tmp_path: Path) -> None:
    """The random driver under gcc's thread sanitizer, which the other build cannot be combined with."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not on PATH: install it")
    native = ROOT / "native"
    sources = [
        *(native / "recorder").glob("*.c"),
        native / "device/ranges.c",
        native / "decode/shard.c",
        native / "tests/test_recorder_random.c",
    ]
    program = tmp_path / "driver"
    command = [
        compiler,
        "-std=gnu11",
        "-O1",
        "-g",
        "-fsanitize=thread",
        "-pthread",
        "-I",
        native,
        "-I",
        native / "include",
    ]
    built = subprocess.run(
        [*map(str, [*command, *sources]), "-o", str(program), "-lm", "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode and "tsan" in built.stderr:
        pytest.skip("gcc has no thread sanitizer here: install its runtime (libtsan)")
    assert built.returncode == 0, built.stderr
    environment = {**os.environ, "TMPDIR": str(tmp_path), "TSAN_OPTIONS": "exitcode=66"}
    done = subprocess.run(
        [str(program), "6"], capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("addresses are randomised further than the thread sanitizer bears: sysctl vm.mmap_rnd_bits=28")
    assert done.returncode == 0, done.stdout + done.stderr


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
