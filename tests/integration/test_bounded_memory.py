"""A large capture analysed with its columns in files is what it is in memory, and takes no more memory when longer."""

from __future__ import annotations

import filecmp
import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xprof_py.postprocess.readers.column_memory import BUDGET, FOLDER, bound, refused

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "data" / "jax_cpu" / "planted_input.xplane.pb.gz"


def long_capture(folder: Path, name: str, events: int) -> Path:
    """A capture of so many events, made of the recorded one."""
    out = folder / f"{name}.xplane.pb"
    write = [
        sys.executable,
        str(ROOT / "benchmarks" / "long_capture.py"),
        str(SOURCE),
        str(out),
        "--events",
        str(events),
    ]
    subprocess.run(write, check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("long")
    long_capture(made, "long", 600_000)
    return made


def frames(count: int) -> bytes:
    """A plane of an XSpace with a thread of so many Python frames, a nanosecond each; numbers of 8 bytes."""

    def numbers(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        out = ((values[:, None] >> np.arange(0, 56, 7)) & 0x7F).astype(np.uint8)
        out[:, :-1] |= 0x80
        return out

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2]) + varint(len(content)) + content

    def varint(value: int) -> bytes:
        return bytes([value]) if value < 128 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)

    body = np.empty((count, 22), np.uint8)
    body[:, [0, 1, 2, 3, 4, 13]] = [0x22, 20, 0x08, 1, 0x10, 0x18]
    body[:, 5:13] = numbers(np.arange(count) * 1000)
    body[:, 14:22] = numbers(np.full(count, 900))
    line = b"\x08\x63" + field(2, b"python") + body.tobytes()
    named = b"\x08\x01" + field(2, b"\x08\x01" + field(2, b"$loop.py:1 body"))
    return field(1, field(2, b"/host:CPU") + field(3, line) + field(4, named))


def analysed(folder: Path, name: str, out: str, *options: str, **environment: str) -> Path:
    """The analysis of one of the captures by the command line."""
    command = [sys.executable, "-m", "xprof_py", "analyze", str(folder / f"{name}.xplane.pb"), "-o", str(folder / out)]
    variables = {**os.environ, FOLDER: str(folder), **environment}
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / out


def test_columns_in_files_give_the_same_bytes(folder: Path) -> None:
    in_memory = analysed(folder, "long", "memory", "--workers", "1", XPROF_PY_COLUMNS_MB="100000")
    names = sorted(file.name for file in in_memory.iterdir())
    for place, options in enumerate((("--workers", "1"), ("--workers", "3"))):
        in_files = analysed(folder, "long", f"files{place}", *options, XPROF_PY_COLUMNS_MB="0")
        assert sorted(file.name for file in in_files.iterdir()) == names
        _, differ, missing = filecmp.cmpfiles(in_memory, in_files, names, shallow=False)
        assert (differ, missing) == ([], [])


MEMORY = """
import re, sys, threading
from pathlib import Path
from xprof_py import _native
from xprof_py.postprocess.fleet.analysis import analyse
columns = anonymous = 0
done = threading.Event()
def watch():
    global columns, anonymous
    while not done.wait(0.002):
        columns = max(columns, _native.column_memory()["in_memory"])
        said = re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
        anonymous = max(anonymous, int(said[1]) << 10)
watcher = threading.Thread(target=watch)
watcher.start()
analyse([sys.argv[1]])
done.set()
watcher.join()
print(columns, anonymous, _native.column_memory()["most_in_files"])
"""
MB = 1 << 20


def test_a_capture_twenty_times_as_long_takes_no_more_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One column of 8 bytes an event would be 46 MB of the long one. Of more steps: benchmarks/memory.py."""
    monkeypatch.setenv(FOLDER, str(folder))
    monkeypatch.setenv(BUDGET, "3")
    bound()
    columns, anonymous, in_files = {}, {}, {}
    for name, events in (("short", 300_000), ("twenty", 6_000_000)):
        trace = folder / f"{name}.xplane.pb"
        trace.write_bytes(gzip.decompress(SOURCE.read_bytes()) + frames(events))
        done = subprocess.run([sys.executable, "-c", MEMORY, str(trace)], capture_output=True, text=True, check=True)
        columns[name], anonymous[name], in_files[name] = map(int, done.stdout.split())
    if in_files["twenty"] == 0:
        pytest.skip(f"{folder} takes no files of columns: {refused()}")
    assert columns["short"] <= 3 * MB
    assert columns["twenty"] <= 3 * MB
    assert in_files["twenty"] > 200 * MB
    assert anonymous["twenty"] - anonymous["short"] < 40 * MB
