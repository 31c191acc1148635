"""Which ranks of a job its traces are of, where the traces say: twice the same, and those that are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.sources import Source


def one_of_each_rank(
    read: Sequence[tuple[Source, Profile]],
) -> tuple[list[tuple[Source, Profile]], list[dict[str, Any]]]:
    """One trace in JSON per rank, the first by name, and diagnostics rows for the others and for ranks without any.

    A second one of a rank is a copy, or of another time: the mean of both would be nobody's.
    """
    kept: list[tuple[Source, Profile]] = []
    first: dict[int, str] = {}
    rows: list[dict[str, Any]] = []
    counts: set[int] = set()
    for source, profile in read:
        run = profile.metadata.get("run") or {}
        rank, count = run.get("process_index"), run.get("process_count")
        if source.trace is None or not isinstance(rank, int):
            kept.append((source, profile))
            continue
        file = str(profile.metadata.get("file"))
        if rank in first:
            message = f"is of rank {rank} as {first[rank]} is: only that one is read"
            rows.append(_row("error", "duplicate_rank", file, 1, message))
            continue
        first[rank] = file
        kept.append((source, profile))
        if isinstance(count, int):
            counts.add(count)
    if len(counts) > 1:
        message = f"the traces are of jobs of {', '.join(map(str, sorted(counts)))} ranks"
        rows.append(_row("warning", "ranks_disagree", min(first.values()), len(counts), message))
    elif counts:
        count = counts.pop()
        absent = [rank for rank in range(min(count, 1 << 20)) if rank not in first]
        if absent:
            message = f"{len(absent)} of {count} ranks have no trace here: {_ranges(absent)}"
            rows.append(_row("note", "missing_ranks", min(first.values()), len(absent), message))
    return kept, rows


def _row(severity: str, code: str, file: str, count: int, message: str) -> dict[str, Any]:
    return {"severity": severity, "code": code, "file": file, "place": "", "count": count, "message": message}


def _ranges(ranks: Sequence[int]) -> str:
    """Rising numbers as `0-2, 5`."""
    out: list[list[int]] = []
    for rank in ranks:
        if out and out[-1][1] == rank - 1:
            out[-1][1] = rank
        else:
            out.append([rank, rank])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in out[:20]]
    return ", ".join([*shown, "..."] if len(out) > 20 else shown)
