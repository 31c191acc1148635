"""The kernel that replays steps (native/kernels/replay.c) gives what the same in Python gives, value by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.python_replay import Job, Replay, replayed_windows
from xprof_py import _native
from xprof_py.postprocess.join.columns import Int64
from xprof_py.postprocess.replay.program import Joins, Meetings, Program, Windows, replay
from xprof_py.postprocess.replay.timeline import Segments, Timeline, Work
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES


def _segments(rng: np.random.Generator, edges: Int64, work: int, ends: Int64) -> Segments:
    count = len(edges) - 1
    target = np.full(count, -1, np.int64)
    if work:
        waits = rng.random(count) < 0.4
        # Most wait for work that ends in them, as real ones do; some for work that ended before or ends later.
        near = np.array([np.argmin(np.abs(ends - end)) for end in edges[1:]], np.int64)
        target[waits] = np.where(rng.random(count) < 0.8, near, rng.integers(0, work, count))[waits]
    also_of = np.sort(rng.choice(np.flatnonzero(target >= 0), rng.integers(0, 4))) if (target >= 0).any() else edges[:0]
    return Segments(
        edges[:-1],
        edges[1:],
        rng.integers(0, len(CLASSES), count),
        target,
        rng.integers(0, max(work, 1), len(also_of)),
        also_of,
    )


def _process(rng: np.random.Generator, meetings: int) -> tuple[Timeline, Windows, list[int], Joins]:
    steps, lanes, threads = int(rng.integers(1, 4)), int(rng.integers(1, 3)), int(rng.integers(1, 4))
    columns: list[list[Any]] = []
    for lane in range(lanes):
        edges = np.sort(rng.integers(0, 1000, 2 * int(rng.integers(0, 7))))
        columns += [[lane, int(a), int(b)] for a, b in edges.reshape(-1, 2)]
    lane, start, end = (np.array([c[i] for c in columns], np.int64) for i in range(3))
    count = len(lane)
    length = end - start
    exclusive = rng.integers(0, 4, (count, len(BUSY_CLASSES))) * (length // (4 * len(BUSY_CLASSES)))[:, None]
    before = (np.arange(count) > 0) & (lane == np.roll(lane, 1)) & (rng.random(count) < 0.3)
    work = Work(
        lane=lane,
        start_ps=start,
        end_ps=end,
        thread=rng.integers(5, 5 + threads + 1, count),
        ready_ps=np.maximum(start - rng.integers(0, 200, count), 0),
        step=np.sort(rng.integers(-1, steps, count)),
        exclusive_ps=exclusive,
        inner_gaps_ps=rng.integers(0, 5, count),
        follows=np.where(before, np.arange(count) - 1, -1),
        execution=np.full(count, -1),
    )
    segments = {
        5 + t: _segments(rng, np.unique(rng.integers(0, 1100, int(rng.integers(2, 12)))), count, end)
        for t in range(threads)
    }
    meeting = np.full(count, -1, np.int64)
    if count:
        some = np.sort(rng.choice(count, min(count, meetings), replace=False))
        meeting[some] = np.arange(len(some))
    joins = Joins(meeting, rng.integers(-50, 50, count), np.where(meeting >= 0, length // 2, 0))
    windows = [
        [lane, step, *np.sort(rng.integers(0, 1000, 2)).tolist()] for lane in range(lanes) for step in range(steps)
    ]
    if rng.random() < 0.3:
        windows[0][3] = windows[0][2]
    table = np.array(windows, np.int64).T
    return Timeline(segments, work), (table[0], table[1], table[2], table[3]), rng.integers(4, 9, steps).tolist(), joins


def _meetings(joins: list[Joins], rng: np.random.Generator) -> Meetings:
    rows = sorted((int(m), p, int(r)) for p, j in enumerate(joins) for r, m in enumerate(j.meeting) if m >= 0)
    count = max((m for m, _, _ in rows), default=-1) + 1
    meeting, process, part = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    begin = np.searchsorted(meeting, np.arange(count + 1))
    return Meetings(begin, process, part, rng.integers(0, 30, len(rows)))


def _columns(windows: Windows) -> list[list[int]]:
    return [column.tolist() for column in windows]


REMOVED = st.sampled_from([-1, *range(len(CLASSES))])


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), removed=REMOVED)
def test_one_process_is_replayed_as_in_python(seed: int, removed: int) -> None:
    timeline, windows, thread_of_step, _ = _process(np.random.default_rng(seed), 0)
    program = Program(timeline, windows, thread_of_step)
    try:
        wanted = replayed_windows(Replay(timeline, removed), timeline, windows, thread_of_step)
    except IndexError:
        # Waits in a circle of which no part of a real trace is: the lane has no more work to give.
        with pytest.raises(RuntimeError):
            replay([program], removed)
        return
    [(moved, rows)] = replay([program], removed)
    assert _columns(moved) == _columns(wanted)
    assert windows[0][rows].tolist() == moved[0].tolist()


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), removed=REMOVED, never_waits=st.booleans())
def test_a_job_is_replayed_as_in_python(seed: int, removed: int, never_waits: bool) -> None:
    rng = np.random.default_rng(seed)
    made = [_process(rng, 4) for _ in range(int(rng.integers(1, 4)))]
    timelines, joins = [m[0] for m in made], [m[3] for m in made]
    meetings = _meetings(joins, rng)
    programs = [Program(t, w, s, j) for t, w, s, j in made]
    try:
        job = Job(timelines, joins, removed, meetings, never_waits)
        wanted = [
            _columns(replayed_windows(run, t, w, s)) for run, (t, w, s, _) in zip(job.processes, made, strict=True)
        ]
    except IndexError:
        with pytest.raises(RuntimeError):
            replay(programs, removed, meetings, never_waits=never_waits)
        return
    assert [_columns(moved) for moved, _ in replay(programs, removed, meetings, never_waits=never_waits)] == wanted


def test_the_random_cases_are_not_all_errors_and_not_all_still() -> None:
    moved, errors = 0, 0
    for seed in range(200):
        timeline, windows, thread_of_step, _ = _process(np.random.default_rng(seed), 0)
        program = Program(timeline, windows, thread_of_step)
        try:
            places = [_columns(replay([program], removed)[0][0]) for removed in range(-1, len(CLASSES))]
            moved += any(place != places[0] for place in places)
        except RuntimeError:
            errors += 1
    assert errors < 60
    assert moved > 60


def _chain(length: int) -> Program:
    """Work on as many lanes as there is work, each of which follows that of the lane before."""
    number = np.arange(length)
    zero = np.zeros(length, np.int64)
    work = Work(
        lane=number,
        start_ps=number,
        end_ps=number + 1,
        thread=zero - 1,
        ready_ps=zero,
        step=np.where(number == length - 1, 0, -1),
        exclusive_ps=np.zeros((length, len(BUSY_CLASSES)), np.int64),
        inner_gaps_ps=zero,
        follows=number - 1,
        execution=zero - 1,
    )
    one = np.array([length - 1])
    joins = Joins(zero - 1, zero, zero)
    return Program(Timeline({}, work), (one, one * 0, one * 0, one + 1), [5], joins)


def test_a_chain_of_waits_is_followed_to_its_end_or_refused() -> None:
    [(moved, _)] = replay([_chain(1500)], -1)
    assert _columns(moved) == [[1499], [0], [0], [1500]]
    with pytest.raises(RecursionError, match="for one another"):
        replay([_chain(5000)], -1)


def test_columns_that_do_not_fit_together_are_errors() -> None:
    good = list(_chain(3).without(-1))
    met = tuple(np.zeros(1 if i == 0 else 0, np.int64) for i in range(4))
    _native.replay((tuple(good),), met, False, False)
    for place, column in ((0, good[0] + 9), (4, good[4] + 9), (6, good[6] + 9), (7, good[7] + 9), (24, good[24] + 9)):
        with pytest.raises(ValueError, match="replay"):
            _native.replay((tuple(column if i == place else c for i, c in enumerate(good)),), met, False, False)
    # Lanes without work (10) are allowed.
    for place in {*range(len(good))} - {10}:
        with pytest.raises((ValueError, TypeError), match="replay"):
            _native.replay(
                (tuple(np.zeros(9, np.int64) if i == place else c for i, c in enumerate(good)),), met, False, False
            )
        with pytest.raises(TypeError, match="int64"):
            _native.replay(
                (tuple(np.zeros(3, np.int32) if i == place else c for i, c in enumerate(good)),), met, False, False
            )
    with pytest.raises(TypeError):
        _native.replay((tuple(good[:5]),), met, False, False)
