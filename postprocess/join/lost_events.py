"""Steps where events are lost: no step takes the time of one whose mark is gone, and what is not whole is not measured.

A chunk of a shard that is damaged, or a ring that was full, took events that ended within a known time of a thread
(the table lost_events). See docs/breakdown.md, "Where events are lost".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xprof_py.postprocess.join.columns import Events, Int64, integers
from xprof_py.postprocess.join.steps import Steps, occurrences
from xprof_py.postprocess.profile import Profile

MOST_MISSING = 1 << 16
"""Numbers between two steps beyond which it is not believed that each of them was a step."""

_WHY = {"damaged": "a chunk of the shard is damaged", "dropped": "the recorder dropped events"}


@dataclass(frozen=True)
class _Missing:
    """A step whose mark is lost."""

    thread: int
    start_ps: int
    end_ps: int
    name: str
    number: int
    why: str


class LostEvents:
    """The table lost_events by thread."""

    def __init__(self, profile: Profile, thread_of_line: Int64) -> None:
        table = profile["lost_events"].sort_by([("cause", "ascending"), ("start_ps", "ascending")])
        self._start_ps, self._end_ps = integers(table, "start_ps"), integers(table, "end_ps")
        self._thread = thread_of_line[integers(table, "line")]
        self._cause: list[str] = table["cause"].to_pylist()

    def marked_again(self, events: Events, spans: Int64, markers: Int64, thread_of_line: Int64) -> Int64:
        """Those of XLA's ``markers`` whose own step, which the shard had among ``spans``, is lost."""
        out = []
        number, span_number = (events.argument_of("step_num", rows)[1] for rows in (markers, spans))
        thread, span_thread = thread_of_line[events.line[markers]], thread_of_line[events.line[spans]]
        start, end = events.start_ps[spans], events.end_ps[spans]
        near = np.zeros(len(markers), np.bool_)
        for low, high, of in zip(self._start_ps, self._end_ps, self._thread, strict=True):
            near |= (thread == of) & (events.end_ps[markers] >= low) & (events.start_ps[markers] <= high)
        for row in np.flatnonzero(near).tolist():
            marker = markers[row]
            same = (span_thread == thread[row]) & (span_number == number[row])
            if not (same & (start < events.end_ps[marker]) & (end > events.start_ps[marker])).any():
                out.append(int(marker))
        return np.array(out, np.int64)

    def fill_in(self, steps: Steps) -> tuple[Steps, dict[int, str]]:
        """(the steps with those whose mark is lost, step -> why it cannot be measured).

        Between two steps of a thread and name those whose numbers lie between theirs are missing. Where one of them
        ended and the next began is not known: all that lies between is the last one's, the others are empty. A missing
        step has no event (-1).
        """
        why: dict[int, str] = {}
        missing: dict[int, list[_Missing]] = {}
        for thread in np.unique(self._thread).tolist():
            mine = np.flatnonzero(steps.thread[: steps.outer] == thread)
            start, end = steps.start_ps[mine], steps.end_ps[mine]
            stride = _strides(steps, mine)
            for row in np.flatnonzero(self._thread == thread).tolist():
                low, high, cause = int(self._start_ps[row]), int(self._end_ps[row]), self._cause[row]
                if cause == "damaged":
                    touched = mine[np.searchsorted(end, low, "right") : np.searchsorted(start, high, "left")]
                    why |= dict.fromkeys(touched.tolist(), f"part of what was recorded in it is lost: {_WHY[cause]}")
                if steps.source != "annotated":
                    continue
                for at in range(np.searchsorted(start[1:], low, "right"), np.searchsorted(end[:-1], high, "left")):
                    before, behind = int(mine[at]), int(mine[at + 1])
                    till = min(int(start[at + 1]), high)
                    if behind in missing or till <= max(int(end[at]), low):
                        continue
                    found = _between(steps, before, behind, stride, till, cause)
                    if found or cause == "damaged":
                        missing[behind] = found
                        why[behind] = f"what was recorded before it is lost: {_WHY[cause]}"
        return _with_missing(steps, [one for found in missing.values() for one in found], why)


def _strides(steps: Steps, mine: Int64) -> dict[str, int]:
    """By how much the numbers of a name's steps mostly rise, of steps ``mine`` of one thread."""
    rises: dict[str, Counter[int]] = {}
    for before, behind in zip(mine[:-1].tolist(), mine[1:].tolist(), strict=True):
        if steps.name[before] == steps.name[behind]:
            rises.setdefault(steps.name[before], Counter())[steps.number[behind] - steps.number[before]] += 1
    return {name: min(found, key=lambda rise: (-found[rise], rise)) for name, found in rises.items()}


def _between(
    steps: Steps, before: int, behind: int, stride: dict[str, int], till_ps: int, cause: str
) -> list[_Missing]:
    """The steps between two that follow one another; none where their names and numbers do not tell."""
    name = steps.name[before]
    rise = stride.get(name, 0)
    numbers = range(steps.number[before] + rise, steps.number[behind], rise) if rise > 0 else range(0)
    if name != steps.name[behind] or not 0 < len(numbers) <= MOST_MISSING:
        return []
    since, thread = int(steps.end_ps[before]), int(steps.thread[before])
    why = f"its mark is lost: {_WHY[cause]}"
    last = numbers[-1]
    return [_Missing(thread, since, till_ps if n == last else since, name, n, why) for n in numbers]


def _with_missing(steps: Steps, missing: list[_Missing], why: dict[int, str]) -> tuple[Steps, dict[int, str]]:
    """The steps with the missing ones, in order, and ``why`` by their rows."""
    if not missing:
        return steps, why
    outer, new = steps.outer, len(missing)
    start = np.concatenate((steps.start_ps[:outer], [one.start_ps for one in missing]))
    # The row of every known outermost step, every missing one and every nested one.
    row = np.concatenate(
        (np.argsort(np.argsort(start, kind="stable")), np.arange(outer + new, len(steps.event) + new))
    ).astype(np.int64)
    moved = np.delete(row, np.arange(outer, outer + new))

    def put(known: Sequence[Any] | Int64, added: list[Any], of: type = np.int64) -> np.ndarray[Any, Any]:
        out: np.ndarray[Any, Any] = np.empty(len(row), of)
        out[row] = np.concatenate((np.array(known[:outer], of), np.array(added, of), np.array(known[outer:], of)))
        return out

    name = put(steps.name, [one.name for one in missing], object).tolist()
    number = put(steps.number, [one.number for one in missing]).tolist()
    found = replace(
        steps,
        event=put(steps.event, [-1] * new),
        thread=put(steps.thread, [one.thread for one in missing]),
        start_ps=put(steps.start_ps, [one.start_ps for one in missing]),
        end_ps=put(steps.end_ps, [one.end_ps for one in missing]),
        open=put(steps.open, [False] * new, np.bool_).tolist(),
        name=name,
        number=number,
        occurrence=occurrences(name, number),
        parent=put(np.where(steps.parent >= 0, moved[steps.parent], -1), [-1] * new),
        outer=outer + new,
    )
    said = {int(moved[step]): text for step, text in why.items()}
    return found, said | {int(at): one.why for at, one in zip(row[outer : outer + new], missing, strict=True)}
