"""The summary's power: what a step and a token take in energy, and what clocks that were held down cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses.throttling import LIMITS

UJ_PER_J = 1_000_000
PS_PER_S = 10**12
WORTH_SAYING = 0.02
"""Lost time below this part of the steps is in the tables, and no advice."""
_ADVICE = {
    "thermal": "they ran too hot: see to cooling and airflow",
    "power": "they reached their power limit: raise it (`nvidia-smi -pl`) where the host allows it",
    "hardware": "the board slowed them down: look at its power supply, cables and temperature",
}


def power_summary(
    energy: pa.Table, throttling: pa.Table, name: str | None, phases: tuple[str, ...], lanes: int
) -> dict[str, Any] | None:
    """Of the steps called ``name`` in ``phases``; None where no device of a lane was sampled.

    ``energy``, ``throttling``: what these analyses finished; ``lanes``: of the whole job. Energy is over the steps in
    which it is known of every sampled device. What is None is explained in ``why``, by its name.
    """
    rows = _used(energy, name, phases).to_pylist()
    if not rows:
        return None
    sampled = {(row["host"], row["lane"]) for row in rows}
    return {
        "name": name,
        "devices": len(sampled),
        **_energy(rows, len(sampled), lanes),
        "throttling": _throttling(_used(throttling, name, phases).to_pylist()),
    }


def energy_difference(a: Mapping[str, Any], b: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """What a step called ``name`` takes in energy in two runs, by their summaries; None where neither was sampled.

    ``beyond_error``: the difference is larger than both can be off together. That is about measuring alone: how much
    equal runs differ no pair shows. ``why``: what is unknown, or not to be compared; the differences are None then.
    """
    powers = [summary.get("power") for summary in (a, b)]
    if powers == [None, None]:
        return None
    out: dict[str, Any] = {}
    why = ""  # the first reason counts
    for run, power in zip("ab", powers, strict=True):
        told = power if power is not None and power["name"] == name else None
        out |= {f"{run}_j": told and told["joules_per_step"], f"{run}_error_j": told and told["joules_per_step_error"]}
        out[f"{run}_devices"] = told and told["devices"]
        if told is None:
            which = "no device was sampled" if power is None else f"it is known of the steps {power['name']!r} alone"
            why = why or f"{run.upper()}: {which}"
        elif told["joules_per_step"] is None:
            why = why or f"{run.upper()}: {told['why']['joules_per_step']}"
    if not why and out["a_devices"] != out["b_devices"]:
        why = f"{out['a_devices']} devices were sampled in A, {out['b_devices']} in B"
    difference = None if why else out["b_j"] - out["a_j"]
    errors = (out["a_error_j"], out["b_error_j"])
    bounded = difference is not None and None not in errors
    return {
        **out,
        "difference_j": difference,
        "relative": difference / out["a_j"] if difference is not None and out["a_j"] else None,
        "beyond_error": abs(difference or 0.0) > sum(errors) if bounded else None,
        "why": why or None,
    }


def throttling_advice(power: dict[str, Any] | None) -> str:
    """What the verdict's advice adds, "" where nothing is worth it."""
    found = None if power is None else power["throttling"]
    return "" if found is None or not found["advice"] else f" {found['advice']}"


def _used(table: pa.Table, name: str | None, phases: tuple[str, ...]) -> pa.Table:
    return table.filter(pc.and_(pc.equal(table["name"], pa.scalar(name)), pc.is_in(table["phase"], pa.array(phases))))


def _energy(rows: list[dict[str, Any]], sampled: int, lanes: int) -> dict[str, Any]:
    why: dict[str, str] = {}
    by_step: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_step[row["number"], row["occurrence"]].append(row)
    # Every host counts a step's occurrences by itself: a step that some lanes do not have is not whole.
    whole = {
        key
        for key, found in by_step.items()
        if len(found) == sampled and all(r["energy_uj"] is not None for r in found)
    }
    used = [row for row in rows if (row["number"], row["occurrence"]) in whole]
    hosts_of = defaultdict(set)
    for row in rows:
        if row["uuid"]:
            hosts_of[row["uuid"]].add(row["host"])
    shared = sorted(uuid for uuid, hosts in hosts_of.items() if len(hosts) > 1)
    numbers = ("joules_per_step", "joules_per_step_error", "joules_per_token", "mean_w")
    out: dict[str, Any] = {"steps": len(whole), "method": None, **dict.fromkeys(numbers)}
    if not whole:
        why["joules_per_step"] = f"no step of {len(by_step)} was sampled from its start to its end on every device"
    elif shared:
        why["joules_per_step"] = f"several processes use {shared[0]}: whose energy it is cannot be told"
    if why:
        return {**out, "why": dict.fromkeys(numbers, why["joules_per_step"])}
    total = sum(row["energy_uj"] for row in used) / UJ_PER_J
    seconds = sum(row["end_ps"] - row["start_ps"] for row in used) / PS_PER_S
    methods = sorted({row["method"] for row in used})
    out |= {"method": " and ".join(methods), "joules_per_step": total / len(whole)}
    out["mean_w"] = total / seconds if seconds else None
    if "power" in methods:
        why["joules_per_step_error"] = "a device has no counter of energy: its power is integrated, and has no bound"
    else:
        out["joules_per_step_error"] = _error_uj(used) / UJ_PER_J / len(whole)
    tokens = {(row["host"], row["number"], row["occurrence"]): row["tokens"] for row in used}
    if sampled < lanes:
        why["joules_per_token"] = f"{sampled} of {lanes} devices were sampled"
    elif None in tokens.values():
        why["joules_per_token"] = "the steps do not say their tokens: `step(i, tokens=...)`"
    elif not sum(tokens.values()):
        why["joules_per_token"] = "the steps have no tokens"
    else:
        out["joules_per_token"] = total / sum(tokens.values())
    return {**out, "why": why}


def _error_uj(rows: list[dict[str, Any]]) -> int:
    """How far the sum of the energies can be from the truth: a border between two of the windows is in it twice, with
    opposite signs."""
    error = 0
    last: dict[tuple[str, int], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["start_ps"]):
        before = last.get((row["host"], row["lane"]))
        if before is None or before["end_ps"] != row["start_ps"]:
            error += row["start_error_uj"] + (before["end_error_uj"] if before else 0)
        last[row["host"], row["lane"]] = row
    return int(error + sum(row["end_error_uj"] for row in last.values()))


def _throttling(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    known = [row for row in rows if row["lost_ps"] is not None]
    kernel_ps = sum(row["kernel_ps"] for row in rows)
    out: dict[str, Any] = {
        "limited_share": sum(row["limited_ps"] for row in rows) / kernel_ps if kernel_ps else None,
        "lost_ms_per_step": None,
        "lost_share": None,
        "by_reason": {},
        "unjudged_share": None,
        "why": None,
        "advice": None,
    }
    if not kernel_ps:
        return {**out, "why": "no kernel ran in these steps"}
    if not known:
        return {**out, "why": "too few samples show the clock at which kernels run when nothing holds it down"}
    window_ps = sum(row["window_ps"] for row in known)
    lost = Counter({name: sum(row[f"{name}_lost_ps"] for row in known) for name in LIMITS})
    whole = sum(lost.values())
    share = whole / window_ps if window_ps else 0.0
    out |= {
        "lost_ms_per_step": whole / len(known) / 1e9,
        "lost_share": share,
        "by_reason": {name: value / window_ps if window_ps else 0.0 for name, value in lost.items()},
        "unjudged_share": sum(row["unjudged_ps"] for row in known) / window_ps if window_ps else 0.0,
    }
    if share >= WORTH_SAYING:
        most = max(lost, key=lambda name: lost[name])
        reference = max(row["reference_mhz"] for row in known)
        out["advice"] = (
            f"The GPUs' clocks were held below {reference} MHz, which cost {share:.1%} of the step: {_ADVICE[most]}."
        )
    return out
