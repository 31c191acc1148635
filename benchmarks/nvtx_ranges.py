"""What NVTX ranges cost with our library attached: off, recording, and without a tool; in C and in Python.

    python benchmarks/nvtx_ranges.py [--rounds 40] [--peers PYTHON]

C       a pair of calls beside none at all, beside two bare reads of the clock, and beside a pair of xprof_py/trace.h
Python  nvtx and, where PYTHON has it, cupy: pairs in processes with and without the library, by turns. PYTHON: an
        interpreter with these packages; the ones of this interpreter without it
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from annotate_native import PAIRS, build, told
from interleaved import Spread

from xprof_py import _native
from xprof_py.injection import nvtx_library

FOLDER = Path(__file__).resolve().parent
KINDS = ("registered", "plain", "start_end")
PYTHON_PAIRS = 20_000

# Runs in the interpreter that has nvtx and cupy: prints the CPU nanoseconds of one pair of each, the best of five.
CHILD = """
import json, sys, time
def best(body, n):
    found = []
    for _ in range(5):
        began = time.thread_time_ns()
        body(n)
        found.append((time.thread_time_ns() - began) / n)
        time.sleep(0.06)
    return min(found)
bodies = {}
import nvtx
def push_pop(n):
    push, pop = nvtx.push_range, nvtx.pop_range
    for _ in range(n): push("region"); pop()
domain = nvtx.get_domain("benchmark"); attributes = domain.get_event_attributes(message="region")
def prepared(n):
    push, pop = domain.push_range, domain.pop_range
    for _ in range(n): push(attributes); pop()
def annotate(n):
    for _ in range(n):
        with nvtx.annotate("region"): pass
bodies = {"nvtx push, pop": push_pop, "nvtx domain, attributes": prepared, "nvtx annotate": annotate}
try:
    from cupy.cuda import nvtx as of_cupy
    def cupy(n):
        push, pop = of_cupy.RangePush, of_cupy.RangePop
        for _ in range(n): push("region"); pop()
    bodies["cupy RangePush, RangePop"] = cupy
except ImportError:
    pass
if sys.argv[1] == "recording":
    from xprof_py import _native
    _native.recorder_start(sys.argv[2], ring_bytes=64 << 20)
print(json.dumps({name: best(body, int(sys.argv[3])) for name, body in bodies.items()}))
if sys.argv[1] == "recording":
    assert not _native.recorder_stop()["dropped"], "the ring was too small"
"""


def client(folder: Path) -> Any:
    """benchmarks/c_nvtx.c as a library, attached to ours."""
    library = folder / "c_nvtx.so"
    command = [os.environ.get("CC", "cc"), "-O2", "-w", "-shared", "-fPIC", "-I", str(FOLDER.parent / "native")]
    subprocess.run([*command, str(FOLDER / "c_nvtx.c"), "-o", str(library), "-ldl"], check=True)
    loaded = ctypes.CDLL(str(library))
    for kind in KINDS:
        function = getattr(loaded, f"{kind}_ns")
        function.restype, function.argtypes = ctypes.c_double, [ctypes.c_long, ctypes.c_int]
    if not loaded.attach(os.fsencode(nvtx_library())):
        raise SystemExit(f"{nvtx_library()} did not attach")
    return loaded


def in_c(folder: Path, rounds: int) -> None:
    library, nvtx = build(folder), client(folder)
    print("\nC, a pair: ns (10 % - 90 %) added to the calls without a tool, an event's half of it; and beside others")
    for state in ("off", "on"):
        if state == "on":
            _native.recorder_start(folder / "nvtx.xpr", ring_bytes=4 << 20)
            for _ in range(10):  # the whole ring once: its memory comes at the first touch
                library.pair_ns(PAIRS)
                time.sleep(0.06)
        for kind in KINDS:
            pair = getattr(nvtx, f"{kind}_ns")
            added, over_bare, over_trace = [], [], []
            for _ in range(rounds):
                with_tool, without = pair(PAIRS, 1), pair(PAIRS, 0)
                bare, trace = library.bare_ns(PAIRS), library.pair_ns(PAIRS)
                added.append(with_tool - without)
                over_bare.append(with_tool / bare)
                over_trace.append(with_tool / trace)
                time.sleep(0.06 if state == "on" else 0)
            found = Spread.of(added)
            print(
                f"  {state:4} {kind:11} {told(found)}, an event {found.middle / 2:.1f}"
                f"   / two bare clock reads {told(Spread.of(over_bare), 2)}"
                f"   / begin and end of trace.h {told(Spread.of(over_trace), 2)}"
            )
        if state == "on":
            dropped = _native.recorder_stop()["dropped"]
            print(f"  events that found no place in the ring: {dropped}")


def in_python(python: str, folder: Path, rounds: int) -> None:
    # The checkout and what was built, together as one package.
    site = folder / "site"
    (site / "xprof_py").mkdir(parents=True)
    for entry in (*(FOLDER.parent / "xprof_py").iterdir(), *Path(_native.__file__).parent.iterdir()):
        place = site / "xprof_py" / entry.name
        if not place.exists():
            place.symlink_to(entry)
    samples: dict[str, dict[str, list[float]]] = {}
    states = ("without", "off", "recording")
    for _ in range(rounds):
        for state in states:
            environ = {**os.environ, "PYTHONPATH": os.fspath(site)}
            environ.pop("NVTX_INJECTION64_PATH", None)
            if state != "without":
                environ["NVTX_INJECTION64_PATH"] = os.fspath(nvtx_library())
            arguments = [
                python,
                "-c",
                CHILD,
                state,
                str(folder / "python.xpr"),
                str(PYTHON_PAIRS),
                str(_native.__file__),
            ]
            done = subprocess.run(arguments, env=environ, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"\nPython: not measured: {done.stderr.strip().splitlines()[-1]}")
                return
            for name, value in json.loads(done.stdout).items():
                samples.setdefault(name, {}).setdefault(state, []).append(value)
    print("\nPython, a pair: ns (10 % - 90 %) of CPU time without a tool, and what off and recording add")
    for name, by_state in samples.items():
        added = {
            state: Spread.of([a - b for a, b in zip(by_state[state], by_state["without"], strict=True)])
            for state in states[1:]
        }
        print(
            f"  {name:24} {told(Spread.of(by_state['without']), 0):20} off {told(added['off'], 0):22}"
            f" recording {told(added['recording'], 0)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="xprof_py-nvtx-"))
    try:
        in_c(folder, args.rounds)
        in_python(args.peers, folder, max(3, args.rounds // 8))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
