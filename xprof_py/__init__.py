"""Where did the step time go, and what to do about it: annotations and captures for training programs.

Importing this starts nothing and imports the standard library and the C core only; ``load`` brings the analysis in on
first use.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from xprof_py import _native
from xprof_py.annotations import checkpoint, counter, input_wait, mark, scope, set_filter, step, trace, wrap_input
from xprof_py.flight import flight_recorder
from xprof_py.session import capture

__all__ = [
    "__version__",
    "capture",
    "checkpoint",
    "counter",
    "flight_recorder",
    "get_include",
    "input_wait",
    "load",
    "mark",
    "scope",
    "set_filter",
    "step",
    "trace",
    "wrap_input",
]


def get_include() -> str:
    """The folder that a C or C++ compiler needs (``-I``) for ``#include "xprof_py/trace.h"``."""
    return str(Path(_native.__file__).parent / "include")


def __getattr__(name: str) -> Any:
    """``load`` and ``__version__``, on first use: neither is needed in a training program."""
    if name == "load":
        return import_module("xprof_py._facade").load
    if name == "__version__":
        return import_module("importlib.metadata").version("xprof_py")
    raise AttributeError(f"module 'xprof_py' has no attribute {name!r}")
