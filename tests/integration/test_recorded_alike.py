"""A recorded program ends as it would have ended unrecorded, whatever happens to the folder that it is recorded into.

Each training runs twice, with and without a capture: result, exit code and its own words on stderr are the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TRAINING = """
import contextlib, ctypes, os, shutil, sys, threading, time
from pathlib import Path
from xprof_py import capture, mark, step, trace

run, fault, ending = sys.argv[1:4]
folder = Path(run)

def fill():
    "Another program fills the disk."
    with open(folder.parent / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))

def read_only():
    "Nobody may write into these folders any more, root included: what lets root write all the same is given up."
    class Header(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
    class Sets(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]
    libc, header, sets = ctypes.CDLL(None, use_errno=True), Header(0x20080522, 0), (Sets * 2)()
    assert libc.capget(ctypes.byref(header), sets) == 0
    for each in sets:
        each.effective = each.permitted = 0
    assert libc.capset(ctypes.byref(header), sets) == 0
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        path.chmod(0o555)

def removed():
    shutil.rmtree(folder)

def replaced():
    "Files of other contents stand where the capture's are."
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.unlink()
        path.mkdir()

def cut():
    "Somebody truncates what is being written."
    for path in folder.rglob("*.xpr*"):
        os.truncate(path, 0)

results = [0] * 13

def work(k):
    for i in range(3000):
        with trace("work", i=i, text=f"{k}"):
            results[k] = (results[k] * 31 + i) % 1000003
    mark("worked", k=k)

block = capture(run, xla=False) if folder.parent.name != "unrecorded" else contextlib.nullcontext()
with block:
    for i in range(12):
        with step(i):
            threads = [threading.Thread(target=work, args=(k,)) for k in range(12)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            work(12)
        if i == 3 and fault != "-":
            globals()[fault]()
    if ending == "raises":
        raise ValueError("the training's own")
print(sum(results))
sys.exit(7)
"""


def end_of(run: Path, fault: str, ending: str, **settings: str) -> tuple[int, str, list[str]]:
    """Exit code, stdout, and the lines of stderr that are no warning of ours."""
    command = [sys.executable, "-c", TRAINING, str(run), fault, ending]
    environment = {**os.environ, "XPROF_PY_STOP_TIMEOUT_S": "5", **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    # `python -c` has no source lines to show below a warning.
    lines = [line for line in done.stderr.splitlines() if "XprofPyWarning" not in line]
    return done.returncode, done.stdout, lines


@pytest.fixture(scope="module", params=["exits", "raises"])
def unrecorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, object]:
    folder = tmp_path_factory.mktemp("alike") / "unrecorded"
    folder.mkdir()
    end = end_of(folder / "run", "-", request.param)
    assert (end[0], bool(end[1])) == ((7, True) if request.param == "exits" else (1, False))
    return request.param, end


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 24 MB: less than the rings of thirteen threads, which take 4 MiB each."""
    with tempfile.TemporaryDirectory() as point:
        command = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", point]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small file system needs root")
        try:
            yield Path(point)
        finally:
            subprocess.run(["umount", "-l", point], check=False)


@pytest.mark.parametrize("fault", ["-", "read_only", "removed", "replaced"])
def test_a_folder_to_which_anything_happens(fault: str, unrecorded: tuple[str, object], tmp_path: Path) -> None:
    ending, end = unrecorded
    assert end_of(tmp_path / "run", fault, ending) == end


def test_a_file_that_another_program_truncates(unrecorded: tuple[str, object], tmp_path: Path) -> None:
    """With rings in plain memory: rings in a file are mapped, and no process survives that its mapping is cut off."""
    ending, end = unrecorded
    assert end_of(tmp_path / "run", "cut", ending, XPROF_PY_RINGS_IN_MEMORY="1") == end


@pytest.mark.parametrize("fault", ["-", "fill"])
def test_a_disk_that_is_too_small_or_fills_up(fault: str, unrecorded: tuple[str, object], small_disk: Path) -> None:
    """As Docker's /dev/shm is. Rings that were only promised to the process would end it with SIGBUS."""
    ending, end = unrecorded
    assert end_of(small_disk / "run", fault, ending) == end
