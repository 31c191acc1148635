"""What NVIDIA GPUs did: kernels, copies, waits and the calls that launched them, through CUPTI, into the shard.

A thread of the native core (native/device) does it. Only one collector has the devices: this one, or XLA's profiler,
which uses CUPTI itself (``backend``). Nothing is called in libcupti where there is no driver, and nothing brings the
driver up in a program that does not use CUDA, unless the program insists. What goes wrong there costs the device's side
alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from xprof_py import _native
from xprof_py.config import Backend, Choice, Settings
from xprof_py.injection import xla_ranges_are_taken
from xprof_py.rank import jax_backend_is_up

START_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 5.0
BUFFER_BYTES = 1 << 20
BUFFERS = 64
"""Most buffers of BUFFER_BYTES at once: about a quarter of a million launches that are not read yet."""

_WHEELS = (("cu13", "lib", "libcupti.so.13"), ("cuda_cupti", "lib", "libcupti.so.12"))
_TOTALS = (
    "activities",
    "calls",
    "graph_nodes",
    "dropped",
    "buffers_refused",
    "buffers",
    "cut_buffers",
    "no_memory",
    "unknown_kinds",
    "clamped",
    "ranges_refused",
    "late_ranges",
    "flushes",
    "cpu_ns",
)


@dataclass(frozen=True)
class Decision:
    """``use``: True, False, or None where it cannot be told yet; ``why``: the reason, for the run file."""

    use: bool | None
    why: str


def insists(cuda: Choice, backend: Backend) -> bool:
    """Whether the program asked for this collector, so that what it lacks is an error."""
    return cuda is True or backend == "cupti"


def decide(
    cuda: Choice, backend: Backend, xla: Choice, *, in_use: bool, jax_platform: str | None, nvtx_is_taken: bool
) -> Decision:
    """Which collector has the devices, on a machine with a driver. Pure.

    Args:
        cuda, backend, xla: as ``capture`` has them.
        in_use: the program has loaded NVIDIA's driver.
        jax_platform: of JAX's default devices; "" where JAX is not imported, None where its devices are not up yet.
        nvtx_is_taken: NVTX ranges go to a tool, which takes from XLA's profiler the names of its kernels' ops.
    """
    if cuda is False:
        return Decision(False, "switched off")
    if backend == "xla":
        return Decision(False, 'backend is "xla": its profiler has the devices')
    if insists(cuda, backend):
        return Decision(True, "asked for")
    if not in_use:
        return Decision(None, "the program does not use CUDA")
    if xla is False:
        return Decision(True, "XLA's profiler is switched off")
    if nvtx_is_taken:
        return Decision(True, "NVTX ranges go to a tool: XLA's profiler would not know its kernels' ops")
    if jax_platform is None:
        return Decision(None, "JAX's devices are not up")
    if jax_platform in ("gpu", "cuda"):
        return Decision(False, "XLA's profiler has the devices: it knows the op of each of its kernels")
    return Decision(True, "the program uses CUDA, and not through JAX")


def decide_here(cuda: Choice, backend: Backend, xla: Choice, environ: Mapping[str, str]) -> Decision:
    """:func:`decide` for this process as it is now."""
    return decide(
        cuda,
        backend,
        xla,
        in_use=_native.cuda_is_loaded(),
        jax_platform=jax_platform(),
        nvtx_is_taken=xla_ranges_are_taken(environ),
    )


def jax_platform() -> str | None:
    """Platform of JAX's devices; "" without JAX, None where they are not up. Never brings them up."""
    if sys.modules.get("jax") is None:
        return ""
    if not jax_backend_is_up():
        return None
    try:
        return str(sys.modules["jax"].default_backend())
    except Exception:
        return None


def no_driver() -> str | None:
    """Why this machine cannot have device activity, None where it has a driver. Calls nothing in it."""
    return _native.cuda_why_not()


def candidates() -> list[str]:
    """Where NVIDIA's wheels of this environment have libcupti; nothing is imported for that."""
    import importlib.util

    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    paths = [os.path.join(folder, *parts) for parts in _WHEELS for folder in folders]
    return [path for path in paths if os.path.isfile(path)]


def find() -> tuple[str | None, str | None]:
    """``(path, None)`` of the libcupti that would be used, or ``(None, why there is none)``.

    Loads it, and calls nothing in it.
    """
    return _native.cupti_find(candidates())


def check() -> dict[str, Any]:
    """Subscribe to CUPTI and let go of it at once: why (None: it works), library, version, shared, holder, notes.

    It brings the driver up: for a process that only asks, such as ``doctor``, or one that uses CUDA already.
    """
    return _native.cupti_check(candidates(), START_TIMEOUT_S)


def unavailable() -> str | None:
    """Why the collector cannot work in this process, None where it can, as far as that can be told without trying.

    Where the program uses CUDA already it is tried.
    """
    reason = no_driver()
    if reason is None and _native.cuda_is_loaded():
        reason = check()["why"]
    elif reason is None:
        reason = find()[1]
    return reason


class CudaCollector:
    """Decides, starts and stops; the recorder runs before and after. Its owner calls one method at a time.

    ``pending``: whether it may still start; ``entry``: what the run file says of it. It may be lent to another profiler
    of the program's own, and be one session before that and one after it; ``totals`` are of all sessions that ended.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.running = False
        self.pending = settings.cuda is not False
        self.totals: dict[str, Any] = {}
        self._lent: list[dict[str, Any]] = []
        self._is_lent = self._goes_on = False
        self.entry: dict[str, Any] = {"used": False, "why": "not started" if self.pending else "switched off"}

    @property
    def insists(self) -> bool:
        return insists(self._settings.cuda, self._settings.backend)

    def begin(self, xla_has_devices: bool) -> str | None:
        """At the capture's start: as :meth:`try_start`, where there is a driver."""
        reason = no_driver() if self.pending else None
        if reason is not None:
            return self._give_up(reason, self.insists)
        return self.try_start(xla_has_devices)

    def try_start(self, xla_has_devices: bool) -> str | None:
        """Start if it is wanted and time for it; ``xla_has_devices``: XLA's profiler collects them at this moment.

        Returns what a person should know: that it was to start and could not.
        """
        if not self.pending or self._is_lent:
            return None
        settings = self._settings
        decision = decide_here(settings.cuda, settings.backend, settings.xla, os.environ)
        if decision.use is None:
            self.entry["why"] = decision.why
            return None
        if not decision.use:
            return self._give_up(decision.why, False)
        if xla_has_devices:
            return self._give_up("XLA's profiler has the devices", self.insists)
        report = _native.cupti_start(
            candidates(),
            start_timeout_s=START_TIMEOUT_S,
            buffer_bytes=BUFFER_BYTES,
            buffers=BUFFERS,
            whole_graphs=settings.cuda_graphs == "whole",
        )
        if report["why"]:
            return self._give_up(report["why"], True)
        self.pending, self.running = False, True
        about = ("library", "version", "shared", "holder", "os_threads", "clock_offset_ns", "clock_width_ns", "notes")
        fresh = {"used": True, "chosen": decision.why, **{name: report[name] for name in about}}
        self.entry = {**self.entry, **fresh} if self._lent else fresh
        self.entry.pop("why", None)
        return None

    def _give_up(self, why: str, loud: bool) -> str | None:
        self.pending = False
        if self._goes_on:
            self.entry["why"] = why
            return f"what the GPUs did after {self._lent[-1]['to']} is not recorded: {why}"
        self.entry = {"used": False, "why": why}
        return f"what the GPUs did is not recorded: {why}" if loud else None

    def lend(self, to: str, now: Callable[[], dict[str, int]]) -> list[str]:
        """Let another profiler of this process have CUPTI, until :meth:`take_back`; ``now``: the run file's clock pair.

        Returns what a person should know.
        """
        if self._is_lent or not (self.running or self.pending):
            return []
        said: list[str] = []
        self._goes_on = self._goes_on or self.running
        if self.running:
            said = self.stop()
        self._is_lent = True
        self._lent.append({"to": to, "start": now(), "stop": None})
        self.entry["lent"] = self._lent
        return said

    def take_back(self, xla_has_devices: bool, now: Callable[[], dict[str, int]]) -> str | None:
        """The other profiler has ended: as :meth:`try_start`."""
        if not self._is_lent:
            return None
        self._is_lent, self.pending = False, True
        self._lent[-1]["stop"] = now()
        return self.try_start(xla_has_devices)

    def stop(self) -> list[str]:
        """End the collection; at most STOP_TIMEOUT_S. Returns what a person should know, in words."""
        self.running = False
        report = _native.cupti_stop(STOP_TIMEOUT_S)
        if not report["ended"]:
            self.totals["ended"] = False
            return [f"device activity is incomplete: {report['why']} ({STOP_TIMEOUT_S:g} s)"]
        for name in _TOTALS:
            self.totals[name] = self.totals.get(name, 0) + report[name]
        return complaints(report)


def complaints(report: Mapping[str, Any]) -> list[str]:
    """What was lost, in words."""
    said = []
    if report["dropped"]:
        said.append(f"CUPTI dropped {report['dropped']} records of device activity")
    if report["buffers_refused"]:
        refused = report["buffers_refused"]
        said.append(f"CUPTI was without a buffer {refused} times: device activity came faster than it was read")
    if report["cut_buffers"]:
        said.append(f"{report['cut_buffers']} of CUPTI's buffers could not be read to their end")
    if report["no_memory"]:
        said.append(f"{report['no_memory']} records of device activity found no memory")
    if not report["os_threads"]:
        said.append("CUPTI does not tell the threads of its calls, by which launches are joined to spans")
    return said
