"""What does the compiled code do that a better program would not, and how much time does that cost?

One row per pattern (hlo/code_patterns.py) and program, over the executions of its instructions. Time lost:

    rematerialised, transpose, copy, bitcast_convert, loop_slice
                     all of the time of its executions: without them it is gone
    unfused_chain    the bytes that a fusion would not move (each inner result once written, once read) / memory
                     bandwidth, per execution; at most the time of its parts
    f32_from_bf16    ideal(in f32) - ideal(in bf16), ideal = max(flops / rate, bytes / bandwidth) as in the roofline,
                     per execution: the least that the hardware gains; at most its time
    slow_type        a matmul in f32 or f64 where the device is FASTER times as fast in bf16. A note, without time
                     lost: whether fewer bits do is the user's to say

Null where peaks, shapes or rates do not tell it. An instruction is in at most one row, so the times of the rows add up
(ops that run at once are each counted in full). They overlap with codegen_excess (analyses/roofline.py), which holds
part of the same time. Sums are exact: picoseconds in int64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses.phases_of_ops import PHASES, phase_codes
from xprof_py.postprocess.analyses.roofline import COMPILED_CLASSES, Executions, executions, peaks_by_lane
from xprof_py.postprocess.analyses.top_ops import Instructions as Texts
from xprof_py.postprocess.hlo.code_patterns import CodePatterns, Pattern
from xprof_py.postprocess.hlo.peaks import Peaks, ideal_ps, ideal_times_ps
from xprof_py.postprocess.hlo.shapes import Instructions
from xprof_py.postprocess.join.columns import integers
from xprof_py.postprocess.profile import Profile

FASTER = 2
"""bf16 over the type's rate, at least, for a note: less is lost to memory and launching in most programs."""
ADVICE = {
    "rematerialised": "Checkpoint fewer layers, or save the cheap-to-keep results (jax.checkpoint policies such as "
    "dots_saveable), if memory allows.",
    "transpose": "Write the contraction so that it reads the array as it lies (dot_general dimensions, einsum order), "
    "or keep the array transposed.",
    "copy": "Donate the argument (donate_argnums), avoid reading an array after it is updated, and keep one layout "
    "from producer to consumer.",
    "bitcast_convert": "Keep one type from producer to consumer: the conversion is a pass over the array of its own.",
    "loop_slice": "Do more per iteration of the scan or loop (larger blocks, `unroll`), or compute on the whole array "
    "outside of it.",
    "unfused_chain": "See what keeps these ops apart (a custom call, a sharding or layout constraint, an "
    "optimization_barrier) so that they become one fusion.",
    "f32_from_bf16": "Pass the bf16 operands to the matmul and ask for f32 results with preferred_element_type.",
    "slow_type": "If the precision is not needed, compute this matmul in bf16 (operands, or "
    "jax.default_matmul_precision).",
}
KEYS = ["kind", "program", "op", "opcode", "source", "op_name", "parts", "phase"]
_SUMS = ("lost_ps", "lost_known", "count", "total_ps")
_SCHEMA = pa.schema([*((key, pa.string()) for key in KEYS), *((name, pa.int64()) for name in _SUMS)])
_REMATERIALISED = 1 + PHASES.index("remat")
_WIDE = ("f32", "f32_default", "f64")


def partial(profile: Profile) -> pa.Table:
    """KEYS and sums of one joined profile; `phase` is "" outside steps, `parts` the names of a chain's ops.

    ``count``: executions of the op that names the row; ``lost_known``: of how many `lost_ps` holds the time lost.
    """
    ran = [of for of in executions(profile) if of.class_name in COMPILED_CLASSES]
    if not ran:
        return _SCHEMA.empty_table()
    by_op: dict[int, list[Executions]] = {}
    for of in ran:
        by_op.setdefault(of.hlo_op, []).append(of)
    program = integers(profile["hlo_ops"], "program")
    codes = phase_codes(profile, sorted({int(program[op]) for op in by_op}))
    patterns = CodePatterns(Instructions(profile)).find(
        by_op,
        {of.hlo_op for of in ran if of.class_name == "memory"},
        {op for op in by_op if codes[op] == _REMATERIALISED},
    )
    costs = {row["op"]: row for row in profile["hlo_costs"].to_pylist()}
    peaks = peaks_by_lane(profile)
    taken = {op for pattern in patterns for op in pattern.parts}
    patterns += [
        Pattern("slow_type", op, (op,))
        for op, found in sorted(by_op.items())
        if op not in taken and any(_slow_type(costs.get(op), peaks[of.lane]) for of in found)
    ]
    texts = Texts(profile)
    rows = [row for pattern in patterns for row in _rows(pattern, by_op, costs, peaks, texts)]
    return merge(pa.Table.from_pylist(rows, schema=_SCHEMA), None)


def _rows(
    pattern: Pattern,
    by_op: Mapping[int, list[Executions]],
    costs: Mapping[int, dict[str, Any]],
    peaks: list[Peaks | None],
    texts: Texts,
) -> list[dict[str, Any]]:
    """One row per phase and lane of a pattern."""
    said = texts.describe(pattern.op)
    parts = " ".join(texts.describe(op)["op"] for op in pattern.parts) if len(pattern.parts) > 1 else ""
    cells: dict[tuple[str, int], list[int]] = {}
    for op in pattern.parts:
        for of in by_op[op]:
            cell = cells.setdefault((of.phase, of.lane), [0, 0])
            cell[0] += of.count if op == pattern.op else 0
            cell[1] += of.total_ps
    rows = []
    for (phase, lane), (count, total_ps) in cells.items():
        lost_ps = _lost_ps(pattern, count, total_ps, costs.get(pattern.op), peaks[lane])
        rows.append(
            {
                "kind": pattern.kind,
                **said,
                "parts": parts,
                "phase": phase,
                "lost_ps": lost_ps or 0,
                "lost_known": 0 if lost_ps is None else count,
                "count": count,
                "total_ps": total_ps,
            }
        )
    return rows


def _lost_ps(
    pattern: Pattern, count: int, total_ps: int, cost: dict[str, Any] | None, peaks: Peaks | None
) -> int | None:
    """Picoseconds lost in ``count`` executions that took ``total_ps``; None where not known."""
    if pattern.kind == "slow_type":
        return None
    if pattern.kind == "unfused_chain":
        each = ideal_ps(pattern.saved_bytes, peaks.memory_bytes_per_s) if peaks is not None else None
        return None if each is None else min(count * each, total_ps)
    if pattern.kind == "f32_from_bf16":
        each = _gain_of_bf16_ps(cost, peaks)
        return None if each is None else min(count * each, total_ps)
    return total_ps


def _gain_of_bf16_ps(cost: dict[str, Any] | None, peaks: Peaks | None) -> int | None:
    if cost is None or peaks is None:
        return None
    wide = ideal_times_ps(cost, peaks)
    narrow = ideal_times_ps({**cost, "matmul_type": "bf16"}, peaks)
    if wide[0] is None or narrow[0] is None or wide[1] is None:
        return None
    return max(max(wide[0], wide[1]) - max(narrow[0], wide[1]), 0)


def _slow_type(cost: dict[str, Any] | None, peaks: Peaks | None) -> bool:
    if cost is None or peaks is None or not cost["matmul_flops"] or cost["matmul_type"] not in _WIDE:
        return False
    own, fast = peaks.matmul_flops_per_s(cost["matmul_type"]), peaks.matmul_flops_per_s("bf16")
    return own is not None and fast is not None and fast >= FASTER * own


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Sums per key."""
    return _summed(a if b is None else pa.concat_tables([a, b]), KEYS)


def _summed(table: pa.Table, keys: list[str]) -> pa.Table:
    summed = table.group_by(keys).aggregate([(name, "sum") for name in _SUMS])
    summed = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])
    return summed.select([*keys, *_SUMS]).cast(pa.schema([_SCHEMA.field(name) for name in (*keys, *_SUMS)]))


def finish(merged: pa.Table, phases: tuple[str, ...]) -> pa.Table:
    """Over steps of these phases (all, if there is no step), most time lost first, then what is not known by its time.

    Columns: KEYS without phase, count, total_ps, lost_ps (null unless known of every execution), advice.
    """
    steps = merged.filter(pc.is_in(merged["phase"], pa.array(phases)))
    keys = [key for key in KEYS if key != "phase"]
    table = _summed(steps if steps.num_rows else merged, keys)
    known = pc.equal(table["lost_known"], table["count"])
    lost = pc.if_else(known, table["lost_ps"], pa.scalar(None, pa.int64()))
    table = table.set_column(table.column_names.index("lost_ps"), "lost_ps", lost).drop_columns(["lost_known"])
    order = [("lost_ps", "descending"), ("total_ps", "descending"), *((key, "ascending") for key in keys)]
    table = table.sort_by(order)
    return table.append_column("advice", pa.array([ADVICE[kind] for kind in table["kind"].to_pylist()], pa.string()))
