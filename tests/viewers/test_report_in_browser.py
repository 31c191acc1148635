"""What a browser makes of the report: the chart draws, nothing is refused, nothing overflows, keys work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import escape
from types import ModuleType
from typing import Any

import pytest

from xprof_py.viewers.html_report import render_report

Open = Callable[..., Any]


def with_probe(page: str, script: str) -> str:
    """The page without its policy, and a script that leaves what it finds in an attribute of the document."""
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    probe = f"<script>top.document.documentElement.dataset.found = JSON.stringify((() => {{ {script} }})());</script>"
    return page.replace("</body>", f"{probe}</body>")


def framed(page: str, width: int) -> str:
    """A page that shows ``page`` in a frame of ``width`` pixels: a browser's own window has a least width."""
    frame = f'<iframe width="{width}" height="800" frameborder="0" srcdoc="{escape(page)}"></iframe>'
    return f"<!doctype html><html><body>{frame}</body></html>"


def found(visit: Open, page: str, script: str, **how: Any) -> Any:
    return found_in(visit(with_probe(page, script), **how))


def found_in(seen: Any) -> Any:
    assert seen.console == []
    value = re.search(r'data-found="([^"]*)"', seen.dom)
    assert value is not None
    return json.loads(value.group(1).replace("&quot;", '"').replace("&lt;", "<").replace("&amp;", "&"))


@pytest.mark.parametrize("name", ["input_bound", "recompile", "unknown_heavy", "no_steps", "many_steps", "four_hosts"])
def test_the_page_opens_without_a_word_in_the_console(sample: ModuleType, visit: Open, name: str) -> None:
    seen = visit(render_report(*sample.SAMPLES[name]()))
    assert seen.console == []
    assert ('class="steps"' in seen.dom) == (name != "no_steps")


@pytest.mark.parametrize(("steps", "bars"), [(1, 1), (2, 2), (40, 40), (170, 170)])
def test_there_is_one_bar_for_each_step_while_they_fit(sample: ModuleType, visit: Open, steps: int, bars: int) -> None:
    lanes = {("host0", 0): [sample.make_step(i, compute=5.0, input=1.0) for i in range(steps)]}
    dom = visit(render_report(*sample.summarize(lanes, verdict=None))).dom
    assert dom.count('<g class="bar">') == bars
    assert f'data-bars="{bars}"' in dom
    assert f'data-steps="{steps}"' in dom


def test_ten_thousand_steps_are_grouped_and_none_is_lost(sample: ModuleType, visit: Open) -> None:
    page = render_report(*sample.many_steps(10_000))
    assert len(page) < 1_200_000
    dom = visit(page).dom
    bars = dom.count('<g class="bar">')
    assert 100 < bars <= 320
    assert 'data-steps="10000"' in dom
    per_bar = int(re.search(r"10,000 steps, (\d+) to a bar", dom).group(1))  # type: ignore[union-attr]
    assert bars == -(-10_000 // per_bar)


@pytest.mark.parametrize("name", ["input_bound", "four_hosts", "many_steps"])
def test_four_hundred_pixels_are_enough(sample: ModuleType, visit: Open, name: str) -> None:
    summary, tables = sample.SAMPLES[name]()
    summary["capture"]["command"] = "python " + "a_very_long_name_without_a_break" * 8
    summary["top_ops"] = [{**sample.TOP_OPS[0], "op": "fusion" * 40, "op_name": "jit" * 90, "source": "p/" * 60}]
    inside = "const e = document.documentElement; return [e.clientWidth, e.scrollWidth];"
    seen = visit(framed(with_probe(render_report(summary, tables), inside), 400))
    assert found_in(seen) == [400, 400]


def test_a_bar_is_as_high_as_its_classes_and_a_torn_one_says_its_length(sample: ModuleType, visit: Open) -> None:
    steps = [sample.make_step(i, compute=6.0, input=3.0) for i in range(20)]
    steps[5] = sample.make_step(5, "outlier", "late", compute=10.0, unknown=90.0)
    page = render_report(*sample.summarize({("host0", 0): steps}, verdict=None))
    script = """
      const bars = [...document.querySelectorAll('g.bar')];
      const high = (bar, name) => Number(bar.querySelector('.f-' + name).getAttribute('height'));
      return {usual: high(bars[0], 'compute') / high(bars[0], 'input'),
              torn: high(bars[5], 'unknown') / high(bars[5], 'compute'),
              marks: bars.map(bar => bar.querySelectorAll('.torn').length),
              says: bars[5].querySelector('text').textContent};
    """
    seen = found(visit, page, script)
    assert seen["usual"] == pytest.approx(2.0, rel=0.01)
    assert seen["torn"] == pytest.approx(9.0, rel=0.01)
    assert seen["marks"] == [int(i == 5) for i in range(20)]
    assert seen["says"] == "100 ms"


def test_a_step_that_was_not_measured_does_not_lower_the_mean(sample: ModuleType, visit: Open) -> None:
    steps = [sample.make_step(i, "unmeasured", "no run was joined") for i in range(4)]
    steps += [sample.make_step(i, "partial", compute=3.0) for i in range(4, 6)]
    page = render_report(*sample.summarize({("host0", 0): steps}, verdict=None))
    script = "return document.querySelector('svg.steps').getAttribute('aria-valuetext');"
    assert found(visit, page, script) == "Mean of 2 measured steps, 3.00 ms; compute 3.00 ms"


def test_keys_move_between_steps_zoom_and_come_back(sample: ModuleType, visit: Open) -> None:
    page = render_report(*sample.many_steps())
    script = """
      const chart = document.querySelector('svg.steps');
      const press = key => chart.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
      const steps = () => Number(chart.dataset.steps), said = () => chart.getAttribute('aria-valuetext');
      const seen = {all: steps(), before: said()};
      chart.focus();
      press('ArrowRight'); seen.first = said();
      press('End'); seen.last = said();
      press('Home'); press('ArrowRight'); press('Enter'); seen.zoomed = steps();
      press('ArrowRight'); seen.one = said();
      press('Escape'); seen.back = steps();
      return seen;
    """
    seen = found(visit, page, script)
    assert seen["all"] == seen["back"] == 5000
    assert seen["before"].startswith("Mean of 4,993 steady steps")
    assert seen["first"].startswith("train 0 to train ")
    assert "to train 4999" in seen["last"]
    per_bar = int(re.match(r"train 0 to train (\d+)", seen["first"]).group(1)) + 1  # type: ignore[union-attr]
    assert seen["zoomed"] == per_bar
    assert seen["one"].startswith(f"train {per_bar}, ")


def test_the_table_holds_the_numbers_of_the_chart(sample: ModuleType, visit: Open) -> None:
    steps = [sample.make_step(i, compute=6.0 + i, input=0.25) for i in range(60)]
    page = render_report(*sample.summarize({("host0", 0): steps}, verdict=None))
    script = """
      const box = document.querySelector('details.as-table');
      box.open = true; box.ontoggle();
      const cells = row => [...row.children].map(cell => cell.textContent);
      const read = () => [...box.querySelectorAll('tbody tr')].map(cells);
      const first = read();
      box.querySelectorAll('.pager button')[1].click();
      return [first, read()];
    """
    first, second = found(visit, page, script)
    assert [len(first), len(second)] == [50, 10]
    assert first[3] == ["train 3", "steady", "9.25 ms", "9.00 ms", "250 µs"]
    assert second[-1][:3] == ["train 59", "steady", "65.3 ms"]


def test_the_lane_selector_and_a_class_alone_redraw_the_chart(sample: ModuleType, visit: Open) -> None:
    page = render_report(*sample.four_hosts())
    script = """
      const select = document.querySelector('#step-chart select');
      const seen = {options: select.options.length, mean: document.querySelector('.readout h3').textContent};
      select.value = '5'; select.onchange();
      seen.host = document.querySelector('.readout [data-name=host]').textContent;
      document.querySelector('.readout [data-name=host]').click();
      seen.alone = [...new Set([...document.querySelectorAll('g.bar rect')].map(rect => rect.getAttribute('class')))];
      return seen;
    """
    seen = found(visit, page, script)
    assert seen["options"] == 9
    assert re.fullmatch(r"host work(39|40|41)\.\d ms", seen["host"])
    assert seen["alone"] == ["f-host"]


def test_colours_follow_the_reader_s_theme(sample: ModuleType, visit: Open) -> None:
    page = render_report(*sample.input_bound())
    script = """
      const colour = (query, name) => getComputedStyle(document.querySelector(query))[name];
      return [colour('body', 'backgroundColor'), colour('g.bar .f-compute', 'fill')];
    """
    light, dark = (found(visit, page, script, dark=dark) for dark in (False, True))
    assert light == ["rgb(255, 255, 255)", "rgb(10, 120, 233)"]
    assert dark == ["rgb(18, 22, 28)", "rgb(83, 153, 254)"]


def test_the_policy_stops_a_script_that_got_into_the_page(sample: ModuleType, visit: Open) -> None:
    page = render_report(*sample.input_bound())
    seen = visit(page.replace("</body>", "<script>document.title = 'in'</script><img src='file:///x.png'></body>"))
    assert "<title>in</title>" not in seen.dom
    assert len(seen.console) >= 2
    assert all("Content Security Policy" in line for line in seen.console)


def test_hostile_names_neither_run_nor_show_as_markup(sample: ModuleType, visit: Open) -> None:
    name = "</script ></script><img src=x onerror=\"document.title='in'\"><svg onload=\"document.title='in'\">"
    summary, _ = sample.input_bound()
    summary["verdict"]["sentence"] = name
    summary["top_ops"] = [{"op": name, "op_name": name, "source": name, "class": name}]
    lanes = {
        (name, lane): [sample.make_step(i, name=name, reason=name, compute=1.0) for i in range(3)] for lane in (0, 1)
    }
    page = render_report(summary, {"step_classes": sample.step_table(lanes)})
    script = "return [document.querySelectorAll('img').length, document.title.includes('in:'), document.title];"
    images, _, title = found(visit, page, script)
    assert images == 0
    assert title != "in"
    assert visit(page).console == []
