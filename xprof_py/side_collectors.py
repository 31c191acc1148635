"""Collectors that run beside the recorder, whatever the program computes with: collections of garbage, sampled stacks,
power, CuPy's memory, and exchanges of time stamps with other hosts.

Each costs the recording itself alone: one that cannot start, or does not stop, is said and left out.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from xprof_py.collectors.clock_probe import ClockProber, complaints
from xprof_py.collectors.cupy_memory import CupyMemory
from xprof_py.collectors.gc_pauses import GcPauses
from xprof_py.collectors.power import PowerSampler
from xprof_py.collectors.stacks import StackSampler
from xprof_py.config import Settings
from xprof_py.rank import settled_rank


class Say(Protocol):
    """Keeps a message in the run file; a warning also reaches stderr."""

    def __call__(self, text: str, severity: str = "warning") -> None: ...


class SideCollectors:
    """Started together, once the recorder runs, and stopped together, before it ends.

    What a person should know goes to ``document`` (``collectors`` and ``overhead`` of the run file) and to ``say``.
    """

    def __init__(self, settings: Settings, document: dict[str, Any], say: Say) -> None:
        self._settings = settings
        self._say = say
        self._about: dict[str, Any] = document["collectors"]
        self._overhead: dict[str, Any] = document["overhead"]
        self._gc = GcPauses()
        self._stacks = StackSampler()
        self._power = PowerSampler()
        self._prober = ClockProber()
        self._cupy = CupyMemory(None if document["capture"].get("seconds") else settings.budget_bytes)
        for name in ("gc", "cupy_memory"):
            self._about[name] = {"used": False, "why": "not started"}
        for name in ("stacks", "power", "probe"):
            off = getattr(settings, name) is False
            self._about[name] = {"used": False, "why": "switched off" if off else "not started"}

    @property
    def samples_stacks(self) -> bool:
        """Whether stacks are sampled at this moment."""
        return self._stacks.running

    def start(self) -> None:
        """Start what is wanted and can be."""
        self._gc.start()
        self._about["gc"] = {"used": True}
        self._cupy.start()
        self._begin_stacks()
        self._begin_power()
        self._begin_probe()

    def stop(self) -> None:
        """Stop what runs."""
        self._end_gc()
        self._end_cupy()
        self._end_stacks()
        self._end_power()
        self._end_probe()

    def abandon(self) -> None:
        """In a forked child, which has no threads of ours."""
        self._gc.stop()
        self._cupy.mute()

    def thread_seen(self) -> None:
        """At a thread's first event, on that thread."""
        self._cupy.hook_thread()

    def _begin_stacks(self) -> None:
        if self._settings.stacks is False:
            return
        try:
            takes_gil = self._stacks.start()
            self._about["stacks"] = {"used": True, **({"takes_gil": takes_gil} if takes_gil else {})}
        except Exception as error:
            self._about["stacks"] = {"used": False, "why": "could not start", "error": str(error)}
            if self._settings.stacks is True:
                self._say(f"stacks are not sampled: {error}")

    def _begin_power(self) -> None:
        if self._settings.power is False:
            return
        try:
            self._about["power"] = self._power.start(self._settings.power_period_ms)
        except Exception as error:
            self._about["power"] = {"used": False, "why": "could not start", "error": str(error)}
            if self._settings.power is True:
                self._say(f"power is not sampled: {error}")

    def _begin_probe(self) -> None:
        if self._settings.probe is False:
            return
        try:
            planned = self._settings.probe_plan(settled_rank(os.environ), os.environ)
            if isinstance(planned, str):
                self._about["probe"] = {"used": False, "why": planned}
                return
            self._prober.start(planned)
            self._about["probe"] = {"used": True, "token": planned.token}
        except Exception as error:
            self._about["probe"] = {"used": False, "why": "could not start", "error": str(error)}
            self._say(f"clocks are not probed: {error}")

    def _end_gc(self) -> None:
        self._gc.stop()
        if self._about["gc"]["used"]:
            self._about["gc"].update(
                pauses=self._gc.pauses, recorded=self._gc.recorded, pause_s=round(self._gc.pause_ns / 1e9, 6)
            )

    def _end_cupy(self) -> None:
        self._about["cupy_memory"] = about = self._cupy.stop()
        if about.get("not_recorded"):
            left_out = about["not_recorded"]
            self._say(f"{left_out} allocations of CuPy are not recorded: they had their part of the budget", "info")

    def _end_stacks(self) -> None:
        if not self._stacks.running:
            return
        try:
            totals = self._stacks.stop()
        except Exception as error:
            self._say(f"the stack sampler did not stop cleanly: {error}")
            return
        self._overhead["stacks"] = totals
        if not totals.get("ended", True):
            self._say("the stack sampler did not end within 2 s of being told to")

    def _end_power(self) -> None:
        if not self._power.running:
            return
        try:
            about, self._overhead["power"], said = self._power.stop()
        except Exception as error:
            self._say(f"the power sampler did not stop cleanly: {error}")
            return
        self._about["power"] = about
        for text in said:
            self._say(text, "warning" if self._settings.power is True else "info")

    def _end_probe(self) -> None:
        if not self._prober.running:
            return
        try:
            report = self._prober.stop()
        except Exception as error:
            self._say(f"the clock prober did not stop cleanly: {error}")
            return
        # Where nobody asked for it, a host that does not answer is no news for the terminal.
        for text in complaints(report):
            self._say(text, "warning" if self._settings.probe is True else "info")
        about = ("session", "port", "serve_error", "peers")
        self._about["probe"].update({name: report[name] for name in about if name in report})
        self._overhead["probe"] = {name: value for name, value in report.items() if name not in about}
