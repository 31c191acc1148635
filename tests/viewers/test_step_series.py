"""What the chart is given: whole nanoseconds per lane, and their mean."""

from __future__ import annotations

from types import ModuleType

import pyarrow as pa
import pytest

from xprof_py.postprocess import schema
from xprof_py.viewers import step_series
from xprof_py.viewers.step_series import chart_series


def test_a_lane_keeps_its_steps_in_order_of_start_without_head_and_tail(sample: ModuleType) -> None:
    steps = [sample.make_step(7, "warmup", "first run", compute=2.0), sample.make_step(8, compute=1.0, input=0.5)]
    table = sample.step_table({("host0", 0): steps}, head_ms=3.0, tail_ms=1.0)
    shuffled = table.take(pa.array([3, 2, 1, 0]))
    for given in (table, shuffled):
        (series,) = chart_series(given, {})["series"]
        assert series["number"] == [7, 8]
        assert series["window"] == [2_000_000, 1_500_000]
        assert series["classes"] == {"compute": [2_000_000, 1_000_000], "input": [0, 500_000]}
        assert [step_series.PHASES[i] for i in series["phase"]] == ["warmup", "steady"]
        assert series["reasons"] == {"0": "first run"}


def test_the_mean_is_over_the_lanes_that_have_the_step(sample: ModuleType) -> None:
    lanes = {
        ("host0", 0): [sample.make_step(0, compute=1.0), sample.make_step(1, compute=1.0)],
        ("host1", 0): [sample.make_step(0, "outlier", "late", compute=3.0)],
    }
    mean, first, second = chart_series(sample.step_table(lanes), {})["series"]
    assert mean["label"] == "Mean of 2 lanes"
    assert mean["number"] == [0, 1]
    assert mean["window"] == [2_000_000, 1_000_000]
    assert mean["classes"]["compute"] == [2_000_000, 1_000_000]
    assert step_series.PHASES[mean["phase"][0]] == "outlier"
    assert mean["reasons"] == {"0": "late"}
    assert (first["label"], second["label"]) == ("host0 · lane 0", "host1 · lane 0")


def test_steps_of_two_names_or_a_resumed_run_do_not_collide(sample: ModuleType) -> None:
    again = {**sample.make_step(0, compute=4.0), "occurrence": 1}
    steps = [sample.make_step(0, compute=1.0), sample.make_step(0, name="eval", compute=2.0), again]
    mean, *_ = chart_series(sample.step_table({("a", 0): steps, ("a", 1): steps}), {})["series"]
    assert [mean["names"][i] for i in mean["name"]] == ["train", "eval", "train"]
    assert mean["window"] == [1_000_000, 2_000_000, 4_000_000]
    assert mean["occurrence"] == [0, 0, 1]


def test_the_device_is_named_where_the_summary_knows_it(sample: ModuleType) -> None:
    summary, tables = sample.input_bound()
    (series,) = chart_series(tables["step_classes"], summary)["series"]
    assert series["label"] == "lane 0 · TFRT_CPU_0"


@pytest.mark.parametrize("table", [None, schema.empty("step_classes")])
def test_no_table_or_no_steps_is_no_series(table: pa.Table | None) -> None:
    assert chart_series(table, {})["series"] == []


def test_what_is_not_drawn_is_said(sample: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_series, "MAX_STEPS", 3)
    monkeypatch.setattr(step_series, "MAX_WINDOWS", 5)
    lanes = {("a", lane): [sample.make_step(i, compute=1.0) for i in range(4)] for lane in range(3)}
    chart = chart_series(sample.step_table(lanes), {})
    assert [len(series["window"]) for series in chart["series"]] == [3, 3]
    assert any("the first 3 of 4 steps" in line for line in chart["left_out"])
    assert any("2 of 3 lanes" in line for line in chart["left_out"])
