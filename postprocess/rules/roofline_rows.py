"""What the summary says of the roofline: fields of the top ops, programs, utilisation, and whose peaks they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from xprof_py.postprocess.analyses.top_ops import KEYS

PROGRAMS = 10
_ROW_KEYS = tuple(key for key in KEYS if key != "phase")


def with_roofline(
    shown: Sequence[dict[str, Any]], ops: pa.Table, roofline: pa.Table, lanes: int
) -> list[dict[str, Any]]:
    """``shown``, the summary's rows of ``ops``, with flops and bytes of one execution, efficiency and bound, and
    codegen_excess_s, seconds beyond the ideal as the mean over ``lanes``.

    Each is None where it is not known. ``roofline``: what analyses/roofline.py finished.
    """
    keys = [tuple(row.values()) for row in ops.select(list(_ROW_KEYS)).to_pylist()]
    wanted = set(keys)
    found = {key: row for row in roofline.to_pylist() if (key := tuple(row[k] for k in _ROW_KEYS)) in wanted}
    return [{**row, **_fields(found.get(key), lanes)} for row, key in zip(shown, keys, strict=True)]


def _fields(row: dict[str, Any] | None, lanes: int) -> dict[str, Any]:
    if row is None:
        return dict.fromkeys(("flops", "bytes", "efficiency", "bound", "codegen_excess_s"))
    return {
        "flops": _each(row["flops"], row["count"]),
        "bytes": _each(row["bytes"], row["count"]),
        "efficiency": row["efficiency"],
        "bound": row["bound"],
        "codegen_excess_s": None if row["excess_ps"] is None else row["excess_ps"] / 1e12 / lanes,
    }


def _each(total: Any, count: int) -> int | None:
    return None if total is None or not count else int(total) // count


def roofline_summary(
    processes: Sequence[dict[str, Any]], roofline: pa.Table, programs: pa.Table, *, window_ps: int, lanes: int
) -> dict[str, Any]:
    """The summary's ``roofline``.

    peaks: of every host's devices. programs: those with most device time, seconds as the mean over lanes.
    compute_utilization, memory_utilization: the ideal time for the executed operations, or bytes, over the windows of
    the steps used (``window_ps``, summed over lanes); None where not known of every op.
    """
    return {
        "peaks": [
            {"host": process["host"], "name": name, **peaks}
            for process in processes
            for name, peaks in sorted(process["peaks"].items())
        ],
        "compute_utilization": _utilization(roofline, "computing_ps", window_ps),
        "memory_utilization": _utilization(roofline, "moving_ps", window_ps),
        "programs": [_program(row, lanes) for row in programs.slice(0, PROGRAMS).to_pylist()],
    }


def _utilization(roofline: pa.Table, column: str, window_ps: int) -> float | None:
    times: list[int | None] = roofline[column].to_pylist()
    if not times or not window_ps or None in times:
        return None
    return sum(time for time in times if time is not None) / window_ps


def _program(row: dict[str, Any], lanes: int) -> dict[str, Any]:
    def seconds(name: str) -> float | None:
        return None if row[name] is None else row[name] / 1e12 / lanes

    return {
        "program": row["program"],
        "runs": row["runs"],
        "run_s": seconds("run_ps"),
        "op_s": seconds("total_ps"),
        "flops_per_run": row["hlo_flops"],
        "bytes_per_run": row["hlo_bytes"],
        "flops_per_s": row["flops_per_s"],
        "bytes_per_s": row["bytes_per_s"],
        "ideal_s": seconds("ideal_ps"),
        "ideal_computing_s": seconds("computing_ps"),
        "ideal_moving_s": seconds("moving_ps"),
        "ideal_network_s": seconds("network_ps"),
        "bound": row["bound"],
        "efficiency": row["efficiency"],
    }
