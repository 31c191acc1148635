"""What changed between two runs, and whether it is more than chance: step time, classes and causes, ops.

The difference of a number is that of its medians over the steady steps of both runs. It counts as changed where a rank
test of the step distributions (rules.significance), corrected for the number of classes or ops tested, allows a false
discovery rate of RATE, and where it is worth telling: LEAST_RELATIVE of itself, and for a class LEAST_OF_STEP of the
step. Classes and ops that take less than TESTED_FROM of the step in both runs are not tested.

Two runs of one program also differ as runs: another process, other neighbours on the machine, another clock. For ops
the pair itself shows how much: all ops of a program together say what such a pair does to an op. So an op must also
stand out, by APART robust standard deviations, from the changes of all ops (an empirical null: Efron, Journal of the
American Statistical Association 99 (2004) 96). For the step and its classes one pair cannot show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from xprof_py.errors import UsageError, XprofPyError
from xprof_py.postprocess.rules.comparability import comparability_warnings
from xprof_py.postprocess.rules.power_words import energy_difference
from xprof_py.postprocess.rules.significance import (
    FEWEST,
    adjusted,
    least_p,
    median_difference_interval,
    rank_sum_p,
)
from xprof_py.postprocess.rules.steady_steps import Op, SteadySteps, matched_ops, names_by_time, read_steady_steps
from xprof_py.postprocess.rules.wording import counted, duration
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES

Float64 = NDArray[np.float64]

RATE = 0.01
"""False discovery rate. One in a hundred, because a comparison that cries wolf is switched off."""
LEAST_RELATIVE = 0.01
"""Of the number itself: clocks, caches and the place of buffers in memory move a step by as much for no cause."""
LEAST_OF_STEP = 0.005
"""Of the step: a class that moves it by less is no reason to act."""
TESTED_FROM = 0.001
"""Of the step: below it nobody would act whatever happens."""
APART = 5.0
"""Robust standard deviations; as many as make a step an outlier (docs/breakdown.md)."""
ENOUGH_OPS = 10
"""From which the changes of all ops say how much runs differ; below, the rank test stands alone."""
INTERVALS = 50
"""Changed ops that get an interval: resampling thousands of them would take longer than anything else here."""
OCCASIONAL = 0.02
"""Of the mean step: from which a class is told that only some steps have more of, though no median shows it."""


@dataclass(frozen=True)
class Limit:
    """How much longer something may get. ``what``: "step", a class, or "op" for any one op; ``share``: of itself."""

    what: str
    share: float


def read_limit(text: str) -> Limit:
    """``5%``, ``compute=10%``, ``op=20%`` or ``step=0.05`` as a Limit. Raises UsageError for anything else."""
    what, equals, amount = text.rpartition("=")
    what = what.strip() if equals else "step"
    if what not in ("step", "op", *CLASSES):
        raise UsageError(f"{text!r}: {what!r} is neither step nor op nor one of {', '.join(CLASSES)}")
    number = amount.strip()
    try:
        share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"{text!r} is no threshold: write 5% or compute=5%") from None
    if not 0 <= share < float("inf"):
        raise UsageError(f"{text!r} is no threshold: it must not be negative")
    return Limit(what, share)


def compare_runs(
    summary_a: Mapping[str, Any],
    tables_a: Mapping[str, pa.Table],
    summary_b: Mapping[str, Any],
    tables_b: Mapping[str, pa.Table],
    *,
    name: str | None = None,
    limits: Sequence[Limit] = (),
) -> dict[str, Any]:
    """Compare two analysed runs, A before and B after; the object that `diff --json` prints.

    ``name``: of the steps to compare; None takes the one with the most time in A that both have. Raises XprofPyError
    where the runs have no steady steps in common, UsageError where ``name`` is not among them.
    """
    names_a, names_b = names_by_time(tables_a), names_by_time(tables_b)
    both = [found for found in names_a if found in names_b]
    if not both:
        raise XprofPyError(f"nothing to compare: {_without_steps(names_a, names_b)}")
    if name is not None and name not in both:
        raise UsageError(f"no steady steps called {name!r} in both runs; there are {', '.join(both)}")
    chosen = name if name is not None else both[0]
    found = compare_steps(read_steady_steps(tables_a, chosen), read_steady_steps(tables_b, chosen), limits=limits)
    found["energy"] = energy_difference(summary_a, summary_b, chosen)
    found["warnings"] = [*comparability_warnings(summary_a, summary_b), *found["warnings"]]
    left_out = sorted({*names_a, *names_b} - {chosen})
    if left_out:
        found["warnings"].append(
            _warning("other_steps", f"steps of other names are not compared: {', '.join(left_out)}")
        )
    return found


def compare_steps(a: SteadySteps, b: SteadySteps, *, limits: Sequence[Limit] = ()) -> dict[str, Any]:
    """Compare two samples of steady steps; as compare_runs, without what only the summaries know."""
    whole = _Pair("step", a.name, a.step_ps, b.step_ps)
    step = _rows([whole], a, b)[0]
    _add_interval(step, whole)
    present = [code for code in range(len(CLASSES)) if a.class_ps[code].any() or b.class_ps[code].any()]
    parts = [_Pair("class", CLASSES[code], a.class_ps[code], b.class_ps[code]) for code in present]
    classes = _rows(parts, a, b)
    for row, part in zip(classes, parts, strict=True):
        _add_interval(row, part)
        row["kind"] = "class" if row["name"] in BUSY_CLASSES else "cause"
    pairs, untested = _op_pairs(a, b)
    ops = _rows(pairs, a, b)
    for row, pair in zip(ops, pairs, strict=True):
        row |= _described(pair)
    together = _hold_back(ops)
    order = sorted(range(len(ops)), key=lambda i: _op_order(ops[i]))
    for i in order[:INTERVALS]:
        if ops[i]["changed"]:
            _add_interval(ops[i], pairs[i])
    ops = [ops[i] for i in order]
    checks = [_check(limit, step, classes, ops) for limit in limits]
    return {
        "schema_version": 1,
        "step_name": a.name,
        "steps": {"a": len(a), "b": len(b)},
        "sentence": _sentence(step, a, b),
        "step": step,
        "classes": classes,
        "ops": ops,
        "ops_below_threshold": untested,
        "ops_together": together,
        "occasional": _occasional(a, b, classes),
        "limits": checks,
        "regression": any(check["exceeded"] for check in checks),
        "warnings": [*_sample_warnings(a, b, len(ops)), *_unquiet(together)],
    }


@dataclass(frozen=True)
class _Pair:
    """One number of both runs, per step in ps. ``ops``: of A and B, None where the run does not have it."""

    kind: str
    name: str
    a_ps: Float64
    b_ps: Float64
    ops: tuple[Op | None, Op | None] = (None, None)


def _op_pairs(a: SteadySteps, b: SteadySteps) -> tuple[list[_Pair], int]:
    """(ops that are worth a test, number of the others)."""
    least_ps = TESTED_FROM * _shorter_ps(a, b)
    pairs, untested = [], 0
    for left, right in matched_ops(a, b):
        op_a, op_b = a.ops[left] if left >= 0 else None, b.ops[right] if right >= 0 else None
        a_ps = a.op_ps[left] if op_a else np.zeros(len(a))
        b_ps = b.op_ps[right] if op_b else np.zeros(len(b))
        if max(np.median(a_ps), np.median(b_ps)) < least_ps:
            untested += 1
            continue
        shown = op_b or op_a
        pairs.append(_Pair("op", shown.op if shown else "", a_ps, b_ps, (op_a, op_b)))
    return pairs, untested


def _shorter_ps(a: SteadySteps, b: SteadySteps) -> float:
    """The median step of the run where it is shorter."""
    return min(float(np.median(a.step_ps)), float(np.median(b.step_ps)))


def _rows(pairs: Sequence[_Pair], a: SteadySteps, b: SteadySteps) -> list[dict[str, Any]]:
    """One row per pair, without its interval. Times in ms; ``relative`` is null where A has none of it."""
    if not pairs:
        return []
    shorter_ps = _shorter_ps(a, b)
    least_ps = TESTED_FROM * shorter_ps
    tested = np.array([max(np.median(pair.a_ps), np.median(pair.b_ps)) >= least_ps for pair in pairs])
    p = np.array([rank_sum_p(pair.a_ps, pair.b_ps) if use else 1.0 for pair, use in zip(pairs, tested, strict=True)])
    q = np.ones(len(pairs))
    q[tested] = adjusted(p[tested])
    rows = []
    for i, pair in enumerate(pairs):
        median_a, median_b = float(np.median(pair.a_ps)), float(np.median(pair.b_ps))
        difference = median_b - median_a
        significant = bool(q[i] <= RATE)
        moves_step = pair.kind != "class" or abs(difference) >= LEAST_OF_STEP * shorter_ps
        worth = difference != 0 and abs(difference) >= LEAST_RELATIVE * median_a and moves_step
        rows.append(
            {
                "kind": pair.kind,
                "name": pair.name,
                "a_ms": median_a / 1e9,
                "b_ms": median_b / 1e9,
                "a_mean_ms": float(np.mean(pair.a_ps)) / 1e9,
                "b_mean_ms": float(np.mean(pair.b_ps)) / 1e9,
                "difference_ms": difference / 1e9,
                "low_ms": None,
                "high_ms": None,
                "relative": difference / median_a if median_a > 0 else None,
                "p": float(p[i]),
                "q": float(q[i]),
                "significant": significant and moves_step,
                "changed": significant and worth,
            }
        )
    return rows


def _add_interval(row: dict[str, Any], pair: _Pair) -> None:
    low, high = median_difference_interval(pair.a_ps, pair.b_ps)
    row["low_ms"], row["high_ms"] = low / 1e9, high / 1e9


def _op_order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What changed first, by how much."""
    return (not row["changed"], -abs(row["difference_ms"]), row["program"], row["op_name"], row["op"])


def _described(pair: _Pair) -> dict[str, Any]:
    op_a, op_b = pair.ops
    op = op_b or op_a
    if op is None:
        raise ValueError("a pair of ops without an op")
    return {
        "op": op.op,
        "op_in_a": op_a.op if op_a else None,
        "op_in_b": op_b.op if op_b else None,
        "class": op.class_name,
        "program": op.program,
        "opcode": op.opcode,
        "source": op.source or None,
        "op_name": op.op_name,
        "rank": op.rank,
    }


def _hold_back(ops: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Takes `significant` and `changed` from ops that do not stand out from the changes of all; what those are.

    ``relative``: of the op in the middle; ``spread``: robust standard deviation of log(b / a), about a relative change.
    None where fewer than ENOUGH_OPS ops ran in both.
    """
    both = [row for row in ops if row["a_ms"] > 0 and row["b_ms"] > 0]
    if len(both) < ENOUGH_OPS:
        return None
    change = np.log([row["b_ms"] / row["a_ms"] for row in both])
    middle = float(np.median(change))
    # 1.4826 makes the median absolute deviation the standard deviation of a normal distribution.
    spread = 1.4826 * float(np.median(np.abs(change - middle)))
    held = 0
    for row, apart in zip(both, np.abs(change - middle), strict=True):
        if row["significant"] and apart <= APART * spread:
            held += 1
            row["significant"] = row["changed"] = False
    return {"ops": len(both), "relative": float(np.expm1(middle)), "spread": spread, "held_back": held}


def _unquiet(together: Mapping[str, Any] | None) -> list[dict[str, str]]:
    if together is None or not together["held_back"]:
        return []
    middle, spread = f"{together['relative']:+.1%}", f"{together['spread']:.1%}"
    if abs(np.log1p(together["relative"])) > APART * together["spread"]:
        message = (
            f"the ops changed together, by {middle} in the middle and {spread} apart: the machine or the whole "
            f"program, no one op. Only ops that stand out from that are listed"
        )
        return [_warning("together", message)]
    held = counted(together["held_back"], "op differs", "ops differ")
    message = (
        f"{held} by more than chance, but not by more than all ops do between these runs ({middle} in the middle, "
        f"{spread} apart): so do two runs on a busy machine. Record where it is quiet to see smaller changes"
    )
    return [_warning("unquiet", message)]


def _check(
    limit: Limit, step: dict[str, Any], classes: Sequence[dict[str, Any]], ops: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Whether a limit is exceeded, and by what. Only significant growth exceeds one."""
    rows = {"step": [step], "op": ops}.get(limit.what)
    if rows is None:
        rows = [row for row in classes if row["name"] == limit.what]
    over = [row for row in rows if row["significant"] and _grew_over(row, limit.share)]
    return {
        "what": limit.what,
        "limit": limit.share,
        "exceeded": bool(over),
        "by": [{key: row[key] for key in ("kind", "name", "a_ms", "b_ms", "relative")} for row in over],
    }


def _grew_over(row: Mapping[str, Any], share: float) -> bool:
    return bool(row["difference_ms"] > share * row["a_ms"]) and bool(row["difference_ms"] > 0)


def _occasional(a: SteadySteps, b: SteadySteps, classes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Classes that some steps of one run have much more of than any of the other, though no median shows it.

    Much more: twice the other run's most, and half a median step on top. Told where the mean moves by OCCASIONAL of the
    mean step.
    """
    out = []
    least_ms = OCCASIONAL * float(np.mean(a.step_ps)) / 1e9
    for row in classes:
        difference_ms = row["b_mean_ms"] - row["a_mean_ms"]
        more, less, which, other = (b, a, "B", "A") if difference_ms > 0 else (a, b, "A", "B")
        taken = more.class_ps[CLASSES.index(row["name"])]
        limit_ps = 2 * less.class_ps[CLASSES.index(row["name"])].max() + np.median(less.step_ps) / 2
        steps = more.number[taken > limit_ps].tolist()
        if row["changed"] or abs(difference_ms) < least_ms or not steps:
            continue
        text = (
            f"{row['name']}: {counted(len(steps), 'step', 'steps')} of {which} took up to "
            f"{duration(float(taken.max()) / 1e12)} of it, far more than any of {other}; "
            f"{duration(abs(difference_ms) / 1e3)} a step on average"
        )
        out.append(
            {"name": row["name"], "mean_difference_ms": difference_ms, "run": which, "steps": steps, "text": text}
        )
    return out


def _sentence(step: Mapping[str, Any], a: SteadySteps, b: SteadySteps) -> str:
    before, after = duration(step["a_ms"] / 1e3), duration(step["b_ms"] / 1e3)
    counts = f"medians of {len(a)} and {len(b)} steady steps"
    if min(len(a), len(b)) < FEWEST:
        return f"Too few steady steps to tell: {before} before, {after} after ({counts})."
    if not step["changed"]:
        return f"The step time did not change by more than chance: {before} before, {after} after ({counts})."
    way = "longer" if step["difference_ms"] > 0 else "shorter"
    relative = abs(step["relative"])
    low, high = step["low_ms"] / step["a_ms"], step["high_ms"] / step["a_ms"]
    return f"A step is {relative:.1%} {way}: {before} before, {after} after ({low:+.1%} to {high:+.1%}; {counts})."


def _sample_warnings(a: SteadySteps, b: SteadySteps, tests: int) -> list[dict[str, str]]:
    out = []
    if min(len(a), len(b)) < FEWEST:
        message = f"{len(a)} and {len(b)} steady steps: below {FEWEST} on a side no difference can be told from chance"
        out.append(_warning("few_steps", message))
    elif least_p(len(a), len(b)) * tests > RATE:
        message = f"with {len(a)} and {len(b)} steady steps a change of one op among {tests} cannot be told from chance"
        out.append(_warning("few_steps", message))
    if a.lanes != b.lanes:
        out.append(_warning("lanes", f"A ran on {counted(a.lanes, 'lane', 'lanes')}, B on {b.lanes}: means over lanes"))
    return out


def _warning(code: str, message: str) -> dict[str, str]:
    return {"code": code, "message": message}


def _without_steps(names_a: Sequence[str], names_b: Sequence[str]) -> str:
    if not names_a or not names_b:
        which = "neither run has" if not names_a and not names_b else f"{'A' if not names_a else 'B'} has no"
        return f"{which} steady steps".replace("has steady", "has any steady")
    return f"the steady steps of A are called {', '.join(names_a)}, those of B {', '.join(names_b)}"
