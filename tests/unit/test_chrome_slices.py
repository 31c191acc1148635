"""A trace in JSON that several threads read is what one makes of it, wherever it is cut and whatever is broken."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_traces import Trace

from xprof_py import _native
from xprof_py.cli.analyze import analyze
from xprof_py.errors import BadInputError
from xprof_py.postprocess.readers import chrome_stretches
from xprof_py.postprocess.readers.chrome_json import read_chrome_json
from xprof_py.postprocess.readers.chrome_stretches import scan_in_stretches
from xprof_py.postprocess.readers.chrome_text import Pieces
from xprof_py.postprocess.readers.workers import Workers

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from("Xsfi"), "name": TEXT, "cat": TEXT, "pid": st.integers(0, 9), "tid": TEXT},
    optional={
        "ts": st.integers(0, 10**9),
        "args": st.dictionaries(st.sampled_from(["Seq", "dtype", "not read"]), st.one_of(TEXT, st.integers())),
    },
)
ODD = (
    '{"ph":"X","name":"raw\n},\n{\n"ph": "X"","ts":1,"pid":0,"tid":0}',
    '{"ph":"X","name":"raw\x01\n},{"ph":1}","ts":1}',
    '{"ph":"X","name":"ends\\","cat":"C:\\dir","ts":2}',
    '{"ph":"X","name":"like events","args":{"of":[{"a":1},{"ph":"X","ts":3},{"ph":"i"}],"Seq":1}}',
    '{"ph":"X","name":"text","args":{"dtype":"[{\\"a\\":1},{\\"ph\\":\\"X\\"}]","Seq":1e400,"kind":"\\ud800"}}',
    '{"ph":"X","name":"large","args":{"Seq":18446744073709551616}}',
    '{"name":"no phase","args":{"dtype":"lost"}}',
    '{"ph":"X","name":"' + "long " * 40 + '","args":{"Process Group Ranks":"[0, 1]"}}',
    "17",
    "[[{},{}],{}]",
    '{"ph":"X" "name"}',
    '{"traceEvents":[{"ph":"X"},{"ph":"X"}]}',
    "",
)
BESIDE = (
    '"a":[{"x":1},{"ph":"X","ts":1},{"ph":"X"}]',
    '"traceEvents":7',
    '"b":"},{\\"ph\\":1}"',
    '"c":{bad: [}',
    '"d":1',
)


def columns(found: dict[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """Every column and count of a trace, as bytes."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from columns(value, f"{under}{name}.")
        elif isinstance(value, tuple) and name != "arg_names":
            yield under + name, [bytes(memoryview(part)) for part in value]
        else:
            yield under + name, value if isinstance(value, int | tuple) else bytes(memoryview(value))


def outcome(scan: Callable[[], dict[str, Any]]) -> Any:
    """The columns, or what is said of the error."""
    try:
        return dict(columns(scan()))
    except _native.DecodeError as error:
        return error.offset, error.place, error.reason


def scanned(text: bytes, piece: int = 1 << 20) -> dict[str, Any]:
    scanner = _native.ChromeScanner()
    for one in in_pieces(text, piece):
        scanner.feed(one)
    return scanner.finish()


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Traces with what readers stumble over, and damage."""
    one = st.one_of(EVENT.map(json.dumps), st.sampled_from(ODD))
    between = draw(st.sampled_from([",", ",\n", " ,\n  ", ",,"]))
    listed = "[" + draw(st.sampled_from(["", "\n"])) + between.join(draw(st.lists(one, max_size=12))) + "]"
    text = listed
    if draw(st.booleans()):
        before, after = (draw(st.lists(st.sampled_from(BESIDE), max_size=2)) for _ in range(2))
        again = [f'"traceEvents": {listed}'] * draw(st.integers(1, 2))
        text = "{" + ", ".join([*before, *again, *after]) + "}" + draw(st.sampled_from(["", "\n", " {}, {}"]))
    content = bytearray(draw(st.sampled_from([b"", b"\xef\xbb\xbf", b"  \n"])) + text.encode("utf-8", "replace"))
    for _ in range(draw(st.integers(0, 3))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.sampled_from(b'"\\{}[],:\n\x00\xff1a'))
    return bytes(content[: draw(st.sampled_from([len(content), draw(st.integers(0, len(content)))]))])


def in_pieces(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def joined(text: bytes, wanted: int, piece: int, order: random.Random) -> tuple[dict[str, Any], list[bool]]:
    """(columns, what was proven) of stretches that are scanned in any order, some of them not at all."""
    stretches = [_native.ChromeStretch(wanted)]
    for one in in_pieces(text, piece):
        following = stretches[-1].hold(one)
        stretches += [following] if following is not None else []
    for stretch in order.sample(stretches, order.randint(0, len(stretches))):
        stretch.scan()
    scanner = _native.ChromeScanner()
    proven = [scanner.join(stretch) for stretch in stretches]
    return scanner.finish(), proven


@settings(max_examples=200, deadline=None)
@given(texts(), st.integers(1, 200), st.integers(1, 60), st.randoms(use_true_random=False))
def test_stretches_make_the_same_rows_numbers_and_errors(
    text: bytes, wanted: int, piece: int, order: random.Random
) -> None:
    whole = outcome(lambda: scanned(text))
    assert outcome(lambda: scanned(text, piece)) == whole
    assert outcome(lambda: joined(text, wanted, piece, order)[0]) == whole
    assert outcome(lambda: scan_in_stretches(in_pieces(text, piece), Workers(3), wanted)) == whole


def steps(count: int) -> str:
    trace = Trace(1, 2)
    for number in range(count):
        trace.step(number, 1000 * number, 1000 * number + 900)
        trace.launched((1000 * number + 5, 1000 * number + 9), (1000 * number + 20, 1000 * number + 90), Seq=number)
    return trace.text(indent=1)


class EveryStretch(random.Random):
    def sample(self, population: Any, k: int, **_: Any) -> list[Any]:
        return list(population)


def test_what_the_stretches_read_is_used() -> None:
    """Of a sound trace all stretches but the first, of whose beginning nothing is known."""
    text = steps(50).encode()
    found, proven = joined(text, 2000, 100, EveryStretch())
    assert len(proven) > 10
    assert proven == [False] + [True] * (len(proven) - 1)
    assert outcome(lambda: found) == outcome(lambda: scanned(text))


def test_what_only_looks_like_an_event_is_read_again() -> None:
    """Objects in a list among the arguments: a stretch that begins there is wrong, the one behind it is not."""
    inner = ", ".join(['{"ph": "X", "name": "no event", "ts": 1}'] * 60)
    text = steps(20).replace('"Seq": 7', f'"list": [{inner}], "Seq": 7').encode()
    found, proven = joined(text, 500, 100, EveryStretch())
    # About 2700 bytes of them, and the stretch that begins within the last one.
    assert 3 <= proven[1:].count(False) <= 7
    assert proven[1]
    assert proven[-1]
    assert outcome(lambda: found) == outcome(lambda: scanned(text))
    assert b"no event" not in b"".join(outcome(lambda: found)["names"])


def test_damage_is_one_place_though_a_cut_lies_in_it() -> None:
    """Lost are two events, one after the other: one stretch of bytes, of which each was lost by another scanner."""
    events = [f'{{"ph": "X", "name": "{i}", "ts": {i}}}' for i in range(6)]
    events[2] = events[2].replace('"ts"', "#ts")
    events[3] = events[3].replace('"ts"', "#ts")
    text = ("[" + ",".join(events) + "]").encode()
    whole = scanned(text)
    lost = [list(memoryview(whole["damages"][name])) for name in ("at", "end")]
    assert lost == [[text.index(b'{"ph": "X", "name": "2"')], [text.index(b'{"ph": "X", "name": "4"')]]
    for wanted in range(1, len(text)):
        assert outcome(lambda w=wanted: joined(text, w, 1, EveryStretch())[0]) == outcome(lambda: whole)


@pytest.mark.parametrize("end", ["", "]", "]}", '], "a": {"b": [{"x": 1},{"ph": "X"}]}}', '], "bad": [}'])
def test_any_end_at_any_cut(end: str) -> None:
    text = ('{"traceEvents": [' + ",".join(f'{{"ph": "X", "ts": {i}}}' for i in range(9)) + end).encode()
    for length, wanted in itertools.product(range(len(text) - 30, len(text) + 1), (10, 23, 47)):
        cut = text[:length]
        assert outcome(lambda c=cut, w=wanted: joined(c, w, 7, EveryStretch())[0]) == outcome(lambda c=cut: scanned(c))


def test_strings_that_are_not_utf8_are_counted_once() -> None:
    """However often what holds them is read until it is whole."""
    event = (
        b'{"ph": "X", "name": "\xff", "ts": 1, "cat": "' + b"long" * 20 + b'", "args": {"dtype": "\xfe", "Seq": 1%s}}'
    )
    text = b"[" + b",".join([event % (b"0" * 30)] * 5) + b"]"
    for found in (scanned(text), scanned(text, 10), joined(text, 50, 10, EveryStretch())[0]):
        assert (found["repaired_strings"], found["large_numbers"]) == (10, 5)


def test_an_event_beyond_the_limit_is_lost_at_any_cut() -> None:
    """64 MB and no byte more are one event; how the text came does not matter."""
    fill = (64 << 20) - len('{"ph":"X","name":""}')
    for more, kept in ((0, 3), (1, 2)):
        long = b'{"ph":"X","name":"' + b"x" * (fill + more) + b'"}'
        text = b'[{"ph":"X"},' + long + b',{"ph":"X"}]'
        for found in (
            scanned(text, 3_333_333),
            scan_in_stretches(in_pieces(text, 1 << 20), Workers(2), 2 << 20),
        ):
            assert len(memoryview(found["events"]["at"])) == kept
            assert list(memoryview(found["damages"]["at"])) == [12] * (3 - kept)
            assert found["length"] == len(text)


def test_stretches_are_used_once_and_in_their_order() -> None:
    with pytest.raises(ValueError, match="wanted must be"):
        _native.ChromeStretch(0)
    first = _native.ChromeStretch(20)
    second = first.hold(b'[{"ph": "X", "ts": 1}, {"ph": "X", "ts": 2}]')
    assert second is not None
    with pytest.raises(RuntimeError, match="is full"):
        first.hold(b"more")
    second.scan()
    with pytest.raises(RuntimeError, match="is scanned"):
        second.scan()
    with pytest.raises(TypeError, match="that is joined"):
        second.hold(b"", first)
    scanner = _native.ChromeScanner()
    assert (scanner.join(first), scanner.join(second)) == (False, True)
    with pytest.raises(RuntimeError, match="is joined"):
        scanner.join(second)
    with pytest.raises(TypeError, match="takes a ChromeStretch"):
        scanner.join(b"")  # type: ignore[arg-type]
    assert list(memoryview(scanner.finish()["events"]["us"])) == [1, 2]
    with pytest.raises(RuntimeError, match="is finished"):
        scanner.join(_native.ChromeStretch(20))


def test_a_file_is_read_the_same_by_any_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_stretches, "WORTH_A_WORKER_BYTES", 0)
    monkeypatch.setattr(chrome_stretches, "_STRETCH_BYTES", 1 << 12)
    monkeypatch.setattr("xprof_py.postprocess.readers.chrome_text.PIECE_BYTES", 1 << 10)
    used = []
    monkeypatch.setattr(
        chrome_stretches, "scan_in_stretches", lambda *asked: used.append(asked[1].count) or scan_in_stretches(*asked)
    )
    sound = steps(60).encode()
    packed = gzip.compress(sound)
    contents = {
        "a.json": sound,
        "b.json.gz": packed,
        "cut.json.gz": packed[:-200],
        "crc.json.gz": packed[:-8] + bytes(8),
    }
    for name, content in contents.items():
        file = tmp_path / name
        file.write_bytes(content)
        one = read_chrome_json(file)
        for count in (2, 5):
            again = read_chrome_json(file, workers=Workers(count))
            assert again.metadata == one.metadata
            assert all(again[table].equals(one[table]) for table in one.tables)
    assert used == [2, 5] * 4
    outs = []
    for count in (1, 2):
        out, _ = analyze([tmp_path / "b.json.gz"], tmp_path / f"out{count}", workers=count)
        outs.append({file.name: file.read_bytes() for file in out.iterdir() if file.is_file()})
    assert outs[0] == outs[1]
    assert used[8:] == [2]
    assert json.loads(outs[0]["summary.json"])["steps"]["count"] == 60


def test_errors_are_those_of_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_stretches, "WORTH_A_WORKER_BYTES", 0)
    for content in (b"not json", b"  \n", b"", b"\x1f\x8bnothing"):
        file = tmp_path / "a.json"
        file.write_bytes(content)
        said = []
        for count in (1, 3):
            with pytest.raises(BadInputError) as caught:
                read_chrome_json(file, workers=Workers(count))
            said.append(str(caught.value))
        assert said[0] == said[1]
    with pytest.raises(BadInputError, match="nowhere"):
        read_chrome_json(tmp_path / "nowhere", workers=Workers(2))


def test_an_error_while_reading_ends_all_threads() -> None:
    def pieces() -> Any:
        yield from in_pieces(steps(20).encode(), 100)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        scan_in_stretches(pieces(), Workers(4), 500)


def test_stretches_that_are_mostly_wrong_are_scanned_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of what looks like events beside the list of events: nothing is scanned twice for long."""
    text = ('{"other": [' + ",".join(['{"ph": "X"}'] * 4000) + "]," + steps(3)[1:]).encode()
    aheads: list[bool] = []
    scan = chrome_stretches._Stretches._scan

    def noted(self: Any, stretch: Any, *, ahead: bool) -> None:
        aheads.append(ahead)
        scan(self, stretch, ahead=ahead)

    monkeypatch.setattr(chrome_stretches._Stretches, "_scan", noted)
    found = scan_in_stretches(in_pieces(text, 100), Workers(2), 400)
    assert outcome(lambda: found) == outcome(lambda: scanned(text))
    assert len(aheads) > 80
    assert sum(aheads) < 20


def test_small_files_are_left_to_one_thread(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(gzip.compress(bytes(100)))
    assert Pieces(file).about_bytes() == 10 * file.stat().st_size
    file.write_bytes(b"[" + bytes(99))
    assert Pieces(file).about_bytes() == 100
    assert Pieces(tmp_path / "nowhere").about_bytes() == 0
