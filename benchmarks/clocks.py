"""How far clocks are from the truth, by method, and what the largest fleet costs.

    python benchmarks/clocks.py [--clocks 512] [--collectives 10000] [--json]

Made-up fleets (tests/made_up_fleets.py) of known clocks, and recorded trainings with skewed ones where
XPROF_PY_REAL_TRACES has them. Beside ours stand, on the same stamps, what other tools do: nothing (no alignment), one
time for all that begins with each trace (viewers that show several hosts by relative time), one offset from the median
difference of the ends of collectives, and a line through those differences. Eight ranks of DLRM are shifted by known
times first; their clocks were one. Printed are errors
in us (median, 99th percentile, largest over the capture and all hosts), the share of the truth within our bound, the
median bound, and CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import shifted_ranks
from made_up_fleets import BEGIN_NS, QUANTUM_NS, Fleet, score
from skewed_captures import TRACES, recorded

from xprof_py.postprocess.clocks.clock_map import to_fleet_ns
from xprof_py.postprocess.clocks.crowd import Meetings
from xprof_py.postprocess.clocks.solve import ClockedProcess, solve_clocks

Int64 = np.ndarray[Any, np.dtype[np.int64]]
Theta = Callable[[int, Int64], Int64]
"""(host, its own times) -> how far its clock is taken to be ahead of the reference's."""


def peers(meetings: Meetings, processes: Sequence[ClockedProcess]) -> dict[str, Theta]:
    """What others make of the same collectives."""
    begin = [process.begin_ns - processes[0].begin_ns for process in processes]
    both = [meetings.present[0] & row for row in meetings.present]
    apart = [row[here] - meetings.end_ns[0, here] for row, here in zip(meetings.end_ns, both, strict=True)]
    median = [int(np.median(values)) for values in apart]

    def line(host: int, shown_ns: Int64) -> Int64:
        at = meetings.end_ns[host, both[host]]
        slope, value = np.polyfit((at - at[0]) / 1e9, (apart[host] - median[host]).astype(np.float64), 1)
        return median[host] + np.rint(value + slope * (shown_ns - at[0]) / 1e9).astype(np.int64)

    return {
        "no alignment": lambda _, shown_ns: np.zeros_like(shown_ns),
        "each from its own start": lambda host, shown_ns: np.full_like(shown_ns, begin[host]),
        "median of ends": lambda host, shown_ns: np.full_like(shown_ns, median[host]),
        "line through ends": line,
    }


def row(what: str, how: str, errors_ns: list[Int64], **more: float) -> dict[str, Any]:
    p50, p99, largest = np.percentile(np.concatenate(errors_ns) / 1e3, [50, 99, 100]).tolist()
    return {"input": what, "method": how, "p50_us": p50, "p99_us": p99, "largest_us": largest, **more}


def made_up(clocks: int, collectives: int) -> list[dict[str, Any]]:
    """The validator's fleets: probes quiet, loaded and asymmetric, and collectives."""
    rows = []
    cases = {
        "quiet": {"queue_us": 20.0},
        "loaded": {"queue_us": 500.0},
        "asymmetric 60/40": {"way_us": (30.0, 20.0)},
    }
    for name, how in cases.items():
        fleet = Fleet(4, 300)
        rows.append(_solved(f"probes {name}, 20/s", fleet, [fleet.exchange(h, 0, **how) for h in (1, 2, 3)], None))
    for name, how in {
        "8 us jitter": {},
        "30 us skew": {"skew_us": 30.0},
        "300 us jitter": {"jitter_us": 300.0},
    }.items():
        fleet = Fleet(8, 300)
        meetings = fleet.meet(**how)[0]
        rows.append(_solved(f"collectives 10/s, {name}", fleet, [], meetings))
        real_s = np.linspace(0, fleet.seconds, 1500)
        for peer, theta in peers(meetings, fleet.processes()).items():
            apart = []
            for host in range(1, fleet.count):
                shown = BEGIN_NS + np.rint(real_s * 1e9 + fleet.ahead_ns(host, real_s)).astype(np.int64)
                true = np.rint(fleet.ahead_ns(host, real_s) - fleet.ahead_ns(0, real_s))
                apart.append(np.abs(theta(host, shown) - true))
            rows.append(row(f"collectives 10/s, {name}", peer, apart))
    fleet = Fleet(clocks, collectives / 10)
    rows.append(_solved(f"{clocks} clocks x {collectives} collectives", fleet, [], fleet.meet()[0]))
    return rows


TENSOR, DATA = ((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 2, 4, 6), (1, 3, 5, 7))


def parallel() -> list[dict[str, Any]]:
    """The validator in full: process groups, late joiners, jumps, one host that is always late; five fleets each."""
    rows = []
    for seed in range(5):
        fleet = Fleet(8, 300, seed)
        rows.append(_solved(f"groups, {seed}", fleet, [], fleet.meet(60, among=(*TENSOR, *DATA), lost=0.02)[0]))
        fleet = Fleet(8, 300, seed, jumps={5: (123.4, 3e6)})
        rows.append(_solved(f"groups, a clock set, {seed}", fleet, [], fleet.meet(40, among=(*TENSOR, *DATA))[0]))
        fleet = Fleet(8, 300, seed, there={3: (90, 300), 5: (0, 120), 6: (150, 200)})
        rows.append(_solved(f"late joiners, {seed}", fleet, [], fleet.meet()[0]))
        fleet = Fleet(8, 300, seed)
        rows.append(_solved(f"one always 2 ms late, {seed}", fleet, [], fleet.meet(always_last=3)[0]))
        fleet = Fleet(4, 300, seed)
        probes = [fleet.exchange(h, 0, way_us=(20.0 + 100 * h, 20.0)) for h in (1, 2, 3)]
        rows.append(_solved(f"unlike ways, probes, {seed}", fleet, probes, None))
    return rows


def dlrm() -> list[dict[str, Any]]:
    """Eight ranks whose files were shifted: whoever finds the shifts."""
    if not shifted_ranks.ARCHIVE.exists():
        print(f"{shifted_ranks.ARCHIVE} is absent: left out", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as folder:
        endpoints = shifted_ranks.reading(Path(folder), shifted_ranks.SHIFT_US, {})
    begin = time.process_time()
    found, solution = shifted_ranks.solved(endpoints)
    cpu_s = time.process_time() - begin
    times = found.times()
    meetings = Meetings(times.start_ns, times.end_ns, times.present)
    methods: dict[str, Theta] = dict(peers(meetings, solution.processes))
    methods["xprof_py, collectives"] = lambda host, shown: shown - to_fleet_ns(solution, host, shown)[0]
    rows = []
    for how, theta in methods.items():
        apart = [np.abs(theta(h, t) - 1000 * shifted_ranks.SHIFT_US[h]) for h, t in _looks(list(solution.processes))]
        bound = {"bound_us": max(c.error_ns or 0 for c in solution.clocks) / 1e3, "cpu_s": cpu_s}
        rows.append(row("dlrm, 8 ranks, shifted", how, apart, **(bound if how.startswith("xprof_py") else {})))
    return rows


def _solved(what: str, fleet: Fleet, probes: list[Any], meetings: Meetings | None) -> dict[str, Any]:
    processes = fleet.processes()
    begin = time.process_time()
    solution = solve_clocks(processes, probes, meetings)
    cpu_s = time.process_time() - begin
    found = score(fleet, solution)
    return {
        "input": what,
        "method": "xprof_py",
        "p50_us": found.p50,
        "p99_us": found.p99,
        "largest_us": found.largest,
        "covered": found.covered,
        "bound_us": found.half_width,
        "cpu_s": cpu_s,
    }


def captures() -> list[dict[str, Any]]:
    """The recorded trainings: whatever there is of probes and collectives, and the peers."""
    rows = []
    for name in ("mp4_skew", "mp4_straggler", "mp4_skew_step_wander"):
        if not (TRACES / "jax_cpu" / name).exists():
            print(f"{TRACES / 'jax_cpu' / name} is absent: left out", file=sys.stderr)
            continue
        capture = recorded(name)
        given: dict[str, tuple[Any, ...]] = {"collectives": ([], capture.meetings)}
        if (capture.folder / "udp1.json").exists():
            given["50 probes"] = (capture.exchanges(50), None)
            given["50 probes, then collectives"] = (capture.exchanges(50), capture.meetings)
            given["probes"] = (capture.exchanges(), capture.meetings)
        for how, ties in given.items():
            begin = time.process_time()
            solution = solve_clocks(capture.processes, *ties)
            cpu_s = time.process_time() - begin
            apart, bounds = [], []
            for host, shown in _looks(capture.processes):
                fleet_ns, bound = to_fleet_ns(solution, host, shown)
                apart.append(np.abs(shown - fleet_ns - capture.theta_ns(host, shown)))
                bounds.append(bound)
            covered = float(np.mean(np.concatenate(apart) <= np.concatenate(bounds) + QUANTUM_NS))
            bound_us = float(np.median(np.concatenate(bounds))) / 1e3
            rows.append(row(name, f"xprof_py, {how}", apart, covered=covered, bound_us=bound_us, cpu_s=cpu_s))
        for peer, theta in peers(capture.meetings, capture.processes).items():
            apart = [np.abs(theta(h, shown) - capture.theta_ns(h, shown)) for h, shown in _looks(capture.processes)]
            rows.append(row(name, peer, apart))
    return rows


def _looks(processes: list[Any]) -> list[tuple[int, Int64]]:
    return [(h, np.linspace(p.begin_ns, p.end_ns, 3001).astype(np.int64)) for h, p in enumerate(processes) if h]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clocks", type=int, default=512)
    parser.add_argument("--collectives", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = captures() + dlrm() + made_up(arguments.clocks, arguments.collectives) + parallel()
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    columns = ("p50_us", "p99_us", "largest_us", "covered", "bound_us", "cpu_s")
    print(f"{'input':36} {'method':38}" + "".join(f"{name:>12}" for name in columns))
    for found in rows:
        numbers = "".join(f"{found[name]:12.2f}" if name in found else " " * 12 for name in columns)
        print(f"{found['input']:36} {found['method']:38}{numbers}")


if __name__ == "__main__":
    main()
