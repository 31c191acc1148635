"""What the leading process holds of a job whose hosts meet in collectives: memory and CPU per host and collective.

    python benchmarks/fleet_collectives.py [--hosts 16 64 256] [--steps 20] [--collectives 50]

Made-up hosts (tests/made_up_jobs.py): in every step each runs one program with so many all-reduces, and host 1 comes a
tenth of a step late. Pass 1 is done beforehand, by a process of its own. Measured is the leading process with one
worker: solve, map 2, merge, rounds of questions, replay, write.

    lead MB    its largest resident memory; with 2 hosts of one collective it is what Python and Arrow take
    bytes      what is beyond that, over hosts and over collectives of a host
    lead s     its CPU; `us` over hosts and collectives. `worker s`: the worker's, pass 1 left out
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from made_up_jobs import make_job

MEASURED = """
import json, resource, sys
from pathlib import Path
from xprof_py.postprocess.fleet import analysis, run_job, schedulers
from xprof_py.postprocess.fleet.spool import Spool
from xprof_py.postprocess.readers.sources import Source, Sources

folder, hosts = Path(sys.argv[1]), int(sys.argv[2])
sources = Sources([Source(f"{n:04}", folder / f"{n:04}.xplane.pb") for n in range(hosts)], None)
running = schedulers.LocalWorkers(1)
result = run_job.analyse_job(sources, Spool(folder / "spool"), running, resume=True)
fields = Path(f"/proc/{running._workers[0].process.pid}/stat").read_text().rpartition(")")[2].split()
running.close()
analysis.write_analysis(result, folder / "out")
mine = resource.getrusage(resource.RUSAGE_SELF)
straggler = result.summary["straggler"] or {}
print(json.dumps({
    "peak_mb": mine.ru_maxrss / 1024, "cpu_s": mine.ru_utime + mine.ru_stime,
    "worker_s": (int(fields[11]) + int(fields[12])) / 100,
    "straggler": straggler.get("host"), "lost_ms": straggler.get("lost_ms_per_step"),
}))
"""


def measure(hosts: int, steps: int, collectives: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="xprof_py-job-") as folder:
        make_job(Path(folder), hosts, steps, collectives)
        ran = subprocess.run([sys.executable, "-c", MEASURED, folder, str(hosts)], stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--collectives", type=int, default=50, help="of a step")
    options = parser.parse_args()
    least_mb = measure(2, 1, 1)["peak_mb"]
    many = options.steps * options.collectives
    print(f"{many} collectives a host; {least_mb:.0f} MB hold nothing yet")
    print(f"{'hosts':>6} {'lead MB':>8} {'bytes':>7} {'lead s':>8} {'us':>6} {'worker s':>9}  straggler")
    for hosts in options.hosts:
        found = measure(hosts, options.steps, options.collectives)
        each = (found["peak_mb"] - least_mb) * 2**20 / hosts / many
        us = found["cpu_s"] / hosts / many * 1e6
        print(
            f"{hosts:6} {found['peak_mb']:8.0f} {each:7.0f} {found['cpu_s']:8.2f} {us:6.1f} {found['worker_s']:9.2f}"
            f"  {found['straggler']}, {found['lost_ms']} ms a step",
            flush=True,
        )


if __name__ == "__main__":
    main()
