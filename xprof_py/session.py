"""``capture``: record a block of a program, or some of its steps, into a run folder."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import operator
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from xprof_py import _native
from xprof_py.collectors import cuda as cuda_activity
from xprof_py.collectors import power as power_sampling
from xprof_py.collectors import stacks as stack_sampling
from xprof_py.collectors.pjrt import loaded_plugins
from xprof_py.collectors.xla import busy, is_importable
from xprof_py.config import Backend, Choice, Settings, load_settings
from xprof_py.errors import CaptureError, UsageError
from xprof_py.messages import remember_place, warn
from xprof_py.observer import Stage, StepTimes
from xprof_py.places import REACH_TIMEOUT_S, is_far, within
from xprof_py.rank import settled_rank
from xprof_py.recording import Recording
from xprof_py.run_folder import RunFolder
from xprof_py.window import Action, CaptureWindow, Phase

# A program that is being interrupted wants to end: the work in flight gets this long.
INTERRUPTED_DRAIN_S = 2.0

Function = TypeVar("Function", bound=Callable[..., Any])


def capture(
    path: str | os.PathLike[str],
    *,
    steps: tuple[int, int] | None = None,
    xla: Choice = "auto",
    cuda: Choice = "auto",
    stacks: Choice = "auto",
    power: Choice = "auto",
    probe: Choice = "auto",
    backend: Backend = "auto",
    budget_bytes: int | None = None,
    overwrite: bool = False,
) -> Capture:
    """Record a ``with`` block, or the first call of a decorated function, into the run folder ``path``.

    A decorated function that is called again runs as if it were not decorated, with one warning: RUN holds one
    recording, and an error in the middle of a training would cost more than a recording. ``overwrite`` does not change
    that.

    Args:
        path: RUN, a folder that is created, or an address that fsspec opens (gs://..., recorded in TMPDIR and copied
            at the end, as is a folder on a network file system).
        steps: half-open range of step numbers; recording begins by itself at the first step in it and ends after the
            last, the block goes on unrecorded. None: the whole block.
        xla: XLA's profiler. "auto" uses it if the program uses JAX: it starts at once where JAX has its devices,
            else at the first compile or step after the program brought them up, never bringing them up itself; where
            JAX is not even imported at the start, at the first step after it was. A program without JAX that has
            loaded a PJRT plugin (torch_xla's, libtpu) is profiled by the plugin. A trace of the program's own is
            left alone and costs the capture its XLA part. True makes a missing JAX or a running trace an error. After
            XPROF_PY_XLA_LIMIT_S (600) it stops and annotations go on: XLA keeps all events in memory.
        stacks: sample the Python stacks of the launching threads, up to 100 times a second and at a cost of at most
            0.2 % of one core, as evidence for what no annotation explains. "auto": yes, where this Python allows it;
            True makes it an error where it does not.
        power: sample power, energy, clocks and temperature of the NVIDIA GPUs that the process sees, every
            XPROF_PY_POWER_PERIOD_MS (100), at no more than 1 % of one core. "auto": where NVML is installed; True makes
            it an error where it is not, or has no device to ask, which is found out before the block.
        probe: exchange time stamps with the job's other hosts over UDP, which puts their clocks on one axis, at less
            than 0.1 % of one core. Process 0 answers at XPROF_PY_PROBE_ADDRESS (host:port), else at port 9473 of the
            coordinator's host. "auto": where the job has several processes on several hosts and an address is known;
            True asks whatever the number of hosts, and makes it an error where no address is known.
        cuda: collect what NVIDIA GPUs do (kernels, copies, waits, graphs, the calls that launch them) through CUPTI.
            "auto": where the program uses CUDA, from when it does, and ``backend`` does not give the devices to XLA.
            True begins at once; a missing driver or CUPTI, or another tool that holds it, is an error at entry.
        backend: who has the devices. "cupti": this package's own collector, as ``cuda=True``; XLA's profiler, if
            used, then records the host alone. "xla": XLA's profiler. "auto": XLA's where JAX runs on the GPU, since
            it names the op of each kernel, else CUPTI; the run file says which and why.
        budget_bytes: most bytes of this process's shard; None: XPROF_PY_BUDGET_BYTES, [tool.xprof_py], 1 GiB.
        overwrite: replace what an earlier capture left in RUN; otherwise RUN in use is an error.

    Returns:
        A context manager and decorator. The block's end waits for device work in flight (``drain_timeout_s``, 10 s)
        and then for the files (``stop_timeout_s``, 60 s); past that they are finished behind the program.

    Raises:
        UsageError: here, for arguments that make no sense; at entry, for settings that do not.
        CaptureError: at entry, before the block runs: RUN in use, not writable or not reachable, a collector that was
            asked for and cannot work. Whatever goes wrong later, a full disk included, is a warning and a message in
            the run file; exceptions of the block pass through untouched. A capture inside another one of the same
            process records nothing and says so.
    """
    return Capture(
        os.fspath(path),
        _step_range(steps),
        {"xla": xla, "cuda": cuda, "stacks": stacks, "power": power, "probe": probe},
        budget_bytes,
        overwrite,
        backend,
    )


class Capture:
    """A capture to enter; made by :func:`capture`. Each entry is a recording of its own."""

    def __init__(
        self,
        path: str,
        steps: tuple[int, int] | None,
        collectors: dict[str, Choice],
        budget_bytes: int | None,
        overwrite: bool,
        backend: Backend = "auto",
    ) -> None:
        for name, value in collectors.items():
            if not (isinstance(value, bool) or value == "auto"):
                raise UsageError(f'{name} = {value!r}: wants True, False or "auto"')
        if backend not in ("auto", "cupti", "xla"):
            raise UsageError(f'backend = {backend!r}: wants "auto", "cupti" or "xla"')
        if not isinstance(path, str) or not path:
            raise UsageError("capture wants the path of a run folder as text")
        self.path = path if "://" in path else os.path.abspath(os.path.expanduser(path))
        self._steps = steps
        self._collectors = collectors
        self._backend = backend
        self._budget_bytes = budget_bytes
        self._overwrite = overwrite
        self._entered: list[_OpenCapture | None] = []
        self._calls_lock = threading.Lock()
        self._called = False
        self._told = False

    def __enter__(self) -> Capture:
        self._entered.append(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        opened = self._entered.pop() if self._entered else None
        if opened is not None:
            opened.close(kind)
        return False

    def __call__(self, function: Function) -> Function:
        """Capture the first call of ``function``, plain or async. Raises UsageError for a generator function."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError("capture cannot decorate a generator: use `with capture(...)` around the loop")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def captured_async(*args: Any, **kwargs: Any) -> Any:
                with contextlib.ExitStack() as block:
                    self._enter_first(block, function)
                    return await function(*args, **kwargs)

            return captured_async  # type: ignore[return-value]

        @functools.wraps(function)
        def captured(*args: Any, **kwargs: Any) -> Any:
            with contextlib.ExitStack() as block:
                self._enter_first(block, function)
                return function(*args, **kwargs)

        return captured  # type: ignore[return-value]

    def _enter_first(self, block: contextlib.ExitStack, function: Callable[..., Any]) -> None:
        """Enter this capture for ``block``, a call of a decorated function, unless a call did so before."""
        with self._calls_lock:
            later, self._called = self._called, True
            tell, self._told = later and not self._told, self._told or later
        if later:
            if tell:
                name = getattr(function, "__qualname__", repr(function))
                warn(
                    f"{self.path}: only the first call was recorded, this one of {name} and later ones are not. "
                    "To record more, use `with capture(...)`, each with a folder of its own"
                )
            return
        try:
            block.enter_context(self)
        except BaseException:
            # Nothing began: a program that catches this may call again.
            self._called = False
            raise

    def _open(self) -> _OpenCapture | None:
        # Before anything that could raise: a capture inside another one must not end the training.
        remember_place()
        if not _slot.take(self.path):
            return None
        opened: _OpenCapture | None = None
        try:
            settings = self._settings()
            opened = self._opened(self._claimed(settings), settings)
            _slot.hold(opened)
            opened.begin()
        except BaseException as error:
            if opened is not None:
                opened.close(type(error))
            _slot.release()
            if isinstance(error, UsageError | CaptureError) or not isinstance(error, Exception):
                raise
            # Not a mistake of the call, so it must not cost the training.
            warn(f"{self.path}: nothing is recorded: {type(error).__name__}: {error}")
            return None
        return opened if opened.recording.is_open else None

    def _opened(self, recording: Recording, settings: Settings) -> _OpenCapture:
        return _OpenCapture(recording, settings, self._steps)

    def _chosen(self, settings: Settings) -> dict[str, Any]:
        """The run file's ``capture``."""
        return {
            "mode": "whole" if self._steps is None else "steps",
            "steps": None if self._steps is None else list(self._steps),
            "budget_bytes": settings.budget_bytes,
            "model_flops_per_token": settings.model_flops_per_token,
            "step_pattern": settings.step_pattern,
            "level": settings.level,
            "categories": None if settings.categories is None else list(settings.categories),
        }

    def _settings(self) -> Settings:
        try:
            directory = Path.cwd()
        except OSError:
            directory = Path("/")
        backend = None if self._backend == "auto" else self._backend
        given: dict[str, object] = {"budget_bytes": self._budget_bytes, "backend": backend}
        for name, wanted in self._collectors.items():
            given[name] = None if wanted == "auto" else wanted
        return load_settings(given, os.environ, directory)

    def _claimed(self, settings: Settings) -> Recording:
        """The recording in a folder that is ours now; every configuration error is raised here."""
        if settings.xla is True:
            if not is_importable() and not loaded_plugins():
                raise CaptureError("xla=True: JAX is not installed here, and no PJRT plugin with a profiler is loaded")
            reason = busy()
            if reason:
                raise CaptureError(f"xla=True: {reason}")
        if cuda_activity.insists(settings.cuda, settings.backend):
            if settings.cuda is False or settings.backend == "xla":
                raise UsageError(f"cuda={settings.cuda!r} and backend={settings.backend!r}: they exclude each other")
            reason = cuda_activity.unavailable()
            if reason:
                asked = "cuda=True" if settings.cuda is True else 'backend="cupti"'
                raise CaptureError(f"{asked}: {reason}")
        if settings.stacks is True and stack_sampling.unavailable():
            raise CaptureError(f"stacks=True: {stack_sampling.unavailable()}")
        if settings.power is True and (reason := power_sampling.unavailable()):
            raise CaptureError(f"power=True: {reason}")
        if settings.probe is True:
            planned = settings.probe_plan(settled_rank(os.environ), os.environ)
            if isinstance(planned, str):
                raise CaptureError(f"probe=True: {planned}")

        def claim() -> Recording:
            rank = settled_rank(os.environ)
            folder = RunFolder(self.path, settings.session, rank, settings.xla is not False)
            recording = Recording(folder, settings, self._chosen(settings))
            try:
                folder.claim(self._overwrite, recording.document)
            except OSError as error:
                # A full or failing disk is no mistake of the call: the program runs, unrecorded.
                recording.give_up(f"nothing is recorded: {self.path}: {error.strerror or error}")
            return recording

        return within(REACH_TIMEOUT_S, self.path, claim) if is_far(self.path) else claim()


class _OpenCapture:
    """One entered capture: feeds steps to its window and carries out what the window answers."""

    def __init__(self, recording: Recording, settings: Settings, steps: tuple[int, int] | None) -> None:
        self.recording = recording
        self._settings = settings
        self._steps = steps
        self._window = CaptureWindow(steps)
        self._times = StepTimes()
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def begin(self) -> None:
        if not self.recording.is_open:
            _slot.release()
            return
        self.recording.when_xla_is_due = self._step_listener_on
        self.recording.when_xla_starts = _slot.go_first
        if self._window.begin() is Action.START:
            self.recording.start()
        if self._steps is not None or self.recording.awaits_devices():
            self._step_listener_on()

    def close(self, kind: type[BaseException] | None) -> None:
        """End the capture at the end of its block, or at the interpreter's."""
        if os.getpid() != self._pid:
            return
        began = time.monotonic()
        drain_timeout_s = self._settings.drain_timeout_s
        if kind is not None and not issubclass(kind, Exception):
            drain_timeout_s = min(drain_timeout_s, INTERRUPTED_DRAIN_S)
        try:
            self._step_listener_off()
            self._note_step_times()
            with self._lock:
                phase = self._window.phase
                self._window.end()
            if phase is Phase.ARMED:
                self.recording.never_started(self._why_never())
            else:
                note = None
                if self._steps is not None and kind is None:
                    note = f"the block ended before step {self._steps[1] - 1} did"
                self.recording.stop(drain_timeout_s, None if kind is None else kind.__name__, note)
            if not self.recording.wait(max(self._settings.stop_timeout_s - (time.monotonic() - began), 0.0)):
                self.recording.say(
                    f"{self.recording.folder.path}: still being written {self._settings.stop_timeout_s:g} s after the "
                    "capture's end; this goes on behind the program"
                )
        except Exception as error:
            warn(f"{self.recording.folder.path}: the capture did not end cleanly: {error}")
        finally:
            # Once more: XLA's limit may have set it meanwhile.
            self._step_listener_off()
            _slot.close(self)

    def abandon(self) -> None:
        """In a forked child: the recording stays the parent's."""
        self._lock = threading.RLock()
        self.recording.abandon()

    def _why_never(self) -> str:
        assert self._steps is not None
        first, last = self._steps
        seen = self._window.seen
        what = f"steps {seen[0]} to {seen[1]} were seen" if seen else "no step was seen"
        return f"{self.recording.folder.path}: nothing recorded: no step in [{first}, {last}) began, {what}"

    def _on_step(self, event: str, name: str, number: Any) -> None:
        """Called by each step of the program on its own thread; the caller swallows exceptions."""
        if os.getpid() != self._pid:
            return
        try:
            self._take_step(event, name, number)
        except (KeyboardInterrupt, Exception):
            # The caller sends an interrupt to the program again.
            raise
        except BaseException as error:
            # A signal handler of the program called sys.exit() while this waited: that must not be lost.
            _raise_later(error)

    def _take_step(self, event: str, name: str, number: Any) -> None:
        try:
            number = operator.index(number)
        except TypeError:
            return
        thread = threading.get_ident()
        entering = event == "enter"
        with self._lock:
            if entering and self._steps is not None and self._window.is_outermost(thread):
                self._times.entered(self._stage(), thread, name, time.monotonic_ns())
            decide = self._window.step_entered if entering else self._window.step_exited
            action = decide(thread, name, number)
        if action is Action.START:
            self.recording.document["capture"]["started_at_step"] = number
            self.recording.start()
            self._times.begins("inside", thread, name, time.monotonic_ns())
        elif action is Action.STOP:
            # The listener stays for the steps after the recording, until there are enough of them.
            self._note_step_times()
            self.recording.stop(self._settings.drain_timeout_s)
        elif self._window.phase is Phase.OVER:
            if self._times.is_full(str(self._window.name)):
                self._step_listener_off()
                self._note_step_times()
        elif entering and self.recording.awaits_devices():
            self.recording.try_xla()
            if self._steps is None and not self.recording.awaits_devices():
                self._step_listener_off()
        elif not entering and self.recording.end_xla(self._settings.drain_timeout_s) and self._steps is None:
            self._step_listener_off()

    def _stage(self) -> Stage | None:
        if self._window.phase is Phase.ARMED:
            return "before"
        if self._window.phase is Phase.RECORDING:
            return "inside"
        # While the files are written the program shares the machine with that.
        return None if self.recording.is_open else "after"

    def _note_step_times(self) -> None:
        with self._lock:
            if self._steps is not None and self._window.name is not None:
                self.recording.note_step_times(self._times.document(self._window.name))

    def _step_listener_on(self) -> None:
        _native.set_step_listener(self._on_step)

    @staticmethod
    def _step_listener_off() -> None:
        _native.set_step_listener(None)


class _Slot:
    """The one capture of this process."""

    def __init__(self) -> None:
        self._hooked = False
        self._empty()

    def _empty(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._open: _OpenCapture | None = None
        self._closing: Recording | None = None

    def take(self, path: str) -> bool:
        """Reserve the slot; False, with a warning, while another capture is open or does not finish in time."""
        with self._lock:
            if self._taken:
                warn(f"{path}: another capture of this process is open; this one records nothing")
                return False
            self._taken = True
            closing = self._closing
            if not self._hooked:
                self._hooked = True
                atexit.register(self.at_exit)
                os.register_at_fork(after_in_child=self.in_child)
        if closing is not None and not closing.wait(closing.settings.stop_timeout_s):
            warn(f"{path}: the capture before is still being written; this one records nothing")
            self.release()
            return False
        return True

    def hold(self, opened: _OpenCapture) -> None:
        self._open = opened

    def release(self) -> None:
        with self._lock:
            self._taken, self._open = False, None

    def close(self, opened: _OpenCapture) -> None:
        """The block of ``opened`` is over; its files may not be."""
        with self._lock:
            if self._open is opened:
                self._taken, self._open = False, None
                self._closing = opened.recording if opened.recording.is_open else None

    def go_first(self) -> None:
        """XLA runs now: at the interpreter's end JAX takes its devices down, and the capture is to end before that."""
        atexit.unregister(self.at_exit)
        atexit.register(self.at_exit)

    def end_open(self, kind: type[BaseException] | None) -> None:
        opened = self._open
        if opened is not None:
            opened.close(kind)

    def try_xla(self) -> None:
        opened = self._open
        if opened is not None:
            opened.recording.try_xla()

    def collects(self, collector: str) -> bool:
        opened = self._open
        return opened is not None and bool(opened.recording.document_now()["collectors"].get(collector, {}).get("used"))

    def at_exit(self) -> None:
        """The interpreter ends: stop what is open, and give files a bounded time."""
        opened = self._open
        if opened is not None:
            opened.recording.say("the interpreter ended inside the capture", "info")
            opened.close(None)
        closing = self._closing
        if closing is not None:
            closing.wait(closing.settings.stop_timeout_s)

    def in_child(self) -> None:
        """After a fork, in the child: no hook, no open capture, locks that nobody holds."""
        opened = self._open
        self._empty()
        _native.set_step_listener(None)
        _native.set_step_marker(None)
        _native.set_thread_hook(None)
        if opened is not None:
            opened.abandon()


_slot = _Slot()


def end_open_capture(kind: type[BaseException] | None) -> None:
    """End the capture that is open, if any; ``kind``: of what ends it, KeyboardInterrupt for one in a hurry."""
    _slot.end_open(kind)


def collects(collector: str) -> bool:
    """Whether a capture is open that uses ``collector`` by now."""
    return _slot.collects(collector)


def try_xla_now() -> None:
    """JAX may have been imported: an open capture listens to its compiles now, and starts XLA's profiler at one."""
    _slot.try_xla()


def _raise_later(error: BaseException) -> None:
    """Raise a copy of ``error`` in the calling thread as soon as it is back in the program."""
    import ctypes

    arguments = error.args

    def construct(self: BaseException) -> None:
        BaseException.__init__(self, *arguments)
        if isinstance(self, SystemExit):
            self.code = arguments[0] if arguments else None

    again = type(type(error).__name__, (type(error),), {"__init__": construct})
    thread = ctypes.c_ulong(threading.get_ident())
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    threading.Timer(0.01, raise_in, (thread, ctypes.py_object(again))).start()


def _step_range(steps: tuple[int, int] | None) -> tuple[int, int] | None:
    if steps is None:
        return None
    try:
        first, last = (operator.index(number) for number in steps)
    except (TypeError, ValueError):
        raise UsageError(f"steps = {steps!r}: wants two whole numbers (first, last), half-open") from None
    if not 0 <= first < last:
        raise UsageError(f"steps = {steps!r}: wants 0 <= first < last; the range is half-open")
    return first, last
