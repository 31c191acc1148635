"""Sampled stacks in shards that were written by hand, cut off or damaged."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from xprof_py.postprocess.readers.shard import read_shard

STRINGS, THREADS, CLOCK, FRAMES, STACKS, SAMPLES, SAMPLER = 1, 3, 5, 8, 9, 10, 11
START_NS = 1_700_000_000_000_000_000


def checksum(content: bytes, own: int) -> int:
    a = b = 0
    for i, (word,) in enumerate(struct.iter_unpack("<Q", content)):
        a = (a + (0 if i == own // 8 else word)) % 2**64
        b = (b + a) % 2**64
    return a ^ (b << 32 | b >> 32) % 2**64


def shard(path: Path, *chunks: tuple[int, bytes]) -> Path:
    """A shard of ticks that are nanoseconds since START_NS."""
    raw = struct.pack("<8sIIQIIQQ40s32xQ", b"XPRSHARD", 1, 128, 77, 3, 0, 1000, 4096, b"boot", 0)
    content = raw[:-8] + struct.pack("<Q", checksum(raw, 120))
    clock = b"".join(struct.pack("<QqqQ", t, t, START_NS + t, 5) for t in (0, 10_000))
    for sequence, (kind, body) in enumerate([(CLOCK, clock), *chunks]):
        raw = struct.pack("<IHHQIIQ", 0x43525058, kind, 0, len(body), sequence, 0, 0) + body
        content += raw[:24] + struct.pack("<Q", checksum(raw, 24)) + raw[32:]
    path.write_bytes(content)
    return path


def string(identity: int, text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<II", identity, len(raw)) + raw + bytes(-len(raw) % 8)


def stack(identity: int, *frames: int) -> bytes:
    raw = struct.pack(f"<II{len(frames)}I", identity, len(frames), *frames)
    return raw + bytes(-len(raw) % 8)


def sample(tick: int, tid: int, stack_id: int, on: bool, cpu_ns: int = 0, interval_us: int = 1) -> bytes:
    return struct.pack("<QQIIII", tick, cpu_ns, interval_us, tid, stack_id, int(on))


TEXTS = (STRINGS, string(2, "train.py") + string(3, "main") + string(4, "load"))
THREAD = (THREADS, struct.pack("<IIQ", 0, 4, 900) + b"main" + bytes(4))
PLACES = (FRAMES, struct.pack("<8I", 1, 2, 4, 30, 2, 2, 3, 7))


def codes(profile: Any) -> dict[str, int]:
    rows = profile["diagnostics"].to_pylist()
    return {row["code"]: row["count"] for row in rows if row["code"] != "shard_not_finished"}


def test_samples_written_by_hand(tmp_path: Path) -> None:
    profile = read_shard(
        shard(
            tmp_path / "0-77.xpr",
            TEXTS,
            THREAD,
            PLACES,
            (STACKS, stack(1, 1, 2) + stack(2, 2) + stack(3, 1, 0)),
            (SAMPLES, sample(5000, 900, 2, False) + sample(3000, 900, 1, True, 700, 2) + sample(4000, 901, 0, True)),
            (SAMPLER, struct.pack("<4Q", 3, 4, 5, 6)),
        )
    )
    assert [(line["name"], line["thread_id"]) for line in profile["lines"].to_pylist()] == [
        ("main", 900),
        ("sampled thread", 901),
    ]
    names = ("line", "time_ps", "interval_ps", "cpu_ps", "on_cpu", "stack")
    assert [tuple(row[name] for name in names) for row in profile["stack_samples"].to_pylist()] == [
        (0, 3_000_000, 2_000_000, 700_000, True, 0),
        (0, 5_000_000, 1_000_000, 0, False, 1),
        (1, 4_000_000, 1_000_000, 0, True, None),
    ]
    assert [(r["stack"], r["depth"], r["frame"]) for r in profile["stacks"].to_pylist()] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 1),
        (2, 0, 0),
        (2, 1, None),
    ]
    assert profile["frames"].to_pylist() == [
        {"file": "train.py", "function": "load", "source_line": 30},
        {"file": "train.py", "function": "main", "source_line": 7},
    ]
    assert codes(profile) == {"samples_dropped": 4, "more_frames": 5, "more_stacks": 6}


def test_records_that_are_missing_cost_what_mentions_them(tmp_path: Path) -> None:
    stacks = (STACKS, stack(1, 1, 9) + stack(2, 2))
    samples = (SAMPLES, sample(3000, 900, 1, True) + sample(4000, 900, 8, True) + sample(5000, 900, 2, True))
    profile = read_shard(shard(tmp_path / "a.xpr", THREAD, PLACES, stacks, samples))
    assert [row["stack"] for row in profile["stack_samples"].to_pylist()] == [0, None, 1]
    assert [row["frame"] for row in profile["stacks"].to_pylist()] == [0, None, 1]
    assert profile["frames"].to_pylist()[0]["function"] == "(unknown 4)"
    assert codes(profile) == {"unknown_stack": 1, "unknown_frame": 1, "unknown_string": 3}


def test_a_cut_file_gives_its_whole_samples(tmp_path: Path) -> None:
    many = b"".join(sample(3000 + t, 900, 1, True) for t in range(10))
    path = shard(tmp_path / "a.xpr", TEXTS, THREAD, PLACES, (STACKS, stack(1, 1, 2)), (SAMPLES, many))
    whole = path.read_bytes()
    path.write_bytes(whole[:-80])
    profile = read_shard(path)
    assert profile["stack_samples"].num_rows == 7
    assert codes(profile) == {"shard_truncated": 1}
    for cut in range(129, len(whole), 7):
        path.write_bytes(whole[:cut])
        read_shard(path)


def test_nonsense_in_a_chunk_is_told(tmp_path: Path) -> None:
    chunks = [(FRAMES, bytes(24)), (STACKS, struct.pack("<II", 1, 2**31)), (SAMPLES, bytes(40)), (SAMPLER, bytes(8))]
    profile = read_shard(shard(tmp_path / "a.xpr", THREAD, *chunks))
    assert profile["stack_samples"].num_rows == 0
    assert [row["code"] for row in profile["diagnostics"].to_pylist()].count("shard_damaged") == 4


def test_samples_without_a_clock_are_left_out(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.xpr", (SAMPLES, sample(3000, 900, 0, True)))
    content = path.read_bytes()
    path.write_bytes(content[:128] + content[128 + 32 + 64 :])
    assert read_shard(path)["stack_samples"].num_rows == 0
