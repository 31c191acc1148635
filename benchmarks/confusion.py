"""What is said of programs whose bottleneck is known: by us, by XProf of the same files, and by the program itself.

    XPROF_PY_PEERS_PYTHON=/path/to/python python benchmarks/confusion.py [NAME...] [--rounds 3] [--folder DIR]

Every training of tests/workloads/planted.py is recorded, and two things are compared:

- the share of the bottleneck: the program's own stopwatch (of compiling: jax.monitoring) against our breakdown;
- XProf's step-time breakdown and its sentences for the recordings with the bottleneck. XPROF_PY_PEERS_PYTHON names an
  interpreter in whose environment the package `xprof` is installed; without it XProf is not asked.

Then the same for the captures of tests/data/jax_cpu, which hold no annotations. --recorded: only those. --folder keeps
the recordings and every single number (rows.json). The tables are Markdown; docs/confusion.md holds those of one run.
What a step takes without its bottleneck: counterfactual.py.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = ROOT / "tests" / "workloads" / "planted.py"
RECORDED = ROOT / "tests" / "data" / "jax_cpu"
TIMEOUT_S = 300
COMPUTING = ("Device compute", "Host compute")

ASK_XPROF = """
import json, sys
from importlib.metadata import version
from xprof.convert import raw_to_tool_data
pages = {"version": version("xprof")}
for tool in ("overview_page", "input_pipeline_analyzer"):
    page, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], tool, {})
    pages[tool] = json.loads(page)
print(json.dumps(pages))
"""


@dataclass(frozen=True)
class Planted:
    """One training and what a right answer is.

    ``phase``: of the program's stopwatch, None for what jax.monitoring saw of compiling. ``class_name``: ours;
    ``categories``: of XProf's step-time breakdown, those in which the cause would rightly lie, empty where it has none.
    """

    workload: str
    steps: int
    phase: str | None
    class_name: str
    categories: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return " ".join((self.workload, *self.flags))


# XProf counts copies to the device as Input. On CPU computing lies in its Host compute; memory has no category.
PLANTED = (
    Planted("input", 30, "input", "input", ("Input",)),
    Planted("input", 30, "input", "input", ("Input",), ("--no-annotations",)),
    Planted("neutral_input", 30, "input", "host", ("Input",), ("--no-annotations",)),
    Planted("h2d", 20, "h2d", "host_device", ("Input",)),
    Planted("recompile", 12, None, "compiler", ("Compilation",)),
    Planted("memory", 30, "compute", "memory", COMPUTING),
    Planted("compute", 60, "compute", "compute", COMPUTING),
    Planted("checkpoint", 15, "checkpoint", "checkpoint", ()),
    Planted("checkpoint", 15, "checkpoint", "checkpoint", (), ("--no-annotations",)),
    Planted("rare_checkpoint", 24, "checkpoint", "checkpoint", ()),
    Planted("input_and_checkpoint", 15, "input", "input", ("Input",)),
    Planted("idle", 40, "idle", "unknown", ("All others",)),
)
UNANNOTATED = {"input": "unknown", "checkpoint": "unknown"}
"""Right answers for the recorded captures, in which nothing says what the program waited for."""


@dataclass(frozen=True)
class Stopwatch:
    """measured.json: what the program knows about itself."""

    measured: Mapping[str, Any]

    @property
    def step_ms(self) -> float:
        """Mean over the captured steps."""
        return 1e3 * float(sum(self.measured["step_s"])) / len(self.measured["step_s"])

    def share(self, phase: str | None) -> float:
        """Part of the captured steps' time, 0-1, that a phase or (None) compiling took."""
        wall_s = float(sum(self.measured["step_s"]))
        if phase is None:
            return self._compile_s() / wall_s
        return float(sum(step.get(phase, 0.0) for step in self.measured["phases_s"])) / wall_s

    def _compile_s(self) -> float:
        """Time in which jax.monitoring saw tracing, lowering or compiling. Tracing nests, so intervals are united."""
        intervals = sorted(
            (ended_ns - seconds * 1e9, ended_ns)
            for ended_ns, key, seconds, _ in self.measured["monitoring"]
            if seconds is not None and key.startswith("/jax/core/compile/")
        )
        covered_ns, reached_ns = 0.0, 0.0
        for start_ns, end_ns in intervals:
            covered_ns += max(0.0, end_ns - max(start_ns, reached_ns))
            reached_ns = max(reached_ns, end_ns)
        return covered_ns / 1e9


@dataclass(frozen=True)
class XProf:
    """XProf's answer for one file. ``shares``: of each category of its step-time breakdown, 0-1."""

    version: str
    says: str
    shares: Mapping[str, float]

    def share(self, categories: Sequence[str]) -> float | None:
        return sum(self.shares[name] for name in categories) if categories else None

    @property
    def largest(self) -> str:
        return max(self.shares, key=lambda name: self.shares[name])


def complete(command: list[str], **environment: str) -> str:
    """Run a command to its end; its stdout. Raises SystemExit with everything that it said if it fails."""
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env={**os.environ, **environment}
    )
    if ran.returncode != 0:
        raise SystemExit(f"{command} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}")
    return ran.stdout


def analysed(source: Path, out: Path, cache: Path) -> dict[str, Any]:
    """Our summary. The peaks of the CPU are measured once for all, not taken from the user's cache."""
    command = [sys.executable, "-m", "xprof_py", "analyze", str(source), "-o", str(out), "--json"]
    summary: dict[str, Any] = json.loads(complete(command, XDG_CACHE_HOME=str(cache)))
    return summary


def ask_xprof(python: str, trace: Path) -> XProf:
    """XProf's overview page and input pipeline analyzer of one XPlane file, which may be gzipped."""
    with tempfile.TemporaryDirectory() as folder:
        # XProf keeps caches beside the trace and finds them by name: every file is alone in a folder of its own.
        copy = Path(folder) / "host.xplane.pb"
        content = trace.read_bytes()
        copy.write_bytes(gzip.decompress(content) if trace.suffix == ".gz" else content)
        pages = json.loads(complete([python, "-c", ASK_XPROF, str(copy)]))
    said: list[str] = []
    for page in (pages["overview_page"], pages["input_pipeline_analyzer"]):
        for table in page:
            for key, sentence in table.get("p", {}).items():
                if sentence and (key.endswith("statement") or key == "input_conclusion"):
                    said.append(claim_of(sentence))
    return XProf(pages["version"], "; ".join(dict.fromkeys(said)), step_shares(pages["input_pipeline_analyzer"]))


def claim_of(sentence: str) -> str:
    """What a sentence of XProf claims, without its reasons."""
    return re.sub(r"^Your program is ", "", sentence).partition(" because ")[0][:80]


def step_shares(tables: list[dict[str, Any]]) -> dict[str, float]:
    """Share of each category in the summed step time, from the table with one row per step."""
    for table in tables:
        columns = [(column["id"], column["label"]) for column in table.get("cols", [])]
        if ("stepTimeMs", "Step time") in columns and table["rows"]:
            sums: Counter[str] = Counter()
            for row in table["rows"]:
                for (name, label), cell in zip(columns, row["c"], strict=True):
                    if name.endswith("TimeMs"):
                        sums[label] += cell["v"]
            total_ms = sums.pop("Step time")
            return {label: ms / total_ms for label, ms in sums.items()}
    raise SystemExit("XProf shows no steps")


def record(planted: Planted, run: Path, *flags: str) -> Stopwatch:
    command = [sys.executable, str(WORKLOADS), planted.workload, str(run), "--steps", str(planted.steps)]
    complete([*command, *planted.flags, *flags])
    return Stopwatch(json.loads((run / "measured.json").read_text()))


def play(planted: Planted, folder: Path, number: int, python: str | None) -> dict[str, Any]:
    """One round: the training, then everybody's answer."""
    place = folder / f"{planted.title.replace(' ', '')}-{number}"
    stopwatch = record(planted, place)
    row = answers(planted, place, place / "analysis", stopwatch, folder / "cache")
    row["jax"] = stopwatch.measured["jax"]
    if python:
        row["xprof"] = ask_xprof(python, next(place.glob("plugins/profile/*/*.xplane.pb")))
    return row


def answers(planted: Planted, source: Path, out: Path, stopwatch: Stopwatch, cache: Path) -> dict[str, Any]:
    summary = analysed(source, out, cache)
    verdict = summary["verdict"]
    return {
        "title": planted.title,
        "truth": stopwatch.share(planted.phase),
        "step_ms": stopwatch.step_ms,
        "verdict": verdict["bottleneck"],
        "verdict_share": verdict["share"],
        "shares": {name: row["share"] for name, row in summary["breakdown"].items()},
        "others_cores": stopwatch.measured.get("others_cores"),
    }


def percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """Median, with the least and the largest."""
    return f"{median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


def counted(values: Sequence[str]) -> str:
    """What all rounds say, or how many say what."""
    seen = Counter(values)
    return (
        values[0]
        if len(seen) == 1
        else ", ".join(f"{value} ({count} of {len(values)})" for value, count in seen.items())
    )


def share_cells(planted: Planted, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """stopwatch | right answer | our verdict | our share of the right answer | ours minus stopwatch."""
    truth = [row["truth"] for row in rows]
    ours = [row["shares"][planted.class_name] for row in rows]
    # Adding zero turns -0.0 into 0.0.
    off = [round(100 * (a - b), 1) + 0.0 for a, b in zip(ours, truth, strict=True)]
    shown = spread(off, "+.1f") if len(rows) > 1 else f"{off[0]:+.1f}"
    verdicts = counted([row["verdict"] for row in rows])
    return [percent(median(truth)), planted.class_name, verdicts, percent(median(ours)), shown]


def xprof_cells(categories: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """XProf's claim | its share for the cause | its largest category."""
    found: list[XProf] = [row["xprof"] for row in rows if "xprof" in row]
    if not found:
        return ["not asked"] * 3
    shares = [share for one in found if (share := one.share(categories)) is not None]
    cause = f"{' + '.join(categories)} {percent(median(shares))}" if shares else "no category"
    largest = Counter(one.largest for one in found).most_common(1)[0][0]
    return [
        counted([one.says for one in found]),
        cause,
        f"{largest} {percent(median(o.shares[largest] for o in found))}",
    ]


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for cells in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(cells) + " |")
    print(flush=True)


SHARE_HEAD = ("its own stopwatch", "right answer", "our verdict", "our share", "ours − stopwatch, points")
XPROF_HEAD = ("XProf says", "XProf's share for it", "XProf's largest category")


def live(chosen: Sequence[Planted], folder: Path, rounds: int, python: str | None) -> list[dict[str, Any]]:
    """Record and compare; prints the tables and returns every round's numbers."""
    by_workload = [(planted, [play(planted, folder, n, python) for n in range(rounds)]) for planted in chosen]
    rows = [row for _, of_one in by_workload for row in of_one]
    print(f"Recorded now: jax {rows[0]['jax']}, {rounds} rounds, medians (least–largest).\n")
    print_table(
        ("workload", *SHARE_HEAD, *XPROF_HEAD),
        [
            [f"`{planted.title}`", *share_cells(planted, of_one), *xprof_cells(planted.categories, of_one)]
            for planted, of_one in by_workload
        ],
    )
    return rows


def recorded(folder: Path, python: str | None) -> list[dict[str, Any]]:
    """The captures of tests/data/jax_cpu; prints their table and returns their numbers."""
    rows, cells = [], []
    for planted in PLANTED:
        source = RECORDED / f"planted_{planted.workload}.xplane.pb.gz"
        if planted.flags or not source.exists():
            continue
        stopwatch = Stopwatch(json.loads((RECORDED / f"planted_{planted.workload}.measured.json").read_text()))
        right = UNANNOTATED.get(planted.workload, planted.class_name)
        case = Planted(planted.workload, planted.steps, planted.phase, right, planted.categories)
        row = answers(case, source, folder / f"recorded-{planted.workload}", stopwatch, folder / "cache")
        if python:
            row["xprof"] = ask_xprof(python, source)
        rows.append(row)
        cells.append([f"`{planted.workload}`", *share_cells(case, [row]), *xprof_cells(planted.categories, [row])])
    print("Recorded before (tests/data/jax_cpu), without annotations of ours. One run each.\n")
    print_table(("capture", *SHARE_HEAD, *XPROF_HEAD), cells)
    return rows


def peers_python() -> str | None:
    """The interpreter that has XProf, or None with the reason on stderr."""
    python = os.environ.get("XPROF_PY_PEERS_PYTHON")
    if not python:
        print("XProf is not asked: XPROF_PY_PEERS_PYTHON is not set", file=sys.stderr)
        return None
    if subprocess.run([python, "-c", "import xprof.convert"], capture_output=True, check=False).returncode != 0:
        raise SystemExit(f"{python} cannot import xprof")
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads; default: all, and the recorded captures")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep recordings and numbers in this new folder")
    parser.add_argument("--recorded", action="store_true", help="only the captures of tests/data/jax_cpu")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - {planted.workload for planted in PLANTED})
    if unknown or options.rounds < 1:
        parser.error(f"no workload called {', '.join(unknown)}" if unknown else "--rounds must be 1 or more")
    python = peers_python()
    load = os.getloadavg()[0]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}, load {load:.1f} at the start,")
    with tempfile.TemporaryDirectory(prefix="xprof_py-confusion-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=options.folder is None)
        rows = []
        if not options.recorded:
            chosen = [planted for planted in PLANTED if not options.names or planted.workload in options.names]
            rows += live(chosen, folder, options.rounds, python)
        if not options.names:
            rows += recorded(folder, python)
        asked = [row["xprof"].version for row in rows if "xprof" in row]
        print(f"XProf {asked[0]}, overview page and input pipeline analyzer." if asked else "XProf was not asked.")
        (folder / "rows.json").write_text(json.dumps(rows, indent=1, default=vars))


if __name__ == "__main__":
    main()
