"""One step in words and numbers: where its window went, gap by gap down to the source line, and what was different.

Everything is on one lane; without a choice the one where the step's window is longest. Times are milliseconds since the
window's start. The comparison is with the medians of the other steady steps of the same name on that lane, taken class
by class and op by op: the differences of classes need not sum to that of the window.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.errors import UsageError
from xprof_py.postprocess.rules.gap_words import cause_text, gap_text
from xprof_py.postprocess.rules.run_ahead_words import step_ahead
from xprof_py.postprocess.rules.wording import counted, duration
from xprof_py.postprocess.schema import CLASSES

FEWEST = 3
"""Other steady steps for a comparison: the median of two is their mean, and one of them may be anything."""
TOP_OPS = 10
SAME = 0.01
"""Of the median window: a step that differs by less took as long."""
NOTABLE = 0.1
"""Of the window's difference: a class that differs by less is not part of the sentence."""

Row = dict[str, Any]


def explain_step(
    summary: Mapping[str, Any],
    tables: Mapping[str, pa.Table],
    number: int,
    *,
    name: str | None = None,
    occurrence: int | None = None,
    host: str | None = None,
    lane: int | None = None,
) -> dict[str, Any]:
    """Explain step ``number`` of an analysis; the object that `explain --json` prints.

    ``tables``: those of an analysis (step_classes, steps, windows, runs, launches, compiles, breakdown, op_steps,
    gap_chains, run_ahead). ``name``, ``occurrence``, ``host``, ``lane`` choose where the number alone does not. Raises
    UsageError where there is no such step, or several names have one.
    """
    notes: list[str] = []
    window, others = _choose(tables, number, name, occurrence, host, lane, notes)
    view = _View(summary, tables, window)
    compared = view.compared()
    classes = view.classes(compared)
    gaps, small = view.gaps()
    ops = view.ops(compared)
    return {
        "schema_version": 1,
        "sentence": _sentence(window, compared, classes),
        "step": {
            **{key: window[key] for key in ("name", "number", "occurrence", "host", "lane", "phase", "reason")},
            "device": view.device(),
            "start_ms": window["start_ps"] / 1e9,
            "window_ms": window["window_ps"] / 1e9,
            "counted_from": view.counted_from(),
        },
        "compared_with": compared and {key: compared[key] for key in ("steps", "median_ms", "difference_ms")},
        "classes": classes,
        "gaps": gaps,
        "small_gaps": small,
        "unknown": _unknown(window, gaps, small),
        "ops": ops,
        "compiles": view.compiles(),
        "runs": view.runs(),
        "host_span": view.host_span(),
        "run_ahead": view.run_ahead(),
        "other_lanes": [
            {"host": row["host"], "lane": row["lane"], "window_ms": row["window_ps"] / 1e9} for row in others
        ],
        "notes": notes,
    }


def _choose(
    tables: Mapping[str, pa.Table],
    number: int,
    name: str | None,
    occurrence: int | None,
    host: str | None,
    lane: int | None,
    notes: list[str],
) -> tuple[Row, list[Row]]:
    """(the window to explain, the same step's windows on other lanes)."""
    windows = tables["step_classes"]
    steps = windows.filter(pc.equal(windows["kind"], "step"))
    rows = steps.filter(pc.equal(steps["number"], number)).to_pylist()
    if not rows:
        raise UsageError(f"there is no step {number}: {_which(steps, windows, number)}")
    names = sorted({row["name"] for row in rows if name in (None, row["name"])})
    if len(names) != 1:
        known = ", ".join(sorted({row["name"] for row in rows}))
        raise UsageError(f"step {number} is called {known}: choose one with --name")
    rows = [row for row in rows if row["name"] == names[0]]
    times = sorted({row["occurrence"] for row in rows})
    if occurrence is None and len(times) > 1:
        notes.append(f"step {number} ran {len(times)} times: this is the first; --occurrence 1 is the next")
    rows = [row for row in rows if row["occurrence"] == (times[0] if occurrence is None else occurrence)]
    picked = [row for row in rows if host in (None, row["host"]) and lane in (None, row["lane"])]
    if not picked:
        places = ", ".join(f"{row['host']} lane {row['lane']}" for row in rows) or f"occurrences {times}"
        raise UsageError(f"step {number} is not there: it is on {places}")
    chosen = min(picked, key=lambda row: (-row["window_ps"], row["host"], row["lane"]))
    return chosen, [row for row in rows if row is not chosen]


def _which(steps: pa.Table, windows: pa.Table, number: int) -> str:
    if number in windows.filter(pc.equal(windows["kind"], "nested"))["number"].to_pylist():
        return "a nested step of that number is part of its parent's window"
    if not steps.num_rows:
        return "the run has no steps"
    numbers = [found for found in steps["number"].to_pylist() if found is not None]
    return f"the run has steps {min(numbers)} to {max(numbers)}"


@dataclass(frozen=True)
class _View:
    """The tables, seen from one window."""

    summary: Mapping[str, Any]
    tables: Mapping[str, pa.Table]
    window: Row

    def _mine(self, name: str, *, lane: bool = True) -> list[Row]:
        """Rows of a table that belong to the window's step, host and lane."""
        table = self.tables[name]
        keep = pc.and_(pc.equal(table["host"], self.window["host"]), pc.equal(table["step"], self._step_row()))
        if lane:
            keep = pc.and_(keep, pc.equal(table["lane"], self.window["lane"]))
        found: list[Row] = table.filter(keep).to_pylist()
        return found

    def _steps(self) -> list[Row]:
        steps = self.tables["steps"]
        found: list[Row] = steps.filter(pc.equal(steps["host"], self.window["host"])).to_pylist()
        return found

    def _step_row(self) -> int:
        keys = ("name", "number", "occurrence")
        wanted = [self.window[key] for key in keys]
        return next(row for row, step in enumerate(self._steps()) if [step[key] for key in keys] == wanted)

    def _ms(self, at_ps: int) -> float:
        return float(at_ps - self.window["start_ps"]) / 1e9

    def device(self) -> str:
        """The lane's device as the summary calls it."""
        here = (self.window["host"], self.window["lane"])
        found = [row["device"] for row in self.summary["lanes"] if (row["host"], row["lane"]) == here]
        return str(found[0]) if found else ""

    def counted_from(self) -> str:
        """Where the window begins, in words: it is not where the host began the step (docs/breakdown.md)."""
        steps = self.tables["step_classes"]
        mine = pc.and_(pc.equal(steps["kind"], "step"), pc.greater(steps["window_ps"], 0))
        for key in ("host", "lane"):
            mine = pc.and_(mine, pc.equal(steps[key], self.window[key]))
        earlier = pc.less(steps.filter(mine)["start_ps"], self.window["start_ps"])
        if not pc.any(earlier).as_py():
            return "where the host began it"
        return "where the step before ended" if self.device() == "host" else "where the device ended the step before"

    def compared(self) -> dict[str, Any] | None:
        """The other steady steps of this name on this lane, and how they differ; None where they are too few."""
        table = self.tables["step_classes"]
        keep = pc.and_(pc.equal(table["kind"], "step"), pc.equal(table["phase"], "steady"))
        for key in ("host", "lane", "name"):
            keep = pc.and_(keep, pc.equal(table[key], self.window[key]))
        me = (self.window["number"], self.window["occurrence"])
        rows = [row for row in table.filter(keep).to_pylist() if (row["number"], row["occurrence"]) != me]
        if len(rows) < FEWEST:
            return None
        median_ps = float(np.median([row["window_ps"] for row in rows]))
        keys = {(row["number"], row["occurrence"]) for row in rows}
        return {
            "steps": len(rows),
            "median_ms": median_ps / 1e9,
            "difference_ms": (self.window["window_ps"] - median_ps) / 1e9,
            "class_ps": {name: float(np.median([row[f"{name}_ps"] for row in rows])) for name in CLASSES},
            "step_rows": [
                i
                for i, step in enumerate(self._steps())
                if step["name"] == self.window["name"] and (step["number"], step["occurrence"]) in keys
            ],
        }

    def classes(self, compared: Mapping[str, Any] | None) -> list[Row]:
        """Classes that take time here or in the median of the others, the largest first."""
        sums: dict[str, Row] = {row["class"]: row for row in self._mine("breakdown") if row["kind"] == "step"}
        out = []
        for name in CLASSES:
            here = self.window[f"{name}_ps"]
            median = compared["class_ps"][name] if compared else None
            if not here and not median:
                continue
            out.append(
                {
                    "class": name,
                    "ms": here / 1e9,
                    "share": here / self.window["window_ps"] if self.window["window_ps"] else 0.0,
                    "median_ms": None if median is None else median / 1e9,
                    "difference_ms": None if median is None else (here - median) / 1e9,
                    "hidden_ms": (sums[name]["total_ps"] - sums[name]["exclusive_ps"]) / 1e9 if name in sums else None,
                    "of_other_steps_ms": sums[name]["foreign_ps"] / 1e9 if name in sums else None,
                }
            )
        return sorted(out, key=lambda row: (-row["ms"], CLASSES.index(row["class"])))

    def gaps(self) -> tuple[list[Row], list[Row]]:
        """(the larger gaps in order of length, what is left of the gaps per cause)."""
        steps = self._steps()
        pieces: dict[int, list[Row]] = defaultdict(list)
        small = []
        for row in self._mine("gap_chains"):
            if row["gap"] is None:
                cause = self._cause(row, steps)
                small.append({**cause, "pieces": row["pieces"]})
            else:
                pieces[row["gap"]].append(row)
        gaps = [self._gap(rows, steps) for rows in pieces.values()]
        gaps.sort(key=lambda gap: (-gap["length_ms"], gap["start_ms"]))
        small.sort(key=lambda row: (-row["ms"], row["cause"]))
        return gaps, small

    def _cause(self, row: Row, steps: Sequence[Row]) -> Row:
        step = steps[row["cause_step"]] if row["cause_step"] is not None else None
        out = {
            "cause": row["cause"],
            "ms": row["length_ps"] / 1e9,
            "step": step and step["number"],
            "evidence": row["evidence"],
            "sampled": row["sampled"],
            "span": row["span"],
            "function": row["function"],
            "source": row["source"],
            "event_start_ms": None if row["event_start_ps"] is None else self._ms(row["event_start_ps"]),
            "event_ms": None if row["event_duration_ps"] is None else row["event_duration_ps"] / 1e9,
        }
        return {**out, "text": cause_text(out, self.window["number"])}

    def _gap(self, rows: Sequence[Row], steps: Sequence[Row]) -> Row:
        """One gap with its causes, the longest first. The last piece says what ended it."""
        last = max(rows, key=lambda row: (row["end_ps"], row["start_ps"]))
        start_ps = min(row["start_ps"] for row in rows)
        launch = None
        if last["launch_start_ps"] is not None:
            end_ps = last["launch_end_ps"]
            launch = {
                "program": last["program"],
                "source": last["program_source"],
                "thread": last["thread"],
                "join": last["join"],
                "step": None if last["launch_step"] is None else steps[last["launch_step"]]["number"],
                "start_ms": self._ms(last["launch_start_ps"]),
                "end_ms": None if end_ps is None else self._ms(end_ps),
                "late_ms": max((last["end_ps"] if end_ps is None else min(end_ps, last["end_ps"])) - start_ps, 0) / 1e9,
            }
        causes = [self._cause(row, steps) for row in rows]
        causes.sort(key=lambda cause: (-cause["ms"], CLASSES.index(cause["cause"])))
        length_ps = sum(row["length_ps"] for row in rows)
        out = {
            "start_ms": self._ms(start_ps),
            "length_ms": length_ps / 1e9,
            "share": length_ps / self.window["window_ps"],
            "before": _op(last["before_op"], last["before_source"]),
            "after": _op(last["after_op"], last["after_source"]),
            "launch": launch,
            "causes": causes,
        }
        return {**out, "text": gap_text(out, on_device=self.device() != "host")}

    def ops(self, compared: Mapping[str, Any] | None) -> list[Row]:
        """The TOP_OPS ops of the step on this lane, and those that differ most from the median of the others."""
        table = self.tables["op_steps"]
        mine = table.filter(
            pc.and_(pc.equal(table["host"], self.window["host"]), pc.equal(table["lane"], self.window["lane"]))
        )
        here = self._step_row()
        out = []
        for row in mine.to_pylist():
            total = dict(zip(row["steps"], row["total_ps"], strict=True))
            median = None
            if compared:
                median = float(np.median([total.get(step, 0) for step in compared["step_rows"]]))
            if here not in total and not median:
                continue
            count = dict(zip(row["steps"], row["count"], strict=True))
            out.append(
                {
                    **{key: row[key] for key in ("op", "opcode", "class", "program", "op_name")},
                    "source": row["source"] or None,
                    "ms": total.get(here, 0) / 1e9,
                    "count": count.get(here, 0),
                    "median_ms": None if median is None else median / 1e9,
                    "difference_ms": None if median is None else (total.get(here, 0) - median) / 1e9,
                }
            )
        out.sort(key=lambda op: (-op["ms"], op["program"], op["op_name"], op["op"]))
        apart = sorted(out, key=lambda op: -abs(op["difference_ms"] or 0.0))[:TOP_OPS] if compared else []
        return [op for i, op in enumerate(out) if i < TOP_OPS or op in apart]

    def compiles(self) -> list[Row]:
        """Tracing, lowering and compiling begun in the step, in order of time; on every thread of the process."""
        sources = {row["function"]: row["source"] for row in self._mine("gap_chains") if row["function"]}
        rows = sorted(self._mine("compiles", lane=False), key=lambda row: (row["start_ps"], -row["duration_ps"]))
        return [
            {
                "function": row["function"],
                "stage": row["stage"],
                "ms": row["duration_ps"] / 1e9,
                "start_ms": self._ms(row["start_ps"]),
                "source": sources.get(row["function"]),
                "known_from": row["source"],
            }
            for row in rows
        ]

    def runs(self) -> dict[str, Any]:
        """How many runs the step has here, of which functions, and how they were joined to their launches."""
        launches = self.tables["launches"]
        names = launches.filter(pc.equal(launches["host"], self.window["host"]))["name"].to_pylist()
        rows = self._mine("runs")
        functions = Counter(names[row["launch"]] or "(not named)" for row in rows if row["launch"] is not None)
        return {
            "count": len(rows),
            "functions": dict(sorted(functions.items())),
            "join": dict(sorted(Counter(row["join"] for row in rows).items())),
        }

    def host_span(self) -> dict[str, Any]:
        """The step's own span on the host, and how far the device ended behind it. null: open at the capture's end."""
        step = self._steps()[self._step_row()]
        end_ps = step["end_ps"]
        end_of_window = self.window["start_ps"] + self.window["window_ps"]
        return {
            "start_ms": self._ms(step["start_ps"]),
            "end_ms": None if end_ps is None else self._ms(end_ps),
            "device_behind_ms": None if end_ps is None else (end_of_window - end_ps) / 1e9,
        }

    def run_ahead(self) -> dict[str, Any] | None:
        """How far the host was ahead of the lane as it launched the step; None where that is not known."""
        return step_ahead(next(iter(self._mine("run_ahead")), None))


def _op(name: str | None, source: str | None) -> dict[str, Any] | None:
    return None if name is None else {"op": name, "source": source}


def _unknown(window: Row, gaps: Sequence[Row], small: Sequence[Row]) -> dict[str, Any]:
    """What nothing explains, by what was seen there instead."""
    why: dict[str, float] = defaultdict(float)
    for cause in (*(cause for gap in gaps for cause in gap["causes"]), *small):
        if cause["cause"] == "unknown":
            why[cause["text"]] += cause["ms"]
    return {
        "ms": window["unknown_ps"] / 1e9,
        "share": window["unknown_ps"] / window["window_ps"] if window["window_ps"] else 0.0,
        "why": [{"text": text, "ms": ms} for text, ms in sorted(why.items(), key=lambda pair: (-pair[1], pair[0]))],
    }


def _sentence(window: Row, compared: Mapping[str, Any] | None, classes: Sequence[Row]) -> str:
    length_s = window["window_ps"] / 1e12
    head = f"Step {window['number']} took {duration(length_s)}"
    if window["phase"] == "unmeasured":
        return f"Step {window['number']} could not be measured: {window['reason']}."
    if not compared:
        largest = ", ".join(f"{duration(row['ms'] / 1e3)} {row['class']}" for row in classes[:3])
        return f"{head}: {largest}." if largest else f"{head}: its window is empty."
    if classes and window["window_ps"]:
        head += f", {classes[0]['share']:.0%} of it {classes[0]['class']}"
    others = f"the median of {counted(compared['steps'], 'other steady step', 'other steady steps')}"
    others += f" ({duration(compared['median_ms'] / 1e3)})"
    difference_ms = compared["difference_ms"]
    if abs(difference_ms) < SAME * compared["median_ms"]:
        return f"{head}: as long as {others}."
    apart = [row for row in classes if abs(row["difference_ms"]) >= NOTABLE * abs(difference_ms)]
    apart.sort(key=lambda row: -abs(row["difference_ms"]))
    parts = ", ".join(
        f"{'+' if row['difference_ms'] > 0 else '−'}{duration(abs(row['difference_ms']) / 1e3)} {row['class']}"
        for row in apart[:3]
    )
    way = "longer" if difference_ms > 0 else "shorter"
    return f"{head}: {duration(abs(difference_ms) / 1e3)} {way} than {others}" + (f", {parts}." if parts else ".")
