"""Slots become columns in C: the same tables as plain Python makes of them, whatever they hold."""

from __future__ import annotations

import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_shard_reader import (
    CLOCK,
    EVENTS,
    SCHEMAS,
    STRINGS,
    THREADS,
    checksum,
    chunk,
    clock,
    event,
    header,
    string,
    thread,
)
from xprof_py import _native
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.readers.shard_clock import tick_map_of

SAMPLES = [(1000, 5000, 9_000), (1010, 6000, 10_007), (1040, 9000, 13_001)]
SCHEMA_KEYS = {1: [2], 2: [2, 3, 4], 3: [4] * 5}
SCHEMA_KINDS = {1: 0x1, 2: 0x141, 3: 0x11114}
TEXT = 4
OPEN = 2**64 - 1
MORE = 0xFF


def slots_of(schema: int) -> int:
    return 1 + (len(SCHEMA_KEYS.get(schema, [0])) + 1) // 3


def string_of(identity: int) -> str:
    return f"name {identity}" if identity < 8 else f"(unknown {identity})"


def in_plain_python(runs: list[tuple[int, bytes]]) -> tuple[list[Any], list[Any]]:
    """(events, arguments) of the runs as rows; an argument is (row of the event, key, raw value or text)."""
    _, ticks = tick_map_of([np.frombuffer(clock(*SAMPLES), np.uint8)], 1, lambda *_: None)
    assert ticks is not None

    def to_ps(tick: int) -> int:
        return int(ticks.to_ps(np.array([tick % 2**64], np.uint64))[0])

    slots = [(line, body[i : i + 32]) for line, body in runs for i in range(0, len(body), 32)]
    begins = [i for i, (_, slot) in enumerate(slots) if slot[20] != MORE]
    lines: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for order, (at, following) in enumerate(zip(begins, [*begins, len(slots)][1:], strict=True)):
        line, slot = slots[at]
        start, length, name, kind, flags, schema, _ = struct.unpack("<QQIBBHQ", slot)
        if flags & 0xF != following - at:
            continue
        is_open, is_past = length == OPEN, bool(flags & 0x10)
        start_ps = to_ps(start)
        end_ps = start_ps if is_open or is_past else to_ps(start + length)
        if is_past:
            start_ps -= (length * 1000 + 2**63) % 2**64 - 2**63
        values = []
        if following - at >= slots_of(schema):
            words = [struct.unpack("<4q", body) for _, body in slots[at:following]]
            flat = [words[0][3], *(word[i] for word in words[1:] for i in (0, 1, 3))]
            kinds = [SCHEMA_KINDS.get(schema, 0) >> 4 * i & 0xF for i in range(len(flat))]
            told = [string_of(value) if kind == TEXT else value for value, kind in zip(flat, kinds, strict=True)]
            values = list(zip(SCHEMA_KEYS.get(schema, []), told, strict=False))
        duration_ps = None if is_open else end_ps - start_ps
        key = (start_ps, -(2**63 - 1 if is_open else end_ps - start_ps), -order)
        lines[line].append((key, (line, name, kind, start_ps, duration_ps), values))
    rows = [row for line in sorted(lines) for row in sorted(lines[line], key=lambda row: row[0])]
    return [row for _, row, _ in rows], [(i, k, v) for i, (_, _, values) in enumerate(rows) for k, v in values]


def read(path: Path, runs: list[tuple[int, bytes]]) -> Profile:
    schemas = b"".join(
        struct.pack("<IIQ", identity, len(keys), SCHEMA_KINDS[identity])
        + struct.pack(f"<{len(keys)}I", *keys)
        + bytes(-4 * len(keys) % 8)
        for identity, keys in SCHEMA_KEYS.items()
    )
    texts = b"".join(string(i, f"name {i}") for i in range(8))
    bodies = [(CLOCK, clock(*SAMPLES), 0), (STRINGS, texts, 0), (SCHEMAS, schemas, 0)]
    bodies += [(THREADS, thread(i, 900 + i), 0) for i in range(3)]
    bodies += [(EVENTS, body, line) for line, body in runs]
    content = header(1) + b"".join(chunk(i, kind, body, line) for i, (kind, body, line) in enumerate(bodies))
    path.write_bytes(content)
    return read_shard(path)


def same_as_in_plain_python(path: Path, runs: list[tuple[int, bytes]]) -> None:
    profile = read(path, runs)
    events, arguments = in_plain_python(runs)
    found = [tuple(row.values()) for row in profile["events"].to_pylist()]
    named = [(line, string_of(name), *rest) for line, name, *rest in events]
    assert found == named
    texts = profile["texts"]["text"].to_pylist()
    given_arguments = [
        (row["event"], row["key"], texts[row["value"]] if row["kind"] == TEXT else row["value"])
        for row in profile["args"].to_pylist()
    ]
    assert given_arguments == [(row, f"name {key}", value) for row, key, value in arguments]


def one_event(start: int, length: int, name: int, flags: int, schema: int, wrong: int) -> bytes:
    """A whole event; ``wrong``: how many slots it says it has beyond those."""
    used = slots_of(schema)
    more = b"".join(struct.pack("<QQIB3xQ", 7 * i, 7 * i + 1, i, MORE, 7 * i + 2) for i in range(used - 1))
    return event(start, length, name, 1, (flags | used) + wrong, schema, start % 97) + more


small = st.integers(980, 1060)
lengths = st.one_of(st.integers(0, 12), st.just(OPEN), st.integers(0, OPEN))
# Few starts and lengths, so that many are equal; now and then a damaged one.
events_of_a_run = st.lists(
    st.builds(
        one_event,
        st.one_of(small, small, small, st.integers(0, OPEN)),
        st.one_of(st.integers(0, 12), st.integers(0, 12), lengths),
        st.one_of(st.integers(0, 7), st.integers(0, 7), st.integers(8, 2**32 - 1)),
        st.sampled_from([0, 0, 0, 0x10]),
        st.sampled_from([0, 0, 1, 2, 3, 9]),
        st.sampled_from([0, 0, 0, 0, 1]),
    ),
    max_size=12,
)
stray = st.just([struct.pack("<QQIB3xQ", 1, 2, 0, MORE, 3)])
some_runs = st.lists(
    st.tuples(st.integers(0, 2), st.one_of(events_of_a_run, events_of_a_run, stray).map(b"".join)), max_size=6
)


@settings(deadline=None)
@given(some_runs)
def test_the_same_tables_as_in_plain_python(tmp_path_factory: pytest.TempPathFactory, runs: Any) -> None:
    same_as_in_plain_python(tmp_path_factory.getbasetemp() / "columns.xpr", runs)


@pytest.mark.parametrize("count", [1, 2, 500])
def test_spans_inside_one_another(tmp_path: Path, count: int) -> None:
    """They end in the opposite order of their starts: the deepest line there can be."""
    nested = b"".join(event(1000 + count - i, 2 * i) for i in range(count))
    same_as_in_plain_python(tmp_path / "x.xpr", [(0, nested), (1, nested), (0, nested)])


def test_spans_of_many_tasks_that_overlap_are_sorted_all_the_same(tmp_path: Path) -> None:
    """More moves than the decoder makes: it leaves the line as it is, and says so."""
    count = 3000
    body = b"".join(event(1000 + (count - i) * 7 % count, 5 + i % 3, name=i % 8) for i in range(count))
    _, ticks = tick_map_of([np.frombuffer(clock(*SAMPLES), np.uint8)], 1, lambda *_: None)
    assert ticks is not None
    found = _native.decode_shard_events([(0, body)], 1, ticks.ticks, ticks.at_ps, ticks.ps_per_tick, 8)
    assert list(np.asarray(found["line_unsorted"])) == [1]
    same_as_in_plain_python(tmp_path / "x.xpr", [(0, body), (2, body[:3200])])


@settings(deadline=None)
@given(st.binary(max_size=200).map(lambda raw: raw[: len(raw) // 8 * 8]), st.integers(0, 30))
def test_the_checksum_is_that_of_the_format(content: bytes, own: int) -> None:
    assert _native.shard_checksum(content, 8 * own) == checksum(content, 8 * own)


def test_what_does_not_fit_together_is_refused() -> None:
    one, rate = np.zeros(1, np.uint64), np.ones(1)
    at = np.zeros(1, np.int64)
    for arguments, reason in (
        (([(1, bytes(32))], 1, one, at, rate, 1), "no such line"),
        (([(0, bytes(31))], 1, one, at, rate, 1), "part of a slot"),
        (([], 1, one, at, np.ones(2), 1), "no more than points"),
        (([], 1, one, np.zeros(2, np.int64), rate, 1), "as many ticks"),
        (([], -1, one, at, rate, 1), "below 0"),
    ):
        with pytest.raises(ValueError, match=reason):
            _native.decode_shard_events(*arguments)
    slot, counts, none = np.zeros(1, np.uint32), np.array([255, 1], np.uint8), np.zeros(0, np.uint32)
    at_two, kinds = np.zeros(2, np.uint32), np.zeros(2, np.uint64)
    for of_args, reason in (
        (([bytes(32)], slot + 1, counts, at_two, slot, kinds, 1), "no such slot"),
        (([bytes(31)], slot, counts, at_two, slot, kinds, 1), "part of a slot"),
        (([bytes(32)], slot, counts, at_two, none, kinds, 1), "keys are not there"),
        (([bytes(32)], slot, counts, at_two + 9, slot, kinds, 1), "keys are not there"),
        (([bytes(32)], slot, counts, at_two, slot + 2**31, kinds, 1), "rows of a table"),
        (([bytes(32)], slot, counts, at_two, slot, kinds[:1], 1), "as many"),
        (([bytes(32)], slot, counts, kinds, slot, kinds, 1), "another width"),
        (([], none, counts, at_two, slot, kinds, -1), "below 0"),
    ):
        with pytest.raises(ValueError, match=reason):
            _native.decode_shard_args(*of_args)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="whole words"):
        _native.shard_checksum(bytes(9), 0)
