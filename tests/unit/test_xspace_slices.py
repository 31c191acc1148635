"""One XSpace decoded by several threads is what one thread makes of it, wherever it is cut and whoever reads what."""

from __future__ import annotations

import gzip
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_spaces import SPACES

from xprof_py import _native
from xprof_py.cli.analyze import analyze
from xprof_py.errors import BadInputError
from xprof_py.postprocess.readers import begun_xspace, workers, xspace
from xprof_py.postprocess.readers.workers import Workers, worker_count
from xprof_py.postprocess.readers.xspace import read_xspace
from xspace_schema import XSpace

RECORDED = Path(__file__).parent.parent / "data" / "jax_cpu"


def columns(found: dict[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """Every column and count of a decoded file, as bytes."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from columns(value, f"{under}{name}.")
        elif isinstance(value, tuple):
            yield under + name, [bytes(memoryview(part)) for part in value]
        else:
            yield under + name, value if isinstance(value, int) else bytes(memoryview(value))


def outcome(decode: Callable[[], dict[str, Any]]) -> Any:
    """The columns, or what is said of the error."""
    try:
        return dict(columns(decode()))
    except _native.DecodeError as error:
        return error.offset, error.place, error.reason


def sliced(data: bytes, wanted: int, order: random.Random) -> dict[str, Any]:
    """Decoded by four threads, slices taken in any order."""
    slices = _native.XSpaceSlices(data, wanted)
    places = list(range(len(slices)))
    order.shuffle(places)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(slices.read, places))
    return slices.join()


@settings(max_examples=60, deadline=None)
@given(SPACES, st.integers(1, 9), st.randoms(use_true_random=False))
def test_slices_make_the_same_rows_and_numbers_as_the_whole(space: Any, wanted: int, order: random.Random) -> None:
    data = XSpace(**space).SerializeToString()
    assert outcome(lambda: sliced(data, wanted, order)) == outcome(lambda: _native.decode_xspace(data))


@settings(max_examples=60, deadline=None)
@given(SPACES, st.integers(1, 9), st.randoms(use_true_random=False), st.data())
def test_damage_is_told_as_it_is_of_the_whole(space: Any, wanted: int, order: random.Random, draw: Any) -> None:
    data = bytearray(XSpace(**space).SerializeToString())
    for _ in range(draw.draw(st.integers(1, 3)) if data else 0):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    del data[draw.draw(st.integers(0, len(data))) :]
    damaged = bytes(data)
    assert outcome(lambda: sliced(damaged, wanted, order)) == outcome(lambda: _native.decode_xspace(damaged))


def a_line(events: int, texts: Callable[[int], str]) -> bytes:
    space = XSpace(hostnames=["h"])
    plane = space.planes.add(name="/host:CPU")
    plane.event_metadata[1].name = "op"
    plane.stat_metadata[1].name = "why"
    line = plane.lines.add(id=7, name="main", timestamp_ns=5)
    for number in range(events):
        event = line.events.add(metadata_id=1, offset_ps=number, duration_ps=1)
        event.stats.add(metadata_id=1, str_value=texts(number))
    return bytes(space.SerializeToString())


def test_one_line_is_cut_between_its_events_into_slices_of_like_size() -> None:
    data = a_line(1000, lambda number: f"text {number % 7}")
    slices = _native.XSpaceSlices(data, 4)
    assert len(slices) == 4
    for index in range(4):
        slices.read(index)
    assert dict(columns(slices.join())) == dict(columns(_native.decode_xspace(data)))


def test_texts_that_only_later_slices_have_keep_their_order() -> None:
    data = a_line(64, lambda number: "early" if number < 40 else f"late {number}")
    assert outcome(lambda: sliced(data, 3, random.Random(1))) == outcome(lambda: _native.decode_xspace(data))


def test_slices_are_read_once_and_joined_when_all_are() -> None:
    slices = _native.XSpaceSlices(a_line(10, str), 2)
    slices.read(0)
    with pytest.raises(RuntimeError, match="has been read"):
        slices.read(0)
    with pytest.raises(RuntimeError, match="not all"):
        slices.join()
    with pytest.raises(IndexError):
        slices.read(2)
    slices.read(1)
    slices.join()
    with pytest.raises(RuntimeError, match="joined"):
        slices.join()
    with pytest.raises(ValueError, match="wanted"):
        _native.XSpaceSlices(b"", 0)


# --- the threads ----------------------------------------------------------------------------------------------------


def test_what_tasks_return_is_in_their_order_whoever_does_them() -> None:
    gate = threading.Barrier(3)

    def task(number: int) -> Callable[[], tuple[int, int]]:
        def run() -> tuple[int, int]:
            if number < 3:
                gate.wait(timeout=30)  # three threads are at work at once
            return number, threading.get_ident()

        return run

    found = Workers(3).run([task(number) for number in range(9)])
    assert [number for number, _ in found] == list(range(9))
    assert len({thread for _, thread in found[:3]}) == 3


def test_of_several_errors_the_first_tasks_is_raised_when_all_have_ended() -> None:
    ended = []

    def task(number: int) -> Callable[[], None]:
        def run() -> None:
            ended.append(number)
            if number in (2, 4):
                raise ValueError(number)

        return run

    for count in (1, 3):
        ended.clear()
        with pytest.raises(ValueError, match="2"):
            Workers(count).run([task(number) for number in range(6)])
        assert sorted(ended) == list(range(6))


def test_small_input_is_worth_one_worker_unless_more_are_asked_for() -> None:
    assert worker_count(None, 1000) == 1
    assert worker_count(5, 1000) == 5
    assert worker_count(None, 1 << 40) == len(os.sched_getaffinity(0))


# --- reading and analysing ------------------------------------------------------------------------------------------


@pytest.fixture
def every_size_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (workers, xspace, begun_xspace):
        monkeypatch.setattr(module, "WORTH_A_WORKER_BYTES", 1)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    file = tmp_path / "planted_input.xplane.pb"
    file.write_bytes(gzip.decompress((RECORDED / f"{file.name}.gz").read_bytes()))
    return file


@pytest.mark.usefixtures("every_size_is_worth_it")
@pytest.mark.parametrize("name", ["planted_input", "planted_memory"])
def test_a_profile_read_by_several_is_the_profile_read_by_one(name: str) -> None:
    file = RECORDED / f"{name}.xplane.pb.gz"
    alone, shared = read_xspace(file), read_xspace(file, Workers(3))
    assert dict(shared.tables) == dict(alone.tables)
    assert (shared.origin_ns, shared.capture_end_ps) == (alone.origin_ns, alone.capture_end_ps)


@pytest.mark.usefixtures("every_size_is_worth_it")
def test_events_out_of_order_where_two_workers_meet_are_sorted(tmp_path: Path) -> None:
    space = XSpace(hostnames=["h"])
    plane = space.planes.add(name="/host:CPU")
    line = plane.lines.add(id=1, name="main", timestamp_ns=5)
    for name, start in enumerate((0, 10, 5, 20), 1):
        plane.event_metadata[name].name = f"event {name}"
        line.events.add(metadata_id=name, offset_ps=start, duration_ps=1)
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(space.SerializeToString())
    events = read_xspace(file, Workers(2))["events"]
    assert events["start_ps"].to_pylist() == sorted(events["start_ps"].to_pylist())
    assert events["name"].to_pylist() == ["event 1", "event 3", "event 2", "event 4"]


def written(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.mark.usefixtures("every_size_is_worth_it")
def test_an_analysis_has_the_same_bytes_for_any_number_of_workers(recorded: Path, tmp_path: Path) -> None:
    # Decoding begins before the file is asked for, unless one worker was asked for.
    found = [written(analyze([recorded], tmp_path / f"out-{count}", workers=count)[0]) for count in (1, 2, 5)]
    assert found[0] == found[1] == found[2]


@pytest.mark.usefixtures("every_size_is_worth_it")
def test_what_was_begun_is_taken_for_that_file_alone(recorded: Path, tmp_path: Path) -> None:
    begun = begun_xspace.begin([recorded], 2)
    assert begun is not None
    other = tmp_path / "other.xplane.pb"
    other.write_bytes(a_line(3, str))
    assert begun.take(other) is None
    taken = begun.take(recorded)
    assert taken is not None
    assert taken[0] == recorded.read_bytes()
    assert dict(columns(taken[1].join())) == dict(columns(_native.decode_xspace(taken[0])))


@pytest.mark.usefixtures("every_size_is_worth_it")
def test_a_file_that_changed_since_is_read_again(recorded: Path) -> None:
    begun = begun_xspace.begin([recorded], 2)
    assert begun is not None
    begun._cut.wait()
    recorded.write_bytes(a_line(3, str))
    assert read_xspace(recorded, Workers(2, begun))["events"].num_rows == 3


@pytest.mark.usefixtures("every_size_is_worth_it")
def test_work_begins_only_where_one_large_file_is_meant(recorded: Path, tmp_path: Path) -> None:
    begin = begun_xspace.begin
    assert begin([recorded], 1) is None
    assert begin([recorded, recorded], 2) is None
    assert begin([tmp_path / "absent.xplane.pb"], 2) is None
    assert begin([""], 2) is None
    assert begin([Path("/dev/null")], 2) is None
    assert begin([recorded.parent], 2) is not None
    (tmp_path / "second.xplane.pb").write_bytes(a_line(3, str))
    assert begin([tmp_path], 2) is None


@pytest.mark.usefixtures("every_size_is_worth_it")
def test_a_compressed_file_of_that_name_is_read_as_ever(recorded: Path) -> None:
    plain = read_xspace(recorded)
    recorded.write_bytes(gzip.compress(recorded.read_bytes()))
    assert read_xspace(recorded, Workers(2, begun_xspace.begin([recorded], 2)))["events"] == plain["events"]


@pytest.mark.usefixtures("every_size_is_worth_it")
def test_a_damaged_file_is_told_as_ever_where_it_was_begun(recorded: Path) -> None:
    recorded.write_bytes(recorded.read_bytes()[:-5])
    with pytest.raises(BadInputError) as alone:
        read_xspace(recorded)
    with pytest.raises(BadInputError) as begun:
        read_xspace(recorded, Workers(2, begun_xspace.begin([recorded], 2)))
    assert str(begun.value) == str(alone.value)
