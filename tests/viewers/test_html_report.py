"""The report says what the summary says, leaves out what is not there, and lets no name become markup."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from xprof_py.errors import BadInputError, XprofPyError
from xprof_py.postprocess.schema import CLASSES
from xprof_py.viewers.class_words import LABELS
from xprof_py.viewers.html_report import read_summary, render_report, write_report

HOSTILE = "</script ></script><img src=x onerror=alert(1)></title><!--<script \"'>&amp;"
Parse = Callable[[str], Any]


def leading_number(shown: str) -> float:
    found = re.match(r"[<>±−-]?\s*([\d,.]+)", shown)
    assert found is not None, shown
    return float(found.group(1).replace(",", ""))


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every field in a summary; of a list only the first entry, the others have the same fields."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield (*at, key)
            yield from paths(entry, (*at, key))
    elif isinstance(value, list) and value:
        yield (*at, 0)
        yield from paths(value[0], (*at, 0))


def replaced(summary: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(summary)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


@pytest.mark.parametrize("name", ["input_bound", "recompile", "unknown_heavy", "no_steps", "many_steps", "four_hosts"])
def test_every_profile_makes_a_whole_page_that_reaches_for_nothing(sample: ModuleType, parse: Parse, name: str) -> None:
    summary, tables = sample.SAMPLES[name]()
    page = render_report(summary, tables)
    tree = parse(page)
    assert tree.one("h1").text == (summary["verdict"] or {}).get("sentence", tree.one("h1").text).replace("`", "")
    for node in tree.all("*"):
        assert not {"src", "href", "srcset", "data", "action", "style"} & set(node.attributes), node.attributes
    assert "//" not in re.sub(r"(?m)^ *//.*$|http://www\.w3\.org/2000/svg", "", page)
    ids = [node.attributes["id"] for node in tree.all("*") if "id" in node.attributes]
    assert len(ids) == len(set(ids))


def test_the_same_input_gives_the_same_page(sample: ModuleType) -> None:
    assert render_report(*sample.input_bound()) == render_report(*sample.input_bound())


def test_the_policy_names_script_and_style_and_allows_nothing_else(sample: ModuleType, parse: Parse) -> None:
    policy = next(
        node.attributes["content"]
        for node in parse(render_report(*sample.input_bound())).all("meta")
        if node.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/]+='", rules["script-src"])
    assert re.fullmatch(r"'sha256-[\w+/]+='", rules["style-src"])


def test_the_headline_gives_the_verdict_the_step_times_and_the_next_action(sample: ModuleType, parse: Parse) -> None:
    summary, tables = sample.input_bound()
    tree = parse(render_report(summary, tables))
    verdict = summary["verdict"]
    assert tree.one("h1").text == verdict["sentence"]
    assert verdict["advice"] in tree.one("p", class_="advice").text
    figures = {node.one("dt").text: node.one("strong").text for node in tree.one("dl", class_="figures").all("div")}
    assert leading_number(figures["Step now"]) == pytest.approx(verdict["step_ms"], rel=0.005)
    assert leading_number(figures["Step without input"]) == pytest.approx(verdict["step_ms_without"], rel=0.005)
    assert leading_number(figures["Explained"]) == pytest.approx(100 * summary["accounted"], abs=0.06)


def test_each_number_of_the_class_table_is_that_of_the_summary(sample: ModuleType, parse: Parse) -> None:
    summary, tables = sample.input_bound()
    found = parse(render_report(summary, tables)).one("section", id="classes")
    titles = [cell.text for cell in found.all("thead")[0].all("th")]
    assert titles == ["Class", "", "Share", "A step (ms)", "Exclusive (s)", "Total (s)"]
    shown = found.body_rows()
    present = [c for c in CLASSES if summary["breakdown"][c]["total_s"] > 0]
    assert len(shown) == len(present)
    steps = summary["steps"]["phases"]["steady"]
    for name, cells in zip(present, shown, strict=True):
        cell = summary["breakdown"][name]
        assert cells[0].startswith(LABELS[name])
        assert leading_number(cells[2]) == pytest.approx(100 * cell["share"], abs=0.051)
        assert leading_number(cells[3]) == pytest.approx(1e3 * cell["exclusive_s"] / steps, abs=0.0051)
        assert leading_number(cells[4]) == pytest.approx(cell["exclusive_s"], abs=0.00051)
        assert leading_number(cells[5]) == pytest.approx(cell["total_s"], abs=0.00051)
    absent = found.one("p", class_="quiet").text
    assert all(LABELS[c] in absent for c in CLASSES if c not in present)


def test_the_bar_at_the_top_is_as_wide_as_the_shares(sample: ModuleType, parse: Parse) -> None:
    summary, tables = sample.input_bound()
    bar = parse(render_report(summary, tables)).one("div", class_="whole").one("svg")
    widths = {
        rect.attributes["class"].split("f-")[1]: float(rect.attributes["width"].rstrip("%")) for rect in bar.all("rect")
    }
    assert widths == {
        c: pytest.approx(100 * cell["share"], abs=0.001) for c, cell in summary["breakdown"].items() if cell["share"]
    }


def test_ops_say_how_close_they_came_to_their_roof(sample: ModuleType, parse: Parse) -> None:
    summary, tables = sample.input_bound()
    first, second, *rest = summary["top_ops"]
    near = {**first, "efficiency": 0.612, "bound": "memory"}
    unknown = {**second, "efficiency": None, "bound": None}
    found = parse(render_report({**summary, "top_ops": [near, unknown, *rest]}, tables)).one("section", id="ops")
    assert [cells[7] for cells in found.body_rows()][:2] == ["61.2% memory", "–"]


def test_ops_steps_compiles_and_unknown_are_those_of_the_summary(sample: ModuleType, parse: Parse) -> None:
    summary, tables = sample.input_bound()
    tree = parse(render_report(summary, tables))
    for op, cells in zip(summary["top_ops"], tree.one("section", id="ops").body_rows(), strict=True):
        assert cells[0].startswith(op["op"])
        assert op["op_name"] in cells[0]
        assert cells[2] == (op["source"] or "–")
        assert leading_number(cells[3]) == pytest.approx(100 * op["share"], abs=0.051)
        assert leading_number(cells[4]) == pytest.approx(1e3 * op["total_s"], abs=0.051)
        assert leading_number(cells[5]) == op["count"]
        assert leading_number(cells[6]) == pytest.approx(op["mean_us"], rel=0.005)
    assert {len(cells) for cells in tree.one("section", id="ops").body_rows()} == {7}
    slowest = tree.one("section", id="slowest").body_rows()
    for step, cells in zip(summary["slowest_steps"], slowest, strict=True):
        assert cells[0] == f"train {step['number']}"
        assert leading_number(cells[1]) == pytest.approx(step["ms"], rel=0.005)
        assert cells[2] == LABELS[step["largest_class"]]
        assert cells[3] == step["phase"] + step["why"]
    compiled = tree.one("section", id="compiles").body_rows()
    assert compiled == [
        ["train_step", "1", "1.79 s"],
        ["convert_element_type", "2", "60.0 ms"],
        ["step 0", "train_step", "1.79 s"],
    ]
    assert tree.one("section", id="unknown").body_rows() == [
        ["no host span covers the time", "11.0 ms", "0.6%", "train, fit"],
        ["no launch joined", "4.00 ms", "0.2%", "none"],
    ]


def test_compiled_code_and_communication_are_those_of_the_summary(sample: ModuleType, parse: Parse) -> None:
    summary, tables = sample.input_bound()
    tree = parse(render_report(summary, tables))
    chain, slow, beyond = tree.one("section", id="code").body_rows()
    assert chain[0].startswith("elementwise chain not fused (2 ops) add.7")
    assert "multiply.6" in chain[0]
    assert chain[1:5] == ["model.py:61", "4.3%", "31.00", "37"]
    assert slow[2:4] == ["–", "–"]
    assert beyond[0].startswith("fusion.42")
    assert beyond[2:] == ["18.0%", "131.0", "55.0% compute"]
    reduced, copied = tree.one("section", id="communication").body_rows()
    assert reduced[0].startswith("all-reduce of 4")
    assert reduced[1:7] == ["model.py:201", "7.1%", "52.00", "11.00", "74", "891 µs"]
    assert reduced[7:] == ["4.00 MiB", "7.06 GB/s"]
    assert copied[7:] == ["–", "–"]


@pytest.mark.parametrize("value", [None, "x", 3, [], {}, [None], True])
def test_any_field_of_compiled_code_and_communication_may_be_missing(sample: ModuleType, value: Any) -> None:
    summary, tables = sample.input_bound()
    code, moved = summary["compiled_code"], summary["communication"]
    for key in code:
        assert render_report({**summary, "compiled_code": {**code, key: value}}, tables)
    for part in ("findings", "ops"):
        for key in code[part][0]:
            broken = {**code, part: [{**code[part][0], key: value}]}
            assert render_report({**summary, "compiled_code": broken}, tables)
    for key in moved[0]:
        assert render_report({**summary, "communication": [{**moved[0], key: value}]}, tables)


def test_the_command_and_the_start_are_shown_as_the_run_file_has_them(sample: ModuleType, parse: Parse) -> None:
    summary, tables = sample.input_bound()
    command = ["/usr/bin/python", "-m", "train", "--name", "a b"]
    summary["capture"] = {"command": command, "started_ns": 1_700_000_000_999_999_999, "xprof_py": "0.1.0"}
    summary["hosts"][0]["source"] = ["run/0.xplane.pb", "shards/0-1.xpr"]
    tree = parse(render_report(summary, tables))
    lines = {node.one("dt").text: node.one("dd").text for node in tree.one("section", id="capture").all("div")}
    assert lines == {
        "command": "python -m train --name 'a b'",
        "started": "2023-11-14 22:13:20 UTC",
        "xprof_py": "0.1.0",
        "source": "run/0.xplane.pb, shards/0-1.xpr",
        "schema version": "1",
    }
    assert "2023-11-14 22:13:20 UTC" in tree.one("p", class_="origin").text


def test_what_profiling_cost_has_units_and_zeros_share_a_line(sample: ModuleType, parse: Parse) -> None:
    summary, tables = sample.input_bound()
    summary["overhead"] = {"start_s": 0.137, "spans": 1164, "dropped": 0, "hook_errors": 0, "bytes": 11472}
    found = parse(render_report(summary, tables)).one("section", id="overhead")
    assert {node.one("dt").text: node.one("dd").text for node in found.all("div")} == {
        "start": "137 ms",
        "spans": "1,164",
        "bytes": "11.2 KiB",
    }
    assert found.one("p", class_="quiet").text == "Zero: dropped, hook errors."


def test_long_names_are_cut_where_they_tell_least_and_whole_in_their_title(sample: ModuleType, parse: Parse) -> None:
    summary, tables = sample.input_bound()
    source = "/home/someone/project/with/many/folders/src/models/attention.py:118"
    name = "jit(train_step)/" + "transpose(jvp(attention))/" * 9 + "dot_general"
    summary["top_ops"] = [{**sample.TOP_OPS[0], "source": source, "op_name": name}]
    ops = parse(render_report(summary, tables)).one("section", id="ops")
    (shown,) = [node for node in ops.all("code") if node.attributes.get("title") == source]
    assert shown.text == "…/many/folders/src/models/attention.py:118"
    (small,) = ops.all("small")
    assert small.attributes["title"] == name
    assert small.text.startswith("jit(train_step)/")
    assert small.text.endswith("dot_general · jit_train_step")
    assert len(small.text) < 100


def test_each_part_outside_the_shares_has_one_line(sample: ModuleType, parse: Parse) -> None:
    summary, tables = sample.input_bound()
    lines = {
        node.one("dt").text: node.one("dd").text
        for node in parse(render_report(summary, tables)).one("section", id="outside").one("dl").all("div")
    }
    assert [next(line for term, line in lines.items() if term.startswith(name)) for name in ("warmup", "head")] == [
        "1 step · 1.94 s · mostly compiler (95%)",
        "812 ms · mostly unknown (100%)",
    ]


def test_several_hosts_show_lanes_clocks_and_the_straggler(sample: ModuleType, parse: Parse) -> None:
    summary, tables = sample.four_hosts()
    tree = parse(render_report(summary, tables))
    assert len(tree.one("section", id="lanes").body_rows()) == 8
    hosts = tree.one("section", id="hosts")
    assert "host2" in hosts.one("p", class_="lead").text
    assert [row[2:] for row in hosts.body_rows()[:4]] == [
        ["0 s", "± 0 s", "0.00", "ok · reference"],
        ["812 µs", "± 14.2 µs", "3.10", "ok · collectives"],
        ["−92.1 ms", "± 9.80 µs", "-0.40", "ok · probe"],
        ["41.0 ns", "–", "0.00", "unaligned"],
    ]
    assert [row[1:] for row in hosts.body_rows()[4:]] == [
        ["37.9 ms", "119", "loader.py:41 decode", "/job/loader.py:41"],
        ["300 µs", "60", "–", "–"],
    ]
    assert "host2 kept the others waiting most in 119 of 119 steps" in tree.text
    assert "1 error" in tree.one("p", class_="caution").text


def test_without_steps_the_page_says_so_and_why(sample: ModuleType, parse: Parse) -> None:
    summary, tables = sample.no_steps()
    tree = parse(render_report(summary, tables))
    assert tree.one("h1").text == "No verdict: the capture holds no steps."
    assert "no step was marked" in tree.one("p", class_="reason").text
    assert tree.all("section", id="steps") == []
    assert tree.all("section", id="classes") == []


def test_little_explained_is_said_beside_the_verdict(sample: ModuleType, parse: Parse) -> None:
    tree = parse(render_report(*sample.unknown_heavy()))
    assert "Only 17.0% of the step time is explained" in tree.one("p", class_="caution").text


def test_all_measured_steps_are_marked_so(sample: ModuleType, parse: Parse) -> None:
    summary, tables = sample.unknown_heavy()
    summary["steps"] |= {"phases": {"warmup": 2, "partial": 1, "unmeasured": 4}, "used": "all measured"}
    tree = parse(render_report(summary, tables))
    assert "No step is steady" in tree.one("p", class_="caution").text
    assert "all measured steps (3)" in tree.one("section", id="classes").one("p", class_="lead").text


@pytest.mark.parametrize("value", [None, "x", 3, [], {}, [None], float("nan"), True])
def test_any_field_may_be_missing_null_or_of_another_type(sample: ModuleType, value: Any) -> None:
    summary, _ = sample.four_hosts()
    summary |= {key: sample.input_bound()[0][key] for key in ("unknown", "compiles", "verdict")}
    for key in ("hosts", "lanes", "top_ops", "slowest_steps"):
        del summary[key][2:]
    every = list(paths(summary))
    assert len(every) > 150
    for path in every:
        assert render_report(replaced(summary, path, value), {}).endswith("</html>\n")


@pytest.mark.parametrize("field", ["steps", "step_ms", "breakdown", "verdict", "hosts", "outside_steady", "lanes"])
def test_a_summary_without_a_field_still_draws_its_chart(sample: ModuleType, parse: Parse, field: str) -> None:
    summary, tables = sample.four_hosts()
    del summary[field]
    assert parse(render_report(summary, tables)).one("div", id="step-chart")


def test_an_empty_summary_is_a_page(parse: Parse) -> None:
    assert parse(render_report({}, {})).one("h1").text == "No verdict: the capture holds no steps."


def hostile(value: Any, text: str) -> Any:
    """``value`` with every text and every free-form name replaced."""
    if isinstance(value, str):
        return text
    if isinstance(value, list):
        return [hostile(entry, text) for entry in value]
    if isinstance(value, dict):
        return {key: hostile(entry, text) for key, entry in value.items()} | {text: text}
    return value


def test_hostile_names_stay_text_everywhere(sample: ModuleType, parse: Parse) -> None:
    shapes = []
    for text in (HOSTILE, "harmless"):
        summary, _ = sample.four_hosts()
        made = hostile(summary, text)
        # Texts that choose what is shown keep their words, so that both pages show the same parts.
        made["steps"]["used"] = "steady"
        for row in made["diagnostics"]:
            row["severity"] = "error"
        steps = [sample.make_step(i, name=text, reason=text, compute=1.0) for i in range(3)]
        page = render_report(made, {"step_classes": sample.step_table({(text, 0): steps, (text, 1): steps})})
        assert text in parse(page).one("h1").text
        shapes.append([(node.tag, sorted(node.attributes)) for node in parse(page).all("*")])
        chart = json.loads(next(node for node in parse(page).all("script") if "id" in node.attributes).text)
        assert chart["series"][0]["names"] == [text]
    assert shapes[0] == shapes[1]


def test_lone_surrogates_and_controls_can_be_written(sample: ModuleType, tmp_path: Path) -> None:
    summary, tables = sample.input_bound()
    summary["verdict"]["sentence"] = "bad \ud800 \x1b[31m name"
    page = render_report(summary, tables)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    assert "\x1b" not in page


def test_a_report_is_written_whole_and_replaces_the_old_one(sample: ModuleType, tmp_path: Path) -> None:
    out = sample.write_out(tmp_path / "analysis", sample.input_bound())
    assert write_report(out) == out / "report.html"
    target = tmp_path / "new folder" / "r.html"
    assert write_report(out, target) == target
    assert target.read_text(encoding="utf-8") == render_report(*sample.input_bound())
    assert list(target.parent.iterdir()) == [target]


def test_a_place_that_cannot_be_written_is_named(sample: ModuleType, tmp_path: Path) -> None:
    out = sample.write_out(tmp_path / "analysis", sample.no_steps())
    (tmp_path / "file").write_text("")
    with pytest.raises(XprofPyError, match=r"file/r\.html"):
        write_report(out, tmp_path / "file" / "r.html")


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "no such file"), (b"{", "line 1"), (b"[]", "not a JSON object")]
)
def test_a_bad_summary_is_named_with_its_reason(tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(BadInputError, match=rf"summary\.json.*{reason}"):
        read_summary(tmp_path)


def test_a_table_of_another_version_is_named(sample: ModuleType, tmp_path: Path) -> None:
    summary, tables = sample.input_bound()
    out = sample.write_out(tmp_path / "a", (summary, {"step_classes": tables["step_classes"].drop_columns(["phase"])}))
    with pytest.raises(BadInputError, match=r"step_classes\.parquet: lacks the columns phase"):
        write_report(out)


def test_a_broken_table_is_named(sample: ModuleType, tmp_path: Path) -> None:
    out = sample.write_out(tmp_path / "analysis", sample.input_bound())
    (out / "step_classes.parquet").write_bytes(b"not parquet")
    with pytest.raises(BadInputError, match=r"step_classes\.parquet"):
        write_report(out)
