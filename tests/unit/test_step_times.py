"""The time of a step reaches from the end of the step before it, whatever that one's name and phase are."""

from __future__ import annotations

import pytest
from made_up_steps import MS, make_step, step_table

from xprof_py.postprocess.analyses.breakdown import step_times_ps

TRAIN = [make_step(number, compute=10) for number in range(6)]
EVAL = make_step(0, name="eval", compute=30)


def test_an_evaluation_is_no_part_of_the_training_step_behind_it() -> None:
    steps = step_table({("vm", 0): [*TRAIN[:3], EVAL, *TRAIN[3:]]})
    assert step_times_ps(steps, ("steady",), "train") == [10 * MS] * 6
    assert step_times_ps(steps, ("steady",), "eval") == [30 * MS]
    assert sorted(step_times_ps(steps, ("steady",))) == [*[10 * MS] * 6, 30 * MS]


def test_nor_is_a_warmup_that_does_not_count() -> None:
    steps = step_table({("vm", 0): [TRAIN[0], make_step(1, "warmup", compute=500), *TRAIN[2:]]})
    assert step_times_ps(steps, ("steady",), "train") == [10 * MS] * 5


@pytest.mark.parametrize("lanes", [1, 3])
def test_of_several_lanes_the_last_one_counts(lanes: int) -> None:
    lane = [make_step(0, compute=10), make_step(0, name="eval", compute=30), make_step(1, compute=10)]
    later = [make_step(0, compute=12), make_step(0, name="eval", compute=30), make_step(1, compute=10)]
    steps = step_table({("vm", number): later if number == lanes - 1 else lane for number in range(lanes)})
    assert step_times_ps(steps, ("steady",), "train") == [12 * MS, 10 * MS]
    assert step_times_ps(steps, ("steady",), "eval") == [30 * MS]
