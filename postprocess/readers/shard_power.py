"""What the power sampler left in a shard: its POWER and POWER_TOTALS chunks as the table power."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from xprof_py.postprocess import schema
from xprof_py.postprocess.readers.shard_clock import Note, RealtimeMap

POWER, POWER_TOTALS = 20, 21
"""Chunk types, as in shard_format.h."""

_ROW = np.dtype(
    [
        ("at_ns", "<i8"),
        ("device", "<u4"),
        ("power_mw", "<u4"),
        ("energy_mj", "<u8"),
        ("temperature_c", "<u4"),
        ("sm_clock_mhz", "<u4"),
        ("memory_clock_mhz", "<u4"),
        ("busy_percent", "<u4"),
        ("memory_busy_percent", "<u4"),
        ("uuid", "<u4"),
        ("clock_reasons", "<u8"),
        ("memory_used_bytes", "<u8"),
    ]
)
_COLUMNS = {
    "hw_power_mw": "power_mw",
    "hw_energy_mj": "energy_mj",
    "hw_temperature_c": "temperature_c",
    "hw_gpu_utilization_percent": "busy_percent",
    "hw_gpu_memory_usage_bytes": "memory_used_bytes",
    "memory_busy_percent": "memory_busy_percent",
    "sm_clock_mhz": "sm_clock_mhz",
    "memory_clock_mhz": "memory_clock_mhz",
    "clock_reasons": "clock_reasons",
}
"""Column of the table -> field of the record."""
_TOTALS = ("written", "dropped", "failed_calls", "cpu_ns")

Array = np.ndarray[Any, Any]


@dataclass
class ShardPower:
    """What the chunks of one shard hold."""

    rows: list[Array] = field(default_factory=list)
    totals: dict[str, int] | None = None

    def take(self, kind: int, body: Array) -> bool:
        """Take one chunk apart; False: it is of another type. Raises struct.error or ValueError for nonsense in it."""
        if kind == POWER:
            if len(body) % _ROW.itemsize:
                raise ValueError(len(body))
            self.rows.append(body)
        elif kind == POWER_TOTALS:
            self.totals = dict(zip(_TOTALS, struct.unpack_from(f"<{len(_TOTALS)}Q", body.data), strict=True))
        else:
            return False
        return True

    def take_cut(self, kind: int, body: Array) -> None:
        """Take the whole rows of a chunk that the end of the file cuts."""
        if kind == POWER:
            self.take(kind, body[: len(body) // _ROW.itemsize * _ROW.itemsize])

    def table(self, strings: Mapping[int, str], clock: RealtimeMap | None, note: Note) -> pa.Table:
        """The table power. ``clock`` puts stamps of CLOCK_REALTIME on the profile's axis.

        ``note`` takes (severity, code, place, count, message).
        """
        totals = self.totals or {}
        for code, count, message in (
            (
                "power_dropped",
                totals.get("dropped", 0),
                "rows of power and clocks: the shard's budget, its disk or memory",
            ),
            ("power_failed", totals.get("failed_calls", 0), "calls of NVML that failed: what they ask for is not told"),
        ):
            if count:
                note("warning", code, "", count, message)
        if not self.rows:
            return schema.empty("power")
        rows = np.concatenate(self.rows).view(_ROW)
        if clock is None:
            message = "rows of power and clocks without a clock sample: their times cannot be told"
            note("error", "no_clock", "", len(rows), message)
            return schema.empty("power")
        if self.totals is None:
            note("warning", "power_not_ended", "", 1, "the power sampler did not end: what it lost is not known")
        rows = rows[np.lexsort((rows["at_ns"], rows["device"]))]
        ids, row_of = np.unique(rows["uuid"], return_inverse=True)
        uuids = pa.array([strings.get(int(i), "") for i in ids], pa.string())
        columns: dict[str, Any] = {
            "device": rows["device"].astype(np.int32),
            "uuid": pa.DictionaryArray.from_arrays(pa.array(row_of.reshape(-1).astype(np.int32)), uuids),
            "time_ps": clock.to_ps(rows["at_ns"])[0],
        }
        for column, name in _COLUMNS.items():
            values = rows[name]
            untold = values == np.iinfo(values.dtype).max
            # What does not fit is no measurement.
            untold |= values > np.iinfo(np.int64).max
            columns[column] = pa.array(np.where(untold, 0, values).astype(np.int64), mask=untold)
        return schema.table("power", columns)
