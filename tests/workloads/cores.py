"""How busy the machine was with something else while a workload's steps ran: measurements on a busy one prove nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CoreSeconds:
    """``busy_s``: core seconds in which the machine worked or was taken away by its hypervisor, None where nothing says.

    ``own_s``: this process's own; ``wall_s``: the wall clock.
    """

    busy_s: float | None
    own_s: float
    wall_s: float

    @staticmethod
    def now() -> CoreSeconds:
        return CoreSeconds(_machine_busy_s(), time.process_time(), time.perf_counter())

    def until_now(self) -> dict[str, float | None]:
        """The three since this moment, for `measured.json`."""
        now = CoreSeconds.now()
        known = self.busy_s is not None and now.busy_s is not None
        return {
            "busy_s": now.busy_s - self.busy_s if known else None,  # type: ignore[operator]
            "own_s": now.own_s - self.own_s,
            "wall_s": now.wall_s - self.wall_s,
        }


def _machine_busy_s() -> float | None:
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, soft_irq, steal = (int(field) for field in fields[1:9])
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


def others_cores(processes: Sequence[Mapping[str, float | None]]) -> float | None:
    """Cores that were busy on average with something else than these processes, which ran at the same time.

    ``processes``: what `until_now` returned in each. None where the machine does not say.
    """
    first = processes[0]
    if first["busy_s"] is None:
        return None
    own_s = sum(process["own_s"] or 0.0 for process in processes)
    return max(0.0, (first["busy_s"] - own_s) / (first["wall_s"] or 1.0))
