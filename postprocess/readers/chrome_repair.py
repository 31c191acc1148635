"""Durations of device work that cannot be: seen on AMD GPUs, where one kernel's end is that of another, much later.

The kernels of a stream run one after the other; the next one may begin a little before the last one ends (programmatic
dependent launch), and never ends before it does. A duration is not believed where it reaches over the whole of two or
more kernels that follow on the stream, and is FACTOR times the median of the kernels of its name on the device, of
which there are at least FEWEST. Kernels of graphs are not judged: their branches run side by side.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_I64 = npt.NDArray[np.int64]

FACTOR = 10
FEWEST = 4


def overlong(line: _I64, name: _I64, start_ps: _I64, duration_ps: _I64) -> _I64:
    """Places of the work whose duration is not believed. All columns of one length, in order of (line, start)."""
    end_ps = start_ps + duration_ps
    over = np.zeros(len(line), np.bool_)
    if len(line) < 3:
        return np.flatnonzero(over)
    followed = (line[2:] == line[:-2]) & (start_ps[1:-1] > start_ps[:-2])
    over[:-2] = followed & (end_ps[:-2] >= end_ps[1:-1]) & (end_ps[:-2] >= end_ps[2:])
    found = np.flatnonzero(over)
    judged = []
    for one in np.unique(name[found]).tolist():
        usual = np.sort(duration_ps[name == one])
        if len(usual) >= FEWEST:
            limit = FACTOR * int(usual[(len(usual) - 1) // 2])
            judged += [i for i in found[name[found] == one].tolist() if duration_ps[i] > limit]
    return np.array(sorted(judged), np.int64)
