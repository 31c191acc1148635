"""The sections of the report on compiled code and on communication; each is left out where there is nothing to show."""

from __future__ import annotations

from xprof_py.viewers import quantities
from xprof_py.viewers.class_words import label
from xprof_py.viewers.fields import Fields, mapping, number, rows, text, texts
from xprof_py.viewers.figures import excess_sentence, finding_name, transfer_name
from xprof_py.viewers.html_parts import Column, section
from xprof_py.viewers.html_sections import end_of_path, first_rows, middle_cut
from xprof_py.viewers.markup import Html, prose, tag


def compiled_code(summary: Fields) -> Html:
    """Findings ranked by time lost, and the ops that are furthest beyond their ideal."""
    found = mapping(summary, "compiled_code")
    listed, beyond = rows(found, "findings"), rows(found, "ops")
    lead = excess_sentence(found)
    if not listed and not beyond:
        return Html("")
    unit, lost = quantities.column([number(row, "lost_s") for row in listed])
    findings = [
        (
            tag("span", finding_name(row), tag("small", _parts(row), title=text(row, "op_name") or None)),
            _place(row),
            quantities.percent(number(row, "share")),
            lost_s,
            quantities.whole(number(row, "count")),
            prose(text(row, "advice")),
        )
        for row, lost_s in zip(listed, lost, strict=True)
    ]
    finding_columns = [
        Column("Finding"),
        Column("Source", "name"),
        Column("Share", "number", "time lost, of the step time"),
        Column(f"Lost ({unit})", "number", "empty where peaks or shapes do not tell it"),
        Column("Runs", "number"),
        Column("What to do"),
    ]
    excess_unit, excess = quantities.column([number(row, "excess_s") for row in beyond])
    ops = [
        (
            tag(
                "span",
                tag("code", middle_cut(text(row, "op"), 60), title=text(row, "op")),
                tag("small", middle_cut(text(row, "op_name"), 72), title=text(row, "op_name") or None),
            ),
            _place(row),
            quantities.percent(number(row, "share")),
            excess_s,
            f"{quantities.percent(number(row, 'efficiency'))} {text(row, 'bound')}".rstrip(),
        )
        for row, excess_s in zip(beyond, excess, strict=True)
    ]
    op_columns = [
        Column("Op"),
        Column("Source", "name"),
        Column("Share", "number", "time beyond the ideal, of the step time"),
        Column(f"Beyond ideal ({excess_unit})", "number", "measured time less max(flops / peak, bytes / bandwidth)"),
        Column("Of roof", "number", "the least possible time over the mean, and what bounds it"),
    ]
    kinds, least = _kinds(found), quantities.percent(number(found, "least_share"))
    return section(
        "code",
        "Compiled code",
        first_rows("Findings by time lost", finding_columns, findings),
        tag("p", "All together, those below ", least, " of the step time included: ", kinds, ".", class_="quiet")
        if kinds
        else "",
        tag("h3", "Ops furthest beyond their ideal") if ops else "",
        first_rows("Ops furthest beyond their ideal", op_columns, ops),
        lead=lead,
    )


def _kinds(found: Fields) -> str:
    """What every kind lost in all, the findings that are too small to list included."""
    by_kind = mapping(found, "by_kind")
    parts = []
    for kind in by_kind:
        row = mapping(by_kind, kind)
        if number(row, "share") is not None:
            count = quantities.whole(number(row, "findings"))
            parts.append(f"{kind.replace('_', ' ')} {quantities.percent(number(row, 'share'))} ({count})")
    return ", ".join(parts)


def _parts(row: Fields) -> str:
    parts = texts(row, "parts")
    return middle_cut(" → ".join(parts), 90) if parts else text(row, "program")


def _place(row: Fields) -> Html:
    source = text(row, "source")
    if not source:
        return tag("span", quantities.MISSING, class_="quiet")
    return tag("code", end_of_path(source), title=source)


def communication(summary: Fields) -> Html:
    """Communication and copies per kind and source line: what steps waited for, and what was hidden."""
    listed = [row for row in rows(summary, "communication") if number(row, "in_flight_s")]
    unit, exposed = quantities.column([number(row, "exposed_s") for row in listed])
    hidden_unit, hidden = quantities.column([number(row, "hidden_s") for row in listed])
    body = []
    for row, exposed_s, hidden_s in zip(listed, exposed, hidden, strict=True):
        mean_us, rate = number(row, "mean_us"), number(row, "bus_bytes_per_s")
        idle_s = number(row, "idle_s")
        idle = f"{quantities.duration(idle_s)} in flight while the device idled" if idle_s else ""
        body.append(
            (
                tag("span", transfer_name(row), tag("small", idle or label(text(row, "class")))),
                _place(row),
                quantities.percent(number(row, "share")),
                exposed_s,
                hidden_s,
                quantities.whole(number(row, "count")),
                quantities.duration(None if mean_us is None else mean_us / 1e6),
                quantities.size(number(row, "bytes")),
                quantities.MISSING if rate is None else quantities.rate(rate),
            )
        )
    columns = [
        Column("Kind"),
        Column("Source", "name"),
        Column("Share", "number", "exposed time, of the step time"),
        Column(f"Exposed ({unit})", "number", "no compute or memory-bound op of the lane ran"),
        Column(f"Hidden ({hidden_unit})", "number", "behind other work"),
        Column("Runs", "number"),
        Column("Mean", "number", "from start to done"),
        Column("Payload", "number", "of one run and participant"),
        Column("Bus", "number", "network bytes over the time from start to done, the wait for the last one included"),
    ]
    lead = "Exposed time is the class's own in the breakdown; hidden time costs nothing until what hides it is gone."
    shown = first_rows("Communication and copies", columns, body)
    return section("communication", "Communication and copies", shown, lead=lead) if body else Html("")
