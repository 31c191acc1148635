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


NATIVE = ROOT / "native"


def under_thread_sanitizer(sources: list[Path], program: Path, *flags: str) -> None:
    """Compile with gcc's thread sanitizer, which the other build cannot be combined with; skips where there is none."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not on PATH: install it")
    include = ["-I", str(NATIVE), "-I", str(NATIVE / "include")]
    command = [compiler, "-std=gnu11", "-O1", "-g", "-fsanitize=thread", "-pthread", *include, *flags]
    built = subprocess.run(
        [*command, *map(str, sources), "-o", str(program), "-lm", "-ldl"], capture_output=True, text=True, check=False
    )
    if built.returncode and "tsan" in built.stderr:
        pytest.skip("gcc has no thread sanitizer here: install its runtime (libtsan)")
    assert built.returncode == 0, built.stderr


def run_without_races(command: list[str], temporary: Path, **environment: str) -> None:
    variables = {**os.environ, "TMPDIR": str(temporary), "TSAN_OPTIONS": "exitcode=66", **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=variables)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("addresses are randomised further than the thread sanitizer bears: sysctl vm.mmap_rnd_bits=28")
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_data_race_in_the_recorder(tmp_path: Path) -> None:
    """The random driver: threads that record while captures come and go."""
    others = ["device/ranges.c", "decode/shard.c", "tests/test_recorder_random.c"]
    sources = [
        *(NATIVE / "recorder").glob("*.c"),
        *(NATIVE / "columns").glob("*.c"),
        *(NATIVE / other for other in others),
    ]
    under_thread_sanitizer(sources, tmp_path / "driver")
    run_without_races([str(tmp_path / "driver"), "6"], tmp_path)


def test_no_data_race_in_the_collector_of_device_activity(tmp_path: Path) -> None:
    """Threads that launch and open ranges while buffers are flushed and the session ends."""
    shared, fakes = ["-shared", "-fPIC", "-fvisibility=hidden"], NATIVE / "tests" / "fakes"
    under_thread_sanitizer([fakes / "cupti.c"], tmp_path / "libfake_cupti_both.so", *shared, "-DFAKE_V1", "-DFAKE_V2")
    under_thread_sanitizer([fakes / "cuda.c"], tmp_path / "libfake_cuda.so", *shared, "-Wl,-soname,libcuda.so.1")
    device = [*(NATIVE / "device").glob("cupti*.c"), NATIVE / "device/ranges.c"]
    sources = [*(NATIVE / "recorder").glob("*.c"), *device, NATIVE / "tests/test_cupti_sessions.c"]
    under_thread_sanitizer(sources, tmp_path / "driver", f'-DFAKE_CUPTI_FOLDER="{tmp_path}"')
    run_without_races([str(tmp_path / "driver"), "threads_launch_and_flush_at_once"], tmp_path)


def test_no_data_race_in_the_memory_of_columns(tmp_path: Path) -> None:
    sources = [*(NATIVE / "columns").glob("*.c"), NATIVE / "tests/test_column_memory.c"]
    under_thread_sanitizer(sources, tmp_path / "driver")
    run_without_races([str(tmp_path / "driver")], tmp_path)


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
