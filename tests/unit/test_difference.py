"""The comparison of two runs: what is injected is found, what is equal is not, and limits mean what they say."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_steps import make_step, summarize

from summary_contract import violations
from xprof_py.errors import UsageError, XprofPyError
from xprof_py.postprocess.analyses import op_steps
from xprof_py.postprocess.fleet.analysis import Analysis, analyse
from xprof_py.postprocess.rules.comparability import comparability_warnings
from xprof_py.postprocess.rules.difference import Limit, compare_runs, compare_steps, read_limit
from xprof_py.postprocess.rules.steady_steps import Op, SteadySteps, matched_ops, names_by_time, read_steady_steps
from xprof_py.postprocess.schema import CLASSES
from xprof_py.viewers.terminal_diff import render_diff

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"
LONG = ("mlp_async40", "transformer_async20")
"""Captures with enough steps for a test of many ops."""


@cache
def recorded(name: str) -> SteadySteps:
    found = analyse([DATA / f"{name}.xplane.pb.gz"])
    return read_steady_steps(found.tables, names_by_time(found.tables)[0])


def changed(found: dict[str, Any]) -> list[str]:
    return [row["name"] for row in (found["step"], *found["classes"], *found["ops"]) if row["changed"]]


def with_op(steps: SteadySteps, op: str, factor: float) -> SteadySteps:
    """The same steps with one op slower by ``factor``; step and class grow by as much."""
    place = next(i for i, found in enumerate(steps.ops) if found.op == op)
    more = steps.op_ps[place] * (factor - 1)
    op_ps, class_ps = steps.op_ps.copy(), steps.class_ps.copy()
    op_ps[place] += more
    class_ps[CLASSES.index("compute")] += more
    return replace(steps, op_ps=op_ps, class_ps=class_ps, step_ps=steps.step_ps + more)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("mlp_async40", "ynn_fusion.5"),
        ("mlp_async40", "multiply_tanh_fusion"),
        ("mlp_async40", "multiply_add_fusion.3"),
        ("transformer_async20", "ynn_fusion.40"),
        ("transformer_async20", "dot_general.72"),
        ("transformer_async20", "copy_bitcast_fusion.1"),
    ],
)
@pytest.mark.parametrize("factor", [1.05, 0.95])
def test_an_op_that_takes_5_percent_more_or_less_is_found_alone(name: str, op: str, factor: float) -> None:
    """Ops whose own scatter (median absolute deviation) is below half of it: with 20 steps no test finds the others."""
    before = recorded(name)
    found = compare_steps(before, with_op(before, op, factor))
    assert changed(found) == [op]
    row = found["ops"][0]
    assert row["relative"] == pytest.approx(factor - 1)
    assert min(row["low_ms"], row["high_ms"]) <= row["difference_ms"] <= max(row["low_ms"], row["high_ms"])


@pytest.mark.parametrize("name", LONG)
def test_a_run_does_not_differ_from_itself(name: str) -> None:
    found = compare_steps(recorded(name), recorded(name), limits=[Limit("step", 0.0), Limit("op", 0.0)])
    assert changed(found) == []
    assert not found["regression"]
    assert found["occasional"] == []


@pytest.mark.parametrize("name", LONG)
def test_two_halves_of_a_run_do_not_differ(name: str) -> None:
    """First and second half, though the loaded machine drifted between them; odd and even."""
    steps = recorded(name)
    n = len(steps)
    for one, other in ((np.arange(n // 2), np.arange(n // 2, n)), (np.arange(0, n, 2), np.arange(1, n, 2))):
        found = compare_steps(steps.take(one), steps.take(other), limits=[Limit("step", 0.0), Limit("op", 0.0)])
        assert changed(found) == []
        assert not found["regression"]


@pytest.mark.parametrize("name", LONG)
def test_random_halves_differ_as_rarely_as_promised(name: str) -> None:
    """50 splits: something is reported in one of a hundred families of tests, and there are three families."""
    steps = recorded(name)
    n, wrong = len(steps), 0
    for seed in range(50):
        order = np.random.default_rng(seed).permutation(n)
        wrong += bool(
            changed(compare_steps(steps.take(np.sort(order[: n // 2])), steps.take(np.sort(order[n // 2 :]))))
        )
    assert wrong <= 3


def test_few_steps_are_said_and_find_nothing() -> None:
    steps = recorded("mlp_async40")
    found = compare_steps(steps.take(np.arange(4)), with_op(steps, "dot.1", 9.0), limits=[Limit("op", 0.05)])
    assert changed(found) == []
    assert not found["regression"]
    assert "Too few" in found["sentence"]
    assert [row["code"] for row in found["warnings"]] == ["few_steps"]


def test_steps_too_few_for_so_many_ops_are_said() -> None:
    steps = recorded("transformer_async20")
    found = compare_steps(steps.take(np.arange(6)), steps.take(np.arange(6)))
    assert "among" in found["warnings"][0]["message"]


def another_run(steps: SteadySteps, seed: int, *, common: float, spread: float) -> SteadySteps:
    """The same steps as another run of the program has them: every op faster or slower by a factor of its own."""
    rng = np.random.default_rng(seed)
    factor = common * np.exp(rng.normal(0, spread, len(steps.ops)))
    return replace(steps, op_ps=steps.op_ps * factor[:, None])


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("common", [0.9, 1.0, 1.2])
def test_runs_whose_ops_all_differ_a_little_are_equal_runs(name: str, common: float) -> None:
    """As two runs on a busy machine do: the rank test alone would report most ops that scatter little."""
    for seed in range(5):
        found = compare_steps(recorded(name), another_run(recorded(name), seed, common=common, spread=0.07))
        assert [row["name"] for row in found["ops"] if row["changed"]] == []
        assert found["ops_together"]["held_back"] > 0
        assert found["ops_together"]["relative"] == pytest.approx(common - 1, abs=0.05)
        assert [row["code"] for row in found["warnings"]] == ["unquiet"]


def test_ops_that_all_change_by_the_same_are_one_change() -> None:
    """Another clock, another dtype: every op 5 % longer, and one of them 50 %."""
    before = recorded("transformer_async20")
    after = with_op(another_run(before, 1, common=1.05, spread=0.004), "dot_general.72", 1.5)
    found = compare_steps(before, after)
    assert [row["name"] for row in found["ops"] if row["changed"]] == ["dot_general.72"]
    assert [row["code"] for row in found["warnings"]] == ["together"]
    assert "+5." in found["warnings"][0]["message"] or "+4.9" in found["warnings"][0]["message"]


def test_an_op_that_stands_out_of_them_is_found() -> None:
    before = recorded("transformer_async20")
    after = with_op(another_run(before, 1, common=1.1, spread=0.07), "dot_general.72", 2.0)
    found = compare_steps(before, after)
    assert [row["name"] for row in found["ops"] if row["changed"]] == ["dot_general.72"]


# --- ops are matched by what they are ---------------------------------------------------------------------------------


def op(source: str, op_name: str = "jit(f)/dot", rank: int = 0, program: str = "jit_f", name: str = "dot.1") -> Op:
    return Op(program, "dot", source, op_name, rank, name, "compute")


def steps_with(*ops: Op) -> SteadySteps:
    ones = np.ones(5)
    classes = np.zeros((len(CLASSES), 5))
    return SteadySteps("train", np.arange(5), 1, ones, classes, ops, np.ones((len(ops), 5)))


def test_the_number_in_a_name_does_not_matter() -> None:
    assert matched_ops(steps_with(op("a.py:1", name="dot.1")), steps_with(op("a.py:1", name="dot.99"))) == [(0, 0)]


def test_lines_moved_by_an_edit_above_do_not_matter() -> None:
    """A line is added above: line 11 is now what line 10 was, and must not be taken for the old line 11."""
    a = steps_with(op("a.py:10"), op("a.py:11"))
    b = steps_with(op("a.py:12"), op("a.py:11"))
    assert sorted(matched_ops(a, b)) == [(0, 1), (1, 0)]


def test_lines_are_numbers() -> None:
    a = steps_with(op("a.py:9"), op("a.py:10"))
    b = steps_with(op("a.py:10"), op("a.py:11"))
    assert sorted(matched_ops(a, b)) == [(0, 0), (1, 1)]


def test_where_one_is_added_the_others_keep_their_place() -> None:
    a = steps_with(op("a.py:1"), op("a.py:1", rank=1))
    b = steps_with(op("a.py:1"), op("a.py:1", rank=1), op("a.py:5"))
    assert sorted(matched_ops(a, b)) == [(-1, 2), (0, 0), (1, 1)]


def test_other_programs_paths_and_opcodes_are_other_ops() -> None:
    a = steps_with(op("a.py:1"))
    assert sorted(matched_ops(a, steps_with(op("a.py:1", program="jit_g")))) == [(-1, 0), (0, -1)]
    assert sorted(matched_ops(a, steps_with(op("a.py:1", op_name="jit(f)/add")))) == [(-1, 0), (0, -1)]


def test_an_op_that_only_one_run_has_is_new() -> None:
    steps = recorded("mlp_async40")
    place = next(i for i, found in enumerate(steps.ops) if found.op == "dot.1")
    kept = [i for i in range(len(steps.ops)) if i != place]
    without = replace(steps, ops=tuple(steps.ops[i] for i in kept), op_ps=steps.op_ps[kept])
    found = compare_steps(without, steps)
    assert changed(found) == ["dot.1"]
    assert (found["ops"][0]["op_in_a"], found["ops"][0]["op_in_b"]) == (None, "dot.1")
    assert found["ops"][0]["relative"] is None


# --- whole runs -------------------------------------------------------------------------------------------------------


def run(
    compute_ms: list[float],
    *,
    phase: str = "steady",
    name: str = "train",
    extra: dict[int, dict[str, float]] | None = None,
) -> Analysis:
    """A run of one lane without ops: `compute_ms` per step, 10 ms of input, ``extra`` classes by step."""
    steps = [
        make_step(i, phase, name=name, compute=ms, input=10.0 + (i * 7 % 5) / 10, **(extra or {}).get(i, {}))
        for i, ms in enumerate(compute_ms)
    ]
    summary, tables = summarize({("host0", 0): steps}, verdict=None)
    numbers = list(range(len(steps)))
    rows = {"host": ["host0"] * len(steps), "name": [name] * len(steps), "number": numbers}
    tables["steps"] = type(tables["step_classes"]).from_pydict({**rows, "occurrence": [0] * len(steps)})
    tables["op_steps"] = op_steps._SCHEMA.empty_table()
    return Analysis(summary, tables)


def compared(a: Analysis, b: Analysis, *limits: str, name: str | None = None) -> dict[str, Any]:
    return compare_runs(
        a.summary, a.tables, b.summary, b.tables, name=name, limits=[read_limit(limit) for limit in limits]
    )


def scattered(middle_ms: float, count: int = 20, seed: int = 0) -> list[float]:
    return [float(x) for x in np.random.default_rng(seed).normal(middle_ms, middle_ms / 100, count)]


def test_energy_is_compared_where_it_was_sampled() -> None:
    a, b = run([30.0] * 20), run([30.0] * 20)
    assert compared(a, b)["energy"] is None
    power = {"name": "train", "devices": 1, "joules_per_step": 60.0, "joules_per_step_error": 1.0, "why": {}}
    a.summary["power"], b.summary["power"] = power, {**power, "joules_per_step": 45.0, "joules_per_step_error": 0.5}
    found = compared(a, b)
    assert violations(found, "diff") == []
    assert found["energy"]["difference_j"] == -15
    assert "energy of a step: 60 J before, 45 J after, −25.0% (± 1 and 0.5 J)" in render_diff(
        found, color=False, width=120
    )
    b.summary["power"] = None
    assert "energy is not compared: B: no device was sampled" in render_diff(compared(a, b), color=False, width=120)


def test_a_longer_step_exceeds_its_limit_and_names_the_class() -> None:
    found = compared(run(scattered(50)), run(scattered(56, seed=1)), "5%", "compute=5%", "input=1%")
    assert changed(found) == ["train", "compute"]
    assert found["step"]["relative"] == pytest.approx(0.1, abs=0.02)
    assert [check["exceeded"] for check in found["limits"]] == [True, True, False]
    assert found["regression"]
    assert "longer" in found["sentence"]


def test_a_shorter_step_exceeds_nothing() -> None:
    found = compared(run(scattered(56, seed=1)), run(scattered(50)), "0%", "op=0%", "compute=0%")
    assert changed(found) == ["train", "compute"]
    assert not found["regression"]
    assert "shorter" in found["sentence"]


def test_a_limit_above_the_growth_is_kept() -> None:
    found = compared(run(scattered(50)), run(scattered(56, seed=1)), "20%", "compute=20%")
    assert not found["regression"]


def test_growth_by_chance_exceeds_nothing() -> None:
    """The median of B is larger, but a step of A might as well be."""
    noisy = [50.0 + 20 * (i % 7) for i in range(20)]
    found = compared(run(noisy), run([ms * 1.02 for ms in noisy]), "0%")
    assert found["step"]["difference_ms"] > 0
    assert not found["regression"]


def test_a_class_that_was_not_there_is_infinitely_longer() -> None:
    found = compared(
        run([50.0] * 8), run([50.0] * 8, extra={i: {"compiler": 30.0 + i} for i in range(8)}), "compiler=900%"
    )
    assert found["regression"]
    row = next(row for row in found["classes"] if row["name"] == "compiler")
    assert row["relative"] is None
    assert row["kind"] == "cause"


def test_what_only_some_steps_have_is_told_apart() -> None:
    found = compared(run(scattered(50)), run(scattered(50, seed=1), extra={7: {"compiler": 300.0}}))
    assert changed(found) == []
    assert [(row["name"], row["run"], row["steps"]) for row in found["occasional"]] == [("compiler", "B", [7])]


def test_only_steady_steps_are_compared() -> None:
    a, b = run(scattered(50)), run(scattered(50, seed=1))
    slow = run([5000.0] * 20, phase="warmup")
    both = a.tables["step_classes"].to_pylist()
    both += [
        {**row, "number": row["number"] + 100}
        for row in slow.tables["step_classes"].to_pylist()
        if row["kind"] == "step"
    ]
    a.tables["step_classes"] = type(a.tables["step_classes"]).from_pylist(both, schema=a.tables["step_classes"].schema)
    found = compared(a, b)
    assert found["steps"] == {"a": 20, "b": 20}
    assert changed(found) == []


def test_steps_of_other_names_are_chosen_by_name() -> None:
    a, b = run(scattered(50), name="train"), run(scattered(50, seed=1), name="eval")
    with pytest.raises(XprofPyError, match="train"):
        compared(a, b)
    with pytest.raises(UsageError, match="nope"):
        compared(a, a, name="nope")
    with pytest.raises(XprofPyError, match="steady"):
        compared(a, run([1.0] * 5, phase="partial"))


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("5%", Limit("step", 0.05)),
        ("0.05", Limit("step", 0.05)),
        ("step=5%", Limit("step", 0.05)),
        ("host_device=150%", Limit("host_device", 1.5)),
        ("op = 3 %", Limit("op", 0.03)),
    ],
)
def test_limits_are_read(text: str, limit: Limit) -> None:
    assert read_limit(text) == Limit(limit.what, pytest.approx(limit.share))


@pytest.mark.parametrize("text", ["", "%", "five", "-5%", "nan%", "inf", "gpu=5%", "compute="])
def test_what_is_no_limit_is_said(text: str) -> None:
    with pytest.raises(UsageError):
        read_limit(text)


def test_runs_that_are_no_equals_are_told() -> None:
    a = run(scattered(50)).summary
    assert comparability_warnings(a, a) == []
    b = {
        **a,
        "hosts": [*a["hosts"], *a["hosts"]],
        "lanes": [{**a["lanes"][0], "device": "gpu:0"}],
        "capture": {**a["capture"], "jax": "0.12.0"},
        "diagnostics": [
            {"severity": "note", "code": "memory_unavailable", "message": "no peaks"},
            {"severity": "error", "code": "unreadable", "message": "cut off"},
        ],
    }
    found = {row["code"]: row["message"] for row in comparability_warnings(a, b)}
    assert set(found) == {"hosts", "devices", "jax", "memory", "incomplete"}
    assert "0.10.2 in A, 0.12.0 in B" in found["jax"]
    assert "in B" in found["memory"]
