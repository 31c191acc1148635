"""The sections of the report below the chart, one function each; a section with nothing to show is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xprof_py.viewers import quantities
from xprof_py.viewers.class_words import MEANINGS, PHASE_MEANINGS, label
from xprof_py.viewers.fields import Fields, mapping, number, rows, text, texts
from xprof_py.viewers.figures import class_figures, command_line, diagnostics, outside_lines, started, steps_used
from xprof_py.viewers.html_parts import (
    Column,
    class_bar,
    class_name,
    described,
    more,
    pairs,
    section,
    single_bar,
    table,
)
from xprof_py.viewers.markup import Html, escape, prose, tag

_LANES_SHOWN = 64
_ROWS_SHOWN = 10
_LONGEST_SOURCE = 44


def breakdown(summary: Fields) -> Html:
    """Exclusive and total time per class over the steps used."""
    figures = class_figures(mapping(summary, "breakdown"), steps_used(summary))
    shown = [f for f in figures if f.exclusive_s or f.total_s]
    absent = [label(f.name) for f in figures if not (f.exclusive_s or f.total_s)]
    step_unit, per_step = quantities.column([f.per_step_s for f in shown])
    unit, exclusive = quantities.column([f.exclusive_s for f in shown])
    total_unit, total = quantities.column([f.total_s for f in shown])
    body = [
        (
            tag("span", class_name(f.name), tag("small", MEANINGS.get(f.name, ""))),
            single_bar(f.name, f.share),
            quantities.percent(f.share),
            per_step[i],
            exclusive[i],
            total[i],
        )
        for i, f in enumerate(shown)
    ]
    columns = [
        Column("Class"),
        Column("", "bar"),
        Column("Share", "number"),
        Column(f"A step ({step_unit})", "number", "exclusive time, mean over the steps counted"),
        Column(f"Exclusive ({unit})", "number", "time that this class won; the classes sum to the step time"),
        Column(f"Total ({total_unit})", "number", "with the time hidden behind another class"),
    ]
    none = tag("p", "No time in: ", ", ".join(absent), ".", class_="quiet") if absent and shown else ""
    steps = mapping(summary, "steps")
    kind = "all measured steps" if text(steps, "used").startswith("all") else "the steady steps"
    used = steps_used(summary)
    over = f"{kind} ({quantities.whole(used)})" if used is not None else kind
    lead = f"Over {over}, mean over lanes. Total minus exclusive is the time hidden behind other work."
    return section("classes", "Where the step goes", table("Classes of step time", columns, body), none, lead=lead)


def lanes(summary: Fields) -> Html:
    """The raw view: one bar per lane. Left out where there is one lane."""
    found = rows(summary, "lanes")
    if len(found) < 2:
        return Html("")
    body = []
    for row in found[:_LANES_SHOWN]:
        figures = [f for f in class_figures(mapping(row, "breakdown"), None) if f.share]
        percents = [quantities.percent(f.share) for f in figures]
        name = f"{text(row, 'host')} · lane {text(row, 'lane')}"
        largest = max(figures, key=lambda f: f.share or 0.0, default=None)
        body.append(
            (
                tag("span", name, tag("small", text(row, "device"))),
                class_bar(figures, f"{name}: {described(figures, percents)}", 16),
                tag("span", class_name(largest.name), " ", quantities.percent(largest.share)) if largest else "",
            )
        )
    rest = len(found) - len(body)
    note = tag("p", f"{rest:,} more lanes are in summary.json.", class_="quiet") if rest else ""
    columns = [Column("Lane"), Column("", "bar wide"), Column("Largest class")]
    lead = "As each lane saw it. A lane that waits in a collective for a slower one shows the wait, not its cause."
    return section("lanes", "Lanes", table("Step time by lane", columns, body), note, lead=lead)


def top_ops(summary: Fields) -> Html:
    """The ops with most device time, with their source lines."""
    found = rows(summary, "top_ops")
    unit, totals = quantities.column([number(row, "total_s") for row in found])
    with_roof = any(number(row, "efficiency") is not None for row in found)
    body = []
    for row, total in zip(found, totals, strict=True):
        mean_us = number(row, "mean_us")
        details = " · ".join(part for part in (middle_cut(text(row, "op_name"), 72), text(row, "program")) if part)
        source = text(row, "source")
        body.append(
            (
                tag(
                    "span",
                    tag("code", middle_cut(text(row, "op"), 60), title=text(row, "op")),
                    tag("small", details, title=text(row, "op_name") or None),
                ),
                class_name(text(row, "class")),
                tag("code", end_of_path(source), title=source)
                if source
                else tag("span", quantities.MISSING, class_="quiet"),
                quantities.percent(number(row, "share")),
                total,
                quantities.whole(number(row, "count")),
                quantities.duration(None if mean_us is None else mean_us / 1e6),
                *((_of_roof(row),) if with_roof else ()),
            )
        )
    columns = [
        Column("Op"),
        Column("Class"),
        Column("Source", "name"),
        Column("Share", "number", "of the step time"),
        Column(f"Total ({unit})", "number"),
        Column("Runs", "number"),
        Column("Mean", "number"),
        *(
            (Column("Of roof", "number", "the least possible time over the mean, and what bounds it"),)
            if with_roof
            else ()
        ),
    ]
    return section("ops", "Ops with most device time", first_rows("Ops with most device time", columns, body))


def _of_roof(row: Fields) -> str:
    """How close an op came to its roof, and which one that is."""
    shown = quantities.percent(number(row, "efficiency"))
    return f"{shown} {text(row, 'bound')}".rstrip()


def middle_cut(name: str, longest: int) -> str:
    """``name`` in ``longest`` characters: an op's name tells most at its two ends."""
    if len(name) <= longest:
        return name
    end = longest * 2 // 3
    return f"{name[: longest - end - 1]}…{name[-end:]}"


def end_of_path(source: str) -> str:
    """The last parts of a path, those that tell two files apart; the whole is the element's title."""
    if len(source) <= _LONGEST_SOURCE or "/" not in source:
        return middle_cut(source, _LONGEST_SOURCE)
    parts = source.split("/")
    shown = parts.pop()
    while parts and len(parts[-1]) + len(shown) + 3 <= _LONGEST_SOURCE:
        shown = f"{parts.pop()}/{shown}"
    return middle_cut(f"…/{shown}", _LONGEST_SOURCE)


def first_rows(caption: str, columns: Sequence[Column], body: Sequence[Sequence[object]]) -> Html:
    """A table of the first rows, the others behind a fold."""
    first = table(caption, columns, body[:_ROWS_SHOWN])
    rest = body[_ROWS_SHOWN:]
    return Html(first + more(f"{len(rest):,} more", table(f"{caption}, continued", columns, rest))) if rest else first


def slowest_steps(summary: Fields) -> Html:
    """The slowest steps and what most of each was."""
    several = len({text(row, "host") for row in rows(summary, "slowest_steps")}) > 1
    body = []
    for row in rows(summary, "slowest_steps"):
        step = " ".join(part for part in (text(row, "name"), text(row, "number")) if part)
        host = text(row, "host") if several else ""
        body.append(
            (
                tag("span", step, tag("small", host) if host else ""),
                quantities.milliseconds(number(row, "ms")),
                class_name(text(row, "largest_class")),
                tag("span", text(row, "phase"), tag("small", text(row, "why"))),
            )
        )
    columns = [Column("Step", "name"), Column("Time", "number"), Column("Largest class"), Column("Phase")]
    return section("slowest", "Slowest steps", first_rows("Slowest steps", columns, body))


def compiles(summary: Fields) -> Html:
    """What was compiled, and which steps paid for it."""
    found = mapping(summary, "compiles")
    count = number(found, "count")
    if not count:
        return Html("")
    functions = [
        (
            tag("code", text(row, "function")),
            quantities.whole(number(row, "count")),
            quantities.duration(number(row, "total_s")),
        )
        for row in rows(found, "by_function")
    ]
    during = [
        (
            f"step {text(row, 'step')}",
            tag("code", text(row, "function")),
            quantities.duration(number(row, "seconds")),
        )
        for row in rows(found, "during_steps")
    ]
    again = [
        (
            f"step {text(row, 'step')}",
            tag("span", tag("code", text(row, "function")), tag("small", text(row, "source"))),
            prose(text(row, "text")),
            quantities.duration(number(row, "seconds")),
        )
        for row in rows(found, "recompiles")
    ]
    again_columns = [Column("Step", "name"), Column("Function"), Column("What changed"), Column("Time", "number")]
    lead = f"{quantities.plural(count, 'compile')}, {quantities.duration(number(found, 'total_s'))} in all."
    function_columns = [Column("Function"), Column("Compiles", "number"), Column("Time", "number")]
    step_columns = [Column("Step"), Column("Function"), Column("Time", "number")]
    return section(
        "compiles",
        "Compiles",
        first_rows("Compiles by function", function_columns, functions),
        first_rows("Compiled again, and why", again_columns, again),
        first_rows("Compiles during steps", step_columns, during),
        lead=lead,
    )


def outside_steady(summary: Fields) -> Html:
    """One line for each part of the capture that the shares leave out, and the steps that a host lacks."""
    entries: list[tuple[object, object]] = []
    for name, line in outside_lines(summary):
        entries.append((tag("span", name, tag("small", PHASE_MEANINGS.get(name, _EDGES.get(name, "")))), line))
    missing = rows(mapping(summary, "steps"), "missing")
    entries += [
        (f"step {text(row, 'step')} missing", " · ".join(filter(None, (text(row, "host"), text(row, "why")))))
        for row in missing[:_ROWS_SHOWN]
    ]
    if len(missing) > _ROWS_SHOWN:
        entries.append(("", f"{len(missing) - _ROWS_SHOWN:,} more missing steps are in summary.json"))
    unmeasured = number(mapping(mapping(summary, "steps"), "phases"), "unmeasured")
    if unmeasured and not any(name == "unmeasured" for name, _ in outside_lines(summary)):
        entries.append(
            (
                tag("span", "unmeasured", tag("small", PHASE_MEANINGS["unmeasured"])),
                quantities.plural(unmeasured, "step"),
            )
        )
    return section("outside", "Left out of the shares", pairs(entries, "lines"))


_EDGES = {"head": "from the start of the capture to the first step", "tail": "after the last step"}


def unknown(summary: Fields) -> Html:
    """Time that nothing explains, with the reason and the spans open at the time."""
    body = []
    for row in rows(summary, "unknown"):
        spans = texts(row, "spans")
        named = tag(
            "span", *(escape(", ") if i % 2 else tag("code", spans[i // 2]) for i in range(2 * min(len(spans), 8) - 1))
        )
        rest = f" and {len(spans) - 8:,} more" if len(spans) > 8 else ""
        body.append(
            (
                text(row, "why"),
                quantities.duration(number(row, "seconds")),
                quantities.percent(number(row, "share")),
                tag("span", named, rest) if spans else tag("span", "none", class_="quiet"),
            )
        )
    columns = [Column("Why"), Column("Time", "number"), Column("Share", "number"), Column("Spans open at the time")]
    lead = "Device idle time that no evidence in the capture explains. It is shown, not guessed."
    return section("unknown", "What is unknown, and why", table("Unknown time", columns, body), lead=lead)


def hosts(summary: Fields) -> Html:
    """Hosts, their clocks and the straggler. Left out for one host without a straggler."""
    found = rows(summary, "hosts")
    straggler = mapping(summary, "straggler")
    if len(found) < 2 and not straggler:
        return Html("")
    clocks = {text(row, "host"): row for row in rows(summary, "clocks")}
    body = []
    for row in found:
        clock = clocks.get(text(row, "host"), {})
        offset, error = number(clock, "offset_ns"), number(clock, "error_ns")
        body.append(
            (
                tag("span", text(row, "host"), tag("small", text(row, "hostname"))),
                quantities.whole(len(texts(row, "devices"))),
                quantities.duration(None if offset is None else offset / 1e9),
                quantities.MISSING if error is None else f"± {quantities.duration(error / 1e9)}",
                quantities.MISSING if number(clock, "drift_ppm") is None else f"{number(clock, 'drift_ppm'):.2f}",
                " · ".join(part for part in (text(clock, "status"), text(clock, "method")) if part),
            )
        )
    columns = [
        Column("Host"),
        Column("Devices", "number"),
        Column("Clock offset", "number", "host clock minus the first host's clock at the start of the capture"),
        Column("Bound", "number", "half-width"),
        Column("Drift (ppm)", "number"),
        Column("Clock"),
    ]
    lead: object = ""
    if straggler:
        parts = [f"{text(straggler, 'host')} is the last to arrive"]
        if number(straggler, "lost_ms_per_step") is not None:
            parts.append(f"costs {quantities.milliseconds(number(straggler, 'lost_ms_per_step'))} a step")
        if text(straggler, "cause"):
            parts.append(f"cause: {label(text(straggler, 'cause'))}")
        lead = "; ".join(parts) + "."
    whole = table("Hosts and clocks", columns, body)
    return section("hosts", "Hosts and clocks", whole, _reasons(straggler), lead=lead)


def _reasons(straggler: Fields) -> Html:
    """What the straggler did more than the others; nothing where the summary does not say."""
    columns = [
        Column("Class or cause", "name"),
        Column("Per step", "number", "more than the second last, mean over all steps that count"),
        Column("In steps", "number"),
        Column("What it was"),
        Column("Source"),
    ]
    body = [
        (
            class_name(text(row, "class")),
            quantities.milliseconds(number(row, "ms_per_step")),
            quantities.whole(number(row, "steps")),
            text(row, "reason") or quantities.MISSING,
            text(row, "source") or quantities.MISSING,
        )
        for row in rows(straggler, "reasons")
    ]
    return table(f"What {text(straggler, 'host')} did more than the others", columns, body)


def diagnostics_section(summary: Fields) -> Html:
    """What went wrong or is missing: errors and warnings open, notes behind a fold."""
    columns = [Column("Severity", "name"), Column("Message"), Column("Where"), Column("Times", "number")]
    found = diagnostics(summary)

    def lines(chosen: list[Fields]) -> list[tuple[object, ...]]:
        return [
            (
                tag("span", text(row, "severity"), class_=f"severity s-{_severity(row)}"),
                tag("span", prose(text(row, "message")), tag("small", text(row, "code"))),
                tag("code", ": ".join(part for part in (text(row, "file"), text(row, "place")) if part)),
                quantities.whole(number(row, "count")),
            )
            for row in chosen
        ]

    serious = [row for row in found if text(row, "severity") != "note"]
    notes = [row for row in found if text(row, "severity") == "note"]
    open_part = table("Errors and warnings", columns, lines(serious))
    folded = more(quantities.plural(len(notes), "note"), table("Notes", columns, lines(notes))) if notes else ""
    return section("diagnostics", "Diagnostics", open_part, folded)


def _severity(row: Fields) -> str:
    severity = text(row, "severity")
    return severity if severity in ("error", "warning", "note") else "note"


def overhead(summary: Fields) -> Html:
    """What the profiler itself cost; counters that stayed zero share a line."""
    found = mapping(summary, "overhead")
    zero = [key.replace("_", " ") for key in found if number(found, key) == 0]
    counted = pairs(_measured({key: value for key, value in found.items() if number(found, key) != 0}))
    none = tag("p", "Zero: ", ", ".join(zero), ".", class_="quiet") if zero else ""
    return section("overhead", "Cost of profiling", counted, none)


def capture(summary: Fields) -> Html:
    """How the capture was made, and from which files."""
    found = mapping(summary, "capture")
    entries: list[tuple[object, object]] = []
    if command_line(found):
        entries.append(("command", tag("code", command_line(found))))
    if started(found):
        entries.append(("started", started(found)))
    entries += _measured({key: value for key, value in found.items() if key not in _SAID_APART})
    sources = [
        line for row in rows(summary, "hosts") for line in (texts(row, "source") or [text(row, "source")]) if line
    ]
    if sources:
        shown = ", ".join(sources[:8]) + (f" and {len(sources) - 8:,} more" if len(sources) > 8 else "")
        entries.append(("source", tag("code", shown)))
    if text(summary, "schema_version"):
        entries.append(("schema version", text(summary, "schema_version")))
    return section("capture", "Capture", pairs(entries))


_SAID_APART = ("command", "started_ns", "started_utc")


def _measured(source: Fields, prefix: str = "") -> list[tuple[object, object]]:
    """Free-form numbers, each with the unit that the end of its name says."""
    entries: list[tuple[object, object]] = []
    for key, value in source.items():
        name = key if key == "xprof_py" else f"{prefix}{key}".replace("_", " ")
        measured = number(source, key)
        if isinstance(value, Mapping):
            entries += _measured(value, f"{name}, ")
        elif measured is None:
            shown = ", ".join(texts(source, key)) if isinstance(value, list | tuple) else text(source, key)
            if isinstance(value, bool):
                shown = "yes" if value else "no"
            if shown:
                entries.append((name, shown))
        elif key.startswith("ns_per_"):
            entries.append((f"time per {name.removeprefix(f'{prefix}ns per ')}", quantities.duration(measured / 1e9)))
        elif key == "share" or key.endswith("_share"):
            entries.append((name, quantities.percent(measured, decimals=2)))
        else:
            entries.append(_with_unit(name, key, measured))
    return entries


def _with_unit(name: str, key: str, measured: float) -> tuple[str, str]:
    for ending, scale in (("_s", 1.0), ("_ms", 1e3), ("_us", 1e6), ("_ns", 1e9), ("_ps", 1e12)):
        if key.endswith(ending):
            return name[: -len(ending)], quantities.duration(measured / scale)
    if key == "seconds":
        return "duration", quantities.duration(measured)
    if key == "bytes" or key.endswith("_bytes"):
        return name, quantities.size(measured)
    if measured == round(measured):
        return name, quantities.whole(measured)
    return name, f"{measured:.3g}"
