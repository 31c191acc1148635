"""What both viewers show of a summary: the headline and the classes, in the words and units that people read."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath

from xprof_py.postprocess.schema import CLASSES
from xprof_py.viewers import quantities
from xprof_py.viewers.class_words import label
from xprof_py.viewers.fields import Fields, mapping, number, rows, text, texts

LITTLE_EXPLAINED = 0.8
"""Below this share of explained step time the headline says that the rest of the page speaks for a part only."""

_SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class ClassFigure:
    """One class of the breakdown. Seconds are summed over the steps used; ``per_step_s`` is their mean over them."""

    name: str
    share: float | None
    exclusive_s: float | None
    total_s: float | None
    per_step_s: float | None


@dataclass(frozen=True)
class Headline:
    """The verdict in words. ``reason`` says why there is none, ``caveat`` what is lost beside it; ``bottleneck`` is a
    class name or empty."""

    sentence: str
    caveat: str
    advice: str
    reason: str
    bottleneck: str
    share: float | None
    step_ms: float | None
    without_ms: float | None
    without_why: str


def steps_used(summary: Fields) -> int | None:
    """How many steps the breakdown sums over: the steady ones, or all measured ones where there is no steady one."""
    steps = mapping(summary, "steps")
    phases = mapping(steps, "phases")
    if text(steps, "used").startswith("all"):
        counts = [number(phases, name) or 0 for name in phases if name != "unmeasured"]
        return round(sum(counts)) or None
    steady = number(phases, "steady")
    return round(steady) if steady else None


def class_figures(breakdown: Fields, used: int | None) -> list[ClassFigure]:
    """The classes of one breakdown (the job's or a lane's) in table order, those that are present.

    ``used``: the number of steps that it sums over, for the mean per step; None leaves that column empty. A share
    that is absent is taken from the seconds.
    """
    names = [name for name in CLASSES if name in breakdown] + [name for name in breakdown if name not in CLASSES]
    cells = [(name, mapping(breakdown, name)) for name in names]
    whole_s = sum(number(cell, "exclusive_s") or 0.0 for _, cell in cells)
    figures = []
    for name, cell in cells:
        exclusive_s = number(cell, "exclusive_s")
        share = number(cell, "share")
        if share is None and exclusive_s is not None and whole_s > 0:
            share = exclusive_s / whole_s
        per_step_s = exclusive_s / used if exclusive_s is not None and used else None
        figures.append(ClassFigure(name, share, exclusive_s, number(cell, "total_s"), per_step_s))
    return figures


def headline(summary: Fields) -> Headline:
    """The verdict of ``summary`` in one sentence, or what can be said where there is none."""
    step_ms = number(mapping(summary, "step_ms"), "median")
    verdict = summary.get("verdict")
    if isinstance(verdict, Mapping) and verdict:
        bottleneck = text(verdict, "bottleneck")
        share = number(verdict, "share")
        sentence = text(verdict, "sentence").strip()
        if not sentence:
            what = label(bottleneck) if bottleneck else "One cause"
            taken = f" takes {quantities.percent(share, decimals=0)} of a step." if share is not None else " leads."
            sentence = what[:1].upper() + what[1:] + taken
        now_ms = number(verdict, "step_ms")
        return Headline(
            sentence=sentence,
            caveat=text(verdict, "caveat").strip(),
            advice=text(verdict, "advice").strip(),
            reason="",
            bottleneck=bottleneck,
            share=share,
            step_ms=step_ms if now_ms is None else now_ms,
            without_ms=number(verdict, "step_ms_without"),
            without_why=text(verdict, "step_ms_without_why").strip(),
        )
    steps = mapping(summary, "steps")
    if not number(steps, "count"):
        sentence = "No verdict: the capture holds no steps."
    elif not mapping(summary, "breakdown"):
        sentence = "No verdict: no step could be measured."
    else:
        figures = class_figures(mapping(summary, "breakdown"), None)
        largest = max(figures, key=lambda figure: figure.share or 0.0)
        sentence = "No verdict: no step could be measured."
        if largest.share:
            sentence = (
                f"No verdict. The largest part of a step is {label(largest.name)}: "
                f"{quantities.percent(largest.share, decimals=0)}."
            )
    found = diagnostics(summary)
    about_steps = [row for row in found if "step" in text(row, "code") and text(row, "message")]
    serious = [row for row in found if text(row, "severity") in ("error", "warning") and text(row, "message")]
    reason = text((about_steps or serious)[0], "message") if about_steps or serious else ""
    return Headline(sentence, "", "", reason, "", None, step_ms, None, "")


def diagnostics(summary: Fields) -> list[Fields]:
    """The diagnostics, errors first, then warnings, then notes; within one severity in the order of the summary."""

    def rank(row: Fields) -> int:
        severity = text(row, "severity")
        return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)

    return sorted(rows(summary, "diagnostics"), key=rank)


def largest_class(by_class: Fields) -> tuple[str, float | None]:
    """The class with most of ``by_class`` (class -> seconds or {exclusive_s}) and its share; ("", None) if empty."""
    seconds = {}
    for name in by_class:
        value = number(by_class, name)
        if value is None:
            value = number(mapping(by_class, name), "exclusive_s")
        if value is not None and value > 0:
            seconds[name] = value
    if not seconds:
        return "", None
    name = max(seconds, key=lambda key: seconds[key])
    return name, seconds[name] / sum(seconds.values())


def command_line(capture: Fields) -> str:
    """The captured command as one would type it; of the interpreter's path only its name."""
    words = texts(capture, "command")
    if not words:
        return text(capture, "command")
    return shlex.join([PurePath(words[0]).name, *words[1:]])


def started(capture: Fields) -> str:
    """When the capture started, in UTC to the second; empty where it is not known."""
    # Not through `number`: a double holds a time since 1970 only to 256 ns.
    start_ns = capture.get("started_ns")
    if not isinstance(start_ns, int):
        return text(capture, "started_utc").replace("T", " ").replace("Z", " UTC")
    try:
        return datetime.fromtimestamp(start_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return ""


def evidence_place(row: Fields) -> str:
    """Where an evidence row points: source line, function, span and op, those that its text does not name already."""
    said = text(row, "text")
    parts: list[str] = []
    for key in ("source", "function", "span", "op"):
        value = text(row, key)
        if value and value not in parts and value not in said:
            parts.append(value)
    return " · ".join(parts)


def outside_lines(summary: Fields) -> list[tuple[str, str]]:
    """One line for each part of the capture that the shares leave out: its name and what it cost."""
    lines = []
    for name, value in mapping(summary, "outside_steady").items():
        if not isinstance(value, Mapping):
            continue
        total_s = number(value, "total_s")
        count = number(value, "steps")
        if not total_s and not count:
            continue
        parts = []
        if count is not None:
            parts.append(quantities.plural(count, "step"))
        if total_s is not None:
            parts.append(quantities.duration(total_s))
        largest, share = largest_class(mapping(value, "by_class"))
        if largest:
            parts.append(f"mostly {label(largest)} ({quantities.percent(share, decimals=0)})")
        lines.append((name.replace("_", " "), " · ".join(parts)))
    return lines


def memory_lead(memory: Fields) -> str:
    """What the peak of device memory is, where it was seen, and at which op, in a sentence or two; "" where unknown."""
    peak = number(memory, "peak_bytes")
    if peak is None:
        return ""
    program, at = text(memory, "program"), mapping(memory, "at")
    parts = mapping(memory, "parts")
    held = number(parts, "held")
    said = f"{quantities.size(peak)} at the peak"
    if text(memory, "basis") == "allocator":
        said += f", as the allocator {text(memory, 'device')} reported it."
        if program:
            said += f" The largest program, {program}, holds {quantities.size(held)} while it runs"
    else:
        said += f": what the largest program, {program}, holds while it runs; arrays outside it are not known"
    if not program:
        return said
    place = text(at, "op_name") or text(at, "op")
    source = text(at, "source")
    if not place or (number(parts, "temporary") or 0) < 0.01 * (held or 0):
        # What is held all along says more than the op at which a few bytes are added.
        return f"{said}."
    return f"{said}. Most is in use at {place}{f' ({PurePath(source).name})' if source else ''}."


def excess_sentence(compiled_code: Fields) -> str:
    """What `compiled_code` says of time beyond the roofline; "" where nothing is known."""
    excess_s, share = number(compiled_code, "excess_s"), number(compiled_code, "excess_share")
    if excess_s is None:
        return ""
    of = f", {quantities.percent(share)} of the step time" if share is not None else ""
    said = f"Ops took {quantities.duration(excess_s)} longer than the hardware needs at the least{of}."
    unknown_s = number(compiled_code, "excess_unknown_s")
    if unknown_s:
        said += f" Of {quantities.duration(unknown_s)} more it is not known what they need."
    return said


def finding_name(row: Fields) -> str:
    """What a finding is, and of which op."""
    return " ".join(part for part in (text(row, "what"), text(row, "op")) if part)


def transfer_name(row: Fields) -> str:
    """The kind of a row of `communication`, and how many take part."""
    participants = number(row, "participants")
    return text(row, "kind") + (f" of {quantities.whole(participants)}" if participants is not None else "")
