"""What it costs to read a large profile, from file to answer, next to the tools that read the same files.

    XPROF_PY_PEERS_PYTHON=... XPROF_PY_XPROF_RS=... XPROF_PY_HTA_PYTHON=... \\
        python benchmarks/reading.py SOURCE.xplane.pb[.gz] [--repeats 5] [--only decode analyze kineto]

SOURCE is a capture of JAX on a CPU with its Python tracer on; longer ones are made of it (long_capture.py).
XPROF_PY_PEERS_PYTHON names a Python with `xprof`, XPROF_PY_XPROF_RS the program `xprof-rs`, XPROF_PY_HTA_PYTHON a
Python with HolisticTraceAnalysis; peers without one are left out, and said so. Every reading is a process of its own;
the two sides take turns, and the least of all repeats counts: what a loaded machine adds, it adds to either. CPU
seconds are those of the whole process; of `decode` and `kineto`, where one function is compared with another, they
leave out the imports.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from analyze import Cost, cost_of
from decode import measured, write_kineto
from long_capture import write_long

FEWER_EVENTS, MORE_EVENTS = 4_050_000, 12_030_000
KINETO_EVENTS = 1_000_000

NINE_TOOLS = (
    "overview_page",
    "input_pipeline_analyzer",
    "framework_op_stats",
    "hlo_stats",
    "op_profile",
    "roofline_model",
    "kernel_stats",
    "pod_viewer",
    "smart_suggestion",
)
TOOL = """
import sys
from xprof.convert import raw_to_tool_data
raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], sys.argv[2], {})
"""

Measure = Callable[[], Cost]


def analyze(trace: Path) -> Cost:
    """`xprof-py analyze` with all that it writes by default."""
    with tempfile.TemporaryDirectory() as out:
        return cost_of([sys.executable, "-m", "xprof_py", "analyze", str(trace), "-o", f"{out}/analysis"])


def xprof_rs(program: str, trace: Path) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        return cost_of([program, "get_overview", shutil.copy(trace, folder)])


def nine_tools(python: str, trace: Path) -> Cost:
    """XProf's tools that rest on OpStats, each cold: XProf keeps a cache beside the trace."""
    costs = []
    for tool in NINE_TOOLS:
        with tempfile.TemporaryDirectory() as folder:
            costs.append(cost_of([python, "-c", TOOL, shutil.copy(trace, folder), tool]))
    return Cost(sum(cost.cpu_s for cost in costs), max(cost.peak_mb for cost in costs))


def reader(name: str, file: Path) -> Cost:
    """A reader of decode.py: CPU seconds and megabytes of the reading alone."""
    found = measured(name, file)
    return Cost(found["cpu_s"], found["added_mib"])


def compare(title: str, ours: Measure, theirs: Measure | str, repeats: int) -> None:
    """Print the least of either side; ``theirs`` as a string: why there is none."""
    mine, other = [], []
    for _ in range(repeats):
        mine.append(ours())
        if not isinstance(theirs, str):
            other.append(theirs())
    own = Cost(min(cost.cpu_s for cost in mine), min(cost.peak_mb for cost in mine))
    print(f"{title}\n  ours    {own.cpu_s:8.2f} CPU s {own.peak_mb:8.0f} MB")
    if isinstance(theirs, str):
        print(f"  theirs  left out: {theirs}", flush=True)
        return
    peer = Cost(min(cost.cpu_s for cost in other), min(cost.peak_mb for cost in other))
    print(f"  theirs  {peer.cpu_s:8.2f} CPU s {peer.peak_mb:8.0f} MB")
    share = f"{own.peak_mb / peer.peak_mb:.2f} of its memory"
    print(f"  ours takes 1/{peer.cpu_s / own.cpu_s:.1f} of its CPU, {share}", flush=True)


def program(variable: str) -> str | None:
    """The program that an environment variable names, None without."""
    named = os.environ.get(variable)
    return named if named and shutil.which(named) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=["decode", "analyze", "kineto"], default=[])
    options = parser.parse_args()
    wanted = options.only or ["decode", "analyze", "kineto"]
    peers, rs, hta = (program(f"XPROF_PY_{name}") for name in ("PEERS_PYTHON", "XPROF_RS", "HTA_PYTHON"))
    # Bytecode that is never written is compiled anew each time: that would be measured too.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="xprof_py-reading-") as folder:
        few, many = Path(folder, "few.xplane.pb"), Path(folder, "many.xplane.pb")
        if {"decode", "analyze"} & set(wanted):
            count = write_long(options.source, few, FEWER_EVENTS)
            print(f"{count} events, {few.stat().st_size / 1e6:.0f} MB; least of {options.repeats}", flush=True)
        if "decode" in wanted:
            has_jax = subprocess.run([sys.executable, "-c", "import jax"], capture_output=True, check=False)
            theirs = (lambda: reader("ProfileData", few)) if has_jax.returncode == 0 else "no jax here"
            compare(
                "decode: all columns, ProfileData",
                lambda: reader("  of it decode_xspace", few),
                theirs,
                options.repeats,
            )
        if "analyze" in wanted:
            theirs = (lambda: nine_tools(peers, few)) if peers else "XPROF_PY_PEERS_PYTHON is not set"
            compare("analyze: nine tools of XProf", lambda: analyze(few), theirs, options.repeats)
            count = write_long(options.source, many, MORE_EVENTS)
            print(f"{count} events, {many.stat().st_size / 1e6:.0f} MB")
            theirs = (lambda: xprof_rs(rs, many)) if rs else "XPROF_PY_XPROF_RS is not set"
            compare("analyze: get_overview of xprof-rs", lambda: analyze(many), theirs, options.repeats)
        if "kineto" in wanted:
            rank = Path(folder, "rank0.json.gz")
            write_kineto(rank, KINETO_EVENTS)
            print(f"one rank of Kineto, {KINETO_EVENTS} events, {rank.stat().st_size / 1e6:.0f} MB")
            theirs = (lambda: reader("HTA, load", rank)) if hta else "XPROF_PY_HTA_PYTHON is not set"
            compare("kineto: load of HTA", lambda: reader("read_chrome_json", rank), theirs, options.repeats)


if __name__ == "__main__":
    main()
