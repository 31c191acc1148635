"""The report's section on device memory: the peak, what is alive at it, and what would lower it."""

from __future__ import annotations

from xprof_py.viewers import quantities
from xprof_py.viewers.fields import Fields, mapping, number, rows, text
from xprof_py.viewers.figures import memory_lead
from xprof_py.viewers.html_parts import Column, section, table
from xprof_py.viewers.markup import Html, tag

_KINDS = {
    "argument": "argument",
    "donated": "donated argument",
    "output": "output",
    "temporary": "temporary",
    "constant": "constant",
}


def memory(summary: Fields) -> Html:
    """Peak, parts, advice, what is alive at the peak. Left out where the profile says nothing of memory."""
    found = mapping(summary, "memory")
    if number(found, "peak_bytes") is None:
        return Html("")
    lead = memory_lead(found)
    return section(
        "memory", "Device memory", _parts(found), _advice(found), _alive(found), _allocators(found), lead=lead
    )


def _parts(found: Fields) -> Html:
    parts = mapping(found, "parts")
    held = number(parts, "held")
    body = []
    for name, hint in (
        ("argument", "held by the caller before, during and after the run"),
        ("donated", "arguments whose memory becomes an output's"),
        ("output", "reserved when the run begins"),
        ("temporary", "one block, for the whole run"),
        ("constant", "part of the program"),
        ("host", "arguments and outputs in the host's memory, not in the sum"),
    ):
        size = number(parts, name)
        if size:
            share = quantities.percent(size / held) if held and name != "host" else ""
            body.append((tag("span", _KINDS.get(name, name), tag("small", hint)), quantities.size(size), share))
    columns = [Column("Part"), Column("Bytes", "number"), Column("Share", "number")]
    return table(f"What {text(found, 'program')} holds while it runs", columns, body)


def _advice(found: Fields) -> Html:
    body = [
        (text(row, "text"), _source(row), quantities.size(number(row, "saves_bytes"))) for row in rows(found, "advice")
    ]
    hint = "at the peak, each on top of those of its kind above it"
    columns = [Column("What would lower the peak"), Column("Source", "name"), Column("Saves up to", "number", hint)]
    return table("What would lower the peak", columns, body)


def _alive(found: Fields) -> Html:
    body = []
    for row in rows(found, "alive"):
        details = " · ".join(part for part in (text(row, "shape"), text(row, "op_name")) if part)
        idle = f"{text(row, 'idle_after')} to {text(row, 'idle_until')}" if text(row, "idle_after") else ""
        body.append(
            (
                tag("span", tag("code", text(row, "op") or quantities.MISSING), tag("small", details)),
                _KINDS.get(text(row, "kind"), text(row, "kind")),
                _source(row),
                idle or tag("span", quantities.MISSING, class_="quiet"),
                quantities.size(number(row, "bytes")),
            )
        )
    columns = [
        Column("Value of"),
        Column("Kind"),
        Column("Source", "name"),
        Column("Idle", "text", "no op touches it between these two, and the peak lies between them"),
        Column("Bytes", "number"),
    ]
    rest = number(found, "alive_left_out")
    more = tag("p", f"{rest:,.0f} smaller ones are in memory_alive.parquet.", class_="quiet") if rest else ""
    return Html(table("Alive at the peak, largest first", columns, body) + more)


def _allocators(found: Fields) -> Html:
    body = [
        (
            tag("span", tag("code", text(row, "allocator")), tag("small", text(row, "host"))),
            quantities.size(number(row, "peak_bytes")),
            quantities.size(number(row, "ever_peak_bytes")),
            quantities.whole(number(row, "events")),
        )
        for row in rows(found, "allocators")
    ]
    columns = [
        Column("Allocator"),
        Column("Peak in the capture", "number"),
        Column("Since the process began", "number"),
        Column("Events", "number"),
    ]
    return table("What the allocators handed out", columns, body)


def _source(row: Fields) -> Html:
    source = text(row, "source")
    if not source:
        return tag("span", quantities.MISSING, class_="quiet")
    return tag("code", "/".join(source.split("/")[-2:]), title=source)
