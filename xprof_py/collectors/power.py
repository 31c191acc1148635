"""Power, clocks and temperatures of NVIDIA's GPUs, through the whole capture, into the shard.

A thread of the native core (native/device) asks NVML, at most 1 % of a core by its own measure. What goes wrong there
costs these rows alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from xprof_py import _native

LIBRARY = "libnvidia-ml.so.1"
VARIABLE = "XPROF_NVML_LIB"
"""Environment variable: another NVML, as dlopen takes it."""
STOP_TIMEOUT_S = 1.0
_TOTALS = ("looks", "postponed", "failed_calls", "cpu_ns", "open_cpu_ns", "wall_ns")
OPEN_TIMEOUT_S = 10.0
"""How long ``power=True`` waits for NVML to find its devices before the capture begins."""


def _start(environ: Mapping[str, str], period_ms: int, *, only_open: bool) -> None:
    library = environ.get(VARIABLE) or LIBRARY
    by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    _native.power_start(library, environ.get("CUDA_VISIBLE_DEVICES"), by_bus, period_ms * 1_000_000, only_open)


def unavailable(environ: Mapping[str, str] | None = None) -> str | None:
    """Why no device can be sampled, None where one can. Opens NVML, which may take a second."""
    try:
        _start(os.environ if environ is None else environ, 100, only_open=True)
    except (RuntimeError, ValueError, OSError) as error:
        return str(error)
    _native.power_wait(OPEN_TIMEOUT_S)
    report = _native.power_stop(STOP_TIMEOUT_S)
    if not report["ended"]:
        return f"NVML does not answer: {report['stuck']} did not return within {OPEN_TIMEOUT_S:g} s"
    return report["error"] or None


class PowerSampler:
    """Starts and stops the sampler of ``_native``; the recorder runs before and after."""

    def __init__(self) -> None:
        self.running = False
        self._period_ms = 0

    def start(self, period_ms: int) -> dict[str, Any]:
        """Sample from now on, and return what the run file says meanwhile: NVML takes its time, on its own thread.

        Raises RuntimeError while a sampler still runs, OSError without a thread, ValueError.
        """
        _start(os.environ, period_ms, only_open=False)
        self.running, self._period_ms = True, period_ms
        return {"used": False, "why": "NVML was being opened when this was written"}

    def stop(self) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
        """Stop and return what the run file says of the sampler, its overhead, and what a person should know.

        Waits at most STOP_TIMEOUT_S.
        """
        self.running = False
        report = _native.power_stop(STOP_TIMEOUT_S)
        overhead = {name: report[name] for name in _TOTALS}
        if report["state"] == "sampling":
            about = {"used": True, "devices": report["devices"], "period_ms": self._period_ms}
            return about, overhead, _complaints(report)
        why = report["error"] or f"{report['stuck']} had not returned by the capture's end"
        return {"used": False, "why": why}, overhead, [] if report["ended"] else [f"power is not sampled: {why}"]


def _complaints(report: Mapping[str, Any]) -> list[str]:
    said = []
    if not report["ended"]:
        said.append(f"{report['stuck']} did not return: power and clocks were not sampled from then on")
    if report["note"]:
        said.append(f"power: {report['note']}")
    if report["failed_calls"]:
        said.append(f"power: {report['failed_calls']} calls of NVML failed")
    lost = [device for device in report["devices"] if device["lost"]]
    return said + [f"power: GPU {device['index']} ({device['uuid']}) was lost" for device in lost]
