"""The same rows from two sides: an XSpace as protobuf's own runtime reads it, and as the C decoder does.

Both sides become nested tuples of plain values, so that a test compares them with ``==``. Doubles are compared by their
bits. A stat is (key, kind, value): texts resolved, of the bytes of an event's stat their length.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import numpy as np

INT, UINT, DOUBLE, TEXT, BYTES = "int64_value", "uint64_value", "double_value", "str_value", "bytes_value"
_KINDS = {0: None, 1: INT, 2: UINT, 3: DOUBLE, 4: TEXT, 5: BYTES}


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


# --- protobuf's side ------------------------------------------------------------------------------------------------


def rows_of_message(space: Any) -> tuple[Any, ...]:
    """The rows of a parsed XSpace message."""
    planes = tuple(_plane_of_message(plane) for plane in space.planes)
    return planes, tuple(space.hostnames), tuple(space.errors), tuple(space.warnings)


def _plane_of_message(plane: Any) -> tuple[Any, ...]:
    keys = {number: metadata.name for number, metadata in plane.stat_metadata.items()}
    names = {number: metadata.name for number, metadata in plane.event_metadata.items()}

    def stat(message: Any, with_bytes: bool) -> tuple[Any, ...]:
        kind = message.WhichOneof("one")
        value = getattr(message, kind) if kind else None
        if kind == "ref_value":
            kind, value = TEXT, keys.get(_signed(value), f"#{_signed(value)}")
        if kind == DOUBLE:
            value = _bits(value)
        if kind == BYTES and not with_bytes:
            value = len(value)
        return keys.get(message.metadata_id, f"#{message.metadata_id}"), kind, value

    lines = tuple(
        (
            line.id,
            line.name,
            line.display_name,
            line.timestamp_ns,
            line.duration_ps,
            line.display_id,
            tuple(
                (
                    names.get(event.metadata_id, f"#{event.metadata_id}"),
                    event.offset_ps,
                    event.num_occurrences if event.WhichOneof("one") == "num_occurrences" else None,
                    event.duration_ps,
                    tuple(stat(message, False) for message in event.stats),
                )
                for event in line.events
            ),
        )
        for line in plane.lines
    )
    metadata = {
        (number, entry.name, entry.display_name, tuple(stat(message, True) for message in entry.stats))
        for number, entry in plane.event_metadata.items()
    }
    stats = tuple(stat(message, True) for message in plane.stats)
    return plane.id, plane.name, lines, metadata, set(keys.items()), stats


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


# --- the decoder's side ---------------------------------------------------------------------------------------------


def rows_of_columns(columns: dict[str, Any], data: bytes) -> tuple[Any, ...]:
    """The same rows from the columns of decode_xspace; ``data`` is what was decoded."""
    return _Columns(columns, data).rows()


def text_list(pair: tuple[Any, Any]) -> list[str]:
    """A string column (offsets, bytes) as Python strings."""
    offsets, text = np.asarray(pair[0]).tolist(), bytes(pair[1])
    return [text[start:end].decode() for start, end in pairwise(offsets)]


class _Columns:
    def __init__(self, columns: dict[str, Any], data: bytes) -> None:
        self.data = data
        self.tables = {
            name: {column: np.asarray(values).tolist() for column, values in table.items()}
            for name, table in columns.items()
            if isinstance(table, dict)
        }
        self.texts = {name: text_list(pair) for name, pair in columns.items() if isinstance(pair, tuple)}

    def rows(self) -> tuple[Any, ...]:
        planes = []
        lines = self.lines()
        event_metadata, stat_metadata = self.metadata()
        stats = self.stats("plane_stats", len(self.texts["plane_names"]), True)
        for plane, (number, name) in enumerate(
            zip(self.tables["planes"]["id"], self.texts["plane_names"], strict=True)
        ):
            own = tuple(line for line, of in zip(lines, self.tables["lines"]["plane"], strict=True) if of == plane)
            planes.append((number, name, own, event_metadata[plane], stat_metadata[plane], stats[plane]))
        return tuple(planes), *(tuple(self.texts[name]) for name in ("hostnames", "errors", "warnings"))

    def lines(self) -> list[tuple[Any, ...]]:
        table = self.tables["lines"]
        events: list[list[Any]] = [[] for _ in table["id"]]
        occurrences = dict(
            zip(self.tables["aggregated"]["event"], self.tables["aggregated"]["occurrences"], strict=True)
        )
        names = [self.texts["event_names"][name] for name in self.tables["event_metadata"]["name"]]
        found = self.tables["events"]
        stats = self.stats("event_stats", len(found["line"]), False)
        for row, (line, metadata, offset_ps, duration_ps) in enumerate(
            zip(found["line"], found["metadata"], found["offset_ps"], found["duration_ps"], strict=True)
        ):
            events[line].append((names[metadata], offset_ps, occurrences.get(row), duration_ps, stats[row]))
        assert [len(of_line) for of_line in events] == table["event_count"]
        return list(
            zip(
                table["id"],
                self.texts["line_names"],
                self.texts["line_display_names"],
                table["timestamp_ns"],
                table["duration_ps"],
                table["display_id"],
                map(tuple, events),
                strict=True,
            )
        )

    def metadata(self) -> tuple[list[set[Any]], list[set[Any]]]:
        count = len(self.texts["plane_names"])
        events: list[set[Any]] = [set() for _ in range(count)]
        table = self.tables["event_metadata"]
        stats = self.stats("metadata_stats", len(table["id"]), True)
        for row, shown in enumerate(self.texts["metadata_display_names"]):
            if table["live"][row] == 1:
                name = self.texts["event_names"][table["name"][row]]
                events[table["plane"][row]].add((table["id"][row], name, shown, stats[row]))
        keys: list[set[Any]] = [set() for _ in range(count)]
        table = self.tables["stat_metadata"]
        for plane, number, name, live in zip(table["plane"], table["id"], table["name"], table["live"], strict=True):
            if live == 1:
                keys[plane].add((number, self.texts["stat_names"][name]))
        return events, keys

    def stats(self, name: str, owners: int, with_bytes: bool) -> list[tuple[Any, ...]]:
        table = self.tables[name]
        found: list[list[Any]] = [[] for _ in range(owners)]
        places = table.get("at", [0] * len(table["owner"]))
        for owner, key, number, value, at in zip(
            table["owner"], table["key"], table["kind"], table["value"], places, strict=True
        ):
            kind = _KINDS[number]
            shown = value
            if kind is None:
                shown = None
            elif kind == UINT:
                shown = value % 2**64
            elif kind == TEXT:
                shown = self.texts["texts"][value]
            elif kind == BYTES and with_bytes:
                shown = self.data[at : at + value]
            found[owner].append((self.texts["stat_names"][key], kind, shown))
        return [tuple(of_owner) for of_owner in found]
