"""Which rank do the others wait for, how persistently, and what was it doing?

    lost        in a step, the sum over its collectives of what the rank came later than the second last (claimed ones
                alone, analyses/collectives.py): what the step would have been shorter by, had it come with the second
                last
    share       the part of the steps in which this rank lost most
    p           the chance that one of n equal ranks loses most in so many of the steps: the binomial tail, times n,
                because the worst of n was picked
    cause       what the rank did more than the second last since both had left the last collective that they share
                (since the later of their captures began, where there is none): the classes and causes of its lane less
                those of the other's, waits for others followed. What both did alike cancels out: who reads for 30 ms
                and then computes for 20, as the other does, is late by reading. The differences sum to the lateness
    reasons     the same by what stands behind it (table straggler_reasons): the span or sampled place that is a gap's
                evidence, the operation that ran; with its source line. A cause of a gap has one reason, the strongest

Which of them is called a straggler is a rule of rules/straggler.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.analyses.collectives import Arrivals, step_of_collective
from xprof_py.postprocess.analyses.job_view import Ask, JobTime, follow
from xprof_py.postprocess.analyses.lane_activity import Questions, Told
from xprof_py.postprocess.join.columns import Bool, Int64, distinct
from xprof_py.postprocess.match.steps import MatchedSteps
from xprof_py.postprocess.schema import CLASSES


@dataclass(frozen=True)
class Lateness:
    """Claimed collectives in steps, as columns: rank, step (number in MatchedSteps.keys), by how much it was late, and
    what it did more than the second last (picoseconds, of shape (rows, CLASSES); less is negative).

    ``told``: the same by reason. Its ``row`` is one of these columns for what the late one did, and their length behind
    it for what the other did, which is to be taken off.
    """

    collective: Int64
    rank: Int64
    step: Int64
    late_by_ns: Int64
    doing_ps: Int64
    told: Told


def lateness(found: Arrivals, steps: MatchedSteps, ask: Ask, time: JobTime, begins_ps: Int64) -> Lateness:
    """Who was late where, and what the late one was doing. ``begins_ps``: per rank the begin of its capture, in job
    time."""
    rows = np.flatnonzero(found.claimed)
    count = len(rows)
    step = np.array(step_of_collective(found, steps) or np.zeros(0), np.int64)[rows]
    last, second = found.last[rows], found.second[rows]
    rank, other = found.collectives.rank[last], found.collectives.rank[second]
    high, early = ((found.start_ns[at] - time.origin_ns) * 1000 for at in (last, second))
    low = np.minimum(_both_free_ps(found, rows, begins_ps, time), early)
    asked = Questions.together(
        [Questions(np.arange(count), rank, low, high), Questions(count + np.arange(count), other, low, early)]
    )
    doing, told = np.zeros((2 * count, len(CLASSES)), np.int64), list[Told]()
    follow(asked, doing, found.collectives.ranks, ask, told=told)
    return Lateness(rows, rank, step, found.late_by_ns[rows], doing[:count] - doing[count:], Told.together(told))


def _both_free_ps(found: Arrivals, rows: Int64, begins_ps: Int64, time: JobTime) -> Int64:
    """Per collective of ``rows`` when its last and its second last had both left the last one before it that they
    share, in job time; when both captures had begun, where there is none."""
    of = found.collectives
    last, second = found.last[rows], found.second[rows]
    out = np.maximum(begins_ps[of.rank[last]], begins_ps[of.rank[second]])
    by_rank = np.argsort(of.rank, kind="stable")
    edges = np.searchsorted(of.rank[by_rank], np.arange(len(of.ranks) + 1))
    first, which = distinct(of.rank[last], of.rank[second])
    order = np.argsort(which, kind="stable")
    for mine in np.split(order, np.searchsorted(which[order], np.arange(1, len(first)))):
        if not len(mine):
            continue
        a, b = (by_rank[edges[r] : edges[r + 1]] for r in (of.rank[last[mine[0]]], of.rank[second[mine[0]]]))
        _, in_a, in_b = np.intersect1d(of.of[a], of.of[b], return_indices=True)
        a, b = a[in_a], b[in_b]
        in_time = np.argsort(found.start_ns[a], kind="stable")
        left = np.maximum.accumulate(np.maximum(found.end_ns[a], found.end_ns[b])[in_time])
        before = np.searchsorted(found.start_ns[a][in_time], found.start_ns[last[mine]], side="left") - 1
        known = before >= 0
        out[mine[known]] = (left[before[known]] - time.origin_ns) * 1000
    return out


_REASONS = pa.schema(
    [
        *(("host", pa.string()), ("lane", pa.int32()), ("class", pa.string())),
        *(("reason", pa.string()), ("source", pa.string())),
        *(("length_ps", pa.int64()), ("steps", pa.int64())),
    ]
)


def reasons_table(late: Lateness, found: Arrivals, used: Bool) -> pa.Table:
    """What stands behind the lateness of each rank (`host`, `lane`) in the used steps, the longest first.

    One row per class, reason and source line (null where none is known) of what it did more than the second last, less
    is negative; `steps`: in how many it did more. The rows of a rank and class sum to its row of `stragglers`.
    """
    ranks = found.collectives.ranks
    told, count = late.told, max(len(late.step), 1)
    kept = np.flatnonzero(_inside(late, used)[told.row % count])
    row = told.row[kept] % count
    amount = np.where(told.row[kept] < count, told.amount_ps[kept], -told.amount_ps[kept])
    rank, code, reason, step = late.rank[row], told.class_code[kept], told.reason[kept], late.step[row]
    first, which = distinct(rank, code, reason, step)
    of_step = np.zeros(len(first), np.int64)
    np.add.at(of_step, which, amount)
    rank, code, reason = rank[first], code[first], reason[first]
    first, which = distinct(rank, code, reason)
    length, steps = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    np.add.at(length, which, of_step)
    np.add.at(steps, which, of_step > 0)
    rows: list[dict[str, Any]] = []
    for place, at in enumerate(first.tolist()):
        words, source = told.reasons[int(reason[at])] if reason[at] >= 0 else ("", "")
        rows.append(
            {
                "host": ranks[int(rank[at])].host,
                "lane": ranks[int(rank[at])].lane,
                "class": CLASSES[int(code[at])],
                "reason": words or None,
                "source": source or None,
                "length_ps": int(length[place]),
                "steps": int(steps[place]),
            }
        )
    rows = [row for row in rows if row["length_ps"]]
    order = ("host", "lane", "class", "reason", "source")
    rows.sort(key=lambda row: (-row["length_ps"], *(str(row[name] or "") for name in order)))
    return pa.Table.from_pylist(rows, schema=_REASONS)


def _inside(late: Lateness, used: Bool) -> Bool:
    """Which rows of the lateness are of steps that count."""
    if not len(used):
        return np.zeros(len(late.step), np.bool_)
    return (late.step >= 0) & used[np.maximum(late.step, 0)]


def stragglers_table(late: Lateness, found: Arrivals, used: Bool) -> pa.Table:
    """One row per rank that is ever last: host, lane, times, steps, of_steps (all that count), share, lost_ns (in all
    of these), p, cause, and by class what it did more than the second last. The one that loses most first.

    ``used``: which steps count.
    """
    ranks = found.collectives.ranks
    inside = _inside(late, used)
    lost = np.zeros((len(ranks), len(used)), np.int64)
    np.add.at(lost, (late.rank[inside], late.step[inside]), late.late_by_ns[inside])
    count = int(used.sum())
    worst = np.where(lost.max(axis=0, initial=0) > 0, lost.argmax(axis=0), -1) if len(ranks) else np.zeros(0, np.int64)
    rows = []
    for rank in np.unique(late.rank[inside]).tolist():
        mine = inside & (late.rank == rank)
        doing = late.doing_ps[mine].sum(axis=0)
        steps = int((worst[used] == rank).sum())
        rows.append(
            {
                "host": ranks[rank].host,
                "lane": ranks[rank].lane,
                "times_last": int(mine.sum()),
                "steps": steps,
                "of_steps": count,
                "share": steps / count,
                "lost_ns": int(late.late_by_ns[mine].sum()),
                "p": min(binomial_tail(steps, count, 1 / len(ranks)) * len(ranks), 1.0),
                "cause": CLASSES[int(np.argmax(doing))],
                **{f"{name}_ps": int(ps) for name, ps in zip(CLASSES, doing, strict=True)},
            }
        )
    rows.sort(key=lambda row: (-row["lost_ns"], row["host"], row["lane"]))
    fields = [
        *(("host", pa.string()), ("lane", pa.int32()), ("times_last", pa.int64()), ("steps", pa.int64())),
        *(
            ("of_steps", pa.int64()),
            ("share", pa.float64()),
            ("lost_ns", pa.int64()),
            ("p", pa.float64()),
            ("cause", pa.string()),
        ),
        *((f"{name}_ps", pa.int64()) for name in CLASSES),
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def binomial_tail(at_least: int, of: int, chance: float) -> float:
    """The probability of ``at_least`` or more successes in ``of`` trials."""
    if at_least <= 0:
        return 1.0
    if chance >= 1:
        return 1.0
    log = math.lgamma
    terms = (
        math.exp(log(of + 1) - log(k + 1) - log(of - k + 1) + k * math.log(chance) + (of - k) * math.log1p(-chance))
        for k in range(at_least, of + 1)
    )
    return min(math.fsum(terms), 1.0)
