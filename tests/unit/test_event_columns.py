"""The events' columns against plain Python: rows by name, arguments by key, distinct rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from xprof_py.postprocess import schema
from xprof_py.postprocess.join.columns import Events, among, distinct, united
from xprof_py.postprocess.profile import Profile

NAMES = ("f", "g", "$train.py:3 f", "end: f")
event_lists = st.lists(
    st.tuples(st.sampled_from(NAMES), st.lists(st.tuples(st.sampled_from("ab"), st.integers(-9, 9)), max_size=3)),
    max_size=8,
)


def profile_of(events: list[tuple[str, list[tuple[str, int]]]]) -> Profile:
    count = len(events)
    args = [(row, key, value) for row, (_, said) in enumerate(events) for key, value in said]
    tables = {
        "events": schema.table(
            "events",
            {
                "line": [0] * count,
                "name": [name for name, _ in events],
                "kind": [0] * count,
                "start_ps": list(range(count)),
                "duration_ps": [None if row % 3 == 2 else 1 for row in range(count)],
            },
        ),
        "args": schema.table(
            "args",
            {
                "event": [row for row, _, _ in args],
                "key": [key for _, key, _ in args],
                "kind": [1] * len(args),
                "value": [value for _, _, value in args],
            },
        ),
    }
    return Profile("h", 0, 0, 100, tables)


@settings(deadline=None)
@given(event_lists, st.sets(st.sampled_from(NAMES)))
def test_rows_of_names_are_those_whose_name_passes(
    events: list[tuple[str, list[tuple[str, int]]]], asked: set[str]
) -> None:
    found = Events(profile_of(events)).rows_where(lambda name: name in asked)
    assert found.tolist() == [row for row, (name, _) in enumerate(events) if name in asked]


@settings(deadline=None)
@given(event_lists)
def test_an_argument_has_the_first_of_its_values(events: list[tuple[str, list[tuple[str, int]]]]) -> None:
    columns = Events(profile_of(events))
    stated = {row: dict(reversed(said))["a"] for row, (_, said) in enumerate(events) if "a" in dict(said)}
    rows, values = columns.having("a")
    assert dict(zip(rows.tolist(), values.tolist(), strict=True)) == stated
    every = np.arange(len(events))
    for present, value in (columns.argument("a"), columns.argument_of("a", every)):
        assert {int(row): int(value[row]) for row in every[present]} == stated
    # Rows that are asked for in any order and several times, those that have it alone, and a row that is none.
    for asked in (np.repeat(every[::-1], 2), rows, every[:1], np.append(every, -1)):
        present, value = columns.argument_of("a", asked)
        expected = [(row in stated, stated.get(row, 0)) for row in asked.tolist()]
        assert list(zip(present.tolist(), value.tolist(), strict=True)) == expected


def test_a_few_rows_of_many_events_are_found_as_many_are() -> None:
    events = [("end: f" if row in (3, 60) else "f", [("a", row)] if row % 2 else []) for row in range(64)]
    columns = Events(profile_of(events))
    assert columns.rows_named("end: f").tolist() == [3, 60]
    assert columns.rows_named("f").tolist() == [row for row in range(64) if row not in (3, 60)]
    for asked in (np.array([61, 2, 3]), np.arange(64)[::-1]):
        present, value = columns.argument_of("a", asked)
        assert present.tolist() == [bool(row % 2) for row in asked]
        assert value.tolist() == [row if row % 2 else 0 for row in asked]


def test_what_was_forgotten_is_found_again_and_equal_rows_are_kept_once() -> None:
    columns = Events(profile_of([("f", [("a", 1), ("b", 2)]), ("f", []), ("g", [("b", 4), ("a", 3)])]))
    before = columns.having("a")
    assert columns.having("b")[0] is before[0]
    columns.forget()
    again = columns.having("a")
    assert again[0] is not before[0]
    assert [column.tolist() for column in again] == [column.tolist() for column in before] == [[0, 2], [1, 3]]


def test_an_open_event_lasts_to_the_end_of_the_capture() -> None:
    assert Events(profile_of([("f", []), ("f", []), ("f", [])])).end_ps[np.arange(3)].tolist() == [1, 2, 100]


def test_events_are_made_once_for_a_profile_and_for_what_is_added_to_it() -> None:
    profile = profile_of([("f", [])])
    made = Events.of(profile)
    assert Events.of(profile.with_tables(lanes=schema.empty("lanes"))) is made
    # other events are others, whatever was made before
    other = profile.with_tables(events=profile_of([("g", []), ("g", [])])["events"])
    assert Events.of(other).count == 2


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=9))
def test_distinct_rows_are_those_of_numpy(rows: list[tuple[int, int]]) -> None:
    table = np.array(rows, np.int64)
    keys, group = np.unique(table, axis=0, return_inverse=True)
    first, found = distinct(table[:, 0], table[:, 1])
    assert table[first].tolist() == keys.tolist()
    assert found.tolist() == group.reshape(-1).tolist()
    assert first.tolist() == [rows.index(tuple(key)) for key in keys.tolist()]


@given(st.lists(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_among_is_membership(rows: list[int], known: set[int]) -> None:
    found = among(np.array(rows, np.int64), np.array(sorted(known), np.int64))
    assert found.tolist() == [row in known for row in rows]


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9), max_size=20), min_size=1, max_size=4))
def test_united_columns_are_numpys_unique(columns: list[list[int]]) -> None:
    arrays = [np.array(column, np.int64) for column in columns]

    assert united(*arrays).tolist() == np.unique(np.concatenate(arrays)).tolist()


@given(st.lists(st.tuples(*[st.sampled_from([-(2**63), -1, 0, 7, 2**31, 2**63 - 1])] * 3), min_size=1, max_size=20))
def test_rows_that_no_one_number_tells_apart_are_distinct_too(rows: list[tuple[int, int, int]]) -> None:
    first, which = distinct(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))

    assert [rows[i] for i in first] == sorted(set(rows))
    assert [rows[i] for i in first[which]] == rows
    assert first.tolist() == [rows.index(row) for row in sorted(set(rows))]
