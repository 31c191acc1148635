"""Tracing, lowering and compiling, by function and step: what made a step slow, and what was compiled at all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from xprof_py.postprocess import schema
from xprof_py.postprocess.join import host_names
from xprof_py.postprocess.join.columns import Events, Int64
from xprof_py.postprocess.join.steps import Steps
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import Kind

_XSPACE_STAGES = {
    "trace_to_jaxpr": "trace",
    "lower_sharding_computation": "lower",
    "backend_compile_and_load": "compile",
}


@dataclass
class Compiles:
    """Stages in order of start. ``function`` is "" where nothing names it; ``step`` is -1 outside steps."""

    function: list[str]
    stage: list[str]
    line: list[int]
    step: list[int]
    start_ps: list[int]
    duration_ps: list[int]
    source: str

    def count_by_key(self) -> Counter[str]:
        """How often each function was compiled in the capture, by host_names.module_key."""
        return Counter(
            host_names.module_key(function)
            for function, stage in zip(self.function, self.stage, strict=True)
            if stage == "compile"
        )

    def table(self) -> pa.Table:
        """The table `compiles`."""
        return schema.table(
            "compiles",
            {
                "function": self.function,
                "stage": self.stage,
                "line": self.line,
                "step": [s if s >= 0 else None for s in self.step],
                "start_ps": self.start_ps,
                "duration_ps": self.duration_ps,
                "source": [self.source] * len(self.function),
            },
        )


def read_compiles(profile: Profile, events: Events, thread_of_line: Int64, steps: Steps) -> Compiles:
    """From jax.monitoring's spans in the shard where there are any, else from XLA's own host events.

    XLA's events name no function: the outermost PjitFunction around them does.
    """
    rows = events.rows_of_kind(Kind.COMPILE)
    source = "jax.monitoring"
    if not len(rows):
        rows = events.rows_where(lambda name: name in _XSPACE_STAGES)
        source = "xspace"
    rows = rows[np.lexsort((rows, events.start_ps[rows]))]
    out = Compiles([], [], [], [], [], [], source)
    has_function, function = events.argument_of("fun_name", rows)
    calls = events.rows_where(lambda name: host_names.JIT_CALL.match(name) is not None)
    for at, row in enumerate(rows):
        name = events.names[events.name[row]]
        if source == "xspace":
            stage = _XSPACE_STAGES[name]
            called = _outermost_call(events, calls, int(row))
        else:
            stage = host_names.MONITORING_STAGES.get(name.rsplit("/", 1)[-1], name)
            called = host_names.function_name(events.text_of(int(function[at]))) if has_function[at] else ""
        thread = int(thread_of_line[events.line[row]])
        out.function.append(called)
        out.stage.append(stage)
        out.line.append(int(events.line[row]))
        out.step.append(steps.enclosing(int(events.start_ps[row]), thread))
        out.start_ps.append(int(events.start_ps[row]))
        out.duration_ps.append(int(events.end_ps[row] - events.start_ps[row]))
    return out


def _outermost_call(events: Events, calls: Int64, row: int) -> str:
    around = calls[
        (events.line[calls] == events.line[row])
        & (events.start_ps[calls] <= events.start_ps[row])
        & (events.end_ps[calls] >= events.end_ps[row])
    ]
    if not len(around):
        return ""
    called = host_names.JIT_CALL.match(events.names[events.name[around[0]]])
    return called["function"] if called else ""
