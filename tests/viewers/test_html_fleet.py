"""The page of a fleet says what its report says: the regression first, a bar per run, nobody's names as markup."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from xprof_py.cli import main
from xprof_py.postprocess.fleet.store import SCHEMA, RunFolder, _put
from xprof_py.postprocess.rules.fleet_report import fleet_report
from xprof_py.postprocess.schema import CLASSES
from xprof_py.viewers.html_fleet import RUNS_DRAWN, headline, render_fleet_page

Open = Callable[..., Any]
DAY_NS = 86_400 * 10**9


def runs(input_ms: Sequence[int], job: str = "job") -> pa.Table:
    """One run a day of one host: steps of 80 ms compute and so much input."""
    out = []
    for day, milliseconds in enumerate(input_ms):
        classes = {"compute": 80, "input": milliseconds}
        same = {"job": job, "run": f"r{day:03}", "started_ns": day * DAY_NS + 1, "host": "h", "process_index": 0}
        same |= {"step_name": "t", "steps": 10, "lanes": 1, "step_ps": (80 + milliseconds) * 10**9}
        same |= {"window_ps": (80 + milliseconds) * 10**10, "bottleneck": "compute", "xprof_py": "0", "source": ""}
        out += [{**same, "class": c, "exclusive_ps": classes.get(c, 0) * 10**10} for c in CLASSES]
    return pa.Table.from_pylist(out, schema=SCHEMA)


SLOWER = [10 + i % 3 for i in range(12)] + [30 + i % 3 for i in range(12)]


def test_the_regression_is_the_headline_and_its_job_comes_first() -> None:
    found = fleet_report(pa.concat_tables([runs([10] * 12, "calm"), runs(SLOWER, "slow")]), [])
    assert headline(found) == "slow got slower at r012: +22.0% a step."
    page = render_fleet_page(found)
    assert page.index('id="job-0-title">slow') < page.index('id="job-1-title">calm')
    assert "Regression at r012 (1970-01-13): 91.0 ms to 111 ms a step" in page
    assert page == render_fleet_page(found)


def test_without_a_change_or_with_too_few_runs_it_says_so() -> None:
    assert headline(fleet_report(runs([10] * 12), [])) == "No job got slower by more than chance."
    assert headline(fleet_report(runs([10, 90]), [])) == "Too few runs of any job to tell a change."


def test_a_bar_is_as_high_as_its_step_and_made_of_its_classes() -> None:
    page = render_fleet_page(fleet_report(runs([20, 80]), []))
    bars = re.findall(r"<g><title>(r\d+)[^<]*</title>(.*?)</g>", page)
    heights = {
        run: {name: float(h) for h, name in re.findall(r'height="([\d.]+)" class="fill f-(\w+)"', body)}
        for run, body in bars
    }
    # 80 + 20 and 80 + 80: the second is the highest and fills the 160 there are.
    assert heights["r001"] == pytest.approx({"compute": 80, "input": 80}, abs=0.02)
    assert heights["r000"] == pytest.approx({"compute": 80, "input": 20}, abs=0.02)


def test_the_newest_runs_are_drawn_and_the_others_counted() -> None:
    page = render_fleet_page(fleet_report(runs([10] * (RUNS_DRAWN + 5)), []))
    assert page.count("<g><title>") == RUNS_DRAWN
    assert "5 earlier runs not drawn." in page


def test_names_are_text_and_nothing_is_loaded() -> None:
    evil = '<img src=x onerror="alert(1)">'
    failed = [{"job": evil, "run": evil, "file": evil, "place": evil, "reason": evil}]
    page = render_fleet_page(fleet_report(runs([10], evil), failed))
    assert "<img" not in page
    assert not re.search(r'(?:src|href)="', page)
    assert "default-src 'none'" in page


def test_a_browser_shows_it_without_a_word_in_the_console(visit: Open) -> None:
    seen = visit(render_fleet_page(fleet_report(runs(SLOWER), [])))
    assert seen.console == []
    assert seen.dom.count("<g><title>") == len(SLOWER)


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _put(tmp_path / "store", RunFolder("job", "r000", tmp_path), runs([10]))
    page = tmp_path / "fleet.html"
    assert main(["fleet", "report", str(tmp_path / "store"), "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert "<h1>Too few runs of any job" in page.read_text(encoding="utf-8")
