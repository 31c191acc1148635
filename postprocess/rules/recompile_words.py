"""Recompiles in words, and as rows of the summary: which argument changed, from what to what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from xprof_py.postprocess.rules.wording import counted, times

MOST_ARGUMENTS = 3
"""How many changed arguments a sentence names."""
MOST_CAUSES = 32
"""How many changed arguments a row of the summary lists; `more_arguments` counts the others."""

_SAME_ARGUMENTS = "same argument shapes and dtypes: a static argument, a closure or a weak type changed"
_SAME_PROGRAM = (
    "same argument shapes and dtypes and the same program: a weak type or an unused argument changed, or jit got a new "
    "function object"
)
_UNKNOWN = "something changed that the profile does not tell: it does not hold both programs"


def cause_text(row: dict[str, Any]) -> str:
    """What changed in one recompile, a row of analyses.recompiles: "`x` changed from f32[32,64] to f32[48,64]"."""
    if row["kind"] == "same_program":
        return _SAME_PROGRAM
    if row["kind"] == "same_arguments":
        result = ""
        if row["result_was"] != row["result_is"]:
            result = f"; its result changed from {row['result_was']} to {row['result_is']}"
        return _SAME_ARGUMENTS + result
    if not row["cause"]:
        return _UNKNOWN
    named = [_change(change) for change in row["cause"][:MOST_ARGUMENTS]]
    rest = len(row["cause"]) - len(named)
    if rest:
        named.append(f"{counted(rest, 'more argument', 'more arguments')} changed")
    return ", ".join(named[:-1]) + " and " + named[-1] if len(named) > 1 else named[0]


def _change(change: dict[str, Any]) -> str:
    if change["was"] is None:
        return f"`{change['argument']}` came in as {change['is']}"
    if change["is"] is None:
        return f"`{change['argument']}` ({change['was']}) went away"
    return f"`{change['argument']}` changed from {change['was']} to {change['is']}"


def causes_text(rows: Sequence[dict[str, Any]], compiles: int) -> str:
    """Why a function was compiled ``compiles`` times, of which ``rows`` are the recompiles: a clause for a sentence.

    Empty without a recompile. Changes of the same arguments are one cause; the most frequent is told, by its first
    change.
    """
    if not rows:
        return ""
    groups = Counter(_group(row) for row in rows)
    first: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    for row in rows:
        first.setdefault(_group(row), row)
    (largest, count), *others = sorted(groups.items(), key=lambda pair: (-pair[1], list(first).index(pair[0])))
    example = first[largest]
    joint = " with the " if largest[0] in ("same_arguments", "same_program") else " because "
    text = joint + cause_text(example)
    if compiles > 1 and example["step_number"] is not None:
        alike = f", and {count - 1} more like it" if count > 1 else ""
        text += f" (step {example['step_number']}{alike})"
    rest = sum(number for _, number in others)
    return text + (f", and {times(rest)} for other reasons" if rest else "")


def _group(row: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    return row["kind"], tuple(change["argument"] for change in row["cause"])


def summary_rows(recompiles: Any, most: int) -> tuple[list[dict[str, Any]], int]:
    """(rows of `compiles.recompiles`, how many were left out) from the finished table of analyses.recompiles.

    Recompiles in steps only. What several hosts did alike in one step is one row: `seconds` and `count` are those of
    the slowest host. The ``most`` longest are kept, in order of step.
    """
    merged: dict[tuple[Any, ...], dict[str, list[int]]] = {}
    examples: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in recompiles.to_pylist():
        if row["step_number"] is None:
            continue
        changes = tuple((change["argument"], change["was"], change["is"]) for change in row["cause"])
        key = (row["step_number"], row["step_name"], row["function"], row["source"], row["kind"], changes)
        cost = merged.setdefault(key, {}).setdefault(row["host"], [0, 0])
        cost[0] += row["total_ps"]
        cost[1] += 1
        examples.setdefault(key, row)
    keys = sorted(merged, key=lambda key: (-max(cost[0] for cost in merged[key].values()), _order(key)))
    out = []
    for key in sorted(keys[:most], key=_order):
        row, (total_ps, count) = examples[key], max(merged[key].values())
        out.append(
            {
                "function": row["function"],
                "source": row["source"] or None,
                "step": row["step_number"],
                "name": row["step_name"],
                "phase": row["phase"],
                "seconds": total_ps / 1e12,
                "count": count,
                "hosts": len(merged[key]),
                "kind": row["kind"],
                "cause": row["cause"][:MOST_CAUSES],
                "more_arguments": max(len(row["cause"]) - MOST_CAUSES, 0),
                "text": cause_text(row),
            }
        )
    return out, len(keys) - len(out)


def _order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*key[:5], str(key[5]))


def step_list(numbers: Sequence[int]) -> str:
    """``step 5``, ``steps 0-7``, ``steps 1, 4 and 6-9``; at most six parts, the rest is counted."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    words = [str(low) if low == high else f"{low}-{high}" for low, high in parts[:6]]
    left = sum(high - low + 1 for low, high in parts[6:])
    if left:
        words.append(f"{left} more")
    listed = ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]
    return f"{'steps' if len(set(numbers)) > 1 else 'step'} {listed}"
