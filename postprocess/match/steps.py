"""Steps across hosts: which step of one is which of another, and which are missing where.

A step is (name, number, occurrence). An occurrence is counted within a capture, and so is the number of an inferred
step: hosts whose captures began at other times count differently. What the collectives of two steps have in common
tells by how much, and the count is moved. Each step then pairs with itself, whatever a host has before or behind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from xprof_py.postprocess.match.collectives import METHODS, Collectives
from xprof_py.postprocess.match.endpoints import Endpoints

StepKey = tuple[str, int, int]


@dataclass(frozen=True)
class MatchedSteps:
    """``keys``: the job's steps, in order of the first host that has each. ``of_process``: per process the number in
    ``keys`` of each of its outermost steps. ``missing``: (step, host, why). ``moved``: per host its own key of a step
    -> the job's."""

    keys: list[StepKey]
    of_process: list[list[int]]
    missing: list[tuple[StepKey, str, str]]
    moved: dict[str, dict[StepKey, StepKey]]


def match_steps(processes: Sequence[Endpoints], collectives: Collectives) -> MatchedSteps:
    """Match the outermost steps of ``processes`` (the ones that ``collectives`` was made of)."""
    own = [
        list(zip(*(p.steps[name].to_pylist() for name in ("name", "number", "occurrence")), strict=True))
        for p in processes
    ]
    inferred = [p.steps["source"].to_pylist()[:1] == ["inferred"] for p in processes]
    shift = _shifts(own, inferred, collectives)
    moved = []
    for number, mine in enumerate(own):
        by = shift[number]
        if inferred[number]:
            moved.append([(name, count + by.get((name, -1), 0), again) for name, count, again in mine])
        else:
            moved.append([(name, count, again + by.get((name, count), 0)) for name, count, again in mine])
    keys = {key: number for number, key in enumerate(_in_one_order(moved))}
    missing = []
    for process, mine in zip(processes, moved, strict=True):
        if not mine:
            continue
        here = set(mine)
        seen = [keys[key] for key in here]
        first, last = min(seen), max(seen)
        for key, number in keys.items():
            if key in here:
                continue
            why = "it was not marked there"
            if number < first:
                why = "its capture began later"
            elif number > last:
                why = "its capture ended before"
            missing.append((key, process.host, why))
    own_to_job = {p.host: dict(zip(own[i], moved[i], strict=True)) for i, p in enumerate(processes)}
    return MatchedSteps(list(keys), [[keys[key] for key in mine] for mine in moved], missing, own_to_job)


def _in_one_order(sequences: Sequence[Sequence[StepKey]]) -> list[StepKey]:
    """Every key once, in an order that each process's steps agree with: what one adds comes behind the key that it
    comes behind there, or before the first one that is known."""
    out: list[StepKey] = []
    for mine in sequences:
        place = {key: at for at, key in enumerate(out)}
        first = next((place[key] for key in mine if key in place), len(out))
        merged: list[StepKey] = out[:first]
        done = first
        for key in mine:
            if key in place:
                # Up to this one; where orders contradict one another the earlier process's holds.
                merged += out[done : max(place[key] + 1, done)]
                done = max(place[key] + 1, done)
            else:
                merged.append(key)
        out = merged + out[done:]
    return out


def _shifts(
    own: list[list[StepKey]], inferred: list[bool], collectives: Collectives
) -> list[dict[tuple[str, int], int]]:
    """Per process what must be added to its counts, by (name, number) for occurrences, (name, -1) for inferred numbers.

    Told by collectives that were matched without steps; by votes, each process against the first that it can be.
    """
    votes: dict[int, dict[tuple[str, int], Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    by_order = METHODS.index("order")
    ranks, of, step = collectives.rank.tolist(), collectives.of.tolist(), collectives.step.tolist()
    reference: dict[int, tuple[int, int]] = {}
    for at, number in enumerate(of):
        process = collectives.ranks[ranks[at]].process
        if step[at] < 0 or (collectives.method[number] == by_order and not inferred[process]):
            continue
        if number not in reference:
            reference[number] = (process, step[at])
            continue
        other, theirs = reference[number]
        if other == process:
            continue
        name, count, occurrence = own[process][step[at]]
        name_there, count_there, occurrence_there = own[other][theirs]
        if name != name_there:
            continue
        if inferred[process] and inferred[other]:
            votes[process][(name, -1)][count_there - count] += 1
        elif count == count_there:
            votes[process][(name, count)][occurrence_there - occurrence] += 1
    return [
        {key: min(found, key=lambda by: (-found[by], abs(by), by)) for key, found in votes[process].items()}
        for process in range(len(own))
    ]
