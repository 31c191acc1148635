"""The top of the report: what holds the step back, what to do next, and the evidence for both."""

from __future__ import annotations

from xprof_py.viewers import quantities
from xprof_py.viewers.class_words import is_class, label
from xprof_py.viewers.fields import Fields, mapping, number, rows, text, texts
from xprof_py.viewers.figures import (
    LITTLE_EXPLAINED,
    Headline,
    class_figures,
    command_line,
    diagnostics,
    evidence_place,
    headline,
    started,
    steps_used,
)
from xprof_py.viewers.html_parts import class_bar, described, more, swatch
from xprof_py.viewers.markup import Html, join, prose, tag
from xprof_py.viewers.run_words import run_words

_EVIDENCE_SHOWN = 5
_LONG_SENTENCE = 90
_SAME_STEP_TIME = 0.02
_EVIDENCE_WORDS = {
    "gap": "device idle",
    "op": "op",
    "compile": "compile",
    "span": "host span",
    "communication": "transfer",
    "code": "compiled code",
    "launch": "launching",
}


def title(summary: Fields) -> str:
    """The page's title: the bottleneck first, so that it shows in a row of tabs."""
    head = headline(summary)
    command = command_line(mapping(summary, "capture"))
    what = f"{label(head.bottleneck)} {quantities.percent(head.share, decimals=0)}" if head.bottleneck else "step times"
    return " · ".join(part for part in (what, command[:60], "xprof_py") if part)


def top(summary: Fields) -> Html:
    """The page's header: origin line, verdict, next action, figures, breakdown bar, evidence."""
    head = headline(summary)
    bottleneck = f" is-{head.bottleneck}" if is_class(head.bottleneck) else ""
    advice = tag("p", tag("b", "Next"), " ", prose(head.advice), class_="advice") if head.advice else ""
    reason = tag("p", prose(head.reason), class_="reason") if head.reason else ""
    return tag(
        "header",
        tag("p", _origin(summary), class_="origin"),
        tag("h1", prose(head.sentence), class_="long" if len(head.sentence) > _LONG_SENTENCE else None),
        reason,
        _caution(summary),
        advice,
        _figures(summary, head),
        _of_the_run(summary),
        _bar(summary),
        _evidence(summary),
        class_=f"top{bottleneck}",
    )


def _origin(summary: Fields) -> Html:
    capture = mapping(summary, "capture")
    hosts = rows(summary, "hosts")
    devices = sum(len(texts(host, "devices")) for host in hosts)
    parts: list[object] = []
    if command_line(capture):
        parts.append(tag("code", command_line(capture)))
    if len(hosts) == 1:
        parts.append(text(hosts[0], "host"))
    elif hosts:
        parts.append(f"{len(hosts)} hosts")
    if devices:
        parts.append(quantities.plural(devices, "device"))
    if started(capture):
        parts.append(started(capture))
    return join([tag("span", part) for part in parts])


def _caution(summary: Fields) -> Html | str:
    """What the reader must know before believing the sentence above."""
    caveat = headline(summary).caveat
    notes = [caveat] if caveat else []
    accounted = number(summary, "accounted")
    if accounted is not None and accounted < LITTLE_EXPLAINED:
        notes.append(f"Only {quantities.percent(accounted)} of the step time is explained; see “What is unknown”.")
    if mapping(summary, "breakdown") and text(mapping(summary, "steps"), "used").startswith("all"):
        notes.append("No step is steady: the shares are over all measured steps, warm-up included.")
    errors = [row for row in diagnostics(summary) if text(row, "severity") == "error"]
    if errors:
        notes.append(f"{quantities.plural(len(errors), 'error')} while reading; see “Diagnostics”.")
    return tag("p", " ".join(notes), class_="caution") if notes else ""


def _figures(summary: Fields, head: Headline) -> Html | str:
    step_ms = mapping(summary, "step_ms")
    figures = []
    if head.step_ms is not None:
        low, high = number(step_ms, "p10"), number(step_ms, "p90")
        median = number(step_ms, "median")
        spread = ""
        if low is not None and high is not None and low != high:
            spread = f"p10 {quantities.milliseconds(low)}, p90 {quantities.milliseconds(high)}"
            if median is not None and abs(median - head.step_ms) > _SAME_STEP_TIME * median:
                spread = f"mean; median {quantities.milliseconds(median)}, {spread}"
        figures.append(("Step now", quantities.milliseconds(head.step_ms), spread))
    if head.bottleneck and head.step_ms is not None:
        without = f"Step without {label(head.bottleneck)}"
        if head.without_ms is not None:
            ratio = f"{quantities.factor(head.step_ms / head.without_ms)} as fast" if head.without_ms > 0 else ""
            figures.append((without, quantities.milliseconds(head.without_ms), ratio))
        elif head.without_why:
            figures.append((without, "not estimated", head.without_why))
    in_bar = number(mapping(mapping(summary, "breakdown"), head.bottleneck), "share")
    if head.share is not None and (in_bar is None or abs(in_bar - head.share) > 0.0005):
        figures.append((f"Share of {label(head.bottleneck)}", quantities.percent(head.share), "of the step time"))
    steps = mapping(summary, "steps")
    if number(steps, "count"):
        used = steps_used(summary)
        kind = "measured" if text(steps, "used").startswith("all") else "steady"
        note = f"{quantities.whole(used)} {kind}" if used is not None else "none steady"
        figures.append(("Steps", quantities.whole(number(steps, "count")), note))
    accounted = number(summary, "accounted")
    if accounted is not None:
        figures.append(("Explained", quantities.percent(accounted), "of the step time has a known cause"))
    cells = [
        tag(
            "div",
            tag("dt", name),
            tag(
                "dd",
                tag("strong", value, class_="words" if value[:1].isalpha() else None),
                note and tag("small", note),
            ),
        )
        for name, value, note in figures
    ]
    return tag("dl", *cells, class_="figures") if cells else ""


def _of_the_run(summary: Fields) -> Html | str:
    lines = run_words(summary)
    return join([tag("p", prose(line), class_="quiet") for line in lines]) if lines else ""


def _bar(summary: Fields) -> Html | str:
    figures = [f for f in class_figures(mapping(summary, "breakdown"), None) if f.share]
    if not figures:
        return ""
    percents = [quantities.percent(figure.share) for figure in figures]
    by_share = sorted(zip(figures, percents, strict=True), key=lambda pair: -(pair[0].share or 0.0))
    key = tag(
        "ul",
        *(tag("li", swatch(f.name), label(f.name), " ", tag("b", p)) for f, p in by_share if (f.share or 0) >= 0.005),
        class_="key",
    )
    return tag("div", class_bar(figures, f"A step: {described(figures, percents)}", 34), key, class_="whole")


def _evidence(summary: Fields) -> Html | str:
    lines = [_evidence_line(row) for row in rows(mapping(summary, "verdict"), "evidence")]
    lines = [line for line in lines if line]
    if not lines:
        return ""
    rest = lines[_EVIDENCE_SHOWN:]
    hidden = more(f"{len(rest)} more", tag("ol", *rest, class_="evidence", start=_EVIDENCE_SHOWN + 1)) if rest else ""
    heading = tag("h2", "Evidence", id="evidence-title")
    shown = tag("ol", *lines[:_EVIDENCE_SHOWN], class_="evidence")
    return tag("section", heading, shown, hidden, aria_labelledby="evidence-title", id="evidence")


def _evidence_line(row: Fields) -> Html:
    what = text(row, "what")
    place = evidence_place(row)
    said = text(row, "text")
    if not said and not place:
        return Html("")
    numbers = []
    per_step_ms = number(row, "per_step_ms")
    if per_step_ms is not None:
        numbers.append(tag("b", f"{quantities.milliseconds(per_step_ms)} a step"))
    elif number(row, "seconds") is not None:
        numbers.append(tag("b", quantities.duration(number(row, "seconds"))))
    if number(row, "share") is not None:
        numbers.append(tag("span", quantities.percent(number(row, "share"))))
    count = number(row, "count") or 0
    if count > 1 and f"{count:.0f} " not in said:
        numbers.append(tag("span", f"{quantities.whole(count)} times"))
    if number(row, "step") is not None and count <= 1:
        numbers.append(tag("span", f"step {quantities.whole(number(row, 'step'))}"))
    kind = tag("span", _EVIDENCE_WORDS.get(what, what), class_="kind")
    return tag(
        "li",
        kind,
        tag("div", prose(said), tag("code", place, class_="place") if place else "", class_="what"),
        tag("div", *numbers, class_="numbers") if numbers else "",
    )
