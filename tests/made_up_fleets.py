"""Fleets whose clocks are known: offset, rate, temperature and jumps of every host, and what its stamps then show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xprof_py.postprocess.clocks.clock_map import to_fleet_ns
from xprof_py.postprocess.clocks.crowd import Meetings
from xprof_py.postprocess.clocks.solve import ClockedProcess, Exchanges, Solution

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

BEGIN_NS = 1_796_000_000_000_000_000
QUANTUM_NS = 1000
THERMAL_S = 120.0


@dataclass
class Fleet:
    """``count`` hosts for ``seconds``. Host 0 is the reference; its clock is as bad as the others'.

    Offsets up to +-400 ms, rates up to +-30 ppm, a thermal sinusoid of ``thermal_ppm``, ``jumps`` {host: (after
    seconds, ns)}. ``there``: {host: (from, until)} seconds of hosts that join late or leave early. Stamps are rounded
    to a microsecond.
    """

    count: int
    seconds: float
    seed: int = 0
    thermal_ppm: float = 0.2
    jumps: dict[int, tuple[float, float]] = field(default_factory=dict)
    there: dict[int, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.offset_ns = self.random.uniform(-4e8, 4e8, self.count)
        self.rate = self.random.uniform(-30e3, 30e3, self.count)
        self.phase = self.random.uniform(0, 2 * np.pi, self.count)

    def ahead_ns(self, host: int, real_s: Float64) -> Float64:
        """What the clock of a host is ahead of real time."""
        swing_ns = self.thermal_ppm * 1e3 * THERMAL_S / (2 * np.pi)
        wave = swing_ns * np.sin(2 * np.pi * real_s / THERMAL_S + self.phase[host])
        after_s, height_ns = self.jumps.get(host, (np.inf, 0.0))
        return self.offset_ns[host] + self.rate[host] * real_s + wave + np.where(real_s >= after_s, height_ns, 0.0)

    def shown_ns(self, host: int, real_s: Float64) -> Int64:
        """The stamp that a host puts on a moment."""
        since_ns = np.rint((real_s * 1e9 + self.ahead_ns(host, real_s)) / QUANTUM_NS).astype(np.int64) * QUANTUM_NS
        return BEGIN_NS + since_ns

    def reach_s(self, host: int) -> tuple[float, float]:
        """From when until when a host is there."""
        return self.there.get(host, (0.0, self.seconds))

    def processes(self) -> list[ClockedProcess]:
        """One per host, captured while it is there."""
        shown = [self.shown_ns(host, np.array(self.reach_s(host))).tolist() for host in range(self.count)]
        return [ClockedProcess(f"h{host}", f"h{host}", *shown[host]) for host in range(self.count)]

    def exchange(
        self,
        client: int,
        server: int,
        *,
        rate: float = 20.0,
        way_us: tuple[float, float] = (25.0, 25.0),
        queue_us: float = 20.0,
        until_s: float | None = None,
    ) -> Exchanges:
        """Probes at random times: least delays of the two ways, and exponential queues on both."""
        begins, ends = zip(self.reach_s(client), self.reach_s(server), strict=True)
        from_s, until_s = max(begins), min(*ends, self.seconds if until_s is None else until_s)
        sent = np.sort(self.random.uniform(from_s, until_s, int((until_s - from_s) * rate)))
        there, back = (way * 1e-6 + self.random.exponential(queue_us * 1e-6, len(sent)) for way in way_us)
        received = sent + there
        answered = received + 5e-6
        return Exchanges(
            client,
            server,
            self.shown_ns(client, sent),
            self.shown_ns(server, received),
            self.shown_ns(server, answered),
            self.shown_ns(client, answered + back),
        )

    def meet(
        self,
        rate: float = 10.0,
        *,
        lasting_us: float = 60.0,
        spread_us: float = 100.0,
        straggler_us: float = 2000.0,
        jitter_us: float = 8.0,
        skew_us: float = 0.0,
        lost: float = 0.0,
        missing: tuple[int, ...] = (),
        among: Sequence[Sequence[int]] | None = None,
        always_last: int | None = None,
    ) -> tuple[Meetings, Float64, Float64]:
        """Collectives, and their real starts and ends, hosts x collectives.

        One random host of each is late by ``straggler_us`` on average. ``skew_us``: all but host 0 end later by it.
        ``lost``: share of events that are not there. ``missing``: hosts without any. ``among``: groups of hosts that
        take turns; without, all take part in all. ``always_last``: one host that is late every time, no random one.
        """
        many = int(self.seconds * rate)
        shape = (self.count, many)
        when = (np.arange(many) + self.random.uniform(0, 0.2, many)) / rate
        start = when + self.random.exponential(spread_us * 1e-6, shape)
        takes_part = np.ones(shape, np.bool_)
        if among is not None:
            members = np.zeros((len(among), self.count), np.bool_)
            for number, hosts in enumerate(among):
                members[number, list(hosts)] = True
            takes_part = members[np.arange(many) % len(among)].T
        for host in self.there:
            takes_part[host] &= (when >= self.reach_s(host)[0]) & (when <= self.reach_s(host)[1])
        if always_last is None:
            late = self.random.exponential(straggler_us * 1e-6, many)
            start[self.random.integers(0, self.count, many), np.arange(many)] += late
        else:
            start[always_last] += straggler_us * 1e-6
        end = (
            np.where(takes_part, start, 0.0).max(axis=0)
            + lasting_us * 1e-6
            + np.abs(self.random.normal(0, jitter_us * 1e-6, shape))
        )
        end[1:] += skew_us * 1e-6
        present = takes_part & (self.random.uniform(size=shape) >= lost)
        present[list(missing)] = False
        stamps = [np.array([self.shown_ns(host, t[host]) for host in range(self.count)]) for t in (start, end)]
        return Meetings(*(np.where(present, t, 0) for t in stamps), present), start, end


@dataclass(frozen=True)
class Score:
    """How far the solution is from the truth, over hosts and times; us. ``covered``: share within the bounds."""

    p50: float
    p99: float
    largest: float
    covered: float
    half_width: float


def score(fleet: Fleet, solution: Solution, hosts: list[int] | None = None, looks: int = 1500) -> Score:
    """Compare at times spread over the capture; a stamp's rounding belongs to the stamp, not to the clock."""
    apart, within, bounds = [], [], []
    for host in range(1, fleet.count) if hosts is None else hosts:
        real_s = np.linspace(*fleet.reach_s(host), looks)
        since_ns = real_s * 1e9 + fleet.ahead_ns(host, real_s)
        shown = BEGIN_NS + np.rint(since_ns).astype(np.int64)
        found, error = to_fleet_ns(solution, host, shown)
        true = BEGIN_NS + np.rint(real_s * 1e9 + fleet.ahead_ns(0, real_s)).astype(np.int64)
        apart.append(np.abs(found - true))
        within.append(np.abs(found - true) <= error + QUANTUM_NS)
        bounds.append(error)
    every = np.concatenate(apart) / 1e3
    p50, p99, largest = np.percentile(every, [50, 99, 100]).tolist()
    return Score(
        p50, p99, largest, float(np.mean(np.concatenate(within))), float(np.median(np.concatenate(bounds)) / 1e3)
    )
