"""Who came last to each collective, how long did the others wait, and how fast was the transfer? On fleet time.

    arrival     start of the collective on the rank's clock, put on fleet time
    wait        last arrival - own arrival; what is shown is the part of it in which nothing else ran (job_view.py)
    late by     last arrival - the one before it: what would have been saved had the last come with the second last
    transfer    first end - last arrival: from when all were there
    bus bandwidth   bytes x factor / transfer; the factor as the NCCL tests define it: 2 (n-1)/n for all-reduce, (n-1)/n
                for all-gather, reduce-scatter and all-to-all

Only of collectives in which everybody waits for everybody, whose participants were all seen. A difference of two
arrivals is claimed where it is more than their two clocks can be wrong by together; ranks of one clock are never wrong
about one another. Without clocks that match nobody is called last, and a wait is the duration less the least duration
over ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.join.columns import Bool, Int64
from xprof_py.postprocess.match.collectives import METHODS, Collectives
from xprof_py.postprocess.match.endpoints import SYNCHRONISING
from xprof_py.postprocess.match.fleet_time import Float64, Theta, error_ns, fleet_ns
from xprof_py.postprocess.match.steps import MatchedSteps

FACTORS = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "all-to-all": 1.0}
"""Times (n-1)/n."""


@dataclass(frozen=True)
class Arrivals:
    """Per participation: ``start_ns``, ``end_ns`` on fleet time, ``error_ns`` of these. Per collective: ``aligned``:
    all of its participants' clocks are known; ``told``: and they wait for one another and were all seen. Where told:
    ``last``, ``second``: participations (rows), and ``claimed``: whether who was last is sure.

    ``wait_ns``: per participation, -1 where it is not known. ``waits``: whether the wait is surely more than none.
    """

    collectives: Collectives
    start_ns: Int64
    end_ns: Int64
    error_ns: Float64
    aligned: Bool
    told: Bool
    last: Int64
    second: Int64
    claimed: Bool
    late_by_ns: Int64
    bound_ns: Float64
    wait_ns: Int64
    waits: Bool


def arrivals(collectives: Collectives, clocks: Sequence[Theta | None]) -> Arrivals:
    """``clocks``: per clock of ``collectives`` its theta, None where it is not known; fleet time is the reference's."""
    found = collectives
    clock = np.array([rank.clock for rank in found.ranks], np.int64)[found.rank]
    start, end = found.start_ns.copy(), found.end_ns.copy()
    error = np.full(len(start), np.inf)
    for number, theta in enumerate(clocks):
        mine = np.flatnonzero(clock == number)
        if theta is not None and len(mine):
            start[mine], end[mine] = fleet_ns(theta, start[mine]), fleet_ns(theta, end[mine])
            error[mine] = error_ns(theta, found.start_ns[mine])
    count = found.count
    seen = np.bincount(found.of, minlength=count)
    first = np.concatenate(([0], np.cumsum(seen)))
    known = np.array([theta is not None for theta in clocks] or [False], np.bool_)[clock]
    of_clock = np.full(count, -1, np.int64)
    of_clock[found.of] = clock
    alone = np.ones(count, np.bool_)
    np.logical_and.at(alone, found.of, clock == of_clock[found.of])
    aligned = np.ones(count, np.bool_)
    np.logical_and.at(aligned, found.of, known)
    aligned |= alone
    kind = np.array([name in SYNCHRONISING for name in found.kind] or np.zeros(0), np.bool_)
    complete = (found.expected < 0) | (seen == found.expected)
    told = aligned & kind & complete & (seen >= 2)
    # By collective, then arrival, then rank from behind: of those that came at once the first rank counts as last.
    order = np.lexsort((-found.rank, start, found.of))
    last = np.where(told, order[np.minimum(first[1:] - 1, max(len(order) - 1, 0))] if len(order) else -1, -1)
    second = np.where(told, order[np.maximum(first[1:] - 2, 0)] if len(order) else -1, -1)
    late_by, bound = np.zeros(count, np.int64), np.zeros(count)
    rows = np.flatnonzero(told)
    late_by[rows] = start[last[rows]] - start[second[rows]]
    bound[rows] = _apart(error, clock, last[rows], second[rows])
    wait = np.full(len(start), -1, np.int64)
    waits = np.zeros(len(start), np.bool_)
    mine = np.flatnonzero(told[found.of])
    to = last[found.of[mine]]
    wait[mine] = start[to] - start[mine]
    waits[mine] = wait[mine] > _apart(error, clock, mine, to)
    # Clocks that do not match: the shortest stay is what it takes, all beyond it was waiting.
    rest = np.flatnonzero((kind & complete & (seen >= 2) & ~aligned)[found.of])
    stay = found.end_ns - found.start_ns
    least = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(least, found.of, stay)
    wait[rest] = stay[rest] - least[found.of[rest]]
    claimed = told & (late_by > bound)
    return Arrivals(found, start, end, error, aligned, told, last, second, claimed, late_by, bound, wait, waits)


def _apart(error: Float64, clock: Int64, a: Int64, b: Int64) -> Float64:
    """How far the difference of two moments can be from the truth."""
    return np.where(clock[a] == clock[b], 0.0, error[a] + error[b])


def ends_too_early(found: Arrivals) -> int:
    """Participations of told collectives that end before the last has started, beyond what clocks can be wrong by."""
    rows = np.flatnonzero(found.told[found.collectives.of])
    to = found.last[found.collectives.of[rows]]
    clock = np.array([rank.clock for rank in found.collectives.ranks] or [0], np.int64)[found.collectives.rank]
    bound = _apart(found.error_ns, clock, rows, to)
    return int((found.start_ns[to] - found.end_ns[rows] > bound).sum())


def collectives_table(found: Arrivals, steps: MatchedSteps) -> pa.Table:
    """One row per collective: what it was, who was last, by how much, and the transfer.

    Times are fleet time, ns UTC; null where clocks do not match. `bound_ns`: what `late_by_ns` may be wrong by;
    `claimed`: it is more than that.
    """
    of = found.collectives
    count = of.count
    seen = np.bincount(of.of, minlength=count)
    first_start, first_end = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).max)
    last_end = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first_start, of.of, found.start_ns)
    np.minimum.at(first_end, of.of, found.end_ns)
    np.maximum.at(last_end, of.of, found.end_ns)
    last_start = found.start_ns[found.last] if len(found.start_ns) else first_start
    transfer = np.maximum(first_end - last_start, 0)
    factor = np.array([FACTORS.get(kind, 0.0) for kind in of.kind] or np.zeros(0))
    rate = factor * (seen - 1) / np.maximum(seen, 1) * of.bytes / np.maximum(transfer, 1) * 1e9
    keys = [steps.keys[number] if number >= 0 else (None, None, None) for number in step_of_collective(found, steps)]
    whose = [of.ranks[rank] for rank in (of.rank[found.last].tolist() if len(of.rank) else [])]
    told, aligned = found.told, found.aligned

    def known(values: Int64 | Float64, where: Bool) -> pa.Array:
        return pa.array(values, mask=~np.asarray(where, np.bool_))

    return pa.table(
        {
            "collective": np.arange(count),
            "kind": pa.array(of.kind, pa.string()),
            "op": pa.array(of.op, pa.string()),
            "source": pa.array(of.source, pa.string()),
            "bytes": known(of.bytes, of.bytes >= 0),
            "participants": known(of.expected, of.expected >= 0),
            "seen": seen,
            "method": pa.array([METHODS[number] for number in of.method.tolist()], pa.string()),
            "synchronising": of.synchronising,
            "name": pa.array([key[0] for key in keys], pa.string()),
            "number": pa.array([key[1] for key in keys], pa.int64()),
            "occurrence": pa.array([key[2] for key in keys], pa.int32()),
            "first_start_ns": known(first_start, aligned),
            "last_start_ns": known(last_start, told),
            "first_end_ns": known(first_end, aligned),
            "last_end_ns": known(last_end, aligned),
            "last_host": pa.array(
                [rank.host if t else None for rank, t in zip(whose, told, strict=False)], pa.string()
            ),
            "last_lane": pa.array([rank.lane if t else None for rank, t in zip(whose, told, strict=False)], pa.int32()),
            "late_by_ns": known(found.late_by_ns, told),
            "bound_ns": known(
                np.where(np.isfinite(found.bound_ns), np.ceil(found.bound_ns), 0).astype(np.int64),
                told & np.isfinite(found.bound_ns),
            ),
            "claimed": found.claimed,
            "transfer_ns": known(transfer, told),
            "bus_bytes_per_s": known(rate, told & (of.bytes >= 0) & (factor > 0) & (transfer > 0)),
        }
    )


def participants_table(found: Arrivals) -> pa.Table:
    """One row per participation: when it came and left (fleet time, ns UTC; null where its clock is not known), and how
    long it waited. `sure`: the wait is more than clocks can be wrong by."""
    of = found.collectives
    known = ~found.aligned[of.of] if len(of.of) else np.zeros(0, np.bool_)
    ranks = of.rank.tolist()
    return pa.table(
        {
            "collective": of.of,
            "host": pa.array([of.ranks[rank].host for rank in ranks], pa.string()),
            "lane": pa.array([of.ranks[rank].lane for rank in ranks], pa.int32()),
            "start_ns": pa.array(found.start_ns, mask=known),
            "end_ns": pa.array(found.end_ns, mask=known),
            "wait_ns": pa.array(found.wait_ns, mask=found.wait_ns < 0),
            "sure": found.waits,
        }
    )


def step_of_collective(found: Arrivals, steps: MatchedSteps) -> list[int]:
    """Per collective the number of its step in ``steps.keys``, -1 for none: that of its first participant with one."""
    of = found.collectives
    out = [-1] * of.count
    for number, rank, step in zip(of.of.tolist()[::-1], of.rank.tolist()[::-1], of.step.tolist()[::-1], strict=True):
        if step >= 0:
            out[number] = steps.of_process[of.ranks[rank].process][step]
    return out
