"""Curves made of curves: a clock over another to the reference, and probes and collectives of one clock together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from xprof_py.postprocess.clocks.bounds import Float64
from xprof_py.postprocess.clocks.curve import Curve, Jump, Piece

BEND_NS_PER_S = 1000.0
"""How far a quartz may leave its line per second beyond the last bound: 1 ppm, more than temperature does."""
CLEAR_S = 2e-9


def flat_curve(origin_ns: int, begin_s: float, end_s: float) -> Curve:
    """The reference's own: zero, certain."""
    zero = np.zeros(2)
    return Curve(origin_ns, 0, (Piece(begin_s, end_s, np.array([begin_s, end_s]), zero, zero, zero, 1, 0.0),))


def seen_through(curve: Curve, other: Curve) -> Curve:
    """A clock against the reference: ``curve`` is the clock against another, ``other`` that one against the reference.

    theta(t) = curve(t) + other(t - curve(t)); the intervals add.
    """

    def on_other(t_s: Float64) -> Float64:
        shown_ns = t_s * 1e9 - curve.values(t_s)
        return (shown_ns + (curve.origin_ns - curve.base_ns - other.origin_ns)) / 1e9

    def back(t_s: float) -> float:
        here = t_s + (other.origin_ns + curve.base_ns - curve.origin_ns) / 1e9
        for _ in range(3):
            here += t_s - float(on_other(np.array([here]))[0])
        return here

    jumps = [*curve.jumps, *(Jump(back(j.at_s), back(j.begin_s), back(j.end_s)) for j in other.jumps)]
    knots = [piece.knot_s for piece in curve.pieces]
    knots += [np.array([back(float(t)) for t in piece.knot_s]) for piece in other.pieces]

    def read(t_s: Float64) -> tuple[Float64, Float64, Float64]:
        there = on_other(t_s)
        # The other is read at a time that is itself uncertain: its rate times that is far below a nanosecond.
        low, high = _without_jumps(curve).extremes(t_s)
        other_low, other_high = _without_jumps(other).extremes(there)
        return curve.values(t_s) + other.values(there), low + other_low, high + other_high

    return _made(curve, curve.base_ns + other.base_ns, read, np.concatenate(knots), jumps)


def _without_jumps(curve: Curve) -> Curve:
    """Its pieces, not widened around jumps: the curve that is made of it keeps the jumps and widens there itself."""
    return replace(curve, jumps=())


def _made(
    curve: Curve,
    base_ns: int,
    read: Callable[[Float64], tuple[Float64, Float64, Float64]],
    knots: Float64,
    jumps: Sequence[Jump],
) -> Curve:
    """A curve over the span of another, from a function of time that gives value, low and high beyond ``base_ns``."""
    begin_s, end_s = curve.pieces[0].begin_s, curve.pieces[-1].end_s
    jumps = sorted((jump for jump in jumps if begin_s < jump.at_s < end_s), key=lambda jump: jump.at_s)
    cuts = [begin_s, *(jump.at_s for jump in jumps), end_s]
    pieces = []
    for low_s, high_s in itertools.pairwise(cuts):
        at = np.unique(np.concatenate(([low_s], knots[(knots > low_s) & (knots < high_s)], [high_s])))
        # Read clear of the jumps themselves, whose times went through roundings.
        value, low, high = read(np.clip(at, low_s + CLEAR_S, high_s - CLEAR_S))
        pieces.append(
            Piece(
                low_s,
                high_s,
                at,
                value,
                low,
                high,
                max(piece.windows for piece in curve.pieces),
                max(piece.noise_ns for piece in curve.pieces),
            )
        )
    return Curve(curve.origin_ns, base_ns, tuple(pieces), tuple(jumps))


def apart(curve: Curve, other: Curve) -> Curve:
    """``curve`` less ``other`` of the same axis, with the jumps of both and no certified interval."""

    def read(t_s: Float64) -> tuple[Float64, Float64, Float64]:
        everywhere = np.full(len(t_s), np.inf)
        return curve.values(t_s) - other.values(t_s), -everywhere, everywhere

    knots = np.concatenate([piece.knot_s for piece in (*curve.pieces, *other.pieces)])
    return _made(curve, curve.base_ns, read, knots, [*curve.jumps, *other.jumps])


def widened_beyond(curve: Curve, first_s: float, last_s: float) -> Curve:
    """The interval grown by BEND_NS_PER_S where no bound is near: before the first and after the last."""

    def read(t_s: Float64) -> tuple[Float64, Float64, Float64]:
        grown = BEND_NS_PER_S * np.maximum(np.maximum(first_s - t_s, t_s - last_s), 0.0)
        low, high = _without_jumps(curve).extremes(t_s)
        return curve.values(t_s), low - grown, high + grown

    knots = np.concatenate([*(piece.knot_s for piece in curve.pieces), [first_s, last_s]])
    return _made(curve, curve.base_ns, read, knots, curve.jumps)


def widened(curve: Curve, by_ns: float) -> Curve:
    """The interval grown by ``by_ns`` on both sides."""
    pieces = (replace(p, low_ns=p.low_ns - by_ns, high_ns=p.high_ns + by_ns) for p in curve.pieces)
    return replace(curve, pieces=tuple(pieces))


def carried_on(probes: Curve, collectives: Curve, first_s: float, last_s: float, at_s: Float64) -> Curve:
    """Probes from ``first_s`` to ``last_s`` (seconds of ``probes``), beyond them the collectives.

    The collectives are shifted by the mean of what they differ from the probes at ``at_s``, times within the probes'
    stretch: what makes one host's collectives shorter than another's is so taken out. Intervals are what both allow;
    where they contradict one another (a bend that neither saw), what either allows.
    """
    moved_s = (probes.origin_ns - collectives.origin_ns) / 1e9
    moved_ns = collectives.base_ns - probes.base_ns

    def on_collectives(t_s: Float64) -> Float64:
        return collectives.values(t_s + moved_s) + moved_ns

    shift = float(np.mean(probes.values(at_s) - on_collectives(at_s)))

    def read(t_s: Float64) -> tuple[Float64, Float64, Float64]:
        value = np.where((t_s < first_s) | (t_s > last_s), on_collectives(t_s) + shift, probes.values(t_s))
        low, high = _without_jumps(probes).extremes(t_s)
        other_low, other_high = (side + moved_ns for side in _without_jumps(collectives).extremes(t_s + moved_s))
        both_low, both_high = np.maximum(low, other_low), np.minimum(high, other_high)
        agree = both_low <= both_high
        low = np.where(agree, both_low, np.minimum(low, other_low))
        high = np.where(agree, both_high, np.maximum(high, other_high))
        return value, low, high

    knots = [piece.knot_s for piece in probes.pieces] + [piece.knot_s - moved_s for piece in collectives.pieces]
    edges = np.array([first_s, np.nextafter(first_s, -np.inf), last_s, np.nextafter(last_s, np.inf)])
    jumps = [Jump(j.at_s - moved_s, j.begin_s - moved_s, j.end_s - moved_s) for j in collectives.jumps]
    # Both see a jump of the clock: the one that the probes saw is the sharper.
    for jump in probes.jumps:
        jumps = [other for other in jumps if other.end_s < jump.begin_s or other.begin_s > jump.end_s]
    return _made(probes, probes.base_ns, read, np.concatenate([*knots, edges]), [*probes.jumps, *jumps])
