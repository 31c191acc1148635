"""What holds of every breakdown, whatever the trace (BREAKDOWN.md 10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa

from xprof_py.postprocess.analyses import communication
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES

REFERENCES = {
    "windows": {"lane": "lanes", "step": "steps"},
    "gaps": {"lane": "lanes", "window": "windows", "cause_step": "steps", "launch": "launches", "event": "events"},
    "ops": {"event": "events", "lane": "lanes", "run": "runs", "hlo_op": "hlo_ops"},
    "launches": {"event": "events", "line": "lines", "step": "steps"},
    "runs": {"lane": "lanes", "program": "programs", "launch": "launches", "step": "steps"},
    "steps": {"parent": "steps", "line": "lines"},
    "compiles": {"line": "lines", "step": "steps"},
}


def broken(joined: Profile, partial: pa.Table) -> list[str]:
    """One sentence for every invariant that the joined Profile and its ``breakdown`` table break."""
    windows = joined["windows"].to_pylist()
    return [
        *_references(joined),
        *_sums(windows, partial.to_pylist(), joined["gaps"].to_pylist()),
        *_tiling(joined, windows),
        *_causality(joined),
    ]


def _references(joined: Profile) -> Iterator[str]:
    """Ids are row numbers of the table of that name (schema.py)."""
    for table, columns in REFERENCES.items():
        for column, target in columns.items():
            rows = len(joined[target])
            wrong = {v for v in joined[table].column(column).to_pylist() if v is not None and not 0 <= v < rows}
            if wrong:
                yield f"{table}.{column} names {sorted(wrong)}, and {target} has {rows} rows"


def _sums(windows: list[dict[str, Any]], rows: list[dict[str, Any]], gaps: list[dict[str, Any]]) -> Iterator[str]:
    exclusive_ps: Counter[int] = Counter()
    by_class: Counter[tuple[int, str]] = Counter()
    for row in rows:
        if row["class"] not in CLASSES:
            yield f"unknown class {row['class']}"
        if not 0 <= row["exclusive_ps"] <= row["total_ps"]:
            yield f"total < exclusive, or a negative amount: {row}"
        if not 0 <= row["foreign_ps"] <= row["total_ps"]:
            yield f"more foreign work than work: {row}"
        exclusive_ps[row["window"]] += row["exclusive_ps"]
        by_class[row["window"], row["class"]] += row["exclusive_ps"]
    for number, window in enumerate(windows):
        length_ps = window["end_ps"] - window["start_ps"]
        if length_ps < 0 or exclusive_ps[number] != length_ps:
            yield f"classes sum to {exclusive_ps[number]} ps in a window of {length_ps} ps: {window}"
    causes: Counter[tuple[int, str]] = Counter()
    pieces: Counter[tuple[int, int, int]] = Counter()
    for gap in gaps:
        window = windows[gap["window"]]
        if not window["start_ps"] <= gap["start_ps"] <= gap["end_ps"] <= window["end_ps"] or gap["length_ps"] < 0:
            yield f"a gap outside its window, or a negative one: {gap} in {window}"
        if gap["cause"] not in CLASSES or gap["cause"] in BUSY_CLASSES:
            yield f"a gap cannot be {gap['cause']}"
        if window["kind"] != "nested":
            causes[gap["window"], gap["cause"]] += gap["length_ps"]
            pieces[gap["window"], gap["start_ps"], gap["end_ps"]] += gap["length_ps"]
    for (window_row, start_ps, end_ps), length_ps in pieces.items():
        if length_ps != end_ps - start_ps:
            yield f"causes sum to {length_ps} ps in the gap {start_ps}..{end_ps} of window {window_row}"
    for key in causes.keys() | by_class.keys():
        kind, name = windows[key[0]]["kind"], key[1]
        if kind != "nested" and name not in BUSY_CLASSES and causes[key] != by_class[key]:
            yield f"gaps give {name} {causes[key]} ps and the breakdown {by_class[key]} ps in window {key[0]}"


def _tiling(joined: Profile, windows: list[dict[str, Any]]) -> Iterator[str]:
    for lane in range(len(joined["lanes"])):
        own = [w for w in windows if w["lane"] == lane and w["kind"] != "nested"]
        own.sort(key=lambda w: (w["start_ps"], w["end_ps"]))
        kinds = Counter(w["kind"] for w in own)
        if not own or kinds["head"] > 1 or kinds["tail"] > 1 or kinds.keys() - {"head", "step", "tail"}:
            yield f"lane {lane} has the windows {dict(kinds)}"
            continue
        if (own[0]["start_ps"], own[-1]["end_ps"]) != (joined.capture_start_ps, joined.capture_end_ps):
            yield f"lane {lane} is tiled from {own[0]['start_ps']} to {own[-1]['end_ps']} ps, not the whole capture"
        for before, after in pairwise(own):
            if before["end_ps"] != after["start_ps"]:
                yield f"lane {lane}: {before} and {after} do not meet"


def _causality(joined: Profile) -> Iterator[str]:
    launches, steps = joined["launches"].to_pylist(), joined["steps"].to_pylist()
    for run in joined["runs"].to_pylist():
        if run["join"] not in ("id", "order", "steps_line", "inferred", "ambiguous", "none"):
            yield f"unknown join {run['join']}"
        if run["join"] == "none" and (run["launch"] is not None or run["step"] is not None):
            yield f"joined by nothing, yet joined: {run}"
        if run["join"] not in ("id", "order") or run["launch"] is None:
            continue
        launch = launches[run["launch"]]
        if run["start_ps"] < launch["start_ps"]:
            yield f"a run starts before its launch: {run}, {launch}"
        if run["step"] is not None:
            step = steps[run["step"]]
            if not step["start_ps"] <= launch["start_ps"] <= (step["end_ps"] or joined.capture_end_ps):
                yield f"a run belongs to a step that does not enclose its launch: {run}, {launch}, {step}"


def communication_differences(joined: Profile) -> list[str]:
    """Where the table `communication` does not sum to the breakdown's classes collective and host_device exactly."""
    wanted: Counter[tuple[str, str, str]] = Counter()
    for row in joined["breakdown"].to_pylist():
        if row["class"] in ("collective", "host_device") and row["kind"] != "nested":
            phase = row["phase"] if row["kind"] == "step" else row["kind"]
            wanted[row["class"], phase, "exposed_ps"] += row["exclusive_ps"]
            wanted[row["class"], phase, "total_ps"] += row["total_ps"]
    found: Counter[tuple[str, str, str]] = Counter()
    wrong = []
    for row in communication.partial(joined).to_pylist():
        if row["class"] != "memory":
            for name in ("exposed_ps", "total_ps"):
                found[row["class"], row["phase"], name] += row[name]
        hidden_ps = row["in_flight_ps"] - row["exposed_ps"] - row["idle_ps"]
        if min(hidden_ps, row["exposed_ps"], row["idle_ps"], row["total_ps"] - row["exposed_ps"]) < 0:
            wrong.append(f"a negative part: {row}")
    keys = wanted.keys() | found.keys()
    return wrong + [f"{key}: {found[key]} ps, not {wanted[key]}" for key in sorted(keys) if found[key] != wanted[key]]
