"""Compile intervals from jax.monitoring: tracing, lowering and compiling, with the function's name."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from xprof_py import _native
from xprof_py.collectors.drain import FENCE_NAME

# schema.Kind.COMPILE, which the SDK does not import; a test holds the two together.
COMPILE_KIND = 7
_PREFIX = "/jax/core/compile/"
_EVENTS = frozenset({"jaxpr_trace_duration", "jaxpr_to_mlir_module_duration", "backend_compile_duration"})


class CompileListener:
    """Writes each compile interval that JAX reports as a span that ends now, on the thread that compiled.

    ``on_compile`` is called at each event before its span is written: the moment at which a program that had no
    devices yet has them.
    """

    def __init__(self, on_compile: Callable[[], None]) -> None:
        self._on_compile = on_compile
        self._registered = False
        self._listening = False
        self.spans = 0

    def start(self) -> bool:
        """Listen from now on, if JAX is imported; returns whether it is. A second call changes nothing."""
        monitoring = sys.modules.get("jax.monitoring")
        register = getattr(monitoring, "register_event_duration_secs_listener", None)
        if register is None:
            return False
        self._listening = True
        if not self._registered:
            register(self._heard)
            self._registered = True
        return True

    def stop(self) -> None:
        """Stop listening. Where JAX cannot forget the listener it stays, and does nothing."""
        self._listening = False
        unregister = getattr(sys.modules.get("jax.monitoring"), "unregister_event_duration_listener", None)
        if self._registered and unregister is not None:
            # The program may have cleared all listeners itself, which jax answers with an assertion.
            with contextlib.suppress(Exception):
                unregister(self._heard)
                self._registered = False

    def mute(self) -> None:
        """Hear nothing more, without a call into JAX: in a forked child its locks may be held for ever."""
        self._listening = False

    def _heard(self, event: str, duration_secs: float, **details: Any) -> None:
        """Called by JAX inside the program's own compile: nothing may be raised from here."""
        if not self._listening or not event.startswith(_PREFIX):
            return
        with contextlib.suppress(Exception):
            name = event[len(_PREFIX) :]
            if name not in _EVENTS:
                return
            function = str(details.get("fun_name", ""))
            if FENCE_NAME in function:
                return
            self._on_compile()
            _native.record_past(name, COMPILE_KIND, round(duration_secs * 1e9), fun_name=function)
            self.spans += 1
