"""Trainings of several processes whose clocks are wrong, one rank made late on purpose: who it was, how often, by how
much against its own stopwatch, by what and on which line; and the step without it.

Where network namespaces are allowed each rank has a host of its own, else all run on this one, over its loopback.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from workloads.network import why_unavailable

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("live")]

RANKS = Path(__file__).resolve().parents[1] / "workloads" / "ranks.py"
STEPS = 12
LATE_STEPS = 4
OF_STOPWATCH, OF_PROMISE = 0.15, 0.25
BUSY_CORES = 0.3
LINES = {
    "input": ("input", "def batches("),
    "loader": ("input", "time.sleep(seconds)"),
    "compute": ("compute", "lambda _, y: y @ weights"),
}
"""Plant -> (cause, what its line in ranks.py holds)."""


@dataclass(frozen=True)
class Ran:
    measured: dict[str, Any]
    summary: dict[str, Any]
    out: Path

    @property
    def last_host(self) -> str:
        return str(self.summary["hosts"][-1]["host"])

    def table(self, name: str) -> pa.Table:
        return pq.read_table(self.out / f"{name}.parquet")


Train = Callable[..., Ran]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train with the flags given and analyse what was recorded."""
    folder = tmp_path_factory.mktemp("ranks")
    flags = ["--steps", str(STEPS)] + (["--loopback"] if why_unavailable() else [])
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is not None:
        library = folder / "skewclock.so"
        source = RANKS.with_name("skewclock.c")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        flags += ["--skew", str(library)]

    def run(*more: str) -> Ran:
        run_dir = folder / f"{len(list(folder.iterdir()))}"
        for command in (
            [sys.executable, str(RANKS), str(run_dir), *flags, *more],
            [sys.executable, "-m", "xprof_py", "analyze", str(run_dir), "--json"],
        ):
            ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
            assert ran.returncode == 0, f"{command} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}"
        return Ran(json.loads((run_dir / "measured.json").read_text()), json.loads(ran.stdout), run_dir / "analysis")

    return run


def line_of(text: str) -> int:
    lines = RANKS.read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if text in line)
    return number


def stopwatch_ms(ran: Ran) -> float:
    return 1e3 * float(ran.measured["wall_s"]) / len(ran.measured["step_s"])


def settled(run: Callable[[], Ran], missed: Callable[[Ran], str | None]) -> Ran:
    """A run whose figures hold. One that misses twice fails, or skips where others kept the cores busy."""
    for _ in range(2):
        ran = run()
        why = missed(ran)
        if why is None:
            return ran
    busy = ran.measured["others_cores"] or 0.0
    if busy > BUSY_CORES:
        pytest.skip(f"{why}, and other programs kept {busy:.1f} cores busy meanwhile: run it on a quiet machine")
    pytest.fail(why)


@pytest.fixture(scope="module", params=LINES)
def planted(request: pytest.FixtureRequest, train: Train) -> tuple[str, Ran]:
    """A run in which the straggler was found, and what it lost is near what its stopwatch says."""

    def missed(ran: Ran) -> str | None:
        late, own_ms = ran.summary["straggler"], 1e3 * mean(ran.measured["planted_s"])
        if late is None:
            return "nobody is a straggler"
        if late["cause"] == "input" and ran.summary["verdict"]["bottleneck"] != "input":
            return ran.summary["verdict"]["sentence"]
        found_ms = late["reasons"][0]["ms_per_step"]
        return None if abs(found_ms - own_ms) <= OF_STOPWATCH * own_ms else f"{found_ms} ms, by its stopwatch {own_ms}"

    return request.param, settled(lambda: train("--plant", request.param), missed)


def test_the_late_rank_is_named_with_its_cause_and_source_line(planted: tuple[str, Ran]) -> None:
    name, ran = planted
    late = ran.summary["straggler"]
    cause, text = LINES[name]
    assert late["host"] == ran.last_host
    assert late["steps"] >= STEPS - 2
    assert late["of_steps"] >= late["steps"]
    assert late["cause"] == cause
    assert late["source"].split()[0] == f"{RANKS}:{line_of(text)}"
    assert late["reasons"][0]["steps"] >= late["steps"]


def test_clocks_that_are_wrong_by_a_third_of_a_second_are_put_right(planted: tuple[str, Ran]) -> None:
    _, ran = planted
    assert {clock["status"] for clock in ran.summary["clocks"]} <= {"aligned", "bounded"}
    assert "ends_before_last_start" not in {note["code"] for note in ran.summary["diagnostics"]}


def test_waiting_for_the_late_one_is_not_collective(planted: tuple[str, Ran]) -> None:
    """What the lane of the rank that waits calls `collective` is something else in the view of the job."""
    _, ran = planted

    def collective_ms(table: str) -> float:
        rows = ran.table(table).to_pylist()
        mine = [row for row in rows if row["host"] != ran.last_host and row["kind"] == "step"]
        return sum(row["exclusive_ps"] for row in mine if row["class"] == "collective") / 1e9

    late = ran.summary["straggler"]
    handed_on_ms = collective_ms("breakdown") - collective_ms("job_breakdown")
    assert handed_on_ms == pytest.approx(late["lost_ms_per_step"] * late["of_steps"], rel=0.1)


def test_the_replay_is_believed_and_keeps_its_promise(planted: tuple[str, Ran], train: Train) -> None:
    """The counterpart: the same training without what made the last rank late."""
    _, ran = planted
    predicted = ran.summary["predictions"]
    assert predicted["believed"]

    def missed(removed: Ran) -> str | None:
        promised, took = predicted["without_straggler_ms"], stopwatch_ms(removed)
        return None if abs(promised - took) <= OF_PROMISE * took else f"{promised} ms were promised, it took {took}"

    settled(lambda: train("--plant", "input", "--cause-removed"), missed)


def test_a_rank_that_is_recorded_later_pairs_every_step_with_itself(train: Train) -> None:
    ran = train("--plant", "late_capture")
    missing = [row for row in ran.summary["steps"]["missing"] if row["host"] == ran.last_host]
    first = min(row["step"] for row in missing)
    assert [row["step"] for row in missing] == list(range(first, first + LATE_STEPS))
    assert {row["why"] for row in missing} == {"its capture began later"}
    steps = ran.table("job_steps").to_pylist()
    assert [row["hosts"] for row in steps] == [1] * LATE_STEPS + [2] * (STEPS - LATE_STEPS)
    # Paired with a neighbour's, participants would come apart by whole steps.
    step_ns = 1e6 * ran.summary["step_ms"]["median"]
    late_ns = [by for by in ran.table("collectives")["late_by_ns"].to_pylist() if by is not None]
    assert late_ns
    assert median(late_ns) < step_ns / 4


def test_a_slow_network_is_collective_and_nobodys_input(train: Train) -> None:
    """Of three hosts one sends slowly: all wait, none is late by what it does, and the probe shows between whom."""
    why = why_unavailable()
    if why:
        pytest.skip(f"{why}; as root on Linux with `ip`, `tc` and tbf it runs")
    ran = settled(
        lambda: train("--mbit", "200", "--slow-host", "--world", "3", "--steps", "8"),
        lambda ran: (
            None if ran.summary["verdict"]["bottleneck"] == "collective" else ran.summary["verdict"]["sentence"]
        ),
    )
    late = ran.summary["straggler"]
    assert late is None or late["cause"] != "input"
    slowest: dict[str, int] = {}
    for row in ran.table("network").to_pylist():
        slowest[row["host"]] = max(slowest.get(row["host"], 0), row["rtt_p99_ns"] or 0)
    assert max(slowest, key=lambda host: slowest[host]) == ran.last_host
