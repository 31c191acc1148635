"""What one kernel launch costs through the collector of device activity, parsing and the shard's writing included.

    python benchmarks/device.py [--launches 1000000] [--rounds 7] [--folder DIR]

The GPU is the test double (native/tests/fakes/cupti.c): it makes the records that CUPTI makes of a launch, a call and a
kernel, and in the second case the range in which the launch was made. Both sides have the same records made; one throws
them away, the other collects them into a shard. They take turns; the difference of their CPU times, of all threads of
the process, is the collector's. CUPTI's own cost is not in it, since no GPU is.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import fake_gpu

from xprof_py import _native


def cpu_ns(work: Any) -> int:
    """CPU time of all threads of this process while ``work()`` runs."""
    before = time.process_time_ns()
    work()
    return time.process_time_ns() - before


def thrown_away(gpu: fake_gpu.FakeGpu, launches: int) -> None:
    gpu.throw_away(True)
    gpu.launches("gemm_fusion_dot_1", 1, launches)
    gpu.throw_away(False)


def collected(gpu: fake_gpu.FakeGpu, launches: int, shard: Path, reports: list[dict[str, Any]]) -> None:
    _native.recorder_start(os.fspath(shard), budget_bytes=1 << 40)
    started = _native.cupti_start([])
    assert not started["why"], started["why"]
    gpu.launches("gemm_fusion_dot_1", 1, launches)
    reports.append(_native.cupti_stop(60.0))
    _native.recorder_stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--launches", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", default=None, help="where the shard is written; a temporary folder by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        fakes = fake_gpu.build(Path(folder))
        fake_gpu.load_driver(fakes)
        gpu = fake_gpu.FakeGpu(fakes)
        os.environ["XPROF_CUPTI_LIB"] = gpu.path
        shard, n = Path(folder) / "x.xpr", arguments.launches
        session = 0
        for in_range in (False, True):
            added, baseline, reports = [], [], list[dict[str, Any]]()
            for _ in range(arguments.rounds):
                session += 1
                if in_range:
                    gpu.push(session << 32 | 2)
                without = cpu_ns(lambda: thrown_away(gpu, n))
                with_it = cpu_ns(lambda into=reports: collected(gpu, n, shard, into))
                if in_range:
                    gpu.pop()
                added.append((with_it - without) / n)
                baseline.append(without / n)
                last = reports[-1]
                lost = last["dropped"] + last["buffers_refused"] + last["no_memory"] + last["cut_buffers"]
                assert (last["activities"], last["calls"], lost) == (n, n, 0), last
            added.sort()
            parsing = median(report["cpu_ns"] for report in reports) / n
            what = "a call, a kernel and a range" if in_range else "a call and a kernel"
            print(
                f"{what}: {median(added):.0f} ns added per launch ({added[0]:.0f} to {added[-1]:.0f}), "
                f"{parsing:.0f} ns of it in the collector; {median(baseline):.0f} ns for the records alone; "
                f"{n} launches x {arguments.rounds}, 0 lost"
            )


if __name__ == "__main__":
    main()
