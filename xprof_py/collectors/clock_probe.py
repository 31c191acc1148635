"""The clock prober: exchanges of time stamps with the job's other hosts, through the whole capture, into the shard.

A thread of the native core (native/probe) does it, at less than 0.1 % of a core by its own measure. What goes wrong
there costs the exchanges alone.
"""

from __future__ import annotations

from typing import Any

from xprof_py import _native
from xprof_py.clock_probe import ProbePlan

STOP_TIMEOUT_S = 2.0


class ClockProber:
    """Starts and stops the prober of ``_native``; the recorder runs before and after."""

    def __init__(self) -> None:
        self.running = False

    def start(self, plan: ProbePlan) -> None:
        """Ask and answer from now on. Raises RuntimeError while a prober still runs, OSError without a thread."""
        _native.probe_start(plan.key, plan.serve_port, plan.addresses)
        self.running = True

    def stop(self) -> dict[str, Any]:
        """Stop and return the report; {"ended": False} where it does not end in STOP_TIMEOUT_S (a name looked up)."""
        self.running = False
        return _native.probe_stop(STOP_TIMEOUT_S)


def complaints(report: dict[str, Any]) -> list[str]:
    """What a report says that a person should know, in words."""
    said = []
    if not report["ended"]:
        return [f"the clock prober did not end within {STOP_TIMEOUT_S:g} s of being told to"]
    if report.get("serve_error"):
        said.append(f"the clock prober does not answer other hosts: {report['serve_error']}")
    for peer in report.get("peers", ()):
        if peer["error"]:
            said.append(f"clock prober: {peer['address']}: {peer['error']}")
        elif peer["sent"] and not peer["answered"]:
            said.append(f"clock prober: {peer['address']}: none of {peer['sent']} requests was answered")
    strangers = report.get("malformed", 0) + report.get("bad_token", 0)
    if strangers:
        said.append(f"clock prober: {strangers} packets of strangers were ignored")
    return said
