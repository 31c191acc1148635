"""Power and clocks in shards that were written by hand, cut off or damaged."""

from __future__ import annotations

import struct
from pathlib import Path

from unit.test_shard_stacks import START_NS, STRINGS, codes, shard, string

from xprof_py.postprocess.readers.process import together
from xprof_py.postprocess.readers.shard import read_shard

POWER, TOTALS = 20, 21
UNTOLD_32, UNTOLD_64 = 2**32 - 1, 2**64 - 1


def row(at_ns: int, device: int = 0, mw: int = 300_000, mj: int = 7_000, mhz: int = 1980, uuid: int = 5) -> bytes:
    return struct.pack("<qIIQ6IQQ", at_ns, device, mw, mj, 61, mhz, 3201, 97, 42, uuid, 0x44, 100 << 30)


def test_rows_written_by_hand(tmp_path: Path) -> None:
    """In the order of device and time, on the shard's axis, whatever the order in which they were written."""
    profile = read_shard(
        shard(
            tmp_path / "a.xpr",
            (STRINGS, string(5, "GPU-aa") + string(6, "GPU-bb")),
            (POWER, row(START_NS + 300) + row(START_NS + 200, device=1, uuid=6)),
            (POWER, row(START_NS + 100, mj=6_000)),
            (TOTALS, struct.pack("<4Q", 3, 0, 0, 1000)),
        )
    )
    rows = profile["power"].to_pylist()
    assert [(r["device"], r["uuid"], r["time_ps"], r["hw_energy_mj"]) for r in rows] == [
        (0, "GPU-aa", 100_000, 6_000),
        (0, "GPU-aa", 300_000, 7_000),
        (1, "GPU-bb", 200_000, 7_000),
    ]
    assert {key: rows[0][key] for key in list(rows[0])[3:] if key != "hw_energy_mj"} == {
        "hw_power_mw": 300_000,
        "hw_temperature_c": 61,
        "hw_gpu_utilization_percent": 97,
        "hw_gpu_memory_usage_bytes": 100 << 30,
        "memory_busy_percent": 42,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "clock_reasons": 0x44,
    }
    assert codes(profile) == {}


def test_what_a_device_does_not_tell_is_null(tmp_path: Path) -> None:
    untold = row(START_NS, mw=UNTOLD_32, mj=UNTOLD_64, mhz=UNTOLD_32, uuid=UNTOLD_32)
    # Energy past what the column holds is no measurement either.
    beyond = row(START_NS + 1, mj=2**63)
    profile = read_shard(shard(tmp_path / "a.xpr", (POWER, untold + beyond), (TOTALS, struct.pack("<4Q", 2, 0, 0, 0))))
    first, second = profile["power"].to_pylist()
    assert [first[key] for key in ("hw_power_mw", "hw_energy_mj", "sm_clock_mhz", "uuid")] == [None, None, None, ""]
    assert (first["hw_temperature_c"], second["hw_energy_mj"], second["hw_power_mw"]) == (61, None, 300_000)


def test_losses_are_rows(tmp_path: Path) -> None:
    profile = read_shard(shard(tmp_path / "a.xpr", (POWER, row(START_NS)), (TOTALS, struct.pack("<4Q", 1, 2, 3, 0))))
    assert codes(profile) == {"power_dropped": 2, "power_failed": 3}
    ended = read_shard(shard(tmp_path / "b.xpr", (POWER, row(START_NS))))
    assert codes(ended) == {"power_not_ended": 1}
    assert ended["power"].num_rows == 1


def test_of_a_chunk_that_the_files_end_cuts_the_whole_rows_are_read(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.xpr", (POWER, row(START_NS) + row(START_NS + 100)))
    path.write_bytes(path.read_bytes()[:-30])
    profile = read_shard(path)
    assert profile["power"]["time_ps"].to_pylist() == [0]
    assert "shard_truncated" in codes(profile)


def test_a_chunk_of_broken_size_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    chunks = ((POWER, row(START_NS)[:40]), (TOTALS, bytes(8)), (POWER, row(START_NS + 100)))
    profile = read_shard(shard(tmp_path / "a.xpr", *chunks))
    assert profile["power"]["time_ps"].to_pylist() == [100_000]
    assert profile["diagnostics"]["code"].to_pylist().count("shard_damaged") == 2


def test_beside_an_xspace_its_axis_is_the_xspaces(tmp_path: Path) -> None:
    part = read_shard(shard(tmp_path / "a.xpr", (POWER, row(START_NS + 700)), (TOTALS, bytes(32))))
    whole = together(part.__class__("x", START_NS - 300, 0, 10_000_000), part)
    assert whole["power"]["time_ps"].to_pylist() == [1_000_000]
