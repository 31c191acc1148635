"""Numbers as people read them: three significant digits, the unit that fits, the same unit down a column."""

from __future__ import annotations

from collections.abc import Sequence

MISSING = "–"
"""Shown where a number is absent; a zero is written as 0."""

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def _rounded(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits - 1}e}")


def _plain(value: float, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits, never in exponent form, thousands separated."""
    value = _rounded(value, digits)
    if value == 0:
        return "0"
    whole_digits = len(str(int(abs(value)))) if abs(value) >= 1 else 1
    decimals = max(0, digits - whole_digits) if abs(value) >= 0.1 else digits
    return f"{value:,.{decimals}f}"


def duration(seconds: float | None) -> str:
    """``seconds`` in the unit that fits: "480 ns", "12.3 ms", "1.25 s", "3 min 20 s", "2 h 05 min"."""
    if seconds is None:
        return MISSING
    if seconds < 0:
        return "−" + duration(-seconds)
    if seconds >= 119.5:
        whole = round(seconds)
        minutes, rest = divmod(whole, 60)
        if minutes < 120:
            return f"{minutes} min {rest} s" if rest else f"{minutes} min"
        return f"{minutes // 60:,} h {minutes % 60:02d} min"
    for scale, unit in _UNITS:
        scaled = _rounded(seconds / scale)
        if scaled >= 1:
            return f"{_plain(scaled)} {unit}"
    return f"{_plain(seconds / 1e-9)} ns" if seconds else "0 s"


def milliseconds(value_ms: float | None) -> str:
    """A time given in milliseconds, in the unit that fits."""
    return MISSING if value_ms is None else duration(value_ms / 1e3)


def column(seconds: Sequence[float | None]) -> tuple[str, list[str]]:
    """One unit and one number of decimals for a whole column, so that its rows can be compared by eye.

    Returns the unit and the texts; the largest value gets three or four significant digits.
    """
    known = [abs(value) for value in seconds if value is not None]
    largest = max(known, default=0.0)
    scale, unit = next(((s, u) for s, u in _UNITS if largest >= s), _UNITS[-1] if largest else _UNITS[0])
    top = largest / scale
    decimals = 0 if top >= 1000 else 1 if top >= 100 else 2 if top >= 10 else 3
    least = 10.0**-decimals
    out = []
    for value in seconds:
        if value is None:
            out.append(MISSING)
        elif value == 0:
            out.append("0")
        elif 0 < value / scale < least / 2:
            out.append(f"<{least:.{decimals}f}")
        else:
            out.append(f"{value / scale:,.{decimals}f}")
    return unit, out


def percent(share: float | None, *, decimals: int = 1) -> str:
    """A share (0-1) in percent; what is not quite nothing or not quite everything says so."""
    if share is None:
        return MISSING
    if share == 0:
        return "0%"
    least = 10.0**-decimals
    value = 100 * share
    if 0 < value < least / 2:
        return f"<{least:.{decimals}f}%"
    if share < 1 and value > 100 - least / 2:
        return f">{100 - least:.{decimals}f}%"
    if share == 1:
        return "100%"
    return f"{value:,.{decimals}f}%"


def whole(value: float | None) -> str:
    """A count with its thousands separated."""
    return MISSING if value is None else f"{round(value):,}"


def plural(count: float | None, noun: str) -> str:
    """ "1 step", "40 steps"."""
    ending = "" if count is not None and round(count) == 1 else "s"
    return f"{whole(count)} {noun}{ending}"


def factor(ratio: float) -> str:
    """How many times faster: "2.6×"."""
    return f"{_plain(ratio, 2 if ratio < 100 else 3)}×"


def size(count: float | None) -> str:
    """Bytes in binary units."""
    if count is None:
        return MISSING
    for scale, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(count) >= scale:
            return f"{_plain(count / scale)} {unit}"
    return f"{count:,.0f} B"


def rate(bytes_per_s: float) -> str:
    """Bytes per second in decimal units, as links and memories are sold."""
    for scale, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_s >= scale:
            return f"{_plain(bytes_per_s / scale)} {unit}"
    return f"{_plain(bytes_per_s)} B/s"
