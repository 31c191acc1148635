"""The verdict and the breakdown in a terminal: what `analyze` prints when it is done.

The same summary gives the same text for the same width, colours and encoding. Names from a trace are shown without
control characters: an op name cannot move the cursor or change colours.
"""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Iterator
from typing import Final

from xprof_py.viewers import quantities
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
    outside_lines,
    steps_used,
)
from xprof_py.viewers.markup import printable

_NARROWEST: Final = 40
_WIDEST: Final = 110
_EVIDENCE_SHOWN: Final = 3
_WARNINGS_SHOWN: Final = 3
_SHORTEST_BAR: Final = 6
_LEAST_SHOWN: Final = 0.0005
_MARGIN: Final = "  "

# The 256-colour cube holds on dark and on light backgrounds where the 16 named colours do not.
_CLASS_COLOURS: Final = {
    "compute": 33,
    "memory": 81,
    "collective": 134,
    "host_device": 65,
    "compiler": 124,
    "input": 208,
    "checkpoint": 178,
    "host": 139,
    "device_wait": 245,
    "no_work": 240,
    "unknown": 248,
}
_SEVERITY_COLOURS: Final = {"error": 160, "warning": 172}
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_ASCII: Final = str.maketrans(
    {"·": "-", "–": "-", "—": "-", "−": "-", "…": "~", "×": "x", "µ": "u", "±": "+", "“": '"', "”": '"', "’": "'"}
)


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
    page = _Page(color=color, width=min(max(width, _NARROWEST), _WIDEST), unicode=_has_blocks(encoding))
    head = headline(summary)
    for group in (
        _verdict(page, summary, head),
        _classes(page, summary),
        _evidence(page, summary),
        _advice(page, head),
        _outside(page, summary),
        _warnings(page, summary),
        _places(page, out),
    ):
        page.add(group)
    return page.finished().encode(encoding, "backslashreplace").decode(encoding)


def _has_blocks(encoding: str) -> bool:
    try:
        f"{_EIGHTHS}·…–×µ".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class _Page:
    """Lines in groups, an empty line between groups."""

    def __init__(self, *, color: bool, width: int, unicode: bool) -> None:
        self.color = color
        self.width = width
        self.unicode = unicode
        self._groups: list[list[str]] = []

    def add(self, lines: Iterator[str]) -> None:
        group = list(lines)
        if group:
            self._groups.append(group)

    def finished(self) -> str:
        return "\n\n".join("\n".join(line.rstrip() for line in group) for group in self._groups) + "\n"

    def plain(self, value: str) -> str:
        """``value`` in one line, without control characters, in the characters that the output has."""
        one_line = printable(" ".join(value.split()))
        return one_line if self.unicode else one_line.translate(_ASCII)

    def paint(self, value: str, *codes: str) -> str:
        return f"\x1b[{';'.join(codes)}m{value}\x1b[0m" if self.color and value else value

    def bold(self, value: str) -> str:
        return self.paint(value, "1")

    def faint(self, value: str) -> str:
        return self.paint(value, "2")

    def coloured(self, value: str, name: str) -> str:
        colour = _CLASS_COLOURS.get(name)
        return value if colour is None else self.paint(value, "38", "5", str(colour))

    def fit(self, value: str, columns: int) -> str:
        """``value`` cut to ``columns`` with an ellipsis, or filled with spaces."""
        value = self.plain(value)
        if columns_of(value) > columns:
            ellipsis = "…" if self.unicode else "~"
            while value and columns_of(value) > columns - 1:
                value = value[:-1]
            value += ellipsis
        return value + " " * (columns - columns_of(value))

    def wrap(self, value: str, indent: str = "", first: str | None = None, width: int | None = None) -> list[str]:
        """``value`` broken into lines between words; a word that is longer than a line is broken too."""
        return self.flow(self.plain(value).split(), " ", indent, first, width)

    def flow(
        self, pieces: list[str], between: str, indent: str = "", first: str | None = None, width: int | None = None
    ) -> list[str]:
        """``pieces`` one after the other, as many to a line as fit into ``width`` columns (None: the page's)."""
        width = self.width if width is None else width
        between = f" {self.plain(between)} ".replace("  ", " ")
        lines: list[str] = []
        line = indent if first is None else first
        empty = True
        for piece in pieces:
            for part in self._pieces_of(piece, width - columns_of(indent)):
                if not empty and columns_of(line) + columns_of(between) + columns_of(part) > width:
                    lines.append(line)
                    line, empty = indent, True
                line += part if empty else between + part
                empty = False
        return lines if empty else [*lines, line]

    @staticmethod
    def _pieces_of(word: str, columns: int) -> Iterator[str]:
        while columns_of(word) > columns:
            cut = len(word)
            while columns_of(word[:cut]) > columns:
                cut -= 1
            yield word[:cut]
            word = word[cut:]
        yield word

    def bar(self, share: float, columns: int) -> str:
        """A bar of ``share`` of ``columns``; anything above nothing shows at least its thinnest piece."""
        share = min(max(share, 0.0), 1.0)
        if not self.unicode:
            return "#" * max(round(share * columns), 1 if share > 0 else 0)
        eighths = max(round(share * columns * 8), 1 if share > 0 else 0)
        return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def columns_of(value: str) -> int:
    """How many terminal columns ``value`` takes: wide characters two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in ("W", "F") else 1 for c in value
    )


def _verdict(page: _Page, summary: Fields, head: Headline) -> Iterator[str]:
    for line in page.wrap(head.sentence):
        yield page.bold(line)
    if head.reason:
        yield from page.wrap(head.reason)
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


def _classes(page: _Page, summary: Fields) -> Iterator[str]:
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
    room = page.width - len(_MARGIN) - names - 2 - 7 - 1
    if room - time_columns - 2 < _SHORTEST_BAR:
        time_columns = 0
    bar_columns = max(0, room - (2 + time_columns if time_columns else 0))
    for figure, percent, time in zip(shown, percents, times, strict=True):
        bar = page.bar(figure.share or 0.0, bar_columns)
        filled = page.coloured(bar, figure.name) + " " * (bar_columns - len(bar))
        ending = f"  {time:>{time_columns}}" if time_columns else ""
        yield f"{_MARGIN}{page.fit(label(figure.name), names)}  {filled} {percent:>7}{ending}"


def _zip(figures: list[ClassFigure], values: list[str]) -> Iterator[tuple[ClassFigure, str]]:
    return zip(figures, values, strict=True)


def _evidence(page: _Page, summary: Fields) -> Iterator[str]:
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
        room = page.width - len(_MARGIN) - (len(amount) + 2 if amount else 0)
        for i, line in enumerate(page.wrap(said, width=room)):
            yield f"{_MARGIN}{page.fit(line, room)}  {amount}" if i == 0 and amount else _MARGIN * 2 + line
        if place:
            yield _MARGIN * 2 + page.faint(page.fit(place, page.width - 2 * len(_MARGIN)).rstrip())
    if len(found) > _EVIDENCE_SHOWN:
        yield _MARGIN + page.faint(f"{len(found) - _EVIDENCE_SHOWN:,} more in the report")


def _advice(page: _Page, head: Headline) -> Iterator[str]:
    if not head.advice:
        return
    lines = page.wrap(head.advice, indent="      ", first="next  ")
    yield page.bold("next") + lines[0][4:]
    yield from lines[1:]


def _outside(page: _Page, summary: Fields) -> Iterator[str]:
    lines = outside_lines(summary)
    names = max((columns_of(name) for name, _ in lines), default=0)
    for name, line in lines:
        shown = page.fit(line, page.width - len(_MARGIN) - names - 2).rstrip()
        yield page.faint(f"{_MARGIN}{page.fit(name, names)}  {shown}")


def _warnings(page: _Page, summary: Fields) -> Iterator[str]:
    said = headline(summary).reason
    found = [row for row in diagnostics(summary) if text(row, "severity") in _SEVERITY_COLOURS]
    serious = [row for row in found if not said or text(row, "message") != said]
    for row in serious[:_WARNINGS_SHOWN]:
        severity = text(row, "severity")
        where = ": ".join(part for part in (text(row, "file"), text(row, "place")) if part)
        lines = page.wrap(f"{severity}: {f'{where}: ' if where else ''}{text(row, 'message')}", indent=_MARGIN)
        lines[0] = lines[0].lstrip()
        yield page.paint(severity, "38", "5", str(_SEVERITY_COLOURS[severity])) + lines[0][len(severity) :]
        yield from lines[1:]
    hidden = serious[_WARNINGS_SHOWN:]
    if hidden:
        kind = "diagnostic" if any(text(row, "severity") == "error" for row in hidden) else "warning"
        yield f"{len(hidden):,} more {kind}{'s' * (len(hidden) > 1)} in the report"


def _places(page: _Page, out: str | None) -> Iterator[str]:
    if out is None:
        return
    # A path is for copying: it is neither wrapped nor cut.
    yield f"tables  {page.plain(out)}"
    yield f"report  xprof-py report {shlex.quote(page.plain(out))}"
