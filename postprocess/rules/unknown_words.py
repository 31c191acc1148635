"""What to advise where nothing says why the device waited: a span would not tell where there is one already."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

MOSTLY = 0.5
"""Of the unknown time: what lies in the program's own spans beyond this is not for want of a span."""
NAMED = 2


def unknown_advice(evidence: pa.Table, phases: tuple[str, ...]) -> str | None:
    """What goes in place of the usual advice for `unknown`; None where most of it lies in no span of the program.

    ``evidence``: the finished table of analyses.evidence; ``phases``: those of the steps used.
    """
    spans: Counter[str] = Counter()
    for row in evidence.to_pylist():
        if row["cause"] == "unknown" and row["phase"] in phases:
            spans[row["span"] or ""] += row["length_ps"]
    whole_ps, bare_ps = sum(spans.values()), spans.pop("", 0)
    if not spans or whole_ps - bare_ps < MOSTLY * whole_ps:
        return None
    longest = sorted(spans, key=lambda name: (-spans[name], name))[:NAMED]
    names = " and ".join(f"`{name}`" for name in longest)
    return (
        f"Most of it lies in {names}: a span says that it was open, not what its thread waited for. Put `with "
        "input_wait():` around the part that waits for data and `with checkpoint():` around the part that saves, and "
        "record again; what is left is a wait of the program itself: a lock, a sleep, another process."
    )
