"""Sequences of equal events of two ranks, some of them lost, pair as they happened."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from xprof_py.postprocess.match.alignment import align

MS = 1_000_000


def _ends(count: int, seed: int, noise_ns: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends of ``count`` collectives on two clocks, one 350 ms ahead and 30 ppm fast, apart by noise."""
    rng = np.random.default_rng(seed)
    true = np.cumsum(rng.uniform(2 * MS, 20 * MS, count)).astype(np.int64)
    a = true + rng.normal(0, noise_ns, count).astype(np.int64)
    b = true + (true * 30e-6).astype(np.int64) + 350 * MS + rng.normal(0, noise_ns, count).astype(np.int64)
    return a, b


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(12, 60),
    seed=st.integers(0, 10_000),
    lost=st.sets(st.integers(0, 59), max_size=3),
    of_the_second=st.booleans(),
)
def test_lost_events_cost_only_themselves(count: int, seed: int, lost: set[int], of_the_second: bool) -> None:
    a, b = _ends(count, seed, 2_000)
    every, kept = np.arange(count), np.array([i for i in range(count) if i not in lost])
    keep_a, keep_b = (every, kept) if of_the_second else (kept, every)
    found = align(a[keep_a], b[keep_b])
    assert found is not None
    place = {int(event): at for at, event in enumerate(keep_a)}
    assert found.tolist() == [place.get(int(event), -1) for event in keep_b]


def test_one_lost_of_a_perfectly_regular_train() -> None:
    ends = np.arange(40) * 10 * MS
    kept = np.delete(np.arange(40), 17)
    found = align(ends, ends[kept] + 123)
    assert found is not None
    assert found.tolist() == kept.tolist()


def test_as_many_lost_on_either_side_are_no_shift() -> None:
    a, b = _ends(30, 5, 1_000)
    found = align(np.delete(a, 7), np.delete(b, 21))
    assert found is not None
    assert found.tolist() == [*range(7), -1, *range(7, 20), *range(21, 29)]


def test_captures_that_begin_at_other_times_overlap_where_they_do() -> None:
    a, b = _ends(50, 3, 1_000)
    found = align(a[:35], b[10:])
    assert found is not None
    assert found.tolist() == [*range(10, 35), *[-1] * 15]


def test_a_long_loss_is_bridged() -> None:
    a, b = _ends(60, 11, 1_000)
    kept = np.r_[0:20, 35:60]
    found = align(a, b[kept])
    assert found is not None
    assert found.tolist() == kept.tolist()


def test_too_long_to_compare_is_said() -> None:
    ends = np.arange(6000) * MS
    assert align(ends, ends[:5000]) is None


def test_nothing_pairs_with_nothing() -> None:
    none = np.empty(0, np.int64)
    found = align(none, np.arange(2))
    assert found is not None
    assert found.tolist() == [-1, -1]
