"""Endpoints of made-up processes: collectives in steps, on clocks that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from xprof_py.postprocess.match.endpoints import SCHEMA, Endpoints

MS = 1_000_000
ORIGIN_NS = 1_790_000_000_000_000_000


def row(at_ms: float, length_ms: float = 1.0, **said: Any) -> dict[str, Any]:
    """One execution that begins ``at_ms`` after ORIGIN_NS."""
    start = ORIGIN_NS + round(at_ms * MS)
    return {
        "lane": 0,
        "kind": "all-reduce",
        "op": "all-reduce.1",
        "source": "train.py:3",
        "program": "p",
        "devices": None,
        "groups": "",
        "bytes": 1024,
        "sequence": None,
        "run_id": None,
        "place": 0,
        "step": None,
        "synchronising": True,
        "start_ns": start,
        "end_ns": start + round(length_ms * MS),
        "waits_from_ns": start,
        **said,
    }


def endpoints(
    rows: Sequence[dict[str, Any]],
    *,
    index: int,
    steps: Sequence[tuple[Any, ...]] = (),
    source: str = "annotated",
    lanes: int = 1,
    offset_ms: float = 0.0,
    clock: str | None = None,
    host: str | None = None,
) -> Endpoints:
    """The endpoints of process ``index``, whose clock is ``offset_ms`` ahead. ``steps``: (name, number, occurrence)."""
    moved = [
        {**r, **{k: r[k] + round(offset_ms * MS) for k in ("start_ns", "end_ns", "waits_from_ns")}}
        for r in sorted(rows, key=lambda r: (r["lane"], r["start_ns"]))
    ]
    host = host or f"host{index}"
    return Endpoints(
        host=host,
        process_index=index,
        clock=clock or host,
        lanes=lanes,
        capture_ns=(ORIGIN_NS, ORIGIN_NS + 10_000 * MS),
        table=pa.Table.from_pylist(moved, schema=SCHEMA),
        steps=pa.table(
            {
                "name": pa.array([s[0] for s in steps], pa.string()),
                "number": pa.array([s[1] for s in steps], pa.int64()),
                "occurrence": pa.array([s[2] for s in steps], pa.int32()),
                "source": pa.array([source] * len(steps), pa.string()),
                "start_ns": pa.array([ORIGIN_NS + i * 100 * MS for i in range(len(steps))], pa.int64()),
            }
        ),
        programs={r["program"]: (r["program"], 1) for r in rows},
    )
