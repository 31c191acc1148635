"""What one annotation costs outside the `with` statement: in C, in the drainer, and in a whole step.

    python benchmarks/annotate_native.py [--rounds 40]

C pair      begin and end of xprof_py/trace.h beside two bare reads of the clock, CPU time of the thread; on one thread
            and on two
step        CPU time of its thread and of the drainer that 1,000 spans add to a step, with Python's `with` and in C;
            off, on and without them by turns; on also in a new ring's first lap, whose memory comes page by page
drainer     CPU time of the thread that brings events from the rings to the shard, and of the reader that makes columns
            of the shard; beside JAX's stop_trace for as many events
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from interleaved import Spread

import xprof_py
from xprof_py import _native

PAIRS = 20_000
SPANS_OF_A_STEP = 1000
STEPS = 20
RING_SLOTS = (4 << 20) // 32
WRITE_BYTES = 2 << 20
FOLDER = Path(__file__).resolve().parent


def told(spread: Spread, digits: int = 1) -> str:
    return f"{spread.middle:.{digits}f} ({spread.low:.{digits}f} - {spread.high:.{digits}f})"


def build(folder: Path) -> Any:
    """benchmarks/c_pair.c as a library, its functions declared."""
    library = folder / "c_pair.so"
    command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-pthread", "-I", xprof_py.get_include()]
    subprocess.run([*command, str(FOLDER / "c_pair.c"), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    for name in ("pair_ns", "bare_ns", "cpu_clock_ns", "threads_pair_ns"):
        function = getattr(loaded, name)
        function.restype = ctypes.c_double
        function.argtypes = [ctypes.c_int, ctypes.c_long] if name == "threads_pair_ns" else [ctypes.c_long]
    return loaded


def c_pair(library: Any, folder: Path, rounds: int) -> None:
    print("\nC pair, ns (10 % - 90 %)")
    for state in ("off", "on"):
        if state == "on":
            _native.recorder_start(folder / "pair.xpr")
            for _ in range(10):  # the whole ring once: its memory comes at the first touch
                library.pair_ns(PAIRS)
                time.sleep(0.06)
        pairs, ratios, two_threads = [], [], []
        for _ in range(rounds):
            pair, bare = library.pair_ns(PAIRS), library.bare_ns(PAIRS)
            one, two = library.threads_pair_ns(1, PAIRS), library.threads_pair_ns(2, PAIRS)
            pairs.append(pair)
            ratios.append(pair / bare)
            two_threads.append(two / one)
            time.sleep(0.06 if state == "on" else 0)
        if state == "on":
            _native.recorder_stop()
        print(
            f"  {state:4} {told(Spread.of(pairs))}   / two bare clock reads {told(Spread.of(ratios), 2)}"
            f"   on two threads at once / on one {told(Spread.of(two_threads), 2)}"
        )
    clocks = Spread.of([library.cpu_clock_ns(PAIRS // 20) for _ in range(rounds)])
    print(f"  two reads of the thread's CPU clock, which a recorded step makes: {told(clocks, 0)}")


def drainer_cpu_ns() -> int:
    """CPU time of the drainer's thread so far."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "xprof_py.drain":
            return int((task / "schedstat").read_text().split()[0])
    raise SystemExit("no drainer runs")


def written_ns(folder: Path, rounds: int) -> Spread:
    """CPU nanoseconds that the kernel takes to write 32 bytes to new pages of a file there: no recorder takes less."""
    block = bytes(range(256)) * (WRITE_BYTES // 256)
    found = []
    for _ in range(max(3, rounds)):
        with (folder / "floor").open("wb", buffering=0) as file:
            began = time.thread_time_ns()
            for _ in range(16):
                file.write(block)
            found.append((time.thread_time_ns() - began) / (16 * WRITE_BYTES / 32))
    return Spread.of(found)


def drainer(library: Any, folder: Path, rounds: int) -> None:
    from xprof_py.postprocess.readers.shard import read_shard

    per_lap: tuple[list[float], list[float]] = ([], [])
    reading = []
    for _ in range(max(3, rounds // 8)):
        _native.recorder_start(folder / "drain.xpr", ring_bytes=32 << 20)
        for lap in range(2):  # the ring's memory comes in the first
            time.sleep(0.1)
            idle = drainer_cpu_ns()
            for _ in range(21):
                library.pair_ns(50_000)
                time.sleep(0.06)
            per_lap[lap].append((drainer_cpu_ns() - idle) / 21 / 50_000)
        _native.recorder_stop()
        began = time.process_time_ns()
        read = read_shard(folder / "drain.xpr")["events"].num_rows
        reading.append((time.process_time_ns() - began) / read)
    print("\nfrom ring to shard, ns of CPU time an event; and from shard to the columns of the table")
    drained = Spread.of(per_lap[1])
    print(f"  drainer {told(drained)} ({1000 / drained.middle:.0f} M events/s of one core)")
    print(f"          in a new ring's first lap, whose memory it asks for: {told(Spread.of(per_lap[0]))}")
    print(
        f"          as many bytes merely written, {WRITE_BYTES >> 20} MiB at a time: {told(written_ns(folder, rounds))}"
    )
    print(f"  reader  {told(Spread.of(reading))}")
    theirs = stop_trace_ns(folder, 200_000)
    if theirs:
        print(f"  JAX's stop_trace {theirs:.0f}: {theirs / drained.middle:.0f} times the drainer")


def stop_trace_ns(folder: Path, events: int) -> float | None:
    """CPU nanoseconds an event that jax.profiler.stop_trace takes; None without JAX."""
    try:
        import jax
    except ImportError:
        return None
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(str(folder / "jax"), profiler_options=options)
    annotation = jax.profiler.TraceAnnotation
    for _ in range(events):
        with annotation("region"):
            pass
    began = time.process_time_ns()
    jax.profiler.stop_trace()
    return (time.process_time_ns() - began) / events


def plain_step(spans: int) -> None:
    for _ in range(spans):
        pass


def annotated_step(spans: int) -> None:
    trace = xprof_py.trace
    for _ in range(spans):
        with trace("region"):
            pass


def whole_step(library: Any, folder: Path, rounds: int) -> None:
    """Prints the thread's and the drainer's CPU time of a span, less the loop's own."""

    def c_step(spans: int) -> None:
        library.pair_ns(spans)

    def spent(step: Any, state: str) -> tuple[float, float]:
        if state.startswith("on"):
            _native.recorder_start(folder / "step.xpr")
            step(1)
            time.sleep(0.1)
        if state == "on":
            for _ in range(RING_SLOTS // SPANS_OF_A_STEP + 1):
                step(SPANS_OF_A_STEP)
                time.sleep(0.001)
        began = time.thread_time_ns(), drainer_cpu_ns() if state.startswith("on") else 0
        for _ in range(STEPS):
            step(SPANS_OF_A_STEP)
            time.sleep(0.005)  # a device's turn, in which the drainer runs
        mine = time.thread_time_ns() - began[0]
        drained = drainer_cpu_ns() - began[1] if state.startswith("on") else 0
        if state.startswith("on"):
            _native.recorder_stop()
        return mine / STEPS / SPANS_OF_A_STEP, drained / STEPS / SPANS_OF_A_STEP

    states = ("without", "off", "on, first lap", "on")
    forms = {"with": annotated_step, "in C": c_step}
    samples: dict[tuple[str, str], list[tuple[float, float]]] = {(f, s): [] for f in forms for s in states}
    order = list(samples)
    for _ in range(max(5, rounds // 2)):
        random.shuffle(order)
        for form, state in order:
            samples[form, state].append(spent(plain_step if state == "without" else forms[form], state))
    print(f"\na step of {SPANS_OF_A_STEP} spans, then 5 ms of sleep: ns of CPU time that a span adds")
    print(f"  {'':24}{'its thread':>22}{'drainer':>22}")
    for form in forms:
        for state in states[1:]:
            added = [a[0] - b[0] for a, b in zip(samples[form, state], samples[form, "without"], strict=True)]
            drained = Spread.of([d for _, d in samples[form, state]])
            print(f"  {form + ', ' + state:24}{told(Spread.of(added), 0):>22}{told(drained, 0):>22}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    folder = Path(tempfile.mkdtemp(prefix="xprof_py-annotate-"))
    try:
        library = build(folder)
        c_pair(library, folder, rounds)
        whole_step(library, folder, rounds)
        drainer(library, folder, rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
