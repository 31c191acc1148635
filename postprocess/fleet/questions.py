"""The questions that every analysis of a job asks, by name: a new analysis is one line here.

Each is partial(profile) -> table per process, merge(a, b) -> table, exact and in any order, and finish -> the tables
that are written, by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from xprof_py.postprocess.analyses import (
    allocations,
    breakdown,
    code_findings,
    communication,
    compile_passes,
    compile_times,
    copy_sizes,
    energy,
    evidence,
    gap_chains,
    host_spans,
    launch_bound,
    memory_timeline,
    network,
    op_steps,
    phases_of_ops,
    program_memory,
    recompiles,
    roofline,
    run_ahead,
    throttling,
    throughput,
    top_ops,
)
from xprof_py.postprocess.clocks import exchanges
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.replay import step_replay

Finish = Callable[[pa.Table, tuple[str, ...]], dict[str, pa.Table]]
"""(merged table, phases of the steps that count) -> finished tables by name."""


@dataclass(frozen=True)
class Question:
    """How one analysis runs: see the module's docstring."""

    partial: Callable[[Profile], pa.Table]
    merge: Callable[[pa.Table, pa.Table], pa.Table]
    finish: Finish


def _breakdown(merged: pa.Table, phases: tuple[str, ...]) -> dict[str, pa.Table]:
    order = [("host", "ascending"), ("lane", "ascending"), ("window", "ascending")]
    return {"breakdown": merged.sort_by(order), "step_classes": breakdown.finish(merged)}


QUESTIONS: dict[str, Question] = {
    "breakdown": Question(breakdown.partial, breakdown.merge, _breakdown),
    "replay": Question(
        step_replay.partial, step_replay.merge, lambda t, phases: {"replay": step_replay.finish(t, phases)}
    ),
    "evidence": Question(evidence.partial, evidence.merge, lambda t, _: {"evidence": evidence.finish(t)}),
    "top_ops": Question(top_ops.partial, top_ops.merge, lambda t, phases: {"top_ops": top_ops.finish(t, phases)}),
    "roofline": Question(
        roofline.partial,
        roofline.merge,
        lambda t, phases: {"roofline": roofline.finish(t, phases), "program_roofline": roofline.programs(t, phases)},
    ),
    "throughput": Question(
        throughput.partial, throughput.merge, lambda t, phases: {"throughput": throughput.finish(t, phases)}
    ),
    "host_spans": Question(host_spans.partial, host_spans.merge, lambda t, _: {"host_spans": host_spans.finish(t)}),
    "compile_times": Question(
        compile_times.partial, compile_times.merge, lambda t, _: {"compile_times": compile_times.finish(t)}
    ),
    "compile_passes": Question(
        compile_passes.partial, compile_passes.merge, lambda t, _: {"compile_passes": compile_passes.finish(t)}
    ),
    "recompiles": Question(recompiles.partial, recompiles.merge, lambda t, _: {"recompiles": recompiles.finish(t)}),
    "run_ahead": Question(run_ahead.partial, run_ahead.merge, lambda t, _: {"run_ahead": run_ahead.finish(t)}),
    "copy_sizes": Question(copy_sizes.partial, copy_sizes.merge, lambda t, _: {"copy_sizes": copy_sizes.finish(t)}),
    "op_phases": Question(
        phases_of_ops.partial, phases_of_ops.merge, lambda t, phases: {"op_phases": phases_of_ops.finish(t, phases)}
    ),
    "op_steps": Question(op_steps.partial, op_steps.merge, lambda t, _: {"op_steps": op_steps.finish(t)}),
    "program_memory": Question(program_memory.partial, program_memory.merge, lambda t, _: program_memory.finish(t)),
    "memory_timeline": Question(memory_timeline.partial, memory_timeline.merge, lambda t, _: memory_timeline.finish(t)),
    "allocations": Question(
        allocations.partial, allocations.merge, lambda t, _: {"allocations": allocations.finish(t)}
    ),
    "code_findings": Question(
        code_findings.partial, code_findings.merge, lambda t, phases: {"code_findings": code_findings.finish(t, phases)}
    ),
    "communication": Question(
        communication.partial, communication.merge, lambda t, phases: {"communication": communication.finish(t, phases)}
    ),
    "launch_bound": Question(
        launch_bound.partial, launch_bound.merge, lambda t, _: {"launch_bound": launch_bound.finish(t)}
    ),
    "energy": Question(energy.partial, energy.merge, lambda t, _: {"energy": energy.finish(t)}),
    "throttling": Question(throttling.partial, throttling.merge, lambda t, _: {"throttling": throttling.finish(t)}),
    "network": Question(network.partial, network.merge, lambda t, _: {"network": network.finish(t)}),
    "clock_samples": Question(
        exchanges.of_profile, exchanges.merge, lambda t, _: {"clock_samples": exchanges.resolved(t)}
    ),
    "gap_chains": Question(gap_chains.partial, gap_chains.merge, lambda t, _: {"gap_chains": gap_chains.finish(t)}),
}

LONGEST = ("replay", "gap_chains")
"""Questions that take most of the time: where several threads ask, they are begun first."""

APART = ("op_steps", "gap_chains")
"""Questions whose rows are many, are one process's own, and enter no summary: they are finished per process, never
gathered, and written like the tables of every process."""
