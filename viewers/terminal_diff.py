"""The comparison of two runs in a terminal: what `diff` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xprof_py.postprocess.rules.difference import RATE
from xprof_py.viewers import quantities
from xprof_py.viewers.class_words import label
from xprof_py.viewers.fields import Fields, mapping, number, rows, text
from xprof_py.viewers.terminal_page import MARGIN, Page, columns_of

_OPS_SHOWN: Final = 12
_LEAST_SHOWN: Final = 0.001
"""Of the step: a class below it in both runs has no line."""
_WORSE, _BETTER, _WARNING = ("38", "5", "160"), ("38", "5", "34"), ("38", "5", "172")


def render_diff(found: Fields, *, color: bool, width: int, encoding: str = "utf-8") -> str:
    """The comparison as lines for a terminal.

    Args:
        found: what rules.difference returned; fields that are missing or null are not shown.
        color, width, encoding: as Page takes them.

    Returns:
        Text that ends with a newline.
    """
    page = Page(color=color, width=width, encoding=encoding)
    page.add(page.bold(line) for line in page.wrap(text(found, "sentence")))
    page.add(_classes(page, found))
    page.add(_energy(page, mapping(found, "energy")))
    page.add(_ops(page, found))
    page.add(
        line for row in rows(found, "occasional") for line in page.wrap(text(row, "text"), indent=MARGIN, first="")
    )
    page.add(_limits(page, found))
    page.add(_warnings(page, found))
    return page.finished()


def _signed(seconds: float | None) -> str:
    if seconds is None:
        return quantities.MISSING
    return ("+" if seconds > 0 else "−" if seconds < 0 else "") + quantities.duration(abs(seconds))


def _relative(row: Fields) -> str:
    relative = number(row, "relative")
    if relative is None:
        return "new" if (number(row, "b_ms") or 0.0) > 0 else ""
    return f"×{1 + relative:,.0f}" if relative >= 9.5 else f"{relative:+.1%}".replace("-", "−")


def _verdict(row: Fields) -> str:
    """The relative change where it counts, else why it does not."""
    if row.get("changed") is True:
        return _relative(row)
    if not number(row, "difference_ms"):
        return ""
    return "small" if (number(row, "q") or 0.0) <= RATE else "by chance"


def _seconds(row: Fields, key: str) -> float | None:
    found = number(row, key)
    return None if found is None else found / 1e3


def _painted(page: Page, line: str, row: Fields) -> str:
    if row.get("changed") is not True:
        return page.faint(line)
    return page.paint(line, *(_WORSE if (number(row, "difference_ms") or 0.0) > 0 else _BETTER))


def _classes(page: Page, found: Fields) -> Iterator[str]:
    step = mapping(found, "step")
    least_ms = _LEAST_SHOWN * (number(step, "a_ms") or 0.0)
    classes = [
        row for row in rows(found, "classes") if max(number(row, k) or 0.0 for k in ("a_ms", "b_ms")) >= least_ms
    ]
    classes.sort(key=lambda row: -abs(number(row, "difference_ms") or 0.0))
    shown = [step, *classes]
    unit, before = quantities.column([_seconds(row, "a_ms") for row in shown])
    after_unit, after = quantities.column([_seconds(row, "b_ms") for row in shown])
    cells = [
        ("", "A", "B", "change", ""),
        *(
            (
                "step" if row is step else label(text(row, "name")),
                f"{a} {unit}",
                f"{b} {after_unit}",
                _signed(_seconds(row, "difference_ms")),
                _verdict(row),
            )
            for row, a, b in zip(shown, before, after, strict=True)
        ),
    ]
    for i, line in enumerate(page.aligned(cells)):
        yield page.faint(line) if i == 0 else _painted(page, line, shown[i - 1])


def _energy(page: Page, found: Fields) -> Iterator[str]:
    before, after, change = (number(found, name) for name in ("a_j", "b_j", "difference_j"))
    if before is None or after is None or change is None:
        if text(found, "why"):
            yield from page.wrap(f"energy is not compared: {text(found, 'why')}")
        return
    errors = [number(found, name) for name in ("a_error_j", "b_error_j")]
    known = " and ".join(f"{error:,.2g}" for error in errors if error is not None)
    within = ", no more than it can be off" if found.get("beyond_error") is False else ""
    bound = f" (± {known} J{within})" if None not in errors else " (no bound is known)"
    relative = number(found, "relative")
    moved = "" if relative is None else f", {relative:+.1%}".replace("-", "−")
    yield from page.wrap(f"energy of a step: {before:,.4g} J before, {after:,.4g} J after{moved}{bound}")


def _ops(page: Page, found: Fields) -> Iterator[str]:
    every = rows(found, "ops")
    changed = [row for row in every if row.get("changed") is True]
    if not changed:
        if every:
            yield from page.wrap(f"no op changed by more than chance, of {len(every):,} that matter")
        return
    yield from page.wrap(f"{len(changed):,} of {len(every):,} ops changed by more than chance, per step:")
    amounts = [page.plain(_signed(_seconds(row, "difference_ms"))) for row in changed[:_OPS_SHOWN]]
    relatives = [page.plain(_relative(row)) for row in changed[:_OPS_SHOWN]]
    widths = [max(map(columns_of, column)) for column in (amounts, relatives)]
    for row, amount, relative in zip(changed, amounts, relatives, strict=False):
        place = text(row, "source")
        said = f"{text(row, 'opcode') or 'op'} {text(row, 'op')}"
        if row.get("op_in_a") is None or row.get("op_in_b") is None:
            said += " (only in B)" if row.get("op_in_a") is None else " (only in A)"
        head = f"{MARGIN}{amount:>{widths[0]}}  {relative:>{widths[1]}}  "
        line = head + page.fit(said, page.width - columns_of(head)).rstrip()
        yield _painted(page, line, row)
        for detail in filter(None, (place, text(row, "op_name"))):
            yield page.faint(" " * columns_of(head) + page.fit(detail, page.width - columns_of(head)).rstrip())
    if len(changed) > _OPS_SHOWN:
        yield MARGIN + page.faint(f"{len(changed) - _OPS_SHOWN:,} more with --json")


def _limits(page: Page, found: Fields) -> Iterator[str]:
    for row in rows(found, "limits"):
        what = text(row, "what")
        named = "the step" if what == "step" else "any op" if what == "op" else label(what)
        allowed = f"{named}: at most {quantities.percent(number(row, 'limit'))} longer"
        by = rows(row, "by")
        if not by:
            yield from page.wrap(f"{allowed}: kept", indent=MARGIN, first="")
            continue
        over = ", ".join(f"{text(one, 'name')} {_relative(one)}" for one in by[:3])
        more = f" and {len(by) - 3:,} more" if len(by) > 3 else ""
        for line in page.wrap(f"{allowed}: exceeded, {over}{more}", indent=MARGIN, first=""):
            yield page.paint(line, *_WORSE)


def _warnings(page: Page, found: Fields) -> Iterator[str]:
    for row in rows(found, "warnings"):
        for i, line in enumerate(page.wrap(f"warning: {text(row, 'message')}", indent=MARGIN, first="")):
            yield page.paint("warning", *_WARNING) + line[len("warning") :] if i == 0 else line
