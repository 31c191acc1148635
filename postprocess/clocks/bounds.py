"""What two events tell about two clocks: bounds of the difference of a clock to a reference, as a function of time.

theta(t) = what the clock shows minus what the reference shows, at the moment when the clock shows t. Each event that
must precede another gives one bound, exact whatever the delay between them:

* a message sent at ``s`` on the reference and received at ``r`` on the clock: theta(r) <= r - s;
* a message sent at ``s`` on the clock and received at ``r`` on the reference: theta(s) >= s - r.

An exchange of four stamps (Cristian 1989, RFC 5905) is one of each. A collective is a message from every participant to
every other: none ends before the last has started (Duda et al. 1987 for the geometry of such bounds).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Bounds:
    """Upper bounds (time, value) and lower bounds (time, value) of theta.

    Times are seconds on the clock since ``origin_ns``; values are ns beyond ``base_ns``. Each pair in order of time.
    """

    origin_ns: int
    base_ns: int
    upper_s: Float64
    upper_ns: Float64
    lower_s: Float64
    lower_ns: Float64

    def window(self, begin_s: float, end_s: float) -> Bounds:
        """The bounds whose time lies in [begin_s, end_s]."""
        up = slice(*np.searchsorted(self.upper_s, (begin_s, np.nextafter(end_s, np.inf))))
        low = slice(*np.searchsorted(self.lower_s, (begin_s, np.nextafter(end_s, np.inf))))
        return Bounds(
            self.origin_ns,
            self.base_ns,
            self.upper_s[up],
            self.upper_ns[up],
            self.lower_s[low],
            self.lower_ns[low],
        )

    @property
    def span_s(self) -> tuple[float, float]:
        """First and last time of any bound; (0, 0) without bounds."""
        ends = [x[i] for x in (self.upper_s, self.lower_s) if len(x) for i in (0, -1)]
        return (float(min(ends)), float(max(ends))) if ends else (0.0, 0.0)


def make_bounds(
    upper_at_ns: Int64, upper_ns: Int64, lower_at_ns: Int64, lower_ns: Int64, *, origin_ns: int, base_ns: int
) -> Bounds:
    """Bounds from absolute integer ns, in any order: differences are taken before anything becomes a double."""
    up = np.argsort(upper_at_ns, kind="stable")
    low = np.argsort(lower_at_ns, kind="stable")
    return Bounds(
        origin_ns,
        base_ns,
        (upper_at_ns[up] - origin_ns) / 1e9,
        (upper_ns[up] - base_ns).astype(np.float64),
        (lower_at_ns[low] - origin_ns) / 1e9,
        (lower_ns[low] - base_ns).astype(np.float64),
    )
