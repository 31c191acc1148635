"""Tokens a second, MFU and HFU against a division by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import throughput
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.rules.throughput import throughput_summary

MS = 10**9
PEAK = 2_000_000_000_000
"""2 Tflop/s in bf16."""


def profile_of(
    steps: list[tuple[str, int | None, int | None]],
    *,
    lanes: int = 1,
    window_ps: int = 10 * MS,
    peak: int | None = PEAK,
    unknown_flops_ops: int = 0,
    per_token: float | None = None,
) -> Profile:
    """Steps of (phase, tokens, model flops), each with one window and one run a lane: 6e9 flops, 5e9 of them a bf16
    product and 1e9 one in f32."""

    def table(name: str, rows: list[tuple[Any, ...]]) -> Any:
        names = schema.TABLES[name].names
        return schema.table(name, {key: [row[i] for row in rows] for i, key in enumerate(names)})

    count = len(steps)
    places = [(lane, step) for lane in range(lanes) for step in range(count)]
    metadata: dict[str, Any] = {"run": {"capture": {"model_flops_per_token": per_token}}}
    if peak is not None:
        metadata["peaks"] = {"TPU": {"device": "made up", "source": "test", "flops_per_s": {"bf16": peak, "f32": 1}}}
    return Profile("h", 0, 0, 1, metadata=metadata).with_tables(
        steps=table(
            "steps",
            [
                ("train", i, 0, None, 0, i, i + 1, phase, "", "annotated", tokens, flops)
                for i, (phase, tokens, flops) in enumerate(steps)
            ],
        ),
        lanes=table("lanes", [(f"TPU:{lane}", lane) for lane in range(lanes)]),
        windows=table(
            "windows",
            [(lane, "step", step, step * window_ps, (step + 1) * window_ps) for lane, step in places]
            + [(lane, "tail", None, count * window_ps, 99 * window_ps) for lane in range(lanes)],
        ),
        runs=table("runs", [(lane, 0, step, None, step, 0, 1, "order") for lane, step in places]),
        program_costs=table("program_costs", [(0, 6_000_000_000, 0, 0, unknown_flops_ops, 0, 0)]),
        hlo_costs=table(
            "hlo_costs",
            [
                (0, 5_000_000_000, 5_000_000_000, "bf16", 0, 0, 0, 0),
                (1, 1_000_000_000, 1_000_000_000, "f32", 0, 0, 0, 0),
            ],
        ),
        ops=table(
            "ops",
            [
                (0, lane, run, op, "stated", "compute", True, 0, 1, 0, None)
                for run, (lane, _) in enumerate(places)
                for op in (0, 1)
            ],
        ),
    )


def summary_of(*profiles: Profile, step_ps: list[int], phases: tuple[str, ...] = ("steady",)) -> dict[str, Any]:
    merged = throughput.partial(profiles[0])
    for profile in profiles[1:]:
        merged = throughput.merge(merged, throughput.partial(profile))
    found = throughput_summary(throughput.finish(merged, phases), "train", step_ps)
    assert found is not None
    return found


STEADY = ("steady", 8192, 4_000_000_000)


def test_a_step_of_ten_milliseconds() -> None:
    """8192 tokens in 10 ms; 4e9 model flops and 6e9 of the HLO in 10 ms x 2e12 flop/s = 2e10."""
    found = summary_of(profile_of([STEADY] * 3), step_ps=[10 * MS] * 3)
    assert found["tokens_per_s"] == pytest.approx(819_200)
    assert (found["mfu"], found["hfu"]) == (pytest.approx(0.2), pytest.approx(0.3))
    assert (found["basis"], found["peak_type"], found["peak_flops_per_s"]) == ("model_flops", "bf16", PEAK)
    assert (found["model_flops_per_step"], found["hlo_flops_per_step"]) == (4e9, 6e9)
    assert found["why"] == {}


def test_four_devices_could_do_four_times_as_much() -> None:
    """The step's 4e9 model flops are shared; each device runs the program's 6e9."""
    found = summary_of(profile_of([STEADY] * 3, lanes=4), step_ps=[10 * MS] * 3)
    assert (found["mfu"], found["hfu"]) == (pytest.approx(0.05), pytest.approx(0.3))
    assert found["tokens_per_s"] == pytest.approx(819_200)


def test_processes_add_up_their_parts_of_a_step() -> None:
    parts = [replace(profile_of([STEADY] * 3), host=host) for host in "ab"]
    found = summary_of(*parts, step_ps=[10 * MS] * 3)
    assert found["tokens_per_s"] == pytest.approx(2 * 819_200)
    assert (found["mfu"], found["tokens_per_step"]) == (pytest.approx(0.2), 2 * 8192)


def test_only_steps_that_count_are_counted() -> None:
    steps = [("warmup", 1, 1), STEADY, STEADY, ("partial", None, None)]
    found = summary_of(profile_of(steps), step_ps=[10 * MS] * 2)
    assert (found["tokens_per_s"], found["mfu"]) == (pytest.approx(819_200), pytest.approx(0.2))


def test_model_flops_per_token_stand_in() -> None:
    found = summary_of(profile_of([("steady", 1000, None)] * 2, per_token=2e6), step_ps=[10 * MS] * 2)
    assert (found["mfu"], found["basis"]) == (pytest.approx(2e9 / 2e10), "model_flops_per_token")


def test_without_model_flops_it_is_hfu_and_called_so() -> None:
    found = summary_of(profile_of([("steady", 8192, None)] * 2), step_ps=[10 * MS] * 2)
    assert (found["mfu"], found["hfu"], found["basis"]) == (None, pytest.approx(0.3), "hlo")
    assert "model_flops=" in found["why"]["mfu"]


def test_tokens_that_some_steps_do_not_say_are_not_guessed() -> None:
    found = summary_of(profile_of([STEADY, ("steady", None, None)]), step_ps=[10 * MS] * 2)
    assert (found["tokens_per_s"], found["mfu"]) == (None, None)
    assert "only 1 of 2 steps" in found["why"]["tokens_per_s"]


def test_an_unknown_peak_or_flops_give_no_number() -> None:
    no_peak = summary_of(profile_of([STEADY] * 2, peak=None), step_ps=[10 * MS] * 2)
    assert (no_peak["mfu"], no_peak["hfu"], no_peak["basis"]) == (None, None, None)
    assert "XPROF_PY_PEAKS" in no_peak["why"]["mfu"]
    no_flops = summary_of(profile_of([STEADY] * 2, unknown_flops_ops=1), step_ps=[10 * MS] * 2)
    assert (no_flops["mfu"], no_flops["hfu"]) == (pytest.approx(0.2), None)
    assert "2 of 2 runs" in no_flops["why"]["hfu"]


def test_devices_of_two_peaks_have_none_together() -> None:
    found = summary_of(profile_of([STEADY]), replace(profile_of([STEADY], peak=1), host="b"), step_ps=[10 * MS])
    assert found["mfu"] is None
    assert "they differ" in found["why"]["mfu"]


def test_the_order_of_merging_does_not_matter() -> None:
    a, b, c = (throughput.partial(profile_of([("steady", i, 2**62)])) for i in (1, 2, 3))
    left = throughput.finish(throughput.merge(throughput.merge(a, b), c), ("steady",))
    right = throughput.finish(throughput.merge(c, throughput.merge(b, a)), ("steady",))
    assert left.equals(right)
    assert int(left["model_flops"][0].as_py()) == 3 * 2**62


def test_no_steps_no_throughput() -> None:
    finished = throughput.finish(throughput.partial(profile_of([])), ("steady",))
    assert throughput_summary(finished, None, []) is None
