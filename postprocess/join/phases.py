"""The phase of every step: warmup, steady, outlier, partial or unmeasured, and why (BREAKDOWN.md 3)."""

from __future__ import annotations

from collections import Counter

import numpy as np

from xprof_py.postprocess.join.columns import Int64, distinct
from xprof_py.postprocess.join.device_ops import DeviceOps
from xprof_py.postprocess.join.launches import Launches
from xprof_py.postprocess.join.steps import Steps


def warmup_steps(
    ops: DeviceOps,
    launches: Launches,
    run_launch: Int64,
    run_step: Int64,
    program_name: list[str],
    compiled: Counter[str],
) -> dict[int, str]:
    """Step -> reason, for steps with the first run of a program name whose compile lies in the capture.

    ``run_step``: the run's step, or the one in whose window it lies if it was launched between steps (an evaluation).
    ``program_name`` per row of programs: module and source location. ``compiled``: how often each module was compiled
    in the capture, by its key. A name of which the profile holds more programs than were compiled in the capture was
    known before it: its later compiles are recompiles, and they stay steady.
    """
    programs = Counter(program_name)
    first: dict[str, int] = {}
    by_start = np.argsort(ops.run_start_ps, kind="stable")
    by_start = by_start[ops.run_program[by_start] >= 0]
    of_program, _ = distinct(ops.run_program[by_start])
    for run in by_start[np.sort(of_program)].tolist():
        first.setdefault(program_name[ops.run_program[run]], run)
    reasons: dict[int, list[str]] = {}
    for name, run in first.items():
        launch, step = int(run_launch[run]), int(run_step[run])
        if launch < 0 or step < 0:
            continue
        compiles = compiled[launches.key[launch]]
        if compiles and programs[name] <= compiles:
            reasons.setdefault(step, []).append(name.split(" ")[0])
    return {step: "first run of " + ", ".join(sorted(names)) for step, names in reasons.items()}


def partial_steps(
    steps: Steps, capture_start_ps: int, in_flight: list[int], cut_off_puts: list[int], cut_off_runs: list[int]
) -> dict[int, str]:
    """Step -> reason, for steps with work in flight at an edge of the capture.

    ``in_flight``, ``cut_off_puts`` and ``cut_off_runs``: rows of steps that such a launch, put or run belongs to.
    """
    reasons: dict[int, str] = {}
    for step in range(len(steps.event)):
        if steps.open[step]:
            reasons[step] = "the step was open at the end of the capture"
        elif steps.start_ps[step] < capture_start_ps:
            reasons[step] = "the step began before the capture"
    for found, why in (
        (in_flight, "a launch whose run had not ended at the end of the capture"),
        (cut_off_puts, "a copy that had not ended at the end of the capture"),
        (cut_off_runs, "a run that had not ended at the end of the capture"),
    ):
        for step in found:
            if step >= 0:
                reasons.setdefault(step, why)
    return reasons


def outliers(window_ps: Int64, unknown_ps: Int64) -> list[int]:
    """Indices of windows above median + max(7.413 MAD, median / 2) of which more than half of the excess is unknown.

    Five windows or more, else none. 7.413 MAD is five standard deviations of a normal distribution.
    """
    if len(window_ps) < 5:
        return []
    median = float(np.median(window_ps))
    mad = float(np.median(np.abs(window_ps - median)))
    limit = median + max(7.413 * mad, median / 2)
    unknown_median = float(np.median(unknown_ps))
    return [
        int(i)
        for i in np.flatnonzero(window_ps > limit)
        if unknown_ps[i] - unknown_median > (window_ps[i] - median) / 2
    ]
