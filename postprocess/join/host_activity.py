"""What a host thread was doing, as a flat sequence of pieces with one evidence each (BREAKDOWN.md 5).

At every moment the innermost open span that names compiler, input or checkpoint decides; without one, the innermost
span. What no span explains is divided among the samples of the thread's stack. Waits for the device and compile
intervals that no event states are put together here.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from xprof_py.postprocess.join import host_names
from xprof_py.postprocess.join.columns import Bool, Events, Int64
from xprof_py.postprocess.join.host_names import Evidence
from xprof_py.postprocess.join.samples import Samples
from xprof_py.postprocess.join.steps import Steps
from xprof_py.postprocess.join.threads import markers
from xprof_py.postprocess.schema import Kind

_NEVER = 2**62


@dataclass(frozen=True)
class Piece:
    """A stretch of a thread's time with one decider. ``event`` is the deciding event, -1 where no span was open.

    ``stack``: the sampled stack that decided, where the event (or its absence) says nothing; -1 without.
    """

    start_ps: int
    end_ps: int
    evidence: Evidence
    event: int
    stack: int = -1


@dataclass(frozen=True)
class Wait:
    """A thread waiting for the device, from the call to its return. ``event`` is its first event."""

    start_ps: int
    end_ps: int
    event: int


class HostActivity:
    """The host threads of one process. Threads are worked out when first asked for."""

    def __init__(
        self,
        events: Events,
        thread_of_line: Int64,
        host_line: Bool,
        steps: Steps,
        capture_start_ps: int,
        samples: Samples,
    ) -> None:
        self._capture_start = capture_start_ps
        self._samples = samples
        self._events = events
        self._steps = steps
        self._thread = thread_of_line[events.line] if events.count else events.line
        self._usable = host_line[events.line] & ~markers(events) if events.count else np.zeros(0, np.bool_)
        # Ops of a program that ran inline and hand-over notes are not spans of the host program; a step says nothing
        # about what its thread did, but it is the span that is open.
        self._usable &= ~events.argument("hlo_op")[0]
        self._usable &= ~events.matching(lambda n: n.startswith((host_names.END_MARKER, "ThreadpoolListener::")))
        self._usable &= (events.kind != Kind.MARK) & (events.kind != Kind.COUNTER)
        is_root, _ = events.argument("_r")
        self._evidence = self._read_evidence(is_root)
        # What a loader's library writes around itself says that it was the input, and not which line of it.
        self._library = (self._evidence == Evidence.INPUT) & (events.kind == Kind.PLAIN)
        self._library &= ~events.matching(lambda name: name.startswith("$"))
        self._pieces: dict[int, list[Piece]] = {}
        self._starts: dict[int, list[int]] = {}
        self._waits: dict[int, list[Wait]] = {}
        self._noted: dict[int, list[Wait]] = {}

    def _read_evidence(self, is_root: Bool) -> Int64:
        events = self._events
        by_name = np.array([int(host_names.evidence_of(n)) for n in events.names] or [0], np.int64)
        by_user_name = np.array([int(host_names.named_cause(n)) for n in events.names] or [0], np.int64)
        evidence = by_name[events.name] if events.count else np.zeros(0, np.int64)
        evidence = np.where(events.kind == Kind.SPAN, by_user_name[events.name] if events.count else 0, evidence)
        for kind, meaning in (
            (Kind.STEP, Evidence.NOTHING),
            (Kind.INPUT, Evidence.INPUT),
            (Kind.CHECKPOINT, Evidence.CHECKPOINT),
            (Kind.COMPILE, Evidence.COMPILER),
            (Kind.GC, Evidence.HOST),
        ):
            evidence = np.where(events.kind == kind, meaning, evidence)
        plain = events.kind == Kind.PLAIN
        evidence = np.where(is_root & plain, Evidence.NOTHING, evidence)
        return np.where(events.argument(host_names.PIPELINE_STAGE_ARG)[0] & plain, Evidence.INPUT, evidence)

    def waits(self, thread: int) -> list[Wait]:
        """The thread's waits for the device, in order of start; a read is one where no other wait lies in it."""
        if thread not in self._waits:
            found = [*self._awaits(thread), *self._bare_reads(thread)]
            self._waits[thread] = sorted(found, key=lambda wait: (wait.start_ps, wait.end_ps))
        return self._waits[thread]

    def _bare_reads(self, thread: int) -> list[Wait]:
        events = self._events
        reads = self._usable & (self._thread == thread) & events.matching(lambda name: name in host_names.READS)
        begun = [wait.start_ps for wait in self._awaits(thread)]
        return [
            Wait(int(events.start_ps[row]), int(events.end_ps[row]), int(row))
            for row in np.flatnonzero(reads)
            if bisect_left(begun, events.start_ps[row]) == bisect_right(begun, events.end_ps[row])
        ]

    def _awaits(self, thread: int) -> list[Wait]:
        if thread not in self._noted:
            self._noted[thread] = self._read_awaits(thread)
        return self._noted[thread]

    def _read_awaits(self, thread: int) -> list[Wait]:
        events = self._events
        mine = self._usable & (self._thread == thread)
        waits = []
        has_producer, producer = events.argument("_p")
        has_consumer, consumer = events.argument("_c")
        awaits = np.flatnonzero(mine & events.named(host_names.AWAIT))
        begun = {int(producer[row]): int(row) for row in awaits if has_producer[row]}
        for row in awaits:
            if not has_consumer[row]:
                continue
            first = begun.pop(int(consumer[row]), None)
            # A wait without a beginning began before the capture.
            start = self._capture_start if first is None else int(events.start_ps[first])
            waits.append(Wait(start, int(events.end_ps[row]), int(row) if first is None else first))
        # A wait that never returned is open until the end of the capture.
        last = int(events.end_ps.max()) if events.count else 0
        waits += [Wait(int(events.start_ps[row]), last, row) for row in begun.values()]
        return sorted(waits, key=lambda wait: (wait.start_ps, wait.end_ps))

    def pieces(self, thread: int) -> list[Piece]:
        """The thread's time flattened: sorted, disjoint; between pieces no span was open and nothing was sampled."""
        if thread not in self._pieces:
            self._pieces[thread] = self._sampled(thread, self._flatten(thread))
            self._starts[thread] = [piece.start_ps for piece in self._pieces[thread]]
        return self._pieces[thread]

    def between(self, thread: int, start_ps: int, end_ps: int) -> list[Piece]:
        """Pieces clipped to [start, end), with pieces of event -1 where no span was open. Tiles the interval."""
        pieces = self.pieces(thread)
        out: list[Piece] = []
        at = start_ps
        first = max(bisect_right(self._starts[thread], start_ps) - 1, 0)
        for index in range(first, len(pieces)):
            piece = pieces[index]
            if piece.start_ps >= end_ps:
                break
            low, high = max(piece.start_ps, at), min(piece.end_ps, end_ps)
            if high <= low:
                continue
            if low > at:
                out.append(Piece(at, low, Evidence.NOTHING, -1))
            out.append(Piece(low, high, piece.evidence, piece.event, piece.stack))
            at = high
        if at < end_ps:
            out.append(Piece(at, end_ps, Evidence.NOTHING, -1))
        return out

    def _sampled(self, thread: int, pieces: list[Piece]) -> list[Piece]:
        """The same with what names no cause, between the pieces as well, divided among the samples in it."""
        if not self._samples.of_thread(thread):
            return pieces
        out: list[Piece] = []
        at = self._capture_start
        # After the last piece the samples end with the capture; `between` cuts what lies behind it.
        for piece in (*pieces, Piece(_NEVER, _NEVER, Evidence.NOTHING, -1)):
            out += self._divided(thread, Piece(at, piece.start_ps, Evidence.NOTHING, -1), only_sampled=True)
            if piece.start_ps < _NEVER:
                out += self._divided(thread, piece) if self._wants_samples(piece) else [piece]
            at = max(at, piece.end_ps)
        return out

    def _wants_samples(self, piece: Piece) -> bool:
        return piece.evidence == Evidence.NOTHING or (piece.event >= 0 and bool(self._library[piece.event]))

    def _divided(self, thread: int, piece: Piece, only_sampled: bool = False) -> list[Piece]:
        found = [
            Piece(start, end, piece.evidence or evidence, piece.event, stack)
            for start, end, evidence, stack in self._samples.divide(thread, piece.start_ps, piece.end_ps)
        ]
        return found or ([] if only_sampled else [piece])

    def _flatten(self, thread: int) -> list[Piece]:
        events = self._events
        rows = np.flatnonzero(self._usable & (self._thread == thread) & (events.end_ps > events.start_ps))
        rows = rows[~events.named(host_names.AWAIT)[rows]]
        spans = [
            (int(events.start_ps[row]), int(events.end_ps[row]), Evidence(int(self._evidence[row])), int(row))
            for row in rows
        ]
        spans += self._compile_spans(rows)
        spans += [(wait.start_ps, wait.end_ps, Evidence.WAIT, wait.event) for wait in self._awaits(thread)]
        spans.sort(key=lambda span: (span[0], -span[1]))
        return _innermost(spans)

    def _compile_spans(self, rows: Int64) -> list[tuple[int, int, Evidence, int]]:
        """From the start of a dispatch span to the end of the last lowering or compile inside it: `compiler`.

        Tracing has no event of its own. The deciding event is the last compile inside.
        """
        events = self._events
        is_call = events.matching(lambda name: host_names.JIT_CALL.match(name) is not None)[rows]
        compiles = rows[self._evidence[rows] == Evidence.COMPILER]
        compiles = compiles[np.argsort(events.start_ps[compiles], kind="stable")]
        starts = events.start_ps[compiles]
        spans = []
        covered_to = -1
        for row in rows[is_call]:
            start, end = int(events.start_ps[row]), int(events.end_ps[row])
            if start < covered_to:
                continue
            # Only outermost calls: what is traced inside one belongs to it.
            low, high = np.searchsorted(starts, [start, end])
            inside = compiles[low:high][events.end_ps[compiles[low:high]] <= end]
            if len(inside):
                last = inside[np.argmax(events.end_ps[inside])]
                spans.append((start, int(events.end_ps[last]), Evidence.COMPILER, int(last)))
            covered_to = end
        return spans


def _innermost(spans: list[tuple[int, int, Evidence, int]]) -> list[Piece]:
    """Flatten spans sorted by (start, -end): at every moment the decider of the open ones. O(n log n)."""
    edges = sorted({edge for span in spans for edge in span[:2]})
    pieces: list[Piece] = []
    # Each span with the place of the nearest one, at or below it, that names a cause (-1: none). Spans that end under
    # longer ones stay until they come up.
    stack: list[tuple[tuple[int, int, Evidence, int], int]] = []
    place = 0
    for start, end in itertools.pairwise(edges):
        while place < len(spans) and spans[place][0] <= start:
            names = spans[place][2] >= Evidence.CHECKPOINT
            stack.append((spans[place], len(stack) if names else stack[-1][1] if stack else -1))
            place += 1
        while stack and stack[-1][0][1] <= start:
            stack.pop()
        if not stack:
            continue
        naming = stack[-1][1]
        while naming >= 0 and stack[naming][0][1] <= start:
            naming = stack[naming - 1][1] if naming else -1
        decider = stack[naming if naming >= 0 else -1][0]
        if (
            pieces
            and pieces[-1].end_ps == start
            and pieces[-1].event == decider[3]
            and pieces[-1].evidence == decider[2]
        ):
            pieces[-1] = Piece(pieces[-1].start_ps, end, decider[2], decider[3])
        else:
            pieces.append(Piece(start, end, decider[2], decider[3]))
    return pieces
