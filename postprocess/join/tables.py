"""What the join found, as the tables of schema.py. No rule is decided here."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from xprof_py.postprocess import schema
from xprof_py.postprocess.join.columns import Events, Int64
from xprof_py.postprocess.join.device_ops import DeviceOps
from xprof_py.postprocess.join.gaps import GapRow
from xprof_py.postprocess.join.host_activity import HostActivity
from xprof_py.postprocess.join.launches import Launches, RunJoin
from xprof_py.postprocess.join.steps import Steps
from xprof_py.postprocess.join.windows import Windows
from xprof_py.postprocess.schema import CLASSES

StepOf = Callable[[Int64, Int64], Int64]
"""(start_ps, line) of host events -> row of the step around each, -1 without."""


def ops_table(ops: DeviceOps) -> pa.Table:
    """Operations on lanes, each with its class."""
    return schema.table(
        "ops",
        {
            "event": ops.event,
            "lane": ops.lane,
            "run": _nullable(ops.run),
            "hlo_op": _nullable(ops.hlo_op),
            "class": pa.DictionaryArray.from_arrays(pa.array(ops.class_code, pa.int32()), pa.array(CLASSES)),
            "leaf": ops.leaf,
            "start_ps": ops.start_ps,
            "duration_ps": ops.end_ps - ops.start_ps,
            "open_ps": ops.open_end_ps - ops.end_ps,
        },
    )


def launches_table(launches: Launches, launch_step: Int64) -> pa.Table:
    """Launches; ``launch_step`` is the row of the step per launch, -1 without."""
    return schema.table(
        "launches",
        {
            "event": launches.event,
            "line": launches.line,
            "name": launches.name,
            "run_id": pa.array(launches.run_id, mask=~launches.has_run_id),
            "device": pa.nulls(len(launches.event), pa.int64()),
            "step": _nullable(launch_step),
            "start_ps": launches.start_ps,
            "end_ps": pa.array(launches.end_ps, mask=launches.open),
        },
    )


def waits_table(activity: HostActivity, events: Events, threads: Iterable[int], step: StepOf, ended: Int64) -> pa.Table:
    """Waits of ``threads`` for the device; ``ended``: when device work ended, sorted."""
    waits = [(int(events.line[wait.event]), wait) for thread in threads for wait in activity.waits(thread)]
    waits.sort(key=lambda row: (row[0], row[1].start_ps, row[1].event))
    line = np.array([row[0] for row in waits], np.int64)
    start = np.array([row[1].start_ps for row in waits], np.int64)
    end = np.array([row[1].end_ps for row in waits], np.int64)
    return schema.table(
        "device_waits",
        {
            "line": line,
            "event": [row[1].event for row in waits],
            "step": _nullable(step(start, line)),
            "start_ps": start,
            "end_ps": end,
            "for_work": np.searchsorted(ended, start, side="left") < np.searchsorted(ended, end, side="right"),
        },
    )


def runs_table(ops: DeviceOps, joined: RunJoin, run_step: Int64) -> pa.Table:
    """Runs; ``run_step`` is the row of the step per run, -1 without."""
    return schema.table(
        "runs",
        {
            "lane": ops.run_lane,
            "program": _nullable(ops.run_program),
            "run_id": ops.run_id,
            "launch": _nullable(joined.launch),
            "step": _nullable(run_step),
            "start_ps": ops.run_start_ps,
            "end_ps": ops.run_end_ps,
            "join": joined.how,
        },
    )


def steps_table(steps: Steps, line: Int64, phase: list[str], reason: list[str]) -> pa.Table:
    """Steps; ``line`` is the line of each step's span, ``phase`` and ``reason`` as phases.py decided."""
    return schema.table(
        "steps",
        {
            "name": steps.name,
            "number": steps.number,
            "occurrence": steps.occurrence,
            "parent": _nullable(steps.parent),
            "line": line,
            "start_ps": steps.start_ps,
            "end_ps": pa.array(steps.end_ps, mask=np.array(steps.open, np.bool_)),
            "phase": phase,
            "reason": reason,
        },
    )


def windows_table(windows: Windows) -> pa.Table:
    """Windows of steps on lanes, heads and tails."""
    return schema.table(
        "windows",
        {
            "lane": windows.lane,
            "kind": windows.kind,
            "step": _nullable(np.array(windows.step, np.int64)),
            "start_ps": windows.start_ps,
            "end_ps": windows.end_ps,
        },
    )


def breakdown_table(
    host: str,
    steps: Steps,
    windows: Windows,
    rows: list[tuple[int, int, int, int, int]],
    phase: list[str],
    reason: list[str],
) -> pa.Table:
    """One row per window and class; ``rows``: (window, class, exclusive, total, foreign), in picoseconds."""
    step = [windows.step[row[0]] for row in rows]
    in_step = [s >= 0 for s in step]
    return schema.table(
        "breakdown",
        {
            "host": [host] * len(rows),
            "lane": [windows.lane[row[0]] for row in rows],
            "window": [row[0] for row in rows],
            "step": [s if s >= 0 else None for s in step],
            "kind": [windows.kind[row[0]] for row in rows],
            "name": [steps.name[s] if known else "" for s, known in zip(step, in_step, strict=True)],
            "number": [steps.number[s] if known else None for s, known in zip(step, in_step, strict=True)],
            "occurrence": [steps.occurrence[s] if known else None for s, known in zip(step, in_step, strict=True)],
            "phase": [phase[s] if known else "" for s, known in zip(step, in_step, strict=True)],
            "reason": [reason[s] if known else "" for s, known in zip(step, in_step, strict=True)],
            "start_ps": [windows.start_ps[row[0]] for row in rows],
            "window_ps": [windows.end_ps[row[0]] - windows.start_ps[row[0]] for row in rows],
            "class": [CLASSES[row[1]] for row in rows],
            "exclusive_ps": [row[2] for row in rows],
            "total_ps": [row[3] for row in rows],
            "foreign_ps": [row[4] for row in rows],
        },
    )


def _nullable(values: Int64) -> pa.Array:
    """-1 as null."""
    return pa.array(values, pa.int64(), mask=np.asarray(values) < 0)


def gaps_table(rows: list[tuple[int, int, GapRow]]) -> pa.Table:
    """Pieces of gaps with their causes; ``rows``: (lane, window, piece)."""
    return schema.table(
        "gaps",
        {
            "lane": [row[0] for row in rows],
            "window": [row[1] for row in rows],
            "start_ps": [row[2].start_ps for row in rows],
            "end_ps": [row[2].end_ps for row in rows],
            "cause": [row[2].cause for row in rows],
            "cause_step": [row[2].cause_step if row[2].cause_step >= 0 else None for row in rows],
            "length_ps": [row[2].length_ps for row in rows],
            "launch": [row[2].launch if row[2].launch >= 0 else None for row in rows],
            "method": [row[2].method for row in rows],
            "event": [row[2].event if row[2].event >= 0 else None for row in rows],
            "stack": [row[2].stack if row[2].stack >= 0 else None for row in rows],
            "evidence": [row[2].evidence for row in rows],
        },
    )
