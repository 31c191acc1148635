"""How often `diff` cries wolf, and how large a change of one op it finds in two runs, on recorded steps.

Two runs of a program are drawn from its recorded steps with replacement, so that they are equal but for chance; into
the second a slower op is put. The draws are seeded.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.rules.difference import RATE, Limit, compare_steps
from xprof_py.postprocess.rules.steady_steps import SteadySteps, names_by_time, read_steady_steps
from xprof_py.postprocess.schema import CLASSES

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"
FAMILIES = 3
"""Step, classes, ops: each is held to RATE by itself."""


@cache
def recorded(name: str) -> SteadySteps:
    found = analyse([DATA / f"{name}.xplane.pb.gz"])
    return read_steady_steps(found.tables, names_by_time(found.tables)[0])


def drawn(steps: SteadySteps, random: np.random.Generator, block: int) -> SteadySteps:
    """As many steps, in stretches of ``block`` neighbours that keep their order: a loaded machine drifts."""
    count = len(steps)
    starts = random.integers(0, count - block + 1, -(-count // block))
    return steps.take((starts[:, None] + np.arange(block)).reshape(-1)[:count])


def slower(steps: SteadySteps, place: int, factor: float) -> SteadySteps:
    """One op takes ``factor`` as long, and its class and step grow by as much."""
    more = steps.op_ps[place] * (factor - 1)
    op_ps, class_ps = steps.op_ps.copy(), steps.class_ps.copy()
    op_ps[place] += more
    class_ps[CLASSES.index(steps.ops[place].class_name)] += more
    return replace(steps, op_ps=op_ps, class_ps=class_ps, step_ps=steps.step_ps + more)


@pytest.mark.parametrize("block", [1, 5])
def test_of_200_equal_pairs_no_more_than_promised_differ(block: int) -> None:
    steps, random, wrong, regressions = recorded("mlp_async40"), np.random.default_rng(1), 0, 0
    limits = [Limit("step", 0.0), Limit("op", 0.0)]
    for _ in range(200):
        found = compare_steps(drawn(steps, random, block), drawn(steps, random, block), limits=limits)
        wrong += any(row["changed"] for row in (found["step"], *found["classes"], *found["ops"]))
        regressions += found["regression"]
    assert wrong <= FAMILIES * RATE * 200
    assert regressions <= FAMILIES * RATE * 200


@pytest.mark.parametrize("op", ["multiply_add_fusion.3", "ynn_fusion.5"])
def test_a_quiet_op_that_takes_half_as_long_again_is_found_in_two_runs(op: str) -> None:
    """Alone and nearly always; 5 % of it is found where nothing else moved (test_difference), not between two draws."""
    steps, random, found = recorded("mlp_async40"), np.random.default_rng(2), 0
    place = next(i for i, known in enumerate(steps.ops) if known.op == op)
    for _ in range(20):
        compared = compare_steps(drawn(steps, random, 1), slower(drawn(steps, random, 1), place, 1.5))
        found += [row["op"] for row in compared["ops"] if row["changed"]] == [op]
    assert found >= 18
