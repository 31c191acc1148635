"""Traces in JSON are read as they are: every number exactly, every event, and what is broken is named."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_traces import BASE_NS, HOST, US, Trace, codes

from xprof_py import _native
from xprof_py.errors import BadInputError
from xprof_py.postprocess.readers.chrome_json import read_chrome_json
from xprof_py.postprocess.readers.chrome_text import Pieces, _inflated
from xprof_py.postprocess.readers.sources import find_sources
from xprof_py.postprocess.readers.xspace import strings

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ARGS = st.dictionaries(
    st.sampled_from(["correlation", "Seq", "stream", "dtype", "In msg nelems", "not read"]),
    st.one_of(st.integers(-(2**63), 2**64 - 1), TEXT, st.booleans(), st.none()),
)
EVENT = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("Xsfi"),
        "name": TEXT,
        "cat": TEXT,
        "pid": st.one_of(st.integers(0, 2**40), TEXT),
        "tid": st.one_of(st.integers(-5, 2**40), TEXT),
        "ts": st.decimals(0, 10**16, places=6, allow_nan=False),
        "dur": st.decimals(0, 10**9, places=3, allow_nan=False),
        "args": ARGS,
    }
)


def scanned(text: bytes, piece: int = 1 << 20) -> dict[str, Any]:
    scanner = _native.ChromeScanner()
    for at in range(0, len(text), piece):
        scanner.feed(text[at : at + piece])
    return scanner.finish()


def rows(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Events as dictionaries, with their arguments."""
    text = {name: strings(columns[name]).to_pylist() for name in ("names", "categories", "labels", "texts")}
    table = {name: np.asarray(column).tolist() for name, column in columns["events"].items()}
    out: list[dict[str, Any]] = [
        {
            "name": text["names"][table["name"][i]],
            "cat": text["categories"][table["category"][i]],
            "pid": text["labels"][table["process"][i]],
            "tid": text["labels"][table["thread"][i]],
            "ph": chr(table["phase"][i]),
            "ts": table["us"][i] * US + table["ps"][i],
            "dur": table["duration_ps"][i],
            "args": {},
        }
        for i in range(len(table["name"]))
    ]
    args = {name: np.asarray(column).tolist() for name, column in columns["args"].items()}
    for event, key, kind, value in zip(args["event"], args["key"], args["kind"], args["value"], strict=True):
        if kind == 2:
            value %= 2**64
        elif kind == 3:
            value = float(np.array([value]).view(np.float64)[0])
        elif kind == 4:
            value = text["texts"][value]
        elif kind == 6:
            value = bool(value)
        out[event]["args"][columns["arg_names"][key]] = value
    return out


def as_json(value: Any, space: str, ascii_only: bool) -> str:
    """JSON text; decimals digit for digit, objects with ``space`` between their tokens."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dict):
        members = (f"{json.dumps(k)}{space}:{space}{as_json(v, space, ascii_only)}{space}" for k, v in value.items())
        return "{" + space + f",{space}".join(members) + "}"
    return json.dumps(value, ensure_ascii=ascii_only)


@settings(max_examples=200, deadline=None)
@given(
    events=st.lists(EVENT, max_size=6),
    piece=st.integers(1, 40),
    space=st.sampled_from(["", " ", "\n  "]),
    ascii_only=st.booleans(),
)
def test_what_json_says_is_what_is_read(events: list[dict[str, Any]], piece: int, space: str, ascii_only: bool) -> None:
    """Python's json is the other reader, of the same text, with decimals for times."""
    text = '{"traceEvents": [' + ",".join(as_json(event, space, ascii_only) for event in events) + "]}"
    wanted = []
    for event in json.loads(text, parse_float=Decimal)["traceEvents"]:
        args = {k: v for k, v in event["args"].items() if k != "not read" and v is not None}
        exact = {key: int(Decimal(event[key]) * US) for key in ("ts", "dur")}
        wanted.append({**event, **exact, "pid": str(event["pid"]), "tid": str(event["tid"]), "args": args})
    assert rows(scanned(text.encode(), piece)) == wanted


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 150), st.integers(20, 200))
def test_any_order_of_keys_and_any_space_between_is_read(rng: Any, kinds_of_key: int, piece: int) -> None:
    """What stands between values is guessed from what stood there before: here the guess is wrong in every way."""
    events, wanted = [], []
    for number in range(rng.randint(1, 40)):
        said: dict[str, Any] = {"ph": "X", "name": f"n{number % 3}", "ts": number, "dur": 1.5, "pid": 7, "tid": 8}
        said["args"] = {"correlation": number, "stream": 3, "Seq": -number, f"other {number % 7}": [1, {"ts": 5}]}
        said |= {f"{'k' * rng.randint(1, 40)}{rng.randint(0, kinds_of_key)}": rng.choice([1, "}", None, [{}]])}
        for of in (said, said["args"]):
            members = list(of.items())
            rng.shuffle(members)
            of.clear()
            of.update(members)
        events.append(as_json(said, rng.choice(["", " ", "\t", "\n    "]), ascii_only=True))
        wanted.append((said["name"], number * US, 1_500_000, {"correlation": number, "stream": 3, "Seq": -number}))
    text = '{"traceEvents": [' + ",".join(events) + "]}"
    found = rows(scanned(text.encode(), piece))
    assert [(row["name"], row["ts"], row["dur"], row["args"]) for row in found] == wanted


@pytest.mark.parametrize(
    ("text", "us", "ps"),
    [
        ("999999999999999999", 999_999_999_999_999_999, 0),
        ("9999999999999999999", 0, -1),
        ("1.9999994", 1, 999_999),
        ("1.9999996", 2, 0),
        ("0.000001", 0, 1),
        ("-0.5", -1, 500_000),
        ("1e3", 1000, 0),
        ("5.", 5, 0),
        (".25", 0, 250_000),
        ("007.10", 7, 100_000),
    ],
)
def test_times_of_every_length_are_exact(text: str, us: int, ps: int) -> None:
    events = scanned(f'[{{"ph": "X", "ts": {text} }}]'.encode())["events"]
    assert (np.asarray(events["us"]).tolist(), np.asarray(events["ps"]).tolist()) == ([us], [ps])


def test_times_are_decimal_numbers(tmp_path: Path) -> None:
    """4458676522690.655 us has no double that is exact to the nanosecond's digits: 4458676522690655 ns is exact."""
    trace = Trace()
    for start in (0, 4458676522690.655, 4458676522690.655):
        trace.add("cpu_op", "aten::add", start, start, HOST, HOST)
        trace.events[-1]["dur"] = 156.777
    text = trace.text()
    file = trace.written(tmp_path / "a.json")
    # 51 days apart: the one that is far from the others is not believed.
    profile = read_chrome_json(file)
    assert codes(profile)["time_out_of_range"] == 1
    columns = scanned(text.encode())
    assert np.asarray(columns["events"]["us"]).tolist() == [0, 4458676522690, 4458676522690]
    assert np.asarray(columns["events"]["ps"]).tolist() == [0, 655000, 655000]
    assert np.asarray(columns["events"]["duration_ps"]).tolist() == [156_777_000] * 3


def test_profiles_of_different_bases_lie_on_one_axis(tmp_path: Path) -> None:
    """Ranks on both sides of Kineto's floor of base times: 7 889 238 s less in the one, more in the other."""
    first = Trace().step(0, 7_889_238_000_000 + 100, 7_889_238_000_000 + 200).read(tmp_path)
    second = Trace()
    second.top["baseTimeNanoseconds"] = BASE_NS + 7_889_238 * 10**9
    assert second.step(0, 100, 200).read(tmp_path).origin_ns == first.origin_ns == BASE_NS + 7_889_238 * 10**9 + 100_000


def test_absolute_microseconds_of_older_files_are_utc(tmp_path: Path) -> None:
    trace = Trace().step(0, 1694128201426556, 1694128201427556)
    del trace.top["baseTimeNanoseconds"]
    assert trace.read(tmp_path).origin_ns == 1694128201426556000
    trace = Trace().step(0, 100, 200)
    del trace.top["baseTimeNanoseconds"]
    profile = trace.read(tmp_path)
    assert profile.origin_ns == 0
    assert codes(profile) == {"no_absolute_time": 1}


def test_a_file_that_breaks_off_is_read_to_its_last_event(tmp_path: Path) -> None:
    text = Trace().step(0, 0, 100).step(1, 100, 200).step(2, 200, 300).text()
    file = tmp_path / "a.json"
    file.write_text(text[: text.index("ProfilerStep#2") + 5])
    profile = read_chrome_json(file)
    assert profile["events"].num_rows == 2
    row = profile["diagnostics"].to_pylist()[0]
    assert (row["code"], row["place"]) == (
        "truncated",
        f"byte {text.index('#1') + text[text.index('#1') :].index('}}') + 3}",
    )
    packed = gzip.compress(text.encode() * 3)
    file.write_bytes(packed[: len(packed) - 9])
    assert codes(read_chrome_json(file))["truncated"] == 1


def test_what_is_packed_is_read_whatever_is_behind_it(tmp_path: Path) -> None:
    """Arrow unpacks what is whole; of what is not zlib says how far it goes. The pieces are those of zlib alone."""
    rng = np.random.default_rng(5)
    plain = rng.integers(0, 64, 3 << 20, np.uint8).tobytes()
    packed = gzip.compress(plain[: 2 << 20]) + gzip.compress(plain[2 << 20 :])
    file = tmp_path / "a.json.gz"
    for content, broken in (
        (packed, ""),
        (packed + bytes(700), ""),
        (packed + b"else", ""),
        (packed[:-5], "the compressed file breaks off"),
        (packed[: len(packed) // 2], "the compressed file breaks off"),
        (packed[:-8] + bytes(8), "incorrect data check"),
    ):
        file.write_bytes(content)
        pieces = Pieces(file)
        read = b"".join(pieces)
        assert broken in pieces.broken
        assert (not broken) == (pieces.broken == "")
        by_zlib = []
        with contextlib.suppress(EOFError, zlib.error):
            by_zlib.extend(_inflated(io.BytesIO(content), 0))
        assert read == b"".join(by_zlib)
        assert plain.startswith(read)
        assert broken or read == plain


def test_damage_costs_the_events_that_it_touches(tmp_path: Path) -> None:
    text = Trace().step(0, 0, 100).step(1, 100, 200).step(2, 200, 300).text()
    at = text.index('"ph"', text.index("ProfilerStep#0"))
    file = tmp_path / "a.json"
    file.write_text(text[:at] + "#" + text[at + 1 :])
    profile = read_chrome_json(file)
    # Read are steps 0 and 2.
    assert profile["args"]["value"].to_pylist() == [0, 2]
    row = profile["diagnostics"].to_pylist()[0]
    assert (row["code"], row["count"], row["place"]) == ("damaged", 1, f"byte {at - 1}")


def test_strings_with_control_bytes_and_lone_backslashes_are_kept(tmp_path: Path) -> None:
    """Reproducer of pytorch#130622 and #98432: json.loads refuses both."""
    text = Trace().step(0, 0, 100).step(1, 100, 200).step(2, 200, 300).text()
    text = text.replace("ProfilerStep#0", "raw\x01byte").replace("ProfilerStep#1", "C:\\q")
    text = text.replace("ProfilerStep#2", "ends\\")
    with pytest.raises(ValueError, match="control character"):
        json.loads(text)
    file = tmp_path / "a.json"
    file.write_text(text)
    profile = read_chrome_json(file)
    assert profile["events"]["name"].to_pylist() == ["raw\x01byte", "C:\\q", "ends\\"]
    row = profile["diagnostics"].to_pylist()[0]
    assert (row["code"], row["count"], row["place"]) == ("odd_strings", 3, f"byte {text.index(chr(1))}")


def test_a_bad_value_beside_the_events_costs_itself_alone(tmp_path: Path) -> None:
    """Kineto writes metadata values as they come."""
    file = tmp_path / "a.json"
    file.write_text(Trace().step(0, 0, 100).text().replace('"schemaVersion": 1', '"env": {bad: [}, "schemaVersion": 1'))
    profile = read_chrome_json(file)
    assert profile["events"].num_rows == 1
    assert codes(profile)["damaged"] == 1


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"not json", "begins with neither"),
        (b"  \n", "holds nothing but white space"),
        (b'{"a": 1}', "holds no events"),
        (b"[]", "holds no events"),
        (b"[1, 2]", "holds no events"),
        (b'{"traceEvents": [{"ph": "X", "name": "a"}]}', "no event with a time"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(BadInputError, match=why):
        read_chrome_json(file)


def test_work_without_a_time_is_left_out_and_counted(tmp_path: Path) -> None:
    """kineto#109: kernels of time 0 and duration 0, by the thousand."""
    trace = Trace().step(0, 10_000, 10_100).launched((10_000, 10_010), (10_020, 10_030))
    for _ in range(3):
        trace.work((0, 0))
    profile = trace.read(tmp_path)
    assert codes(profile) == {"work_without_time": 3}
    assert profile["events"].num_rows == 3


def test_the_order_of_events_in_the_file_does_not_matter(tmp_path: Path) -> None:
    trace = Trace().step(0, 0, 100).launched((0, 10), (20, 30)).launched((10, 15), (30, 60), stream=20)
    first = trace.read(tmp_path)
    trace.events.reverse()
    second = trace.read(tmp_path)
    for name in ("lines", "events"):
        assert first[name].to_pylist() == second[name].to_pylist()


def test_archives_are_read_member_by_member(tmp_path: Path) -> None:
    file = tmp_path / "ranks.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for rank in (1, 0):
            content = Trace(rank, 2).step(rank, 0, 100).text().encode()
            member = tarfile.TarInfo(f"some/rank{rank}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    sources = find_sources([file]).processes
    assert [source.member for source in sources] == ["some/rank0.json", "some/rank1.json"]
    assert [read_chrome_json(file, s.member)["args"]["value"].to_pylist() for s in sources] == [[0], [1]]
    # A folder's archives may be anything, and as large: they are not searched, but shown.
    with pytest.raises(BadInputError, match=r"archives are read where they are named: ranks.tar.gz"):
        find_sources([tmp_path])
    with pytest.raises(BadInputError, match="is not in the archive"):
        read_chrome_json(file, "other")
