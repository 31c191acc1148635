"""What the step chart draws: the table ``step_classes`` as compact columns, one series per lane and their mean.

Times are whole nanoseconds per window, which a browser's double holds exactly up to 104 days. Classes that are zero
in a whole series are left out, so that a program that uses three classes costs three columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.schema import CLASSES
from xprof_py.viewers.class_words import PHASES
from xprof_py.viewers.fields import Fields, number, rows, text

MAX_STEPS: Final = 50_000
"""Steps drawn of one lane; a browser keeps up with this many."""
MAX_WINDOWS: Final = 120_000
"""Windows drawn over all lanes: about 5 MB of page. Lanes beyond it are named as left out."""

_PS_PER_NS: Final = 1000
# Where lanes disagree on a step's phase, their mean shows the one that most needs a look.
_PHASE_RANK: Final = ("outlier", "partial", "warmup", "unmeasured", "steady")


def chart_series(table: pa.Table | None, summary: Fields) -> dict[str, Any]:
    """Columns for the step chart.

    Args:
        table: ``step_classes`` (schema.TABLES), or None. Rows of kind head and tail are not steps and are left out.
        summary: for the device names of lanes.

    Returns:
        ``{"series": [...], "left_out": [...]}``, JSON values. A series has ``label`` and, per step in order of start,
        ``number``, ``name`` (index into ``names``), ``occurrence``, ``phase`` (index into ``phases``), ``window`` (ns)
        and ``classes`` {class: ns}; ``reasons`` {row: why the phase}. ``left_out`` says in words what is not drawn.
    """
    if table is None or table.num_rows == 0:
        return {"series": [], "left_out": []}
    steps = table.filter(pc.equal(table["kind"], "step"))
    if steps.num_rows == 0:
        return {"series": [], "left_out": []}
    steps = steps.sort_by([("host", "ascending"), ("lane", "ascending"), ("start_ps", "ascending")])
    hosts = steps["host"].to_pylist()
    lanes = steps["lane"].to_numpy()
    edges = [0, *(i for i in range(1, len(hosts)) if hosts[i] != hosts[i - 1] or lanes[i] != lanes[i - 1]), len(hosts)]
    spans = [(begin, end) for begin, end in pairwise(edges) if end > begin]

    devices = {(text(row, "host"), number(row, "lane")): text(row, "device") for row in rows(summary, "lanes")}
    several_hosts = len(set(hosts)) > 1
    series, left_out, drawn, hidden_lanes = [], [], 0, 0
    if len(spans) > 1:
        mean = _mean_of_lanes(steps, spans)
        mean["label"] = f"Mean of {len(spans)} lanes"
        series.append(mean)
    for begin, end in spans:
        if end - begin > MAX_STEPS:
            left_out.append(
                f"{hosts[begin]}, lane {lanes[begin]}: the first {MAX_STEPS:,} of {end - begin:,} steps are drawn"
            )
            end = begin + MAX_STEPS
        if drawn and drawn + end - begin > MAX_WINDOWS:
            hidden_lanes += 1
            continue
        drawn += end - begin
        one = _lane_series(steps.slice(begin, end - begin))
        device = devices.get((hosts[begin], float(lanes[begin])), "")
        place = f"{hosts[begin]} · lane {lanes[begin]}" if several_hosts or not device else f"lane {lanes[begin]}"
        one["label"] = f"{place} · {device}" if device else place
        series.append(one)
    if hidden_lanes:
        left_out.append(
            f"{hidden_lanes:,} of {len(spans):,} lanes are in the mean but have no picture of their own here"
        )
    return {"series": series, "left_out": left_out}


def _nanoseconds(column: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Picoseconds rounded to nanoseconds."""
    picoseconds: np.ndarray[Any, np.dtype[np.int64]] = column.to_numpy().astype(np.int64)
    return (picoseconds + _PS_PER_NS // 2) // _PS_PER_NS


def _class_columns(steps: pa.Table) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    columns = {name: _nanoseconds(steps[f"{name}_ps"]) for name in CLASSES if f"{name}_ps" in steps.column_names}
    return {name: column for name, column in columns.items() if column.any()}


def _named(steps: pa.Table) -> tuple[list[str], list[int]]:
    encoded = steps["name"].combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_pylist()


def _phase_index(phase: str) -> int:
    return PHASES.index(phase) if phase in PHASES else PHASES.index("unmeasured")


def _lane_series(steps: pa.Table) -> dict[str, Any]:
    names, name = _named(steps)
    return {
        "names": names,
        "name": name,
        "number": steps["number"].to_pylist(),
        "occurrence": [occurrence or 0 for occurrence in steps["occurrence"].to_pylist()],
        "phase": [_phase_index(phase) for phase in steps["phase"].to_pylist()],
        "reasons": {str(i): reason for i, reason in enumerate(steps["reason"].to_pylist()) if reason},
        "window": _nanoseconds(steps["window_ps"]).tolist(),
        "classes": {name: column.tolist() for name, column in _class_columns(steps).items()},
    }


def _mean_of_lanes(steps: pa.Table, spans: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The mean over the lanes that have a step, for each step (name, number, occurrence), as the lanes saw it."""
    keys = list(
        zip(
            steps["name"].to_pylist(),
            steps["number"].to_pylist(),
            steps["occurrence"].to_pylist(),
            strict=True,
        )
    )
    # The place of a step is the earliest that any lane gives it: lanes of one job run the same steps in the same order.
    place: dict[tuple[Any, ...], int] = {}
    for begin, end in spans:
        for i in range(begin, end):
            place[keys[i]] = min(place.get(keys[i], i - begin), i - begin)
    ordered = sorted(place, key=lambda key: (place[key], str(key[0]), key[1] or 0))[:MAX_STEPS]
    row_of = {key: row for row, key in enumerate(ordered)}
    kept = np.array([i for i, key in enumerate(keys) if key in row_of], dtype=np.int64)
    target = np.array([row_of[keys[i]] for i in kept], dtype=np.int64)
    lanes_with_step = np.bincount(target, minlength=len(ordered))

    def mean(column: np.ndarray[Any, np.dtype[np.int64]]) -> list[int]:
        total = np.zeros(len(ordered), dtype=np.int64)
        np.add.at(total, target, column[kept])
        means: list[int] = (total // lanes_with_step).tolist()
        return means

    phases = steps["phase"].to_pylist()
    reasons = steps["reason"].to_pylist()
    worst: list[tuple[int, int]] = [(len(_PHASE_RANK), 0)] * len(ordered)
    for i, row in zip(kept.tolist(), target.tolist(), strict=True):
        rank = _PHASE_RANK.index(phases[i]) if phases[i] in _PHASE_RANK else len(_PHASE_RANK) - 2
        worst[row] = min(worst[row], (rank, i))
    names = sorted({key[0] for key in ordered})
    return {
        "names": names,
        "name": [names.index(key[0]) for key in ordered],
        "number": [key[1] for key in ordered],
        "occurrence": [key[2] or 0 for key in ordered],
        "phase": [_phase_index(_PHASE_RANK[rank]) for rank, _ in worst],
        "reasons": {str(row): reasons[i] for row, (_, i) in enumerate(worst) if reasons[i]},
        "window": mean(_nanoseconds(steps["window_ps"])),
        "classes": {name: mean(column) for name, column in _class_columns(steps).items()},
    }
