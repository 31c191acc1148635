"""What `diff` and `explain` print: nothing wider than asked, in the characters that are there, names made harmless."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from xprof_py.postprocess.fleet.analysis import Analysis, analyse
from xprof_py.postprocess.rules.difference import Limit, compare_runs
from xprof_py.postprocess.rules.explanation import explain_step
from xprof_py.viewers.terminal_diff import render_diff
from xprof_py.viewers.terminal_explain import render_explanation
from xprof_py.viewers.terminal_page import columns_of

DATA = Path(__file__).parents[1] / "data" / "jax_cpu"
HOSTILE = "\x1b[2J\nop \u202e" + "x" * 200


@cache
def recorded(name: str) -> Analysis:
    return analyse([DATA / f"{name}.xplane.pb.gz"])


@cache
def difference() -> dict[str, Any]:
    a, b = recorded("planted_input"), recorded("planted_recompile")
    return compare_runs(a.summary, a.tables, b.summary, b.tables, limits=[Limit("step", 0.05), Limit("unknown", 0.1)])


@cache
def explanation() -> dict[str, Any]:
    found = recorded("planted_recompile")
    return explain_step(found.summary, found.tables, 3)


def spoiled(value: Any) -> Any:
    """The same with every text hostile."""
    if isinstance(value, dict):
        return {key: spoiled(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [spoiled(entry) for entry in value]
    return HOSTILE if isinstance(value, str) else value


WAYS = [(render_diff, difference), (render_explanation, explanation)]


@pytest.mark.parametrize(("render", "found"), WAYS)
@pytest.mark.parametrize("width", [40, 60, 80, 110])
def test_no_line_is_wider_than_asked(render: Any, found: Any, width: int) -> None:
    for told in (found(), spoiled(found())):
        lines = render(told, color=False, width=width).splitlines()
        assert max(map(columns_of, lines)) <= width


@pytest.mark.parametrize(("render", "found"), WAYS)
def test_names_of_a_trace_are_harmless(render: Any, found: Any) -> None:
    shown = render(spoiled(found()), color=False, width=80)
    assert "\x1b" not in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize(("render", "found"), WAYS)
def test_an_ascii_terminal_gets_ascii(render: Any, found: Any) -> None:
    render(found(), color=False, width=80, encoding="ascii").encode("ascii")


@pytest.mark.parametrize(("render", "found"), WAYS)
def test_colours_change_no_text(render: Any, found: Any) -> None:
    coloured = render(found(), color=True, width=80)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render(found(), color=False, width=80)


@pytest.mark.parametrize(("render", "found"), WAYS)
def test_fields_that_are_missing_are_not_shown(render: Any, found: Any) -> None:
    for key in found():
        render({k: v for k, v in found().items() if k != key}, color=False, width=80)
    assert render({}, color=False, width=80).endswith("\n")


def test_a_change_stands_before_what_is_chance() -> None:
    shown = render_diff(difference(), color=False, width=100)
    lines = [line.split() for line in shown.splitlines()]
    step, compiler = (next(words for words in lines if words[:1] == [name]) for name in ("step", "compiler"))
    assert step == ["step", "58.15", "ms", "257.0", "ms", "+199", "ms", "+342.0%"]
    assert compiler == ["compiler", "0", "ms", "251.2", "ms", "+251", "ms", "new"]
    assert "the step: at most 5.0% longer: exceeded, train +342.0%" in shown
    assert "unknown: at most 10.0% longer: kept" in shown


def test_an_explanation_goes_from_the_gap_to_the_source_line() -> None:
    shown = " ".join(render_explanation(explanation(), color=False, width=100).split())
    assert "idle before `ynn_fusion.3`" in shown
    assert "late by thread `python`" in shown
    assert "tracing and compiling `mlp_step` (/home/u/train/projects1/workloads/planted.py:31)" in shown
