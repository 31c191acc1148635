"""Reading a summary that may lack fields, hold nulls, or come from another version: never an exception, never a guess.

Every function takes the mapping and a key and returns the value only if it has the wanted type; otherwise the neutral
value of that type. A viewer then shows what is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]


def mapping(source: Fields, key: str) -> Fields:
    """The mapping at ``key``, or an empty one."""
    value = source.get(key)
    return value if isinstance(value, Mapping) else {}


def rows(source: Fields, key: str) -> list[Fields]:
    """The mappings in the list at ``key``, in order; anything else in the list is left out."""
    value = source.get(key)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list | tuple) else []


def texts(source: Fields, key: str) -> list[str]:
    """The entries of the list at ``key`` as text; nulls are left out."""
    value = source.get(key)
    return [str(entry) for entry in value if entry is not None] if isinstance(value, list | tuple) else []


def number(source: Fields, key: str) -> float | None:
    """The finite number at ``key``, or None. A bool is not a number."""
    value = source.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def text(source: Fields, key: str) -> str:
    """The text at ``key``; a number there is written out; anything else is the empty string."""
    value = source.get(key)
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return str(value)
