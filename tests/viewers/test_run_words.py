"""What both viewers say of a run beside its verdict."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from xprof_py.viewers.html_report import render_report
from xprof_py.viewers.run_words import run_words
from xprof_py.viewers.terminal import render_summary

OBSERVER = {"step_ms_before": 10.0, "step_ms_inside": 13.0, "step_ms_after": 10.2, "ratio": 1.29, "slower": True}
STRAGGLER = {"host": "host2", "lost_ms_per_step": 78.8, "cause": "input", "steps": 19, "of_steps": 20}
LATE = "host2 kept the others waiting most in 19 of 20 steps, 78.8 ms a step: input"


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ({"steps": {"source": "annotated"}, "throughput": None, "observer": None}, []),
        ({"throughput": {"tokens_per_s": 819200.0, "mfu": 0.2, "hfu": 0.3}}, ["819,200 tokens a second · 20.0% MFU"]),
        ({"throughput": {"tokens_per_s": None, "mfu": None, "hfu": 0.3}}, ["30.0% HFU, flops of the HLO"]),
        (
            {"observer": OBSERVER},
            ["A step took 13.0 ms while recorded, 10.0 ms before and 10.2 ms after (1.29 times)."],
        ),
        (
            {"observer": {**OBSERVER, "step_ms_after": None, "slower": False}},
            ["A step took 13.0 ms while recorded, 10.0 ms before (1.29 times), which may be chance."],
        ),
        (
            {"observer": {**OBSERVER, "ratio": 1.001, "step_ms_after": None, "slower": False}},
            ["A step took 13.0 ms while recorded, 10.0 ms before."],
        ),
        ({"observer": {**OBSERVER, "ratio": None}}, []),
        (
            {
                "power": {
                    "devices": 8,
                    "joules_per_step": 912.53,
                    "joules_per_step_error": 1.4,
                    "joules_per_token": 0.1114,
                    "mean_w": 612.4,
                    "throttling": None,
                }
            },
            ["912.5 J a step (± 1.4) · 0.111 J a token · 612 W on average, 8 GPUs"],
        ),
        ({"power": {"devices": 1, "joules_per_step": None, "throttling": {"lost_share": None}}}, []),
        (
            {
                "power": {
                    "devices": 1,
                    "joules_per_step": 45.0,
                    "mean_w": 300.0,
                    "throttling": {
                        "lost_ms_per_step": 3.1,
                        "lost_share": 0.031,
                        "by_reason": {"hardware": 0.0, "power": 0.01, "thermal": 0.021},
                    },
                }
            },
            [
                "45 J a step · 300 W on average, 1 GPU",
                "Clocks that were held down (thermal and power) cost 3.10 ms a step (3.1%).",
            ],
        ),
        ({"straggler": None}, []),
        ({"straggler": {"host": "host2", "share": 0.41, "lost_ms_per_step": 38.2, "cause": "host"}}, []),
        (
            {"straggler": {**STRAGGLER, "reason": "input", "source": "/job/train.py:58 batches"}},
            [f"{LATE}, `input` at train.py:58 batches."],
        ),
        (
            {"straggler": {**STRAGGLER, "reason": "loader.py:41 read", "source": "/job/loader.py:41"}},
            [f"{LATE}, `loader.py:41 read`."],
        ),
        ({"straggler": {**STRAGGLER, "reason": None, "source": None}}, [f"{LATE}."]),
    ],
)
def test_a_sentence_for_each_thing_that_is_known(summary: dict[str, Any], said: list[str]) -> None:
    assert run_words(summary) == said


def test_terminal_and_report_say_that_steps_are_inferred_and_how_to_annotate(sample: ModuleType) -> None:
    summary, tables = sample.input_bound()
    assert "inferred" not in render_summary(summary, color=False, width=100)
    summary["steps"]["source"] = "inferred"
    for page in (render_summary(summary, color=False, width=100), render_report(summary, tables)):
        assert "Steps are inferred" in page
        assert "with step(i):" in page
