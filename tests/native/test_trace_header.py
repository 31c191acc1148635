"""xprof_py/trace.h as its users meet it: compiled without warnings, linked with nothing, in any order of loading."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import xprof_py
from xprof_py import _native
from xprof_py.postprocess.readers.shard import read_shard

HERE = Path(__file__).resolve().parent
STRICT = ["-Wall", "-Wextra", "-Werror", "-Wpedantic", "-Wshadow", "-Wconversion", "-O2"]
LANGUAGES = [("gcc", "c", "c11"), ("g++", "c++", "c++17"), ("clang", "c", "c11"), ("clang++", "c++", "c++17")]

pytestmark = pytest.mark.xdist_group("native_c")


def compiler(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on PATH: install it to build the example")
    return found


def compile_with(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def build_example(folder: Path, driver: str, language: str, standard: str) -> Path:
    """The example extension as a library that links neither Python nor xprof_py."""
    library = folder / f"trace_example{sysconfig.get_config_var('EXT_SUFFIX')}"
    python = ["-isystem", sysconfig.get_path("include"), "-isystem", sysconfig.get_path("platinclude")]
    source = ["-x", language, str(HERE / "trace_example.c")]
    flags = [f"-std={standard}", "-I", xprof_py.get_include(), *python, "-shared", "-fPIC", "-pthread"]
    compile_with([compiler(driver), *STRICT, *flags, *source, "-o", str(library)])
    return library


def symbols_wanted(library: Path) -> set[str]:
    done = subprocess.run([compiler("nm"), "-D", "-u", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in done.stdout.splitlines()}


@pytest.fixture(scope="module", params=LANGUAGES, ids=lambda p: f"{p[0]}-{p[2]}")
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_example(tmp_path_factory.mktemp("example"), *request.param)


def run_example(library: Path, shard: Path, code: str) -> Any:
    """Runs code in a process that can import the example; what it prints as JSON."""
    paths = [str(library.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SHARD": str(shard)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def events_of(shard: Path) -> list[dict[str, Any]]:
    profile = read_shard(shard)
    events = profile["events"].to_pylist()
    for event in events:
        event["args"] = {}
    for arg in profile["args"].to_pylist():
        events[arg["event"]]["args"][arg["key"]] = arg["value"]
    return events


def test_it_needs_nothing_of_ours_to_link(example: Path) -> None:
    assert not [name for name in symbols_wanted(example) if name.startswith(("xpr_", "xprof_py_trace_table"))]


@pytest.mark.parametrize(
    "imports", list(itertools.permutations(["import trace_example", "from xprof_py import _native"]))
)
def test_it_records_whichever_is_imported_first(example: Path, tmp_path: Path, imports: tuple[str, str]) -> None:
    code = (
        "\n".join(imports)
        + """
import json, os
trace_example.work(5)
_native.recorder_start(os.environ["SHARD"])
trace_example.work(3)
totals = _native.recorder_stop()
trace_example.work(5)
print(json.dumps([trace_example.attached(), totals["recorded"], totals["written"]]))
"""
    )
    assert run_example(example, tmp_path / "x.xpr", code) == [True, 6, 6]
    events = events_of(tmp_path / "x.xpr")
    by_name: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_name.setdefault(event["name"], []).append(event)
    (outer,), (instant,), (depth,) = by_name["outer"], by_name["instant"], by_name["depth"]
    assert [event["args"] for event in by_name["inner"]] == [{"bytes": 0}, {"bytes": 1}, {"bytes": 2}]
    assert list(depth["args"]) == ["value"]
    assert ctypes.c_double.from_buffer_copy(ctypes.c_int64(depth["args"]["value"])).value == 0.5
    for event in [*by_name["inner"], instant, depth]:
        assert outer["start_ps"] <= event["start_ps"]
        assert event["start_ps"] + event["duration_ps"] <= outer["start_ps"] + outer["duration_ps"]


def test_without_xprof_py_it_runs_and_is_not_attached(example: Path, tmp_path: Path) -> None:
    code = "import trace_example, json; trace_example.work(1000); print(json.dumps(trace_example.attached()))"
    assert run_example(example, tmp_path / "x.xpr", code) is False


def test_threads_without_python_s_lock(example: Path, tmp_path: Path) -> None:
    code = """
import json, os, trace_example
from xprof_py import _native
_native.recorder_start(os.environ["SHARD"])
threads = trace_example.threads(4, 10000)
print(json.dumps([threads, _native.recorder_stop()]))
"""
    threads, totals = run_example(example, tmp_path / "x.xpr", code)
    assert (threads, totals["recorded"], totals["dropped"]) == (4, 4 * 10003, 0)
    inner = [event for event in events_of(tmp_path / "x.xpr") if event["name"] == "inner"]
    for line in {event["line"] for event in inner}:
        values = [event["args"]["bytes"] for event in inner if event["line"] == line]
        assert sorted(values) == list(range(10000))


def test_requests_that_overlap_keep_their_ids_and_times(example: Path, tmp_path: Path) -> None:
    code = """
import json, os, trace_example
from xprof_py import _native
_native.recorder_start(os.environ["SHARD"])
trace_example.requests()
print(json.dumps(_native.recorder_stop()["written"]))
"""
    assert run_example(example, tmp_path / "x.xpr", code) == 4
    events = sorted(events_of(tmp_path / "x.xpr"), key=lambda event: event["args"]["async_id"])
    assert [(event["name"], event["args"]) for event in events] == [
        ("request", {"async_id": i}) for i in range(1000, 1004)
    ]
    starts = [event["start_ps"] for event in events]
    ends = [event["start_ps"] + event["duration_ps"] for event in events]
    assert starts == sorted(starts)
    assert ends == sorted(ends, reverse=True)
    assert len({event["line"] for event in events}) == 4  # where they ended


def test_a_span_across_an_edge_of_a_capture_is_not_recorded(example: Path, tmp_path: Path) -> None:
    code = """
import json, os, trace_example
from xprof_py import _native
trace_example.begin()
_native.recorder_start(os.environ["SHARD"] + ".0")
trace_example.end()
trace_example.begin()
totals = [_native.recorder_stop()["written"]]
_native.recorder_start(os.environ["SHARD"])
trace_example.end()
trace_example.begin()
trace_example.end()
print(json.dumps([*totals, _native.recorder_stop()["written"]]))
"""
    assert run_example(example, tmp_path / "x.xpr", code) == [0, 1]
    (event,) = events_of(tmp_path / "x.xpr")
    assert event["args"] == {"async_id": 7}


def test_python_knows_a_thread_that_began_in_c(example: Path, tmp_path: Path) -> None:
    """The thread's first event comes from C, where Python's hook cannot run: it runs at the first one from Python."""
    code = """
import json, os, trace_example
from xprof_py import _native, trace
seen = []
_native.set_thread_hook(seen.append)
_native.recorder_start(os.environ["SHARD"])
trace_example.work(1)
before = len(seen)
with trace("x"):
    pass
with trace("y"):
    pass
_native.recorder_stop()
print(json.dumps([before, len(seen)]))
"""
    assert run_example(example, tmp_path / "x.xpr", code) == [0, 1]


@pytest.mark.parametrize("driver", [driver for driver, language, _ in LANGUAGES if language == "c++"])
def test_scopes_of_cpp(tmp_path: Path, driver: str) -> None:
    library = tmp_path / "libscope.so"
    flags = ["-std=c++17", "-I", xprof_py.get_include(), "-shared", "-fPIC"]
    compile_with([compiler(driver), *STRICT, *flags, str(HERE / "trace_scope.cc"), "-o", str(library)])
    scope = ctypes.CDLL(str(library)).trace_scope
    # What set_filter says holds for C too: the whole chain, from Python's call to the library's site.
    for level, categories, fine in ((None, None, 3), (2, None, 0), (3, ["gravity"], 3), (None, ["io"], 0)):
        xprof_py.set_filter(level, categories)
        try:
            _native.recorder_start(tmp_path / "x.xpr")
            assert scope(2) == -1
            assert _native.recorder_stop()["written"] == 6 + fine
        finally:
            xprof_py.set_filter()
        events = events_of(tmp_path / "x.xpr")
        names = ["fall"] * 3 + ["fall finely"] * fine + ["fall too"] * 3
        assert sorted(event["name"] for event in events) == names
    for around, within in itertools.pairwise(events):
        assert around["start_ps"] <= within["start_ps"]
        assert around["start_ps"] + around["duration_ps"] >= within["start_ps"] + within["duration_ps"]
