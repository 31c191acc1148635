"""NVTX ranges become spans that say what the client said: its domain, category and payload."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xprof_py.injection import NVTX_VARIABLE, nvtx_library
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.schema import ArgKind

ROOT = Path(__file__).resolve().parents[2]
MARK, SPAN = 5, 1


def ranges(shard: Path) -> tuple[list[dict[str, Any]], Any]:
    """Events as (name, kind, line, args), in order of start, and the profile."""
    profile = read_shard(shard)
    texts = profile["texts"]["text"].to_pylist()
    events = profile["events"].to_pylist()
    for event in events:
        event["args"] = {}
    for arg in profile["args"].to_pylist():
        value = arg["value"]
        if arg["kind"] == ArgKind.TEXT:
            value = texts[value]
        elif arg["kind"] == ArgKind.DOUBLE:
            (value,) = struct.unpack("d", struct.pack("q", value))
        events[arg["event"]]["args"][arg["key"]] = value
    return events, profile


def run_python(code: str, environ: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Any]:
    """What tests/native/nvtx_ranges.c comes to, a program that knows nothing of Python."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not on PATH: install it to build the client")
    folder = tmp_path_factory.mktemp("nvtx")
    library = folder / "client.so"
    source = ROOT / "tests" / "native" / "nvtx_ranges.c"
    flags = ["-shared", "-fPIC", "-pthread", "-I", str(ROOT / "native")]
    built = subprocess.run([compiler, *flags, str(source), "-o", str(library), "-ldl"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    code = """
import ctypes, os
from xprof_py import _native
client = ctypes.CDLL(os.environ["CLIENT"])
assert client.attach(os.fsencode(os.environ["TOOL"]))
_native.recorder_start(os.environ["SHARD"])
client.play()
totals = _native.recorder_stop()
assert totals["dropped"] == 0, totals
"""
    shard = folder / "x.xpr"
    run_python(code, {"CLIENT": str(library), "TOOL": str(nvtx_library()), "SHARD": str(shard)})
    return ranges(shard)


def of(played: tuple[list[dict[str, Any]], Any], name: str) -> dict[str, Any]:
    (found,) = [event for event in played[0] if event["name"] == name]
    return found


def test_domains_and_categories_have_their_names_or_numbers(played: Any) -> None:
    assert of(played, "outer")["args"] == {"domain": "training", "category": "input"}
    assert [e["args"] for e in played[0] if e["name"] == "inner" and e["kind"] == SPAN] == [
        {"domain": "training", "category": "9", "payload": -8}
    ]
    assert of(played, "plain")["args"] == {"domain": "default"}


def test_ranges_lie_within_each_other(played: Any) -> None:
    outer, plain = of(played, "outer"), of(played, "plain")
    assert outer["start_ps"] <= plain["start_ps"]
    assert plain["start_ps"] + plain["duration_ps"] <= outer["start_ps"] + outer["duration_ps"]


def test_a_mark_is_an_instant(played: Any) -> None:
    (mark,) = [event for event in played[0] if event["kind"] == MARK]
    assert (mark["name"], mark["duration_ps"], mark["args"]) == ("inner", 0, {"domain": "training", "payload": 1.5})


def test_wide_texts_are_utf_8(played: Any) -> None:
    assert of(played, "breit é 😀")["args"] == {"domain": "default"}


def test_a_structured_payload_is_read_at_the_push(played: Any) -> None:
    assert of(played, "structured")["args"] == {
        "domain": "training",
        "payload.number": -3,
        "payload.loss": 0.25,
        "payload.phase": "warmup",
        "payload.note": "first",
        "payload.shape.0": 2,
        "payload.shape.1": 3,
        "payload.shape.2": 65535,
        "payload.optimizer": 0.5,
    }


def test_a_payload_may_hold_the_name(played: Any) -> None:
    assert of(played, "jit_train")["args"] == {"domain": "training", "payload.Unique ID": 7, "payload.HLO": "dot.1"}


def test_what_an_event_cannot_hold_is_counted(played: Any) -> None:
    args = of(played, "array")["args"]
    assert args == {"domain": "training"} | {f"payload.{i}": i * i for i in range(15)}
    rows = {row["code"]: row["count"] for row in played[1]["diagnostics"].to_pylist()}
    assert rows == {"dropped_args": 5}


def test_a_range_belongs_to_the_thread_where_it_ends(played: Any) -> None:
    events, profile = played
    names = profile["lines"]["name"].to_pylist()
    assert names[of(played, "elsewhere")["line"]] == "named by NVTX"
    assert of(played, "still open")["duration_ps"] is None
    assert len({event["line"] for event in events}) == 2


PACKAGE = """
import os, threading
import numpy as np
import nvtx
from xprof_py import _native
nvtx.push_range("before")
_native.recorder_start(os.environ["SHARD"])
nvtx.pop_range()
with nvtx.annotate("step", color="green", domain="train", category="phase", payload=7):
    with nvtx.annotate("forward", domain="train", payload=3.5): pass
nvtx.mark("epoch", domain="train")
open_range = nvtx.start_range("asynchronous", domain="train")
thread = threading.Thread(target=nvtx.end_range, args=(open_range,)); thread.start(); thread.join()
domain = nvtx.get_domain("train")
row = np.array([(4, 0.5)], [("n", "i4"), ("loss", "f8")])
for name, payload in (("array", np.array([1, 2, 3], np.int32)), ("row", row)):
    domain.push_range(domain.get_event_attributes(message=name, payload=payload)); domain.pop_range()
@nvtx.annotate()
def function(): pass
function()
assert _native.recorder_stop()["dropped"] == 0
"""


def test_the_nvtx_package(tmp_path: Path) -> None:
    pytest.importorskip("nvtx", reason="nvtx is not installed: pip install 'xprof_py[test]'")
    shard = tmp_path / "x.xpr"
    run_python(PACKAGE, {"SHARD": str(shard), NVTX_VARIABLE: str(nvtx_library())})
    events, profile = ranges(shard)
    found = {event["name"]: event["args"] for event in events}
    assert found == {
        "step": {"domain": "train", "category": "phase", "payload": 7},
        "forward": {"domain": "train", "payload": 3.5},
        "epoch": {"domain": "train"},
        "asynchronous": {"domain": "train"},
        "array": {"domain": "train", "payload.0": 1, "payload.1": 2, "payload.2": 3},
        "row": {"domain": "train", "payload.n": 4, "payload.loss": 0.5},
        "function": {"domain": "default"},
    }
    assert profile["diagnostics"].num_rows == 0


CUPY = """
import os, warnings
warnings.simplefilter("ignore")
from cupy.cuda import nvtx
from cupyx.profiler import time_range
from xprof_py import _native
_native.recorder_start(os.environ["SHARD"])
nvtx.RangePush("pushed"); nvtx.RangePop(); nvtx.Mark("marked")
with time_range("timed", color_id=2): pass
assert _native.recorder_stop()["dropped"] == 0
"""


def test_cupy_without_a_gpu(tmp_path: Path) -> None:
    import importlib.util

    if importlib.util.find_spec("cupy") is None:
        pytest.skip("cupy is not installed: pip install 'xprof_py[cuda]' cuda-pathfinder, no GPU needed")
    shard = tmp_path / "x.xpr"
    run_python(CUPY, {"SHARD": str(shard), NVTX_VARIABLE: str(nvtx_library())})
    assert [(event["name"], event["kind"]) for event in ranges(shard)[0]] == [
        ("pushed", SPAN),
        ("marked", MARK),
        ("timed", SPAN),
    ]


def test_our_declarations_are_those_of_nvtx_s_headers(tmp_path: Path) -> None:
    folders = [Path("/usr/local/cuda/include"), *Path("/usr/local").glob("cuda-*/include")]
    found = next((folder for folder in folders if (folder / "nvtx3/nvToolsExtPayload.h").is_file()), None)
    compiler = shutil.which("gcc")
    if found is None or compiler is None:
        pytest.skip("NVTX's headers, or gcc, are not installed: they come with the CUDA toolkit")
    source = ROOT / "tests" / "native" / "nvtx_abi_check.c"
    command = [compiler, "-std=gnu11", "-fsyntax-only", "-Wall", "-Werror", "-I", str(ROOT / "native"), "-isystem"]
    done = subprocess.run([*command, str(found), str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
