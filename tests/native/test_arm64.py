"""The C core for arm64: it compiles without warnings, and under emulation its tests hold and its shards are read.

Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user. Emulated are the instructions; nothing is measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from xprof_py.postprocess.readers.shard import read_shard

NATIVE = Path(__file__).resolve().parents[2] / "native"
RECORDER = [
    *sorted((NATIVE / "recorder").glob("*.c")),
    *sorted((NATIVE / "columns").glob("*.c")),
    NATIVE / "decode" / "shard.c",
    NATIVE / "device" / "ranges.c",
]
# test_recorder and test_recorder_random fork while they have threads, which QEMU's emulation of a program cannot.
TESTS = [
    "test_trace_table",
    "test_recorder_samples",
    "test_recorder_strings",
    "test_event_passes",
    "test_innermost",
    "test_replay",
    "test_shares",
]

PROGRAM = """
#include <time.h>
#include "recorder/recorder.h"
#include "recorder/trace_table.h"
#include "xprof_py/trace.h"
XPROF_PY_SITE_KEY(slept, "slept", "number");
int main(int argc, char **argv) {
    struct xpr_report report;
    xpr_publish_trace_table();
    if (argc != 2 || xpr_recorder_start(argv[1], 1 << 30, 1 << 20)) return 2;
    for (int i = 0; i < 10; i++) {
        xprof_py_span span = xprof_py_begin_at(&slept);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        xprof_py_end_value(&slept, span, i);
    }
    xpr_recorder_off();
    xpr_recorder_finish(10000000000, 0, 0, &report);
    return report.finished && report.written == 10 ? 0 : 1;
}
"""


def compiler() -> str:
    found = shutil.which("aarch64-linux-gnu-gcc")
    if found is None:
        pytest.skip("aarch64-linux-gnu-gcc is not on PATH: install gcc-aarch64-linux-gnu and libc6-dev-arm64-cross")
    return found


def compile_with(folder: Path, *arguments: Path | str) -> None:
    include = ["-I", str(NATIVE), "-I", str(NATIVE / "include")]
    command = [compiler(), "-std=gnu11", *include, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The objects that the programs need."""
    folder = tmp_path_factory.mktemp("arm64")
    compile_with(folder, "-c", "-O1", *RECORDER, *sorted((NATIVE / "kernels").glob("*.c")))
    return sorted(folder.glob("*.o"))


def link(program: Path, source: Path, core: list[Path]) -> None:
    compile_with(program.parent, "-O1", "-rdynamic", "-pthread", source, *core, "-o", program, "-lm", "-ldl")


def run(folder: Path, *command: str) -> None:
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("qemu-aarch64 is not on PATH: install qemu-user")
    done = subprocess.run(
        [emulator, "-L", "/usr/aarch64-linux-gnu", *command],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("room", ["recorder", "probe", "columns", "decode", "kernels", "device"])
def test_it_compiles_without_warnings(room: str, tmp_path: Path) -> None:
    sources = sorted((NATIVE / room).glob("*.c"))
    compile_with(tmp_path, "-fsyntax-only", "-Wall", "-Wextra", "-Wshadow", "-Werror", *sources)


@pytest.mark.parametrize("name", TESTS)
def test_its_tests_hold(name: str, core: list[Path], tmp_path: Path) -> None:
    link(tmp_path / name, NATIVE / "tests" / f"{name}.c", core)
    run(tmp_path, str(tmp_path / name))


def test_the_counter_of_its_cores_becomes_time(core: list[Path], tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM, encoding="utf-8")
    link(tmp_path / "program", tmp_path / "program.c", core)
    run(tmp_path, str(tmp_path / "program"), str(tmp_path / "x.xpr"))
    profile = read_shard(tmp_path / "x.xpr")
    assert profile.metadata["clock"] == "cntvct"
    assert profile["args"]["value"].to_pylist() == list(range(10))
    for duration_ps in profile["events"]["duration_ps"].to_pylist():
        assert 0.020 * 0.999 <= duration_ps / 1e12 < 5
