"""Instructions that one annotation takes, counted by callgrind: unlike nanoseconds the same on a busy machine.

    python benchmarks/annotate_instructions.py [--functions N]

Needs valgrind. Counted are all instructions of the process between two marks, less those of an empty loop of the same
length; the interpreter's own part of a `with` statement or a call is among them. `--functions N` lists the N functions
of the recording cases that take most.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

TIMES = 2000
ARGUMENTS = "layer=3, loss=0.5, phase='warm'"
CASES = (
    ("empty loop", "pass"),
    ("with lock: pass", "with lock: pass"),
    ("plain call", "f()"),
    ("with trace('region')", "with trace('region'): pass"),
    ("with trace('region', layer=3)", "with trace('region', layer=3): pass"),
    ("with trace('region', 3 arguments)", f"with trace('region', {ARGUMENTS}): pass"),
    ("with step(i)", "with step(i): pass"),
    ("@trace, called", "traced()"),
)

PROGRAM = """
import os, sys, threading, time
from xprof_py import _native, step, trace
lock = threading.Lock()
def f(): pass
traced = trace(f)
loops = []
for _, statement in {cases!r}:
    space = dict(lock=lock, f=f, traced=traced, step=step, trace=trace)
    exec("def loop(n):\\n    for i in n:\\n        " + statement, space)
    loops.append(space["loop"])
for path in (None, {path!r}):
    if path:
        _native.recorder_start(path, ring_bytes=64 << 20)
    for loop in loops:
        loop(range(100))
        os.getpgrp()
        loop(range({times}))
        os.getpgrp()
        time.sleep(0.001)
_native.recorder_stop()
"""


def counted(dump: Path) -> Counter[str]:
    """Instructions per function of one callgrind dump."""
    names: dict[str, str] = {}
    found: Counter[str] = Counter()
    function, skip = "", False
    for line in dump.read_text().splitlines():
        match = re.match(r"fn=(\(\d+\))(?: (.*))?", line)
        if match:
            names.setdefault(match[1], match[2] or "?")
            function = names[match[1]]
        elif match := re.match(r"cfn=(\(\d+\))(?: (.*))?", line):
            names.setdefault(match[1], match[2] or "?")
        elif line.startswith("calls="):
            skip = True  # the next line is the callee's cost
        elif re.match(r"[+\-*\d]", line):
            if not skip and len(parts := line.split()) > 1:
                found[function] += int(parts[1])
            skip = False
    return found


def measure(folder: Path) -> list[Counter[str]]:
    """Per function, one count for each case off, then for each on."""
    program = PROGRAM.format(cases=CASES, path=str(folder / "x.xpr"), times=TIMES)
    command = ["valgrind", "--tool=callgrind", "--dump-before=os_getpgrp", "--dump-instr=no", "--compress-strings=yes"]
    command += ["--separate-threads=yes", "--compress-pos=no", f"--callgrind-out-file={folder / 'out'}", sys.executable]
    done = subprocess.run([*command, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    # The main thread's alone, not the drainer's.
    dumps = sorted(folder.glob("out.*-01"), key=lambda path: int(path.name.split(".")[1].split("-")[0]))
    # Before each mark one dump: those with an even number are the timed loops.
    return [counted(dump) for dump in dumps[1::2]][: 2 * len(CASES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", type=int, default=0)
    functions = parser.parse_args().functions
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not on PATH")
    with tempfile.TemporaryDirectory() as folder:
        counts = measure(Path(folder))
    off, on = counts[: len(CASES)], counts[len(CASES) :]
    print(f"instructions of one execution, {TIMES} executions each, CPython {sys.version.split()[0]}")
    print(f"  {'':36}{'off':>8}{'on':>8}")
    for (name, _), a, b in zip(CASES, off, on, strict=True):
        empty = (0, 0) if name == CASES[0][0] else (off[0].total(), on[0].total())
        print(f"  {name:36}{(a.total() - empty[0]) / TIMES:8.0f}{(b.total() - empty[1]) / TIMES:8.0f}")
    for (name, _), b in zip(CASES[3:], on[3:], strict=True):
        for function, count in b.most_common(functions):
            print(f"  {name:36}{count / TIMES:8.0f}  {function}")


if __name__ == "__main__":
    main()
