"""decode_xspace reads what protobuf reads, and stops with a place where protobuf stops."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_spaces import SPACES
from xspace_truth import rows_of_columns, rows_of_message

from xprof_py import _native
from xspace_schema import XSpace


def message(fields: dict[str, Any]) -> Any:
    return XSpace(**fields)


def outcome(data: bytes) -> Any:
    """The rows, or the error."""
    try:
        return rows_of_columns(_native.decode_xspace(data), data)
    except _native.DecodeError as error:
        return error


@settings(max_examples=150, deadline=None)
@given(SPACES)
def test_generated_spaces_round_trip(fields: dict[str, Any]) -> None:
    data = message(fields).SerializeToString()
    assert outcome(data) == rows_of_message(message(fields))


@settings(max_examples=300, deadline=None)
@given(SPACES, st.data())
def test_damaged_spaces_agree_with_protobuf(fields: dict[str, Any], data: st.DataObject) -> None:
    """What protobuf reads of damaged bytes we read alike; what we refuse it refuses too (it also refuses bad UTF-8)."""
    whole = bytearray(message(fields).SerializeToString())
    if data.draw(st.booleans(), "cut"):
        del whole[data.draw(st.integers(0, len(whole)), "length") :]
    if whole:
        for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4), "flips"):
            whole[at] = data.draw(st.integers(0, 255), "byte")
    damaged = bytes(whole)
    found = outcome(damaged)
    if isinstance(found, _native.DecodeError):
        assert 0 <= found.offset <= len(damaged)
        assert found.reason
    space = XSpace()
    try:
        space.ParseFromString(damaged)
    except DecodeError:
        return
    # This runtime alone sets map entries aside whole where they hold an unknown field; the others and we read them.
    if any(entry.field_number in (4, 5) for plane in space.planes for entry in UnknownFieldSet(plane)):
        return
    assert found == rows_of_message(space)


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(SPACES, st.data())
def test_what_lies_behind_a_plane_changes_nothing_in_it(fields: dict[str, Any], data: st.DataObject) -> None:
    """The usual events are read eight bytes at once where so many follow: damaged or not, they are read alike."""
    planes = bytearray(XSpace(planes=message(fields).planes).SerializeToString())
    if planes:
        for at in data.draw(st.lists(st.integers(0, len(planes) - 1), max_size=3), "flips"):
            planes[at] = data.draw(st.integers(0, 255), "byte")
    behind = data.draw(st.integers(0, 40), "bytes behind")
    alone, followed = (outcome(bytes(planes) + tail) for tail in (b"", field(4, 2, varint(behind) + b"h" * behind)))
    # A length that reaches beyond the planes may end in what follows: then nothing is said here.
    if not isinstance(alone, _native.DecodeError):
        assert (followed[0], *followed[2:]) == (alone[0], *alone[2:])


def field(number: int, wire_type: int, payload: bytes = b"") -> bytes:
    return varint(number << 3 | wire_type) + payload


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def inside(number: int, payload: bytes) -> bytes:
    return field(number, 2, varint(len(payload)) + payload)


ENDS = "the message ends inside a number"
BEYOND = "a length beyond the end of its message"


@pytest.mark.parametrize(
    ("data", "place", "reason"),
    [
        (b"\x0a", "planes[0]", ENDS),
        (b"\x0a\x05ab", "planes[0]", BEYOND),
        (b"\x0a" + varint(2**60), "planes[0]", BEYOND),
        (b"\x0a" + varint(2**64 - 1), "planes[0]", BEYOND),
        (b"\x0a" + b"\x80" * 11, "planes[0]", "a number of more than ten bytes"),
        (field(0, 0, b"\1"), "", "field number 0"),
        (field(9, 6), "", "an unknown wire type"),
        (field(2**29, 0, b"\1"), "", "a field number out of range"),
        (field(9, 3), "", "the message ends inside a group"),
        (field(9, 4), "", "the end of a group that was not begun"),
        (field(9, 3) + field(8, 4), "", "the end of a group that was not begun"),
        (field(9, 3) * 101 + field(9, 4) * 101, "", "groups nested too deep"),
        (field(9, 5, b"abc"), "", ENDS),
        (
            inside(1, b"") + inside(1, inside(3, inside(4, b"\x08\x01") + inside(4, b"\x08"))),
            "planes[1].lines[0].events[1]",
            ENDS,
        ),
        (
            inside(1, inside(3, inside(4, inside(4, b"\x08\x01") + inside(4, b"\x11ab")))),
            "planes[0].lines[0].events[0].stats[1]",
            ENDS,
        ),
        (
            inside(1, inside(3, b"") + inside(3, inside(4, b"\x22\x7f"))),
            "planes[0].lines[1].events[0].stats[0]",
            BEYOND,
        ),
        (inside(1, inside(4, inside(2, inside(5, b"\x2a\x05")))), "planes[0].event_metadata[0].stats[0]", BEYOND),
        (inside(1, inside(5, b"") + inside(5, b"\x12\x01")), "planes[0].stat_metadata[1]", BEYOND),
        (inside(1, inside(6, b"\x07")), "planes[0].stats[0]", "field number 0"),
        # A length that cannot be is the fault of the message that it is the length of.
        (inside(1, inside(3, b"") + b"\x1a\x09"), "planes[0].lines[1]", BEYOND),
        (inside(1, inside(3, inside(4, b"") * 2 + b"\x22\x09")), "planes[0].lines[0].events[2]", BEYOND),
        (inside(4, b"host") + b"\x22\x09", "", BEYOND),
    ],
)
def test_broken_wire_names_place_and_reason(data: bytes, place: str, reason: str) -> None:
    with pytest.raises(_native.DecodeError) as caught:
        _native.decode_xspace(data)
    assert (caught.value.place, caught.value.reason) == (place, reason)
    with pytest.raises(DecodeError):
        XSpace().ParseFromString(data)


@pytest.mark.parametrize(
    "unknown",
    [
        field(9, 0, varint(2**63)),
        field(9, 1, b"12345678"),
        inside(9, b"\xff" * 20),
        field(9, 5, b"1234"),
        field(9, 3) + field(3, 3) + inside(7, b"\xff") + field(3, 4) + field(9, 4),
        field(3, 0, b"\1"),  # a known field of another wire type
        b"\x88\x80\x80\x80\x00\x05",  # field 1, varint, its tag written in five bytes
    ],
)
def test_unknown_fields_are_skipped_where_they_may_be(unknown: bytes) -> None:
    event = inside(4, b"\x08\x01\x10\x07" + unknown)
    metadata = inside(4, b"\x08\x01" + inside(2, unknown))
    data = unknown + inside(1, unknown + inside(3, unknown + event) + metadata) + unknown
    space = XSpace()
    space.ParseFromString(data)
    assert rows_of_columns(_native.decode_xspace(data), data) == rows_of_message(space)
    assert np.asarray(_native.decode_xspace(data)["events"]["offset_ps"]).tolist() == [7]


def test_the_last_of_two_metadata_entries_counts() -> None:
    def entry(name: bytes) -> bytes:
        return inside(4, b"\x08\x05" + inside(2, inside(2, name)))

    data = inside(1, inside(3, inside(4, b"\x08\x05")) + entry(b"old") + entry(b"new"))
    columns = _native.decode_xspace(data)
    planes = rows_of_columns(columns, data)[0]
    assert planes[0][2][0][6][0][0] == "new"
    assert planes[0][3] == {(5, "new", "", ())}


def test_missing_metadata_is_kept_and_counted() -> None:
    space = XSpace()
    line = space.planes.add(name="p").lines.add()
    for number in (7, 7, 2**40):
        event = line.events.add(metadata_id=number)
        event.stats.add(metadata_id=3, ref_value=9)
    columns = _native.decode_xspace(space.SerializeToString())
    assert columns["events_without_metadata"] == 3
    assert columns["stats_without_metadata"] == 6  # three keys and three references
    events = rows_of_columns(columns, b"")[0][0][2][0][6]
    assert [event[0] for event in events] == ["#7", "#7", f"#{2**40}"]
    assert {event[4] for event in events} == {(("#3", "str_value", "#9"),)}


@pytest.mark.parametrize("bad", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc0\xafx", b"\xe2\x82z\xf5"])
def test_bad_utf8_is_replaced_as_python_does_and_counted(bad: bytes) -> None:
    data = inside(1, inside(2, bad)) + inside(4, bad)
    columns = _native.decode_xspace(data)
    rows = rows_of_columns(columns, data)
    repaired = bad.decode("utf-8", "replace")
    assert rows[0][0][1] == repaired
    assert rows[1] == (repaired,)
    assert columns["repaired_strings"] == 2


def test_columns_are_buffers_that_outlive_the_rest() -> None:
    space = XSpace()
    events = space.planes.add().lines.add().events
    for number in range(100):
        events.add(metadata_id=1, offset_ps=number)
    columns = _native.decode_xspace(memoryview(space.SerializeToString()))
    offsets = np.asarray(columns["events"]["offset_ps"])
    assert len(columns["events"]["offset_ps"]) == 100
    del columns
    assert offsets.dtype == np.int64
    assert offsets.flags.writeable
    assert offsets.tolist() == list(range(100))


def test_other_arguments_are_type_errors() -> None:
    for decode in (_native.decode_xspace, _native.decode_hlo):
        with pytest.raises(TypeError):
            decode("text")
        with pytest.raises(TypeError):
            decode(None)
    with pytest.raises(TypeError):
        _native.Column()


def test_spaces_beyond_4_gb_are_read(tmp_path: Path) -> None:
    """Two planes, and between them 5 GB of bytes of a stat: a hole of the file, which takes no room."""
    size = 5 << 30

    def plane(name: str) -> bytes:
        space = XSpace()
        made = space.planes.add(name=name)
        made.event_metadata[1].name = "event"
        made.lines.add(name="line").events.add(metadata_id=1, offset_ps=7)
        return bytes(space.SerializeToString())

    def length(value: int) -> bytes:
        out = bytearray()
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*out, value])

    # plane 2 of 3: stats { metadata_id: 0, bytes_value: size zeros }
    value = b"\x32" + length(size)
    stat = b"\x32" + length(len(value) + size) + value
    head = plane("before") + b"\x0a" + length(len(stat) + size) + stat
    tail = plane("behind")
    file = tmp_path / "large.xplane.pb"
    for sound in (True, False):
        with file.open("wb") as opened:
            opened.write(head)
            opened.seek(len(head) + size)
            opened.write(tail if sound else b"\x0b" + tail[1:])  # 11: a group that never ends
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if sound:
                columns = _native.decode_xspace(content)
            else:
                with pytest.raises(_native.DecodeError) as broken:
                    _native.decode_xspace(content)
    assert bytes(columns["plane_names"][1]) == b"beforebehind"
    assert np.asarray(columns["plane_stats"]["value"]).tolist() == [size]
    assert np.asarray(columns["events"]["offset_ps"]).tolist() == [7, 7]
    assert broken.value.offset >= size
