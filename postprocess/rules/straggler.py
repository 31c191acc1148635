"""Whether there is a straggler: the rank that costs most, if it does so persistently and enough to matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

SIGNIFICANT = 0.01
"""The chance at most that one of equal ranks is the worst in so many of the steps (analyses/stragglers.py)."""
LEAST_LOST = 0.02
"""Part of the step time at least: a replay is believed to no less."""


MOST_REASONS = 6


def straggler(ranks: pa.Table | None, reasons: pa.Table | None, step_ps: Sequence[int]) -> dict[str, Any] | None:
    """summary.json's `straggler`; None where no rank is one.

    ``ranks``, ``reasons``: the tables stragglers and straggler_reasons, None where clocks do not match. ``step_ps``:
    the job's steps.
    """
    if ranks is None or not ranks.num_rows or not step_ps:
        return None
    row = ranks.slice(0, 1).to_pylist()[0]
    step_ms = sum(step_ps) / len(step_ps) / 1e9
    lost_ms = row["lost_ns"] / 1e6 / len(step_ps)
    if row["p"] > SIGNIFICANT or lost_ms < LEAST_LOST * step_ms:
        return None
    behind = _behind(reasons, row, len(step_ps))
    # What it did most is said, and where: the line that most of the cause's time has.
    of_cause = [reason for reason in behind if reason["class"] == row["cause"]]
    return {
        "host": row["host"],
        "lane": row["lane"],
        "share": min(lost_ms / step_ms, 1.0),
        "lost_ms_per_step": lost_ms,
        "cause": row["cause"],
        "steps_share": row["share"],
        "p": row["p"],
        "steps": row["steps"],
        "of_steps": row["of_steps"],
        "reason": of_cause[0]["reason"] if of_cause else None,
        "source": of_cause[0]["source"] if of_cause else None,
        "reasons": behind[:MOST_REASONS],
    }


def _behind(reasons: pa.Table | None, row: dict[str, Any], steps: int) -> list[dict[str, Any]]:
    """The rows of ``reasons`` of the rank of ``row``, the longest first; what it did less than others is no reason."""
    if reasons is None:
        return []
    own = pc.and_(pc.equal(reasons["host"], row["host"]), pc.equal(reasons["lane"], row["lane"]))
    own = pc.and_(own, pc.greater(reasons["length_ps"], 0))
    out = []
    for found in reasons.filter(own).to_pylist():
        of_rank = {name: found[name] for name in ("class", "reason", "source", "steps")}
        out.append({**of_rank, "ms_per_step": found["length_ps"] / 1e9 / steps})
    return out
