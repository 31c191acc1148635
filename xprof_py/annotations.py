"""What a program says about itself: spans, steps, waits for input, checkpoints, instants and values.

All of it costs next to nothing until a capture runs, and none of it can make the program fail.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterable
from typing import Any

from xprof_py import _native
from xprof_py._native import checkpoint, counter, input_wait, mark, step, trace
from xprof_py.decorated import own_name, wrap_suspending
from xprof_py.inputs import wrap_input

__all__ = ["checkpoint", "counter", "input_wait", "mark", "scope", "set_filter", "step", "trace", "wrap_input"]


def set_filter(level: int | None = None, categories: Iterable[str] | None = None) -> None:
    """Record only some spans and marks, from their next start on; may be called at any time, also while recording.

    ``level``: those whose argument ``level=`` is higher are left out; None for no limit. ``categories``: those whose
    argument ``category=`` is a text not among these are left out; None for no limit. What says no level or category is
    always recorded, and so are steps, waits for input, checkpoints and counters: the breakdown rests on them.
    Raises TypeError for another type, ValueError for a level beyond 64 bits; the filter is then as it was.
    """
    if level is not None and (isinstance(level, bool) or not isinstance(level, int)):
        raise TypeError(f"level: a whole number or None, not {level!r}")
    if level is not None and not -(2**63) <= level < 2**63:
        raise ValueError(f"level: {level} does not fit 64 bits")
    if isinstance(categories, str):
        raise TypeError("categories: a list of texts, not one text")
    chosen = None if categories is None else list(categories)
    wrong = next((one for one in chosen or () if not isinstance(one, str)), None)
    if wrong is not None:
        raise TypeError(f"categories: a list of texts, and {wrong!r} is none")
    _native.set_filter(level, chosen)


class scope:  # noqa: N801  (used like trace: `with scope("attn"):`, `@scope("attn")`)
    """``trace`` and ``jax.named_scope`` in one: the same name on the host and in the compiled program.

    ``name``: the name of both. Without jax imported it is a ``trace``. Under a JAX transformation (jit, grad, vmap) it
    is only the named scope: the host's time there is tracing, not the work itself.
    """

    __slots__ = ("_entered", "_name", "_span")

    def __init__(self, name: str) -> None:
        self._name = name
        self._span = trace(name)
        self._entered: list[tuple[Any, bool]] = []

    def __enter__(self) -> scope:
        named_scope = getattr(sys.modules.get("jax"), "named_scope", None)
        named = None
        if named_scope is not None:
            named = named_scope(self._name)
            named.__enter__()
        on_host = not _under_jax_tracer()
        if on_host:
            self._span.__enter__()
        self._entered.append((named, on_host))
        return self

    def __exit__(self, *exception: object) -> None:
        named, on_host = self._entered.pop()
        if on_host:
            self._span.__exit__(None, None, None)
        if named is not None:
            named.__exit__(*exception)

    def __call__(self, function: Any) -> Any:
        make_span = functools.partial(scope, self._name)
        wrapper = wrap_suspending(function, make_span)
        if wrapper is not None:
            return wrapper
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"functions can be scoped, {own_name(function)} is none")

        @functools.wraps(function)
        def scoped(*args: Any, **kwargs: Any) -> Any:
            with make_span():
                return function(*args, **kwargs)

        return scoped


def _under_jax_tracer() -> bool:
    """Whether jax is tracing the calling code; False where jax is not imported or does not say."""
    # The public jax.core no longer has it. Looked up in sys.modules: jax is never imported for this.
    state_is_clean = getattr(sys.modules.get("jax._src.core"), "trace_state_clean", None)
    return state_is_clean is not None and not state_is_clean()


_warned = False


def _on_first_use(name: object) -> None:
    """Called by the recorder for each new name of a recording: asking jax at every span would cost too much."""
    global _warned
    if _warned or not _under_jax_tracer():
        return
    _warned = True
    warnings.warn(
        f"trace({name!r}) runs while jax traces the function around it: its span is the time of tracing, not of the"
        " compiled program. Use scope() there.",
        RuntimeWarning,
        stacklevel=2,
    )


_native.set_name_hook(_on_first_use)
