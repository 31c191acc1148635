"""Which ranks of a job its traces are of, where the traces say: twice the same, and those that are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

R = TypeVar("R", bound="Ranked")


class Ranked(Protocol):
    """What is known of a process: passes.Endpoints."""

    @property
    def trace(self) -> str | None:
        """The file, where it is a trace in JSON."""

    @property
    def process_index(self) -> int | None:
        """Its rank."""

    @property
    def process_count(self) -> int | None:
        """How many ranks its job has."""


def one_of_each_rank(read: Sequence[R]) -> tuple[list[R], list[dict[str, Any]]]:
    """One trace in JSON per rank, the first by name, and diagnostics rows for the others and for ranks without any.

    A second one of a rank is a copy, or of another time: the mean of both would be nobody's.
    """
    kept: list[R] = []
    first: dict[int, str] = {}
    rows: list[dict[str, Any]] = []
    counts: set[int] = set()
    for process in read:
        rank, file = process.process_index, process.trace
        if file is None or rank is None:
            kept.append(process)
            continue
        if rank in first:
            message = f"is of rank {rank} as {first[rank]} is: only that one is read"
            rows.append(_row("error", "duplicate_rank", file, 1, message))
            continue
        first[rank] = file
        kept.append(process)
        if process.process_count is not None:
            counts.add(process.process_count)
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
