"""Exchanges of time stamps in shards that were written by hand, cut off or damaged."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from unit.test_shard_stacks import codes, shard

from xprof_py.postprocess.readers.shard import read_shard

PROBES, EXCHANGES, PROBER = 12, 13, 14
UNKNOWN_WAIT = 2**32 - 1


def probe(identity: int, text: str, session: int = 0) -> bytes:
    raw = text.encode()
    return struct.pack("<IIQ", identity, len(raw), session) + raw + bytes(-len(raw) % 8)


def exchange(peer: int, start: int, outcome: int = 0, wait2: int = 5, wait4: int = 6) -> bytes:
    stamps = [start + i for i in range(4)] + [start + 100 + i for i in range(4)]
    return struct.pack("<8qQ4I", *stamps, 2**63 + 7, peer, outcome, wait2, wait4)


def test_exchanges_written_by_hand(tmp_path: Path) -> None:
    profile = read_shard(
        shard(
            tmp_path / "1-77.xpr",
            (PROBES, probe(1, "node0:9473") + probe(2, "[::1]:5") + probe(0, "9473", 2**64 - 1)),
            (EXCHANGES, exchange(2, 3000, wait2=UNKNOWN_WAIT) + exchange(1, 1000)),
            (EXCHANGES, exchange(1, 2000, outcome=1) + exchange(1, 4000, outcome=2) + exchange(1, 5000, outcome=3)),
            (PROBER, struct.pack("<10Q", 5, 4, 3, 2, 1, 6, 7, 8, 9, 10)),
        )
    )
    rows = profile["clock_samples"].to_pylist()
    assert [(row["address"], row["outcome"], row["t1_ns"], row["m1_ns"]) for row in rows] == [
        ("node0:9473", "answered", 1000, 1100),
        ("node0:9473", "lost", 2000, 2100),
        ("[::1]:5", "answered", 3000, 3100),
        ("node0:9473", "refused", 4000, 4100),
        ("node0:9473", "not_sent", 5000, 5100),
    ]
    assert [rows[0][f"{clock}{i}_ns"] for clock in "tm" for i in (2, 3, 4)] == [1001, 1002, 1003, 1101, 1102, 1103]
    assert [(row["wait2_ns"], row["wait4_ns"]) for row in rows[:3]] == [(5, 6), (None, None), (None, 6)]
    assert [row["peer_session"] for row in rows[:3]] == [2**63 + 7, None, 2**63 + 7]
    assert {row["session"] for row in rows} == {2**64 - 1}
    assert all(rows[1][f"t{i}_ns"] is None for i in (2, 3, 4))
    assert profile.metadata["probe"]["port"] == 9473
    assert profile.metadata["probe"]["totals"]["cpu_ns"] == 10
    assert codes(profile) == {"exchanges_dropped": 4, "probe_strangers": 2 + 1 + 6, "probe_flooded": 8}


def test_what_the_kernel_does_not_say_is_not_known(tmp_path: Path) -> None:
    totals = (PROBER, struct.pack("<10Q", 0, 0, 0, 0, 0, 0, 0, 2**64 - 1, 0, 0))
    profile = read_shard(shard(tmp_path / "a.xpr", (PROBES, probe(0, "", 9)), totals))
    assert profile.metadata["probe"]["totals"]["rate_limited"] is None
    assert profile.metadata["probe"]["port"] is None
    assert codes(profile) == {}


def test_a_shard_without_a_prober_says_nothing_of_one(tmp_path: Path) -> None:
    profile = read_shard(shard(tmp_path / "a.xpr"))
    assert profile.metadata["probe"] is None
    assert profile["clock_samples"].num_rows == 0


def test_a_damaged_peer_costs_its_exchanges(tmp_path: Path) -> None:
    chunks: list[tuple[int, bytes]] = [
        (PROBES, probe(0, "", 9) + probe(1, "a:1")),
        (EXCHANGES, exchange(1, 1000) + exchange(2, 2000) + exchange(1, 3000, outcome=9)),
        (PROBES, struct.pack("<IIQ", 3, 400, 0)),
        (EXCHANGES, bytes(80)),
        (PROBER, bytes(8)),
    ]
    profile = read_shard(shard(tmp_path / "a.xpr", *chunks))
    assert profile["clock_samples"]["t1_ns"].to_pylist() == [1000]
    assert codes(profile)["unknown_peer"] == 2
    assert [row["code"] for row in profile["diagnostics"].to_pylist()].count("shard_damaged") == 3


def test_a_cut_file_gives_its_whole_exchanges(tmp_path: Path) -> None:
    many: Any = b"".join(exchange(1, 1000 + i) for i in range(10))
    path = shard(tmp_path / "a.xpr", (PROBES, probe(0, "", 9) + probe(1, "a:1")), (EXCHANGES, many))
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    profile = read_shard(path)
    assert profile["clock_samples"].num_rows == 8
    assert codes(profile) == {"shard_truncated": 1}
    for cut in range(129, len(whole), 7):
        path.write_bytes(whole[:cut])
        read_shard(path)
