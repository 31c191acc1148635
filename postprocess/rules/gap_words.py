"""A gap and its causes in words: gap, late launch, host span or frame, source line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xprof_py.postprocess.rules.wording import duration

WITHIN_RUN = "between two ops of one run"
"""The evidence that the join gives for a gap inside a run."""


def gap_text(gap: Mapping[str, Any], *, on_device: bool = True) -> str:
    """One gap of rules.explanation as a sentence without its causes.

    ``on_device``: False for a process without a device, whose windows are gaps of the host alone.
    """
    length = duration(gap["length_ms"] / 1e3)
    if not on_device:
        return f"{length} on the step's thread, without a device"
    after, launch = gap["after"], gap["launch"]
    head = f"{length} idle before {named(after['op'], after['source'])}" if after else f"{length} idle until the end"
    if gap["before"] and after and all(cause["evidence"] == WITHIN_RUN for cause in gap["causes"]):
        before = named(gap["before"]["op"], gap["before"]["source"])
        return f"{length} idle between {before} and {named(after['op'], after['source'])} of one run"
    if launch is None:
        return f"{head}: no launch is joined to it"
    program = named(launch["program"] or "a program that nothing names", launch["source"])
    if launch["late_ms"] <= 0:
        return f"{head}: {program} was launched in time"
    return f"{head}: {program} was launched {duration(launch['late_ms'] / 1e3)} late by thread `{launch['thread']}`"


def cause_text(cause: Mapping[str, Any], step: int) -> str:
    """What one cause of a gap was, with evidence and source line. ``step``: the number of the step explained."""
    evidence, function, source = cause["evidence"], cause["function"], cause["source"]
    kind = cause["cause"]
    if kind == "compiler":
        text = f"tracing and compiling {named(function or 'a function that nothing names', source)}"
    elif kind == "input":
        text = f"waiting for the next batch in {named(evidence, source)}"
    elif kind == "checkpoint":
        text = f"saving or restoring in {named(evidence, source)}"
    elif kind == "host":
        if function is None:
            text = f"the launching thread was busy in {named(evidence, source)}"
        else:
            text = f"dispatching {named(function, source)}"
            text += "" if function in evidence else f", in `{evidence}`"
    elif kind == "unknown" and cause["sampled"]:
        within = f" in `{cause['span']}`" if cause["span"] else ""
        text = f"the thread waited at {named(evidence, source)}{within}, and nothing says for what"
    elif kind == "unknown" and cause["event_ms"] is not None:
        text = f"only {named(evidence, source)} was open, which says nothing of what the thread did"
    else:
        text = str(evidence)
    other = cause["step"]
    return text if other is None or other == step else f"{text} (in step {other})"


def named(name: str, source: str | None) -> str:
    """A name of the trace, with its place in the source where it is known."""
    return f"`{name}` ({source})" if source else f"`{name}`"
