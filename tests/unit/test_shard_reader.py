"""Shards that were cut off, damaged or written by hand: what is readable is read, and the rest is told."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xprof_py import _native
from xprof_py.annotations import mark, step, trace
from xprof_py.errors import BadInputError
from xprof_py.postprocess.readers.shard import read_shard

HEADER_BYTES = 128
CHUNK_BYTES = 32
STRINGS, SCHEMAS, THREADS, EVENTS, CLOCK, LOSSES, END = range(1, 8)


def checksum(content: bytes, own: int) -> int:
    """The sum of shard_format.h, word by word."""
    a = b = 0
    for i, (word,) in enumerate(struct.iter_unpack("<Q", content)):
        a = (a + (0 if i == own // 8 else word)) % 2**64
        b = (b + a) % 2**64
    return a ^ (b << 32 | b >> 32) % 2**64


def header(clock_kind: int = 3, version: int = 1) -> bytes:
    raw = struct.pack("<8sIIQIIQQ40s32xQ", b"XPRSHARD", version, 128, 77, clock_kind, 0, 1000, 4096, b"boot", 0)
    return raw[:-8] + struct.pack("<Q", checksum(raw, HEADER_BYTES - 8))


def chunk(sequence: int, kind: int, body: bytes, thread: int = 0) -> bytes:
    raw = struct.pack("<IHHQIIQ", 0x43525058, kind, 0, len(body), sequence, thread, 0) + body
    return raw[:24] + struct.pack("<Q", checksum(raw, 24)) + raw[32:]


def string(identity: int, text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<II", identity, len(raw)) + raw + bytes(-len(raw) % 8)


def event(
    start: int, duration: int, name: int = 2, kind: int = 1, flags: int = 1, schema: int = 0, value: int = 0
) -> bytes:
    return struct.pack("<QQIBBHQ", start, duration, name, kind, flags, schema, value)


def clock(*samples: tuple[int, int, int]) -> bytes:
    return b"".join(struct.pack("<QqqQ", *sample, 5) for sample in samples)


def thread(index: int = 0, tid: int = 900, name: str = "worker") -> bytes:
    return struct.pack("<IIQ", index, len(name), tid) + name.encode() + bytes(-len(name) % 8)


def shard(path: Path, *chunks: tuple[Any, ...], clock_kind: int = 3) -> Path:
    path.write_bytes(header(clock_kind) + b"".join(chunk(i, *c) for i, c in enumerate(chunks)))
    return path


NAMES = (STRINGS, string(2, "forward") + string(3, "layer") + string(4, "backward"))
THREAD = (THREADS, thread())


def test_a_shard_written_by_hand(tmp_path: Path) -> None:
    path = shard(
        tmp_path / "3-77.xpr",
        (CLOCK, clock((1_000, 1_000, 1_700_000_000_000_001_000), (2_000_000, 2_000_000, 1_700_000_000_002_000_000))),
        NAMES,
        (SCHEMAS, struct.pack("<IIQ2I", 1, 2, 0x21, 3, 2)),
        THREAD,
        (
            EVENTS,
            event(2_000, 500, name=4)
            + event(1_500, 2_000, flags=2, schema=1, value=2**64 - 3)
            + struct.pack("<QQIB3xQ", 9, 0, 0, 0xFF, 0)
            + event(4_000, 2**64 - 1)
            + event(5_000, 1_000, flags=0x11),
        ),
        (LOSSES, struct.pack("<I4xQQQQ", 0, 4, 6, 0, 0)),
        (END, struct.pack("<13Q", 4, 6, 0, 0, 1, 5, 0, 0, 0, 0, 0, 0, 0)),
    )
    profile = read_shard(path)
    assert profile.host == "3-77"
    assert profile.origin_ns == 1_700_000_000_000_001_000
    assert (profile.capture_start_ps, profile.capture_end_ps) == (0, 1_999_000_000)
    assert profile["events"].to_pylist() == [
        {"line": 0, "name": "forward", "kind": 1, "start_ps": 500_000, "duration_ps": 2_000_000},
        {"line": 0, "name": "backward", "kind": 1, "start_ps": 1_000_000, "duration_ps": 500_000},
        {"line": 0, "name": "forward", "kind": 1, "start_ps": 3_000_000, "duration_ps": None},
        {"line": 0, "name": "forward", "kind": 1, "start_ps": 3_000_000, "duration_ps": 1_000_000},
    ]
    assert profile["args"].to_pylist() == [
        {"event": 0, "key": "layer", "kind": 1, "value": -3},
        {"event": 0, "key": "forward", "kind": 2, "value": 9},
    ]
    assert profile["lines"].to_pylist() == [
        {
            "plane": "/host:xprof_py",
            "name": "worker",
            "line_id": 0,
            "thread_id": 900,
            "source": "shard",
            "clock_domain": "boot",
        }
    ]
    assert [(d["code"], d["place"], d["count"]) for d in profile["diagnostics"].to_pylist()] == [
        ("dropped_ring", "thread 900 (worker)", 6)
    ]
    assert profile.metadata["pid"] == 77
    assert profile.metadata["finished"] is True
    assert profile.metadata["totals"]["dropped_ring"] == 6


def test_ticks_follow_a_clock_that_is_steered(tmp_path: Path) -> None:
    """A counter of 2.6 GHz, a REALTIME that runs 400 ppm fast for a while: within a nanosecond of the exact line."""
    rng = np.random.default_rng(1)
    seconds = np.cumsum(rng.uniform(0.9, 1.1, 20))
    ticks = [10**15 + round(s * 2_600_000_000) for s in seconds]
    drift = [0.0 if s < 5 else (s - 5) * 400e-6 if s < 10 else 2e-3 for s in seconds]
    real_ns = [1_700_000_000_000_000_000 + round((s + d) * 1e9) for s, d in zip(seconds, drift, strict=True)]
    mono_ns = [round(s * 1e9) for s in seconds]
    at = sorted(int(t) for t in rng.integers(ticks[0], ticks[-1], 500))
    path = shard(
        tmp_path / "x.xpr",
        (CLOCK, clock(*zip(ticks, mono_ns, real_ns, strict=True))),
        NAMES,
        THREAD,
        (EVENTS, b"".join(event(t, 0) for t in at)),
        clock_kind=1,
    )
    profile = read_shard(path)
    for tick, start_ps in zip(at, profile["events"]["start_ps"].to_pylist(), strict=True):
        i = max(k for k in range(19) if ticks[k] <= tick)
        span, rise_ps = ticks[i + 1] - ticks[i], (real_ns[i + 1] - real_ns[i]) * 1000
        exact_ps = (real_ns[i] - real_ns[0]) * 1000 + rise_ps * (tick - ticks[i]) // span
        assert abs(start_ps - exact_ps) < 1000


def test_a_step_of_the_clock_is_told_and_left_out(tmp_path: Path) -> None:
    samples = [(i * 10**9, i * 10**9, i * 10**9 + (0 if i < 2 else -3_600_000_000_000)) for i in range(4)]
    path = shard(
        tmp_path / "x.xpr", (CLOCK, clock(*samples)), NAMES, THREAD, (EVENTS, event(1_500_000_000, 1_000_000_000))
    )
    profile = read_shard(path)
    (row,) = profile["events"].to_pylist()
    assert (row["start_ps"], row["duration_ps"]) == (1_500_000_000_000, 1_000_000_000_000)
    assert ("clock_stepped", "1.000 s") in [(d["code"], d["place"]) for d in profile["diagnostics"].to_pylist()]


@pytest.mark.parametrize(
    ("content", "place", "reason"),
    [
        (b"", "byte 0", "not a shard"),
        (b"something else" * 20, "byte 0", "not a shard"),
        (header()[:60], "byte 60", "ends inside its header"),
        (header(version=2), "byte 8", "version 2"),
        (header()[:70] + b"!" + header()[71:], "byte 0", "checksum"),
        (header(clock_kind=9), "byte 24", "clock 9"),
    ],
)
def test_a_bad_header_is_named(tmp_path: Path, content: bytes, place: str, reason: str) -> None:
    path = tmp_path / "bad.xpr"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match=reason) as caught:
        read_shard(path)
    assert caught.value.place == place
    assert caught.value.file == str(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="No such file"):
        read_shard(tmp_path / "missing.xpr")
    with pytest.raises(BadInputError):
        read_shard(tmp_path)


def small_shard(path: Path) -> bytes:
    _native.recorder_start(path)
    for i in range(4):
        with step(i, tokens=5, text="words", ratio=0.5), trace("inner"):
            mark("m", a=1, b=2)
    _native.recorder_stop()
    return path.read_bytes()


def test_cut_at_every_byte_only_the_tail_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "x.xpr"
    content = small_shard(path)
    whole = read_shard(path)
    rows = whole["events"].to_pylist()
    order = np.argsort([r["start_ps"] + r["duration_ps"] for r in rows], kind="stable")  # as they were written
    seen = 0
    cut = tmp_path / "cut.xpr"
    for size in range(HEADER_BYTES, len(content)):
        cut.write_bytes(content[:size])
        profile = read_shard(cut)
        n = profile["events"].num_rows
        assert n >= seen, "a longer prefix never has fewer events"
        seen = n
        kept = sorted(order[:n].tolist())
        assert profile["events"]["name"].to_pylist() == [rows[i]["name"] for i in kept]
        codes = profile["diagnostics"]["code"].to_pylist()
        assert "shard_not_finished" in codes
        assert not {"shard_damaged", "unknown_string", "unknown_schema"} & set(codes)
        assert profile.metadata["finished"] is False
    assert seen == whole["events"].num_rows == 12


def test_any_flipped_byte_costs_at_most_its_chunk(tmp_path: Path) -> None:
    path = tmp_path / "x.xpr"
    content = small_shard(path)
    damaged = tmp_path / "damaged.xpr"
    for at in range(HEADER_BYTES, len(content), 3):
        damaged.write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
        profile = read_shard(damaged)
        codes = set(profile["diagnostics"]["code"].to_pylist())
        assert codes & {"shard_damaged", "shard_truncated"}, f"byte {at} was changed unnoticed"


def test_nonsense_with_a_right_checksum_does_not_break_the_reader(tmp_path: Path) -> None:
    content = small_shard(tmp_path / "x.xpr")
    rng = np.random.default_rng(7)
    path = tmp_path / "nonsense.xpr"
    told = 0
    for _ in range(300):
        chunks = []
        at = HEADER_BYTES
        while at < len(content):
            _, kind, _, length, sequence, line, _ = struct.unpack_from("<IHHQIIQ", content, at)
            body = bytearray(content[at + CHUNK_BYTES : at + CHUNK_BYTES + length])
            if rng.random() < 0.3 and body:
                for place in rng.integers(0, len(body), 3):
                    body[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(256))])
            if rng.random() < 0.05:
                body = body[: int(rng.integers(0, len(body) + 1)) // 8 * 8]
            chunks.append(chunk(sequence, kind, bytes(body), line))
            at += CHUNK_BYTES + length
        path.write_bytes(content[:HEADER_BYTES] + b"".join(chunks))
        profile = read_shard(path)
        told += profile["diagnostics"].num_rows
        assert profile["events"].num_rows <= 24
        assert not profile["args"].num_rows or max(profile["args"]["event"].to_pylist()) < profile["events"].num_rows
    assert told > 50


def test_unknown_chunks_are_skipped_and_told(tmp_path: Path) -> None:
    samples = (CLOCK, clock((0, 0, 0), (10**6, 10**6, 10**6)))
    path = shard(tmp_path / "x.xpr", samples, NAMES, (99, bytes(16)), THREAD, (99, b""), (EVENTS, event(5, 5)))
    profile = read_shard(path)
    assert profile["events"].num_rows == 1
    assert ("unknown_chunk", "type 99", 2) in [
        (d["code"], d["place"], d["count"]) for d in profile["diagnostics"].to_pylist()
    ]


def test_events_before_two_clock_samples_are_counted_not_guessed(tmp_path: Path) -> None:
    path = shard(tmp_path / "x.xpr", (CLOCK, clock((0, 0, 0))), NAMES, THREAD, (EVENTS, event(5, 5)), clock_kind=1)
    profile = read_shard(path)
    assert profile["events"].num_rows == 0
    assert ("no_clock", 1) in [(d["code"], d["count"]) for d in profile["diagnostics"].to_pylist()]


def test_an_empty_recording(tmp_path: Path) -> None:
    path = tmp_path / "x.xpr"
    _native.recorder_start(path)
    totals = _native.recorder_stop()
    profile = read_shard(path)
    assert totals["recorded"] == 0
    assert profile["events"].num_rows == profile["lines"].num_rows == profile["diagnostics"].num_rows == 0
    assert profile.capture_end_ps > 0


def test_an_hour_of_a_counter_that_drifts_costs_less_than_a_microsecond(tmp_path: Path) -> None:
    """Samples come once a second (CLOCK_INTERVAL_NS), within 100 ns; the truth between them is known in closed form.

    The counter is 30 ppm off what is said of it and wanders by 10 ppm with the room's temperature, twice an hour and in
    two minutes. NTP turns the system's clock by up to 0.3 ppm every 64 s.
    """
    rng = np.random.default_rng(7)
    true_s = np.cumsum(rng.uniform(0.95, 1.1, 3600))

    def counted(s: Any) -> Any:
        slow, fast = 2 * np.pi / 1800, 2 * np.pi / 120
        return s * (1 + 30e-6) + 8e-6 / slow * (1 - np.cos(slow * s)) + 2e-6 / fast * (1 - np.cos(fast * s))

    turns = np.cumsum(rng.uniform(-0.3e-6, 0.3e-6, 64))
    edges = np.arange(64) * 64.0

    def steered(s: Any) -> Any:
        """What NTP has added by then, s."""
        return np.sum(np.diff(turns, prepend=0.0) * np.maximum(s[:, None] - edges, 0.0), axis=1)

    ticks = 10**15 + np.rint(counted(true_s) * 2.6e9).astype(np.int64)
    late_ns = rng.uniform(-100, 100, (2, len(true_s)))
    mono_ns = np.rint(true_s * 1e9 + late_ns[0]).astype(np.int64)
    real_ns = 1_700_000_000_000_000_000 + np.rint((true_s + steered(true_s)) * 1e9 + late_ns[1]).astype(np.int64)
    at_s = np.sort(rng.uniform(true_s[0], true_s[-1], 20_000))
    at = 10**15 + np.rint(counted(at_s) * 2.6e9).astype(np.int64)
    samples = zip(ticks.tolist(), mono_ns.tolist(), real_ns.tolist(), strict=True)
    path = shard(
        tmp_path / "x.xpr",
        (CLOCK, clock(*samples)),
        NAMES,
        THREAD,
        (EVENTS, b"".join(event(t, 0) for t in at.tolist())),
        clock_kind=1,
    )
    profile = read_shard(path)
    assert profile["diagnostics"]["code"].to_pylist() == ["shard_not_finished"]  # and no step of the clock
    found_ns = profile["events"]["start_ps"].to_numpy() / 1000 + (int(real_ns[0]) - 1_700_000_000_000_000_000)
    error_ns = found_ns - (at_s + steered(at_s)) * 1e9
    assert np.abs(error_ns).max() < 1000, np.abs(error_ns).max()
    assert abs(error_ns[-1] - error_ns[0]) < 1000  # and it does not add up over the hour
