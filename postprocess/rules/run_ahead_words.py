"""How far the host was ahead of the device, in the summary and in words; and the advice for a loop that is never."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.rules.verdict import WORTH_NAMING
from xprof_py.postprocess.rules.wording import counted, duration

LATE_HOST = frozenset({"input", "checkpoint", "host", "unknown"})
"""Verdicts of which a host that runs ahead could hide something: the device waits for the host."""
FEWEST = 3
"""Steps for advice about all of them."""


def run_ahead_summary(table: pa.Table, phases: Sequence[str]) -> dict[str, Any] | None:
    """summary.json's `run_ahead` over the steps that count; None where no step's run is joined to its launch.

    ``table``: the finished run_ahead; a step on several lanes counts once per lane. `steps_that_blocked`: in which the
    launching thread waited for the device; `blocked_ms` is the mean of these waits over all steps.
    """
    used = table.filter(pc.is_in(table["phase"], pa.array(phases)))
    if not used.num_rows:
        return None
    ahead_ps = used["ahead_ps"].drop_null().to_numpy()
    steps, runs = used["ahead_steps"].to_numpy(), used["ahead_runs"].to_numpy()
    blocked_ps = used["blocked_ps"].to_pylist()
    return {
        "steps": used.num_rows,
        "median_ms": float(np.median(ahead_ps)) / 1e9 if len(ahead_ps) else None,
        "median_steps": float(np.median(steps)),
        "mean_steps": int(steps.sum()) / used.num_rows,
        "median_runs": float(np.median(runs)),
        "steps_that_blocked": sum(ps > 0 for ps in blocked_ps),
        "blocked_ms": sum(blocked_ps) / used.num_rows / 1e9,
    }


def unblock_advice(bottleneck: str, ahead: Mapping[str, Any] | None, step_ms: float | None) -> str:
    """What to add to the advice where the loop waits for the device in most steps and is never ahead; else empty.

    ``step_ms``: mean step time. Waits of less than a tenth of it hide nothing that is worth a change.
    """
    if ahead is None or bottleneck not in LATE_HOST or ahead["steps"] < FEWEST:
        return ""
    if step_ms is None or ahead["blocked_ms"] < WORTH_NAMING * step_ms:
        return ""
    if ahead["median_steps"] > 0 or 2 * ahead["steps_that_blocked"] <= ahead["steps"]:
        return ""
    waits = f"{ahead['steps_that_blocked']} of {ahead['steps']} steps ({duration(ahead['blocked_ms'] / 1e3)} a step)"
    return (
        f" The loop waits for the device in {waits}, so the host is never ahead and all of its own time is added: "
        "do not block every step (block_until_ready, float(loss), np.asarray), look at results some steps later."
    )


def step_ahead(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """One row of the finished run_ahead for `explain`; None where the step has none."""
    if row is None:
        return None
    out = {
        "ahead_ms": None if row["ahead_ps"] is None else row["ahead_ps"] / 1e9,
        "runs": row["ahead_runs"],
        "steps": row["ahead_steps"],
        "blocked_ms": row["blocked_ps"] / 1e9,
    }
    return {**out, "text": _text(out)}


def _text(ahead: Mapping[str, Any]) -> str:
    if not ahead["runs"]:
        return "the host was not ahead: the device had nothing left to do when this step was launched"
    much = counted(ahead["steps"], "step", "steps") + " ahead"
    if not ahead["steps"]:
        much = "ahead of the device, though not by a step"
    behind = f"behind {counted(ahead['runs'], 'unfinished run', 'unfinished runs')}"
    if ahead["ahead_ms"] is None:
        return f"the host was {much}: its launch was still open at the end of the capture, {behind}"
    return f"the host was {much}: its launch waited {duration(ahead['ahead_ms'] / 1e3)} for the device, {behind}"
