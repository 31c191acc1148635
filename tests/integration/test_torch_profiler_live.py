"""PyTorch's own profiler inside a capture, on a CPU: its operators lie where the program ran them.

Nothing here depends on how fast anything is: the operators of a span lie in the span, those of a step in the step.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.join.columns import Events
from xprof_py.postprocess.readers.process import read_process
from xprof_py.postprocess.readers.sources import find_sources
from xprof_py.postprocess.schema import Kind

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install torch"),
]

PROGRAM = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
from xprof_py import capture, step, trace
a = torch.ones(200, 200)
with capture(sys.argv[1]):
    plan = schedule(wait=1, warmup=1, active=2, repeat=2)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan,
                 on_trace_ready=tensorboard_trace_handler("theirs", use_gzip=True)) as profiler:
        for number in range(9):
            with step(number):
                with trace("outside"):
                    torch.ones(10).sum()
                with trace("matmul"):
                    torch.mm(a, a)
            profiler.step()
"""


def test_operators_lie_in_the_spans_and_steps_that_ran_them(program: Callable[..., Any], tmp_path: Any) -> None:
    """Two cycles of wait, warm-up and two active steps: steps 2, 3, 6 and 7 are profiled, each with one `aten::mm`."""
    outcome = program(PROGRAM, timeout_s=120)
    told = outcome.document()["collectors"]["torch"]
    assert [trace["copied"] for trace in told["traces"]] == [True, True]
    assert told["failed"] == 0
    assert len(list((tmp_path / "theirs").glob("*.gz"))) == 2
    (source,) = find_sources([outcome.run]).processes
    profile = read_process(source)
    events = Events.of(profile)
    assert not [row for row in profile["diagnostics"].to_pylist() if row["severity"] == "error"]

    def named(name: str) -> Any:
        rows = events.rows_named(name)
        return events.start_ps[rows], events.end_ps[rows]

    steps = events.rows_of_kind(Kind.STEP)
    numbers = events.argument_of("step_num", steps)[1]
    assert sorted(numbers.tolist()) == list(range(9))
    span_start, span_end = named("matmul")
    start, end = named("aten::mm")
    slack_ps = 50_000_000  # Kineto's clock is the TSC, tied to REALTIME by its own measure
    holding = [
        np.flatnonzero((span_start - slack_ps <= s) & (e <= span_end + slack_ps)).tolist()
        for s, e in zip(start.tolist(), end.tolist(), strict=True)
    ]
    assert all(len(found) == 1 for found in holding), (start, end, span_start, span_end)
    in_step = [
        int(numbers[np.flatnonzero(events.start_ps[steps] <= span_start[found[0]])[-1]]) for found in sorted(holding)
    ]
    assert Counter(in_step) == {2: 1, 3: 1, 6: 1, 7: 1}
    lines = profile["lines"].to_pylist()
    ours = {line["thread_id"] for line in lines if line["source"] == "shard"}
    assert ours & {line["thread_id"] for line in lines if line["source"] == "chrome_json"}
    summary = analyse([outcome.run]).summary
    assert summary["steps"]["count"] == 9
