"""The copies of a profile with their bytes, as far as their events state them: the table `copies`.

Three sources, none of which is derived from another:

- XLA's CPU copies (copies.py): their events state no bytes, and neither does the call that began them. `bytes` is null.
- A GPU's copies: events of its streams with `memcpy_details` ("... size:N ..." or "num_bytes:N"); a size of 0 is how
  ROCm writes one that it does not know. The host's call of the same copy is no second copy. Traces of PyTorch and of
  Nsight Systems state `bytes` instead.
- A TPU's transfers: `tpu::System::TransferToDevice` and `TransferFromDevice` with `size` and `device_ordinal`; they end
  where the event `...=>IssueEvent=>Done` of the same flow begins, null where there is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess import schema
from xprof_py.postprocess.join.columns import Bool, Events, Int64, Integers, distinct
from xprof_py.postprocess.join.copies import Copies
from xprof_py.postprocess.join.tables import StepOf
from xprof_py.postprocess.profile import Profile

_SIZE = re.compile(r"\b(?:size|num_bytes):(\d+)")
_COPY = re.compile(r"mem_?cpy", re.IGNORECASE)
_DIRECTIONS = (
    ("to_device", re.compile(r"h2d|htod|HostToDevice", re.IGNORECASE)),
    ("to_host", re.compile(r"d2h|dtoh|DeviceToHost", re.IGNORECASE)),
    ("between_devices", re.compile(r"p2p|ptop|peer", re.IGNORECASE)),
    ("on_device", re.compile(r"d2d|dtod|DeviceToDevice", re.IGNORECASE)),
)
_TPU = {"tpu::System::TransferToDevice": "to_device", "tpu::System::TransferFromDevice": "to_host"}
_TPU_DONE = "=>IssueEvent=>Done"


def copies_table(profile: Profile, events: Events, copies: Copies, lanes: list[int], step_of: StepOf) -> pa.Table:
    """The table `copies`, sorted by start. ``lanes``: device ordinals of the process's lanes.

    A copy is of the step around the call that began it, never of one that it overlaps in time.
    """
    transfers = _of_tpus(events)
    # Where the runtime shows the transfers themselves, its dispatches of them are not counted again.
    shown = any(pc.any(part["bytes"].is_valid()).as_py() for part in transfers)
    parts = [
        _of_gpus(profile, events),
        _of_gpus_by_bytes(profile, events),
        *transfers,
        *([] if shown else [_of_cpu(events, copies, lanes, step_of)]),
    ]
    return pa.concat_tables(parts).sort_by([("start_ps", "ascending"), ("event", "ascending")])


def _rows(
    event: Int64,
    start_ps: Int64,
    duration_ps: Int64,
    size: Int64,
    source: str,
    device: pa.Array,
    way: pa.Array,
    begun: tuple[Int64, Int64] | None = None,
) -> pa.Table:
    """Rows of one source; durations and ``begun`` (put, step) below 0 are null, and so are sizes below 1.

    ``source``: the argument that states the sizes.
    """
    put, step = begun or (np.full(len(event), -1, np.int64),) * 2
    return schema.table(
        "copies",
        {
            "event": event,
            "put": pa.array(put, mask=put < 0),
            "step": pa.array(step, mask=step < 0),
            "device": device,
            "direction": way,
            "start_ps": start_ps,
            "duration_ps": pa.array(duration_ps, mask=duration_ps < 0),
            "bytes": pa.array(size, mask=size < 1),
            "source": pa.array(["", source]).take(pa.array((size > 0).astype(np.int64))),
        },
    )


def _same(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def _texts(codes: Integers, text_of: Callable[[int], str]) -> pa.Array:
    """``text_of`` of each code, asked once per distinct one."""
    codes, place = np.unique(codes, return_inverse=True)
    return pa.array([text_of(code) for code in codes.tolist()], pa.string()).take(pa.array(place.reshape(-1)))


def _of_cpu(events: Events, copies: Copies, lanes: list[int], step_of: StepOf) -> pa.Table:
    count = len(copies.event)
    device = f"cpu:{lanes[0]}" if len(lanes) == 1 else ""
    step = np.full(count, -1, np.int64)
    begun = np.flatnonzero(copies.put >= 0)
    puts = copies.put[begun]
    step[begun] = step_of(events.start_ps[puts], events.line[puts])
    lasted = np.where(np.array(copies.cut_off, np.bool_), -1, copies.end_ps - copies.start_ps)
    unstated = np.zeros(count, np.int64)
    names = _same(device, count), _same("to_device", count)
    return _rows(copies.event, copies.start_ps, lasted, unstated, "", *names, begun=(copies.put, step))


def _of_gpus(profile: Profile, events: Events) -> pa.Table:
    rows, details = events.having("memcpy_details")
    planes = profile["lines"]["plane"].to_pylist()
    mine = _on_gpus(planes)[events.line[rows]]
    rows, details = rows[mine], details[mine]
    # Each distinct name and text is read once.
    first, kind = distinct(events.name[rows], details)
    told = [events.text_of(code) for code in details[first].tolist()]
    sizes = [int(size.group(1)) if size else 0 for size in map(_SIZE.search, told)]
    names = (events.names[code] for code in events.name[rows[first]].tolist())
    ways = [direction(name, text) for name, text in zip(names, told, strict=True)]
    return _rows(
        rows,
        events.start_ps[rows],
        events.duration_ps[rows],
        np.array(sizes, np.int64)[kind],
        "memcpy_details",
        _texts(events.line[rows], lambda line: planes[line].removeprefix("/device:").lower()),
        pa.array(ways, pa.string()).take(pa.array(kind)),
    )


def _of_gpus_by_bytes(profile: Profile, events: Events) -> pa.Table:
    rows, size = events.having("bytes")
    planes = profile["lines"]["plane"].to_pylist()
    mine = _on_gpus(planes)[events.line[rows]] & events.verdicts(_COPY.match)[events.name[rows]]
    mine &= ~events.argument_of("memcpy_details", rows)[0]
    rows, size = rows[mine], size[mine]
    return _rows(
        rows,
        events.start_ps[rows],
        events.duration_ps[rows],
        size,
        "bytes",
        _texts(events.line[rows], lambda line: planes[line].removeprefix("/device:").lower()),
        _texts(events.name[rows], lambda name: direction(events.names[name], "")),
    )


def _on_gpus(planes: list[str]) -> Bool:
    return np.array([plane.startswith("/device:GPU:") for plane in planes] or [False], np.bool_)


def direction(name: str, details: str) -> str:
    """Which way a GPU's copy went, by its event's name, else by its details; "unknown" where neither says."""
    for text in (name, details):
        for found, pattern in _DIRECTIONS:
            if pattern.search(text):
                return found
    return "unknown"


def _of_tpus(events: Events) -> list[pa.Table]:
    out = []
    for name, way in _TPU.items():
        rows = events.rows_named(name)
        has_size, size = events.argument_of("size", rows)
        rows, size = rows[has_size], size[has_size]
        done = events.rows_named(name + _TPU_DONE)
        joined, done_flow = events.argument_of("_c", done)
        start, end = events.start_ps[rows], events.start_ps[done[joined]]
        has_flow, flow = events.argument_of("_p", rows)
        until = _first_end(flow, start, done_flow[joined], end)
        lasted = np.where(has_flow & (until >= 0), until - start, -1)
        device = _texts(events.argument_of("device_ordinal", rows)[1], "tpu:{}".format)
        out.append(_rows(rows, start, lasted, size, "size", device, _same(way, len(rows))))
    return out


def _first_end(flow: Int64, at_ps: Int64, end_flow: Int64, end_ps: Int64) -> Int64:
    """Per flow and time the first end of that flow from then on, -1 without: a flow's number may come again."""
    is_end = np.concatenate((np.zeros(len(flow), np.bool_), np.ones(len(end_flow), np.bool_)))
    flows, times = np.concatenate((flow, end_flow)), np.concatenate((at_ps, end_ps))
    order = np.lexsort((is_end, times, flows))
    ends = np.flatnonzero(is_end[order])
    asked = np.flatnonzero(~is_end[order])
    place = np.searchsorted(ends, asked)
    followed = place < len(ends)
    asked, end = asked[followed], order[ends[place[followed]]]
    same = flows[order[asked]] == flows[end]
    out = np.full(len(flow), -1, np.int64)
    out[order[asked[same]]] = times[end[same]]
    return out
