"""The verdict names the class whose removal saves most, by replay; without a replay to believe, the largest share."""

from __future__ import annotations

import pytest

from xprof_py.postprocess.rules.verdict import ADVICE, SENTENCE, Prediction, choose, verdict
from xprof_py.postprocess.rules.wording import counted, duration, times
from xprof_py.postprocess.schema import CLASSES

MS = 10**9


def shares(**given: float) -> dict[str, dict[str, float]]:
    return {name: {"share": given.get(name, 0.0)} for name in CLASSES}


def test_the_largest_saving_wins_over_the_largest_share() -> None:
    # Compute overlaps nothing it could shorten: the host runs in lock step with the device.
    predicted = Prediction(10, 100 * MS, 100 * MS, {"compute": 90 * MS, "input": 55 * MS})
    assert choose(shares(compute=0.55, input=0.45), predicted) == ("input", 55 * MS, "")


def test_equal_savings_go_to_the_larger_share() -> None:
    predicted = Prediction(10, 100 * MS, 100 * MS, {"compute": 50 * MS, "input": 50 * MS})
    assert choose(shares(compute=0.4, input=0.6), predicted)[0] == "input"


def test_a_replay_that_misses_the_measured_steps_predicts_nothing() -> None:
    predicted = Prediction(10, 100 * MS, 103 * MS, {"compute": 10 * MS, "input": 90 * MS})
    name, without, why = choose(shares(compute=0.4, input=0.6), predicted)
    assert (name, without) == ("input", None)
    assert "+3.0%" in why


def test_a_replay_within_two_percent_is_believed() -> None:
    assert Prediction(10, 100 * MS, 102 * MS).believed()
    assert not Prediction(10, 100 * MS, 102 * MS + 1).believed()


def test_unknown_can_be_the_verdict() -> None:
    predicted = Prediction(10, 100 * MS, 100 * MS, {"compute": 95 * MS, "unknown": 9 * MS})
    found = verdict(shares(compute=0.1, unknown=0.9), predicted, {})
    assert found["bottleneck"] == "unknown"
    assert "wrap_input" in found["advice"]


def test_the_sentence_has_the_numbers() -> None:
    predicted = Prediction(10, 61 * MS, 61 * MS, {"input": 24 * MS, "compute": 50 * MS})
    found = verdict(shares(compute=0.38, input=0.62), predicted, {"input": [{"what": "span"}]})
    assert found["sentence"] == (
        "The device waits for the next batch for 62% of the step time (37.8 ms of 61 ms a step); "
        "without it a step would take 24 ms."
    )
    assert found["step_ms"] == pytest.approx(61)
    assert found["step_ms_without"] == pytest.approx(24)
    assert found["evidence"] == [{"what": "span"}]


def test_every_class_has_a_sentence_and_advice() -> None:
    assert set(SENTENCE) == set(ADVICE) == set(CLASSES)


def test_nobody_is_promised_a_step_without_the_computing() -> None:
    predicted = Prediction(10, 100 * MS, 100 * MS, {"compute": 2 * MS})
    found = verdict(shares(compute=1.0), predicted, {})
    assert found["bottleneck"] == "compute"
    assert found["step_ms_without"] is None
    assert "the work itself" in found["step_ms_without_why"]
    assert "without it" not in found["sentence"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0378, "37.8 ms"), (2.456, "2.46 s"), (0.00085, "850 µs"), (412.3, "412 s"), (1e-6, "1 µs"), (0.0, "0 ns")],
)
def test_durations_read_as_a_person_would_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_counts_read_as_a_person_would_say_them() -> None:
    assert (times(1), times(2), times(41)) == ("once", "twice", "41 times")
    assert (counted(1, "gap", "gaps"), counted(3, "gap", "gaps")) == ("1 gap", "3 gaps")


def test_what_can_be_removed_is_named_before_the_computing() -> None:
    predicted = Prediction(10, 100 * MS, 100 * MS, {"compute": 41 * MS, "input": 59 * MS})
    assert choose(shares(compute=0.55, input=0.45), predicted) == ("input", 59 * MS, "")


def test_less_than_a_tenth_is_not_named_before_the_computing() -> None:
    predicted = Prediction(10, 100 * MS, 100 * MS, {"compute": 5 * MS, "input": 90 * MS + 1})
    assert choose(shares(compute=0.9, input=0.1), predicted)[0] == "compute"
    predicted = Prediction(10, 100 * MS, 100 * MS, {"compute": 5 * MS, "input": 90 * MS})
    assert choose(shares(compute=0.9, input=0.1), predicted)[0] == "input"


def test_a_program_without_a_device_waits_itself() -> None:
    predicted = Prediction(10, 100 * MS, 100 * MS, {"unknown": 0})
    sentence = verdict(shares(unknown=1.0), predicted, {}, has_device=False)["sentence"]
    assert sentence.startswith("The program waits, and nothing recorded says why,")
    assert "without it" not in sentence


def test_waits_of_the_device_for_itself_do_not_hide_its_work() -> None:
    predicted = Prediction(10, 100 * MS, 100 * MS, {"memory": 40 * MS, "device_wait": 80 * MS})
    assert choose(shares(memory=0.8, device_wait=0.2), predicted)[0] == "memory"
    predicted = Prediction(10, 100 * MS, 100 * MS, {"compute": 60 * MS, "device_wait": 30 * MS})
    assert choose(shares(compute=0.4, device_wait=0.6), predicted) == ("device_wait", 30 * MS, "")
