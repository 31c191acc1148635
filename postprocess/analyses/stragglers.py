"""Which rank do the others wait for, how persistently, and what was it doing?

    lost        in a step, the sum over its collectives of what the rank came later than the second last (claimed ones
                alone, analyses/collectives.py): what the step would have been shorter by, had it come with the second
                last
    share       the part of the steps in which this rank lost most
    p           the chance that one of n equal ranks loses most in so many of the steps: the binomial tail, times n,
                because the worst of n was picked
    cause       what the rank was doing between the second last arrival and its own: the classes and causes of its lane,
                waits for others followed
    reasons     the same time by what stands behind it (table straggler_reasons): the span or sampled place that is a
                gap's evidence, the operation that ran; with its source line

Which of them is called a straggler is a rule of rules/straggler.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.analyses.collectives import Arrivals, step_of_collective
from xprof_py.postprocess.analyses.job_view import Ask, JobTime, answers
from xprof_py.postprocess.analyses.lane_activity import ProcessActivity, Questions, Told
from xprof_py.postprocess.join.columns import Bool, Int64, distinct
from xprof_py.postprocess.match.steps import MatchedSteps
from xprof_py.postprocess.schema import CLASSES


@dataclass(frozen=True)
class Lateness:
    """Claimed collectives in steps, as columns: rank, step (number in MatchedSteps.keys), by how much it was late, and
    what it did meanwhile (picoseconds, of shape (rows, CLASSES)).

    ``told``: the same by reason, as pairs of (rank that did it, what; ``row``: of these columns).
    """

    collective: Int64
    rank: Int64
    step: Int64
    late_by_ns: Int64
    doing_ps: Int64
    told: list[tuple[int, Told]]


Tell = Callable[[int, Questions], Told]
"""(rank, questions to it) -> what it did, and why: lane_activity.AnsweringLane.tell."""


def lateness(found: Arrivals, steps: MatchedSteps, ask: Ask, tell: Tell, time: JobTime) -> Lateness:
    """Who was late where, and what the late one was doing."""
    rows = np.flatnonzero(found.claimed)
    step = np.array(step_of_collective(found, steps) or np.zeros(0), np.int64)[rows]
    last, second = found.last[rows], found.second[rows]
    rank = found.collectives.rank[last]
    low = (found.start_ns[second] - time.origin_ns) * 1000
    high = (found.start_ns[last] - time.origin_ns) * 1000
    heard: list[tuple[int, Questions]] = []
    doing = answers(Questions(np.arange(len(rows)), rank, low, high), len(rows), ask, heard)
    told = [(asked, tell(asked, questions)) for asked, questions in heard]
    return Lateness(rows, rank, step, found.late_by_ns[rows], doing, told)


_REASONS = pa.schema(
    [
        *(("host", pa.string()), ("lane", pa.int32()), ("class", pa.string())),
        *(("by", pa.string()), ("reason", pa.string()), ("source", pa.string())),
        *(("length_ps", pa.int64()), ("steps", pa.int64())),
    ]
)


def reasons_table(late: Lateness, found: Arrivals, used: Bool, activities: Sequence[ProcessActivity]) -> pa.Table:
    """What stands behind the lateness of each rank (`host`, `lane`) in the used steps, the longest first.

    One row per class, host that did it (`by`: the late one, or one that it waited for itself), reason and source line
    (null where none is known); `steps`: in how many. The rows of a rank and class sum to its row of `stragglers`, but
    for what was not followed to its end (job_view.MOST_HANDED).
    """
    ranks = found.collectives.ranks
    inside = _inside(late, used)
    columns: list[tuple[Int64, ...]] = []
    for asked, told in late.told:
        mine = np.flatnonzero(inside[told.row] & (told.amount_ps > 0))
        row = told.row[mine]
        by = np.full(len(mine), asked)
        columns.append(
            (late.rank[row], told.class_code[mine], by, told.reason[mine], late.step[row], told.amount_ps[mine])
        )
    if not columns:
        return _REASONS.empty_table()
    rank, code, by, reason, step, amount = (np.concatenate([c[i] for c in columns]) for i in range(6))
    first, which = distinct(rank, code, by, reason)
    length = np.zeros(len(first), np.int64)
    np.add.at(length, which, amount)
    in_steps = np.bincount(which[distinct(which, step)[0]], minlength=len(first))
    rows = []
    for place, at in enumerate(first.tolist()):
        late_one, who = ranks[int(rank[at])], ranks[int(by[at])]
        words, source = ("", "")
        if reason[at] >= 0:
            words, source = activities[who.process].reasons[int(reason[at])]
        rows.append(
            {
                "host": late_one.host,
                "lane": late_one.lane,
                "class": CLASSES[int(code[at])],
                "by": who.host,
                "reason": words or None,
                "source": source or None,
                "length_ps": int(length[place]),
                "steps": int(in_steps[place]),
            }
        )
    order = ("host", "lane", "class", "by", "reason", "source")
    rows.sort(key=lambda row: (-row["length_ps"], *(str(row[name] or "") for name in order)))
    return pa.Table.from_pylist(rows, schema=_REASONS)


def _inside(late: Lateness, used: Bool) -> Bool:
    """Which rows of the lateness are of steps that count."""
    if not len(used):
        return np.zeros(len(late.step), np.bool_)
    return (late.step >= 0) & used[np.maximum(late.step, 0)]


def stragglers_table(late: Lateness, found: Arrivals, used: Bool) -> pa.Table:
    """One row per rank that is ever last: host, lane, times, steps, of_steps (all that count), share, lost_ns (in all
    of these), p, cause, and what it was doing by class. The one that loses most first.

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
