"""The summary's throughput: tokens a second, and what part of the devices' peak is the model's (MFU), or used (HFU)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.hlo.peaks import PS_PER_S


def throughput_summary(throughput: pa.Table, name: str | None, step_ps: Sequence[int]) -> dict[str, Any] | None:
    """Of the steps called ``name`` whose times are ``step_ps``; None where there are none.

    ``throughput``: what analyses/throughput.py finished. tokens_per_s, mfu, hfu are None where something is not known,
    which ``why`` then says, by their names. basis: where the model flops come from (`model_flops`, given by the steps;
    `model_flops_per_token`, the setting); `hlo` where only hfu is known; None where neither is.
    """
    rows = throughput.filter(pc.equal(throughput["name"], name)).to_pylist() if name is not None else []
    if not rows or not step_ps:
        return None
    row = rows[0]
    why: dict[str, str] = {}
    steps, job_steps = row["steps"], len(step_ps)
    tokens = _complete(row, "tokens", "steps", "tokens_known")
    if tokens is None:
        why["tokens_per_s"] = _incomplete(row["tokens_known"], steps, "say their tokens: `step(i, tokens=...)`")
    tokens_per_s = None if tokens is None or not sum(step_ps) else tokens * PS_PER_S / sum(step_ps)
    model = _complete(row, "model_flops", "steps", "model_flops_known")
    hlo = _complete(row, "hlo_flops", "runs", "runs_known")
    capacity, missing = _capacity(row)
    mfu, hfu = (None if flops is None or capacity is None else flops / capacity for flops in (model, hlo))
    if model is None:
        stated = "say their model flops: `step(i, model_flops=...)` or `tokens=` and model_flops_per_token"
        why["mfu"] = _incomplete(row["model_flops_known"], steps, stated)
    elif mfu is None:
        why["mfu"] = missing
    if hlo is None:
        why["hfu"] = f"the flops of {row['runs'] - row['runs_known']} of {row['runs']} runs are not known from HLO"
    elif hfu is None:
        why["hfu"] = missing
    basis = None
    if mfu is not None:
        basis = "model_flops_per_token" if row["per_token"] == steps else "model_flops"
    elif hfu is not None:
        basis = "hlo"
    return {
        "name": name,
        "tokens_per_s": tokens_per_s,
        "tokens_per_step": None if tokens is None else tokens / job_steps,
        "mfu": mfu,
        "hfu": hfu,
        "basis": basis,
        "model_flops_per_step": None if model is None else model / job_steps,
        "hlo_flops_per_step": None if hlo is None else hlo / job_steps,
        "peak_flops_per_s": row["peak_flops_per_s"],
        "peak_type": row["matmul_type"],
        "device_s": row["device_ps"] / PS_PER_S,
        "why": why,
    }


def _complete(row: dict[str, Any], amount: str, of: str, known: str) -> int | None:
    return int(row[amount]) if row[of] and row[of] == row[known] else None


def _incomplete(known: int, count: int, what: str) -> str:
    return f"only {known} of {count} steps {what}" if known else f"the steps do not {what}"


def _capacity(row: dict[str, Any]) -> tuple[float | None, str]:
    """What the devices could have computed in the time, or why that is not known."""
    if not row["device_ps"]:
        return None, "no device was seen"
    if row["matmul_type"] is None:
        return None, "no matrix product was seen, so that no peak is the devices'"
    if row["peak_flops_per_s"] is None:
        return None, f"the peak of the devices in {row['matmul_type']} is not known, or they differ: XPROF_PY_PEAKS"
    return row["peak_flops_per_s"] * row["device_ps"] / PS_PER_S, ""
