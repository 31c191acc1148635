"""The page of a fleet: what `fleet report --html` writes, one file like a run's report, without any script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from xprof_py.postprocess.schema import CLASSES
from xprof_py.viewers import quantities
from xprof_py.viewers.class_words import MEANINGS, label
from xprof_py.viewers.fields import Fields, mapping, number, rows, text
from xprof_py.viewers.figures import ClassFigure
from xprof_py.viewers.html_parts import Column, class_bar, class_name, described, more, section, single_bar, table
from xprof_py.viewers.html_report import whole_page
from xprof_py.viewers.markup import Html, join, tag

RUNS_DRAWN: Final = 240
"""The newest runs of a job that its trend shows: a bar of each is then still four pixels wide."""
_RUNS_LISTED = 12
_WIDEST, _DAYS_APART = 28, 180
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 960, 210, 74, 26, 24


def render_fleet_page(found: Fields) -> str:
    """The report of a store as the text of one HTML file.

    ``found``: what rules.fleet_report returned. The same input gives the same text.
    """
    # What got slower first; the rest by name, as they come.
    jobs = sorted(rows(found, "jobs"), key=lambda job: not _slower(job))
    head = headline(found)
    sections = [
        _causes(found),
        *(_job(number, job) for number, job in enumerate(jobs)),
        _stragglers(found),
        _failed(found),
        _method(found),
    ]
    counted = " · ".join(
        [quantities.plural(len(jobs), "job"), quantities.plural(sum(len(rows(job, "runs")) for job in jobs), "run")]
    )
    top = tag(
        "header",
        tag("p", tag("span", counted), class_="origin"),
        tag("h1", head, class_="long" if len(head) > 90 else None),
        class_="top",
    )
    return whole_page(title=f"{counted} · fleet · xprof_py", top=top, sections=join(sections))


def headline(found: Fields) -> str:
    """The largest regression in a sentence, or that there is none."""
    slower = [(job, change) for job in rows(found, "jobs") for change in _slower(job)]
    if not slower:
        fewest = number(mapping(found, "method"), "fewest_runs") or 0
        told = any(len(rows(job, "runs")) >= fewest for job in rows(found, "jobs"))
        return "No job got slower by more than chance." if told else "Too few runs of any job to tell a change."
    job, change = max(slower, key=lambda pair: number(pair[1], "change") or 0.0)
    others = f", and {quantities.plural(len(slower) - 1, 'other regression')}" if len(slower) > 1 else ""
    return (
        f"{text(job, 'job')} got slower at {text(change, 'run')}: {_signed(number(change, 'change'))} a step{others}."
    )


def _slower(job: Fields) -> list[Fields]:
    return [change for change in rows(job, "changes") if text(change, "kind") == "regression"]


def _causes(found: Fields) -> Html:
    causes = rows(found, "causes")
    figures = [
        ClassFigure(text(row, "class"), number(row, "share"), number(row, "device_s"), None, None) for row in causes
    ]
    body = [
        (
            class_name(text(row, "class")),
            single_bar(text(row, "class"), number(row, "share")),
            quantities.percent(number(row, "share")),
            quantities.duration(number(row, "device_s")),
            ", ".join(
                f"{text(job, 'job')} {quantities.duration(number(job, 'device_s'))}" for job in rows(row, "jobs")
            ),
        )
        for row in causes
    ]
    columns = [
        Column("where", "name"),
        Column("", "bar"),
        Column("share", "number"),
        Column("device time", "number", "exclusive, on all lanes of all runs"),
        Column("most in"),
    ]
    bar = class_bar(figures, described(figures, [quantities.percent(f.share) for f in figures])) if figures else ""
    lead = "Exclusive time on all lanes of all runs: a lane-second counts the same in every job."
    return section("causes", "Device time of the fleet", bar, table("Device time by class", columns, body), lead=lead)


def _job(place: int, job: Fields) -> Html:
    runs, changes = rows(job, "runs"), rows(job, "changes")
    told = [tag("p", sentence) for sentence in map(_change, changes)]
    note = tag("p", f"{text(job, 'note')}.", class_="quiet") if job.get("note") else ""
    listed = _run_table(text(job, "job"), runs[: -_RUNS_LISTED - 1 : -1])
    rest = runs[:-_RUNS_LISTED] if len(runs) > _RUNS_LISTED else []
    earlier = more(quantities.plural(len(rest), "earlier run"), _run_table("earlier", rest[::-1])) if rest else ""
    return section(f"job-{place}", text(job, "job"), *told, _trend(job, runs, changes), note, listed, earlier)


def _change(change: Fields) -> str:
    moved = ", ".join(
        f"{label(text(row, 'class'))} {_signed_ms(number(row, 'change_ms'))}" for row in rows(change, "classes")
    )
    before, after = (quantities.milliseconds(number(change, name)) for name in ("before_ms", "after_ms"))
    return (
        f"{text(change, 'kind').capitalize()} at {text(change, 'run')} ({_day(change)}): {before} to {after} a step, "
        f"{_signed(number(change, 'change'))} (p {number(change, 'p') or 0.0:.3f}): {moved}."
    )


def _trend(job: Fields, runs: Sequence[Fields], changes: Sequence[Fields]) -> Html:
    """A bar per run, as high as its step and made of its classes; runs without steps leave their place empty."""
    drawn = runs[-RUNS_DRAWN:]
    times = [number(run, "step_ms") for run in drawn]
    highest = max((time for time in times if time is not None), default=0.0)
    if highest <= 0:
        return Html("")
    unit = _nice(highest / 3)
    scale = (_HEIGHT - _TOP - _BOTTOM) / highest
    wide = min((_WIDTH - _LEFT) / len(drawn), _WIDEST)
    base = _HEIGHT - _BOTTOM
    parts: list[Html] = []
    for step in range(int(highest / unit) + 1):
        y = base - step * unit * scale
        parts.append(tag("line", x1=_LEFT, x2=_WIDTH, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid"))
        said = quantities.milliseconds(step * unit) if step else "0"
        parts.append(tag("text", said, x=_LEFT - 8, y=f"{y + 4:.1f}", text_anchor="end"))
    for place, (run, time) in enumerate(zip(drawn, times, strict=True)):
        if time is not None:
            parts.append(_bar(run, time, _LEFT + place * wide, max(wide * 0.86, wide - 2), base, scale))
    at = {text(run, "run"): place for place, run in enumerate(drawn)}
    for change in changes:
        if (place_of := at.get(text(change, "run"))) is not None:
            x = f"{_LEFT + place_of * wide - 1:.1f}"
            parts.append(tag("line", x1=x, x2=x, y1=_TOP - 6, y2=base, class_="change"))
            anchor = "end" if place_of > len(drawn) / 2 else "start"
            said = f"{_signed(number(change, 'change'))} at {text(change, 'run')}"
            parts.append(tag("text", said, x=x, y=_TOP - 12, text_anchor=anchor, class_="change"))
    parts.append(tag("text", _day(drawn[0]), x=_LEFT, y=_HEIGHT - 6))
    if len(drawn) * wide >= _DAYS_APART:
        end = f"{_LEFT + len(drawn) * wide:.1f}"
        parts.append(tag("text", _day(drawn[-1]), x=end, y=_HEIGHT - 6, text_anchor="end"))
    description = f"Step time of {quantities.plural(len(drawn), 'run')} of {text(job, 'job')}, by class"
    chart = tag("svg", *parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", class_="trend", role="img", aria_label=description)
    left_out = len(runs) - len(drawn)
    said = tag("p", f"{quantities.plural(left_out, 'earlier run')} not drawn.", class_="quiet") if left_out else ""
    return join([chart, said])


def _bar(run: Fields, time_ms: float, x: float, width: float, base: float, scale: float) -> Html:
    shares = mapping(run, "shares")
    pieces, y = [], float(base)
    for name in CLASSES:
        height = time_ms * (number(shares, name) or 0.0) * scale
        if height <= 0:
            continue
        y -= height
        pieces.append(
            tag(
                "rect",
                x=f"{x:.2f}",
                y=f"{y:.2f}",
                width=f"{width:.2f}",
                height=f"{height:.2f}",
                class_=f"fill f-{name}",
            )
        )
    said = f"{text(run, 'run')}, {_day(run)}: {quantities.milliseconds(time_ms)} a step, {_bottleneck(run)}"
    return tag("g", tag("title", said), *pieces)


def _run_table(caption: str, runs: Sequence[Fields]) -> Html:
    columns = [
        Column("run", "name"),
        Column("day", "name"),
        Column("step", "number", "median over hosts of their median steps"),
        Column("bottleneck", "name"),
        Column("where its step went", "bar wide"),
        Column("steps", "number"),
        Column("hosts", "number"),
    ]
    return table(f"Runs of {caption}", columns, map(_run_row, runs))


def _run_row(run: Fields) -> tuple[object, ...]:
    shares = mapping(run, "shares")
    figures = [ClassFigure(name, number(shares, name), None, None, None) for name in CLASSES if number(shares, name)]
    words = described(figures, [quantities.percent(f.share) for f in figures])
    return (
        text(run, "run"),
        _day(run),
        quantities.milliseconds(number(run, "step_ms")),
        class_name(text(run, "bottleneck")) or "no verdict",
        class_bar(figures, words, height=14) if figures else "no steps",
        quantities.whole(number(run, "steps")),
        quantities.whole(number(run, "hosts")),
    )


def _stragglers(found: Fields) -> Html:
    columns = [
        Column("host", "name"),
        Column("job"),
        Column("run", "name"),
        Column("later a step", "number"),
        Column("of the step", "number"),
        Column("in all", "number"),
    ]
    body = [
        (
            text(row, "host"),
            text(row, "job"),
            text(row, "run"),
            quantities.milliseconds(number(row, "lost_ms_per_step")),
            quantities.percent(number(row, "share")),
            quantities.duration(number(row, "lost_s")),
        )
        for row in rows(found, "stragglers")
    ]
    lead = "Hosts whose own time is longest beyond the median host's of their run: what the others wait for at most."
    return section("stragglers", "Stragglers", table("Stragglers", columns, body), lead=lead)


def _failed(found: Fields) -> Html:
    columns = [Column("run", "name"), Column("job"), Column("file"), Column("place"), Column("reason")]
    names = ("run", "job", "file", "place", "reason")
    body = [tuple(text(row, name) for name in names) for row in rows(found, "failed")]
    return section("failed", "Not analysed", table("Runs that could not be analysed", columns, body))


def _method(found: Fields) -> Html:
    method = mapping(found, "method")
    alpha, fewest = number(method, "alpha_per_job"), number(method, "fewest_runs")
    said = (
        f"A change: {text(method, 'changes')}, at most {quantities.percent(alpha)} of jobs without one show one; "
        f"from {quantities.whole(fewest)} runs on."
    )
    meanings = tag("ul", *(tag("li", class_name(name), f": {MEANINGS[name]}") for name in CLASSES), class_="key")
    return section("method", "How to read this", tag("p", said, class_="quiet"), meanings)


def _nice(value: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below ``value``."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value * (1 - 1e-9))


def _bottleneck(run: Fields) -> str:
    name = text(run, "bottleneck")
    return f"{label(name)} {quantities.percent(number(mapping(run, 'shares'), name))}" if name else "no verdict"


def _day(run: Fields) -> str:
    started_ns: Any = run.get("started_ns")
    return "unknown day" if started_ns is None else datetime.fromtimestamp(started_ns / 1e9, UTC).date().isoformat()


def _signed(share: float | None) -> str:
    return "" if share is None else ("+" if share >= 0 else "−") + quantities.percent(abs(share))


def _signed_ms(change_ms: float | None) -> str:
    change_ms = change_ms or 0.0
    return ("+" if change_ms > 0 else "−") + quantities.milliseconds(abs(change_ms))
