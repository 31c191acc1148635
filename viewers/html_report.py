"""The report: one HTML file that needs nothing else, to read, send and print.

The page's script and style are named by their hashes in a content security policy that allows nothing besides, so a
name in a trace can neither run nor reach the network, and the page works from a disk without one.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from xprof_py.errors import BadInputError, XprofPyError
from xprof_py.postprocess import schema
from xprof_py.viewers import html_code, html_memory, html_sections, html_verdict
from xprof_py.viewers.class_words import LABELS, PHASE_MEANINGS, PHASES
from xprof_py.viewers.fields import Fields, mapping, number
from xprof_py.viewers.html_parts import section
from xprof_py.viewers.markup import Html, join, printable, tag
from xprof_py.viewers.step_series import chart_series
from xprof_py.viewers.whole_file import write_whole

REPORT_TABLES = ("step_classes",)
"""Tables of OUT that the report reads."""


def render_report(summary: Fields, tables: Mapping[str, pa.Table]) -> str:
    """The report as the text of one HTML file.

    Args:
        summary: summary.json; fields that are missing or null are not shown.
        tables: ``step_classes`` (schema.TABLES) for the chart; without it the page has no chart.

    Returns:
        HTML. The same input gives the same text.
    """
    chart = chart_series(tables.get("step_classes"), summary)
    sections = join(
        [
            _chart_section(summary, chart),
            html_sections.breakdown(summary),
            html_sections.lanes(summary),
            html_sections.top_ops(summary),
            html_memory.memory(summary),
            html_code.compiled_code(summary),
            html_code.communication(summary),
            tag("div", html_sections.slowest_steps(summary), html_sections.compiles(summary), class_="pair"),
            tag("div", html_sections.outside_steady(summary), html_sections.unknown(summary), class_="pair"),
            html_sections.hosts(summary),
            html_sections.diagnostics_section(summary),
            tag("div", html_sections.overhead(summary), html_sections.capture(summary), class_="pair"),
        ]
    )
    return whole_page(
        title=html_verdict.title(summary),
        top=html_verdict.top(summary),
        sections=sections,
        script=_asset("step_chart.js"),
        chart=chart_facts(summary, chart),
    )


def whole_page(*, title: str, top: Html, sections: Html, script: str = "", chart: object = None) -> str:
    """One HTML file that needs nothing else. ``chart``: what ``script`` is given, as JSON."""
    style = _asset("report.css")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_asset("report.html")).substitute(
        policy=policy,
        title=tag("title", title),
        style=style,
        script=script,
        top=top,
        sections=sections,
        chart=_embedded(chart),
    )


def write_report(out: Path, destination: Path | None = None) -> Path:
    """Write the report of an analysed folder.

    Args:
        out: a folder with summary.json and, for the chart, step_classes.parquet (what ``analyze`` writes).
        destination: the HTML file, by default report.html in ``out``; as :func:`write_page` takes it.

    Returns:
        The file written.

    Raises:
        BadInputError: summary.json is missing, or it or a table cannot be read.
        XprofPyError: the file cannot be written.
    """
    return write_page(render_report(read_summary(out), read_tables(out)), destination or out / "report.html")


def write_page(page: str, destination: Path) -> Path:
    """Write a report that :func:`render_report` made.

    Args:
        page: the HTML.
        destination: a file, replaced as a whole, so that a reader never sees half of it; links are followed, and a pipe
            or a device is written to as it is.

    Returns:
        ``destination``.

    Raises:
        XprofPyError: the file cannot be written.
    """
    try:
        write_whole(destination, page)
    except OSError as error:
        raise XprofPyError(f"{destination}: cannot write the report: {error.strerror or error}") from error
    return destination


def read_summary(out: Path) -> dict[str, Any]:
    """summary.json of an analysed folder.

    Raises:
        BadInputError: it is missing, or is not a JSON object.
    """
    path = out / "summary.json"
    try:
        summary = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadInputError(str(path), "", "no such file: is this a folder that `xprof-py analyze` wrote?") from None
    except OSError as error:
        raise BadInputError(str(path), "", error.strerror or str(error)) from error
    except orjson.JSONDecodeError as error:
        raise BadInputError(str(path), f"line {error.lineno}", error.msg) from error
    if not isinstance(summary, dict):
        raise BadInputError(str(path), "", "not a JSON object")
    return summary


def read_tables(out: Path) -> dict[str, pa.Table]:
    """The tables of an analysed folder that the report draws; one that was not written is absent.

    Raises:
        BadInputError: a table is there and cannot be read, or lacks columns.
    """
    tables = {}
    for name in REPORT_TABLES:
        path = out / f"{name}.parquet"
        if path.exists():
            try:
                table = pq.read_table(path)
            except (OSError, pa.ArrowException) as error:
                raise BadInputError(str(path), "", str(error)) from error
            lacking = sorted(set(schema.TABLES[name].names) - set(table.column_names))
            if lacking:
                raise BadInputError(str(path), "", f"lacks the columns {', '.join(lacking)}: analyse the run again")
            tables[name] = table
    return tables


def chart_facts(summary: Fields, chart: Mapping[str, Any]) -> dict[str, Any]:
    """What the page's script is given: the series, the words of classes and phases, the median step in ms or None."""
    return {
        "series": chart["series"],
        "labels": LABELS,
        "phases": PHASES,
        "phaseMeanings": PHASE_MEANINGS,
        "medianMs": number(mapping(summary, "step_ms"), "median"),
    }


def _chart_section(summary: Fields, chart: Mapping[str, Any]) -> Html:
    if not chart["series"]:
        return Html("")
    without_script = tag(
        "noscript", tag("p", "The chart is drawn by the script in this file, which this viewer does not run.")
    )
    left_out = [tag("p", f"{line}.", class_="quiet") for line in chart["left_out"]]
    place = tag("div", id="step-chart", class_="chart")
    return section("steps", "Step by step", place, without_script, *left_out)


@cache
def _asset(name: str) -> str:
    return resources.files("xprof_py.viewers").joinpath("assets", name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")


def _embedded(value: object) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element or start a comment."""
    encoded = orjson.dumps(_printable_tree(value)).decode("utf-8")
    return encoded.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _printable_tree(value: object) -> object:
    """``value`` with the text of names and labels made printable; columns of numbers pass untouched."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): _printable_tree(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_printable_tree(entry) for entry in value] if any(not isinstance(e, int) for e in value) else value
    return value
