"""Whether there is a straggler: the rank that costs most, if it does so persistently and enough to matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

SIGNIFICANT = 0.01
"""The chance at most that one of equal ranks is the worst in so many of the steps (analyses/stragglers.py)."""
LEAST_LOST = 0.02
"""Part of the step time at least: a replay is believed to no less."""


def straggler(ranks: pa.Table | None, step_ps: Sequence[int]) -> dict[str, Any] | None:
    """summary.json's `straggler`; None where no rank is one.

    ``ranks``: the table stragglers, None where clocks do not match. ``step_ps``: the job's steps.
    """
    if ranks is None or not ranks.num_rows or not step_ps:
        return None
    row = ranks.slice(0, 1).to_pylist()[0]
    step_ms = sum(step_ps) / len(step_ps) / 1e9
    lost_ms = row["lost_ns"] / 1e6 / len(step_ps)
    if row["p"] > SIGNIFICANT or lost_ms < LEAST_LOST * step_ms:
        return None
    return {
        "host": row["host"],
        "lane": row["lane"],
        "share": min(lost_ms / step_ms, 1.0),
        "lost_ms_per_step": lost_ms,
        "cause": row["cause"],
        "steps_share": row["share"],
        "p": row["p"],
    }
