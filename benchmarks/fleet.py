"""What analysing many hosts costs: memory of a worker, CPU per event, and what a second worker brings.

    python benchmarks/fleet.py [SOURCE.xplane.pb[.gz]] [--hosts 16 64 256] [--events 100000] [--repeats 3]

Every host's profile is a recorded capture repeated to so many events (benchmarks/long_capture.py). Hosts share the
content of their files, which lie as hard links under names of their own: the disk's part is left out, and nothing is
known twice, since partials are kept by the names too. One file analysed by itself is measured beside each fleet.

    worker MB     the largest resident memory of any worker, Python and Arrow included (about 90 MB hold nothing yet)
    lead MB       the same of the process that solves and finishes
    us per event  CPU of all processes over all events, imports included; `single` is one host's, without workers
    critical path CPU of the busiest worker and of the leading process together, two workers over one
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from interleaved import Spread
from long_capture import write_long

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "tests" / "data" / "jax_cpu" / "transformer_async20.xplane.pb.gz"

# The analysis as the command runs it, and what its workers used: said by the processes themselves.
MEASURED = """
import json, resource, sys, shutil
from pathlib import Path
from xprof_py.postprocess.fleet import analysis, run_job, schedulers
from xprof_py.postprocess.fleet.spool import Spool
from xprof_py.postprocess.readers.sources import find_sources

def used(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {"cpu_s": (int(fields[11]) + int(fields[12])) / 100, "peak_mb": int(status["VmHWM"].split()[0]) / 1024}

source, out, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if workers:
    running = schedulers.LocalWorkers(workers)
    result = run_job.analyse_job(find_sources([source]), Spool(out / ".partials"), running)
    by_worker = [used(worker.process.pid) for worker in running._workers]
    running.close()
else:
    result, by_worker = analysis.analyse([source]), []
analysis.write_analysis(result, out)
mine = resource.getrusage(resource.RUSAGE_SELF)
lead = {"cpu_s": mine.ru_utime + mine.ru_stime, "peak_mb": mine.ru_maxrss / 1024}
print(json.dumps({"workers": by_worker, "lead": lead}))
"""


def make_fleet(folder: Path, capture: Path, hosts: int) -> Path:
    """A folder of ``hosts`` profiles of one content."""
    folder.mkdir()
    for host in range(hosts):
        os.link(capture, folder / f"{host}.xplane.pb")
    return folder


def measure(source: Path, workers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=source.parent) as out:
        command = [sys.executable, "-c", MEASURED, str(source), f"{out}/analysis", str(workers)]
        ran = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def total_cpu_s(found: dict[str, Any]) -> float:
    return float(found["lead"]["cpu_s"] + sum(worker["cpu_s"] for worker in found["workers"]))


def critical_cpu_s(found: dict[str, Any]) -> float:
    return float(found["lead"]["cpu_s"] + max(worker["cpu_s"] for worker in found["workers"]))


def shown(values: list[float], digits: int) -> str:
    spread = Spread.of(values)
    return f"{spread.middle:.{digits}f} ({spread.low:.{digits}f} - {spread.high:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?", default=SOURCE)
    parser.add_argument("--hosts", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xprof_py-fleet-") as folder:
        capture = Path(folder) / "capture.xplane.pb"
        events = write_long(options.source, capture, options.events)
        print(f"{events} events and {capture.stat().st_size / 1e6:.1f} MB a host; medians (10 % - 90 %)")
        print(f"{'hosts':>6} {'worker MB':>18} {'lead MB':>16} {'us per event':>20} {'single':>20} {'path 2/1':>18}")
        for hosts in options.hosts:
            fleet = make_fleet(Path(folder) / f"{hosts}", capture, hosts)
            one, two, single = [], [], []
            for _ in range(options.repeats):
                # Taking turns: what else the machine does meets all of them.
                single.append(measure(capture, 0))
                one.append(measure(fleet, 1))
                two.append(measure(fleet, 2))
            worker_mb = [max(w["peak_mb"] for w in found["workers"]) for found in one + two]
            lead_mb = [found["lead"]["peak_mb"] for found in one + two]
            per_event = [total_cpu_s(found) / hosts / events * 1e6 for found in one]
            alone = [total_cpu_s(found) / events * 1e6 for found in single]
            path = [critical_cpu_s(b) / critical_cpu_s(a) for a, b in zip(one, two, strict=True)]
            print(
                f"{hosts:6} {shown(worker_mb, 0):>18} {shown(lead_mb, 0):>16} {shown(per_event, 2):>20} "
                f"{shown(alone, 2):>20} {shown(path, 2):>18}   x{median(per_event) / median(alone):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
