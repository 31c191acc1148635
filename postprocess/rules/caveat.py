"""What a verdict does not rest on: events lost of the recordings read. A file that is not read costs itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WHAT = {
    "shard_damaged": "a shard is damaged",
    "shard_incomplete": "a shard is not whole",
    "shard_truncated": "a shard is cut off",
    "unknown_thread": "a shard is damaged",
    "dropped_ring": "annotations were dropped",
    "dropped_budget": "annotations were dropped",
    "dropped_error": "annotations were dropped",
    "no_clock": "events without a time are left out",
}
"""Words by code of the diagnostics that say that events are lost, the cause before what follows from it."""


def caveat(diagnostics: Sequence[Mapping[str, Any]], steps: Mapping[str, Any]) -> str | None:
    """summary.json's `verdict.caveat`; None where no diagnostic tells of a loss. ``steps``: summary.json's `steps`."""
    found = {row["code"] for row in diagnostics}
    causes = list(dict.fromkeys(words for code, words in WHAT.items() if code in found))
    if "a shard is damaged" in causes or "a shard is cut off" in causes:
        causes = [words for words in causes if words != "a shard is not whole"]
    if not causes:
        return None
    unmeasured = steps["phases"]["unmeasured"]
    without = f"{unmeasured} of {steps['count']} steps are not in it, and " if unmeasured else ""
    return f"Part of what was recorded is lost ({', '.join(causes)}): {without}what it says may miss a part."
