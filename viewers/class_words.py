"""How the classes of the breakdown and the phases of steps are called on screen, and what each means in a line."""

from __future__ import annotations

from typing import Final

from xprof_py.postprocess.rules.wording import CLASS_WORDS
from xprof_py.postprocess.schema import CLASSES

LABELS: Final = CLASS_WORDS
"""Class -> the words on screen."""

MEANINGS: Final = {
    "compute": "the device computes",
    "memory": "the device computes, limited by its memory bandwidth",
    "collective": "devices exchange results, or wait for each other to do so",
    "host_device": "copies between host and device",
    "compiler": "the device idles while the host traces, lowers or compiles",
    "input": "the device idles while the host waits for the next batch",
    "checkpoint": "the device idles while the host saves or restores",
    "host": "the device idles while the host is busy in Python or in dispatch",
    "device_wait": "launched in time: the device waits for itself, another stream, a peer or its queue",
    "no_work": "serving: there was no request",
    "unknown": "the device idles and nothing recorded says why",
}
"""Class -> what it means, one line."""

PHASE_MEANINGS: Final = {
    "warmup": "first run of a program: its compile lies in the capture",
    "steady": "counted in the shares",
    "outlier": "far longer than the others, mostly for unknown reasons",
    "partial": "cut by an edge of the capture",
    "unmeasured": "no device work could be joined to it",
}
"""Phase of a step -> what it means, one line."""

PHASES: Final = tuple(PHASE_MEANINGS)


def label(name: str) -> str:
    """The words for a class; a class of a later version shows under its own name."""
    return LABELS.get(name, name.replace("_", " "))


def is_class(name: str) -> bool:
    """Whether ``name`` is one of schema.CLASSES, and so has a colour."""
    return name in CLASSES
