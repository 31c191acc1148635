"""Which event of a line encloses another: events of one line nest, or follow one another."""

from __future__ import annotations

import numpy as np

from xprof_py.postprocess.join.columns import Events, Int64


def innermost_around(events: Events, rows: Int64, candidates: Int64) -> Int64:
    """Per row the innermost of ``candidates`` (rows of events) on its line that is open at its start; -1 without.

    A row may be its own answer. Candidates of one line that overlap without nesting are told apart by their start: the
    later one is the inner one.
    """
    found = np.full(len(rows), -1, np.int64)
    candidates = np.unique(candidates)  # events are in order of (line, start, longest first)
    for line in np.intersect1d(events.line[rows], events.line[candidates]).tolist():
        mine = np.flatnonzero(events.line[rows] == line)
        around = candidates[events.line[candidates] == line]
        start, end = events.start_ps[around], events.end_ps[around]
        parent = _parents(start.tolist(), end.tolist())
        at = events.start_ps[rows[mine]]
        place = np.searchsorted(start, at, side="right") - 1
        while True:
            over = (place >= 0) & (end[place] <= at) & (around[place] != rows[mine])
            if not over.any():
                break
            place[over] = parent[place[over]]
        found[mine] = np.where(place >= 0, around[place], -1)
    return found


def _parents(start: list[int], end: list[int]) -> Int64:
    """Per interval, in order of start, the nearest earlier one that is still open when it starts; -1 without."""
    parent = np.full(len(start), -1, np.int64)
    stack: list[int] = []
    for i, low in enumerate(start):
        while stack and end[stack[-1]] <= low:
            stack.pop()
        parent[i] = stack[-1] if stack else -1
        stack.append(i)
    return parent
