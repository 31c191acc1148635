"""What the terminal pages are made of: lines in groups that fit a width, in the characters and colours that are there.

Names from a trace are shown without control characters: an op name cannot move the cursor or change colours.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from xprof_py.viewers.markup import printable

MARGIN: Final = "  "
_NARROWEST: Final = 40
_WIDEST: Final = 110

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
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_ASCII: Final = str.maketrans(
    {"·": "-", "–": "-", "—": "-", "−": "-", "…": "~", "×": "x", "µ": "u", "±": "+", "“": '"', "”": '"', "’": "'"}
)


def _has_blocks(encoding: str) -> bool:
    try:
        f"{_EIGHTHS}·…–×µ".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class Page:
    """Lines in groups, an empty line between groups.

    ``color``: whether to use ANSI colours. ``width``: columns; no line is longer, except for a width below 40, and more
    than 110 are not used. ``encoding``: of the output; where it has no block characters, bars and punctuation are
    ASCII, and other characters that it lacks are escaped: the result can always be encoded.
    """

    def __init__(self, *, color: bool, width: int, encoding: str) -> None:
        self.color = color
        self.width = min(max(width, _NARROWEST), _WIDEST)
        self.unicode = _has_blocks(encoding)
        self._encoding = encoding
        self._groups: list[list[str]] = []

    def add(self, lines: Iterable[str]) -> None:
        """One more group; an empty one is left out."""
        group = list(lines)
        if group:
            self._groups.append(group)

    def finished(self) -> str:
        """The text, which ends with a newline."""
        whole = "\n\n".join("\n".join(line.rstrip() for line in group) for group in self._groups) + "\n"
        return whole.encode(self._encoding, "backslashreplace").decode(self._encoding)

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

    def aligned(self, lines: Sequence[Sequence[str]]) -> list[str]:
        """``lines`` of cells as a table: the first column to the left, the others to the right.

        What does not fit the width is left out from the right, a column as a whole.
        """
        plain = [[self.plain(cell) for cell in line] for line in lines]
        widths = [max(columns_of(line[i]) for line in plain) for i in range(len(plain[0]))] if plain else []
        out = [MARGIN + self.fit(line[0], min(widths[0], self.width - len(MARGIN))) for line in plain]
        for i, columns in enumerate(widths[1:], 1):
            if columns == 0:
                continue
            if columns_of(out[0]) + 2 + columns > self.width:
                break
            out = [
                f"{so_far}  {' ' * (columns - columns_of(line[i]))}{line[i]}"
                for so_far, line in zip(out, plain, strict=True)
            ]
        return [line.rstrip() for line in out]

    def bar(self, share: float, columns: int) -> str:
        """A bar of ``share`` of ``columns``; anything above nothing shows at least its thinnest piece."""
        share = min(max(share, 0.0), 1.0)
        if not self.unicode:
            return "#" * max(round(share * columns), 1 if share > 0 else 0)
        eighths = max(round(share * columns * 8), 1 if share > 0 else 0)
        return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


_FIRST_UNEVEN = "\u0300"
"""The first character that does not take one column: combining marks begin here, wide characters later."""


def columns_of(value: str) -> int:
    """How many terminal columns ``value`` takes: wide characters two, combining ones none."""
    if max(value, default="") < _FIRST_UNEVEN:
        return len(value)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in ("W", "F") else 1 for c in value
    )
