"""Host time to fleet time: one clock for all, that of the reference, and how far it may be from the truth.

What is known of a clock is theta(t) = what it shows less what the reference shows, at the moment when it shows t, with
an interval around it (clocks/curve.py). Fleet time is t - theta(t). Times stay integers; only theta, which is small, is
a double.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class Theta(Protocol):
    """A clock against the reference: clocks.curve.Curve is one."""

    @property
    def origin_ns(self) -> int:
        """The clock's time that seconds count from."""

    @property
    def base_ns(self) -> int:
        """What values are beyond."""

    def values(self, t_s: Float64, /) -> Float64:
        """theta in ns beyond ``base_ns``, at times in seconds."""

    def errors(self, t_s: Float64, /) -> Float64:
        """Half-width in ns: how far the truth can be from ``values``."""


def fleet_ns(clock: Theta, host_ns: Int64) -> Int64:
    """Fleet time of moments of a clock, all int64 ns."""
    t_s = (host_ns - clock.origin_ns) / 1e9
    return np.asarray(host_ns - clock.base_ns - np.rint(clock.values(t_s)).astype(np.int64))


def error_ns(clock: Theta, host_ns: Int64) -> Float64:
    """How far fleet_ns can be from the truth, in ns; infinite where nothing bounds it."""
    return np.asarray(clock.errors((host_ns - clock.origin_ns) / 1e9))


def fleet_ps(clock: Theta, origin_ns: int, at_ps: Int64, job_origin_ns: int) -> Int64:
    """Fleet time in ps since ``job_origin_ns`` of moments in ps since a profile's ``origin_ns``; ``at_ps`` ascending.

    Never descends: where a clock was set back what it showed twice has no length.
    """
    t_s = at_ps / 1e12 + (origin_ns - clock.origin_ns) / 1e9
    shift = np.rint(clock.values(t_s) * 1000).astype(np.int64)
    moved = at_ps + (origin_ns - job_origin_ns - clock.base_ns) * 1000 - shift
    return np.maximum.accumulate(moved) if len(moved) else moved


class _Reference:
    """The clock that fleet time is."""

    origin_ns = 0
    base_ns = 0

    def values(self, t_s: Float64, /) -> Float64:
        """It does not differ from itself."""
        return np.zeros(len(t_s))

    def errors(self, t_s: Float64, /) -> Float64:
        """And is certain about itself."""
        return np.zeros(len(t_s))


REFERENCE: Theta = _Reference()
"""theta of the reference: what all processes of one clock have."""
