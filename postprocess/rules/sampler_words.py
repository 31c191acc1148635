"""What to add to the advice where stacks were not sampled: that they would name what nothing else did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WOULD_TELL = frozenset({"host", "unknown"})
"""Verdicts that a sampled stack makes into a function and a line, or into another verdict."""


def sampler_advice(bottleneck: str, processes: Sequence[Mapping[str, Any]]) -> str:
    """Empty where the verdict is another one, or any process was sampled.

    ``processes``: with `stacks`, what the run file says of the sampler ({used, why}), None for a trace without one.
    """
    said = [process.get("stacks") for process in processes]
    if bottleneck not in WOULD_TELL or any(stacks and stacks.get("used") for stacks in said):
        return ""
    why = next((stacks["why"] for stacks in said if stacks and stacks.get("why")), None)
    reason = f" ({why})" if why else ""
    return (
        f" Stacks were not sampled{reason}: recorded by xprof_py's capture with stacks on, the function and line that "
        "took this time are named without any annotation."
    )
