"""Which step is called slow, as a pure machine."""

from __future__ import annotations

from xprof_py.slow_steps import LEAST_STEPS, SlowStep, SlowSteps

MS = 1_000_000


def feed(machine: SlowSteps, durations_ms: list[float], name: str = "train", thread: int = 1) -> list[SlowStep]:
    found, now = [], 0
    for number, duration_ms in enumerate(durations_ms):
        machine.entered(thread, now)
        now += round(duration_ms * MS)
        slow = machine.left(thread, name, number, now)
        if slow is not None:
            found.append(slow)
    return found


def test_a_step_of_more_than_three_medians_is_slow() -> None:
    assert feed(SlowSteps(3.0), [20] * 10 + [60, 61, 20]) == [SlowStep("train", 11, 61 * MS, 20 * MS)]


def test_the_first_steps_are_not_compared() -> None:
    assert feed(SlowSteps(3.0), [5000] + [20] * (LEAST_STEPS - 2) + [900]) == []


def test_the_median_follows_a_program_that_changes() -> None:
    assert [s.number for s in feed(SlowSteps(2.0), [20] * 10 + [100] * 40)] == list(range(10, 20))


def test_a_hiccup_of_a_short_step_is_no_finding() -> None:
    assert feed(SlowSteps(3.0), [0.1] * 10 + [9.9]) == []
    assert len(feed(SlowSteps(3.0), [0.1] * 10 + [10.2])) == 1


def test_names_have_medians_of_their_own() -> None:
    machine = SlowSteps(3.0)
    feed(machine, [20] * 10)
    assert feed(machine, [400] * 10, name="eval") == []


def test_inner_steps_and_other_threads_do_not_count() -> None:
    machine = SlowSteps(3.0)
    feed(machine, [20] * 10)
    machine.entered(1, 0)
    machine.entered(1, 0)
    assert machine.left(1, "train", 10, 500 * MS) is None
    machine.entered(2, 0)
    assert machine.left(2, "train", 3, 20 * MS) is None
    slow = machine.left(1, "train", 10, 500 * MS)
    assert slow is not None
    assert slow.duration_ns == 500 * MS


def test_a_step_whose_beginning_was_not_seen_is_passed_over() -> None:
    assert SlowSteps(3.0).left(1, "train", 0, 5) is None
