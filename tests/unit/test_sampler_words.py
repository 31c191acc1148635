"""Without sampled stacks the answer is host or unknown, and the advice says what would tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conformance.case_text import parse_case
from conformance.profile_tables import profile_of
from xprof_py.postprocess.fleet.analysis import partials, reduce_partials
from xprof_py.postprocess.rules.sampler_words import sampler_advice

LOADER = """
title: A loader that nothing annotates: 80 of 100 ms, of which 40 are sampled or not
unit ms
capture 0..400
needs shard

thread main
{steps}

lane 0
{runs}
"""
OFF = {"used": False, "why": "switched off"}


def verdict(sampled: bool, stacks: dict[str, Any] | None) -> dict[str, Any]:
    steps, runs = [], []
    for number in range(4):
        at = 100 * number
        steps.append(f"  step {number} {at}..{at + 100}")
        steps.append(f"    launch f {at + 80}..{at + 82}")
        steps.append(f"    wait {at + 82}..{at + 99}")
        runs += [f"  run f {number + 1}", f"    dot.1 {at + 82}..{at + 99}"]
        if sampled:
            steps += [f"  sample {at + ms} on crops.py:41:cut read.py:7:load_batch" for ms in (10, 30, 50, 70)]
    case = parse_case(LOADER.format(steps="\n".join(steps), runs="\n".join(runs)), "made up")
    profile = profile_of(case, "shard")
    if stacks is not None:
        profile = replace(profile, metadata={**profile.metadata, "run": {"collectors": {"stacks": stacks}}})
    found: dict[str, Any] = reduce_partials([partials(profile)], []).summary["verdict"]
    return found


def test_with_the_sampler_the_loader_is_named() -> None:
    found = verdict(True, {"used": True})
    assert found["bottleneck"] == "input"
    assert "crops.py:41 cut" in found["evidence"][0]["text"]
    assert "not sampled" not in found["advice"]


def test_without_it_the_time_is_unknown_and_the_advice_says_what_would_tell() -> None:
    found = verdict(False, OFF)
    assert found["bottleneck"] == "unknown"
    assert "wrap_input" in found["advice"]
    assert "Stacks were not sampled (switched off): recorded by xprof_py's capture with stacks on" in found["advice"]


def test_a_trace_without_a_run_file_is_told_so_too() -> None:
    assert "Stacks were not sampled: recorded by" in verdict(False, None)["advice"]


@pytest.mark.parametrize(
    ("bottleneck", "stacks", "told"),
    [
        ("host", [OFF], True),
        ("unknown", [None], True),
        ("input", [OFF], False),
        ("compute", [OFF], False),
        ("host", [OFF, {"used": True}], False),
    ],
)
def test_who_is_told(bottleneck: str, stacks: list[dict[str, Any] | None], told: bool) -> None:
    assert bool(sampler_advice(bottleneck, [{"stacks": one} for one in stacks])) is told
