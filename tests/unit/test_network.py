"""The network between hosts, against numbers worked out by hand; merges in any order; sessions become hosts."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import network
from xprof_py.postprocess.clocks import exchanges
from xprof_py.postprocess.profile import Profile

SECOND = 1_000_000_000


def sample(
    t1: int, *, rtt: int = 1000, served: int = 40, waits: tuple[int | None, int | None] = (300, 70), **more: Any
) -> dict[str, Any]:
    """An exchange whose packets are `rtt` ns under way; the REALTIME of the peer is an hour ahead."""
    wait2, wait4 = (wait or 0 for wait in waits)
    row = {"session": 1, "address": "b:1", "peer_session": 2, "outcome": "answered", "t1_ns": t1, "m1_ns": t1 + 5}
    row |= {"m2_ns": 77, "m3_ns": 77 + served, "m4_ns": t1 + 5 + rtt + served + wait2 + wait4}
    row |= {"t2_ns": t1 + 3600 * SECOND, "t3_ns": t1 + 3600 * SECOND, "t4_ns": t1, "wait2_ns": waits[0]}
    return {**row, "wait4_ns": waits[1], **more}


def unanswered(t1: int, outcome: str = "lost", address: str = "b:1") -> dict[str, Any]:
    nothing = dict.fromkeys(("peer_session", *(f"{c}{i}_ns" for c in "tm" for i in (2, 3, 4)), "wait2_ns", "wait4_ns"))
    return {**sample(t1), **nothing, "outcome": outcome, "address": address}


def profile(host: str, session: int | None, *rows: dict[str, Any]) -> Profile:
    columns = {name: [row[name] for row in rows] for name in schema.TABLES["clock_samples"].names}
    metadata = {} if session is None else {"probe": {"session": session}}
    made = Profile(host=host, origin_ns=0, capture_start_ps=0, capture_end_ps=0, metadata=metadata)
    return made.with_tables(clock_samples=schema.table("clock_samples", columns))


def asked(*profiles: Profile) -> pa.Table:
    return network.finish(functools.reduce(network.merge, (network.partial(p) for p in profiles)))


def test_numbers_worked_out_by_hand() -> None:
    client = profile(
        "a",
        1,
        sample(5 * SECOND, rtt=10, served=2, waits=(3, 4)),
        sample(5 * SECOND + 1, rtt=12, served=1, waits=(5, 1)),
        sample(6 * SECOND - 1, rtt=11, served=0, waits=(0, 9)),
        unanswered(5 * SECOND + 2),
        unanswered(5 * SECOND + 3, "refused"),
        sample(6 * SECOND, waits=(None, 8), served=2, rtt=4),
        unanswered(7 * SECOND, "not_sent"),
    )
    first, second, third = asked(client, profile("b", 2)).to_pylist()
    assert first == {
        "host": "a",
        "peer": "b",
        "address": "b:1",
        "start_ns": 5 * SECOND,
        "sent": 5,
        "answered": 3,
        "lost": 1,
        "refused": 1,
        "not_sent": 0,
        "rtt_min_ns": 10,
        "rtt_median_ns": 11,
        "rtt_p99_ns": 12,
        "responder_delay_median_ns": 5,  # 2 + 3, 1 + 5, 0 + 0
        "responder_delay_max_ns": 6,
        "prober_delay_median_ns": 4,
        "prober_delay_max_ns": 9,
        "round_trip_median_ns": 19,  # 10 + 2 + 3 + 4, 12 + 1 + 5 + 1, 11 + 9 + 0: 19, 19, 20
    }
    # Where a kernel does not say how long a packet waited, only the whole is known.
    assert (second["rtt_median_ns"], second["responder_delay_median_ns"]) == (None, None)
    assert (second["prober_delay_max_ns"], second["round_trip_median_ns"]) == (8, 4 + 2 + 8)
    assert (third["sent"], third["not_sent"], third["round_trip_median_ns"]) == (1, 1, None)
    assert third["peer"] == "b"


def test_a_peer_whose_shard_was_not_read_has_no_name() -> None:
    (row,) = asked(profile("a", 1, sample(0))).to_pylist()
    assert row["peer"] is None


def test_merges_are_exact_in_any_order() -> None:
    parts = [
        profile("a", 1, *(sample(i * SECOND // 3, rtt=i * i) for i in range(9))),
        profile("b", 2),
        profile("c", 3, sample(0, address="a:1", peer_session=1), unanswered(1, address="a:1")),
    ]
    tables = [asked(*order) for order in itertools.permutations(parts)]
    assert all(table.equals(tables[0]) for table in tables)
    assert {row["peer"] for row in tables[0].to_pylist()} == {"a", "b"}


@given(st.lists(st.integers(0, 2**52), min_size=1, max_size=60))
def test_quantiles_are_within_a_bin_of_the_exact_ones(values: list[int]) -> None:
    rows = [sample(i, rtt=value) for i, value in enumerate(values)]
    (row,) = asked(profile("a", 1, *rows)).to_pylist()
    assert row["rtt_min_ns"] == min(values)
    for name, share in (("rtt_median_ns", 0.5), ("rtt_p99_ns", 0.99)):
        exact = sorted(values)[max(math.ceil(len(values) * share), 1) - 1]
        assert abs(row[name] - exact) <= exact / 32 + 1


def test_bins_are_in_order_and_hold_their_middle() -> None:
    values = np.unique(np.concatenate([np.arange(5000), 2 ** np.arange(13, 52), 2 ** np.arange(13, 52) - 1]))
    bins = network.bins(values)
    assert (np.diff(bins) >= 0).all()
    assert set(np.diff(network.bins(np.arange(5000))).tolist()) == {0, 1}
    middles = np.array([network.middle(int(index)) for index in bins])
    assert (network.bins(middles) == bins).all()
    assert (np.abs(middles - values) <= values / 32 + 1).all()


def test_sessions_become_hosts_and_silence_is_the_addresss_one_host() -> None:
    rows = exchanges.exchanges(
        [
            profile("a", 1, sample(2), unanswered(1), unanswered(3, address="x:1"), sample(4, peer_session=99)),
            profile("c", 3, sample(1, session=3), unanswered(2)),
            profile("b", 2),
        ]
    ).to_pylist()
    # At the address of a's peer two hosts answered, one of them unknown: whose silence it was cannot be told.
    assert [(row["host"], row["t1_ns"], row["peer"]) for row in rows] == [
        ("a", 1, None),
        ("a", 2, "b"),
        ("a", 3, None),
        ("a", 4, None),
        ("c", 1, "b"),
        ("c", 2, "b"),
    ]


def test_the_order_of_processes_does_not_matter() -> None:
    parts = [profile("a", 1, sample(2), sample(1)), profile("b", 2), profile("c", None)]
    tables = [exchanges.exchanges(order) for order in itertools.permutations(parts)]
    assert all(table.equals(tables[0]) for table in tables)
    assert exchanges.exchanges([]).num_rows == 0
