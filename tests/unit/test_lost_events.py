"""Where a chunk of a shard is lost no step takes its neighbour's time, and what is not known is said."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

import xprof_py
from tests.unit.test_shard_reader import (
    CLOCK,
    END,
    EVENTS,
    LOSSES,
    SCHEMAS,
    STRINGS,
    THREADS,
    chunk,
    clock,
    event,
    header,
    string,
    thread,
)
from xprof_py.postprocess.join.joined import join_profile
from xprof_py.postprocess.readers.shard import read_shard

MS = 1_000_000
"""Ticks, which are nanoseconds, in a millisecond."""
INPUT, STEP = 3, 2


def step(number: int, start_ms: int, end_ms: int, name: int = 2) -> bytes:
    """A step whose first 4 ms are input: its wait, then itself, as they end."""
    wait = event(start_ms * MS, 4 * MS, 3, INPUT)
    return wait + event(start_ms * MS, (end_ms - start_ms) * MS, name, STEP, schema=1, value=number)


def steps(*numbers: int) -> tuple[int, bytes]:
    """One chunk: step k from 10 k to 10 k + 10 ms."""
    return EVENTS, b"".join(step(n, 10 * n, 10 * n + 10) for n in numbers)


BEGIN: list[tuple[int, bytes]] = [
    (CLOCK, clock((0, 0, 10**18), (200 * MS, 200 * MS, 10**18 + 200 * MS))),
    (STRINGS, string(2, "train") + string(3, "input") + string(4, "step_num") + string(5, "eval")),
    (SCHEMAS, struct.pack("<IIQI4x", 1, 1, 1, 4)),
    (THREADS, thread()),
]
WHOLE = [*BEGIN, steps(0, 1), steps(2, 3), steps(4, 5), steps(6, 7), steps(8, 9)]
FULL_END = (END, struct.pack("<14q", 20, *[0] * 13))


def write(path: Path, chunks: list[tuple[int, bytes]]) -> tuple[Path, list[int]]:
    """The shard, and where each chunk begins."""
    content, places = header(), []
    for sequence, (kind, body) in enumerate(chunks):
        places.append(len(content))
        content += chunk(sequence, kind, body)
    path.write_bytes(content)
    return path, places


def flip(path: Path, at: int) -> Path:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x5A
    path.write_bytes(bytes(content))
    return path


def windows_ms(path: Path) -> dict[int, tuple[float, float, str]]:
    """Number -> (where the window begins and ends in ms, phase)."""
    profile = join_profile(read_shard(path))
    rows = profile["steps"].to_pylist()
    out = {}
    for window in profile["windows"].to_pylist():
        if window["kind"] == "step":
            row = rows[window["step"]]
            out[row["number"]] = (window["start_ps"] / 1e9, window["end_ps"] / 1e9, row["phase"])
    return out


def codes(summary: dict[str, Any]) -> list[str]:
    return [row["code"] for row in summary["diagnostics"]]


def test_a_damaged_chunk_of_two_steps(tmp_path: Path) -> None:
    """Steps of 10 ms; the marks of 4 and 5 are lost: 4 is empty, 5 all that lies between, 6 its own 10 ms."""
    path, places = write(tmp_path / "x.xpr", [*WHOLE, FULL_END])
    flip(path, places[6] + 32 + 40)
    summary = xprof_py.load(path).summary()
    known = {n: (10.0 * n, 10.0 * n + 10, "steady") for n in (0, 1, 2, 3, 7, 8, 9)}
    lost = {4: (40.0, 40.0, "unmeasured"), 5: (40.0, 60.0, "unmeasured"), 6: (60.0, 70.0, "unmeasured")}
    assert windows_ms(path) == known | lost
    damaged = "a chunk of the shard is damaged"
    assert [(row["step"], row["why"]) for row in summary["steps"]["missing"]] == [
        (4, f"its mark is lost: {damaged}"),
        (5, f"its mark is lost: {damaged}"),
        (6, f"what was recorded before it is lost: {damaged}"),
    ]
    assert summary["steps"]["count"] == 10
    assert summary["step_ms"]["mean"] == 10.0
    assert summary["breakdown"]["input"]["exclusive_s"] == pytest.approx(7 * 0.004)
    assert summary["verdict"]["caveat"] == (
        "Part of what was recorded is lost (a shard is damaged): 3 of 10 steps are not in it, and what it says may "
        "miss a part."
    )


def test_without_a_loss_there_is_no_caveat_and_no_row(tmp_path: Path) -> None:
    path, _ = write(tmp_path / "x.xpr", [*WHOLE, FULL_END])
    assert windows_ms(path) == {n: (10.0 * n, 10.0 * n + 10, "steady") for n in range(10)}
    summary = xprof_py.load(path).summary()
    assert (summary["verdict"]["caveat"], summary["steps"]["missing"]) == (None, [])


@pytest.mark.parametrize("byte", [*range(24), 24, 31, 32, 48, 100])
def test_whatever_byte_of_the_chunk_is_damaged(tmp_path: Path, byte: int) -> None:
    """Magic, type, length, sequence, thread, checksum or content: the same steps are missing, no others."""
    path, places = write(tmp_path / "x.xpr", [*WHOLE, FULL_END])
    found = windows_ms(flip(path, places[6] + byte))
    assert {n: found[n] for n in (0, 1, 2, 3, 7, 8, 9)} == {
        n: (10.0 * n, 10.0 * n + 10, "steady") for n in (0, 1, 2, 3, 7, 8, 9)
    }
    assert [found[n][2] for n in (4, 5, 6)] == ["unmeasured"] * 3
    assert "shard_damaged" in codes(xprof_py.load(path).summary())


def test_chunks_that_are_cut_out_are_missed_like_damaged_ones(tmp_path: Path) -> None:
    path, places = write(tmp_path / "x.xpr", [*WHOLE, FULL_END])
    content = path.read_bytes()
    path.write_bytes(content[: places[5]] + content[places[7] :])
    found = windows_ms(path)
    assert [found[n][2] for n in range(10)] == ["steady"] * 2 + ["unmeasured"] * 5 + ["steady"] * 3
    assert found[7] == (70.0, 80.0, "steady")


def test_a_long_step_that_goes_on_around_the_loss_is_not_measured(tmp_path: Path) -> None:
    inside = (EVENTS, event(42 * MS, 2 * MS, 3, INPUT) + event(45 * MS, 2 * MS, 3, INPUT))
    behind = (EVENTS, step(4, 40, 60) + step(5, 60, 70))
    path, places = write(tmp_path / "x.xpr", [*BEGIN, steps(0, 1), steps(2, 3), inside, behind, FULL_END])
    found = windows_ms(flip(path, places[6] + 40))
    assert found[4] == (40.0, 60.0, "unmeasured")
    assert found[5] == (60.0, 70.0, "steady")
    assert sorted(found) == list(range(6))


def test_numbers_that_rise_by_more_than_one(tmp_path: Path) -> None:
    """A program that marks every fifth step: between 10 and 25 two of its steps are missing, not fourteen."""
    marks = [(EVENTS, step(5 * n, 10 * n, 10 * n + 10)) for n in range(9)]
    path, places = write(tmp_path / "x.xpr", [*BEGIN, *marks, FULL_END])
    flip(path, places[4 + 3] + 40)
    found = windows_ms(flip(path, places[4 + 4] + 40))
    assert sorted(found) == [5 * n for n in range(9)]
    assert {n for n, (_, _, phase) in found.items() if phase == "unmeasured"} == {15, 20, 25}
    assert found[30] == (60.0, 70.0, "steady")


def test_where_names_do_not_tell_what_is_missing_the_next_step_is_not_measured(tmp_path: Path) -> None:
    """Behind training step 3 comes evaluation step 0: how many of which are lost nobody knows."""
    behind = (EVENTS, step(0, 60, 70, name=5) + step(6, 70, 80))
    path, places = write(tmp_path / "x.xpr", [*BEGIN, steps(0, 1), steps(2, 3), steps(4, 5), behind, FULL_END])
    summary = xprof_py.load(flip(path, places[6] + 40)).summary()
    assert [(row["name"], row["step"]) for row in summary["steps"]["missing"]] == [("eval", 0)]
    assert summary["steps"]["phases"]["steady"] == 5


def test_steps_that_the_recorder_dropped_are_not_their_neighbours_time(tmp_path: Path) -> None:
    told = (LOSSES, struct.pack("<I4xqqqq", 0, 12, 4, 0, 0))
    path, _ = write(tmp_path / "x.xpr", [*BEGIN, steps(0, 1), steps(2, 3), told, steps(6, 7), steps(8, 9), FULL_END])
    found = windows_ms(path)
    assert [found[n][2] for n in range(10)] == ["steady"] * 4 + ["unmeasured"] * 3 + ["steady"] * 3
    assert (
        xprof_py.load(path)
        .summary()["verdict"]["caveat"]
        .startswith("Part of what was recorded is lost (annotations were dropped): 3 of 10 steps")
    )


def test_numbers_that_the_program_left_out_are_no_loss(tmp_path: Path) -> None:
    path, _ = write(tmp_path / "x.xpr", [*BEGIN, steps(0, 1), steps(2, 3), steps(6, 7), steps(8, 9), FULL_END])
    found = windows_ms(path)
    assert sorted(found) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert found[6] == (40.0, 70.0, "outlier")
    assert "unmeasured" not in {phase for _, _, phase in found.values()}


def test_a_damaged_chunk_of_another_thread_costs_no_step(tmp_path: Path) -> None:
    other = (EVENTS, event(35 * MS, 2 * MS, 3, INPUT))
    chunks = [*BEGIN, (THREADS, thread(1, 901, "loader")), steps(0, 1), steps(2, 3), other, steps(4, 5), FULL_END]
    content, places = header(), []
    for sequence, (kind, body) in enumerate(chunks):
        places.append(len(content))
        content += chunk(sequence, kind, body, 1 if body == other[1] else 0)
    path = tmp_path / "x.xpr"
    path.write_bytes(content)
    found = windows_ms(flip(path, places[7] + 40))
    assert {n: phase for n, (_, _, phase) in found.items()} == dict.fromkeys(range(6), "steady")


def test_a_lost_place_lies_between_the_events_around_it(tmp_path: Path) -> None:
    path, places = write(tmp_path / "x.xpr", [*WHOLE, FULL_END])
    flip(path, places[6] + 40)
    table = read_shard(path)["lost_events"]
    assert table.to_pylist() == [{"line": 0, "start_ps": 40 * 10**9, "end_ps": 64 * 10**9, "cause": "damaged"}]
