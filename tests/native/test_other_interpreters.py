"""The extension built for another CPython of this machine: annotations record there what they record here.

Only the recorder's side runs there, which needs nothing but the standard library; the shards are read here. It is the
newest one that is found: a build takes 15 s. The whole suite for one of your choice: ``make test PYTHON=python3.12``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from xprof_py.postprocess.readers.shard import read_shard

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ["3.14", "3.13", "3.12", "3.11"]
ABOUT = (
    "import json, os, platform, sys, sysconfig; print(json.dumps([sysconfig.get_path('include'), "
    "sysconfig.get_config_var('EXT_SUFFIX'), platform.python_implementation(), sys.version_info[:2], "
    "sysconfig.get_config_var('Py_GIL_DISABLED') or 0, sys.executable]))"
)

PROGRAM = """
import asyncio, contextlib, pickle, sys, threading
from xprof_py import _native, checkpoint, counter, input_wait, mark, step, trace, wrap_input

@trace
def plain(x, *, y=2): return x + y
@trace("named", layer=3)
def named(x): return x
@trace
def generated(n): yield from range(n)
@trace
async def awaited(): await asyncio.sleep(0); return 1
@trace
def fails(): raise KeyError("mine")
class Model:
    @trace
    def __init__(self): self.x = 1
    @trace
    def method(self): return self.x
    @classmethod
    @trace
    def made(cls): return cls()

def use():
    for i in range(50):
        with step(i, tokens=8), trace("work", i=i, f=0.5, text="t", flag=True, big=2**70):
            assert plain(i) == i + 2 and named(i) == i and list(generated(2)) == [0, 1]
            model = Model.made()
            assert model.method() == 1
        mark("mark", i=i)
        counter("counter", i)
        with contextlib.suppress(KeyError): fails()
        with contextlib.ExitStack() as stack: stack.enter_context(trace("stacked"))
    async def many(): return await asyncio.gather(*(awaited() for _ in range(5)))
    assert asyncio.run(many()) == [1] * 5
    assert list(wrap_input([1, 2])) == [1, 2]
    with checkpoint(): pass

use()  # before: call sites are specialised
assert pickle.loads(pickle.dumps(plain)) is plain
_native.recorder_start(sys.argv[1])
threads = [threading.Thread(target=use) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
held = trace("held")
held.__enter__()
totals = _native.recorder_stop()
use()
assert totals["recorded"] == totals["written"] and totals["dropped"] == totals["hook_errors"] == 0, totals
assert totals["reentered"] == 0, totals
"""

EXPECTED = Counter(
    dict.fromkeys(("train", "work", "plain", "named", "generated", "mark", "counter", "fails", "stacked"), 150)
    | dict.fromkeys(("Model.__init__", "Model.method", "Model.made"), 150)
    | {"awaited": 15, "input": 9, "checkpoint": 3, "held": 1}
)


def found(version: str) -> str:
    """An interpreter of that version, not the one that runs here; "" where there is none."""
    wanted = list(map(int, version.split(".")))
    if wanted == list(sys.version_info[:2]):
        return ""
    beside = Path(sys.base_prefix).parent.glob(f"{version}*/bin/python{version}")
    for candidate in [*sorted(map(str, beside)), shutil.which(f"python{version}")]:
        if candidate is None:
            continue
        done = subprocess.run([candidate, "-c", ABOUT], capture_output=True, text=True, check=False)
        if done.returncode == 0 and json.loads(done.stdout)[3] == wanted:
            return candidate
    return ""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """An interpreter, and a folder with the package built for it."""
    interpreter, compiler = next(filter(None, map(found, VERSIONS)), ""), shutil.which("gcc") or shutil.which("cc")
    if not interpreter or compiler is None:
        pytest.skip("no other CPython from 3.11 on is on this machine, or no C compiler")
    about = subprocess.run([interpreter, "-c", ABOUT], capture_output=True, text=True, check=True)
    include, suffix, implementation, _, free_threaded, _ = json.loads(about.stdout)
    if implementation != "CPython" or free_threaded or not (Path(include) / "Python.h").exists():
        pytest.skip(f"{interpreter} is {implementation}, free-threaded ({free_threaded}), or without its headers")
    folder = tmp_path_factory.mktemp("other")
    shutil.copytree(ROOT / "xprof_py", folder / "xprof_py", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    rooms = ("recorder", "probe", "columns", "decode", "kernels", "device", "python")
    found_there = [path for room in rooms for path in sorted((ROOT / "native" / room).glob("*.c"))]
    sources = [str(path) for path in found_there if not path.name.startswith("nvtx_")]  # a library of their own
    flags = ["-std=gnu11", "-O0", "-w", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
    includes = [f"-I{ROOT / 'native'}", f"-I{ROOT / 'native' / 'include'}", f"-I{include}"]
    command = [
        compiler,
        *flags,
        *includes,
        *sources,
        "-o",
        str(folder / "xprof_py" / f"_native{suffix}"),
        "-lm",
        "-ldl",
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    yield interpreter, folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("swap", ["0", "1"])
def test_annotations_record_there_what_they_record_here(package: tuple[str, Path], swap: str, tmp_path: Path) -> None:
    interpreter, folder = package
    environment = {**os.environ, "PYTHONPATH": str(folder), "XPROF_PY_SWAP": swap, "PYTHONDONTWRITEBYTECODE": "1"}
    shard = tmp_path / "x.xpr"
    command = [interpreter, "-W", "error", "-c", PROGRAM, str(shard)]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    profile = read_shard(shard)
    assert Counter(profile["events"]["name"].to_pylist()) == EXPECTED
    steps = [row["value"] for row in profile["args"].to_pylist() if row["key"] == "step_num"]
    assert sorted(steps) == sorted(list(range(50)) * 3)
    assert profile["events"]["duration_ps"].null_count == 1  # held
