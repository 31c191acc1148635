"""What a host thread was doing, as a flat sequence of pieces with one evidence each (BREAKDOWN.md 5).

At every moment the innermost open span that names compiler, input or checkpoint decides; without one, the innermost
span. What no span explains is divided among the samples of the thread's stack. Waits for the device and compile
intervals that no event states are put together here.

Spans are flattened in C (native/kernels/innermost.h), and only where somebody asks: a thread's frames are as many as
the events of the capture.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xprof_py import _native
from xprof_py.postprocess.join import host_names, intervals
from xprof_py.postprocess.join.columns import FRAME, Bool, Events, Int64, among, united
from xprof_py.postprocess.join.host_names import Evidence
from xprof_py.postprocess.join.intervals import Intervals
from xprof_py.postprocess.join.samples import Samples
from xprof_py.postprocess.join.threads import markers
from xprof_py.postprocess.schema import Kind

Int8 = npt.NDArray[np.int8]

_NEVER = 2**62
_NO_SPAN = np.int8(-1)
_ALONE = np.int8(0x40)
"""XPR_SAYS_ALONE: no neighbour that says the same joins it."""


@dataclass(frozen=True)
class Pieces:
    """Stretches of a thread's time with one decider each, in order and disjoint; all columns of one length.

    ``evidence``: of host_names.Evidence. ``event``: the deciding event, -1 where no span was open. ``stack``: the
    sampled stack that decided, where the event (or its absence) says nothing; -1 without.
    """

    start_ps: Int64
    end_ps: Int64
    evidence: Int8
    event: Int64
    stack: Int64

    def take(self, rows: Int64 | Bool) -> Pieces:
        """These rows."""
        return Pieces(self.start_ps[rows], self.end_ps[rows], self.evidence[rows], self.event[rows], self.stack[rows])

    def clipped(self, asked: Intervals) -> Pieces:
        """The parts that lie in a disjoint set."""
        low, high = asked
        first = np.searchsorted(self.end_ps, low, side="right")
        count = np.maximum(np.searchsorted(self.start_ps, high, side="left") - first, 0)
        owner = np.repeat(np.arange(len(low)), count)
        taken = self.take(first[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count))
        start, end = np.maximum(taken.start_ps, low[owner]), np.minimum(taken.end_ps, high[owner])
        return Pieces(start, end, taken.evidence, taken.event, taken.stack)


@dataclass(frozen=True)
class Waits:
    """A thread waiting for the device, from calls to their returns. ``event`` is the first event of each."""

    start_ps: Int64
    end_ps: Int64
    event: Int64

    def __len__(self) -> int:
        return len(self.event)

    def in_order(self) -> Waits:
        """By start, then end."""
        order = np.lexsort((self.end_ps, self.start_ps))
        return Waits(self.start_ps[order], self.end_ps[order], self.event[order])


class HostActivity:
    """The host threads of one process. Threads are worked out when first asked for."""

    def __init__(
        self, events: Events, thread_of_line: Int64, host_line: Bool, capture_start_ps: int, samples: Samples
    ) -> None:
        self._capture_start = capture_start_ps
        self._samples = samples
        self._events = events
        self._thread_of_line = thread_of_line
        self._host_line = host_line
        # Ops of a program that ran inline and hand-over notes are not spans of the host program; a step says nothing
        # about what its thread did, but it is the span that is open.
        self._notes = events.verdicts(lambda n: n.startswith((host_names.END_MARKER, "ThreadpoolListener::")))
        self._is_await = events.verdicts(lambda n: n == host_names.AWAIT)
        self._by_name = np.array([int(host_names.evidence_of(n)) for n in events.names], np.int8)
        self._by_user_name = np.array([int(host_names.span_evidence(n)) for n in events.names], np.int8)
        inline = events.having("hlo_op")[0]
        inline = inline[events.argument_of("run_id", inline)[0]]
        self._not_spans = np.sort(np.concatenate((inline, markers(events))), kind="stable")
        # A driver's call is work, whatever it is called after, unless it waits for the device.
        calls = events.having("correlation_id")[0]
        self._calls = calls[self._by_name[events.name[calls]] == Evidence.NOTHING]
        self._is_frame = events.verdicts(lambda n: n.startswith(FRAME))
        self._roots = events.having("_r")[0]
        self._stages = events.having(host_names.PIPELINE_STAGE_ARG)[0]
        self._waits: dict[int, Waits] = {}
        self._noted: dict[int, Waits] = {}
        self._sampled: dict[int, Pieces] = {}

    def _lines_of(self, thread: int) -> Int64:
        return np.flatnonzero((self._thread_of_line == thread) & self._host_line)

    def _of_thread(self, rows: Int64, thread: int) -> Int64:
        """Those of ``rows`` that are usable events of the thread."""
        line = self._events.line[rows]
        mine: Bool = (self._thread_of_line[line] == thread) & self._host_line[line] & self._usable(rows)
        return rows[mine]

    def _usable(self, rows: Int64) -> Bool:
        kind = self._events.kind[rows]
        usable: Bool = ~self._notes[self._events.name[rows]] & (kind != Kind.MARK) & (kind != Kind.COUNTER)
        return usable & ~among(rows, self._not_spans)

    def _says(self, rows: Int64) -> Int8:
        """The evidence of each of ``rows``, less than 0 for what is no span of the program."""
        kind, name = self._events.kind[rows], self._events.name[rows]
        says = np.where(among(rows, self._calls), np.int8(Evidence.HOST), self._by_name[name])
        says = np.where(kind == Kind.SPAN, self._by_user_name[name], says)
        for one, meaning in (
            (Kind.STEP, Evidence.NOTHING),
            (Kind.INPUT, Evidence.INPUT),
            (Kind.CHECKPOINT, Evidence.CHECKPOINT),
            (Kind.COMPILE, Evidence.COMPILER),
            (Kind.GC, Evidence.HOST),
        ):
            says[kind == one] = meaning
        says[(kind == Kind.HOST_OP) & (says == Evidence.NOTHING)] = Evidence.HOST
        says[(kind == Kind.PLAIN) & among(rows, self._roots)] = Evidence.NOTHING
        says[(kind == Kind.PLAIN) & among(rows, self._stages)] = Evidence.INPUT
        says[~self._usable(rows) | self._is_await[name]] = _NO_SPAN
        return says

    def waits(self, thread: int) -> Waits:
        """The thread's waits for the device, in order of start; a read is one where no other wait lies in it."""
        if thread not in self._waits:
            noted, reads = self._awaits(thread), self._bare_reads(thread)
            columns = zip(*((w.start_ps, w.end_ps, w.event) for w in (noted, reads)), strict=True)
            self._waits[thread] = Waits(*(np.concatenate(pair) for pair in columns)).in_order()
        return self._waits[thread]

    def _bare_reads(self, thread: int) -> Waits:
        events = self._events
        rows = self._of_thread(events.rows_where(host_names.is_read), thread)
        begun = self._awaits(thread).start_ps
        low = np.searchsorted(begun, events.start_ps[rows], side="left")
        rows = rows[low == np.searchsorted(begun, events.end_ps[rows], side="right")]
        return Waits(events.start_ps[rows], events.end_ps[rows], rows)

    def _awaits(self, thread: int) -> Waits:
        if thread not in self._noted:
            self._noted[thread] = self._read_awaits(thread)
        return self._noted[thread]

    def _read_awaits(self, thread: int) -> Waits:
        events = self._events
        rows = self._of_thread(events.rows_named(host_names.AWAIT), thread)
        has_producer, producer = events.argument_of("_p", rows)
        has_consumer, consumer = events.argument_of("_c", rows)
        # A link is used once: of several notes that state it the last beginning counts, and the first end.
        begun, last = np.unique(producer[has_producer][::-1], return_index=True)
        first_row = rows[has_producer][::-1][last]
        ends, links = rows[has_consumer], consumer[has_consumer]
        place = np.minimum(np.searchsorted(begun, links), max(len(begun) - 1, 0))
        linked = begun[place] == links if len(begun) else np.zeros(len(links), np.bool_)
        _, firsts = np.unique(links, return_index=True)
        used_once = np.zeros(len(links), np.bool_)
        used_once[firsts] = True
        linked &= used_once
        # A wait without a beginning began before the capture.
        beginning = np.where(linked, first_row[place], ends) if len(begun) else ends
        start = np.where(linked, events.start_ps[beginning], self._capture_start)
        # A wait that never returned is open until the end of the capture.
        returned = np.zeros(len(begun), np.bool_)
        returned[place[linked]] = True
        open_rows = first_row[~returned]
        never = events.last_end_ps() if len(open_rows) else 0
        return Waits(
            np.concatenate((start, events.start_ps[open_rows])),
            np.concatenate((events.end_ps[ends], np.full(len(open_rows), never, np.int64))),
            np.concatenate((beginning, open_rows)),
        ).in_order()

    def sampled(self, thread: int) -> bool:
        """Whether the thread's stacks were sampled at all."""
        return self._samples.of_thread(thread)

    def between(self, thread: int, asked: Intervals) -> Pieces:
        """Pieces that tile ``asked``, a disjoint set: with event -1 where no span was open."""
        if self.sampled(thread):
            if thread not in self._sampled:
                everything = (np.array([-_NEVER]), np.array([_NEVER]))
                self._sampled[thread] = self._divided(thread, self._flatten(thread, everything))
            return _filled(self._sampled[thread].clipped(asked), asked)
        return _filled(self._flatten(thread, asked), asked)

    def outline(self, thread: int, start_ps: int, end_ps: int) -> Pieces:
        """As ``between`` over [start, end), but neighbours of one evidence are one piece, unless one is a wait.

        Whose event decided is then known of waits alone.
        """
        asked = (np.array([start_ps]), np.array([end_ps]))
        if self.sampled(thread):
            return self.between(thread, asked)
        return _filled(self._flatten(thread, asked, join_alike=True), asked)

    def _wants_samples(self, pieces: Pieces) -> Bool:
        """What names no cause, and what a loader's library wrote: that it was the input, and not which line of it."""
        silent: Bool = pieces.evidence == Evidence.NOTHING
        stated = np.flatnonzero((pieces.evidence == Evidence.INPUT) & (pieces.event >= 0))
        event = pieces.event[stated]
        silent[stated] = (self._events.kind[event] == Kind.PLAIN) & ~self._is_frame[self._events.name[event]]
        return silent

    def _divided(self, thread: int, pieces: Pieces) -> Pieces:
        """The same with what wants samples, and what lies between the pieces, divided among the samples in it."""
        silent = self._wants_samples(pieces)
        reach = np.maximum.accumulate(np.concatenate(([self._capture_start], pieces.end_ps)))
        # After the last piece the samples end with the capture; what lies behind it is cut off later.
        start = np.concatenate((reach, pieces.start_ps[silent]))
        end = np.concatenate((pieces.start_ps, [_NEVER], pieces.end_ps[silent]))
        event = np.concatenate((np.full(len(reach), -1, np.int64), pieces.event[silent]))
        named = np.concatenate((np.full(len(reach), Evidence.NOTHING, np.int8), pieces.evidence[silent]))
        stretch, low, high, evidence, stack = self._samples.divide_all(thread, start, end)
        evidence = np.where(named[stretch] != Evidence.NOTHING, named[stretch], evidence)
        was_divided = np.zeros(len(start), np.bool_)
        was_divided[stretch] = True
        kept = np.ones(len(silent), np.bool_)
        kept[silent] = ~was_divided[len(reach) :]
        rest = pieces.take(kept)
        both = Pieces(
            np.concatenate((rest.start_ps, low)),
            np.concatenate((rest.end_ps, high)),
            np.concatenate((rest.evidence, evidence)),
            np.concatenate((rest.event, event[stretch])),
            np.concatenate((rest.stack, stack)),
        )
        return both.take(np.argsort(both.start_ps, kind="stable"))

    def _flatten(self, thread: int, asked: Intervals, join_alike: bool = False) -> Pieces:
        """What of ``asked`` spans cover."""
        events = self._events
        lines = self._lines_of(thread)
        slices = [events.first_row([line, line + 1]) for line in lines.tolist()]
        first, behind = slices[0] if slices else (0, 0)
        # An open span is as long as the capture, but is not sorted by it: such a line is put in order with the others.
        if events.has_open and (events.duration_ps[first:behind] < 0).any():
            first, behind, others = 0, 0, slices
        else:
            others = slices[1:]
        rows = np.concatenate([np.arange(low, high) for low, high in others] or [np.empty(0, np.int64)])
        says = self._says(rows)
        spans = (says >= 0) & (events.end_ps[rows] > events.start_ps[rows])
        rows, says = rows[spans], says[spans]
        awaits = self._awaits(thread)
        alone = np.zeros(0, np.int64)
        if join_alike:
            alone = self.waits(thread).event
            says[np.isin(rows, alone)] |= _ALONE
        compiling = self._compile_spans(lines)
        waiting = np.full(len(awaits), Evidence.WAIT, np.int8) | (_ALONE if join_alike else np.int8(0))
        more = [
            np.concatenate(parts)
            for parts in (
                (events.start_ps[rows], compiling[0], awaits.start_ps),
                (events.end_ps[rows], compiling[1], awaits.end_ps),
                (rows, compiling[2], awaits.event),
                (says, np.full(len(compiling[0]), Evidence.COMPILER, np.int8), waiting),
            )
        ]
        order = np.lexsort((-more[1], more[0]))
        more_start, more_end, more_event, more_says = (column[order] for column in more)
        keep_start, keep_end = asked
        special = self._special_rows(int(first), int(behind))
        special_says = self._says(special)
        if join_alike:
            special = united(special, alone[(alone >= first) & (alone < behind)])
            special_says = self._says(special)
            special_says[(special_says >= 0) & np.isin(special, alone)] |= _ALONE
        name_says = np.where(self._notes | self._is_await, _NO_SPAN, self._by_name).astype(np.int8)
        start, end, event, evidence = map(
            np.asarray,
            _native.innermost(
                np.ascontiguousarray(events.start_ps),
                np.ascontiguousarray(events.duration_ps),
                np.ascontiguousarray(events.name),
                int(first),
                int(behind - first),
                name_says,
                special,
                special_says,
                more_start,
                more_end,
                more_event,
                more_says,
                np.ascontiguousarray(keep_start),
                np.ascontiguousarray(keep_end),
                int(Evidence.CHECKPOINT),
                join_alike,
            ),
        )
        return Pieces(start, end, evidence & ~_ALONE, event, np.broadcast_to(np.int64(-1), len(start)))

    def _special_rows(self, first: int, behind: int) -> Int64:
        """Rows in [first, behind) that their names alone do not explain."""
        special = (self._events.rows_not_plain, self._not_spans, self._roots, self._calls, self._stages)
        found = [rows[slice(*np.searchsorted(rows, [first, behind]))] for rows in special]
        return united(*found)

    def _compile_spans(self, lines: Int64) -> tuple[Int64, Int64, Int64]:
        """(start, end, event): from the start of a dispatch span to the end of the last lowering or compile inside it.

        Tracing has no event of its own. The deciding event is the last compile inside.
        """
        events = self._events
        compiles = self._spans_on(lines, events.rows_where(lambda name: name in host_names.COMPILES))
        stated = events.rows_of_kind(Kind.COMPILE)
        compiles = united(compiles, self._spans_on(lines, stated))
        compiles = compiles[self._says(compiles) == Evidence.COMPILER]
        none = np.empty(0, np.int64)
        if not len(compiles):
            return none, none, none
        calls = self._spans_on(lines, events.rows_where(lambda name: host_names.JIT_CALL.match(name) is not None))
        calls = calls[self._says(calls) >= 0]
        compiles = compiles[np.argsort(events.start_ps[compiles], kind="stable")]
        starts, ends = events.start_ps[compiles], events.end_ps[compiles]
        lows = np.searchsorted(starts, events.start_ps[calls])
        highs = np.searchsorted(starts, events.end_ps[calls])
        found: list[tuple[int, int, int]] = []
        covered_to = -1
        columns = (events.start_ps[calls], events.end_ps[calls], lows, highs)
        for start, end, low, high in zip(*(column.tolist() for column in columns), strict=True):
            # Only outermost calls: what is traced inside one belongs to it.
            if start < covered_to:
                continue
            inside = np.flatnonzero(ends[low:high] <= end) + low if high > low else none
            if len(inside):
                last = inside[np.argmax(ends[inside])]
                found.append((start, int(ends[last]), int(compiles[last])))
            covered_to = end
        start, end, event = np.array(found, np.int64).reshape(-1, 3).T
        return start, end, event

    def _spans_on(self, lines: Int64, rows: Int64) -> Int64:
        events = self._events
        return rows[np.isin(events.line[rows], lines) & (events.end_ps[rows] > events.start_ps[rows])]


def _filled(pieces: Pieces, asked: Intervals) -> Pieces:
    """Pieces inside ``asked``, and what they leave of it as pieces of no event."""
    apart = np.flatnonzero(pieces.start_ps[1:] != pieces.end_ps[:-1])
    low, high = asked
    if len(pieces.event):
        first, last = np.concatenate(([0], apart + 1)), np.concatenate((apart, [len(pieces.event) - 1]))
        low, high = intervals.subtract(asked, (pieces.start_ps[first], pieces.end_ps[last]))
    if not len(low):
        return pieces
    both = Pieces(
        np.concatenate((pieces.start_ps, low)),
        np.concatenate((pieces.end_ps, high)),
        np.concatenate((pieces.evidence, np.full(len(low), Evidence.NOTHING, np.int8))),
        np.concatenate((pieces.event, np.full(len(low), -1, np.int64))),
        np.concatenate((pieces.stack, np.full(len(low), -1, np.int64))),
    )
    return both.take(np.argsort(both.start_ps, kind="stable"))
