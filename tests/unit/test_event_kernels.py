"""The passes in C over all events of a profile, against the same in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xprof_py import _native

TIMES = st.integers(-(2**40), 2**40)


@given(st.data())
def test_events_are_placed_as_numpy_would(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 30))
    line = np.sort(np.array(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), np.int32))
    metadata = np.array(data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)), np.int32)
    offset, duration = (
        np.array(data.draw(st.lists(TIMES | st.integers(-2, 2), min_size=count, max_size=count)), np.int64)
        for _ in range(2)
    )
    base = np.array(data.draw(st.lists(TIMES | st.just(0), min_size=4, max_size=4)), np.int64)
    names = np.array([7, 7, 2, 0, 1], np.int32)
    start, length = offset + base[line], np.maximum(duration, 0)
    order = np.lexsort((-length, start, line))
    in_order = all((start[order] == start) & (length[order] == length))
    negative = int((duration < 0).sum())

    name = np.full(count, -1, np.int32)
    told_order, told_negative, end_ps = _native.place_events(line, metadata, offset, duration, name, base, names)

    assert name.tolist() == names[metadata].tolist()
    assert offset.tolist() == start.tolist()
    assert duration.tolist() == length.tolist()
    assert (told_order, told_negative) == (in_order, negative)
    assert end_ps == (int((start + length).max()) if count else -(2**63))


def test_an_event_without_line_or_metadata_is_an_error() -> None:
    one, name = np.zeros(1, np.int64), np.zeros(1, np.int32)
    for line, metadata in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        with pytest.raises(ValueError, match="no line or without metadata"):
            _native.place_events(
                np.array([line], np.int32), np.array([metadata], np.int32), one, one, name, one, np.zeros(1, np.int32)
            )


def test_columns_of_other_types_or_lengths_are_errors() -> None:
    codes, times = np.zeros(2, np.int32), np.zeros(2, np.int64)
    with pytest.raises(TypeError):
        _native.place_events(times, codes, times, times, codes, times, codes)
    with pytest.raises(ValueError, match="differ in length"):
        _native.place_events(codes, codes[:1], times, times, codes, times, codes)
    with pytest.raises(TypeError):
        _native.all_within(codes, 5)
    with pytest.raises(TypeError):
        _native.rows_by_code(times, np.ones(1, np.bool_))


_LATE = st.lists(st.tuples(*[st.integers(0, 2)] * 6, st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=30)


@given(_LATE, st.data())
def test_a_late_gap_is_shared_by_cause_and_step_with_the_strongest_evidence_of_each(
    said: list[tuple[int, ...]], data: st.DataObject
) -> None:
    """cause, step, function, text, event, stack of each piece; how far it is from the one before; its length."""
    *says, apart, length = (np.array(column, np.int64) for column in zip(*said, strict=True))
    end = np.cumsum(apart + length)
    start = end - length
    low = data.draw(st.integers(0, len(said) - 1))
    high = data.draw(st.integers(low + 1, len(said)))
    since = data.draw(st.integers(int(start[low]), int(end[low]) - 1))
    until = data.draw(st.integers(max(int(start[high - 1]), since) + 1, int(end[high - 1]) + 3))
    first_step = data.draw(st.integers(0, 2))
    parts = [
        (*(int(column[i]) for column in says), int(min(end[i], until) - max(start[i], since))) for i in range(low, high)
    ]
    parts[0] = (parts[0][0], first_step, *parts[0][2:])
    asked = (np.array([value], np.int64) for value in (low, high, since, until, first_step))

    found = _native.share_out(start, end, *says, *asked)

    wanted = []
    for key in sorted({part[:2] for part in parts}):
        mine = [part for part in parts if part[:2] == key]
        length_ps = sum(part[6] for part in mine)
        for at in (slice(2, 3), slice(3, 4), slice(4, 6)):
            sums = {part[at]: sum(other[6] for other in mine if other[at] == part[at]) for part in mine}
            mine = [part for part in mine if part[at] == min(sums, key=lambda value: (-sums[value], value))]
        wanted.append((0, *key, length_ps, *mine[0][3:6]))
    assert list(zip(*(np.asarray(column).tolist() for column in found), strict=True)) == wanted


def test_shares_of_pieces_that_are_not_there_are_errors() -> None:
    one = np.ones(1, np.int64)
    for first, behind in ((0, 2), (-1, 1), (1, 0)):
        with pytest.raises(ValueError, match="no such pieces"):
            _native.share_out(*[one] * 8, one * first, one * behind, one, one, one)
    with pytest.raises(ValueError, match="differ in length"):
        _native.share_out(*[one] * 7, one[:0], *[one] * 5)
    with pytest.raises(TypeError, match="not int64"):
        _native.share_out(*[one] * 12, one.astype(np.int32))
    with pytest.raises(TypeError, match="13 columns"):
        _native.share_out(one)


def test_within_leaves_out_both_limits_and_the_least_number() -> None:
    assert _native.all_within(np.array([4, -4], np.int64), 5)
    for value in (5, -5, -(2**63), 2**63 - 1):
        assert not _native.all_within(np.array([0, value], np.int64), 5)


@given(st.lists(st.integers(0, 5), max_size=40), st.lists(st.booleans(), min_size=6, max_size=6))
def test_rows_by_code_are_a_stable_sort(codes: list[int], keep: list[bool]) -> None:
    code = np.array(codes, np.int32)
    rows, begin = (np.asarray(column) for column in _native.rows_by_code(code, np.array(keep, np.bool_)))
    for one in range(6):
        expected = np.flatnonzero(code == one) if keep[one] else []
        assert rows[begin[one] : begin[one + 1]].tolist() == list(expected)


def test_a_code_out_of_range_is_an_error() -> None:
    for code in (-1, 1):
        with pytest.raises(ValueError, match="out of range"):
            _native.rows_by_code(np.array([code], np.int32), np.ones(1, np.bool_))
