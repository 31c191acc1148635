"""A large capture analysed with its columns in files is what it is in memory, and takes no more memory when longer."""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
from pathlib import Path

import pytest

from xprof_py.postprocess.readers.column_memory import BUDGET, FOLDER, bound, refused

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "data" / "jax_cpu" / "planted_input.xplane.pb.gz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("long")
    for name, events in (("short", 60_000), ("long", 600_000)):
        write = [
            sys.executable,
            str(ROOT / "benchmarks" / "long_capture.py"),
            str(SOURCE),
            str(made / f"{name}.xplane.pb"),
        ]
        subprocess.run([*write, "--events", str(events)], check=True, capture_output=True)
    return made


def analysed(folder: Path, name: str, out: str, *options: str, **environment: str) -> Path:
    """The analysis of one of the captures by the command line."""
    command = [sys.executable, "-m", "xprof_py", "analyze", str(folder / f"{name}.xplane.pb"), "-o", str(folder / out)]
    variables = {**os.environ, FOLDER: str(folder), **environment}
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / out


def test_columns_in_files_give_the_same_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = analysed(folder, "long", "memory", "--workers", "1", XPROF_PY_COLUMNS_MB="100000")
    names = sorted(file.name for file in in_memory.iterdir())
    for place, options in enumerate((("--workers", "1"), ("--workers", "3"))):
        in_files = analysed(folder, "long", f"files{place}", *options, XPROF_PY_COLUMNS_MB="0")
        assert sorted(file.name for file in in_files.iterdir()) == names
        _, differ, missing = filecmp.cmpfiles(in_memory, in_files, names, shallow=False)
        assert (differ, missing) == ([], [])


MEMORY = """
import sys, threading
from xprof_py import _native
from xprof_py.postprocess.fleet.analysis import analyse
most, done = 0, threading.Event()
def watch():
    global most
    while not done.wait(0.002):
        most = max(most, _native.column_memory()["in_memory"])
watcher = threading.Thread(target=watch)
watcher.start()
analyse([sys.argv[1]])
done.set()
watcher.join()
print(most, _native.column_memory()["most_in_files"])
"""


def test_a_capture_ten_times_as_long_takes_no_more_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What columns take of memory is their budget. How much else there is: benchmarks/memory.py."""
    monkeypatch.setenv(FOLDER, str(folder))
    monkeypatch.setenv(BUDGET, "3")
    bound()
    used = {}
    for name in ("short", "long"):
        command = [sys.executable, "-c", MEMORY, str(folder / f"{name}.xplane.pb")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        used[name] = [int(word) for word in done.stdout.split()]
    if used["long"][1] == 0:
        pytest.skip(f"{folder} takes no files of columns: {refused()}")
    assert used["short"][0] <= 3 << 20
    assert used["long"][0] <= 3 << 20
    assert used["long"][1] > 20 << 20
