"""A recorded XSpace in which one op takes longer: time itself is stretched while the op runs.

Everything later moves, on the host as on the device, so the trace stays one that could have been recorded: a slower op
makes its run, its step and the capture longer by what it took more.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from itertools import pairwise

from xspace_schema import XSpace


def stretch_op(data: bytes, op: str, by: Fraction) -> bytes:
    """``data``: a serialized XSpace of a JAX CPU capture. ``op``: an HLO op's name; its executions take ``by`` of their
    time more. Raises ValueError where it never runs, or two of its executions overlap."""
    space = XSpace.FromString(data)
    runs = sorted(_executions(space, op))
    if not runs:
        raise ValueError(f"{op} does not run in this capture")
    if any(end > start for (_, end), (start, _) in pairwise(runs)):
        raise ValueError(f"executions of {op} overlap")
    starts = [start for start, _ in runs]
    gained = [Fraction(0)]
    for start, end in runs:
        gained.append(gained[-1] + (end - start) * by)

    def moved(at_ps: int) -> int:
        before = bisect_right(starts, at_ps)
        if before == 0:
            return at_ps
        start, end = runs[before - 1]
        return at_ps + round(gained[before - 1] + (min(at_ps, end) - start) * by)

    for plane in space.planes:
        for line in plane.lines:
            origin_ps = line.timestamp_ns * 1000
            for event in line.events:
                start_ps = origin_ps + event.offset_ps
                end_ps = start_ps + event.duration_ps
                event.offset_ps = moved(start_ps) - origin_ps
                event.duration_ps = moved(end_ps) - moved(start_ps)
        # The capture ends as much later, on a whole nanosecond.
        names = {key: entry.name for key, entry in plane.stat_metadata.items()}
        for stat in plane.stats:
            if names[stat.metadata_id] == "profile_stop_time":
                stat.uint64_value += -(-int(gained[-1]) // 1000)
    stretched: bytes = space.SerializeToString()
    return stretched


def _executions(space: XSpace, op: str) -> list[tuple[int, int]]:
    """[start, end) in ps of every event of the op."""
    found = []
    for plane in space.planes:
        stats = {key: entry.name for key, entry in plane.stat_metadata.items()}
        named = {key for key, entry in plane.event_metadata.items() if entry.name == op}
        for line in plane.lines:
            for event in line.events:
                if event.metadata_id in named and any(stats[stat.metadata_id] == "hlo_op" for stat in event.stats):
                    start_ps = line.timestamp_ns * 1000 + event.offset_ps
                    found.append((start_ps, start_ps + event.duration_ps))
    return found
