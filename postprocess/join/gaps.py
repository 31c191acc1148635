"""Gaps of a lane and what caused each of them (BREAKDOWN.md 5).

A gap [a, b) ends with op X. L is the end of X's launch, or b if the launch is still open then; m = min(b, max(a, L)).
[m, b) is `device_wait`. [a, m) came of a late launch: its causes share it in proportion to the self time of what the
launching thread did between S and L, where S is the later of the end of its last wait in which device work ended and
the end of the launch of the previous late gap that the thread ended. In the windows of steps S is no earlier than the
first of them: what a program does before its steps is no cause of theirs.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from xprof_py.postprocess.join import intervals
from xprof_py.postprocess.join.columns import Events, Int64
from xprof_py.postprocess.join.host_activity import HostActivity, Piece
from xprof_py.postprocess.join.host_names import Evidence
from xprof_py.postprocess.join.samples import Stacks
from xprof_py.postprocess.join.steps import Steps
from xprof_py.postprocess.schema import CLASSES

CAUSE = {
    Evidence.NOTHING: "unknown",
    Evidence.HOST: "host",
    Evidence.WAIT: "unknown",
    Evidence.CHECKPOINT: "checkpoint",
    Evidence.INPUT: "input",
    Evidence.COMPILER: "compiler",
}


Decider = tuple[int, int]
"""(event, stack) that decided about a piece, each -1 without."""


@dataclass(frozen=True)
class GapRow:
    """One row of the gaps table, without the window. ``launch``: row of launches, -1 without.

    ``event`` and ``stack``: what the evidence is, -1 without.
    """

    start_ps: int
    end_ps: int
    cause: str
    cause_step: int
    length_ps: int
    launch: int
    method: str
    event: int
    evidence: str
    stack: int = -1


@dataclass(frozen=True)
class GapEnd:
    """What ends a gap. ``thread`` -1: no launch is known. ``launch_end_ps``: when the host had it launched."""

    thread: int
    launch: int
    launch_end_ps: int
    method: str


class GapCauses:
    """Attributes the gaps of one lane, in order of time: an earlier late launch bounds where a gap's causes begin."""

    def __init__(
        self,
        events: Events,
        steps: Steps,
        activity: HostActivity,
        stacks: Stacks,
        work_ends_ps: Int64,
        capture_start_ps: int,
        first_window_ps: int,
    ) -> None:
        self._events = events
        self._steps = steps
        self._activity = activity
        self._stacks = stacks
        self._work_ends = np.sort(work_ends_ps)
        self._capture_start = capture_start_ps
        self._first_window = first_window_ps
        self._last_late: dict[int, int] = {}
        self.unseen: set[tuple[int, int, int]] = set()
        """(thread, start, end) of the pieces that a gap rests on and that neither a span nor a sample explains."""
        self._wait_ends: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}

    def attribute(self, start: int, end: int, ended_by: GapEnd, cuts: list[int]) -> list[GapRow]:
        """Rows of one gap, cut at ``cuts`` (window boundaries strictly inside it)."""
        if ended_by.thread < 0:
            return self._plain(start, end, "unknown", ended_by, cuts, "no launch is joined to what ends this gap")
        late_to = min(end, max(start, ended_by.launch_end_ps))
        rows: list[GapRow] = []
        if late_to > start:
            since, woke = self._since(ended_by.thread, late_to)
            served = start
            if woke is not None and woke > start:
                served = min(late_to, woke)
                rows += self._plain(start, served, "device_wait", ended_by, cuts, "the host woke up after the device")
            if late_to > served:
                rows += self._shared(served, late_to, since, ended_by, cuts)
            self._last_late[ended_by.thread] = late_to
        if end > late_to:
            rows += self._plain(late_to, end, "device_wait", ended_by, cuts, "launched in time")
        return rows

    def within_run(self, start: int, end: int, ended_by: GapEnd, cuts: list[int]) -> list[GapRow]:
        """Rows of a gap between two ops of one run."""
        return self._plain(start, end, "device_wait", ended_by, cuts, "between two ops of one run")

    def on_thread(self, start: int, end: int, thread: int, since: int) -> list[GapRow]:
        """All of [start, end) by what ``thread`` did from ``since`` to its end: a host without a device."""
        ended_by = GapEnd(thread, -1, end, "none")
        return self._shared(start, end, since, ended_by, []) if end > start else []

    def _since(self, thread: int, until: int) -> tuple[int, int | None]:
        """(S, end of the wait that gives it or None) for a launch that ended at ``until``."""
        if thread not in self._wait_ends:
            spans = sorted((wait.end_ps, wait.start_ps) for wait in self._activity.waits(thread))
            self._wait_ends[thread] = ([end for end, _ in spans], spans)
        ends, spans = self._wait_ends[thread]
        floor = self._last_late.get(thread, self._capture_start)
        for index in range(bisect_right(ends, until) - 1, -1, -1):
            wait_end, wait_start = spans[index]
            if wait_end <= floor:
                break
            # Only a wait in which device work ended was a wait for the device.
            place = int(np.searchsorted(self._work_ends, wait_start, side="left"))
            if place < len(self._work_ends) and self._work_ends[place] <= wait_end:
                return wait_end, wait_end
        return floor, None

    def _plain(self, start: int, end: int, cause: str, ended_by: GapEnd, cuts: list[int], why: str) -> list[GapRow]:
        edges = [start, *cuts[bisect_right(cuts, start) : bisect_left(cuts, end)], end]
        return [
            GapRow(low, high, cause, -1, high - low, ended_by.launch, ended_by.method, -1, why)
            for low, high in itertools.pairwise(edges)
            if high > low
        ]

    def _shared(self, start: int, end: int, since: int, ended_by: GapEnd, cuts: list[int]) -> list[GapRow]:
        pieces = self._activity.between(ended_by.thread, since, end)
        in_steps = pieces
        if since < self._first_window < end:
            in_steps = self._activity.between(ended_by.thread, self._first_window, end)
        edges = [start, *cuts[bisect_right(cuts, start) : bisect_left(cuts, end)], end]
        rows: list[GapRow] = []
        for low, high in itertools.pairwise(edges):
            if high > low:
                # A piece of the gap takes only host work begun before its end.
                done = pieces if low < self._first_window else in_steps
                begun = [piece for piece in done if piece.start_ps < high]
                rows += self._share_out(low, high, begun, ended_by)
        return rows

    def _share_out(self, low: int, high: int, pieces: list[Piece], ended_by: GapEnd) -> list[GapRow]:
        weights: dict[tuple[int, int], int] = defaultdict(int)
        deciders: dict[tuple[int, int], dict[Decider, int]] = defaultdict(lambda: defaultdict(int))
        for piece in pieces:
            step = self._steps.enclosing(piece.start_ps, ended_by.thread, only_thread=True)
            key = (CLASSES.index(CAUSE[piece.evidence]), step)
            weights[key] += piece.end_ps - piece.start_ps
            if piece.evidence == Evidence.NOTHING and piece.stack < 0:
                self.unseen.add((ended_by.thread, piece.start_ps, piece.end_ps))
            deciders[key][piece.event, piece.stack] += piece.end_ps - piece.start_ps
        keys = sorted(weights)
        if not keys:
            return self._plain(low, high, "unknown", ended_by, [], "no host work began before the end of this gap")
        shares = intervals.largest_remainder(high - low, [weights[key] for key in keys])
        rows = []
        for key, share in zip(keys, shares, strict=True):
            if share == 0:
                continue
            event, stack, evidence = self._strongest(deciders[key])
            rows.append(
                GapRow(
                    low,
                    high,
                    CLASSES[key[0]],
                    key[1],
                    share,
                    ended_by.launch,
                    ended_by.method,
                    event,
                    evidence,
                    stack,
                )
            )
        return rows

    def _strongest(self, lengths: dict[Decider, int]) -> tuple[int, int, str]:
        """(event, stack, evidence) of what has the most time: of spans of one name, of samples in one function.

        Within it the text with the most time (lines of a function differ), and of that the longest event and stack; -1
        where no span was open, or no stack decided.
        """
        words = {decider: self._words(*decider) for decider in lengths}
        best = _longest([(words[d][0], length) for d, length in lengths.items()])
        text = _longest([(words[d][1], length) for d, length in lengths.items() if words[d][0] == best])
        of_text = [d for d in lengths if words[d] == (best, text)]
        event, stack = min(of_text, key=lambda d: (-lengths[d], d))
        return event, stack, text

    def _words(self, event: int, stack: int) -> tuple[str, str]:
        """What is added up as one, and the text that is shown."""
        place = self._stacks.place(stack) if stack >= 0 else None
        if place is not None:
            return place.in_function, place.text
        name = self._events.names[self._events.name[event]] if event >= 0 else "no span was open"
        return name, name


def _longest(lengths: list[tuple[str, int]]) -> str:
    """The text with the most time; ties go to the lesser text."""
    total: dict[str, int] = defaultdict(int)
    for text, length in lengths:
        total[text] += length
    return min(total, key=lambda text: (-total[text], text))
