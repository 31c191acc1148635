"""The periodic structure of a sequence of launches (docs/breakdown.md, "Steps that nobody marked").

The launches of the thread that launches most are a sequence of programs. A program that is launched once per repetition
is an *anchor*: its launches end the steps. With ``A A A A B`` (gradient accumulation) that is B, with ``A B C`` any of
them, with one program (an inference loop) the program itself; where no program comes once in a repetition
(``A A B B``) a program together with those just before it, up to _CONTEXT of them. A program is an anchor if, between
its launches,

1. every other program is launched its usual number of times, in _REGULAR of the repetitions; or
2. usually not at all, and then it is *extra*: the compiled programs say that it hands nothing on (an evaluation, or
   figures for a log, every k-th step: hlo/hand_over.py); or it came in no more than one of five repetitions, and at no
   regular distance (an evaluation now and then), or too rarely for that and the programs say nothing. Any other is
   part of a longer repetition, and this one is rejected.

What lies before the first repetition without extras is warmup and in no step; what is left after the last one neither.
Of the anchors that account for most of the device time the shortest repetition is taken, and of its anchors the one
after which the host is longest without launching or waiting for the device: that is where a loop begins anew.

Limits: with no HLO, an evaluation after every k-th of A, exactly, reads like gradient accumulation and becomes part of
a step k times as long. A loop whose repetitions differ in more than one of five is refused, as is a repetition that
accounts for less than half of the thread's device time. Nothing is invented: where it is refused there are no steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from xprof_py.postprocess.join.columns import Int64

_FEWEST = 4
"""Repetitions below which nothing is called periodic."""
_REGULAR = 0.8
_COVERED = 0.5
_CONTEXT = 4
_MOST_KINDS = 256
"""Distinct programs above which nothing is looked for; also how many anchors are tried, the most frequent ones. It
keeps the search linear in the number of launches."""


@dataclass(frozen=True)
class Period:
    """Repetitions in a sequence of launches.

    ``ends``: shape (k,), places of the last launch of each; ``first``: place of the first launch of the first one.
    ``pattern``: the kinds of one usual repetition, in order. ``extras``: kinds that belong to none.
    """

    ends: Int64
    first: int
    pattern: tuple[int, ...]
    extras: frozenset[int]


@dataclass(frozen=True)
class _Anchor:
    period: Period
    covered: int
    idle: float


HandsOn = Callable[[int, list[int]], bool | None]
"""(rare kind, regular kinds) -> whether its result is state that one of them takes; None where that is not known."""


def find_period(kind: Int64, weight: Int64, idle_after: Int64, hands_on: HandsOn) -> Period | str:
    """The repetition in a sequence of n launches, or why there is none, in words.

    ``kind`` (n,): small whole numbers, equal for launches of one program. ``weight`` (n,): how much each counts (its
    device time). ``idle_after`` (n,): how long the host neither launched nor waited for the device after it.
    """
    if not len(kind) or int(np.bincount(kind).max()) < _FEWEST:
        return f"no program was launched {_FEWEST} times by the thread that launches most"
    if int(kind.max()) >= _MOST_KINDS:
        return f"{int(kind.max()) + 1} different programs were launched"
    found: list[_Anchor] = []
    for context in range(1, _CONTEXT + 1):
        token = _in_context(kind, context)
        times = np.bincount(token[token >= 0])
        for value in np.argsort(-times, kind="stable")[:_MOST_KINDS].tolist():
            if times[value] < _FEWEST:
                break
            anchor = _as_anchor(np.flatnonzero(token == value), kind, weight, idle_after, hands_on)
            if anchor is not None:
                found.append(anchor)
        if found:
            break
    if not found:
        return "the order of the launches does not repeat itself"
    most = max(anchor.covered for anchor in found)
    if most < _COVERED * int(weight.sum()):
        return "what repeats itself in the order of the launches is less than half of the device's work"
    found = [anchor for anchor in found if anchor.covered >= _REGULAR * most]
    shortest = max(len(anchor.period.ends) for anchor in found)
    found = [anchor for anchor in found if len(anchor.period.ends) >= _REGULAR * shortest]
    return min(found, key=lambda anchor: (-anchor.idle, int(anchor.period.ends[0]))).period


def _in_context(kind: Int64, context: int) -> Int64:
    """Per launch one number for it and the ``context`` - 1 launches before it; -1 where there are not as many."""
    token, place = kind, np.arange(len(kind))
    for back in range(1, context):
        # Numbered anew each time: a product of several counts would overflow.
        joined = np.where(place >= back, token * (int(kind.max()) + 1) + np.roll(kind, back), -1)
        token = np.unique(joined, return_inverse=True)[1].reshape(-1) - 1
    return token


def _as_anchor(at: Int64, kind: Int64, weight: Int64, idle_after: Int64, hands_on: HandsOn) -> _Anchor | None:
    """The repetitions that end at the places ``at``; None where that does not divide the launches regularly."""
    # Part i ends with the i-th anchor; before the first and behind the last is no whole repetition.
    part = np.searchsorted(at, np.arange(len(kind)), side="left")
    inside = (part >= 1) & (part < len(at))
    whole = len(at) - 1
    alike, clean = np.ones(whole, np.bool_), np.ones(whole, np.bool_)
    regular: list[int] = []
    rare: list[tuple[int, Int64]] = []
    # (program, part) -> how often; what does not come is in no row.
    pairs, times = np.unique(kind[inside] * whole + part[inside] - 1, return_counts=True)
    values, begin = np.unique(pairs // whole, return_index=True)
    for value, parts, count in zip(
        values.tolist(), np.split(pairs % whole, begin[1:]), np.split(times, begin[1:]), strict=True
    ):
        how_often = np.bincount(count)
        how_often[0] = whole - len(parts)
        usual = int(how_often.argmax())
        if not usual:
            clean[parts] = False
            rare.append((value, parts))
            continue
        as_usual = np.zeros(whole, np.bool_)
        as_usual[parts] = count == usual
        alike &= as_usual
        clean &= as_usual
        regular.append(value)
    for value, parts in rare:
        if not _is_extra(parts, whole, hands_on, value, regular):
            return None
    if not clean.any():
        return None
    first, last = int(np.argmax(clean)), len(alike) - int(np.argmax(alike[::-1]))
    if last - first < _FEWEST - 1 or alike[first:last].mean() < _REGULAR:
        return None
    ends = at[first : last + 1]
    usual_one = first + int(np.argmax(clean[first:last]))
    pattern = tuple(kind[at[usual_one] + 1 : at[usual_one + 1] + 1].tolist())
    first_launch = int(ends[0])
    for wanted in reversed(pattern[:-1]):
        if first_launch == 0 or kind[first_launch - 1] != wanted:
            break
        first_launch -= 1
    extras = frozenset(value for value, _ in rare)
    counted = (part > first) & (part <= last) & ~np.isin(kind, list(extras))
    idle = float(np.median(idle_after[ends[:-1]]))
    return _Anchor(Period(ends, first_launch, pattern, extras), int(weight[counted].sum()), idle)


def _is_extra(parts: Int64, count: int, hands_on: HandsOn, value: int, regular: list[int]) -> bool:
    """Whether a program that comes in ``parts`` of ``count`` repetitions, usually none, is no part of a longer one."""
    told = hands_on(value, regular)
    if told is False:
        return True
    if count - len(parts) < _REGULAR * count:
        return False
    if len(parts) < _FEWEST - 1:
        return told is None
    distance = np.diff(parts)
    return bool((distance == np.bincount(distance).argmax()).mean() < _REGULAR)
