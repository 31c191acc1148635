"""A device's own clock against the host's: where its events lie on the host's time, their durations untouched.

A TPU's clock starts and drifts by itself (15 us a second have been seen). The plain times of its ops are the profiler's
guess of the host's time: mostly right to some microseconds, but off by up to 0.2 s, late or early, where its correction
stretched or squeezed ops. So the offset is the straight line that most stretches of the capture agree on: of all lines
through the least differences of two stretches the one with most others within NEAR_PS; of these agreeing ones then the
line below them that is closest in the mean (the edge of their lower convex hull that spans the mean time).

Times are moved by whole runs: inside a run every distance is the device's own, and no run is moved into the one before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_I64 = npt.NDArray[np.int64]
_F64 = npt.NDArray[np.float64]

NEAR_PS = 100_000_000
"""The plain times of ops that no correction touched scatter by some 30 us."""
MOST_DRIFT = 2e-4
"""More than any crystal's."""
_STRETCHES = 128


def offset_line(device_ps: _I64, plain_ps: _I64) -> tuple[int, float, int] | None:
    """(offset in ps at time t, drift, t) of plain − device time over the device's time.

    ``device_ps``, ``plain_ps``: the starts of the same ops on both clocks, at least one. None where less than a quarter
    of the stretches agree on a line.
    """
    origin = int(device_ps.min())
    at, ahead = device_ps - origin, plain_ps - device_ps
    low = int(ahead.min())
    # Differences of picoseconds within a capture fit a double exactly; times do not.
    stretch = at * _STRETCHES // (int(at.max()) + 1)
    order = np.lexsort((ahead, stretch))
    first = order[np.unique(stretch[order], return_index=True)[1]]
    x, y = at[first].astype(np.float64), (ahead[first] - low).astype(np.float64)
    agreeing = _agreeing(x, y)
    if 4 * int(agreeing.sum()) < len(x):
        return None
    x, y = x[agreeing], y[agreeing]
    hull = _lower_hull(x, y)
    middle = float(x.mean())
    place = next((i for i in range(1, len(hull)) if hull[i][0] >= middle), len(hull) - 1)
    (x0, y0), (x1, y1) = hull[max(place - 1, 0)], hull[place]
    drift = (y1 - y0) / (x1 - x0) if x1 > x0 else 0.0
    return low + round(y0), drift, origin + round(x0)


def _agreeing(x: _F64, y: _F64) -> npt.NDArray[np.bool_]:
    """The points near the line that most points are near: through two of them, or level through one."""
    best = np.zeros(len(x), np.bool_)
    for i in range(len(x)):
        distance = x[i + 1 :] - x[i]
        drift = np.append((y[i + 1 :] - y[i]) / distance, 0.0)
        drift = drift[np.abs(drift) <= MOST_DRIFT]
        near = np.abs(y - y[i] - drift[:, None] * (x - x[i])) <= NEAR_PS
        counts = near.sum(axis=1)
        if len(counts) and counts.max() > best.sum():
            best = near[np.argmax(counts)]
    return best


def _lower_hull(x: _F64, y: _F64) -> list[tuple[float, float]]:
    """Corners of the lower convex hull of points of different x, in order of x (Andrew's monotone chain)."""
    hull: list[tuple[float, float]] = []
    for point in sorted(zip(x.tolist(), y.tolist(), strict=True)):
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2], hull[-1]
            if (y1 - y0) * (point[0] - x0) < (point[1] - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append(point)
    return hull


class HostTime:
    """The map from a device's clock to the host's time; ``line`` as offset_line gives it.

    ``run_start_ps``, ``run_end_ps``: the runs on the device's clock; none: all events are moved alike.
    """

    def __init__(self, line: tuple[int, float, int], run_start_ps: _I64, run_end_ps: _I64) -> None:
        offset, drift, origin = line
        order = np.argsort(run_start_ps, kind="stable")
        start, end = run_start_ps[order], run_end_ps[order]
        if not len(start):
            start = end = np.array([origin], np.int64)
        wanted = offset + np.rint(drift * (start - origin)).astype(np.int64)
        idle = np.cumsum(np.maximum(start[1:] - np.maximum.accumulate(end)[:-1], 0))
        room = np.concatenate((np.zeros(1, np.int64), idle))
        # A shift may fall from run to run by no more than the time between them.
        self._shift: _I64 = np.maximum.accumulate(wanted + room) - room
        self._start = start

    def starts(self, device_ps: _I64) -> _I64:
        """Host times of moments at which something starts: moved with the run that they are in or follow."""
        place = np.searchsorted(self._start, device_ps, side="right") - 1
        return device_ps + self._shift[np.maximum(place, 0)]

    def ends(self, device_ps: _I64) -> _I64:
        """Host times of moments at which something ends: at the start of a run they belong to the one before."""
        place = np.searchsorted(self._start, device_ps, side="left") - 1
        return device_ps + self._shift[np.maximum(place, 0)]
