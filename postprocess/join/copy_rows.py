"""The copies of a profile with their bytes, as far as their events state them: the table `copies`.

Three sources, none of which is derived from another:

- XLA's CPU copies (copies.py): their events state no bytes, and neither does the call that began them. `bytes` is null.
- A GPU's copies: events of its streams with `memcpy_details` ("... size:N ..." or "num_bytes:N"); a size of 0 is how
  ROCm writes one that it does not know. The host's call of the same copy is no second copy.
- A TPU's transfers: `tpu::System::TransferToDevice` and `TransferFromDevice` with `size` and `device_ordinal`; they end
  where the event `...=>IssueEvent=>Done` of the same flow begins, null where there is none.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from xprof_py.postprocess import schema
from xprof_py.postprocess.join.columns import Events, Int64
from xprof_py.postprocess.join.copies import Copies
from xprof_py.postprocess.join.tables import StepOf
from xprof_py.postprocess.profile import Profile

_SIZE = re.compile(r"\b(?:size|num_bytes):(\d+)")
_DIRECTIONS = (
    ("to_device", re.compile(r"h2d|htod|HostToDevice", re.IGNORECASE)),
    ("to_host", re.compile(r"d2h|dtoh|DeviceToHost", re.IGNORECASE)),
    ("between_devices", re.compile(r"p2p|peer", re.IGNORECASE)),
    ("on_device", re.compile(r"d2d|dtod|DeviceToDevice", re.IGNORECASE)),
)
_TPU = {"tpu::System::TransferToDevice": "to_device", "tpu::System::TransferFromDevice": "to_host"}
_TPU_DONE = "=>IssueEvent=>Done"


def copies_table(profile: Profile, events: Events, copies: Copies, lanes: list[int], step_of: StepOf) -> pa.Table:
    """The table `copies`, sorted by start. ``lanes``: device ordinals of the process's lanes.

    A copy is of the step around the call that began it, never of one that it overlaps in time.
    """
    rows = [*_of_gpus(profile, events), *_of_tpus(events)]
    if not any(row["source"] == "size" for row in rows):
        # Where the runtime shows the transfers themselves, its dispatches of them are not counted again.
        rows += _of_cpu(copies, lanes)
    begun = [row for row in rows if row.get("put") is not None]
    puts = np.array([row["put"] for row in begun], np.int64)
    for row, step in zip(begun, step_of(events.start_ps[puts], events.line[puts]).tolist(), strict=True):
        row["step"] = step if step >= 0 else None
    rows.sort(key=lambda row: (row["start_ps"], row["event"]))
    names = schema.TABLES["copies"].names
    return schema.table("copies", {name: [row.get(name) for row in rows] for name in names})


def _of_cpu(copies: Copies, lanes: list[int]) -> list[dict[str, Any]]:
    device = f"cpu:{lanes[0]}" if len(lanes) == 1 else ""
    return [
        {
            "event": int(event),
            "put": int(put) if put >= 0 else None,
            "device": device,
            "direction": "to_device",
            "start_ps": int(start),
            "duration_ps": None if cut_off else int(end - start),
            "bytes": None,
            "source": "",
        }
        for event, put, start, end, cut_off in zip(
            copies.event, copies.put, copies.start_ps, copies.end_ps, copies.cut_off, strict=True
        )
    ]


def _of_gpus(profile: Profile, events: Events) -> list[dict[str, Any]]:
    stated, details = events.argument("memcpy_details")
    if not stated.any():
        return []
    planes = profile["lines"]["plane"].to_pylist()
    on_device = np.array([plane.startswith("/device:GPU:") for plane in planes] or [False], np.bool_)
    rows = np.flatnonzero(stated & on_device[events.line])
    texts = {code: events.text_of(code) for code in np.unique(details[rows]).tolist()}
    out = []
    for row in rows.tolist():
        text = texts[int(details[row])]
        size = _SIZE.search(text)
        count = int(size.group(1)) if size else 0
        out.append(
            {
                "event": row,
                "device": planes[int(events.line[row])].removeprefix("/device:").lower(),
                "direction": direction(events.names[int(events.name[row])], text),
                "start_ps": int(events.start_ps[row]),
                "duration_ps": _duration(events, row),
                "bytes": count or None,
                "source": "memcpy_details" if count else "",
            }
        )
    return out


def direction(name: str, details: str) -> str:
    """Which way a GPU's copy went, by its event's name, else by its details; "unknown" where neither says."""
    for text in (name, details):
        for found, pattern in _DIRECTIONS:
            if pattern.search(text):
                return found
    return "unknown"


def _of_tpus(events: Events) -> list[dict[str, Any]]:
    has_size, size = events.argument("size")
    has_flow, flow = events.argument("_p")
    joined, end_of = events.argument("_c")
    out = []
    for name, way in _TPU.items():
        done = np.flatnonzero(events.named(name + _TPU_DONE) & joined)
        ends = _by_flow(end_of[done], events.start_ps[done])
        ordinal = events.argument("device_ordinal")[1]
        for row in np.flatnonzero(events.named(name) & has_size).tolist():
            start = int(events.start_ps[row])
            # A flow's number may come again: the first end that follows.
            later = [at for at in ends.get(int(flow[row]), []) if at >= start] if has_flow[row] else []
            out.append(
                {
                    "event": row,
                    "device": f"tpu:{int(ordinal[row])}",
                    "direction": way,
                    "start_ps": start,
                    "duration_ps": later[0] - start if later else None,
                    "bytes": int(size[row]) or None,
                    "source": "size" if size[row] else "",
                }
            )
    return out


def _by_flow(flow: Int64, at_ps: Int64) -> dict[int, list[int]]:
    out: dict[int, list[int]] = {}
    for key, at in sorted(zip(flow.tolist(), at_ps.tolist(), strict=True)):
        out.setdefault(key, []).append(at)
    return out


def _duration(events: Events, row: int) -> int | None:
    duration = int(events.duration_ps[row])
    return None if duration < 0 else duration
