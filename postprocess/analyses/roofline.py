"""How close did ops and programs come to what the device can do?

Per HLO instruction, over its executions (definitions of flops and bytes: hlo/cost.py, of peaks: hlo/peaks.py):

    ideal       max(flops / peak rate, bytes / memory bandwidth), the least time that the device needs
    bound       compute or memory, whichever of the two is longer
    efficiency  ideal / measured time (own event and the part that it stayed open, as in top_ops); above 1 where data
                came from a cache: bytes are counted as if they all came from memory
    excess      measured time - ideal, at least 0: `codegen_excess`, what the code that the compiler made takes beyond
                the hardware. Of the classes compute and memory; a collective or a copy to the host waits for others.
                Ops that run at once share the device, so each one's excess then holds the others' work

Per program: the sums over its executed ops, which count a loop's body as often as it ran, beside what the HLO promises
for one run (loops by trip count). Ideals by resource: computing, moving bytes, network. Everything is null where a cost
or a peak is not known; transcendental functions and copies between host and device are left out.

Sums are exact: picoseconds in int64, flops and bytes in decimal128, since those of a fleet pass 2^63.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses.leaves import leaves
from xprof_py.postprocess.analyses.top_ops import KEYS, Instructions, phase_of_leaves
from xprof_py.postprocess.hlo.peaks import Peaks, ideal_ps, ideal_times_ps, peaks_of
from xprof_py.postprocess.join.columns import Int64, dictionary, distinct, integers
from xprof_py.postprocess.profile import Profile

COMPILED_CLASSES = ("compute", "memory")
"""Classes whose time is that of the compiler's code."""
_COUNT = pa.decimal128(38, 0)
_AMOUNTS = ("flops", "bytes", "network_bytes")
_TIMES = ("computing_ps", "moving_ps", "network_ps", "ideal_ps")
_KNOWN = tuple(f"{name}_known" for name in (*_AMOUNTS, *_TIMES))
_SUMS = ("count", "total_ps", *_AMOUNTS, *_TIMES, *_KNOWN)
_SCHEMA = pa.schema(
    [
        *((key, pa.string()) for key in KEYS),
        *((name, _COUNT if name in _AMOUNTS else pa.int64()) for name in _SUMS),
    ]
)


def partial(profile: Profile) -> pa.Table:
    """KEYS and sums of one joined profile. Rows with an empty `op` are programs: `count` runs, and what the HLO says
    that they need. ``x_known``: of how many executions x is known and in the sum."""
    rows = [*_op_rows(profile), *_program_rows(profile)]
    return merge(pa.Table.from_pylist(rows, schema=_SCHEMA), None)


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Sums per instruction and phase."""
    return _summed(a if b is None else pa.concat_tables([a, b]), KEYS)


def finish(merged: pa.Table, phases: tuple[str, ...]) -> pa.Table:
    """Per instruction over steps of these phases (all, if there is no step), longest total first.

    Columns: KEYS without phase, count, total_ps; flops, bytes, network_bytes (decimal) and computing_ps, moving_ps,
    network_ps, ideal_ps, null unless known of every execution; flops_per_s, bytes_per_s (achieved), bound, efficiency;
    excess_ps, null where the ideal or the class does not tell it.
    """
    used = _of_phases(merged, phases)
    table = _described(used.filter(pc.not_equal(used["op"], "")), [key for key in KEYS if key != "phase"])
    told = pc.is_in(table["class"], pa.array(COMPILED_CLASSES))
    beyond = pc.max_element_wise(pc.subtract(table["total_ps"], table["ideal_ps"]), 0, skip_nulls=False)
    return table.append_column("excess_ps", pc.if_else(told, beyond, pa.scalar(None, pa.int64())))


def programs(merged: pa.Table, phases: tuple[str, ...]) -> pa.Table:
    """Per program: the columns of ``finish`` over its executed ops, and runs, run_ps, hlo_flops, hlo_bytes.

    ``run_ps``: sum of its runs' lengths; hlo_*: what its HLO needs in one run, null where not known. ``excess_ps``: the
    sum over its ops whose excess is known, null where none is; ``excess_unknown_ps``: the time of the others among
    compute and memory, of which nothing is known.
    """
    used = _of_phases(merged, phases)
    ops = _described(used.filter(pc.not_equal(used["op"], "")), ["program"])
    whole = {row["program"]: row for row in _summed(used.filter(pc.equal(used["op"], "")), ["program"]).to_pylist()}
    added: dict[str, list[int | None]] = {name: [] for name in ("runs", "run_ps", "hlo_flops", "hlo_bytes")}
    for program in ops["program"].to_pylist():
        row = whole.get(program)
        added["runs"].append(None if row is None else row["count"])
        added["run_ps"].append(None if row is None else row["total_ps"])
        for name in ("flops", "bytes"):
            known = row is not None and row["count"] and row[f"{name}_known"] == row["count"]
            added[f"hlo_{name}"].append(int(row[name]) // row["count"] if known and row is not None else None)
    excess = _excess_by_program(finish(merged, phases))
    for name in ("excess_ps", "excess_unknown_ps"):
        added[name] = [excess.get(program, {}).get(name) for program in ops["program"].to_pylist()]
    for name, values in added.items():
        ops = ops.append_column(name, pa.array(values, pa.int64()))
    return ops


def _excess_by_program(finished: pa.Table) -> dict[str, dict[str, int | None]]:
    of = finished.filter(pc.is_in(finished["class"], pa.array(COMPILED_CLASSES)))
    unknown = pc.if_else(pc.is_null(of["excess_ps"]), of["total_ps"], 0)
    of = of.append_column("excess_unknown_ps", unknown)
    sums = of.group_by("program").aggregate([("excess_ps", "sum"), ("excess_unknown_ps", "sum")])
    return {
        row["program"]: {"excess_ps": row["excess_ps_sum"], "excess_unknown_ps": row["excess_unknown_ps_sum"]}
        for row in sums.to_pylist()
    }


def _of_phases(merged: pa.Table, phases: tuple[str, ...]) -> pa.Table:
    steps = merged.filter(pc.is_in(merged["phase"], pa.array(phases)))
    return steps if steps.num_rows else merged


def _summed(table: pa.Table, keys: list[str]) -> pa.Table:
    summed = table.group_by(keys).aggregate([(name, "sum") for name in _SUMS])
    summed = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])
    return summed.select([*keys, *_SUMS]).cast(pa.schema([_SCHEMA.field(name) for name in (*keys, *_SUMS)]))


def _described(table: pa.Table, keys: list[str]) -> pa.Table:
    summed = _summed(table, keys).sort_by([("total_ps", "descending"), *((key, "ascending") for key in keys)])
    columns: dict[str, Any] = {name: summed[name] for name in (*keys, "count", "total_ps")}
    for name in (*_AMOUNTS, *_TIMES):
        complete = pc.equal(summed[f"{name}_known"], summed["count"])
        columns[name] = pc.if_else(complete, summed[name], pa.scalar(None, summed[name].type))
    found = pa.table(columns)
    rows = found.select([name for name in found.column_names if name not in keys]).to_pylist()
    found = found.append_column("flops_per_s", pa.array([_rate(r["flops"], r["total_ps"]) for r in rows], pa.int64()))
    found = found.append_column("bytes_per_s", pa.array([_rate(r["bytes"], r["total_ps"]) for r in rows], pa.int64()))
    found = found.append_column("bound", pa.array([_bound(r) for r in rows], pa.string()))
    efficiency = [
        r["ideal_ps"] / r["total_ps"] if r["ideal_ps"] is not None and r["total_ps"] > 0 else None for r in rows
    ]
    return found.append_column("efficiency", pa.array(efficiency, pa.float64()))


def _rate(amount: Decimal | None, total_ps: int) -> int | None:
    return None if amount is None or total_ps <= 0 else int(amount) * 10**12 // total_ps


def _bound(row: dict[str, Any]) -> str | None:
    computing_ps, moving_ps = row["computing_ps"], row["moving_ps"]
    if computing_ps is None or moving_ps is None or not computing_ps + moving_ps:
        return None
    return "memory" if moving_ps > computing_ps else "compute"


@dataclass(frozen=True)
class Executions:
    """Executions of one instruction (row of hlo_ops) on one lane in steps of one phase, of one class."""

    hlo_op: int
    phase: str
    class_name: str
    lane: int
    count: int
    total_ps: int


def executions(profile: Profile) -> list[Executions]:
    """The leaves with HLO of a joined profile, added up; own event and the part that it stayed open."""
    ops = leaves(profile)
    class_code, classes = dictionary(ops, "class")
    phase_code, phases = phase_of_leaves(profile)
    parts = (integers(ops, "hlo_op"), phase_code, class_code, integers(ops, "lane"))
    first, group = distinct(*parts)
    found = np.stack([part[first] for part in parts], axis=1)
    total_ps = np.zeros(len(found), np.int64)
    np.add.at(total_ps, group, integers(ops, "duration_ps") + integers(ops, "open_ps"))
    count = np.bincount(group, minlength=len(found))
    return [
        Executions(hlo_op, phases[phase], classes[code], on, int(count[i]), int(total_ps[i]))
        for i, (hlo_op, phase, code, on) in enumerate(found.tolist())
        if hlo_op >= 0
    ]


def _op_rows(profile: Profile) -> list[dict[str, Any]]:
    costs = {row["op"]: row for row in profile["hlo_costs"].to_pylist()}
    instructions = Instructions(profile)
    peaks = peaks_by_lane(profile)
    return [
        {
            **instructions.describe(of.hlo_op),
            "class": of.class_name,
            "phase": of.phase,
            "total_ps": of.total_ps,
            **_needed(costs.get(of.hlo_op), peaks[of.lane], of.count),
        }
        for of in executions(profile)
    ]


def peaks_by_lane(profile: Profile) -> list[Peaks | None]:
    """The peaks of every lane's device."""
    return [peaks_of(profile, device) for device in profile["lanes"]["device"].to_pylist()]


def _needed(cost: dict[str, Any] | None, peaks: Peaks | None, count: int) -> dict[str, Any]:
    """count, and the sums of ``count`` executions of one cost, with how many of them are known."""
    values: dict[str, int | None] = dict.fromkeys((*_AMOUNTS, *_TIMES))
    if cost is not None:
        known = cost["bytes_read"] is not None and cost["bytes_written"] is not None
        values["flops"], values["network_bytes"] = cost["flops"], cost["network_bytes"]
        values["bytes"] = cost["bytes_read"] + cost["bytes_written"] if known else None
        if peaks is not None:
            values["computing_ps"], values["moving_ps"] = ideal_times_ps(cost, peaks)
            values["network_ps"] = ideal_ps(cost["network_bytes"], peaks.network_bytes_per_s)
        if values["computing_ps"] is not None and values["moving_ps"] is not None:
            values["ideal_ps"] = max(values["computing_ps"], values["moving_ps"])
    return _times(values, count)


def _times(values: dict[str, int | None], count: int) -> dict[str, Any]:
    out: dict[str, Any] = {"count": count}
    for name, value in values.items():
        total = 0 if value is None else value * count
        out[name] = Decimal(total) if name in _AMOUNTS else total
        out[f"{name}_known"] = 0 if value is None else count
    return out


def _program_rows(profile: Profile) -> list[dict[str, Any]]:
    runs = profile["runs"].filter(pc.is_valid(profile["runs"]["program"]))
    names = profile["programs"]["name"].to_pylist()
    phase_of_step = profile["steps"]["phase"].to_pylist()
    costs = {row["program"]: row for row in profile["program_costs"].to_pylist()}
    length_ps: Int64 = integers(runs, "end_ps") - integers(runs, "start_ps")
    sums: dict[tuple[int, str], list[int]] = {}
    for program, step, length in zip(
        runs["program"].to_pylist(), runs["step"].to_pylist(), length_ps.tolist(), strict=True
    ):
        entry = sums.setdefault((program, "" if step is None else phase_of_step[step]), [0, 0])
        entry[0] += 1
        entry[1] += length
    rows = []
    for (program, phase), (count, total_ps) in sums.items():
        cost = costs.get(program)
        values: dict[str, int | None] = dict.fromkeys((*_AMOUNTS, *_TIMES))
        if cost is not None:
            for name in _AMOUNTS:
                unknown = cost[f"unknown_{name.removesuffix('_bytes')}_ops"]
                values[name] = None if unknown else cost[name]
        key = {**dict.fromkeys(KEYS, ""), "program": names[program], "phase": phase}
        rows.append({**key, "total_ps": total_ps, **_times(values, count)})
    return rows
