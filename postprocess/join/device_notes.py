"""What must be said about planes of GPUs and TPUs: what was not read, not joined, or is known less well."""

from __future__ import annotations

import numpy as np

from xprof_py.postprocess.join.device_launches import DeviceLaunches
from xprof_py.postprocess.join.device_planes import DevicePlanes
from xprof_py.postprocess.join.op_of_kernel import AMBIGUOUS

Note = tuple[str, str, int, str]
"""severity, code, count, message of a row of diagnostics."""


def why_no_device(planes: DevicePlanes, has_lanes: bool) -> str:
    """Why steps cannot be measured though the trace has planes of devices; "" where they can."""
    if planes.ops.lanes:
        return ""
    if planes.unread:
        plane, why = planes.unread[0]
        return f"the work of {plane} cannot be read: {why}"
    if planes.idle and not has_lanes:
        return f"the trace has {planes.idle[0]}, and no work on it"
    return ""


def device_notes(planes: DevicePlanes, launches: DeviceLaunches | None, cpu_ops: int) -> list[Note]:
    """``cpu_ops``: ops of CPU devices of a process that has a GPU or TPU."""
    notes: list[Note] = [
        ("error", "device_planes_not_read", 1, f"the work on {plane} is in no breakdown: {why}")
        for plane, why in planes.unread
    ]
    ops = planes.ops
    if not ops.lanes:
        return notes
    if planes.idle:
        message = f"devices without any work in the trace are no lanes: {', '.join(planes.idle)}"
        notes.append(("note", "idle_devices", len(planes.idle), message))
    if cpu_ops:
        message = "ops of the process's CPU device are no lane beside its GPU or TPU: they are work of the host"
        notes.append(("note", "cpu_ops_beside_device", cpu_ops, message))
    nameless = int(np.count_nonzero(ops.leaf & (ops.hlo_op < 0) & (ops.run >= 0)))
    if nameless:
        message = "ops of which the profile holds no HLO: their class is that of their names"
        notes.append(("note", "op_without_hlo", nameless, message))
    if planes.without_program:
        message = (
            "kernels that nothing links to a program (no range of XLA around their launch): their ops are not known"
        )
        notes.append(("note", "kernel_without_program", planes.without_program, message))
    ambiguous = int(np.count_nonzero(ops.how == AMBIGUOUS))
    if ambiguous:
        message = "kernels that several instructions of their program can have launched, and nothing tells which"
        notes.append(("note", "op_ambiguous", ambiguous, message))
    unlaunched = int(np.count_nonzero(ops.launch < 0)) if (planes.run_event < 0).any() else 0
    if unlaunched and launches is not None:
        gpu = np.isin(ops.lane, np.unique(ops.run_lane[planes.run_event < 0]))
        unlaunched = int(np.count_nonzero((ops.launch < 0) & gpu))
    if unlaunched:
        message = "kernels and copies whose launch is not in the trace: gaps that they end are unknown"
        notes.append(("note", "kernel_without_launch", unlaunched, message))
    if planes.unclear_calls:
        message = "kernels and copies whose correlation id several calls had, and nothing tells whose they are"
        notes.append(("warning", "correlation_id_again", planes.unclear_calls, message))
    if launches is None:
        return notes
    if launches.without_work:
        message = "launches whose work is not in the trace, though that of later ones is: the profiler lost it"
        notes.append(("warning", "launch_without_work", launches.without_work, message))
    if len(launches.short.launch):
        message = "kernels of launched graphs are not in the trace, though other launches of the same graphs show them"
        lost = int((launches.short.whole - launches.short.shown).sum())
        notes.append(("warning", "graph_kernels_lost", lost, f"{message}: steps with such launches are not measured"))
    if launches.early_runs:
        off_us = launches.earliest_ps / 1e6
        message = f"runs that begin before their launch, by {off_us:.1f} us at most: the device's clock is off by that"
        notes.append(("warning", "device_clock_off", launches.early_runs, message))
    if launches.early_kernels:
        message = "kernels and copies that begin before the call that launched them: a gap that they end counts as late"
        notes.append(("note", "kernel_before_launch", launches.early_kernels, message))
    if launches.undirected:
        message = "copies that do not say between what: they count as copies on the device"
        notes.append(("note", "copy_without_direction", launches.undirected, message))
    return notes
