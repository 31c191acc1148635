"""Which ops are bound by memory: the class `memory` (BREAKDOWN.md 4).

An instruction is memory-bound if moving its bytes at the device's bandwidth takes longer than its operations at their
peak rate, and at least 0.3 of the time that it really took. Far below both roofs it stays `compute`, with a low
efficiency. The time is the lower quartile over its executions: what bounds an instruction does not change because some
of its executions were disturbed, and all executions of an instruction have one class. Without flops, bytes or peaks it
stays `compute`, and that is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.hlo.cost import cost_tables
from xprof_py.postprocess.hlo.peaks import Peaks, ideal_times_ps, peaks_of
from xprof_py.postprocess.hlo.shapes import HOST_MEMORY, Instructions
from xprof_py.postprocess.join.columns import Int64
from xprof_py.postprocess.join.device_ops import DeviceOps, lanes_table_columns
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import CLASSES

LEAST_SHARE = (3, 10)
"""Bytes / bandwidth over duration, at least: BREAKDOWN.md 4."""
_COMPUTE, _MEMORY = CLASSES.index("compute"), CLASSES.index("memory")


@dataclass
class MemoryBound:
    """``tables``: hlo_costs and program_costs of what was executed. Executed leaves of other programs' ops than
    collectives and copies: how many were ``decided``, were on a device ``without_peaks``, or had ``unknown`` costs."""

    tables: dict[str, pa.Table]
    decided: int = 0
    without_peaks: int = 0
    unknown: int = 0


def classify_memory_bound(profile: Profile, ops: DeviceOps) -> MemoryBound:
    """Set ``ops.class_code`` of memory-bound leaves; returns what it was decided from.

    ``profile``: with the HLO tables, and peaks in its metadata where they are known (hlo/known_peaks.py).
    """
    executed = ops.leaf & (ops.hlo_op >= 0)
    instructions = np.unique(ops.hlo_op[executed])
    programs = np.unique(ops.run_program[ops.run_program >= 0])
    see = Instructions(profile)
    found = MemoryBound(cost_tables(see, instructions.tolist(), programs.tolist()))
    crossing = [op for op in instructions.tolist() if _crosses_to_host(see, op)]
    ops.class_code[executed & np.isin(ops.hlo_op, crossing)] = CLASSES.index("host_device")
    candidates = np.flatnonzero(executed & (ops.class_code == _COMPUTE))
    if not len(candidates):
        return found
    kinds, kind_of_lane = _kinds(profile, ops)
    kind = kind_of_lane[ops.lane[candidates]]
    found.without_peaks = int((kind < 0).sum())
    candidates, kind = candidates[kind >= 0], kind[kind >= 0]
    if not len(candidates):
        return found
    costs = {row["op"]: row for row in found.tables["hlo_costs"].to_pylist()}
    key, group = np.unique(ops.hlo_op[candidates] * len(kinds) + kind, return_inverse=True)
    group = group.reshape(-1)
    keys = np.stack(np.divmod(key, len(kinds)), axis=1)
    typical_ps = lower_quartiles(group, (ops.open_end_ps - ops.start_ps)[candidates], len(keys))
    numerator, denominator = LEAST_SHARE
    bound = np.zeros(len(keys), np.bool_)
    known = np.zeros(len(keys), np.bool_)
    for i, (instruction, number) in enumerate(keys.tolist()):
        computing_ps, moving_ps = ideal_times_ps(costs[instruction], kinds[number])
        if computing_ps is None or moving_ps is None:
            continue
        known[i] = True
        bound[i] = moving_ps > computing_ps and denominator * moving_ps >= numerator * int(typical_ps[i])
    ops.class_code[candidates[bound[group]]] = _MEMORY
    found.decided = int(known[group].sum())
    found.unknown = len(candidates) - found.decided
    return found


def _crosses_to_host(see: Instructions, op: int) -> bool:
    """Whether ``op`` is a copy between the host's memory and the device's: its shapes lie in two memory spaces."""
    if see.opcode(op) not in ("copy", "copy-start", "copy-done"):
        return False
    # A started copy is a tuple: target, source, and a context that is neither.
    arrays = [array for row in (op, *see.operands(op)) for array in see.arrays(row) if array.element <= 1]
    spaces = {array.space for array in arrays}
    return HOST_MEMORY in spaces and len(spaces) > 1


def lower_quartiles(group: Int64, values: Int64, groups: int) -> Int64:
    """The lower quartile of the values of every group; each group has one."""
    order = np.lexsort((values, group))
    first = np.searchsorted(group[order], np.arange(groups), side="left")
    after = np.searchsorted(group[order], np.arange(groups), side="right")
    return values[order][first + (after - first - 1) // 4]


def _kinds(profile: Profile, ops: DeviceOps) -> tuple[list[Peaks], Int64]:
    """The distinct peaks of the lanes' devices, and which of them each lane has; -1 for none."""
    kinds: list[Peaks] = []
    of_lane = []
    for device in lanes_table_columns(ops)["device"].to_pylist():
        peaks = peaks_of(profile, device)
        if peaks is not None and peaks not in kinds:
            kinds.append(peaks)
        of_lane.append(-1 if peaks is None else kinds.index(peaks))
    return kinds, np.array(of_lane, np.int64)
