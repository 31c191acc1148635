"""Which sampled device a lane is, and what was sampled of it.

A lane of a GPU (`/device:GPU:N`) and a device of NVML are one where both say one UUID; else where the capture knew
which of CUDA's devices each is (the run file's `ordinal`); else where there is one of each. Anything else is not known,
and its lane has no power.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from xprof_py.postprocess.join.columns import Bool, Int64
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
    for lane, index in sorted(_devices_of_lanes(profile).items()):
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


def _devices_of_lanes(profile: Profile) -> dict[int, int]:
    """Lane -> NVML's index of its device, where that is known."""
    gpus: dict[int, int] = {}
    for lane, name in enumerate(profile["lanes"]["device"].to_pylist()):
        if found := _GPU.match(name):
            gpus[lane] = int(found[1])
    power = profile["power"]
    pairs = power.group_by(["device", "uuid"], use_threads=False).aggregate([]).to_pylist()
    indexes = sorted({row["device"] for row in pairs})
    uuid_of_plane = {
        row["plane"]: _hex(row["text"])
        for row in profile["plane_args"].to_pylist()
        if row["key"] == "uuid" and row["text"]
    }
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
