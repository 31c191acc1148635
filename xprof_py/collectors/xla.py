"""XLA's profiler: started the way JAX starts it, stopped for the bytes alone.

XLA has one session per process and says so only when it is too late: a second one constructs, and loses its events at
stop. So the session is started through ``jax.profiler.start_trace``, whose state the program's own calls respect, and
taken from that state at the end: ``stop()`` gives the XSpace's bytes, where ``stop_trace`` would also write a JSON
file that takes three times as long. The names used for that are private to JAX; where one is missing,
``jax.profiler.stop_trace`` does the work, and ``stop`` says so.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xprof_py.rank import jax_backend_is_up

THREAD_MARK = "xprof_py.thread"


class XlaError(Exception):
    """XLA's profiler could not be started or stopped; the text says why."""


@dataclass(frozen=True)
class XlaResult:
    """What stopping gave: ``content``, the XSpace's bytes, or None where JAX wrote the file; ``note`` says why.

    ``reaches_end`` is False where the session ended before the capture did.
    """

    content: bytes | None
    note: str | None
    reaches_end: bool = True


def is_importable() -> bool:
    """Whether JAX is imported or could be, without importing it."""
    if "jax" in sys.modules:
        return sys.modules["jax"] is not None
    import importlib.util

    return importlib.util.find_spec("jax") is not None


class XlaProfiler:
    """One XLA session of this process. Not thread-safe: its owner calls one method at a time."""

    def __init__(self, session: str, host_tracer_level: int) -> None:
        self._session = session
        self._host_tracer_level = host_tracer_level
        self._taken: Any = None
        self._raw: Any = None
        self._started = False
        self.running = False
        self.has_devices = True

    def can_start(self) -> bool:
        """Whether the program has its devices. Before that, starting would bring them up in the program's place."""
        return jax_backend_is_up() and hasattr(sys.modules["jax"], "profiler")

    def start(self, log_dir: str, *, devices: bool = True) -> None:
        """Start the session; ``log_dir`` is where JAX writes if the program stops the trace itself.

        ``devices`` False: the host alone, as another collector has the devices.

        Raises:
            XlaError: this JAX cannot leave its GPUs alone, a trace of the program's own is running, or JAX refused.
        """
        reason = busy()
        if reason:
            raise XlaError(reason)
        jax = sys.modules["jax"]
        try:
            options = jax.profiler.ProfileOptions()
            options.host_tracer_level = self._host_tracer_level
            options.python_tracer_level = 0
            if not devices:
                _leave_devices(jax, options)
            options.session_id = self._session
            jax.profiler.start_trace(log_dir, profiler_options=options)
        except XlaError:
            raise
        except Exception as error:
            raise XlaError(f"jax.profiler.start_trace: {error}") from error
        self._taken = _current(_state())
        self._raw = None if self._taken is None else _raw_session(self._taken)
        self._started = self.running = True
        self.has_devices = devices and jax.default_backend() != "cpu"

    def stop(self) -> XlaResult:
        """End the session. Runs without the interpreter's lock for most of its time.

        Raises:
            XlaError: the events are lost; the text says how.
        """
        self.running = False
        try:
            return self._stop()
        finally:
            self._started = False

    def _stop(self) -> XlaResult:
        taken, raw, self._taken, self._raw = self._taken, self._raw, None, None
        state = _state()
        if raw is None or state is None:
            return self._stop_through_jax()
        with state.lock:
            if _current(state) is not taken:
                return XlaResult(None, "the program stopped XLA's profiler itself", reaches_end=False)
            try:
                content = raw.stop()
            except Exception as error:
                raise XlaError(f"XLA's session gave nothing back: {error}") from error
            finally:
                _forget(state, taken)
        return XlaResult(bytes(content), None)

    def _stop_through_jax(self) -> XlaResult:
        try:
            sys.modules["jax"].profiler.stop_trace()
        except Exception as error:
            raise XlaError(f"jax.profiler.stop_trace: {error}") from error
        return XlaResult(None, "this JAX does not show its session: stopped through jax.profiler.stop_trace")

    def is_taking(self) -> bool:
        """Whether this session still takes events, :meth:`stop` running or not."""
        return self._started and is_collecting()

    @staticmethod
    def step_marker() -> Callable[..., Any]:
        """What makes XLA's own step marker: called as ``(name, step_num=..., xprof_tid=...)`` it is a context manager.

        ``xprof_tid`` is the thread, which XSpace lines do not name. ``jax.profiler.StepTraceAnnotation`` adds to its
        base only ``_r=1``, XSpace's stat of a step, and takes as long again for it: it is passed over where it can be.
        """
        profiler = sys.modules["jax"].profiler
        annotation = profiler.TraceAnnotation
        native = annotation.__base__
        if profiler.StepTraceAnnotation.__base__ is not annotation or native.__module__ != "jaxlib._profiler":
            return profiler.StepTraceAnnotation  # type: ignore[no-any-return]
        return functools.partial(native, _r=1)

    @staticmethod
    def mark_thread(tid: int) -> None:
        """Leave a mark on the calling thread's XSpace line: ``xprof_py.thread`` with ``tid``, the OS's thread id."""
        with sys.modules["jax"].profiler.TraceAnnotation(THREAD_MARK, tid=tid):
            pass


def _leave_devices(jax: Any, options: Any) -> None:
    """Raises XlaError where this JAX has no switch for that, and GPUs, of which it would take CUPTI."""
    if hasattr(options, "device_tracer_level"):
        options.device_tracer_level = 0
    elif jax.default_backend() != "cpu":
        raise XlaError("the GPUs are collected through CUPTI, and this JAX cannot profile the host alone")


def is_collecting() -> bool:
    """Whether any session of XLA's profiler takes events at this moment; False where it cannot be asked."""
    try:
        return bool(sys.modules["jax"].profiler.TraceAnnotation.is_enabled())
    except (KeyError, AttributeError):
        return False


def _state() -> Any:
    """JAX's record of its one trace, None where this JAX has none by that name."""
    state = getattr(sys.modules.get("jax._src.profiler"), "_profile_state", None)
    if state is None or not hasattr(state, "lock") or not hasattr(state, "reset"):
        return None
    return state if hasattr(state, "profile_session") or hasattr(state, "session") else None


def _current(state: Any) -> Any:
    """The session that JAX's record holds: the raw one up to 0.10, a ProfileSession around it later."""
    if state is None:
        return None
    return state.profile_session if hasattr(state, "profile_session") else state.session


def _raw_session(session: Any) -> Any:
    """The native session inside, None where it does not show itself."""
    raw = getattr(session, "_raw_session", session)
    return raw if hasattr(raw, "stop_and_export") else None


def _forget(state: Any, session: Any) -> None:
    """Leave JAX's record as its own stop_trace would, so that the program can trace again."""
    if hasattr(session, "_raw_session"):
        session._raw_session = None
        session._is_running = False
    state.reset()
    clear = getattr(sys.modules["jax._src.profiler"], "clear_metadata", None)
    if clear is not None:
        clear()


def busy() -> str | None:
    """Why a session cannot be started at this moment, None if it can. JAX need not be imported."""
    if _current(_state()) is not None:
        return "the program's own jax.profiler trace is running"
    if is_collecting():
        return "another session of XLA's profiler is running"
    return None
