"""What a store of runs says: trends and regressions per job, causes over the fleet, stragglers.

The step time of a run is that of its main step name, the one with most time: the median over its hosts of their median
steps. Causes are weighted by device time: the exclusive picoseconds of a class on all lanes of all runs over those of
all classes. A straggler is a host whose own time, its windows without `collective`, is longer than the median host's of
its run: what the others then wait. That is an estimate that needs no common clock; it is made for runs in which hosts
meet, those with time in collectives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.rules.change_points import ALPHA, FEWEST, change_points
from xprof_py.postprocess.rules.power_words import UJ_PER_J
from xprof_py.postprocess.schema import CLASSES

STRAGGLERS = 10
LEAST_LOST = 0.02
"""The part of a step below which a host is no straggler."""
_CAUSES_OF_CHANGE = 3

Row = dict[str, Any]


def fleet_report(runs: pa.Table, failed: Sequence[Row]) -> Row:
    """The report of a store (fleet/store.py SCHEMA, sorted as read_store does), as a JSON object.

    ``jobs[]`` {job, runs[], changes[], note}, ``causes[]``, ``stragglers[]``, ``failed[]``, ``method``.
    """
    by_run: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in runs.to_pylist():
        by_run[row["job"], row["run"]].append(row)
    told = {key: _run(rows) for key, rows in by_run.items()}
    jobs: dict[str, list[Row]] = defaultdict(list)
    for (job, _), run in told.items():
        jobs[job].append(run)
    return {
        "jobs": [{"job": job, "runs": of_job, **_changes(of_job)} for job, of_job in sorted(jobs.items())],
        "causes": _causes(by_run),
        "stragglers": _stragglers(by_run, told),
        "failed": list(failed),
        "method": {
            "changes": "binary segmentation of ranks, p by permutation",
            "alpha_per_job": ALPHA,
            "fewest_runs": FEWEST,
        },
    }


def _run(rows: Sequence[Row]) -> Row:
    """One line of a trend."""
    main = _main_rows(rows)
    line = {name: rows[0][name] for name in ("run", "started_ns", "bottleneck")}
    line["hosts"] = len({row["host"] for row in rows})
    if not main:
        return {
            **line,
            "step_name": None,
            "steps": 0,
            "step_ms": None,
            "step_j": None,
            "shares": None,
            "class_ms": None,
        }
    steps = {row["host"]: row["step_ps"] for row in main}
    whole = sum(row["exclusive_ps"] for row in main)
    # Lane-steps: what a class takes of the average step on the average lane.
    lane_steps = sum(row["lanes"] * row["steps"] for row in main) / len(CLASSES)
    of_class = {c: sum(row["exclusive_ps"] for row in main if row["class"] == c) for c in CLASSES}
    return {
        **line,
        "step_name": main[0]["step_name"],
        "steps": max(row["steps"] for row in main),
        "step_ms": sorted(steps.values())[(len(steps) - 1) // 2] / 1e9,
        "step_j": None if main[0]["step_energy_uj"] is None else main[0]["step_energy_uj"] / UJ_PER_J,
        "shares": {c: value / whole if whole else 0.0 for c, value in of_class.items()},
        "class_ms": {c: value / lane_steps / 1e9 for c, value in of_class.items()},
    }


def _main_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of the step name with most time."""
    time: dict[str, int] = defaultdict(int)
    for row in rows:
        if row["class"] is not None:
            time[row["step_name"]] += row["exclusive_ps"]
    if not time:
        return []
    main = min(time, key=lambda name: (-time[name], name))
    return [row for row in rows if row["step_name"] == main]


def _changes(runs: Sequence[Row]) -> Row:
    """Changes of a job's step time. Runs without a start or a step are no part of the series."""
    series = [run for run in runs if run["step_ms"] is not None and run["started_ns"] is not None]
    left_out = len(runs) - len(series)
    note = f"{left_out} of {len(runs)} runs have no steps or no time of start" if left_out else None
    if len(series) < FEWEST:
        return {"changes": [], "note": f"{len(series)} runs: a change can be told from {FEWEST} on"}
    times = np.array([run["step_ms"] for run in series])
    changes = change_points(times)
    edges = [0, *(change.at for change in changes), len(series)]
    out = []
    for place, change in enumerate(changes):
        before, after = series[edges[place] : change.at], series[change.at : edges[place + 2]]
        was, now = (float(np.median([run["step_ms"] for run in side])) for side in (before, after))
        moved = {c: _mean(after, c) - _mean(before, c) for c in CLASSES}
        largest = sorted(CLASSES, key=lambda c: -abs(moved[c]))[:_CAUSES_OF_CHANGE]
        out.append(
            {
                "run": series[change.at]["run"],
                "started_ns": series[change.at]["started_ns"],
                "kind": "regression" if now > was else "improvement",
                "before_ms": was,
                "after_ms": now,
                "change": now / was - 1 if was else None,
                "p": change.p,
                "classes": [{"class": c, "change_ms": moved[c]} for c in largest if moved[c]],
            }
        )
    return {"changes": out, "note": note}


def _mean(runs: Sequence[Row], name: str) -> float:
    return float(np.mean([run["class_ms"][name] for run in runs]))


def _causes(by_run: dict[tuple[str, str], list[Row]]) -> list[Row]:
    """Classes by their device time over the fleet, the largest first, each with the jobs that have most of it."""
    time: dict[str, dict[str, int]] = {name: defaultdict(int) for name in CLASSES}
    for (job, _), rows in by_run.items():
        for row in rows:
            if row["class"] is not None:
                time[row["class"]][job] += row["exclusive_ps"]
    whole = sum(sum(jobs.values()) for jobs in time.values())
    out = []
    for name, jobs in time.items():
        total = sum(jobs.values())
        if total:
            most = sorted(jobs.items(), key=lambda pair: (-pair[1], pair[0]))[:3]
            in_jobs = [{"job": job, "device_s": value / 1e12} for job, value in most if value]
            out.append({"class": name, "device_s": total / 1e12, "share": total / whole, "jobs": in_jobs})
    return sorted(out, key=lambda row: (-row["device_s"], row["class"]))


def _stragglers(by_run: dict[tuple[str, str], list[Row]], told: dict[tuple[str, str], Row]) -> list[Row]:
    """The host that costs its run most, of the runs that lose most: by time lost over their steps."""
    out = []
    for (job, run), rows in by_run.items():
        main = _main_rows(rows)
        own: dict[str, int] = defaultdict(int)
        lane_steps: dict[str, int] = {}
        meets = False
        for row in main:
            lane_steps[row["host"]] = row["lanes"] * row["steps"]
            if row["class"] != "collective":
                own[row["host"]] += row["exclusive_ps"]
            else:
                meets = meets or row["exclusive_ps"] > 0
        if len(own) < 2 or not meets:
            continue
        per_step = {host: time / lane_steps[host] for host, time in own.items()}
        middle = sorted(per_step.values())[(len(per_step) - 1) // 2]
        host = min(per_step, key=lambda h: (-per_step[h], h))
        lost_ms, step_ms = (per_step[host] - middle) / 1e9, told[job, run]["step_ms"]
        if lost_ms >= LEAST_LOST * step_ms:
            line = {"job": job, "run": run, "host": host, "lost_ms_per_step": lost_ms, "share": lost_ms / step_ms}
            out.append({**line, "lost_s": lost_ms * told[job, run]["steps"] / 1e3})
    return sorted(out, key=lambda row: (-row["lost_s"], row["job"], row["run"]))[:STRAGGLERS]
