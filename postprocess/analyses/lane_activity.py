"""What was a lane doing at any time? Asked by other ranks that waited for it.

A lane's capture is tiled by segments: busy ones have one class (the one that wins there), gaps share theirs among
causes (docs/breakdown.md). A segment of class collective belongs to one collective, the one that started first. Read
on the process's own clock (map 1), put on fleet time when that is known (map 2), then asked.

Each share has a reason, in words and with a source line where it is known: for a gap its evidence, for a busy segment
the operation that most of it belongs to (each instant to the one of its class that started first).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from xprof_py.postprocess.analyses.evidence import sources_of_gaps
from xprof_py.postprocess.join import intervals
from xprof_py.postprocess.join.columns import (
    Bool,
    Events,
    Int64,
    codes,
    dictionary,
    distinct,
    in_order_of_rows,
    integers,
    occurring,
)
from xprof_py.postprocess.join.windows import cover_leaves
from xprof_py.postprocess.match.endpoints import read_executions
from xprof_py.postprocess.match.fleet_time import Theta, fleet_ps
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES

_COLLECTIVE = CLASSES.index("collective")
_UNKNOWN = CLASSES.index("unknown")


@dataclass(frozen=True)
class LaneActivity:
    """Segments of one lane, in order, tiling its capture: ``bounds_ps`` has one time more than there are segments.

    ``execution``: the row of the process's endpoints that a segment of class collective belongs to, else -1.
    ``of``, ``class_code``, ``amount_ps``: the shares, by segment, then class; those of a segment sum to its length.
    ``reason``: of each share, row of ProcessActivity.reasons, -1 where it is not told.
    """

    bounds_ps: Int64
    execution: Int64
    of: Int64
    class_code: Int64
    amount_ps: Int64
    reason: Int64


@dataclass(frozen=True)
class LaneWindows:
    """Windows of a lane by rows of the process's table `windows` (nested ones are not in it), the step of each (-1:
    none), and their ends."""

    window: Int64
    step: Int64
    start_ps: Int64
    end_ps: Int64


@dataclass(frozen=True)
class ProcessActivity:
    """All lanes of one process, in ps since ``origin_ns`` on its own clock. ``reasons``: (words, source line or "")."""

    origin_ns: int
    lanes: tuple[LaneActivity, ...]
    windows: tuple[LaneWindows, ...]
    reasons: tuple[tuple[str, str], ...]


def read_activity(profile: Profile) -> ProcessActivity:
    """The activity of every lane of a joined profile."""
    ops = profile["ops"]
    lane, start = integers(ops, "lane"), integers(ops, "start_ps")
    end = start + integers(ops, "duration_ps")
    open_end = end + integers(ops, "open_ps")
    leaf = np.asarray(ops["leaf"].to_numpy(), np.bool_) if ops.num_rows else np.zeros(0, np.bool_)
    named, names = dictionary(ops, "class")
    code = np.array([CLASSES.index(name) for name in names] or [0], np.int64)[named] if ops.num_rows else lane
    # Both halves of an asynchronous collective are its execution.
    executions = read_executions(profile)
    execution = np.full(ops.num_rows, -1, np.int64)
    execution[executions.last] = execution[executions.first] = np.arange(len(executions.first))
    gaps = profile["gaps"]
    gap_lane, gap_start, gap_end, length = (integers(gaps, n) for n in ("lane", "start_ps", "end_ps", "length_ps"))
    of_cause, causes = codes(gaps["cause"])
    cause = np.array([CLASSES.index(name) for name in causes] or [0], np.int64)[of_cause]
    # Without collectives nobody waits for this process, and nobody asks.
    reasons, of_op, of_gap = _reasons(profile) if len(executions.first) else ((), code * 0 - 1, cause * 0 - 1)
    table = profile["windows"]
    tile = np.array([kind != "nested" for kind in table["kind"].to_pylist()] or np.zeros(0), np.bool_)
    of_lane, step, low, high = (integers(table, name) for name in ("lane", "step", "start_ps", "end_ps"))
    lanes, windows = [], []
    for number in range(profile["lanes"].num_rows):
        mine = np.flatnonzero((lane == number) & leaf)
        parts = _busy(code[mine], start[mine], end[mine], open_end[mine], execution[mine], of_op[mine])
        free = np.flatnonzero((gap_lane == number) & (length > 0))
        none = np.full(len(free), -1, np.int64)
        parts.append((gap_start[free], gap_end[free], cause[free], length[free], none, of_gap[free]))
        rows = np.flatnonzero(tile & (of_lane == number))
        rows = rows[np.argsort(low[rows], kind="stable")]
        windows.append(LaneWindows(rows, step[rows], low[rows], high[rows]))
        lanes.append(_tiled(parts, np.unique(high[rows])))
    return ProcessActivity(profile.origin_ns, tuple(lanes), tuple(windows), reasons)


def _reasons(profile: Profile) -> tuple[tuple[tuple[str, str], ...], Int64, Int64]:
    """(reasons, that of every op, that of every gap).

    An op's words are its opcode where its source line is known (one line is many ops), else its name.
    """
    number: dict[tuple[str, str], int] = {}
    ops, hlo_ops, events = profile["ops"], profile["hlo_ops"], Events.of(profile)
    hlo, name = integers(ops, "hlo_op"), events.name[integers(ops, "event")].astype(np.int64)
    opcode, opcodes = dictionary(hlo_ops, "opcode")
    file, files = dictionary(hlo_ops, "file")
    line = integers(hlo_ops, "source_line", 0)
    first, which = distinct(np.where(hlo >= 0, hlo, -1), np.where(hlo >= 0, -1, name))
    found = []
    for row in first.tolist():
        op = int(hlo[row])
        where = f"{files[file[op]]}:{line[op]}" if op >= 0 and files[file[op]] else ""
        words = opcodes[opcode[op]] if where else events.names[name[row]]
        found.append(number.setdefault((words, where), len(number)))
    of_op = np.array(found or [-1], np.int64)[which] if len(hlo) else hlo
    (evidence, texts), (source, sources) = codes(profile["gaps"]["evidence"]), sources_of_gaps(profile)
    # Numbers are given in order of the gaps.
    first, which = in_order_of_rows(evidence, source)
    said = zip(evidence[first].tolist(), source[first].tolist(), strict=True)
    of_pair = [number.setdefault((texts[words], sources[where]), len(number)) for words, where in said]
    return tuple(number), of_op, np.array(of_pair, np.int64)[which]


_Part = tuple[Int64, Int64, Int64, Int64, Int64, Int64]
"""start, end, class, amount, execution, reason of shares; shares of one start and end are of one segment."""


def _busy(code: Int64, start: Int64, end: Int64, open_end: Int64, execution: Int64, reason: Int64) -> list[_Part]:
    cover = cover_leaves(code, start, end, open_end)
    parts = []
    for index in range(len(BUSY_CLASSES)):
        low, high = cover.exclusive[index]
        rows = np.flatnonzero(code == index)
        by, begin, finish = intervals.first_started(start[rows], open_end[rows])
        piece, of, from_ps, to_ps = intervals.overlaps((begin, finish), (low, high))
        row = rows[by[piece]]
        owner = np.full(len(low), -1, np.int64)
        if index == _COLLECTIVE:
            low, high, owner, why = from_ps, to_ps, execution[row], reason[row]
        else:
            # What a class covers alone is covered by ops of it: every segment has a piece.
            why = _most(of, reason[row], to_ps - from_ps)
        parts.append((low, high, np.full(len(low), index, np.int64), high - low, owner, why))
    return parts


def _most(group: Int64, value: Int64, amount: Int64) -> Int64:
    """Per group 0, 1, ... the value with the largest sum of ``amount``, the least of equal ones. Every group has a
    row."""
    first, which = distinct(group, value)
    sums = np.zeros(len(first), np.int64)
    np.add.at(sums, which, amount)
    order = np.lexsort((value[first], -sums, group[first]))
    new = np.append(True, np.diff(group[first][order]) != 0)[: len(order)]
    return np.asarray(value[first][order][new])


def _tiled(parts: list[_Part], cuts: Int64) -> LaneActivity:
    """Segments from shares, those of one class cut at ``cuts`` (gaps are cut there already)."""
    low, high, code, amount, execution, reason = (np.concatenate([part[i] for part in parts]) for i in range(6))
    busy = code < len(BUSY_CLASSES)
    edges = np.unique(np.concatenate(([np.iinfo(np.int64).min], cuts, [np.iinfo(np.int64).max])))
    piece, _, cut_low, cut_high = intervals.overlaps((low[busy], high[busy]), (edges[:-1], edges[1:]))
    columns = (
        (cut_low, low[~busy]),
        (cut_high, high[~busy]),
        (code[busy][piece], code[~busy]),
        (cut_high - cut_low, amount[~busy]),
        (execution[busy][piece], execution[~busy]),
        (reason[busy][piece], reason[~busy]),
    )
    low, high, code, amount, execution, reason = (np.concatenate(pair) for pair in columns)
    order = np.lexsort((code, low))
    low, high, code, amount, execution, reason = (c[order] for c in (low, high, code, amount, execution, reason))
    new = np.ones(len(low), np.bool_)
    new[1:] = low[1:] != low[:-1]
    first = np.flatnonzero(new)
    of = np.cumsum(new) - 1
    # One cause may have several rows: one share each.
    key = of * len(CLASSES) + code
    same = np.ones(len(key), np.bool_)
    same[1:] = key[1:] != key[:-1]
    begins = np.flatnonzero(same)
    if not len(begins):
        none = np.empty(0, np.int64)
        return LaneActivity(np.zeros(1, np.int64), none, none, none, none, none)
    sums = np.add.reduceat(amount, begins)
    bounds = np.append(low[first], high[-1])
    why = _most(np.cumsum(same) - 1, reason, amount)
    return LaneActivity(bounds, execution[first], of[begins], code[begins], sums, why)


def on_fleet_time(activity: LaneActivity, clock: Theta, origin_ns: int, job_origin_ns: int) -> LaneActivity:
    """The same in ps since ``job_origin_ns`` on fleet time: each segment shares its new length as it did the old."""
    bounds = fleet_ps(clock, origin_ns, activity.bounds_ps, job_origin_ns)
    amount = intervals.largest_remainders(np.diff(bounds), activity.of, activity.amount_ps)
    return replace(activity, bounds_ps=bounds, amount_ps=amount)


@dataclass(frozen=True)
class Questions:
    """What was rank ``rank`` doing in [start_ps, end_ps)? Columns of one length; ``row``: whom the answer is for."""

    row: Int64
    rank: Int64
    start_ps: Int64
    end_ps: Int64

    def take(self, rows: Int64 | Bool) -> Questions:
        """Some of them."""
        return Questions(self.row[rows], self.rank[rows], self.start_ps[rows], self.end_ps[rows])

    @staticmethod
    def together(parts: Sequence[Questions]) -> Questions:
        """All of several."""
        names = ("row", "rank", "start_ps", "end_ps")
        return Questions(*(np.concatenate([np.empty(0, np.int64), *(getattr(p, n) for p in parts)]) for n in names))


@dataclass(frozen=True)
class Told:
    """What was done in answer to questions, and why. Columns of one length, one row for each ``row`` of the questions,
    class and reason: ``reason`` is one of ``reasons``, -1 outside of what was captured and where none is told."""

    row: Int64
    class_code: Int64
    reason: Int64
    amount_ps: Int64
    reasons: tuple[tuple[str, str], ...]

    @staticmethod
    def without_reason(row: Int64, class_code: int, amount_ps: Int64) -> Told:
        """Time of one class of which no more is known."""
        return Told(row, np.full(len(row), class_code), np.full(len(row), -1), amount_ps, ())

    @staticmethod
    def together(parts: Sequence[Told]) -> Told:
        """All of several, with the reasons that come in them alone: those of one text are one."""
        number: dict[tuple[str, str], int] = {}
        columns = [(np.empty(0, np.int64),) * 4]
        for part in parts:
            said = np.unique(part.reason[part.reason >= 0])
            renumbered = np.full(len(part.reasons) + 1, -1)
            for at in said.tolist():
                if any(part.reasons[at]):
                    renumbered[at] = number.setdefault(part.reasons[at], len(number))
            columns.append((part.row, part.class_code, renumbered[part.reason], part.amount_ps))
        row, code, reason, amount = (np.concatenate([c[i] for c in columns]) for i in range(4))
        first, which = distinct(row, code, reason)
        sums = np.zeros(len(first), np.int64)
        np.add.at(sums, which, amount)
        return Told(row[first], code[first], reason[first], sums, tuple(number))


class AnsweringLane:
    """One lane on fleet time, ready to be asked.

    ``waits_for``, ``waits_until_ps``: per execution of the process's endpoints the rank that was last, and when it
    came; -1 where nobody was waited for. The part of a collective's segment before that time is a wait.
    """

    def __init__(self, activity: LaneActivity, waits_for: Int64, waits_until_ps: Int64) -> None:
        none = np.iinfo(np.int64).min
        execution = activity.execution
        whom = np.where(execution >= 0, waits_for[execution] if len(waits_for) else -1, -1)
        until = np.where(whom >= 0, waits_until_ps[execution] if len(waits_for) else none, none)
        low, high = activity.bounds_ps[:-1], activity.bounds_ps[1:]
        until = np.clip(until, low, high)
        # A segment that holds the arrival of the last is a wait, and then a transfer.
        split = (until > low) & (until < high)
        twice = np.repeat(np.arange(len(low)), 1 + split)
        second = np.concatenate(([False], twice[1:] == twice[:-1])) if len(twice) else np.zeros(0, np.bool_)
        first = split[twice] & ~second
        self.start = np.where(second, until[twice], low[twice])
        self.end = np.where(first, until[twice], high[twice])
        waits = np.where(split[twice], ~second, until[twice] >= high[twice]) & (self.end > self.start)
        self.waiting = np.flatnonzero(waits & (whom[twice] >= 0))
        self.whom = whom[twice]
        # Amounts per segment and class; a wait has none of its own.
        # By column: most classes never occur, and take neither time nor memory then.
        self.amount = np.zeros((len(twice), len(CLASSES)), np.int64, order="F")
        place = np.cumsum(1 + split) - (1 + split)
        np.add.at(self.amount, (place[activity.of], activity.class_code), activity.amount_ps)
        halves = np.flatnonzero(second)
        self.amount[halves, _COLLECTIVE] = (self.end - self.start)[halves]
        self.amount[self.waiting] = 0
        self.before = np.zeros((len(twice) + 1, len(CLASSES)), np.int64, order="F")
        for code in {*occurring(activity.class_code, len(CLASSES)).tolist(), _COLLECTIVE}:
            np.cumsum(self.amount[:, code], out=self.before[1:, code])
        self._undivided = twice
        # Shares are by segment, then class.
        self._share, self._reason = activity.of * len(CLASSES) + activity.class_code, activity.reason

    def answer(self, asked: Questions) -> tuple[Int64, Questions]:
        """(amounts, of shape (questions, CLASSES); what must be asked of others): together as long as the questions.

        ``row`` of the new questions is the place in ``asked``. Outside the capture: unknown.
        """
        low, high = asked.start_ps, asked.end_ps
        out = np.zeros((len(low), len(CLASSES)), np.int64)
        followed = np.zeros(len(low), np.int64)
        further = Questions.together([])
        if len(self.start):
            first = np.searchsorted(self.end, low, side="right")
            last = np.searchsorted(self.start, high, side="left") - 1
            inner = last > first + 1
            out[inner] += self.before[last[inner]] - self.before[first[inner] + 1]
            for edge, valid in ((first, first <= last), (last, last > first)):
                rows = np.flatnonzero(valid & (edge < len(self.start)))
                out[rows] += self._part(edge[rows], low[rows], high[rows])
            waits = (self.start[self.waiting], self.end[self.waiting])
            if len(self.waiting) and len(low):
                row, wait, begin, finish = intervals.overlaps((low, high), waits)
                further = Questions(row, self.whom[self.waiting[wait]], begin, finish)
                np.add.at(followed, row, finish - begin)
        out[:, _UNKNOWN] += (high - low) - out.sum(axis=1) - followed
        return out, further

    def tell(self, asked: Questions, reasons: tuple[tuple[str, str], ...]) -> Told:
        """What ``answer`` says, by reason, of ``reasons`` of the process: the same amounts per question and class.

        Takes time by segment.
        """
        row, segment, low, high = intervals.overlaps((asked.start_ps, asked.end_ps), (self.start, self.end))
        amounts = self._part(segment, low, high)
        owner, code = np.nonzero(amounts)
        share = self._undivided[segment[owner]] * len(CLASSES) + code
        place = np.searchsorted(self._share, share)
        inside = np.zeros(len(asked.row), np.int64)
        np.add.at(inside, row, high - low)
        outside = np.flatnonzero(asked.end_ps - asked.start_ps > inside)
        rest = (asked.end_ps - asked.start_ps - inside)[outside]
        return Told(
            np.concatenate((asked.row[row[owner]], asked.row[outside])),
            np.concatenate((code, np.full(len(outside), _UNKNOWN))),
            np.concatenate((self._reason[place], np.full(len(outside), -1))),
            np.concatenate((amounts[owner, code], rest)),
            reasons,
        )

    def _part(self, segment: Int64, low: Int64, high: Int64) -> Int64:
        """What of a segment lies in [low, high), in the proportions of the whole."""
        length = np.minimum(high, self.end[segment]) - np.maximum(low, self.start[segment])
        out = np.zeros((len(segment), len(CLASSES)), np.int64)
        owner, code = np.nonzero(self.amount[segment])
        out[owner, code] = intervals.largest_remainders(np.maximum(length, 0), owner, self.amount[segment[owner], code])
        return out
