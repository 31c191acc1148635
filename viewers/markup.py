"""HTML that is escaped by construction: a plain string put into an element is text, only ``tag`` makes markup.

Trace files are other people's: op names, span names, paths and messages reach the page only through here.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Final

_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff]"
)
_VOID: Final = frozenset({"br", "col", "hr", "img", "input", "link", "meta", "rect", "use", "wbr"})


class Html(str):
    """Markup made by ``tag`` or ``join``; everything else is text."""

    __slots__ = ()


def printable(value: str) -> str:
    """``value`` without control characters, direction overrides and lone surrogates (each becomes U+FFFD)."""
    return _UNPRINTABLE.sub("\ufffd", value).encode("utf-8", "replace").decode("utf-8")


def escape(value: object) -> Html:
    """``value`` as text: what is Html already stays, everything else is escaped. None is the empty text."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(printable("" if value is None else str(value)), quote=True))


def join(parts: Iterable[object], between: str = "") -> Html:
    """The parts (an iterable of Html or text) after each other, with ``between`` as text between them."""
    separator = str(escape(between))
    return Html(separator.join(str(escape(part)) for part in parts))


def prose(value: str) -> Html:
    """A sentence in which `backticks` mark code."""
    pieces = value.split("`")
    if len(pieces) % 2 == 0:
        return escape(value)
    return join(tag("code", piece) if i % 2 else piece for i, piece in enumerate(pieces) if piece)


def tag(name: str, *children: object, **attributes: object) -> Html:
    """One element. ``class_`` and ``for_`` lose their underscore, other underscores become hyphens.

    An attribute that is None or False is left out, True is written without a value, anything else is escaped text.
    """
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        written.append(f" {attribute}" if value is True else f' {attribute}="{escape(str(value))}"')
    opening = f"<{name}{''.join(written)}>"
    if name in _VOID and not children:
        return Html(opening if name not in ("rect", "use") else opening[:-1] + "/>")
    return Html(f"{opening}{join(children)}</{name}>")
