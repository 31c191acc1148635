"""How much energy did each step take, on each device that was sampled?

    E(t)          what the device's counter of energy read last before t and next after it, on a straight line between
                  (nvmlDeviceGetTotalEnergyConsumption: mJ of the whole board since the driver was loaded)
    energy        E(end) - E(start) of the step's window on the device's lane
    error         of E at each border: how far the truth can be from it. It is not less than the reading before t. It is
                  not more than the first reading after the next one that has risen again, as that counts all up to then
                  (the counter itself is only brought up to date now and then); where none has, than the next one and
                  the largest rise that was seen

Devices without a counter: E(t) is the integral of the power that NVML said, by trapezoids (method `power`). It is an
average over up to a second on some devices, so that no error is stated. A window that is not sampled from before its
start to after its end has no energy, nor has one in which the counter began anew.

A window's borders are its neighbours' too: in a sum over adjoining windows only the outermost errors count.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.join.columns import Int64
from xprof_py.postprocess.join.device_power import UNTOLD, LanePower, lane_power, lane_steps
from xprof_py.postprocess.profile import Profile

PS_PER_NS = 1000
_PJ_PER_UJ = 1_000_000
_SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("lane", pa.int32()),
        ("device", pa.int32()),  # NVML's index
        ("uuid", pa.string()),
        ("name", pa.string()),
        ("number", pa.int64()),
        ("occurrence", pa.int32()),
        ("phase", pa.string()),
        ("start_ps", pa.int64()),
        ("end_ps", pa.int64()),
        ("method", pa.string()),  # counter, power; empty where energy_uj is null
        ("energy_uj", pa.int64()),
        ("start_error_uj", pa.int64()),
        ("end_error_uj", pa.int64()),
        ("tokens", pa.int64()),  # that the step said: of the host, not of this device
    ]
)


def partial(profile: Profile) -> pa.Table:
    """Columns of _SCHEMA for one joined profile: a row for every step window of a lane whose device was sampled."""
    parts = []
    for power in lane_power(profile):
        columns, start, end = lane_steps(profile, power)
        columns |= {"end_ps": end, **_energies(power, start, end)}
        parts.append(pa.table([columns[name] for name in _SCHEMA.names], schema=_SCHEMA))
    return pa.concat_tables(parts) if parts else _SCHEMA.empty_table()


def _energies(power: LanePower, start: Int64, end: Int64) -> dict[str, pa.Array]:
    method = "counter"
    told = power.energy_mj != UNTOLD
    if told.sum() >= 2:
        time, energy = power.time_ps[told], (power.energy_mj[told] - power.energy_mj[told][0]) * 1000
    else:
        method = "power"
        told = power.power_mw != UNTOLD
        time, energy = power.time_ps[told], _integral_uj(power.time_ps[told], power.power_mw[told])
    nothing = pa.nulls(len(start), pa.int64())
    if len(time) < 2:
        empty = pa.repeat(pa.scalar(""), len(start))
        return {"method": empty, "energy_uj": nothing, "start_error_uj": nothing, "end_error_uj": nothing}
    low, low_error, low_stretch = _at(time, energy, start)
    high, high_error, high_stretch = _at(time, energy, end)
    unknown = (low_stretch < 0) | (low_stretch != high_stretch)
    error_unknown = unknown | (method == "power")
    return {
        "method": pa.array(np.where(unknown, "", method)),
        "energy_uj": pa.array(high - low, mask=unknown),
        "start_error_uj": pa.array(low_error, mask=error_unknown),
        "end_error_uj": pa.array(high_error, mask=error_unknown),
    }


def _integral_uj(time_ps: Int64, power_mw: Int64) -> Int64:
    """The energy up to each sample since the first."""
    pj = (power_mw[1:] + power_mw[:-1]) * (np.diff(time_ps) // PS_PER_NS) // 2
    return np.concatenate([[0], np.cumsum(pj // _PJ_PER_UJ)]).astype(np.int64)


def _at(time_ps: Int64, energy_uj: Int64, at: Int64) -> tuple[Int64, Int64, Int64]:
    """(E, its error, the stretch in which the counter only rose) at each time; stretch -1: not sampled around it."""
    stretch = np.concatenate([[0], np.cumsum(np.diff(energy_uj) < 0)])
    left = np.clip(np.searchsorted(time_ps, at, side="right") - 1, 0, len(time_ps) - 2)
    right = left + 1
    inside = (at >= time_ps[0]) & (at <= time_ps[-1]) & (stretch[left] == stretch[right])
    # Both are rounded once, the same way everywhere: the same time has one energy in every window.
    part = (at - time_ps[left]) / (time_ps[right] - time_ps[left])
    value = energy_uj[left] + np.rint(part * (energy_uj[right] - energy_uj[left])).astype(np.int64)
    most = _next_rise(energy_uj, stretch)[right]
    error = np.maximum(value - energy_uj[left], most - value)
    return value, error, np.where(inside, stretch[left], -1)


def _next_rise(energy_uj: Int64, stretch: Int64) -> Int64:
    """For each reading the first higher one behind it in its stretch, else itself and the largest rise of all."""
    rises = np.diff(energy_uj)
    largest = int(rises.max(initial=0))
    out = energy_uj + largest
    for number in range(int(stretch[-1]) + 1):
        mine = np.flatnonzero(stretch == number)
        behind = np.searchsorted(energy_uj[mine], energy_uj[mine], side="right")
        found = behind < len(mine)
        out[mine[found]] = energy_uj[mine[behind[found]]]
    return out


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Rows of both: a window belongs to one host and one lane."""
    return pa.concat_tables([a, b])


def finish(merged: pa.Table) -> pa.Table:
    """The same rows, sorted by host, lane and start."""
    return merged.sort_by([(name, "ascending") for name in ("host", "lane", "start_ps", "end_ps")])
