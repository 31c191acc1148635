"""What being recorded costs the steps: their time inside the recording against that before and after it.

The program measured both itself (xprof_py/observer.py, from a step's start to the next one's). The ratio is of medians,
so that a compile among the steps before does not count; the test is on ranks (significance.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xprof_py.postprocess.rules.significance import Float64, rank_sum_p

SLOWER = 1.05
"""From this ratio on, if it is no chance, a warning says so: shares of a step then speak of a slower program."""
CHANCE = 0.01


def observer_summary(processes: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The summary's ``observer``: of the process that recording slowed down most; None where none saw steps outside.

    step_ms_before, _inside, _after: medians, None without steps. ratio: inside to before and after together, None
    without either. p: that the two are one distribution (1 below five steps). slower: ratio >= SLOWER and p < CHANCE.
    dropped: annotations that the recorder dropped.
    """
    found = [row for row in map(_of_process, processes) if row is not None]
    if not found:
        return None
    return max(found, key=lambda row: (row["ratio"] or 0.0, row["host"]))


def observer_notes(observer: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Diagnostics: a warning where recording made the steps slower."""
    if observer is None or not observer["slower"]:
        return []
    outside = observer["steps_before"] + observer["steps_after"]
    message = (
        f"steps took {observer['ratio']:.2f} times as long while they were recorded (median "
        f"{observer['step_ms_inside']:.3g} ms of {observer['steps_inside']} steps, against {outside} outside): "
        "shares are those of the slower program. Record less: `stacks=False`, or XPROF_PY_HOST_TRACER_LEVEL=1"
    )
    row = {"severity": "warning", "code": "observer_effect", "file": observer["host"], "place": "", "count": 1}
    return [{**row, "message": message}]


def _of_process(process: Mapping[str, Any]) -> dict[str, Any] | None:
    times = process.get("observer")
    if not isinstance(times, Mapping):
        return None
    before, inside, after = (_samples(times.get(f"{stage}_ns")) for stage in ("before", "inside", "after"))
    if not len(before) + len(inside) + len(after):
        return None
    outside = np.concatenate((before, after))
    ratio = float(np.median(inside) / np.median(outside)) if len(inside) and len(outside) else None
    p = rank_sum_p(outside, inside)
    recorder = (process.get("overhead") or {}).get("recorder")
    return {
        "host": process["host"],
        "name": str(times.get("name") or ""),
        "step_ms_before": _median_ms(before),
        "step_ms_inside": _median_ms(inside),
        "step_ms_after": _median_ms(after),
        "steps_before": len(before),
        "steps_inside": len(inside),
        "steps_after": len(after),
        "ratio": ratio,
        "p": p,
        "slower": ratio is not None and ratio >= SLOWER and p < CHANCE,
        "dropped": recorder.get("dropped") if isinstance(recorder, Mapping) else None,
    }


def _samples(values: object) -> Float64:
    known = values if isinstance(values, list) else []
    return np.array([v for v in known if isinstance(v, int) and not isinstance(v, bool) and v > 0], np.float64)


def _median_ms(samples: Float64) -> float | None:
    return float(np.median(samples)) / 1e6 if len(samples) else None
