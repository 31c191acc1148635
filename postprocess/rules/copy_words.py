"""Copies between host and device with their bytes: rows of the summary, evidence, and the words of the advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from xprof_py.postprocess.rules.evidence_rows import evidence_row
from xprof_py.postprocess.rules.wording import counted, duration

NOT_JOINED = "not_joined"
_WAY = {
    "to_device": "to the device",
    "to_host": "to the host",
    "on_device": "within a device",
    "between_devices": "between devices",
    "unknown": "of unknown direction",
}
_HOST_DEVICE = ("to_device", "to_host")


def copy_rows(table: pa.Table, phases: Sequence[str]) -> list[dict[str, Any]]:
    """summary.json's `copies`: per direction those begun in the steps that count, and those joined to no call.

    ``table``: the finished copy_sizes. `bytes` and `bytes_per_s` are of the `with_bytes` copies whose size and duration
    are both known, null where there is none.
    """
    out: dict[tuple[str, bool], dict[str, int]] = {}
    for row in table.to_pylist():
        if row["phase"] not in phases and row["phase"] != NOT_JOINED:
            continue
        entry = out.setdefault((row["direction"], row["phase"] in phases), {})
        for name in ("count", "total_ps", "known_count", "known_bytes", "known_ps"):
            entry[name] = entry.get(name, 0) + row[name]
    return [
        {
            "direction": direction,
            "in_steps": True if in_steps else None,
            "count": entry["count"],
            "total_s": entry["total_ps"] / 1e12,
            "with_bytes": entry["known_count"],
            "bytes": entry["known_bytes"] if entry["known_count"] else None,
            "bytes_per_s": entry["known_bytes"] / entry["known_ps"] * 1e12 if entry["known_count"] else None,
        }
        for (direction, in_steps), entry in sorted(out.items(), key=lambda pair: (-pair[1]["total_ps"], pair[0]))
    ]


def copy_evidence(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Evidence rows for `host_device` from copy_rows, one per direction: how many copies, how large and how fast.

    None where no size is stated: the rows of the ops say the rest.
    """
    return [
        evidence_row("copies", copy_text(row), row["total_s"], count=row["count"])
        for row in rows
        if row["direction"] in _HOST_DEVICE and row["bytes"] is not None
    ]


def copy_text(row: dict[str, Any]) -> str:
    """One row of copy_rows whose bytes are known as a sentence."""
    text = f"{counted(row['count'], 'copy', 'copies')} {_WAY[row['direction']]}, {duration(row['total_s'])} in all"
    if not row["in_steps"]:
        text += ", of which the trace does not say what step began them"
    known = "" if row["with_bytes"] == row["count"] else f" ({row['with_bytes']} of them state their size)"
    return f"{text}: {_bytes(row['bytes'])} at {_bytes(row['bytes_per_s'])}/s{known}"


def copy_advice(bottleneck: str, rows: Sequence[dict[str, Any]]) -> str:
    """What to add to the advice where copies are the verdict: their size and speed, or how to learn them."""
    mine = [row for row in rows if row["direction"] in _HOST_DEVICE]
    if bottleneck != "host_device" or not mine:
        return ""
    if mine[0]["bytes"] is None:
        return " How large the copies are, the trace does not state: the nbytes of what is given to device_put say it."
    return (
        f" They move {_bytes(mine[0]['bytes'])} at {_bytes(mine[0]['bytes_per_s'])}/s: where that is the link's rate, "
        "send less, such as a smaller dtype that is converted on the device."
    )


def _bytes(count: float) -> str:
    """``3.1 GB``, ``512 B``."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"
