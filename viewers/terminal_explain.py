"""One step explained in a terminal: what `explain` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xprof_py.viewers import quantities
from xprof_py.viewers.class_words import PHASE_MEANINGS, label
from xprof_py.viewers.fields import Fields, mapping, number, rows, text
from xprof_py.viewers.terminal_page import MARGIN, Page, columns_of

_GAPS_SHOWN: Final = 5
_OPS_SHOWN: Final = 8
_LEAST_SHOWN: Final = 0.001
"""Of the window: what takes less has no line."""


def render_explanation(found: Fields, *, color: bool, width: int, encoding: str = "utf-8") -> str:
    """The explanation as lines for a terminal.

    Args:
        found: what rules.explanation returned; fields that are missing or null are not shown.
        color, width, encoding: as Page takes them.

    Returns:
        Text that ends with a newline.
    """
    page = Page(color=color, width=width, encoding=encoding)
    page.add(_head(page, found))
    page.add(_classes(page, found))
    page.add(_gaps(page, found))
    page.add(_ops(page, found))
    page.add(_compiles(page, found))
    page.add(_unknown(page, found))
    page.add(line for note in found.get("notes") or () for line in page.wrap(f"note: {note}", indent=MARGIN, first=""))
    return page.finished()


def _milliseconds(row: Fields, key: str) -> str:
    return quantities.milliseconds(number(row, key))


def _signed(row: Fields) -> str:
    difference = number(row, "difference_ms")
    if not difference:
        return ""
    return ("+" if difference > 0 else "−") + quantities.milliseconds(abs(difference))


def _head(page: Page, found: Fields) -> Iterator[str]:
    yield from (page.bold(line) for line in page.wrap(text(found, "sentence")))
    step, span = mapping(found, "step"), mapping(found, "host_span")
    phase = text(step, "phase")
    place = f"{text(step, 'name')} step {text(step, 'number')}"
    parts = [place, f"{text(step, 'host')} lane {text(step, 'lane')} {text(step, 'device')}".strip()]
    parts.append(f"{phase}: {text(step, 'reason') or PHASE_MEANINGS.get(phase, '')}")
    if text(step, "counted_from"):
        parts.append(f"counted from {text(step, 'counted_from')}")
    behind = number(span, "device_behind_ms")
    if behind is not None and behind > 0:
        parts.append(f"the device ended it {quantities.milliseconds(behind)} after the host")
    runs = mapping(found, "runs")
    functions = ", ".join(mapping(runs, "functions"))
    joined = ", ".join(mapping(runs, "join"))
    if number(runs, "count"):
        parts.append(f"{quantities.plural(number(runs, 'count'), 'run')} of {functions} (joined by {joined})")
    yield from page.flow([page.plain(part) for part in parts], "·")
    ahead = text(mapping(found, "run_ahead"), "text")
    if ahead:
        yield from page.wrap(ahead)
    others = rows(found, "other_lanes")
    if others:
        longest = max(number(row, "window_ms") or 0.0 for row in others)
        yield page.faint(
            page.plain(f"on {quantities.plural(len(others), 'other lane')} at most {quantities.milliseconds(longest)}")
        )


def _classes(page: Page, found: Fields) -> Iterator[str]:
    window_ms = number(mapping(found, "step"), "window_ms") or 0.0
    shown = [
        row
        for row in rows(found, "classes")
        if max(number(row, "ms") or 0.0, number(row, "median_ms") or 0.0) >= _LEAST_SHOWN * window_ms
    ]
    if not shown:
        return
    unit, times = quantities.column([(number(row, "ms") or 0.0) / 1e3 for row in shown])
    compared = number(mapping(found, "compared_with"), "steps") is not None
    cells = [["", "", "", "from the median" if compared else "", ""]]
    for row, time in zip(shown, times, strict=True):
        other = number(row, "of_other_steps_ms")
        share = quantities.percent(number(row, "share"))
        foreign = f"{quantities.milliseconds(other)} of it other steps' work" if other else ""
        cells.append([label(text(row, "class")), f"{time} {unit}", share, _signed(row), foreign])
    lines = page.aligned(cells)
    if compared:
        yield page.faint(lines[0])
    for row, line in zip(shown, lines[1:], strict=True):
        yield page.coloured(line, text(row, "class"))


def _gaps(page: Page, found: Fields) -> Iterator[str]:
    gaps = rows(found, "gaps")
    for gap in gaps[:_GAPS_SHOWN]:
        yield from page.wrap(text(gap, "text"), indent=MARGIN, first="")
        yield from _causes(page, gap)
    left = gaps[_GAPS_SHOWN:]
    pieces = len(left) + sum(round(number(row, "pieces") or 0) for row in rows(found, "small_gaps"))
    if pieces:
        rest_ms = sum(number(row, "length_ms") or 0.0 for row in left)
        rest_ms += sum(number(row, "ms") or 0.0 for row in rows(found, "small_gaps"))
        yield page.faint(page.plain(f"{quantities.milliseconds(rest_ms)} idle in {pieces:,} smaller gaps"))


def _causes(page: Page, gap: Fields) -> Iterator[str]:
    length_ms = number(gap, "length_ms") or 0.0
    every = rows(gap, "causes")
    if len(every) == 1 and text(every[0], "cause") == "device_wait":
        return
    causes = [row for row in every if (number(row, "ms") or 0.0) >= 10 * _LEAST_SHOWN * length_ms]
    for row in causes:
        said = f"{_milliseconds(row, 'ms')} {label(text(row, 'cause'))}: {text(row, 'text')}"
        lines = page.wrap(said, indent=MARGIN * 3, first=MARGIN)
        yield page.coloured(lines[0], text(row, "cause"))
        yield from lines[1:]


def _ops(page: Page, found: Fields) -> Iterator[str]:
    shown = rows(found, "ops")[:_OPS_SHOWN]
    amounts = [page.plain(_milliseconds(row, "ms")) for row in shown]
    signs = [page.plain(_signed(row)) for row in shown]
    for row, amount, sign in zip(shown, amounts, signs, strict=True):
        head = f"{MARGIN}{amount:>{max(map(columns_of, amounts))}}  {sign:>{max(map(columns_of, signs))}}  "
        count = number(row, "count") or 0
        said = f"{text(row, 'opcode') or 'op'} {text(row, 'op')}" + (f" ×{round(count)}" if count != 1 else "")
        place = text(row, "source")
        yield head + page.fit(said, page.width - columns_of(head)).rstrip()
        if place:
            yield " " * columns_of(head) + page.faint(page.fit(place, page.width - columns_of(head)).rstrip())


def _compiles(page: Page, found: Fields) -> Iterator[str]:
    for row in rows(found, "compiles"):
        if (number(row, "ms") or 0.0) < _LEAST_SHOWN * (number(mapping(found, "step"), "window_ms") or 0.0):
            continue
        function = text(row, "function") or "a function that nothing names"
        place = f" ({text(row, 'source')})" if text(row, "source") else ""
        said = f"{text(row, 'stage')} of {function}{place}: {_milliseconds(row, 'ms')}"
        yield from page.wrap(said, indent=MARGIN, first="")


def _unknown(page: Page, found: Fields) -> Iterator[str]:
    unknown = mapping(found, "unknown")
    if (number(unknown, "share") or 0.0) < 10 * _LEAST_SHOWN:
        return
    share = quantities.percent(number(unknown, "share"))
    yield from page.wrap(f"unknown: {_milliseconds(unknown, 'ms')} ({share}), because", indent=MARGIN, first="")
    for row in rows(unknown, "why")[:3]:
        yield from page.wrap(f"{_milliseconds(row, 'ms')}: {text(row, 'text')}", indent=MARGIN * 2, first=MARGIN)
