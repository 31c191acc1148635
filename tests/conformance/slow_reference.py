"""The rules of the breakdown once more, slowly: a second opinion for random cases, written from the rules alone.

It works on a case, not on events: it is told what was launched by whom, where an analysis has to find out. One lane,
no copies, the whole capture, outermost steps only; every program has one compile and is launched by one thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from conformance.case_text import CONTAINERS, Case, Lane, Op, Run, Span, StepRef, Thread, walk
from xprof_py.postprocess.schema import CLASSES

NAMING = {"input": "input", "checkpoint": "checkpoint", "load_data": "input"}
Share = tuple[str, StepRef | None]


@dataclass(frozen=True)
class _Launch:
    thread: int
    start_ps: int
    end_ps: int
    step: StepRef | None


@dataclass(frozen=True)
class _Leaf:
    start_ps: int
    end_ps: int
    open_end_ps: int
    name: str
    run: int


@dataclass(frozen=True)
class Expected:
    """One window of the lane: exclusive picoseconds by class, of its gaps by cause and step, and of the leaves by class
    in total and by other steps."""

    kind: str
    step: StepRef | None
    start_ps: int
    end_ps: int
    exclusive_ps: dict[str, int]
    causes_ps: dict[Share, int]
    total_ps: dict[str, int]
    foreign_ps: dict[str, int]


def windows_of(case: Case, lane: Lane) -> list[Expected]:
    """The windows of that lane of ``case``, in order of time."""
    return _Reference(case, lane).windows()


class _Reference:
    def __init__(self, case: Case, lane: Lane) -> None:
        self.case = case
        self.runs = lane.runs
        self.steps = sorted(
            ((span, StepRef(span.name, span.number)) for t in case.threads for span in t.spans if span.kind == "step"),
            key=lambda pair: pair[0].start_ps,
        )
        self.launch_of = self.match()
        self.leaves = sorted(
            (leaf for row, run in enumerate(self.runs) for leaf in self.leaves_of(row, run)), key=lambda x: x.start_ps
        )
        self.run_end_ps = [
            max(leaf.open_end_ps for leaf in self.leaves if leaf.run == row) for row in range(len(self.runs))
        ]

    def match(self) -> list[_Launch]:
        launches: dict[str, list[_Launch]] = {}
        for number, thread in enumerate(self.case.threads):
            for span, outer in _with_outer(thread):
                if span.kind == "dispatch" and any(child.kind == "launch" for child in span.children):
                    (launch,) = [child for child in span.children if child.kind == "launch"]
                    step = StepRef(outer.name, outer.number) if outer is not None and outer.kind == "step" else None
                    one = _Launch(number, launch.start_ps, launch.end_ps or 0, step)
                    launches.setdefault(span.name, []).append(one)
        by_run: dict[tuple[str, int], _Launch] = {}
        for function, own in launches.items():
            ids = sorted(run.run_id for run in self.runs if run.function == function)
            own.sort(key=lambda one: one.start_ps)
            by_run.update({(function, run_id): one for run_id, one in zip(ids, own, strict=True)})
        return [by_run[run.function, run.run_id] for run in self.runs]

    def leaves_of(self, row: int, run: Run) -> Iterator[_Leaf]:
        ops = list(_leaf_ops(run.ops))
        wait_ps = max(max(op.end_ps or 0, op.marker_ps or 0) for op in ops)
        for op in ops:
            end_ps = op.end_ps or 0
            open_end_ps = max(end_ps, min(op.marker_ps or end_ps, wait_ps))  # no op of a random case reads another
            yield _Leaf(op.start_ps, end_ps, open_end_ps, _class_of(op), row)

    # --- windows ------------------------------------------------------------------------------------------------
    def windows(self) -> list[Expected]:
        ends: list[tuple[StepRef, int, int]] = []
        latest_ps = 0
        for span, ref in self.steps:
            own = [self.run_end_ps[row] for row, launch in enumerate(self.launch_of) if launch.step == ref]
            if own or ends:
                start_ps = latest_ps if ends else span.start_ps
                latest_ps = max([latest_ps, *own])
                ends.append((ref, start_ps, latest_ps))
        first_ps = ends[0][1] if ends else self.case.end_ps
        bounds: list[tuple[str, StepRef | None, int, int]] = [("head", None, self.case.start_ps, first_ps)]
        bounds += [("step", ref, a, b) for ref, a, b in ends]
        bounds.append(("tail", None, ends[-1][2] if ends else self.case.end_ps, self.case.end_ps))
        pieces = list(self.pieces([b[2] for b in bounds[1:]]))
        return [self.window(kind, ref, start_ps, end_ps, pieces) for kind, ref, start_ps, end_ps in bounds]

    def window(
        self,
        kind: str,
        ref: StepRef | None,
        start_ps: int,
        end_ps: int,
        pieces: list[tuple[int, int, dict[Share, int]]],
    ) -> Expected:
        causes: Counter[Share] = Counter()
        for piece_start_ps, piece_end_ps, shares in pieces:
            if start_ps <= piece_start_ps and piece_end_ps <= end_ps:
                causes.update(shares)
        exclusive: Counter[str] = Counter()
        for (name, _), length_ps in causes.items():
            exclusive[name] += length_ps
        won, total, foreign = self.busy(ref, start_ps, end_ps)
        exclusive.update(won)
        return Expected(
            kind,
            ref,
            start_ps,
            end_ps,
            {c: ps for c, ps in exclusive.items() if ps},
            {c: ps for c, ps in causes.items() if ps},
            dict(total),
            dict(foreign) if kind == "step" else {},
        )

    def busy(self, step: StepRef | None, start_ps: int, end_ps: int) -> tuple[Counter[str], Counter[str], Counter[str]]:
        """By class: won, total and foreign. Total counts the open part of a leaf even where another leaf covers it;
        foreign is the total of the leaves of other steps (work of no step is of no other step)."""
        cuts = sorted({start_ps, end_ps, *(t for x in self.leaves for t in (x.start_ps, x.end_ps, x.open_end_ps))})
        won: Counter[str] = Counter()
        total: Counter[str] = Counter()
        foreign: Counter[str] = Counter()
        for a, b in pairwise(cuts):
            if a < start_ps or b > end_ps:
                continue
            running = {x.name for x in self.leaves if x.start_ps <= a < x.end_ps}
            still_open = {x.name for x in self.leaves if x.end_ps <= a < x.open_end_ps}
            name = min(running or still_open, key=CLASSES.index, default=None)
            if name is not None:
                won[name] += b - a
            present = [x for x in self.leaves if x.start_ps <= a < x.open_end_ps]
            total.update({leaf.name: b - a for leaf in present})
            foreign.update({leaf.name: b - a for leaf in present if self.launch_of[leaf.run].step not in (None, step)})
        return won, total, foreign

    # --- gaps ---------------------------------------------------------------------------------------------------
    def pieces(self, boundaries_ps: list[int]) -> Iterator[tuple[int, int, dict[Share, int]]]:
        """Every gap, cut at the boundaries, with what its length is shared among."""
        late_launch_ps: dict[int, int] = {}
        for a, b, before, after in self.gaps():
            if before is not None and after is not None and before.run == after.run:
                thread, launch_ps, bound_ps, wait_ps = -1, a, a, None
            else:
                if after is None:
                    last = max(self.launch_of, key=lambda one: one.start_ps)
                    thread, launch_ps = last.thread, b
                else:
                    launch = self.launch_of[after.run]
                    thread, launch_ps = launch.thread, min(launch.end_ps, b)
                wait_ps = self.last_wait(thread, launch_ps)
                bound_ps = max(wait_ps or 0, late_launch_ps.get(thread, 0))
                if wait_ps is None or wait_ps < bound_ps:
                    wait_ps = None
            m = min(b, max(a, launch_ps))
            edges = [a, *[t for t in boundaries_ps if a < t < b], b]
            for piece_a, piece_b in pairwise(edges):
                late_from_ps = piece_a if wait_ps is None else max(piece_a, min(m, wait_ps))
                late_ps = max(0, min(piece_b, m) - min(late_from_ps, piece_b))
                shares: Counter[Share] = Counter()
                if late_ps:
                    # In the windows of steps nothing from before the first of them is blamed.
                    first_ps = boundaries_ps[0]
                    since_ps = bound_ps if piece_a < first_ps else max(bound_ps, first_ps)
                    weights = self.self_times(thread, since_ps, launch_ps, piece_b)
                    shares.update(_split(late_ps, weights))
                shares["device_wait", None] += piece_b - piece_a - late_ps
                yield piece_a, piece_b, shares
            if m > a and thread >= 0:
                late_launch_ps[thread] = launch_ps

    def gaps(self) -> Iterator[tuple[int, int, _Leaf | None, _Leaf | None]]:
        now_ps, before = self.case.start_ps, None
        for leaf in self.leaves:
            if leaf.start_ps > now_ps:
                yield now_ps, leaf.start_ps, before, leaf
            if leaf.open_end_ps > now_ps:
                now_ps, before = leaf.open_end_ps, leaf
        if self.case.end_ps > now_ps:
            yield now_ps, self.case.end_ps, before, None

    def last_wait(self, thread: int, by_ps: int) -> int | None:
        ends = [
            span.end_ps
            for span in walk(self.case.threads[thread].spans)
            if span.kind == "wait"
            and span.end_ps is not None
            and span.end_ps <= by_ps
            and any(span.start_ps <= leaf.open_end_ps <= span.end_ps for leaf in self.leaves)
        ]
        return max(ends, default=None)

    def self_times(self, thread: int, start_ps: int, end_ps: int, begun_before_ps: int) -> Counter[Share]:
        spans = [pair for pair in _with_outer(self.case.threads[thread]) if pair[0].kind != "wait"]
        cuts = {start_ps, end_ps}
        for span, _ in spans:
            cuts |= {span.start_ps, span.end_ps or 0, _compiled_until(span) or 0}
        edges = sorted(cut for cut in cuts if start_ps <= cut <= end_ps)
        weights: Counter[Share] = Counter()
        for a, b in pairwise(edges):
            stack = [(span, outer) for span, outer in spans if span.start_ps <= a and b <= (span.end_ps or 0)]
            begun_ps = stack[-1][0].start_ps if stack else self.uncovered_since(spans, a)
            if begun_ps >= begun_before_ps:
                continue
            outer = stack[0][0] if stack else None
            step = StepRef(outer.name, outer.number) if outer is not None and outer.kind == "step" else None
            weights[_cause([span for span, _ in stack], a), step] += b - a
        return weights

    def uncovered_since(self, spans: list[tuple[Span, Span | None]], at_ps: int) -> int:
        ends = sorted(span.end_ps or 0 for span, _ in spans)
        before = bisect_right(ends, at_ps)
        return ends[before - 1] if before else self.case.start_ps


def _with_outer(thread: Thread) -> Iterator[tuple[Span, Span | None]]:
    for outer in thread.spans:
        for span in walk([outer]):
            yield span, outer


def _leaf_ops(ops: list[Op]) -> Iterator[Op]:
    for op in ops:
        if op.children or op.name.split(".")[0] in CONTAINERS:
            yield from _leaf_ops(op.children)
        else:
            yield op


def _class_of(op: Op) -> str:
    return "collective" if op.name.startswith("all-reduce") else "compute"


def _compiled_until(span: Span) -> int | None:
    ends = [s.end_ps or 0 for s in walk(span.children) if s.kind in ("lower", "compile")]
    return max(ends) if span.kind == "dispatch" and ends else None


def _cause(stack: list[Span], at_ps: int) -> str:
    for span in reversed(stack):
        if span.kind in ("lower", "compile") or at_ps < (_compiled_until(span) or 0):
            return "compiler"
        named = NAMING.get(span.kind if span.kind != "span" else span.name)
        if named:
            return named
    return "host" if stack and stack[-1].kind in ("dispatch", "launch", "put") else "unknown"


def _split(total: int, weights: Counter[Share]) -> dict[Share, int]:
    whole = sum(weights.values())
    if not whole:
        return {("unknown", None): total}
    exact = {share: Fraction(total * weight, whole) for share, weight in weights.items()}
    parts = {share: int(value) for share, value in exact.items()}
    order = sorted(exact, key=lambda s: (parts[s] - exact[s], CLASSES.index(s[0]), str(s[1])))
    for share in order[: total - sum(parts.values())]:
        parts[share] += 1
    return parts
