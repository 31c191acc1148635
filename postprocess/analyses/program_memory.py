"""How much device memory does each program take, what is alive at its peak, and what would lower it?

Definitions: hlo/peak.py (bytes held, the peak, advice) and hlo/liveness.py (lives of values). One row per program of a
host whose HLO says where its values are kept, and of one that ran but does not say it (`basis` unknown, bytes null).
`runs` counts its executions in the capture, null where none of the host's runs could be joined. What other programs
hold meanwhile is not in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses import top_ops
from xprof_py.postprocess.hlo.liveness import Lives, live_ranges
from xprof_py.postprocess.hlo.peak import Advice, Alive, Peak, Program, peak_of
from xprof_py.postprocess.hlo.shapes import Array, Instructions
from xprof_py.postprocess.join.columns import integers
from xprof_py.postprocess.profile import Profile

MOST_ALIVE = 64
"""Rows that are kept of what is alive at a program's peak, largest first; how much the others hold is said."""

_TEXT = pa.string()
_ALIVE = pa.struct(
    [
        ("kind", _TEXT),
        ("bytes", pa.int64()),
        ("padding_bytes", pa.int64()),
        ("shape", _TEXT),
        *((name, _TEXT) for name in ("op", "op_name", "source")),
        ("parameter_number", pa.int64()),
        *((name, _TEXT) for name in ("live_from", "live_to", "idle_after", "idle_until")),
    ]
)
_ADVICE = pa.struct(
    [
        ("kind", _TEXT),
        ("saves_bytes", pa.int64()),
        ("bytes", pa.int64()),
        ("shape", _TEXT),
        *((name, _TEXT) for name in ("op", "op_name", "source")),
        ("parameter_number", pa.int64()),
        *((name, _TEXT) for name in ("idle_after", "idle_until", "output")),
    ]
)
_KEYS = (("host", _TEXT), ("program", _TEXT), ("program_id", pa.int64()))
_SCHEMA = pa.schema(
    [
        *_KEYS,
        ("runs", pa.int64()),
        ("basis", _TEXT),
        *((f"{name}_bytes", pa.int64()) for name in ("held", "live", "packing")),
        *((f"{name}_bytes", pa.int64()) for name in ("argument", "output", "donated", "temporary", "constant")),
        ("live_temporary_bytes", pa.int64()),
        ("host_bytes", pa.int64()),
        *((name, _TEXT) for name in ("op", "op_name", "source")),
        ("alive", pa.list_(_ALIVE)),
        ("alive_left_out", pa.int64()),
        ("alive_left_out_bytes", pa.int64()),
        ("advice", pa.list_(_ADVICE)),
    ]
)
_ORDER = [("held_bytes", "descending"), ("program", "ascending"), ("program_id", "ascending"), ("host", "ascending")]


def partial(profile: Profile) -> pa.Table:
    """One row per program of one joined profile. `argument_bytes` and `output_bytes` leave out what is donated."""
    runs = Counter(program for program in profile["runs"]["program"].to_pylist() if program is not None)
    if not profile["hlo_allocations"].num_rows and not runs:
        return _SCHEMA.empty_table()
    instructions = Instructions(profile)
    lives = live_ranges(profile, instructions)
    words = _Words(profile)
    programs = profile["programs"].select(["name", "program_id"]).to_pylist()
    ops_at = _ops_at(profile, lives)
    kept = _programs(profile)
    rows = []
    for number in sorted({*kept, *runs}):
        row = {
            "host": profile.host,
            "program": programs[number]["name"],
            "program_id": programs[number]["program_id"],
            "runs": runs[number] if runs else None,
            "basis": "buffer_assignment" if number in kept else "unknown",
        }
        if number in kept:
            row |= words.peak(peak_of(kept[number], lives, instructions, ops_at.get(number, {})))
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Rows of both: a program is its host's own."""
    return pa.concat_tables([a, b])


def finish(merged: pa.Table) -> dict[str, pa.Table]:
    """program_memory, one row per program, most bytes first; memory_alive and memory_advice, the rows of its lists.

    `rank` of those counts from 0 within a program.
    """
    ordered = merged.sort_by(_ORDER)
    return {
        "program_memory": ordered.drop_columns(["alive", "advice"]),
        "memory_alive": _exploded(ordered, "alive", _ALIVE),
        "memory_advice": _exploded(ordered, "advice", _ADVICE),
    }


def _exploded(table: pa.Table, name: str, row: pa.StructType) -> pa.Table:
    lists = table[name].combine_chunks()
    lists = lists if isinstance(lists, pa.Array) else pa.concat_arrays(lists.chunks)
    of = pc.list_parent_indices(lists)
    first = np.concatenate([[0], np.cumsum(integers(pa.table({"n": pc.list_value_length(lists)}), "n", 0))])
    rank = np.arange(len(of)) - first[np.asarray(of, np.int64)]
    keys = table.select([key for key, _ in _KEYS]).take(of)
    values = pc.list_flatten(lists)
    columns = {key: keys[key] for key, _ in _KEYS}
    columns["rank"] = pa.array(rank, pa.int64())
    return pa.table({**columns, **{field.name: pc.struct_field(values, field.name) for field in row}})


def _programs(profile: Profile) -> dict[int, Program]:
    programs: dict[int, Program] = {}
    for row, allocation in enumerate(profile["hlo_allocations"].to_pylist()):
        found = programs.setdefault(allocation["program"], Program([], {}))
        found.allocations.append({**allocation, "row": row})
    for row, buffer in enumerate(profile["hlo_buffers"].to_pylist()):
        if buffer["allocation"] is not None:
            programs[buffer["program"]].buffers[row] = buffer
    return programs


def _ops_at(profile: Profile, lives: Lives) -> dict[int, dict[int, int]]:
    """program -> time -> row of hlo_ops."""
    program = integers(profile["hlo_ops"], "program")
    scheduled = np.flatnonzero(lives.time >= 0)
    out: dict[int, dict[int, int]] = {}
    for op, of, time in zip(
        scheduled.tolist(), program[scheduled].tolist(), lives.time[scheduled].tolist(), strict=True
    ):
        out.setdefault(of, {})[time] = op
    return out


class _Words:
    """Rows of hlo_ops as the names, places and shapes that tables show."""

    def __init__(self, profile: Profile) -> None:
        self._ops = top_ops.Instructions(profile)

    def peak(self, peak: Peak) -> dict[str, Any]:
        kinds = ("argument", "output", "donated", "temporary", "constant")
        shown, rest = peak.alive[:MOST_ALIVE], peak.alive[MOST_ALIVE:]
        return {
            "held_bytes": peak.held_bytes,
            "live_bytes": peak.live_bytes,
            "packing_bytes": peak.held_bytes - peak.live_bytes,
            **{f"{kind}_bytes": peak.bytes_of[kind] for kind in kinds},
            "live_temporary_bytes": peak.live_temporary_bytes,
            "host_bytes": peak.host_bytes,
            **self._place(peak.op if peak.live_temporary_bytes else None),
            "alive": [self._alive(piece) for piece in shown],
            "alive_left_out": len(rest),
            "alive_left_out_bytes": sum(piece.bytes for piece in rest),
            "advice": [self._advice(advice) for advice in peak.advice],
        }

    def _place(self, op: int | None) -> dict[str, str | None]:
        if op is None:
            return {"op": None, "op_name": None, "source": None}
        described = self._ops.describe(op)
        return {name: described[name] or None for name in ("op", "op_name", "source")}

    def _name(self, op: int | None) -> str | None:
        return None if op is None else self._ops.describe(op)["op"]

    def _alive(self, piece: Alive) -> dict[str, Any]:
        return {
            "kind": piece.kind,
            "bytes": piece.bytes,
            "padding_bytes": piece.padding_bytes,
            "shape": shape_text(piece.array),
            **self._place(piece.op),
            "parameter_number": piece.parameter_number,
            "live_from": self._name(piece.first),
            "live_to": self._name(piece.last),
            "idle_after": self._name(piece.before),
            "idle_until": self._name(piece.after),
        }

    def _advice(self, advice: Advice) -> dict[str, Any]:
        piece = self._alive(advice.alive)
        return {
            "kind": advice.kind,
            "saves_bytes": advice.saves_bytes,
            **{name: piece[name] for name in _names(_ADVICE) if name in piece and name != "kind"},
            "output": None if advice.output is None else self._name(advice.output.op),
        }


def _names(row: pa.StructType) -> Sequence[str]:
    return [field.name for field in row]


def shape_text(array: Array | None) -> str | None:
    """ "f32[256,512]", None where the shape is not known."""
    if array is None or array.dimensions is None:
        return None
    return f"{array.type}[{','.join(map(str, array.dimensions))}]"
