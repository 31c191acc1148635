"""Which ranks of a job its traces are of, where the traces say: twice the same, those that are missing, and traces that
are of several jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from xprof_py.errors import BadInputError

R = TypeVar("R", bound="Ranked")


class Ranked(Protocol):
    """What is known of a process: passes.Endpoints."""

    @property
    def trace(self) -> str | None:
        """The file, where it is a trace in JSON."""

    @property
    def run_file(self) -> str | None:
        """Its run file, where it has one."""

    @property
    def process_index(self) -> int | None:
        """Its rank."""

    @property
    def process_count(self) -> int | None:
        """How many ranks its job has."""

    @property
    def host(self) -> str:
        """The name that its files give the host."""

    @property
    def key(self) -> str:
        """Source.key."""

    @property
    def captured_ns(self) -> tuple[int, int] | None:
        """UTC of the capture's start and end, where the files say."""


def one_of_each_rank(read: Sequence[R]) -> tuple[list[R], list[dict[str, Any]]]:
    """One trace in JSON per rank, the first by name, and diagnostics rows for the others and for ranks without any.

    A second one of a rank is a copy, or of another time: the mean of both would be nobody's. Raises BadInputError where
    traces say that their jobs have unlike numbers of ranks.
    """
    kept: list[R] = []
    first: dict[int, str] = {}
    rows: list[dict[str, Any]] = []
    by_count: dict[int, list[str]] = defaultdict(list)
    for process in read:
        if process.trace is not None and process.process_count is not None:
            by_count[process.process_count].append(process.trace)
    if len(by_count) > 1:
        listed = "\n".join(f"  of {count} ranks: {', '.join(sorted(by_count[count]))}" for count in sorted(by_count))
        first_file = min(file for files in by_count.values() for file in files)
        raise BadInputError(first_file, "", f"is one of several jobs' traces; name those of one:\n{listed}")
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
    if by_count:
        (count,) = by_count
        absent = [rank for rank in range(min(count, 1 << 20)) if rank not in first]
        if absent:
            message = f"{len(absent)} of {count} ranks have no trace here: {_ranges(absent)}"
            rows.append(_row("note", "missing_ranks", min(first.values()), len(absent), message))
    return kept, rows


def captures_apart(read: Sequence[R]) -> list[dict[str, Any]]:
    """A diagnostics row per host whose captures do not all overlap: one clock says that they are of several times.

    Captures of different hosts are not judged: their clocks may be off by anything.
    """
    rows = []
    by_host: dict[str, list[R]] = defaultdict(list)
    for process in read:
        if process.captured_ns is not None:
            by_host[process.host].append(process)
    for host, mine in sorted(by_host.items()):
        spans = [process.captured_ns for process in mine if process.captured_ns is not None]
        if max(start for start, _ in spans) > min(end for _, end in spans):
            named = ", ".join(sorted(process.run_file or process.key for process in mine))
            message = (
                f"captures of this host do not overlap in time, so they are hardly of one job: analyse one of {named}"
            )
            rows.append(_row("warning", "captures_apart", host, len(mine), message))
    return rows


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
