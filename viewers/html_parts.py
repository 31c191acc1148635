"""The pieces that every section of the report is built from: a section, a table, a bar of classes, a colour swatch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xprof_py.viewers.class_words import is_class, label
from xprof_py.viewers.figures import ClassFigure
from xprof_py.viewers.markup import Html, tag


@dataclass(frozen=True)
class Column:
    """A table's column. ``kind``: "text", "name" (unbroken), "number" (to the right) or "bar"; ``hint`` explains it."""

    title: str
    kind: str = "text"
    hint: str = ""


def section(anchor: str, title: str, *body: object, lead: object = "") -> Html:
    """One section with its heading; ``lead`` is a sentence below it. Without a body the section is left out."""
    shown = [part for part in body if part not in ("", None)]
    if not shown:
        return Html("")
    opening = tag("p", lead, class_="lead") if lead else ""
    return tag(
        "section", tag("h2", title, id=f"{anchor}-title"), opening, *shown, id=anchor, aria_labelledby=f"{anchor}-title"
    )


def table(caption: str, columns: Sequence[Column], body: Iterable[Sequence[object]]) -> Html:
    """A table in a box that scrolls sideways by itself, so that the page never does. Empty without rows."""
    lines = [
        tag(
            "tr",
            *(
                tag("th" if i == 0 else "td", cell, class_=columns[i].kind, scope="row" if i == 0 else None)
                for i, cell in enumerate(row)
            ),
        )
        for row in body
    ]
    if not lines:
        return Html("")
    head = tag("tr", *(tag("th", c.title, scope="col", class_=c.kind, title=c.hint or None) for c in columns))
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *lines))
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def swatch(name: str) -> Html:
    """The colour of a class, as a small square; the word beside it says the same."""
    return tag("i", class_=f"swatch c-{name}" if is_class(name) else "swatch", aria_hidden="true")


def class_name(name: str) -> Html:
    """A class with its colour."""
    return tag("span", swatch(name), label(name), class_="class") if name else Html("")


def class_bar(figures: Sequence[ClassFigure], description: str, height: int = 28) -> Html:
    """The classes of one breakdown side by side, as wide as their shares; ``description`` says it in words."""
    left = 0.0
    pieces = []
    for figure in figures:
        width = 100 * (figure.share or 0.0)
        if width <= 0 or not is_class(figure.name):
            continue
        pieces.append(
            tag("rect", x=f"{left:.3f}%", y="0", width=f"{width:.3f}%", height="100%", class_=f"fill f-{figure.name}")
        )
        left += width
    return tag("svg", *pieces, class_="classbar", width="100%", height=str(height), role="img", aria_label=description)


def single_bar(name: str, share: float | None) -> Html:
    """One class's share as a bar beside its numbers; decoration, the numbers are in the row."""
    width = 100 * min(max(share or 0.0, 0.0), 1.0)
    kind = f"fill f-{name}" if is_class(name) else "fill"
    bar = tag("rect", x="0", y="0", width=f"{width:.2f}%", height="100%", class_=kind)
    return tag("svg", bar, width="100%", height="12", class_="rowbar", aria_hidden="true")


def pairs(entries: Iterable[tuple[object, object]], kind: str = "facts") -> Html:
    """Terms and their values. Empty without entries."""
    lines = [tag("div", tag("dt", term), tag("dd", value)) for term, value in entries]
    return tag("dl", *lines, class_=kind) if lines else Html("")


def more(summary_line: object, *body: object) -> Html:
    """A part that opens on demand."""
    return tag("details", tag("summary", summary_line), *body)


def described(figures: Sequence[ClassFigure], percent: Sequence[str]) -> str:
    """The classes and shares of a bar as a sentence."""
    named = [f"{label(f.name)} {p}" for f, p in zip(figures, percent, strict=True) if f.share]
    return ", ".join(named) or "nothing"
