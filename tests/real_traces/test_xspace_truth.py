"""The reader gives what protobuf's own runtime reads, on every real file: no event, stat or picosecond differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from google.protobuf.message import DecodeError
from xspace_truth import rows_of_columns, rows_of_message

from xprof_py import _native
from xprof_py.errors import BadInputError
from xprof_py.postprocess import schema
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.sniff import sniff
from xprof_py.postprocess.readers.xspace import read_xspace
from xspace_schema import XSpace

TraceFiles = Callable[[str], list[Path]]

pytestmark = pytest.mark.real_traces


def parsed(file: Path) -> Any:
    space = XSpace()
    try:
        space.ParseFromString(file.read_bytes())
    except DecodeError:
        return None
    return space


def test_columns_equal_protobuf(xspace_file: Path) -> None:
    space = parsed(xspace_file)
    data = xspace_file.read_bytes()
    if space is None:
        with pytest.raises(_native.DecodeError):
            _native.decode_xspace(data)
        return
    assert rows_of_columns(_native.decode_xspace(data), data) == rows_of_message(space)


def arg_rows(profile: Profile) -> list[tuple[Any, ...]]:
    """The table args as (event, key, kind, value), texts resolved."""
    args, texts = profile["args"], profile["texts"]["text"].to_pylist()
    return [
        (event, key, kind, texts[value] if kind == schema.ArgKind.TEXT else value)
        for event, key, kind, value in zip(*(args[name].to_pylist() for name in args.schema.names), strict=True)
    ]


_ARG_KINDS = {
    "int64_value": schema.ArgKind.INT,
    "uint64_value": schema.ArgKind.UINT,
    "double_value": schema.ArgKind.DOUBLE,
    "str_value": schema.ArgKind.TEXT,
    "bytes_value": schema.ArgKind.BYTES,
}


def test_tables_equal_protobuf(xspace_file: Path) -> None:
    space = parsed(xspace_file)
    if space is None:
        with pytest.raises(BadInputError, match="byte"):
            read_xspace(xspace_file)
        return
    assert sniff(xspace_file) == "xspace"
    profile = read_xspace(xspace_file)
    for name, table in profile.tables.items():
        assert table.schema == schema.TABLES[name], name
        table.validate(full=True)

    planes = rows_of_message(space)[0]
    lines = [(plane, line) for plane in planes for line in plane[2]]
    assert profile["lines"]["plane"].to_pylist() == [plane[1] for plane, _ in lines]
    assert profile["lines"]["line_id"].to_pylist() == [line[0] for _, line in lines]
    device_times = any(key == "device_offset_ps" for plane in planes for _, key in plane[4])
    wanted_events: list[tuple[Any, ...]] = []
    wanted_args: list[tuple[Any, ...]] = []
    for row, (_, line) in enumerate(lines):
        base_ps = line[3] * 1000
        for name, offset_ps, _, duration_ps, stats in sorted(line[6], key=lambda event: (event[1], -event[3])):
            for key, kind, value in stats:
                signed = value - 2**64 if kind == "uint64_value" and value >= 2**63 else value
                wanted_args.append((len(wanted_events), key, _ARG_KINDS[kind], signed))
            wanted_events.append((row, name, base_ps + offset_ps, duration_ps))
    events = profile["events"]
    found = list(zip(*(events[name].to_pylist() for name in ("line", "name", "start_ps", "duration_ps")), strict=True))
    if device_times:
        # Their times and so their order are the device's: test_tpu_ops_take_the_device_times.
        assert sorted(event[:2] for event in found) == sorted(event[:2] for event in wanted_events)
        assert sorted(arg[1:] for arg in arg_rows(profile)) == sorted(arg[1:] for arg in wanted_args)
    else:
        assert found == wanted_events
        assert arg_rows(profile) == wanted_args


def test_session_edges_are_the_capture(jax_cpu_file: Path) -> None:
    profile = read_xspace(jax_cpu_file)
    stats = {
        row["key"]: row["value"] for row in profile["plane_args"].to_pylist() if row["plane"] == "Task Environment"
    }
    assert profile.origin_ns == stats["profile_start_time"] > 1.7e18
    assert profile.capture_end_ps == (stats["profile_stop_time"] - stats["profile_start_time"]) * 1000
    events = profile["events"]
    start_ps = events["start_ps"].to_numpy()
    assert start_ps.min() >= 0
    assert start_ps.max() <= profile.capture_end_ps
    # The Python tracer closes the frames that are open after the session's stop has been stamped.
    late = np.flatnonzero(start_ps + events["duration_ps"].to_numpy() > profile.capture_end_ps)
    assert all(name.startswith("$") for name in events["name"].take(late).to_pylist())


def test_tpu_ops_take_the_device_times(trace_files: TraceFiles) -> None:
    profile = read_xspace(trace_files("xspace/tpu_inference_2")[0])
    events = profile["events"]
    start_ps, duration_ps = events["start_ps"].to_numpy(), events["duration_ps"].to_numpy()
    args = profile["args"]
    stated = {}
    for key in ("device_offset_ps", "device_duration_ps"):
        chosen = args.filter(pc.equal(args["key"], key))
        assert len(chosen) == 6013
        stated[key] = np.zeros(len(start_ps), np.int64)
        stated[key][chosen["event"].to_numpy()] = chosen["value"].to_numpy()
    has_times = chosen["event"].to_numpy()
    np.testing.assert_array_equal(duration_ps[has_times], stated["device_duration_ps"][has_times])
    # The whole plane is moved to the host's time: by less than 2 ms in these 98 s, and alike within a module.
    moved_ps = start_ps - stated["device_offset_ps"]
    assert np.abs(moved_ps[has_times]).max() < 2 * 10**9
    # A module still encloses its ops: the modules' own times are on another clock, up to 0.2 s away.
    for plane in range(4):
        lines = {
            line["name"]: row
            for row, line in enumerate(profile["lines"].to_pylist())
            if line["plane"] == f"/device:TPU:{plane}"
        }
        line = events["line"].to_numpy()
        modules, ops = (np.flatnonzero(line == lines[name]) for name in ("XLA Modules", "XLA Ops"))
        module = modules[np.searchsorted(start_ps[modules], start_ps[ops], side="right") - 1]
        assert np.all(start_ps[module] <= start_ps[ops])
        same = module[1:] == module[:-1]
        assert np.all(np.diff(moved_ps[ops])[same] == 0)
        assert np.all(start_ps[ops] + duration_ps[ops] <= start_ps[module] + duration_ps[module])


def test_tpu_op_facts_are_reachable(trace_files: TraceFiles) -> None:
    profile = read_xspace(trace_files("xspace/tpu_inference_2")[0])
    of = profile["event_metadata_of"]
    args = profile["metadata_args"]
    category = args.filter(pc.equal(args["key"], "hlo_category"))
    texts = profile["texts"]["text"].to_pylist()
    by_metadata = {
        metadata: texts[value]
        for metadata, value in zip(category["event_metadata"].to_pylist(), category["value"].to_pylist(), strict=True)
    }
    names = profile["events"]["name"].to_pylist()
    found = {
        (names[event].split(" ")[0].split(".")[0], by_metadata.get(metadata))
        for event, metadata in zip(of["event"].to_pylist(), of["event_metadata"].to_pylist(), strict=True)
        if names[event].startswith("%all-reduce")
    }
    assert found == {("%all-reduce", "all-reduce")}
