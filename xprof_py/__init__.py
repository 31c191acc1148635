"""Where did the step time go, and what to do about it: annotations and captures for training programs.

Importing this starts nothing and imports the standard library and the C core only; ``load`` brings the analysis in on
first use.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xprof_py import _native
from xprof_py.annotations import checkpoint, counter, input_wait, mark, scope, set_filter, step, trace, wrap_input

if TYPE_CHECKING:
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
    """What not every program needs, on first use: commands capture nothing, a training loads no analysis."""
    if name == "load":
        return import_module("xprof_py._facade").load
    if name == "capture":
        return import_module("xprof_py.session").capture
    if name == "flight_recorder":
        return import_module("xprof_py.flight").flight_recorder
    if name == "__version__":
        return import_module("importlib.metadata").version("xprof_py")
    raise AttributeError(f"module 'xprof_py' has no attribute {name!r}")
