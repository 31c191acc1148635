"""Whether memory stays flat as profiles grow: `xprof-py analyze` of captures of which each is ten times as long.

    python benchmarks/memory.py SOURCE.xplane.pb[.gz] [--events 1200000 12000000 120000000] [--kineto 300000 3000000]

SOURCE is a capture of JAX on a CPU with its Python tracer on; longer ones are made of it (long_capture.py); the Kineto
file is one rank as decode.py writes it. Printed are CPU seconds, the peak of resident memory, and of it the part that
the system cannot take back without swap (RssAnon, looked at every 2 ms): what lies in files (docs/reading.md) is
resident only as long as nobody needs the room.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from decode import write_kineto
from long_capture import write_long

LOOK_S = 0.002


def anonymous_mb(pid: int) -> float:
    """What a process holds that is of no file, 0 where it has ended."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.M)
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def analyze(trace: Path) -> tuple[float, float, float]:
    """(CPU seconds, peak resident MB, peak anonymous MB) of one analysis by one process."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "xprof_py", "analyze", str(trace), "-o", f"{out}/analysis", "--workers", "1"]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        anonymous = 0.0
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            anonymous = max(anonymous, anonymous_mb(child.pid))
            time.sleep(LOOK_S)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, command)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, anonymous


def report(what: str, events: int, trace: Path) -> None:
    cpu_s, resident_mb, anonymous = analyze(trace)
    size = f"{trace.stat().st_size / 1e6:.0f} MB"
    print(f"{what:8} {events:>12,} events {size:>9} {cpu_s:8.2f} {resident_mb:8.0f} {anonymous:8.0f}", flush=True)
    trace.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--events", type=int, nargs="*", default=[1_200_000, 12_000_000, 120_000_000])
    parser.add_argument("--kineto", type=int, nargs="*", default=[300_000, 3_000_000])
    options = parser.parse_args()
    # Bytecode that is never written is compiled anew each time: that would be measured too.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"{'':41} CPU s  peak MB  of it anonymous")
    with tempfile.TemporaryDirectory(prefix="xprof_py-memory-") as folder:
        for wanted in options.events:
            trace = Path(folder, "capture.xplane.pb")
            report("XSpace", write_long(options.source, trace, wanted), trace)
        for wanted in options.kineto:
            trace = Path(folder, "rank0.json.gz")
            write_kineto(trace, wanted)
            report("Kineto", wanted, trace)


if __name__ == "__main__":
    main()
