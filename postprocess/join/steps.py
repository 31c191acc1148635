"""Steps: the host spans that say which work belongs together, and the step of every launch (BREAKDOWN.md 2)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from xprof_py.postprocess.join.columns import Events, Int64
from xprof_py.postprocess.schema import Kind

MarkedAgain = Callable[[Events, Int64, Int64, Int64], Int64]


@dataclass
class Steps:
    """Outermost steps in order of host start, then the nested ones.

    ``parent``: row of the innermost enclosing step of the same thread, -1 for the ``outer`` outermost ones.
    ``open``: the span was still open at the end of the capture. ``source``: annotated, or inferred (inferred_steps.py);
    an inferred step has no ``event`` (-1).
    """

    event: Int64
    thread: Int64
    start_ps: Int64
    end_ps: Int64
    open: list[bool]
    name: list[str]
    number: list[int]
    occurrence: list[int]
    parent: Int64
    outer: int
    source: str = "annotated"

    def enclosing(self, start_ps: int, thread: int, only_thread: bool = False) -> int:
        """The outermost step whose span encloses a moment: of this thread; -1 without.

        A thread that has no steps of its own works for the step that is open in the process, unless ``only_thread``.
        """
        own = self._outermost.get(thread)
        if own is not None:
            return self._open_at(own, start_ps)
        if only_thread:
            return -1
        return max((self._open_at(rows, start_ps) for rows in self._outermost.values()), default=-1)

    def enclosing_all(self, start_ps: Int64, thread: int) -> Int64:
        """``enclosing`` for many moments of a thread, by its own steps only."""
        own = self._outermost_columns.get(thread)
        if own is None:
            return np.full(len(start_ps), -1, np.int64)
        starts, rows = own
        place = np.searchsorted(starts, start_ps, side="right") - 1
        step = rows[np.maximum(place, 0)]
        return np.where((place >= 0) & (self.end_ps[step] > start_ps), step, -1)

    def step_of(self, start_ps: Int64, thread: Int64) -> Int64:
        """``enclosing`` for many moments, each of a thread of its own."""
        step = np.full(len(start_ps), -1, np.int64)
        for one in np.unique(thread).tolist():
            mine = np.flatnonzero(thread == one)
            of = [one] if one in self._outermost_columns else list(self._outermost_columns)
            for other in of:
                step[mine] = np.maximum(step[mine], self.enclosing_all(start_ps[mine], other))
        return step

    def innermost(self, outermost: int, start_ps: int) -> int:
        """The innermost step that encloses a moment of its outermost step."""
        starts, rows = self._nested.get(int(self.thread[outermost]), ([], []))
        place = bisect_right(starts, start_ps) - 1
        step = rows[place] if place >= 0 else -1
        while step >= 0 and self.end_ps[step] <= start_ps:
            step = int(self.parent[step])
        return step if step >= 0 else outermost

    def _open_at(self, rows: tuple[list[int], list[int]], start_ps: int) -> int:
        # Outermost steps of one thread do not overlap: the last one begun is the only one that may be open.
        place = bisect_right(rows[0], start_ps) - 1
        return rows[1][place] if place >= 0 and self.end_ps[rows[1][place]] > start_ps else -1

    @cached_property
    def _outermost(self) -> dict[int, tuple[list[int], list[int]]]:
        """Per thread (starts, rows) of its outermost steps."""
        return self._by_thread(range(self.outer))

    @cached_property
    def _outermost_columns(self) -> dict[int, tuple[Int64, Int64]]:
        outermost = self.thread[: self.outer]
        rows = {one: np.flatnonzero(outermost == one) for one in np.unique(outermost).tolist()}
        return {one: (self.start_ps[mine], mine) for one, mine in rows.items()}

    @cached_property
    def _nested(self) -> dict[int, tuple[list[int], list[int]]]:
        """Per thread (starts, rows) of its nested steps."""
        return self._by_thread(range(self.outer, len(self.event)))

    def _by_thread(self, rows: range) -> dict[int, tuple[list[int], list[int]]]:
        out: dict[int, tuple[list[int], list[int]]] = {}
        for row in rows:
            starts, mine = out.setdefault(int(self.thread[row]), ([], []))
            starts.append(int(self.start_ps[row]))
            mine.append(row)
        return out


def read_steps(events: Events, thread_of_line: Int64, marked_again: MarkedAgain | None = None) -> Steps:
    """Steps of the shard where it holds any, else XLA's step markers (`_r` and `step_num`), ours among them.

    ``marked_again``: where a shard lost events, which of XLA's markers stand for its lost steps.
    """
    rows = events.rows_of_kind(Kind.STEP)
    markers = np.intersect1d(events.having("_r")[0], events.having("step_num")[0])
    if not len(rows):
        rows = markers
    elif marked_again is not None:
        rows = np.union1d(rows, marked_again(events, rows, markers, thread_of_line))
    # Steps of two threads may begin at one instant: what counts first must not depend on the order of the lines.
    number = events.argument_of("step_num", rows)[1]
    rank_of = {code: rank for rank, code in enumerate(sorted(range(len(events.names)), key=events.names.__getitem__))}
    name = np.array([rank_of[int(code)] for code in events.name[rows]], np.int64)
    rows = rows[np.lexsort((number, name, -events.end_ps[rows], events.start_ps[rows]))]
    thread = thread_of_line[events.line[rows]] if len(rows) else rows
    parent = np.full(len(rows), -1, np.int64)
    stacks: dict[int, list[int]] = {}
    ends = events.end_ps[rows].tolist()
    for i, (on_thread, start) in enumerate(zip(thread.tolist(), events.start_ps[rows].tolist(), strict=True)):
        stack = stacks.setdefault(on_thread, [])
        while stack and ends[stack[-1]] <= start:
            stack.pop()
        if stack:
            parent[i] = stack[-1]
        stack.append(i)
    order = np.concatenate((np.flatnonzero(parent < 0), np.flatnonzero(parent >= 0)))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    rows, thread, parent = rows[order], thread[order], parent[order]
    parent = np.where(parent >= 0, rank[parent], -1) if len(rows) else parent
    names = [events.names[code] for code in events.name[rows].tolist()]
    numbers: list[int] = events.argument_of("step_num", rows)[1].tolist()
    return Steps(
        event=rows,
        thread=thread,
        start_ps=events.start_ps[rows],
        end_ps=events.end_ps[rows],
        open=(events.duration_ps[rows] < 0).tolist(),
        name=names,
        number=numbers,
        occurrence=occurrences(names, numbers),
        parent=parent,
        outer=int((parent < 0).sum()),
    )


def occurrences(names: list[str], numbers: list[int]) -> list[int]:
    """How many steps of its name and number come before each step."""
    seen: Counter[tuple[str, int]] = Counter()
    found = []
    for key in zip(names, numbers, strict=True):
        found.append(seen[key])
        seen[key] += 1
    return found
