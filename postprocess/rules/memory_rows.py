"""What the summary says of device memory: the peak, what is alive at it, and what would lower it, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

ALIVE = 12
ADVICE = 8
PROGRAMS = 8
ALLOCATORS = 16
_KEYS = ("host", "program", "program_id")


def memory_summary(tables: Mapping[str, pa.Table]) -> dict[str, Any] | None:
    """The summary's ``memory``; None where the profile says nothing of it.

    peak_bytes: the most that a device's allocator had handed out in the capture where it reported it (basis
    `allocator`, device: its name), else what the largest program that ran holds while it runs (basis `program`).
    program, at, alive, advice are of that largest program in both cases; where no run could be joined, of the largest.
    programs_unknown: how many programs ran whose HLO does not say where their values are kept.
    """
    programs = tables["program_memory"]
    known = programs.filter(pc.is_valid(programs["held_bytes"]))
    program = _largest(known)
    allocators = tables["memory_allocators"]
    devices = allocators.filter(pc.invert(allocators["host_memory"]))
    devices = devices.sort_by([("peak_bytes", "descending"), ("host", "ascending"), ("allocator", "ascending")])
    device = devices.slice(0, 1).to_pylist()
    if program is None and not device:
        return None
    return {
        "peak_bytes": device[0]["peak_bytes"] if device else program["held_bytes"] if program else None,
        "basis": "allocator" if device else "program",
        "host": device[0]["host"] if device else program["host"] if program else None,
        "device": device[0]["allocator"] if device else None,
        **_of_program(program, tables),
        "programs": [
            {name: row[name] for name in ("host", "program", "program_id", "runs", "held_bytes", "temporary_bytes")}
            for row in known.slice(0, PROGRAMS).to_pylist()
        ],
        "programs_unknown": programs.num_rows - known.num_rows,
        "allocators": allocators.slice(0, ALLOCATORS).to_pylist(),
        "allocators_left_out": max(allocators.num_rows - ALLOCATORS, 0),
    }


def memory_unknown() -> dict[str, Any]:
    """The diagnostics row of a summary without ``memory``."""
    message = "no program in the profile says where its values are kept, and no allocator reported what it handed out"
    return {"severity": "note", "code": "memory_unknown", "file": "", "place": "", "count": 1, "message": message}


def _largest(programs: pa.Table) -> dict[str, Any] | None:
    ran = programs.filter(pc.greater(programs["runs"], 0))
    found: list[dict[str, Any]] = (ran if ran.num_rows else programs).slice(0, 1).to_pylist()
    return found[0] if found else None


def _of_program(program: dict[str, Any] | None, tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    if program is None:
        unknown = dict.fromkeys(("program", "program_id", "runs", "at", "parts"))
        return {**unknown, "alive": [], "alive_left_out": 0, "advice": []}
    alive = _rows_of(program, tables["memory_alive"])
    advice = [_told(rows) for rows in _grouped(_rows_of(program, tables["memory_advice"]))]
    advice.sort(key=lambda row: -row["saves_bytes"])
    return {
        "program": program["program"],
        "program_id": program["program_id"],
        "runs": program["runs"],
        "at": {name: program[name] for name in ("op", "op_name", "source")} if program["op"] else None,
        "parts": {
            name: program[f"{name}_bytes"]
            for name in ("held", "live", "packing", "argument", "donated", "output", "temporary", "constant", "host")
        },
        "alive": alive[:ALIVE],
        "alive_left_out": max(len(alive) - ALIVE, 0) + program["alive_left_out"],
        "advice": advice[:ADVICE],
    }


def _rows_of(program: dict[str, Any], table: pa.Table) -> list[dict[str, Any]]:
    for key in _KEYS:
        table = table.filter(pc.equal(table[key], program[key]))
    return [
        {name: value for name, value in row.items() if name not in (*_KEYS, "rank")}
        for row in table.sort_by("rank").to_pylist()
    ]


def _grouped(advice: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows of one sentence: donations are one call's, idle values of one source line are one checkpoint's."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in advice:
        place = "" if row["kind"] in ("donate", "stacked") else row["op"] or ""
        if row["kind"] == "idle":
            place = row["source"] or row["op_name"] or place
        groups.setdefault((row["kind"], place), []).append(row)
    return list(groups.values())


def _told(rows: list[dict[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    saves = sum(row["saves_bytes"] for row in rows)
    names = [row["op_name"] or row["op"] for row in rows]
    return {
        "kind": first["kind"],
        "saves_bytes": saves,
        "count": len(rows),
        "what": names[:ALIVE],
        "shape": first["shape"],
        "source": first["source"] if first["kind"] != "donate" else None,
        "text": _TEXTS[first["kind"]](rows, names),
    }


def _donate(rows: list[dict[str, Any]], names: list[Any]) -> str:
    which = _listed([str(name) for name in names])
    if len(rows) == 1:
        return f"donate {which} (donate_argnums), if unused after the call: an output has its shape"
    return f"donate {which} (donate_argnums), if unused after the call: outputs have their shapes"


def _idle(rows: list[dict[str, Any]], names: list[Any]) -> str:
    what = rows[0]["shape"] or "the value"
    many = f"{len(rows)} values like {what}" if len(rows) > 1 else what
    return (
        f"recompute (jax.checkpoint) or offload {many} of {rows[0]['op_name'] or rows[0]['op']}: "
        f"{'they wait' if len(rows) > 1 else 'it waits'} through the peak, "
        f"from {rows[0]['idle_after']} to {rows[0]['idle_until']}"
    )


def _padding(rows: list[dict[str, Any]], names: list[Any]) -> str:
    row = rows[0]
    return (
        f"{row['shape']} of {row['op_name'] or row['op']} takes {row['bytes']:,} bytes, {row['saves_bytes']:,} of them "
        "padding of its layout: choose dimensions that fill it"
    )


def _listed(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _stacked(rows: list[dict[str, Any]], names: list[Any]) -> str:
    shapes = _listed(sorted({str(row["shape"]) for row in rows}))
    return (
        f"recompute the body of the loop (jax.checkpoint around it): {len(rows)} "
        f"{'stack' if len(rows) == 1 else 'stacks'} of {shapes} wait for a later loop"
    )


_TEXTS = {"donate": _donate, "idle": _idle, "padding": _padding, "stacked": _stacked}
