"""read_xspace: one time axis, events in order, texts resolved, programs found, and everything lost counted."""

from __future__ import annotations

import gzip
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xprof_py.errors import BadInputError
from xprof_py.postprocess import schema
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.xspace import read_xspace, strings
from xspace_schema import XSpace

START_NS = 1_796_010_971_540_114_613


def with_session(space: Any, stop_after_ns: int | None = 1_000_000) -> Any:
    plane = space.planes.add(name="Task Environment")
    plane.stat_metadata[1].name = "profile_start_time"
    plane.stat_metadata[2].name = "profile_stop_time"
    plane.stats.add(metadata_id=1, uint64_value=START_NS)
    if stop_after_ns is not None:
        plane.stats.add(metadata_id=2, uint64_value=START_NS + stop_after_ns)
    return space


def host_plane(space: Any, *names: str) -> Any:
    """A plane whose events' metadata ids are 1, 2, ... for ``names``."""
    plane = space.planes.add(name="/host:CPU")
    for number, name in enumerate(names, 1):
        plane.event_metadata[number].name = name
    return plane


def read(space: Any, tmp_path: Path, name: str = "rank0.xplane.pb") -> Profile:
    file = tmp_path / name
    file.write_bytes(space.SerializeToString())
    profile = read_xspace(file)
    for table_name, table in profile.tables.items():
        assert table.schema == schema.TABLES[table_name], table_name
        table.validate(full=True)
    return profile


def said(profile: Profile) -> dict[str, int]:
    return {row["code"]: row["count"] for row in profile["diagnostics"].to_pylist()}


def test_times_count_from_the_sessions_start(tmp_path: Path) -> None:
    space = with_session(XSpace(hostnames=["node7"]))
    line = host_plane(space, "a").lines.add(timestamp_ns=5000)
    line.events.add(metadata_id=1, offset_ps=123_456, duration_ps=9)
    profile = read(space, tmp_path)
    assert (profile.host, profile.origin_ns) == ("node7", START_NS)
    assert (profile.capture_start_ps, profile.capture_end_ps) == (0, 1_000_000_000)
    assert profile["events"]["start_ps"].to_pylist() == [5_000_000 + 123_456]
    assert said(profile) == {}


def test_utc_line_times_are_made_relative(tmp_path: Path) -> None:
    space = with_session(XSpace(), stop_after_ns=None)
    plane = host_plane(space, "a")
    plane.lines.add(timestamp_ns=START_NS + 7).events.add(metadata_id=1, offset_ps=1, duration_ps=5)
    plane.lines.add(timestamp_ns=7).events.add(metadata_id=1, offset_ps=2)
    profile = read(space, tmp_path)
    assert profile.origin_ns == START_NS
    assert profile["events"]["start_ps"].to_pylist() == [7001, 7002]
    assert profile.capture_end_ps == 7006  # no stop time: the last end


def test_utc_line_times_give_the_origin_where_no_session_does(tmp_path: Path) -> None:
    space = XSpace()
    plane = host_plane(space, "a")
    plane.lines.add(timestamp_ns=0)  # an empty line's 0 says nothing
    plane.lines.add(timestamp_ns=START_NS + 3).events.add(metadata_id=1, offset_ps=1)
    plane.lines.add(timestamp_ns=START_NS).events.add(metadata_id=1, offset_ps=2)
    profile = read(space, tmp_path)
    assert profile.origin_ns == START_NS
    assert profile["events"]["start_ps"].to_pylist() == [3001, 2]
    assert said(profile) == {}


def test_no_absolute_time_is_said(tmp_path: Path) -> None:
    space = XSpace()
    host_plane(space, "a").lines.add(timestamp_ns=5).events.add(metadata_id=1)
    profile = read(space, tmp_path, "worker3.xplane.pb")
    assert (profile.origin_ns, profile.host) == (0, "worker3")
    assert said(profile) == {"no_absolute_time": 1}


def test_events_are_sorted_and_keep_their_args(tmp_path: Path) -> None:
    space = with_session(XSpace())
    plane = host_plane(space, "child", "parent", "late", "other line")
    plane.stat_metadata[1].name = "id"
    plane.stat_metadata[2].name = "kind"
    plane.stat_metadata[3].name = "from a table"
    first, second = plane.lines.add(id=1), plane.lines.add(id=2)
    for number, (offset_ps, duration_ps) in enumerate([(10, 5), (10, 20), (30, 1)], 1):
        event = first.events.add(metadata_id=number, offset_ps=offset_ps, duration_ps=duration_ps)
        event.stats.add(metadata_id=1, int64_value=-number)
        event.stats.add(metadata_id=2, ref_value=3)
    second.events.add(metadata_id=4, offset_ps=0).stats.add(metadata_id=1, uint64_value=2**64 - 1)
    # The latest event first in the file.
    events = list(first.events)
    del first.events[:]
    first.events.extend([events[2], events[0], events[1]])
    profile = read(space, tmp_path)
    assert profile["events"]["name"].to_pylist() == ["parent", "child", "late", "other line"]
    assert profile["events"]["line"].to_pylist() == [0, 0, 0, 1]
    args = profile["args"].to_pylist()
    assert [(row["event"], row["key"], row["kind"]) for row in args] == [
        (0, "id", schema.ArgKind.INT),
        (0, "kind", schema.ArgKind.TEXT),
        (1, "id", schema.ArgKind.INT),
        (1, "kind", schema.ArgKind.TEXT),
        (2, "id", schema.ArgKind.INT),
        (2, "kind", schema.ArgKind.TEXT),
        (3, "id", schema.ArgKind.UINT),
    ]
    assert [row["value"] for row in args if row["kind"] == schema.ArgKind.INT] == [-2, -1, -3]
    texts = profile["texts"]["text"].to_pylist()
    assert {texts[row["value"]] for row in args if row["kind"] == schema.ArgKind.TEXT} == {"from a table"}
    assert args[-1]["value"] == -1  # the bits of 2**64 - 1


def test_what_cannot_be_kept_is_counted(tmp_path: Path) -> None:
    space = with_session(XSpace(errors=["tracer failed"], warnings=["dropped 5"]))
    plane = host_plane(space, "a")
    plane.stat_metadata[1].name = "key"
    sound = plane.lines.add(timestamp_ns=1)
    sound.events.add(metadata_id=1, offset_ps=1, duration_ps=-8)  # ends before it starts
    sound.events.add(metadata_id=1, num_occurrences=4).stats.add(metadata_id=1, int64_value=1)
    sound.events.add(metadata_id=1, offset_ps=-(2**63)).stats.add(metadata_id=1, int64_value=2)
    sound.events.add(metadata_id=1, offset_ps=2, duration_ps=2**63 - 1)
    sound.events.add(metadata_id=99, offset_ps=3).stats.add(metadata_id=1)  # a stat without a value
    plane.lines.add(timestamp_ns=2**55).events.add(metadata_id=1, offset_ps=3)
    profile = read(space, tmp_path)
    assert profile["events"]["name"].to_pylist() == ["a", "#99"]
    assert profile["events"]["start_ps"].to_pylist() == [1001, 1003]
    assert profile["events"]["duration_ps"].to_pylist() == [0, 0]
    assert profile["args"].num_rows == 0
    assert said(profile) == {
        "xspace_error": 1,
        "xspace_warning": 1,
        "event_without_metadata": 1,
        "aggregated_event": 1,
        "time_out_of_range": 3,
        "negative_duration": 1,
        "stat_without_value": 1,
    }
    assert len(profile["lines"]) == 2


def test_plane_stats_are_facts_of_the_plane(tmp_path: Path) -> None:
    space = with_session(XSpace())
    plane = host_plane(space)
    for number, name in enumerate(("count", "vendor", "options", "share", "nothing"), 1):
        plane.stat_metadata[number].name = name
    plane.stats.add(metadata_id=1, int64_value=-3)
    plane.stats.add(metadata_id=2, str_value="AMD")
    plane.stats.add(metadata_id=3, bytes_value=b"1234")
    plane.stats.add(metadata_id=4, double_value=0.5)
    plane.stats.add(metadata_id=5)
    rows = [row for row in read(space, tmp_path)["plane_args"].to_pylist() if row["plane"] == "/host:CPU"]
    assert [(row["key"], row["kind"], row["text"]) for row in rows] == [
        ("count", schema.ArgKind.INT, None),
        ("vendor", schema.ArgKind.TEXT, "AMD"),
        ("options", schema.ArgKind.BYTES, None),
        ("share", schema.ArgKind.DOUBLE, None),
    ]
    assert [rows[0]["value"], rows[2]["value"]] == [-3, 4]
    assert np.array([rows[3]["value"]]).view(np.float64)[0] == 0.5


def test_programs_by_stat_name_or_id(tmp_path: Path) -> None:
    space = with_session(XSpace())
    plane = space.planes.add(name="/host:metadata")
    plane.stat_metadata[1].name = "Hlo Proto"
    plane.stat_metadata[2].name = "program_id"
    for number, name, hlo, program_id in (
        (1, "jit_f(30)", b"one", 30),
        (2, "jit_g(18446744073709551615)", b"two", None),  # 64 unsigned bits in the name
        (77, "bare", b"three", None),
        (5, "no program", None, None),
    ):
        entry = plane.event_metadata[number]
        entry.name = name
        if hlo is not None:
            entry.stats.add(metadata_id=1, bytes_value=hlo)
        if program_id is not None:
            entry.stats.add(metadata_id=2, uint64_value=program_id)
    programs = read(space, tmp_path)["programs"].to_pylist()
    assert [(row["program_id"], row["name"], row["hlo"]) for row in programs] == [
        (-1, "jit_g", b"two"),
        (30, "jit_f", b"one"),
        (77, "bare", b"three"),
    ]


def test_what_metadata_says_stays_reachable(tmp_path: Path) -> None:
    space = with_session(XSpace())
    plane = host_plane(space, "%dot = f32[] dot()", "plain", "%dot = f32[] dot()")
    plane.stat_metadata[1].name = "flops"
    plane.event_metadata[1].stats.add(metadata_id=1, uint64_value=1000)
    plane.event_metadata[3].stats.add(metadata_id=1, uint64_value=3000)  # same text, another program
    plane.event_metadata[3].display_name = "dot"
    line = plane.lines.add()
    for offset_ps, number in ((30, 3), (20, 2), (10, 1)):
        line.events.add(metadata_id=number, offset_ps=offset_ps)
    profile = read(space, tmp_path)
    described = profile["event_metadata"].to_pylist()
    flops = {row["event_metadata"]: row["value"] for row in profile["metadata_args"].to_pylist()}
    of_event = {row["event"]: row["event_metadata"] for row in profile["event_metadata_of"].to_pylist()}
    assert {event: flops[row] for event, row in of_event.items()} == {0: 1000, 2: 3000}
    assert [described[of_event[event]]["display_name"] for event in (0, 2)] == ["", "dot"]
    assert {row["plane"] for row in described} == {"/host:CPU"}


def test_device_times_put_a_plane_on_the_devices_clock(tmp_path: Path) -> None:
    """The plain clock runs 100 ps ahead, then stretches the second op from 50 to 90 ps.

    On the device's clock the ops lie at 900 and 1000, and what else its plane holds is placed by them; all of it then
    moves those 100 ps to the host's.
    """
    space = with_session(XSpace())
    plane = space.planes.add(name="/device:TPU:0")
    for number, name in enumerate(("op", "module", "marker"), 1):
        plane.event_metadata[number].name = name
    plane.stat_metadata[1].name = "device_offset_ps"
    plane.stat_metadata[2].name = "device_duration_ps"
    ops, modules = plane.lines.add(name="XLA Ops"), plane.lines.add(name="XLA Modules")
    for offset_ps, duration_ps, device_offset_ps, device_duration_ps in ((1000, 20, 900, 20), (1100, 90, 1000, 50)):
        event = ops.events.add(metadata_id=1, offset_ps=offset_ps, duration_ps=duration_ps)
        event.stats.add(metadata_id=1, uint64_value=device_offset_ps)
        event.stats.add(metadata_id=2, uint64_value=device_duration_ps)
    modules.events.add(metadata_id=2, offset_ps=990, duration_ps=30)
    modules.events.add(metadata_id=2, offset_ps=1100, duration_ps=95)
    modules.events.add(metadata_id=3, offset_ps=1145)  # half-way through the stretched op
    host = host_plane(space, "host")
    host.lines.add(name="python").events.add(metadata_id=1, offset_ps=1000, duration_ps=20)
    profile = read(space, tmp_path)
    events = profile["events"].to_pylist()
    assert [(row["start_ps"], row["duration_ps"]) for row in events] == [
        (1000, 20),
        (1100, 50),
        (990, 30),
        (1100, 55),
        (1125, 0),
        (1000, 20),  # the host's clock is another
    ]
    domains = profile["lines"]["clock_domain"].to_pylist()
    assert domains[0] == domains[1] != domains[2]


def test_gzip_is_read(tmp_path: Path) -> None:
    space = with_session(XSpace(hostnames=["h"]))
    file = tmp_path / "a.xplane.pb.gz"
    packed = gzip.compress(space.SerializeToString())
    file.write_bytes(packed)
    assert read_xspace(file).host == "h"
    file.write_bytes(packed[:-9])
    with pytest.raises(BadInputError, match="gzip"):
        read_xspace(file)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty: jaxlib writes no byte, and reports success, where a profile is larger than 2 GB"),
        (b"SQLite format 3\0" + bytes(84), "is not an XSpace"),
        (b"step,time\n1,2\n", "is not an XSpace"),
        (b'{"traceEvents": []}', "is not an XSpace"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not an XSpace"),
        (b"\x40\x01", "none of its fields"),  # field 8: protobuf, but nothing of ours
        (b"\x0a\x10\x12\x04abcd", r"planes\[0\], byte 1: a length beyond the end"),
        (
            b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x10\x12\x01a",
            r"planes\[0\], byte 1: a length beyond the end of its message",
        ),
    ],
)
def test_bad_files_name_file_and_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "bad.xplane.pb"
    file.write_bytes(content)
    with pytest.raises(BadInputError, match=reason) as caught:
        read_xspace(file)
    assert str(caught.value).startswith(str(file))


def test_texts_beyond_2_gb_stay_texts(tmp_path: Path) -> None:
    """Arrow's plain strings end at 2 GB. A hole of a file stands for their bytes: it takes no room."""
    with (tmp_path / "hole").open("wb+") as hole:
        hole.truncate((1 << 31) + 2)
        hole.seek(1 << 31)
        hole.write(b"ab")
        hole.flush()
        with mmap.mmap(hole.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = strings((np.array([0, 1 << 31, (1 << 31) + 2]), content))
            assert (len(found), found[1].as_py()) == (2, "ab")
            del found
    small = strings((np.array([0, 1, 3]), b"xab"))
    assert small.type == "string"
    assert small.to_pylist() == ["x", "ab"]


def test_missing_files_and_folders_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="No such file"):
        read_xspace(tmp_path / "absent.xplane.pb")
    with pytest.raises(BadInputError, match="is a folder"):
        read_xspace(tmp_path)


MEASURE = """
import resource, sys
from xprof_py import _native
import numpy
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
data = open(sys.argv[1], "rb").read()
columns = _native.decode_xspace(data)
print(len(columns["events"]["line"]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_stays_within_its_bound(tmp_path: Path) -> None:
    """The worst input: events of two bytes. 1 M of them are 2 MB, and their columns 24 MB."""

    def inside(number: int, payload: bytes) -> bytes:
        length, size = len(payload), bytearray()
        while length >= 0x80:
            size.append(length & 0x7F | 0x80)
            length >>= 7
        return bytes([number << 3 | 2, *size, length]) + payload

    file = tmp_path / "dense.xplane.pb"
    file.write_bytes(inside(1, inside(3, b"\x22\x00" * 1_000_000)))
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, str(file)], capture_output=True, text=True, check=True, timeout=60
    )
    events, grown_kib = map(int, measured.stdout.split())
    assert events == 1_000_000
    assert grown_kib * 1024 < 50 * file.stat().st_size
