"""How many tokens a second, and which part of the devices' peak is that? Per step name.

    tokens/s   tokens of the steps / their time
    MFU        model flops of the steps / (time of their devices x peak), model flops as the program states them:
               `step(i, model_flops=...)`, else tokens x model_flops_per_token (a setting of the capture). Chowdhery et
               al., PaLM (2022), appendix B
    HFU        the same with the flops of the runs that the steps launched, as their HLO counts them: what is recomputed
               counts again, and what is no part of the model counts too

The time of devices is the sum of the steps' windows over lanes. The peak is that of matrix products in the type in
which the steps do most of them. Sums are exact; a number is in a sum where it is known, beside how many were.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses.leaves import leaves
from xprof_py.postprocess.hlo.peaks import peaks_of
from xprof_py.postprocess.join.columns import distinct, integers
from xprof_py.postprocess.join.device_ops import NO_DEVICE
from xprof_py.postprocess.profile import Profile

KEYS = ["name", "phase", "matmul_type", "peak_flops_per_s"]
_AMOUNT = pa.decimal128(38, 0)
_AMOUNTS = ("tokens", "model_flops", "hlo_flops", "matmul_flops")
_COUNTS = ("steps", "tokens_known", "model_flops_known", "per_token", "runs", "runs_known", "device_ps")
_SUMS = (*_AMOUNTS, *_COUNTS)
_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("phase", pa.string()),
        ("matmul_type", pa.string()),
        ("peak_flops_per_s", pa.int64()),
        *((name, _AMOUNT) for name in _AMOUNTS),
        *((name, pa.int64()) for name in _COUNTS),
    ]
)


def partial(profile: Profile) -> pa.Table:
    """KEYS and sums over the outermost steps of one joined profile.

    Rows with a matmul_type hold matmul_flops of executed ops in that type on devices of that peak (0: not known); rows
    without all else: steps, their tokens and model flops (``per_token``: of how many these come from the setting), runs
    and their HLO flops, device_ps (0 without a device).
    """
    sums: dict[tuple[str, str, str, int], Counter[str]] = {}

    def of(step: int) -> Counter[str]:
        return sums.setdefault((names[step], phases[step], "", 0), Counter())

    steps = profile["steps"]
    names, phases = steps["name"].to_pylist(), steps["phase"].to_pylist()
    capture = (profile.metadata.get("run") or {}).get("capture") or {}
    per_token = capture.get("model_flops_per_token")
    if isinstance(per_token, bool) or not isinstance(per_token, int | float):
        per_token = None
    columns = (steps[name].to_pylist() for name in ("parent", "tokens", "model_flops"))
    for step, (parent, tokens, model_flops) in enumerate(zip(*columns, strict=True)):
        if parent is not None:
            continue
        found = of(step)
        found["steps"] += 1
        if tokens is not None:
            found["tokens"] += tokens
            found["tokens_known"] += 1
        if model_flops is not None:
            found["model_flops"] += model_flops
            found["model_flops_known"] += 1
        elif tokens is not None and per_token is not None:
            found["model_flops"] += round(tokens * per_token)
            found["model_flops_known"] += 1
            found["per_token"] += 1
    devices = profile["lanes"]["device"].to_pylist()
    windows = profile["windows"].filter(pc.equal(profile["windows"]["kind"], "step"))
    of_step, lane, start, end = (integers(windows, name) for name in ("step", "lane", "start_ps", "end_ps"))
    on_device = np.array([name != NO_DEVICE for name in devices] or [False], np.bool_)
    timed = (lane < len(devices)) & on_device[np.minimum(lane, len(on_device) - 1)]
    device_ps = np.zeros(len(names), np.int64)
    np.add.at(device_ps, of_step[timed], (end - start)[timed])
    for step in np.unique(of_step[timed]).tolist():
        of(step)["device_ps"] += int(device_ps[step])
    costs = {row["program"]: row for row in profile["program_costs"].to_pylist()}
    run_step, run_program = integers(profile["runs"], "step"), integers(profile["runs"], "program")
    first, kind = distinct(run_step, run_program)
    # Flops of a program times its runs leave 64 bits: these are Python's integers.
    counted = run_step[first], run_program[first], np.bincount(kind, minlength=len(first))
    for step, program, runs in zip(*(column.tolist() for column in counted), strict=True):
        if step >= 0:
            found, cost = of(step), costs.get(program)
            found["runs"] += runs
            if cost is not None and not cost["unknown_flops_ops"]:
                found["runs_known"] += runs
                found["hlo_flops"] += cost["flops"] * runs
    for key, flops in _matmuls(profile, devices, list(zip(names, phases, strict=True))).items():
        sums.setdefault(key, Counter()).update(matmul_flops=flops)
    rows = [
        {
            **dict(zip(KEYS, key, strict=True)),
            **{name: Decimal(found[name]) if name in _AMOUNTS else found[name] for name in _SUMS},
        }
        for key, found in sorted(sums.items())
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _matmuls(
    profile: Profile, devices: list[str], steps: list[tuple[str, str]]
) -> dict[tuple[str, str, str, int], int]:
    """(name, phase, type, peak of its device or 0) -> flops of the executed leaves with matrix products.

    ``steps``: name and phase of each.
    """
    ops = leaves(profile)
    run, hlo_op, lane = (integers(ops, name) for name in ("run", "hlo_op", "lane"))
    step_of_run = integers(profile["runs"], "step")
    costs = {row["op"]: row for row in profile["hlo_costs"].to_pylist() if row["matmul_flops"]}
    joined = (run >= 0) & np.isin(hlo_op, np.array(list(costs), np.int64))
    step = step_of_run[run[joined]] if joined.any() else run[joined]
    # Steps have few names and phases.
    number: dict[tuple[str, str], int] = {}
    named = np.array([number.setdefault(key, len(number)) for key in steps] or [0], np.int64)
    label = list(number)
    columns = [column[step >= 0] for column in (named[step], hlo_op[joined], lane[joined])]
    first, kind = distinct(*columns)
    peaks = [peaks_of(profile, device) for device in devices]
    out: dict[tuple[str, str, str, int], int] = defaultdict(int)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    for (name, op, on), times in zip(rows, np.bincount(kind, minlength=len(first)).tolist(), strict=True):
        cost, known = costs[op], peaks[on]
        rate = known.matmul_flops_per_s(cost["matmul_type"]) if known is not None else None
        out[(*label[name], cost["matmul_type"], rate or 0)] += cost["matmul_flops"] * times
    return out


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Sums per key."""
    return _summed(pa.concat_tables([a, b]), KEYS)


def finish(merged: pa.Table, phases: tuple[str, ...]) -> pa.Table:
    """Per step name, over steps of these phases: the sums, and `matmul_type` with most flops, null where there is none;
    `peak_flops_per_s` of it, null where it is not known of every device or devices differ."""
    used = merged.filter(pc.is_in(merged["phase"], pa.array(phases)))
    whole = _summed(used, ["name"]).to_pylist()
    kinds = _summed(used.filter(pc.not_equal(used["matmul_type"], "")), ["name", "matmul_type", "peak_flops_per_s"])
    rows: list[dict[str, Any]] = []
    for row in whole:
        flops: Counter[str] = Counter()
        rates: dict[str, set[int]] = {}
        for kind in kinds.filter(pc.equal(kinds["name"], row["name"])).to_pylist():
            flops[kind["matmul_type"]] += int(kind["matmul_flops"])
            rates.setdefault(kind["matmul_type"], set()).add(kind["peak_flops_per_s"])
        best = min(flops, key=lambda name: (-flops[name], name), default=None)
        peak = rates[best].pop() if best is not None and len(rates[best]) == 1 else 0
        rows.append({**row, "matmul_type": best, "peak_flops_per_s": peak or None})
    rows.sort(key=lambda row: row["name"])
    return pa.Table.from_pylist(rows, schema=pa.schema([f for f in _SCHEMA if f.name != "phase"]))


def _summed(table: pa.Table, keys: list[str]) -> pa.Table:
    summed = table.group_by(keys).aggregate([(name, "sum") for name in _SUMS])
    summed = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])
    schema = pa.schema([_SCHEMA.field(name) for name in (*keys, *_SUMS)])
    return summed.select(schema.names).cast(schema).sort_by([(key, "ascending") for key in keys])
