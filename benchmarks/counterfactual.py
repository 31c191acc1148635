"""Does a step take what we promise once its bottleneck is gone? Every promise is kept or broken by a run without it.

    python benchmarks/counterfactual.py [NAME...] [--rounds 5] [--folder DIR]

Every training is recorded with its bottleneck and with the bottleneck taken away, in turns, and the other way round in
every second round. Predicted is what the analysis of a recording with the bottleneck says of the step without it;
measured is the wall time of the steps of the program that does not have it, divided by their number. Medians over the
quiet runs are compared: those during which everything else on the machine kept no more than QUIET_CORES busy. A run
waits up to --wait-quiet seconds for that, and one that was not quiet is made again, --rounds times more at most.

A promise is kept where it is off by no more than 10 % of the measured step or 1 % of the step with the bottleneck,
whichever is larger. Of the trainings called late_* the lateness of one rank is taken away. `collective` needs root and
network namespaces (tests/workloads/ranks.py) and is left out with the reason elsewhere. The table is Markdown;
docs/counterfactual.md holds that of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from confusion import analysed, complete, print_table, spread

WORKLOADS = Path(__file__).resolve().parents[1] / "tests" / "workloads"
QUIET_CORES = 0.15
OF_MEASURED, OF_STEP = 0.10, 0.01


@dataclass(frozen=True)
class Case:
    """``program``: of tests/workloads with its arguments; ``cause``: the class that is taken away, or STRAGGLER."""

    title: str
    cause: str
    program: tuple[str, ...]
    steps: int


def _planted(name: str, cause: str, steps: int, *flags: str) -> Case:
    return Case(" ".join((name, *flags)), cause, ("planted.py", name, *flags), steps)


STRAGGLER = "straggler"
"""Taken away is one rank's being late (predictions.without_straggler_ms)."""


def _late(plant: str) -> Case:
    return Case(f"late_{plant}", STRAGGLER, ("ranks.py", "--loopback", "--plant", plant), 24)


CASES = (
    _planted("input", "input", 24),
    _planted("input", "input", 24, "--no-annotations"),
    _planted("h2d", "host_device", 24),
    _planted("recompile", "compiler", 16),
    _planted("checkpoint", "checkpoint", 24),
    _planted("checkpoint", "checkpoint", 24, "--no-annotations"),
    _planted("idle", "unknown", 24),
    _planted("async_input", "input", 24),
    _planted("hidden_input", "input", 24),
    _planted("rare_checkpoint", "checkpoint", 24),
    _planted("input_and_checkpoint", "input", 24),
    Case("collective", "collective", ("ranks.py", "--mbit", "400"), 24),
    _late("input"),
    _late("loader"),
    _late("compute"),
)


@dataclass(frozen=True)
class Run:
    """One recorded run. ``predicted_ms``: of a run with the cause, None where the analysis does not say."""

    measured_ms: float
    others_cores: float | None
    delayed_cores: float | None
    verdict: str
    predicted_ms: float | None
    promised: bool

    @property
    def quiet(self) -> bool:
        return self.others_cores is None or self.others_cores <= QUIET_CORES


def play(case: Case, place: Path, cache: Path, removed: bool, wait_s: float) -> Run:
    script, *arguments = case.program
    command = [sys.executable, str(WORKLOADS / script), *arguments, "--steps", str(case.steps)]
    # The run folder is the first positional argument of ranks.py and the second of planted.py.
    command += ["--wait-quiet", str(wait_s)]
    command.insert(3 if script == "planted.py" else 2, str(place))
    complete([*command, *(["--cause-removed"] if removed else [])])
    measured = json.loads((place / "measured.json").read_text())
    summary = analysed(place, place / "analysis", cache)
    verdict, predictions, late = (summary[name] for name in ("verdict", "predictions", "straggler"))
    if case.cause == STRAGGLER:
        named = f"late: {late['cause']}" if late else "nobody is late"
        predicted, promised = predictions.get("without_straggler_ms"), late is not None and predictions["believed"]
    else:
        named, predicted = verdict["bottleneck"], predictions["without_ms"].get(case.cause)
        promised = named == case.cause and verdict["step_ms_without"] is not None
    return Run(
        1e3 * measured["wall_s"] / len(measured["step_s"]),
        measured["others_cores"],
        measured["delayed_cores"],
        named,
        predicted,
        promised,
    )


def rounds_of(case: Case, folder: Path, rounds: int, wait_s: float) -> dict[bool, list[Run]]:
    """All runs by whether the cause was removed, until each side has as many quiet ones as there are rounds."""
    runs: dict[bool, list[Run]] = {False: [], True: []}
    for number in range(2 * rounds):
        for removed in (False, True) if number % 2 == 0 else (True, False):
            if sum(run.quiet for run in runs[removed]) < rounds:
                place = folder / f"{case.title.replace(' ', '')}-{'without' if removed else 'with'}-{number}"
                runs[removed].append(play(case, place, folder / "cache", removed, wait_s))
    return runs


def cells(case: Case, runs: dict[bool, list[Run]]) -> tuple[list[str], bool | None]:
    """The row of the table, and whether the promise was kept; None where too few runs were quiet to say."""
    quiet = {removed: [run for run in side if run.quiet] for removed, side in runs.items()}
    counts = f"{len(quiet[False])} of {len(runs[False])}, {len(quiet[True])} of {len(runs[True])}"
    predicted = [run.predicted_ms for run in quiet[False] if run.predicted_ms is not None]
    if not predicted or not quiet[True]:
        return [f"`{case.title}`", case.cause, *["–"] * 6, "not known: no quiet runs", counts], None
    step_ms = [run.measured_ms for run in quiet[False]]
    without_ms = [run.measured_ms for run in quiet[True]]
    error_ms = median(predicted) - median(without_ms)
    allowed_ms = max(OF_MEASURED * median(without_ms), OF_STEP * median(step_ms))
    kept = abs(error_ms) <= allowed_ms
    verdicts = sorted({run.verdict for run in quiet[False]})
    return [
        f"`{case.title}`",
        case.cause,
        ", ".join(verdicts),
        spread(step_ms),
        spread(predicted),
        spread(without_ms),
        f"{error_ms / median(without_ms):+.1%}".replace("%", " %"),
        f"{100 * error_ms / median(step_ms):+.1f}",
        "yes" if kept else "**no**",
        counts,
    ], kept


HEAD = (
    "workload",
    "taken away",
    "verdict with it",
    "step with it, ms",
    "predicted without, ms",
    "measured without, ms",
    "error",
    "error in points of the step",
    "kept",
    "quiet runs with, without",
)


def why_no_hosts() -> str | None:
    """Why the ranks of `collective` cannot run here, None where they can."""
    ask = "from network import why_unavailable; print(why_unavailable() or '')"
    asked = subprocess.run([sys.executable, "-c", ask], cwd=WORKLOADS, capture_output=True, text=True, check=True)
    return asked.stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="first words of workloads; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wait-quiet", type=float, default=20.0, metavar="S", help="for a quiet machine, per run")
    parser.add_argument("--folder", type=Path, help="keep recordings and numbers in this new folder")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - {case.title.split()[0] for case in CASES})
    if unknown or options.rounds < 1:
        parser.error(f"no workload called {', '.join(unknown)}" if unknown else "--rounds must be 1 or more")
    chosen = [case for case in CASES if not options.names or case.title.split()[0] in options.names]
    why = why_no_hosts()
    if why and any(case.title == "collective" for case in chosen):
        print(f"collective is left out: {why}", file=sys.stderr)
        chosen = [case for case in chosen if case.title != "collective"]
    load = os.getloadavg()[0]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}, load {load:.1f} at the start;")
    print(f"{options.rounds} rounds, medians of quiet runs (least–largest).\n")
    with tempfile.TemporaryDirectory(prefix="xprof_py-counterfactual-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=options.folder is None)
        table, numbers = measure(chosen, folder, options.rounds, options.wait_quiet)
        (folder / "runs.json").write_text(json.dumps(numbers, indent=1))
    print_table(HEAD, table)


def measure(
    chosen: Sequence[Case], folder: Path, rounds: int, wait_s: float
) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """(rows of the table, every single run)."""
    table, numbers = [], []
    for case in chosen:
        runs = rounds_of(case, folder, rounds, wait_s)
        row, _ = cells(case, runs)
        print(" | ".join(row), file=sys.stderr, flush=True)
        table.append(row)
        numbers += [
            {"title": case.title, "removed": removed, **vars(run)} for removed, side in runs.items() for run in side
        ]
    return table, numbers


if __name__ == "__main__":
    main()
