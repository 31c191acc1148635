"""``flight_recorder``: keep the last seconds of a program, and write them out when something happens."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal

from xprof_py import _native
from xprof_py.config import Choice, Settings
from xprof_py.errors import UsageError
from xprof_py.messages import warn
from xprof_py.rank import settled_rank
from xprof_py.recording import Recording
from xprof_py.run_file import identity
from xprof_py.session import Capture, _OpenCapture
from xprof_py.slow_steps import SlowStep, SlowSteps

MOST_SNAPSHOTS = 64
BUDGET_BYTES = 128 << 20
SNAPSHOT_TIMEOUT_S = 10.0
NO_DEVICE = "a flight recorder keeps the host's side: XLA's profiler cannot keep only the last seconds"
_WORDS = 100
"""Most characters of a text in a snapshot's reason."""


def flight_recorder(
    path: str | os.PathLike[str],
    *,
    seconds: float = 60.0,
    slow_step: float | None = 3.0,
    on_exception: bool = True,
    on_signal: bool = True,
    snapshots: int = 16,
    stacks: Choice = "auto",
    budget_bytes: int | None = None,
    overwrite: bool = False,
) -> FlightRecorder:
    """Keep the last seconds of a ``with`` block, or of a decorated function's first call, in the run folder ``path``.

    A snapshot is a run folder of its own, RUN/snapshots/<name>, with the annotations, steps and sampled stacks of the
    last seconds; its run file says why it was taken. It is taken by :meth:`FlightRecorder.snapshot`, on SIGUSR2, when
    an exception leaves the block, and when a step is slow. The last seconds before the block's end are in RUN itself,
    also where the process was killed. Devices are not recorded: XLA's profiler cannot keep only its last seconds.

    Args:
        path: RUN, as for :func:`capture`.
        seconds: how much is kept, 0.1 to 86400; up to an eighth more.
        slow_step: a snapshot follows a step that takes more than so many times the running median of its name (of the
            last 64 steps, from the ninth on) and 10 ms more; at most one in ``seconds``, so that they do not overlap.
            None: never.
        on_exception: a snapshot when an exception leaves the block; ``SystemExit`` of a success is none.
        on_signal: a snapshot on SIGUSR2, also where the program hangs; the handler that was there is called too.
        snapshots: most snapshots of this process, 1 to 64; later ones are refused, and counted in the run file.
        stacks: sample Python stacks, as for :func:`capture`.
        budget_bytes: most bytes that are kept, whatever ``seconds`` says, and of one snapshot; 128 MiB.
        overwrite: as for :func:`capture`.

    Raises: as :func:`capture` does.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.1 <= seconds <= 86_400:
        raise UsageError(f"seconds = {seconds!r}: wants a number from 0.1 to 86400")
    is_number = isinstance(slow_step, int | float) and not isinstance(slow_step, bool)
    if slow_step is not None and not (is_number and slow_step > 1):
        raise UsageError(f"slow_step = {slow_step!r}: wants a number above 1, or None")
    if isinstance(snapshots, bool) or not isinstance(snapshots, int) or not 1 <= snapshots <= MOST_SNAPSHOTS:
        raise UsageError(f"snapshots = {snapshots!r}: wants a whole number from 1 to {MOST_SNAPSHOTS}")
    plan = {
        "seconds": float(seconds),
        "slow_step": slow_step,
        "on_exception": bool(on_exception),
        "on_signal": bool(on_signal),
        "snapshots": snapshots,
    }
    return FlightRecorder(
        os.fspath(path), plan, stacks, BUDGET_BYTES if budget_bytes is None else budget_bytes, overwrite
    )


class FlightRecorder(Capture):
    """A flight recorder to enter; made by :func:`flight_recorder`."""

    def __init__(self, path: str, plan: dict[str, Any], stacks: Choice, budget_bytes: int, overwrite: bool) -> None:
        super().__init__(
            path,
            None,
            {"xla": False, "stacks": stacks, "cuda": False, "power": False, "probe": False},
            budget_bytes,
            overwrite,
        )
        self._plan = plan

    def __enter__(self) -> FlightRecorder:
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        opened = self._entered[-1] if self._entered else None
        if isinstance(opened, _OpenFlight) and error is not None:
            opened.block_raised(error)
        return super().__exit__(kind, error, trace)

    def snapshot(self, reason: str = "asked for") -> str | None:
        """Write what is kept to RUN/snapshots, and wait for it, at most 10 s.

        ``reason``: said in the run file. Returns the snapshot's folder; None, with a warning, where there is none:
        nothing is being recorded, the limit is reached, or the disk did not take it. Raises nothing.
        """
        opened = self._entered[-1] if self._entered else None
        if not isinstance(opened, _OpenFlight):
            warn(f"{self.path}: no snapshot: nothing is being recorded")
            return None
        return opened.snapshot("asked-for", {"reason": "asked for", "text": str(reason)[:_WORDS]}, SNAPSHOT_TIMEOUT_S)

    def _opened(self, recording: Recording, settings: Settings) -> _OpenCapture:
        return _OpenFlight(recording, settings, self._plan)

    def _chosen(self, settings: Settings) -> dict[str, Any]:
        return {**super()._chosen(settings), "mode": "flight_recorder", **self._plan}


class _OpenFlight(_OpenCapture):
    """One entered flight recorder: watches the steps, asks for snapshots."""

    def __init__(self, recording: Recording, settings: Settings, plan: Mapping[str, Any]) -> None:
        super().__init__(recording, settings, None)
        self._plan = plan
        self._slow = SlowSteps(plan["slow_step"]) if plan["slow_step"] is not None else None
        self._no_sooner_ns = 0
        self._names: set[str] = set()
        self._found = {"slow_steps": 0, "slow_steps_without_snapshot": 0}
        self._runs = False

    def begin(self) -> None:
        self._note_devices()
        super().begin()
        if not self.recording.is_recording_host:
            return
        try:
            os.makedirs(self.recording.folder.root / "snapshots", exist_ok=True)
            self._describe()
            self._runs = True
            if self._plan["on_signal"]:
                _native.flight_signal(True)
        except OSError as error:
            self.recording.say(f"{self.recording.folder.path}: there will be no snapshots: {error.strerror or error}")
        if self._slow is not None:
            self._step_listener_on()

    def close(self, kind: type[BaseException] | None) -> None:
        if os.getpid() != self._pid:
            return
        if self._runs:
            self._runs = False
            _native.flight_signal(False)
            self.recording.when_host_stopped = self._account
        super().close(kind)

    def abandon(self) -> None:
        self._runs = False
        super().abandon()

    def block_raised(self, error: BaseException) -> None:
        """An exception leaves the block."""
        ends_well = isinstance(error, SystemExit) and error.code in (None, 0)
        if not self._plan["on_exception"] or ends_well or isinstance(error, GeneratorExit):
            return
        try:
            text = str(error)[:_WORDS]
        except Exception:
            text = ""
        kind = type(error).__name__[:_WORDS]
        self.snapshot(f"exception-{kind}", {"reason": "exception", "exception": kind, "text": text}, SNAPSHOT_TIMEOUT_S)

    def snapshot(self, name: str, about: Mapping[str, Any], timeout_s: float) -> str | None:
        """Ask for a snapshot, and wait for it where ``timeout_s`` is not 0; its folder, None where there is none."""
        where = self.recording.folder
        if not self._runs or os.getpid() != self._pid:
            warn(f"{where.path}: no snapshot: nothing is being recorded")
            return None
        name = self._unique(name)
        try:
            self._describe()
            text = json.dumps(about, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")
            _native.flight_snapshot(name, text, timeout_s)
        except (OSError, ValueError) as error:
            self._names.discard(name)
            # A slow step while another snapshot is written lies in that one.
            if not (isinstance(error, OSError) and error.errno == errno.EBUSY and not timeout_s):
                self.recording.say(f"{where.path}: no snapshot {name}: {_why(error, self._plan['snapshots'])}")
            return None
        return os.path.join(where.path if not where.staged else os.fspath(where.root), "snapshots", name)

    def _take_step(self, event: str, name: str, number: Any) -> None:
        now_ns = time.monotonic_ns()
        if self._slow is not None:
            thread = threading.get_ident()
            with self._lock:
                if event == "enter":
                    self._slow.entered(thread, now_ns)
                    found = None
                else:
                    found = self._slow.left(thread, str(name), number, now_ns)
            if found is not None:
                self._take_slow(found, now_ns)
        super()._take_step(event, name, number)

    def _take_slow(self, step: SlowStep, now_ns: int) -> None:
        self._found["slow_steps"] += 1
        taken = None
        if now_ns >= self._no_sooner_ns:
            about = {
                "reason": "slow step",
                "step": step.number if isinstance(step.number, int) else str(step.number)[:_WORDS],
                "step_name": step.name[:_WORDS],
                "duration_ms": round(step.duration_ns / 1e6, 3),
                "median_ms": round(step.median_ns / 1e6, 3),
            }
            taken = self.snapshot(f"slow-step-{step.number}", about, 0.0)
        if taken is None:
            self._found["slow_steps_without_snapshot"] += 1
        else:
            self._no_sooner_ns = now_ns + int(self._plan["seconds"] * 1e9)

    def _describe(self) -> None:
        """Tell the recorder what the run file of a snapshot says: this process's, as it stands now."""
        recording, folder = self.recording, self.recording.folder
        self._note_devices()
        rank = settled_rank(os.environ)
        document = {**recording.document_now(), **identity(folder, rank), "state": "finished"}
        document["files"] = {"shard": folder.shard_name}
        head = json.dumps(document, default=str)
        assert head.endswith("}")
        _native.flight_describe(
            os.fspath(folder.root / "snapshots"),
            folder.shard_name,
            folder.run_file_name,
            head[:-1],
            self._plan["snapshots"],
        )

    def _note_devices(self) -> None:
        why = NO_DEVICE if "jax" in sys.modules else "no JAX"
        self.recording.document["collectors"]["xla"] = {"used": False, "why": why}

    def _unique(self, name: str) -> str:
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:64]
        unique, k = plain, 2
        while unique in self._names:
            unique, k = f"{plain}.{k}", k + 1
        self._names.add(unique)
        return unique

    def _account(self) -> None:
        """The recorder has stopped: which snapshots there are is settled."""
        self._note_devices()
        taken, refused = _native.flight_report()
        for snapshot in taken:
            snapshot["about"] = json.loads(snapshot["about"])
            if snapshot["error"]:
                self.recording.say(f"{self.recording.folder.path}: no snapshot {snapshot['name']}: {snapshot['error']}")
        self.recording.document["flight"] = {**self._found, "snapshots": taken, "refused": refused}


def _why(error: Exception, limit: int) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.errno == errno.EDQUOT:
        return f"there are {limit} already"
    if error.errno == errno.ETIMEDOUT:
        return f"not written within {SNAPSHOT_TIMEOUT_S:g} s; it may still come"
    return error.strerror or str(error)
