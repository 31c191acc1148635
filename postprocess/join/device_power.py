"""Which sampled device a lane is, and what was sampled of it.

A lane of a GPU (`/device:GPU:N`) and a device of NVML are one where both say one UUID; else where the capture knew
which of CUDA's devices each is (the run file's `ordinal`); else where there is one of each. Anything else is not known,
its lane has no power, and a row of diagnostics says which devices were seen by whom.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.join.columns import Bool, Int64, integers
from xprof_py.postprocess.profile import Profile

_GPU = re.compile(r"^/device:GPU:(\d+)")
UNTOLD = -1


@dataclass(frozen=True)
class LanePower:
    """Rows of `power` of one lane's device, in order of time. ``UNTOLD`` (-1) stands for what the device did not tell.

    ``index``: NVML's, ``uuid`` as NVML writes it. Columns of one length: ``time_ps``, ``power_mw``, ``energy_mj``,
    ``sm_clock_mhz``, ``clock_reasons``, ``temperature_c``, ``busy_percent``.
    """

    lane: int
    index: int
    uuid: str
    time_ps: Int64
    power_mw: Int64
    energy_mj: Int64
    sm_clock_mhz: Int64
    clock_reasons: Int64
    temperature_c: Int64
    busy_percent: Int64


def lane_power(profile: Profile) -> list[LanePower]:
    """Every lane of a joined profile whose device was sampled, in the order of lanes."""
    power = profile["power"]
    if not power.num_rows:
        return []
    out = []
    for lane, index in sorted(_devices_of_lanes(profile, profile["lanes"]["device"].to_pylist()).items()):
        rows = power.filter(pc.equal(power["device"], index))

        def column(name: str, rows: object = rows) -> Int64:
            filled = pc.fill_null(rows[name], UNTOLD)  # type: ignore[index]
            return np.asarray(filled.to_numpy(), np.int64)

        time_ps = column("time_ps")
        keep: Bool = np.concatenate([[True], np.diff(time_ps) > 0])
        out.append(
            LanePower(
                lane,
                index,
                rows["uuid"][0].as_py(),
                time_ps[keep],
                *(
                    column(name)[keep]
                    for name in (
                        "hw_power_mw",
                        "hw_energy_mj",
                        "sm_clock_mhz",
                        "clock_reasons",
                        "hw_temperature_c",
                        "hw_gpu_utilization_percent",
                    )
                ),
            )
        )
    return out


def lane_steps(profile: Profile, power: LanePower) -> tuple[dict[str, Any], Int64, Int64]:
    """(columns, start_ps, end_ps) of the step windows of the lane: whose they are, and what is known of their steps."""
    windows = profile["windows"]
    mine = windows.filter(pc.and_(pc.equal(windows["kind"], "step"), pc.equal(windows["lane"], power.lane)))
    start, end = integers(mine, "start_ps"), integers(mine, "end_ps")
    steps = profile["steps"].take(pa.array(integers(mine, "step")))
    columns = {
        "host": pa.repeat(pa.scalar(profile.host), len(start)),
        "lane": mine["lane"],
        "device": pa.array(np.full(len(start), power.index, np.int32)),
        "uuid": pa.repeat(pa.scalar(power.uuid), len(start)),
        **{name: steps[name] for name in ("name", "number", "occurrence", "phase", "tokens")},
        "start_ps": start,
    }
    return columns, start, end


def lanes_without_power(profile: Profile, lanes: list[str]) -> tuple[int, str]:
    """(how many of the GPUs ``lanes`` are none of the devices that were sampled, what both were seen as); (0, "")."""
    power = profile["power"]
    if not power.num_rows:
        return 0, ""
    sampled = _devices_of_lanes(profile, lanes)
    missing = [name for lane, name in enumerate(lanes) if lane not in sampled and _GPU.match(name)]
    if not missing:
        return 0, ""
    uuid_of_plane = _uuids_of_planes(profile)
    in_trace = ", ".join(f"{name} ({_as_nvml(uuid_of_plane.get(_plane(name), ''))})" for name in missing)
    pairs = power.group_by(["device", "uuid"], use_threads=False).aggregate([]).to_pylist()
    seen = ", ".join(f"{p['device']} ({p['uuid'] or 'no UUID'})" for p in sorted(pairs, key=lambda p: (*p.values(),)))
    return len(missing), (
        f"no energy and no clocks are known of {in_trace}: NVML sampled {seen}, and nothing says that these are the "
        "same; an instance of MIG has a UUID of its own"
    )


def _as_nvml(digits: str) -> str:
    """A UUID as NVML writes that of a GPU."""
    if len(digits) != 32:
        return digits or "no UUID"
    return "GPU-" + "-".join(digits[a:b] for a, b in pairwise((0, 8, 12, 16, 20, 32)))


def _plane(lane: str) -> str:
    found = _GPU.match(lane)
    return found[0] if found else lane


def _uuids_of_planes(profile: Profile) -> dict[str, str]:
    rows = profile["plane_args"].to_pylist()
    return {row["plane"]: _hex(row["text"]) for row in rows if row["key"] == "uuid" and row["text"]}


def _devices_of_lanes(profile: Profile, lanes: list[str]) -> dict[int, int]:
    """Lane -> NVML's index of its device, where that is known. ``lanes``: their devices."""
    gpus = {lane: int(found[1]) for lane, name in enumerate(lanes) if (found := _GPU.match(name))}
    power = profile["power"]
    pairs = power.group_by(["device", "uuid"], use_threads=False).aggregate([]).to_pylist()
    indexes = sorted({row["device"] for row in pairs})
    uuid_of_plane = _uuids_of_planes(profile)
    index_of_uuid = {_hex(row["uuid"]): row["device"] for row in pairs if row["uuid"]}
    index_of_ordinal = _ordinals(profile, index_of_uuid)
    out: dict[int, int] = {}
    for lane, ordinal in gpus.items():
        uuid = uuid_of_plane.get(f"/device:GPU:{ordinal}")
        index = index_of_uuid.get(uuid) if uuid is not None else index_of_ordinal.get(ordinal)
        if index is None and uuid is None and len(gpus) == 1 and len(indexes) == 1:
            index = indexes[0]
        if index is not None:
            out[lane] = index
    return out


def _ordinals(profile: Profile, index_of_uuid: dict[str, int]) -> dict[int, int]:
    """CUDA's ordinal -> NVML's index, as the run file says them."""
    run = profile.metadata.get("run") or {}
    said = ((run.get("collectors") or {}).get("power") or {}).get("devices")
    out: dict[int, int] = {}
    for device in said if isinstance(said, list) else ():
        ordinal, index = (
            (device.get(name) for name in ("ordinal", "index")) if isinstance(device, dict) else (None, None)
        )
        if isinstance(ordinal, int) and isinstance(index, int):
            out[ordinal] = index_of_uuid.get(_hex(str(device.get("uuid"))), index)
    return out


def _hex(uuid: str) -> str:
    """A UUID's digits alone: NVML writes GPU-8f1c0a2e-..., CUDA gives 16 bytes."""
    return uuid.removeprefix("GPU-").replace("-", "").lower()
