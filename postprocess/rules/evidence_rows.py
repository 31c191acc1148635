"""The rows that stand behind a verdict: what a person can look up, with the source line where it is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from xprof_py.postprocess.rules.recompile_words import causes_text, step_list
from xprof_py.postprocess.rules.wording import counted, duration, times
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES

MOST_ROWS = 6


def rows_by_class(
    *,
    gaps: Any,
    ops: Any,
    spans: Any,
    compiles: Any,
    recompiles: Any,
    phases: Sequence[str],
    steps: int,
    lanes: int,
    whole_s: float,
    first: Mapping[str, list[dict[str, Any]]],
) -> dict[str, list[dict[str, Any]]]:
    """Evidence per class from the finished tables evidence, top_ops, host_spans, compile_times and recompiles.

    ``phases``: those that the shares are taken over; ``steps``: how many steps that is; ``lanes``: how many lanes the
    tables sum over; ``whole_s``: seconds of all these windows, mean over lanes. Shares are of ``whole_s``.
    ``first``: rows that stand before the others of their class.
    """
    out: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, rows in first.items():
        out[name] += rows
    for name in ("input", "checkpoint"):
        out[name] += _span_rows(spans, name)
    out["compiler"] += _compile_rows(compiles, recompiles, phases)
    for name in BUSY_CLASSES:
        out[name] += _op_rows(ops, name, lanes, whole_s)
    for name in CLASSES[len(BUSY_CLASSES) :]:
        out[name] += _gap_rows(gaps, name, phases, steps, lanes, whole_s)
    return {name: rows[:MOST_ROWS] for name, rows in out.items()}


def evidence_row(what: str, text: str, seconds: float | None, **more: Any) -> dict[str, Any]:
    """One row of evidence; what is not in ``more`` is None."""
    empty = dict.fromkeys(("share", "step", "source", "span", "function", "op", "count", "per_step_ms"))
    return {"what": what, "text": text, "seconds": seconds, **empty, **more}


def _span_rows(spans: Any, kind: str) -> list[dict[str, Any]]:
    words = (
        ("wait for the next batch", "waits for the next batch")
        if kind == "input"
        else ("save or restore", "saves or restores")
    )
    out = []
    for row in spans.to_pylist():
        if row["kind"] != kind or not row["count"]:
            continue
        seconds = row["total_ps"] / 1e12
        many = f"{counted(row['count'], *words)} in `{row['name']}`"
        text = f"{many}, {duration(seconds / row['count'])} each, longest {duration(row['longest_ps'] / 1e12)}"
        out.append(
            evidence_row(
                "span",
                text,
                seconds,
                source=row["source"] or None,
                span=row["name"],
                count=row["count"],
            )
        )
    return out


def _compile_rows(compiles: Any, recompiles: Any, phases: Sequence[str]) -> list[dict[str, Any]]:
    """Per function: how often it was compiled in the steps that count, in which, and what had changed."""
    found: dict[str, dict[str, Any]] = {}
    for row in compiles.to_pylist():
        if row["phase"] not in phases:
            continue
        entry = found.setdefault(row["function"], {"count": 0, "ps": 0, "compile_ps": 0, "steps": set()})
        entry["ps"] += row["total_ps"]
        if row["stage"] == "compile":
            entry["count"] += row["count"]
            entry["compile_ps"] += row["total_ps"]
            entry["steps"].add(row["step_number"])
    again: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in recompiles.to_pylist():
        if row["phase"] in phases:
            again[row["function"]].append(row)
    out = []
    for function, entry in sorted(found.items(), key=lambda pair: (-pair[1]["compile_ps"], pair[0])):
        if not entry["count"]:
            continue
        numbers = sorted(entry["steps"])
        name = f"`{function}`" if function else "a function that the trace does not name"
        why = causes_text(again[function], entry["count"])
        text = (
            f"{name} was compiled {times(entry['count'])} in {step_list(numbers)}{why}{';' if why else ':'} "
            f"{duration(entry['compile_ps'] / 1e12)} in the compiler, {duration(entry['ps'] / 1e12)} with tracing and "
            f"lowering"
        )
        sources = sorted({row["source"] for row in again[function] if row["source"]})
        out.append(
            evidence_row(
                "compile",
                text,
                entry["ps"] / 1e12,
                source=sources[0] if len(sources) == 1 else None,
                function=function or None,
                count=entry["count"],
                step=numbers[0],
            )
        )
    return out


def _op_rows(ops: Any, class_name: str, lanes: int, whole_s: float) -> list[dict[str, Any]]:
    out = []
    for row in ops.to_pylist():
        if row["class"] != class_name:
            continue
        seconds = row["total_ps"] / 1e12 / max(lanes, 1)
        place = f" at {row['source']}" if row["source"] else ""
        of = f" of `{row['program']}`" if row["program"] else ""
        each = f"{times(row['count'])}, {duration(row['mean_ps'] / 1e12)} each"
        text = f"{row['opcode'] or 'op'} `{row['op']}`{of}{place}: {each}"
        out.append(
            evidence_row(
                "op",
                text,
                seconds,
                share=seconds / whole_s if whole_s else None,
                source=row["source"] or None,
                op=row["op"],
                count=row["count"],
            )
        )
        if len(out) == MOST_ROWS:
            break
    return out


def _gap_rows(
    gaps: Any, cause: str, phases: Sequence[str], steps: int, lanes: int, whole_s: float
) -> list[dict[str, Any]]:
    merged: dict[tuple[str, str], list[int]] = {}
    for row in gaps.to_pylist():
        if row["cause"] == cause and row["phase"] in phases:
            entry = merged.setdefault((row["evidence"], row["source"]), [0, 0])
            entry[0] += row["length_ps"]
            entry[1] += row["pieces"]
    out = []
    for (evidence, source), (length_ps, pieces) in sorted(merged.items(), key=lambda pair: (-pair[1][0], pair[0]))[
        :MOST_ROWS
    ]:
        seconds = length_ps / 1e12 / max(lanes, 1)
        text = f"the device waited {duration(seconds)} in {counted(pieces, 'gap', 'gaps')}: {evidence}"
        out.append(
            evidence_row(
                "gap",
                text,
                seconds,
                share=seconds / whole_s if whole_s else None,
                source=source or None,
                span=evidence,
                count=pieces,
                per_step_ms=seconds / steps * 1000 if steps else None,
            )
        )
    return out
