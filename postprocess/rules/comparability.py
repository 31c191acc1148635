"""Why two runs may not be compared as equals: other devices, versions, hosts, or classes that one of them lacks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

_ORDINAL = re.compile(r"[:_]?\d+$")


def comparability_warnings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, str]]:
    """Rows {code, message} for two summaries (summary.json), empty where nothing speaks against comparing them."""
    out = []
    for code, what, found_a, found_b in (
        ("hosts", "hosts", str(len(a["hosts"])), str(len(b["hosts"]))),
        ("devices", "devices", _devices(a), _devices(b)),
        ("jax", "jax", _captured(a, "jax"), _captured(b, "jax")),
        ("python", "Python", _captured(a, "python"), _captured(b, "python")),
        ("mode", "capture mode", _captured(a, "mode"), _captured(b, "mode")),
        ("steps", "steps", *(_steps_source(summary) for summary in (a, b))),
    ):
        if found_a != found_b:
            out.append({"code": code, "message": f"{what}: {found_a} in A, {found_b} in B"})
    without = [name for name, summary in (("A", a), ("B", b)) if _has(summary, "memory_unavailable")]
    if len(without) == 1:
        message = f"`memory` is not known in {without[0]}: there its memory-bound ops count as compute"
        out.append({"code": "memory", "message": message})
    for name, summary in (("A", a), ("B", b)):
        lost = [row for row in summary["diagnostics"] if row["severity"] == "error"]
        if lost:
            out.append({"code": "incomplete", "message": f"{name} is incomplete: {lost[0]['message']}"})
    return out


def _devices(summary: Mapping[str, Any]) -> str:
    """``4 × cpu``: kinds and numbers, whatever the ordinals are."""
    kinds = Counter(_ORDINAL.sub("", str(lane["device"])) for lane in summary["lanes"])
    return ", ".join(f"{count} × {kind}" for kind, count in sorted(kinds.items())) or "none"


def _captured(summary: Mapping[str, Any], key: str) -> str:
    found = (summary["capture"] or {}).get(key)
    return str(found) if found is not None else "not known"


def _has(summary: Mapping[str, Any], code: str) -> bool:
    return any(row["code"] == code for row in summary["diagnostics"])


def _steps_source(summary: Mapping[str, Any]) -> str:
    return str((summary.get("steps") or {}).get("source") or "not known")
