"""Compiled code and communication in a terminal: what the summary lists of them, a few rows each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from xprof_py.viewers import quantities
from xprof_py.viewers.fields import Fields, mapping, number, rows, text
from xprof_py.viewers.figures import excess_sentence, finding_name, transfer_name
from xprof_py.viewers.terminal_page import MARGIN, Page, columns_of

_SHOWN: Final = 5
_NAME: Final = 16
"""Columns that a name has at least."""


def compiled_code(page: Page, summary: Fields) -> Iterator[str]:
    """Time beyond the roofline, and what the compiled code loses, most first."""
    found = mapping(summary, "compiled_code")
    said = excess_sentence(found)
    listed = rows(found, "findings")
    if not listed and not said:
        return
    yield page.bold("compiled code")
    if said:
        yield from page.wrap(said, indent=MARGIN, first=MARGIN)
    yield from _table(
        page,
        [
            (
                finding_name(row),
                text(row, "source"),
                quantities.percent(number(row, "share")) if number(row, "share") is not None else "not known",
                quantities.duration(number(row, "lost_s") if number(row, "lost_s") is not None else None),
            )
            for row in listed[:_SHOWN]
        ],
        len(listed),
    )


def communication(page: Page, summary: Fields) -> Iterator[str]:
    """Communication and copies, most exposed first."""
    listed = [row for row in rows(summary, "communication") if number(row, "in_flight_s")]
    if not listed:
        return
    yield page.bold("communication and copies")
    body = []
    for row in listed[:_SHOWN]:
        rate = number(row, "bus_bytes_per_s")
        body.append(
            (
                transfer_name(row),
                text(row, "source"),
                f"exposed {quantities.duration(number(row, 'exposed_s'))}",
                f"hidden {quantities.duration(number(row, 'hidden_s'))}",
                f"bus {quantities.rate(rate)}" if rate is not None else "",
            )
        )
    yield from _table(page, body, len(listed))


def _table(page: Page, body: Sequence[tuple[str, ...]], count: int) -> Iterator[str]:
    """Rows of a name and amounts, those from the right left out where the width asks for it; below them the place."""
    if not body:
        return
    amounts = [[page.plain(cell) for cell in row[2:]] for row in body]
    widths = [max(columns_of(row[i]) for row in amounts) for i in range(len(amounts[0]))]
    while widths and sum(widths) + 2 * len(widths) > page.width - len(MARGIN) - _NAME:
        widths.pop()
    ends = ["  ".join(" " * (w - columns_of(c)) + c for c, w in zip(row, widths, strict=False)) for row in amounts]
    room = page.width - len(MARGIN) - 2 - max(map(columns_of, ends), default=0)
    for (name, place, *_), end in zip(body, ends, strict=True):
        yield f"{MARGIN}{page.fit(name, room)}  {end}"
        if place:
            yield MARGIN * 2 + page.faint(page.fit(place, page.width - 2 * len(MARGIN)).rstrip())
    if count > len(body):
        yield MARGIN + page.faint(f"{count - len(body):,} more in the report")
