"""What the join found, as the tables of schema.py. No rule is decided here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from xprof_py.postprocess import schema
from xprof_py.postprocess.join.columns import Events, Int64, Integers
from xprof_py.postprocess.join.device_ops import DeviceOps
from xprof_py.postprocess.join.gaps import METHODS, Gaps
from xprof_py.postprocess.join.host_activity import HostActivity
from xprof_py.postprocess.join.launches import Launches, RunJoin
from xprof_py.postprocess.join.op_of_kernel import HOW
from xprof_py.postprocess.join.steps import Steps
from xprof_py.postprocess.join.windows import KINDS, Breakdown, Windows
from xprof_py.postprocess.schema import CLASSES

StepOf = Callable[[Int64, Integers], Int64]
"""(start_ps, line) of host events -> row of the step around each, -1 without."""


def ops_table(ops: DeviceOps, texts: pa.ChunkedArray) -> pa.Table:
    """Operations on lanes, each with its class; ``texts``: of the profile."""
    return schema.table(
        "ops",
        {
            "event": ops.event,
            "lane": ops.lane,
            "run": _nullable(ops.run),
            "hlo_op": _nullable(ops.hlo_op),
            "join": pa.DictionaryArray.from_arrays(pa.array(ops.how, pa.int32()), pa.array(HOW)),
            "class": pa.DictionaryArray.from_arrays(pa.array(ops.class_code, pa.int32()), pa.array(CLASSES)),
            "leaf": ops.leaf,
            "start_ps": ops.start_ps,
            "duration_ps": ops.end_ps - ops.start_ps,
            "open_ps": ops.open_end_ps - ops.end_ps,
            "stated_op": _stated_ops(ops.stated, texts),
        },
    )


def _stated_ops(stated: Int64, texts: pa.ChunkedArray) -> pa.DictionaryArray:
    """The names by rows of ``texts``, null for -1."""
    known = np.flatnonzero(stated >= 0)
    rows, place = np.unique(stated[known], return_inverse=True)
    code = np.full(len(stated), -1, np.int32)
    code[known] = place.reshape(-1)
    names = pa.array([texts[row].as_py() for row in rows.tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(code, mask=code < 0), names)


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
    waits = [activity.waits(thread) for thread in threads]
    columns = ([getattr(one, name) for one in waits] for name in ("event", "start_ps", "end_ps"))
    event, start, end = (np.concatenate([np.empty(0, np.int64), *column]) for column in columns)
    order = np.lexsort((event, start, events.line[event]))
    event, start, end = event[order], start[order], end[order]
    line = events.line[event]
    return schema.table(
        "device_waits",
        {
            "line": line,
            "event": event,
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


def steps_table(steps: Steps, events: Events, phase: list[str], reason: list[str]) -> pa.Table:
    """Steps; ``phase`` and ``reason`` as phases.py decided."""
    marked = steps.event >= 0
    line = steps.thread.copy()
    line[marked] = events.line[steps.event[marked]]
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
            "source": [steps.source] * len(steps.name),
            **{name: events.amounts(name, steps.event) for name in ("tokens", "model_flops")},
        },
    )


def windows_table(windows: Windows) -> pa.Table:
    """Windows of steps on lanes, heads and tails."""
    return schema.table(
        "windows",
        {
            "lane": windows.lane,
            "kind": _texts(windows.kind, KINDS),
            "step": _nullable(windows.step),
            "start_ps": windows.start_ps,
            "end_ps": windows.end_ps,
        },
    )


def breakdown_table(
    host: str, steps: Steps, windows: Windows, breakdown: Breakdown, phase: list[str], reason: list[str]
) -> pa.Table:
    """One row per window and class."""
    count = len(CLASSES)
    window = np.repeat(np.arange(len(windows.lane)), count)
    step = windows.step[window]
    of_step = pa.array(step, mask=step < 0)

    def said(values: list[str]) -> pa.Array:
        return pa.array(values, pa.string()).take(of_step).fill_null("")

    return schema.table(
        "breakdown",
        {
            "host": pa.repeat(pa.scalar(host), len(window)),
            "lane": windows.lane[window],
            "window": window,
            "step": of_step,
            "kind": _texts(windows.kind[window], KINDS),
            "name": said(steps.name),
            "number": pa.array(steps.number, pa.int64()).take(of_step),
            "occurrence": pa.array(steps.occurrence, pa.int32()).take(of_step),
            "phase": said(phase),
            "reason": said(reason),
            "start_ps": windows.start_ps[window],
            "window_ps": (windows.end_ps - windows.start_ps)[window],
            "class": _texts(np.tile(np.arange(count), len(windows.lane)), CLASSES),
            "exclusive_ps": breakdown.exclusive_ps.reshape(-1),
            "total_ps": breakdown.total_ps.reshape(-1),
            "foreign_ps": breakdown.foreign_ps.reshape(-1),
        },
    )


def _nullable(values: Int64) -> pa.Array:
    """-1 as null."""
    return pa.array(values, pa.int64(), mask=np.asarray(values) < 0)


def _texts(codes: Int64, texts: Sequence[str]) -> pa.Array:
    """The text of each code."""
    return pa.array(texts, pa.string()).take(pa.array(codes, pa.int64()))


def gaps_table(gaps: Gaps, windows: Windows, texts: Sequence[str]) -> pa.Table:
    """Pieces of gaps with their causes; ``texts``: what ``gaps.evidence`` numbers."""
    return schema.table(
        "gaps",
        {
            "lane": windows.lane[gaps.window],
            "window": gaps.window,
            "start_ps": gaps.start_ps,
            "end_ps": gaps.end_ps,
            "cause": _texts(gaps.cause, CLASSES),
            "cause_step": _nullable(gaps.cause_step),
            "length_ps": gaps.length_ps,
            "launch": _nullable(gaps.launch),
            "method": _texts(gaps.method, METHODS),
            "event": _nullable(gaps.event),
            "stack": _nullable(gaps.stack),
            "evidence": _texts(gaps.evidence, texts),
        },
    )
