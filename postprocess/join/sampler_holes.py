"""Where the stack sampler did not look, though nothing else says what the time went to: rows of `diagnostics`.

A hole is the time between two neighbouring looks at a sampled thread, or one and an edge of the capture, longer than
HOLE_INTERVALS of its usual intervals, in which lies time that no span explains and that a gap of a device took its
cause from: that is unknown because nobody looked. The sampler looks seldom where its looks cost much (its cost is
bounded), and follows a limited number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from xprof_py.postprocess.join.columns import Int64, integers
from xprof_py.postprocess.join.intervals import Intervals
from xprof_py.postprocess.profile import Profile

HOLE_INTERVALS = 5
USUAL_PERIOD_NS = 10_000_000
"""Between two looks where their cost allows it (collectors/stacks.py); a test holds the two together."""
NAMED = 8
"""Holes that are listed one by one, the longest first."""

Stretches = Mapping[int, Intervals]
"""Per thread (start_ps, end_ps) of host time that no span explained and no sample fell into."""


def diagnostics(profile: Profile, thread_of_line: Int64, stretches: Stretches) -> list[dict[str, Any]]:
    """Rows for holes, threads left out, looks that came seldom, told nothing or took the GIL; none without samples.

    ``stretches``: what gaps with an unknown cause rest on; ``thread_of_line`` per line of ``profile``.
    """
    run = profile.metadata.get("run") or {}
    totals = (run.get("overhead") or {}).get("stacks") or {}
    holes = _holes(profile, thread_of_line, stretches)
    rows = [_hole_row(profile, thread, found, totals) for thread, found in holes]
    takes_gil = ((run.get("collectors") or {}).get("stacks") or {}).get("takes_gil")
    if takes_gil:
        message = f"stacks were looked at with Python's lock, which costs more, so less often: {takes_gil}"
        rows.append(_row(profile, "sampler_takes_gil", "", 1, message, "note"))
    torn = int(totals.get("torn") or 0)
    if torn:
        message = "looks at a stack that changed each time it was read: they tell nothing"
        rows.append(_row(profile, "sampler_torn", "", torn, message, "note"))
    left_out = int(totals.get("threads_left_out") or 0)
    if left_out:
        message = "threads that launched or waited for input were not sampled: the sampler follows 64 at most"
        rows.append(_row(profile, "sampler_threads_left_out", "", left_out, message))
    looks, wall_ns = int(totals.get("looks") or 0), _wall_ns(run)
    if looks and wall_ns > HOLE_INTERVALS * USUAL_PERIOD_NS * looks and wall_ns > 100 * USUAL_PERIOD_NS:
        message = (
            f"stacks were looked at every {wall_ns / looks / 1e6:.0f} ms instead of every "
            f"{USUAL_PERIOD_NS / 1e6:.0f}: {_cost(totals)}"
        )
        rows.append(_row(profile, "sampler_slow", "", 1, message, "note"))
    return rows


def _holes(profile: Profile, thread_of_line: Int64, stretches: Stretches) -> list[tuple[int, Intervals]]:
    """Per thread with holes its (start, end) of each, the longest first."""
    samples = profile["stack_samples"]
    line, interval, at_ps = (integers(samples, name) for name in ("line", "interval_ps", "time_ps"))
    thread = thread_of_line[line] if len(line) else line
    out = []
    for one in np.unique(thread).tolist():
        stated = interval[(thread == one) & (interval > 0)]
        if not len(stated) or one not in stretches:
            continue
        longest = HOLE_INTERVALS * int(np.median(stated))
        looks = np.sort(at_ps[thread == one])
        start, end = stretches[one]
        after = np.searchsorted(looks, start, side="left")
        looks = np.concatenate(([profile.capture_start_ps], looks, [profile.capture_end_ps]))
        # A thread without a Python frame was looked at all the same.
        unseen = (looks[after + 1] >= end) & (looks[after + 1] - looks[after] > longest)
        hole = np.unique(after[unseen])
        before, behind = looks[hole], looks[hole + 1]
        if len(hole):
            order = np.lexsort((before, before - behind))
            out.append((one, (before[order], behind[order])))
    return out


def _hole_row(profile: Profile, thread: int, holes: Intervals, totals: Mapping[str, Any]) -> dict[str, Any]:
    name, count = profile["lines"]["name"][thread].as_py(), len(holes[0])
    first = zip(*(column[:NAMED].tolist() for column in holes), strict=True)
    shown = ", ".join(f"{(end - start) / 1e9:.0f} ms from {start / 1e12:.3f} s on" for start, end in first)
    more = f", and {count - NAMED} shorter" if count > NAMED else ""
    why = f" ({_cost(totals)})" if totals else ""
    message = f"no stack was looked at in time that stayed unknown{why}: {shown}{more}"
    return _row(profile, "sampler_holes", f"thread {name}", count, message)


def _cost(totals: Mapping[str, Any]) -> str:
    looks = int(totals.get("looks") or 0)
    text = f"{looks} looks cost {int(totals.get('cost_ns') or 0) / 1e6:.1f} ms, and their cost is bounded"
    forced = int(totals.get("taken_by_force") or 0)
    return f"{text}; {forced} had to wait for code that kept Python's lock" if forced else text


def _wall_ns(run: Mapping[str, Any]) -> int:
    start, stop = ((run.get(key) or {}).get("monotonic_ns") for key in ("start", "stop"))
    return stop - start if isinstance(start, int) and isinstance(stop, int) else 0


def _row(
    profile: Profile, code: str, place: str, count: int, message: str, severity: str = "warning"
) -> dict[str, Any]:
    return {
        "severity": severity,
        "code": code,
        "file": profile.host,
        "place": place,
        "count": count,
        "message": message,
    }
