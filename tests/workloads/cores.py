"""How busy the machine was with something else while a workload's steps ran: on a busy one figures prove nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CoreSeconds:
    """``busy_s``: core seconds in which the machine worked or its hypervisor took it away, None where nothing says.

    ``own_s``: this process's own; ``delayed_s``: seconds that its threads were ready to run and had no core, summed,
    None where the kernel does not say; ``wall_s``: the wall clock.
    """

    busy_s: float | None
    own_s: float
    delayed_s: float | None
    wall_s: float

    @staticmethod
    def now() -> CoreSeconds:
        return CoreSeconds(_machine_busy_s(), time.process_time(), _delayed_s(), time.perf_counter())

    def until_now(self) -> dict[str, float | None]:
        """What passed since this moment, by the names of the fields."""
        now = CoreSeconds.now()
        passed: dict[str, float | None] = {}
        for name, before in vars(self).items():
            after = getattr(now, name)
            passed[name] = None if before is None or after is None else after - before
        return passed


QUIET_CORES = 0.15
_LOOK_S = 0.25
_QUIET_LOOKS = 3


def wait_until_quiet(limit_s: float) -> None:
    """Return when the machine was quiet for three looks in a row, or after ``limit_s`` all the same."""
    deadline = time.monotonic() + limit_s
    quiet = 0
    while quiet < _QUIET_LOOKS and time.monotonic() < deadline:
        before = CoreSeconds.now()
        time.sleep(_LOOK_S)
        others = others_cores([before.until_now()])
        quiet = quiet + 1 if others is None or others <= QUIET_CORES else 0


def _machine_busy_s() -> float | None:
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, soft_irq, steal = (int(field) for field in fields[1:9])
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


def _delayed_s() -> float | None:
    """The second field of every thread's schedstat. Threads that end take theirs along; XLA's pools do not."""
    try:
        waits = [int(path.read_text().split()[1]) for path in Path("/proc/self/task").glob("*/schedstat")]
    except OSError:
        return None
    return sum(waits) / 1e9 if waits else None


def others_cores(processes: Sequence[Mapping[str, float | None]]) -> float | None:
    """Cores that were busy on average with something else than these processes, which ran at the same time.

    ``processes``: what `until_now` returned in each. None where the machine does not say.
    """
    first = processes[0]
    if first["busy_s"] is None:
        return None
    own_s = sum(process["own_s"] or 0.0 for process in processes)
    return max(0.0, (first["busy_s"] - own_s) / (first["wall_s"] or 1.0))


def delayed_cores(processes: Sequence[Mapping[str, float | None]]) -> float | None:
    """Cores that these processes would have used on average, had they not been taken; None as in `others_cores`."""
    delays = [process["delayed_s"] for process in processes]
    if any(delay is None for delay in delays):
        return None
    return sum(delay or 0.0 for delay in delays) / (processes[0]["wall_s"] or 1.0)
