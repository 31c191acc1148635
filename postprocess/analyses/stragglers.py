"""Which rank do the others wait for, how persistently, and what was it doing?

    lost        in a step, the sum over its collectives of what the rank came later than the second last (claimed ones
                alone, analyses/collectives.py): what the step would have been shorter by, had it come with the second
                last
    share       the part of the steps in which this rank lost most
    p           the chance that one of n equal ranks loses most in so many of the steps: the binomial tail, times n,
                because the worst of n was picked
    cause       what the rank was doing between the second last arrival and its own: the classes and causes of its lane,
                waits for others followed

Which of them is called a straggler is a rule of rules/straggler.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.analyses.collectives import Arrivals, step_of_collective
from xprof_py.postprocess.analyses.job_view import Ask, JobTime, follow
from xprof_py.postprocess.analyses.lane_activity import Questions
from xprof_py.postprocess.join.columns import Bool, Int64
from xprof_py.postprocess.match.steps import MatchedSteps
from xprof_py.postprocess.schema import CLASSES


@dataclass(frozen=True)
class Lateness:
    """Claimed collectives in steps, as columns: rank, step (number in MatchedSteps.keys), by how much it was late, and
    what it did meanwhile (picoseconds, of shape (rows, CLASSES))."""

    collective: Int64
    rank: Int64
    step: Int64
    late_by_ns: Int64
    doing_ps: Int64


def lateness(found: Arrivals, steps: MatchedSteps, ask: Ask, time: JobTime) -> Lateness:
    """Who was late where, and what the late one was doing."""
    rows = np.flatnonzero(found.claimed)
    step = np.array(step_of_collective(found, steps) or np.zeros(0), np.int64)[rows]
    last, second = found.last[rows], found.second[rows]
    rank = found.collectives.rank[last]
    low = (found.start_ns[second] - time.origin_ns) * 1000
    high = (found.start_ns[last] - time.origin_ns) * 1000
    doing = np.zeros((len(rows), len(CLASSES)), np.int64)
    follow(Questions(np.arange(len(rows)), rank, low, high), doing, found.collectives.ranks, ask)
    return Lateness(rows, rank, step, found.late_by_ns[rows], doing)


def stragglers_table(late: Lateness, found: Arrivals, used: Bool) -> pa.Table:
    """One row per rank that is ever last: host, lane, times, steps, share, lost_ns (all used steps), p, cause, and what
    it was doing by class. The one that loses most first.

    ``used``: which steps count.
    """
    ranks = found.collectives.ranks
    inside = (late.step >= 0) & used[np.maximum(late.step, 0)] if len(used) else np.zeros(len(late.step), np.bool_)
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
        *(("share", pa.float64()), ("lost_ns", pa.int64()), ("p", pa.float64()), ("cause", pa.string())),
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
