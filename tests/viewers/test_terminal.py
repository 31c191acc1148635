"""The summary in a terminal fits its width, its encoding and its reader."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest

from xprof_py.viewers.class_words import LABELS
from xprof_py.viewers.terminal import render_summary
from xprof_py.viewers.terminal_page import columns_of

NAMES = ["input_bound", "recompile", "unknown_heavy", "no_steps", "many_steps", "four_hosts"]


def show(summary: dict[str, Any], **more: Any) -> str:
    return render_summary(summary, **{"color": False, "width": 80, **more})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_no_line_is_wider_than_the_terminal(sample: ModuleType, name: str, width: int, encoding: str) -> None:
    summary, _ = sample.SAMPLES[name]()
    shown = show(summary, width=width, encoding=encoding)
    shown.encode(encoding)
    assert max(map(columns_of, shown.splitlines())) <= width
    assert shown.endswith("\n")


def test_wide_characters_count_as_two_columns(sample: ModuleType) -> None:
    summary, _ = sample.input_bound()
    summary["verdict"]["evidence"][0]["text"] = "入力を待つ" * 20
    summary["verdict"]["advice"] = "入力を待つ" * 40
    assert max(map(columns_of, show(summary).splitlines())) <= 80


def test_the_verdict_is_the_first_line_and_the_numbers_are_the_summarys(sample: ModuleType) -> None:
    summary, _ = sample.input_bound()
    lines = show(summary, out="runs/a/analysis").splitlines()
    assert lines[0] == summary["verdict"]["sentence"]
    assert f"step {summary['step_ms']['median']:.1f} ms" in lines[1]
    assert f"without input {summary['verdict']['step_ms_without']:.1f} ms" in lines[1]
    steady = summary["steps"]["phases"]["steady"]
    for name, cell in summary["breakdown"].items():
        line = next((line for line in lines if line.startswith(f"  {LABELS[name]} ") and "a step" in line), None)
        if cell["share"] < 0.0005:
            assert line is None
            continue
        assert line is not None
        share, per_step = re.search(r"([\d.]+)%\s+([\d.]+) ms a step$", line).groups()  # type: ignore[union-attr]
        assert float(share) == pytest.approx(100 * cell["share"], abs=0.051)
        assert float(per_step) == pytest.approx(1e3 * cell["exclusive_s"] / steady, abs=0.0051)
    assert any(line.startswith("    train.py:41") for line in lines)
    assert lines[-2:] == ["tables  runs/a/analysis", "report  xprof-py report runs/a/analysis"]


def test_bars_are_as_long_as_their_shares() -> None:
    summary = {"breakdown": {"compute": {"exclusive_s": 3.0}, "input": {"exclusive_s": 1.0}}}
    compute, given = (line for line in show(summary, encoding="ascii").splitlines() if "#" in line)
    assert compute.count("#") == pytest.approx(3 * given.count("#"), abs=2)
    assert given.count("#") > 10


def test_without_colour_there_is_no_escape_and_with_colour_the_same_words(sample: ModuleType) -> None:
    summary, _ = sample.four_hosts()
    plain, coloured = show(summary), show(summary, color=True)
    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    assert [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines()] == plain.splitlines()


def test_names_from_a_trace_cannot_drive_the_terminal(sample: ModuleType) -> None:
    summary, _ = sample.input_bound()
    summary["verdict"]["evidence"][0]["text"] = "\x1b]0;owned\x07\x9b2J\rname\nnext"
    summary["verdict"]["sentence"] = "a\x1b[2Jb"
    summary["diagnostics"][1]["message"] = "\x08\x08x"
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", show(summary))


def test_the_straggler_is_named(sample: ModuleType) -> None:
    summary, _ = sample.four_hosts()
    assert "straggler host2 costs 38.2 ms a step" in show(summary)
    said = "host2 kept the others waiting most in 119 of 119 steps, 38.2 ms a step: host work, `loader.py:41 decode`."
    assert said in " ".join(show(summary).split())


def test_a_reason_is_said_once(sample: ModuleType) -> None:
    summary, _ = sample.no_steps()
    assert show(summary).count("no step was marked") == 1


@pytest.mark.parametrize(
    ("severities", "said"),
    [
        (["error"] * 5, "2 more diagnostics in the report"),
        (["error"] * 4, "1 more diagnostic in the report"),
        (["error"] * 3 + ["warning"] * 2, "2 more warnings in the report"),
        (["warning"] * 4 + ["note"] * 9, "1 more warning in the report"),
    ],
)
def test_what_is_left_out_is_called_what_it_is(severities: list[str], said: str) -> None:
    rows = [{"severity": severity, "message": f"m{i}"} for i, severity in enumerate(severities)]
    shown = show({"steps": {"count": 1}, "verdict": {"bottleneck": "input", "sentence": "x"}, "diagnostics": rows})
    assert shown.splitlines()[-1] == said


def test_the_command_for_the_report_is_quoted_for_a_shell() -> None:
    assert show({}, out="my run/analysis").endswith("report  xprof-py report 'my run/analysis'\n")


def test_a_name_that_the_encoding_lacks_is_escaped() -> None:
    shown = show({"verdict": {"bottleneck": "input", "sentence": "naïve 入力"}}, encoding="ascii")
    assert shown.startswith("na\\xefve \\u5165\\u529b")


@pytest.mark.parametrize("value", [None, "x", 3, [], {}, [None], True])
def test_any_field_may_be_missing_null_or_of_another_type(sample: ModuleType, value: Any) -> None:
    summary, _ = sample.four_hosts()
    for key in summary:
        assert show({**summary, key: value}, out="o")
        assert show({k: v for k, v in summary.items() if k != key})
        for inner in summary[key] if isinstance(summary[key], dict) else ():
            assert show({**summary, key: {**summary[key], inner: value}})
        if isinstance(summary[key], list) and summary[key]:
            for inner in summary[key][0]:
                assert show({**summary, key: [{**summary[key][0], inner: value}]})
    assert show({}) == "No verdict: the capture holds no steps.\n"


def test_compiled_code_and_communication_are_ranked_with_their_places(sample: ModuleType) -> None:
    shown = show(sample.input_bound()[0])
    said = "Ops took 210 ms longer than the hardware needs at the least, 29.0% of the step time."
    assert said in " ".join(shown.split())
    assert shown.index("elementwise chain not fused (2 ops) add.7") < shown.index("model.py:61")
    assert "matmul in a slow type dot.9" in shown
    reduced = next(line for line in shown.splitlines() if "all-reduce of 4" in line)
    assert "exposed 52.0 ms" in reduced
    assert "hidden 11.0 ms" in reduced
    assert "bus 7.06 GB/s" in reduced


@pytest.mark.parametrize("value", [None, "x", 3, [], {}, [None], True])
def test_any_field_of_compiled_code_and_communication_may_be_missing(sample: ModuleType, value: Any) -> None:
    summary, _ = sample.input_bound()
    code, moved = summary["compiled_code"], summary["communication"]
    for key in code:
        assert show({**summary, "compiled_code": {**code, key: value}})
    for key in code["findings"][0]:
        assert show({**summary, "compiled_code": {**code, "findings": [{**code["findings"][0], key: value}]}})
    for key in moved[0]:
        assert show({**summary, "communication": [{**moved[0], key: value}]})
