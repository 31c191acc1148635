"""Types of arguments that several commands take: what does not fit is wrong usage, said before anything runs."""

from __future__ import annotations

import argparse
from pathlib import Path


def named(text: str) -> str:
    """A path as text. An empty one would be the current folder, and is nearly always a variable that was not set."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path (is a variable not set?)")
    return text


def named_path(text: str) -> Path:
    """A path, not empty."""
    return Path(named(text))


def at_least_one(text: str) -> int:
    """A whole number from 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: wants a whole number, at least 1")
    return number
