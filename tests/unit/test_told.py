"""What several lanes told is one table: by question, class and reason, with no amount lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xprof_py.postprocess.analyses.lane_activity import Told

TEXTS = (("load", "train.py:3"), ("load", ""), ("dot", "train.py:9"), ("", ""))


@st.composite
def told(draw: st.DrawFn) -> Told:
    reasons = tuple(draw(st.permutations(TEXTS)))
    one = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-1, len(reasons) - 1), st.integers(-5, 10**15))
    rows = draw(st.lists(one, max_size=6))
    return Told(*(np.array([row[i] for row in rows], np.int64) for i in range(4)), reasons)


def by_text(told: Told) -> dict[tuple[int, int, tuple[str, str]], int]:
    sums: dict[tuple[int, int, tuple[str, str]], int] = {}
    for row, code, reason, amount in zip(told.row, told.class_code, told.reason, told.amount_ps, strict=True):
        text = told.reasons[reason] if reason >= 0 else ("", "")
        key = (int(row), int(code), text)
        sums[key] = sums.get(key, 0) + int(amount)
    return sums


@given(st.lists(told(), max_size=4))
def test_amounts_are_summed_by_text_and_each_text_comes_once(parts: list[Told]) -> None:
    expected: dict[tuple[int, int, tuple[str, str]], int] = {}
    for part in parts:
        for key, amount in by_text(part).items():
            expected[key] = expected.get(key, 0) + amount
    found = Told.together(parts)
    assert by_text(found) == expected
    assert len(found.row) == len(expected)
    assert set(found.reasons) == {text for _, _, text in expected} - {("", "")}
    assert len(set(found.reasons)) == len(found.reasons)


@given(st.lists(told(), min_size=1, max_size=4), st.data())
def test_it_is_the_same_put_together_in_parts(parts: list[Told], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(parts)))
    halves = Told.together([Told.together(parts[:at]), Told.together(parts[at:])])
    assert by_text(halves) == by_text(Told.together(parts))
