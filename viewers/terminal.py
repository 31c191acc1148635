"""The verdict and the breakdown in a terminal: what `analyze` prints when it is done.

The same summary gives the same text for the same width, colours and encoding. Names from a trace are shown without
control characters: an op name cannot move the cursor or change colours.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from xprof_py.viewers import quantities, terminal_code
from xprof_py.viewers.class_words import label
from xprof_py.viewers.fields import Fields, mapping, number, rows, text
from xprof_py.viewers.figures import (
    LITTLE_EXPLAINED,
    ClassFigure,
    Headline,
    class_figures,
    diagnostics,
    evidence_place,
    headline,
    memory_lead,
    outside_lines,
    steps_used,
)
from xprof_py.viewers.run_words import run_words
from xprof_py.viewers.terminal_page import MARGIN, Page, columns_of

_EVIDENCE_SHOWN: Final = 3
_WARNINGS_SHOWN: Final = 3
_MEMORY_ADVICE_SHOWN: Final = 2
_SHORTEST_BAR: Final = 6
_LEAST_SHOWN: Final = 0.0005

_SEVERITY_COLOURS: Final = {"error": 160, "warning": 172}


def render_summary(
    summary: Fields,
    *,
    color: bool,
    width: int,
    encoding: str = "utf-8",
    out: str | None = None,
) -> str:
    """The summary as lines for a terminal.

    Args:
        summary: summary.json; fields that are missing or null are not shown.
        color: whether to use ANSI colours; the caller honours NO_COLOR and asks whether the output is a terminal.
        width: columns; no line is longer, except for a width below 40. More than 110 are not used.
        encoding: of the output. Where it has no block characters, bars and punctuation are ASCII, and other
            characters that it lacks are escaped: the result can always be encoded.
        out: the analysed folder, to say where tables and report are; None leaves that line out.

    Returns:
        Text that ends with a newline.
    """
    page = Page(color=color, width=width, encoding=encoding)
    head = headline(summary)
    for group in (
        _verdict(page, summary, head),
        _of_the_run(page, summary),
        _classes(page, summary),
        _evidence(page, summary),
        _advice(page, head),
        _memory(page, summary),
        terminal_code.compiled_code(page, summary),
        terminal_code.communication(page, summary),
        _outside(page, summary),
        _warnings(page, summary),
        _places(page, out),
    ):
        page.add(group)
    return page.finished()


def _verdict(page: Page, summary: Fields, head: Headline) -> Iterator[str]:
    for line in page.wrap(head.sentence):
        yield page.bold(line)
    if head.reason:
        yield from page.wrap(head.reason)
    if head.caveat:
        yield from page.wrap(head.caveat)
    accounted = number(summary, "accounted")
    straggler = mapping(summary, "straggler")
    parts = []
    if head.step_ms is not None:
        step_ms = mapping(summary, "step_ms")
        low, high = number(step_ms, "p10"), number(step_ms, "p90")
        spread = ""
        if low is not None and high is not None and low != high:
            spread = f" (p10 {quantities.milliseconds(low)}, p90 {quantities.milliseconds(high)})"
        parts.append(f"step {quantities.milliseconds(head.step_ms)}{spread}")
    if head.bottleneck and head.without_ms is not None:
        ratio = ""
        if head.step_ms and head.without_ms > 0:
            ratio = f" ({quantities.factor(head.step_ms / head.without_ms)} as fast)"
        parts.append(f"without {label(head.bottleneck)} {quantities.milliseconds(head.without_ms)}{ratio}")
    steps = mapping(summary, "steps")
    if number(steps, "count"):
        used = steps_used(summary)
        kind = "measured" if text(steps, "used").startswith("all") else "steady"
        parts.append(f"{quantities.plural(number(steps, 'count'), 'step')}, {quantities.whole(used)} {kind}")
    if text(straggler, "host"):
        lost_ms = number(straggler, "lost_ms_per_step")
        cost = "" if lost_ms is None else f" costs {quantities.milliseconds(lost_ms)} a step"
        parts.append(f"straggler {text(straggler, 'host')}{cost}")
    if accounted is not None:
        only = "only " if accounted < LITTLE_EXPLAINED else ""
        parts.append(f"{only}{quantities.percent(accounted)} explained")
    yield from page.flow([page.plain(part) for part in parts], "·")
    if head.without_why and head.without_ms is None:
        yield from page.wrap(f"step without {label(head.bottleneck)}: not estimated, {head.without_why}")


def _of_the_run(page: Page, summary: Fields) -> Iterator[str]:
    for line in run_words(summary):
        yield from page.wrap(line)


def _classes(page: Page, summary: Fields) -> Iterator[str]:
    figures = class_figures(mapping(summary, "breakdown"), steps_used(summary))
    shown = [figure for figure in figures if (figure.share or 0.0) >= _LEAST_SHOWN]
    shown.sort(key=lambda figure: -(figure.share or 0.0))
    if not shown:
        return
    unit, per_step = quantities.column([figure.per_step_s for figure in shown])
    times = ["" if figure.per_step_s is None else f"{value} {unit} a step" for figure, value in _zip(shown, per_step)]
    times = [page.plain(value) for value in times]
    percents = [page.plain(quantities.percent(figure.share)) for figure in shown]
    names = max(columns_of(label(figure.name)) for figure in shown)
    time_columns = max(map(len, times))
    room = page.width - len(MARGIN) - names - 2 - 7 - 1
    if room - time_columns - 2 < _SHORTEST_BAR:
        time_columns = 0
    bar_columns = max(0, room - (2 + time_columns if time_columns else 0))
    for figure, percent, time in zip(shown, percents, times, strict=True):
        bar = page.bar(figure.share or 0.0, bar_columns)
        filled = page.coloured(bar, figure.name) + " " * (bar_columns - len(bar))
        ending = f"  {time:>{time_columns}}" if time_columns else ""
        yield f"{MARGIN}{page.fit(label(figure.name), names)}  {filled} {percent:>7}{ending}"


def _zip(figures: list[ClassFigure], values: list[str]) -> Iterator[tuple[ClassFigure, str]]:
    return zip(figures, values, strict=True)


def _evidence(page: Page, summary: Fields) -> Iterator[str]:
    found = rows(mapping(summary, "verdict"), "evidence")
    for row in found[:_EVIDENCE_SHOWN]:
        place = evidence_place(row)
        said = text(row, "text")
        amount = ""
        if number(row, "per_step_ms") is not None:
            amount = f"{quantities.milliseconds(number(row, 'per_step_ms'))} a step"
        elif number(row, "seconds") is not None:
            amount = quantities.duration(number(row, "seconds"))
        if number(row, "step") is not None and (number(row, "count") or 0) <= 1:
            amount = ", ".join(filter(None, (amount, f"step {quantities.whole(number(row, 'step'))}")))
        amount = page.plain(amount)
        room = page.width - len(MARGIN) - (len(amount) + 2 if amount else 0)
        for i, line in enumerate(page.wrap(said, width=room)):
            yield f"{MARGIN}{page.fit(line, room)}  {amount}" if i == 0 and amount else MARGIN * 2 + line
        if place:
            yield MARGIN * 2 + page.faint(page.fit(place, page.width - 2 * len(MARGIN)).rstrip())
    if len(found) > _EVIDENCE_SHOWN:
        yield MARGIN + page.faint(f"{len(found) - _EVIDENCE_SHOWN:,} more in the report")


def _advice(page: Page, head: Headline) -> Iterator[str]:
    if not head.advice:
        return
    lines = page.wrap(head.advice, indent="      ", first="next  ")
    yield page.bold("next") + lines[0][4:]
    yield from lines[1:]


def _memory(page: Page, summary: Fields) -> Iterator[str]:
    memory = mapping(summary, "memory")
    if number(memory, "peak_bytes") is None:
        return
    lines = page.wrap(memory_lead(memory), indent=" " * 8, first="memory  ")
    yield page.bold("memory") + lines[0][6:]
    yield from lines[1:]
    for row in rows(memory, "advice")[:_MEMORY_ADVICE_SHOWN]:
        amount = page.plain(f"saves up to {quantities.size(number(row, 'saves_bytes'))}: {text(row, 'text')}")
        yield from page.wrap(amount, indent=" " * 10, first=" " * 8)


def _outside(page: Page, summary: Fields) -> Iterator[str]:
    lines = outside_lines(summary)
    names = max((columns_of(name) for name, _ in lines), default=0)
    for name, line in lines:
        shown = page.fit(line, page.width - len(MARGIN) - names - 2).rstrip()
        yield page.faint(f"{MARGIN}{page.fit(name, names)}  {shown}")


def _warnings(page: Page, summary: Fields) -> Iterator[str]:
    said = headline(summary).reason
    found = [row for row in diagnostics(summary) if text(row, "severity") in _SEVERITY_COLOURS]
    serious = [row for row in found if not said or text(row, "message") != said]
    for row in serious[:_WARNINGS_SHOWN]:
        severity = text(row, "severity")
        where = ": ".join(part for part in (text(row, "file"), text(row, "place")) if part)
        lines = page.wrap(f"{severity}: {f'{where}: ' if where else ''}{text(row, 'message')}", indent=MARGIN)
        lines[0] = lines[0].lstrip()
        yield page.paint(severity, "38", "5", str(_SEVERITY_COLOURS[severity])) + lines[0][len(severity) :]
        yield from lines[1:]
    hidden = serious[_WARNINGS_SHOWN:]
    if hidden:
        kind = "diagnostic" if any(text(row, "severity") == "error" for row in hidden) else "warning"
        yield f"{len(hidden):,} more {kind}{'s' * (len(hidden) > 1)} in the report"


def _places(page: Page, out: str | None) -> Iterator[str]:
    if out is None:
        return
    # A path is for copying: it is neither wrapped nor cut.
    yield f"tables  {page.plain(out)}"
    yield f"report  xprof-py report {shlex.quote(page.plain(out))}"
