"""The window of a capture as a pure machine: which steps open and close it."""

import pytest

from xprof_py.window import Action, CaptureWindow, Phase

START, STOP = Action.START, Action.STOP


def run(window, events):
    """Feed ``(">" or "<", name, number)`` from one thread; the actions, None included."""
    window.begin()
    return [
        (window.step_entered if mark == ">" else window.step_exited)(1, name, number) for mark, name, number in events
    ]


def steps(numbers, name="train"):
    return [event for number in numbers for event in ((">", name, number), ("<", name, number))]


def test_a_whole_block_starts_at_once_and_stops_at_its_end():
    window = CaptureWindow(None)
    assert window.begin() is START
    assert window.step_entered(1, "train", 0) is None
    assert window.end() is STOP
    assert window.end() is None


def test_a_range_is_half_open():
    actions = run(CaptureWindow((2, 4)), steps(range(6)))
    assert actions == [None] * 4 + [START, None, None, STOP] + [None] * 4


def test_a_range_of_one_step():
    assert run(CaptureWindow((2, 3)), steps(range(5))) == [None] * 4 + [START, STOP] + [None] * 4


def test_numbers_with_gaps_close_the_window_at_the_first_step_behind_it():
    actions = run(CaptureWindow((10, 20)), steps([0, 12, 18, 24]))
    assert actions == [None, None, START, None, None, None, STOP, None]


def test_a_program_that_resumes_behind_the_range_never_starts():
    window = CaptureWindow((10, 20))
    assert set(run(window, steps([1000, 1001]))) == {None}
    assert window.phase is Phase.ARMED
    assert window.seen == (1000, 1001)
    assert window.end() is None


def test_another_name_does_not_close_it():
    events = [*steps([10]), *steps(range(30), "eval"), *steps([19])]
    actions = run(CaptureWindow((10, 20)), events)
    assert [i for i, action in enumerate(actions) if action] == [0, len(actions) - 1]
    assert actions[-1] is STOP


def test_nested_steps_do_not_count():
    events = [(">", "train", 0), *steps(range(8), "micro"), ("<", "train", 0), *steps([5, 6])]
    actions = run(CaptureWindow((5, 7)), events)
    assert actions == [None] * 18 + [START, None, None, STOP]


def test_each_thread_has_its_own_nesting():
    window = CaptureWindow((5, 6))
    window.begin()
    assert window.step_entered(1, "train", 0) is None
    assert window.step_entered(2, "train", 5) is START
    assert window.step_exited(2, "train", 5) is STOP


def test_a_block_that_begins_inside_a_step_sees_the_next_one():
    window = CaptureWindow((5, 6))
    window.begin()
    assert window.step_exited(1, "train", 4) is None
    assert window.step_entered(1, "train", 5) is START


@pytest.mark.parametrize("reached", [5, 6, 7])
def test_a_loop_that_ends_early_stops_at_the_end(reached):
    window = CaptureWindow((5, 10))
    run(window, steps(range(reached + 1)))
    assert window.end() is STOP
