"""Copies with their bytes where a trace states them, and nothing where it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.case_text import read_case
from conformance.profile_tables import profile_of
from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import copy_sizes
from xprof_py.postprocess.fleet.analysis import partials, reduce_partials
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.join.copy_rows import direction
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.rules.copy_words import copy_advice, copy_evidence, copy_rows
from xprof_py.postprocess.schema import ArgKind

CASES = Path(__file__).parent.parent / "conformance" / "cases"

Made = tuple[str, str, int, int, dict[str, Any]]


def made_up(*rows: Made) -> Profile:
    """``rows``: (plane, event, start, duration, arguments), each on the one line of its plane."""
    planes = sorted({row[0] for row in rows})
    texts: list[str] = []
    args = []
    for number, (_, _, _, _, given) in enumerate(sorted(rows, key=lambda row: (row[0], row[2]))):
        for key, value in given.items():
            if isinstance(value, str):
                texts.append(value)
                args.append((number, key, int(ArgKind.TEXT), len(texts) - 1))
            else:
                args.append((number, key, int(ArgKind.INT), value))

    def table(name: str, found: list[tuple[Any, ...]]) -> Any:
        names = schema.TABLES[name].names
        return schema.table(name, {key: [row[i] for row in found] for i, key in enumerate(names)})

    events = [(planes.index(p), name, 0, start, length) for p, name, start, length, _ in sorted(rows, key=_place)]
    return Profile("host0", 0, 0, 1000).with_tables(
        lines=table("lines", [(plane, "a line", i, None, "xspace", "boot") for i, plane in enumerate(planes)]),
        events=table("events", events),
        args=table("args", args),
        texts=table("texts", [(text,) for text in texts]),
    )


def _place(row: Made) -> tuple[str, int]:
    return row[0], row[2]


def copies_of(*rows: Made) -> list[tuple[Any, ...]]:
    names = ("device", "direction", "duration_ps", "bytes", "source", "step")
    return [tuple(row[name] for name in names) for row in join_profile(made_up(*rows))["copies"].to_pylist()]


def test_a_gpus_copies_say_their_size_and_the_hosts_call_is_no_second_copy() -> None:
    assert copies_of(
        ("/device:GPU:1", "MemcpyH2D", 10, 20, {"memcpy_details": "kind_src:pageable size:6144 dest:1 async:1"}),
        ("/device:GPU:1", "MemcpyD2H", 40, 5, {"memcpy_details": "num_bytes:77"}),
        ("/device:GPU:1", "CopyDeviceToDevice", 50, 5, {"memcpy_details": "kind:Unknown size:0 dest:2 async:1"}),
        ("/host:CPU", "MemcpyH2D", 1, 2, {"memcpy_details": "size:6144 dest:1 async:1"}),
    ) == [
        ("gpu:1", "to_device", 20, 6144, "memcpy_details", None),
        ("gpu:1", "to_host", 5, 77, "memcpy_details", None),
        ("gpu:1", "on_device", 5, None, "", None),
    ]


def test_a_tpus_transfer_ends_where_its_flow_is_done() -> None:
    device, host = "tpu::System::TransferToDevice", "tpu::System::TransferFromDevice"
    assert copies_of(
        ("/host:CPU", device, 10, 8, {"size": 512, "device_ordinal": 4, "_pt": 7, "_p": 99}),
        ("/host:CPU", f"{device}=>IssueEvent=>Done", 50, 3, {"size": 512, "_ct": 7, "_c": 99}),
        ("/host:CPU", host, 60, 8, {"size": 64, "device_ordinal": 5, "_pt": 7, "_p": 100}),
        ("/host:CPU", device, 200, 8, {"size": 512, "device_ordinal": 4, "_pt": 7, "_p": 99}),
        ("/host:CPU", f"{device}=>IssueEvent=>Done", 230, 3, {"size": 512, "_ct": 7, "_c": 99}),
        ("/host:CPU", "H2D Dispatch", 9, 9, {}),
    ) == [
        ("tpu:4", "to_device", 40, 512, "size", None),
        ("tpu:5", "to_host", None, 64, "size", None),
        ("tpu:4", "to_device", 30, 512, "size", None),
    ]


@pytest.mark.parametrize(
    ("name", "details", "way"),
    [
        ("hipMemcpyHtoDAsync", "", "to_device"),
        ("MemcpyP2P", "", "between_devices"),
        ("Memcpy", "kind:DeviceToHost size:4", "to_host"),
        ("MemcpyOther", "kind:Unknown size:0", "unknown"),
    ],
)
def test_which_way_a_copy_went(name: str, details: str, way: str) -> None:
    assert direction(name, details) == way


def test_a_cpus_copies_have_the_step_of_their_put_and_no_bytes() -> None:
    """Case copies_after_last_op: the copies are begun by puts in their steps; XLA states no bytes on CPU."""
    joined = join_profile(profile_of(read_case(CASES / "copies_after_last_op.case"), "shard"))
    rows = joined["copies"].to_pylist()
    assert rows
    assert {(row["direction"], row["bytes"], row["source"]) for row in rows} == {("to_device", None, "")}
    assert all(row["device"] == "cpu:0" and row["put"] is not None and row["step"] is not None for row in rows)
    analysis = reduce_partials([partials(profile_of(read_case(CASES / "copies_after_last_op.case"), "shard"))], [])
    (row,) = analysis.summary["copies"]
    assert (row["count"], row["bytes"], row["bytes_per_s"]) == (len(rows), None, None)
    assert analysis.tables["copies"].num_rows == len(rows)


def sizes(*rows: tuple[str, str, int, int, int, int, int]) -> Any:
    table = copy_sizes._SCHEMA.empty_table()
    names = table.schema.names
    return table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=table.schema)


def test_copies_without_a_size_make_a_bandwidth_neither_faster_nor_slower() -> None:
    """3 copies of 2 ms, two of which state 4 MB each: 8 MB in 4 ms is 2 GB/s."""
    table = sizes(("to_device", "steady", 3, 6 * 10**9, 2, 8_000_000, 4 * 10**9), ("to_host", "warmup", 1, 5, 0, 0, 0))
    (row,) = copy_rows(table, ("steady",))
    assert (row["bytes"], row["bytes_per_s"], row["with_bytes"]) == (8_000_000, 2e9, 2)
    (shown,) = copy_evidence(copy_rows(table, ("steady",)))
    assert shown["text"] == "3 copies to the device, 6 ms in all: 8 MB at 2 GB/s (2 of them state their size)"
    assert "They move 8 MB at 2 GB/s" in copy_advice("host_device", [row])
    assert copy_advice("input", [row]) == ""


def test_where_no_size_is_stated_the_words_say_so() -> None:
    table = sizes(("to_device", "steady", 1, 10**9, 0, 0, 0))
    assert copy_evidence(copy_rows(table, ("steady",))) == []
    assert "nbytes" in copy_advice("host_device", copy_rows(table, ("steady",)))


def test_parts_merge_exactly_and_in_any_order() -> None:
    one, other = sizes(("to_device", "steady", 1, 5, 1, 7, 5)), sizes(("to_device", "steady", 2, 3, 0, 0, 0))
    assert copy_sizes.finish(copy_sizes.merge(one, other)) == copy_sizes.finish(copy_sizes.merge(other, one))
    assert copy_sizes.merge(one, other).to_pylist()[0]["total_ps"] == 8
