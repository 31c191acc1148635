"""Where did the time of each step go?

Per host, lane and step window: exclusive picoseconds of every busy class and gap cause, which sum to the window exactly
(docs/breakdown.md). `share` of a class = its exclusive time over that of all classes, over the steps used: the steady
ones, or all measured ones where none is steady. Left out of shares: warmup, outlier and partial steps, head and tail,
nested steps; each has a line of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess import schema
from xprof_py.postprocess.join.columns import codes, in_order_of_rows, integers
from xprof_py.postprocess.join.windows import step_times
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import CLASSES

_ORDER = [("host", "ascending"), ("lane", "ascending"), ("window", "ascending")]


def partial(profile: Profile) -> pa.Table:
    """The breakdown of one joined profile (table `breakdown`)."""
    return profile["breakdown"]


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Rows of both; a window belongs to one host and one lane, so nothing is added up."""
    return pa.concat_tables([a, b])


def finish(merged: pa.Table) -> pa.Table:
    """Table `step_classes`: one row per host, lane and window, sorted; a column of exclusive picoseconds per class.

    Nested windows are kept (kind nested); they enter no sum.
    """
    columns: dict[str, Any] = {}
    table = merged.sort_by(_ORDER)
    # Every window has one row per class, in the order of CLASSES: the sort is stable.
    width = len(CLASSES)
    if table.num_rows % width:
        raise ValueError(f"breakdown has {table.num_rows} rows, not a multiple of {width} classes")
    first = table.take(pa.array(np.arange(0, table.num_rows, width)))
    for name in ("host", "lane", "kind", "name", "number", "occurrence", "phase", "reason", "start_ps", "window_ps"):
        columns[name] = first[name]
    exclusive = np.asarray(table["exclusive_ps"].to_numpy()).reshape(-1, width)
    for code, class_name in enumerate(CLASSES):
        columns[f"{class_name}_ps"] = exclusive[:, code]
    return schema.table("step_classes", columns)


def used_phases(merged: pa.Table) -> tuple[str, ...]:
    """The phases that shares are taken over: steady, or every measured one where no step is steady."""
    steps = merged.filter(pc.equal(merged["kind"], "step"))
    return ("steady",) if "steady" in steps["phase"].unique().to_pylist() else ("warmup", "outlier", "partial")


def shares(merged: pa.Table, phases: tuple[str, ...]) -> dict[str, dict[str, float]] | None:
    """class -> exclusive_s and total_s (mean over lanes, summed over steps), share (0-1); None without steps."""
    used = merged.filter(pc.and_(pc.equal(merged["kind"], "step"), pc.is_in(merged["phase"], pa.array(phases))))
    sums = used.group_by("class").aggregate([("exclusive_ps", "sum"), ("total_ps", "sum")])
    exclusive = dict(zip(sums["class"].to_pylist(), sums["exclusive_ps_sum"].to_pylist(), strict=True))
    total = dict(zip(sums["class"].to_pylist(), sums["total_ps_sum"].to_pylist(), strict=True))
    whole = sum(exclusive.values())
    if not whole:
        return None
    lanes = used.group_by(["host", "lane"]).aggregate([]).num_rows
    return {
        name: {
            "exclusive_s": exclusive[name] / lanes / 1e12,
            "total_s": total[name] / lanes / 1e12,
            "share": exclusive[name] / whole,
        }
        for name in CLASSES
    }


def step_times_ps(step_classes: pa.Table, phases: tuple[str, ...], step_name: str | None = None) -> list[int]:
    """The time in ps of every step of these phases: over all lanes of a host, then the mean over its hosts.

    ``step_classes``: what finish returns, with all steps of its hosts: a step begins where the one before it ended,
    of whatever name and phase that is. ``step_name``: the times of the steps of that name alone. Hosts are each on
    their own clock; the mean is rounded down.
    """
    table = step_classes.filter(pc.equal(step_classes["kind"], "step"))
    lane, start, window_ps = (integers(table, name) for name in ("lane", "start_ps", "window_ps"))
    first, step = in_order_of_rows(codes(table["name"])[0], integers(table, "number"), integers(table, "occurrence"))
    host, hosts = codes(table["host"])
    counts = np.asarray(pc.is_in(table["phase"], pa.array(phases)).to_numpy(), np.bool_)
    if step_name is not None:
        counts = counts & np.asarray(pc.equal(table["name"], step_name).to_numpy(), np.bool_)
    summed, measured_by = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    for one in range(len(hosts)):
        mine = np.flatnonzero(host == one)
        shown, own = in_order_of_rows(step[mine])
        measured = step_times(lane[mine], own, start[mine], (start + window_ps)[mine], len(shown))
        used = counts[mine[shown]]
        of = step[mine[shown[used]]]
        summed[of] += measured[used]
        measured_by[of] += 1
    known = measured_by > 0
    times: list[int] = (summed[known] // measured_by[known]).tolist()
    return times


def by_lane(merged: pa.Table, phases: tuple[str, ...]) -> list[dict[str, Any]]:
    """The same per lane: the raw view, before any averaging."""
    keys = merged.group_by(["host", "lane"]).aggregate([]).sort_by([("host", "ascending"), ("lane", "ascending")])
    out = []
    for key in keys.to_pylist():
        mine = merged.filter(pc.and_(pc.equal(merged["host"], key["host"]), pc.equal(merged["lane"], key["lane"])))
        out.append({"host": key["host"], "lane": key["lane"], "breakdown": shares(mine, phases)})
    return out


def outside(merged: pa.Table, phases: tuple[str, ...]) -> dict[str, Any]:
    """What the phases that shares leave out cost, and head and tail: seconds as the mean over lanes."""
    out: dict[str, Any] = {}
    lanes = max(merged.group_by(["host", "lane"]).aggregate([]).num_rows, 1)
    for label, column in (
        *((phase, "phase") for phase in ("warmup", "steady", "outlier", "partial") if phase not in phases),
        ("head", "kind"),
        ("tail", "kind"),
    ):
        rows = merged.filter(pc.equal(merged[column], label))
        if column == "phase":
            rows = rows.filter(pc.equal(rows["kind"], "step"))
        sums = rows.group_by("class").aggregate([("exclusive_ps", "sum")])
        classes = dict(zip(sums["class"].to_pylist(), sums["exclusive_ps_sum"].to_pylist(), strict=True))
        steps = rows.group_by(["host", "name", "number", "occurrence"]).aggregate([]).num_rows
        line = {
            "total_s": sum(classes.values()) / lanes / 1e12,
            "by_class": {name: classes[name] / lanes / 1e12 for name in CLASSES if classes.get(name)},
        }
        out[label] = line if column == "kind" else {"steps": steps, **line}
    return out
