"""What ``@trace`` makes of a function. Each call has a span of its own, whatever threads and tasks do in between.

A coroutine function's span covers its awaits. A generator function's span runs from the first value that is asked for
to exhaustion, ``close()`` or an exception, so it also covers what the consumer does between two values.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from xprof_py import _native
from xprof_py.config import choice
from xprof_py.messages import warn

_SPANS: dict[int, Callable[..., Any]] = {1: _native.trace, 3: _native.input_wait, 4: _native.checkpoint}


def decorate(function: Any, kind: int, name: Any, keys: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """``function`` with its calls recorded as spans.

    ``kind``: number of schema.Kind (span, input, checkpoint). ``name``: None for the function's own. ``keys`` and
    ``values``: the span's arguments. classmethod and staticmethod objects keep their nature.
    Raises TypeError for a class and for what cannot be called.
    """
    if isinstance(function, classmethod | staticmethod):
        return type(function)(decorate(function.__func__, kind, name, keys, values))
    if isinstance(function, type) or not callable(function):
        raise TypeError(f"functions can be traced, {function!r} is none")
    if name is None:
        name = own_name(function)
    make_span = functools.partial(_SPANS[kind], name, **dict(zip(keys, values, strict=True)))
    wrapper = wrap_suspending(function, make_span)
    if wrapper is None and _swaps() and _native.swap(function, kind, name, keys, values):
        return function
    if wrapper is None:
        wrapper = functools.update_wrapper(_native.decorated(function, kind, name, keys, values), function)
        is_compiling = getattr(getattr(sys.modules.get("torch"), "compiler", None), "is_dynamo_compiling", None)
        if is_compiling is not None:
            wrapper = _beside_torch(function, wrapper, is_compiling)
    return wrapper


@functools.cache
def _swaps() -> bool:
    """Whether XPROF_PY_SWAP is set: functions then record their calls themselves (native/python/recorder_swapped.c)."""
    value = os.environ.get("XPROF_PY_SWAP") or False
    try:
        wanted = choice(value) is True
    except ValueError as error:
        warn(f"XPROF_PY_SWAP = {value!r}: {error}; functions are not swapped")
        return False
    if wanted and sys.version_info < (3, 12):
        warn("XPROF_PY_SWAP needs Python 3.12; decorated functions are objects, as without it")
        return False
    return wanted


def _beside_torch(function: Any, recorded: Any, is_compiling: Callable[[], bool]) -> Any:
    """What a function of a program with torch becomes: ``recorded``, but ``function`` where torch.compile reads it.

    torch.compile wants functions of Python: it breaks its graph at other callables, and fails at a module whose
    ``forward`` is one.
    """

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        # While it compiles this, torch knows the answer and leaves the other branch out.
        return function(*args, **kwargs) if is_compiling() else recorded(*args, **kwargs)

    return traced


def reduce(
    decorated: Any, function: Any, kind: int, name: Any, keys: tuple[str, ...], values: tuple[Any, ...]
) -> str | tuple[Any, ...]:
    """What ``__reduce__`` of a decorated function returns.

    Functions pickle by name, and so does this. cloudpickle takes functions apart that the other side cannot import
    (local ones, those of ``__main__``), which it can only do if it gets to see them.
    """
    caller = str(sys._getframe(1).f_globals.get("__name__", ""))
    qualname = str(decorated.__qualname__)
    if "<locals>" in qualname or (decorated.__module__ == "__main__" and "cloudpickle" in caller):
        return decorate, (function, kind, name, keys, values)
    return qualname


def own_name(function: Any) -> str:
    """The function's qualified name, without the functions around it."""
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str):
        name = type(function).__qualname__
    return name.rpartition("<locals>.")[2]


def wrap_suspending(function: Any, make_span: Callable[[], Any]) -> Any:
    """``function`` within ``make_span()`` for coroutine, generator and async generator functions; None for others."""
    if inspect.isasyncgenfunction(function):
        return _wrap_async_generator(function, make_span)
    if inspect.iscoroutinefunction(function):
        return _wrap_coroutine(function, make_span)
    if inspect.isgeneratorfunction(function):
        return _wrap_generator(function, make_span)
    return None


def _wrap_coroutine(function: Callable[..., Any], make_span: Callable[[], Any]) -> Any:
    @functools.wraps(function)
    async def traced(*args: Any, **kwargs: Any) -> Any:
        with make_span():
            return await function(*args, **kwargs)

    return traced


def _wrap_generator(function: Callable[..., Any], make_span: Callable[[], Any]) -> Any:
    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with make_span():
            return (yield from function(*args, **kwargs))

    # A generator-based coroutine (types.coroutine) can be awaited only while its flag is there.
    if function_flags(function) & inspect.CO_ITERABLE_COROUTINE:
        return types.coroutine(traced)
    return traced


def function_flags(function: Any) -> int:
    """The flags of the function's code, 0 where it has none."""
    return int(getattr(getattr(inspect.unwrap(function), "__code__", None), "co_flags", 0))


def _wrap_async_generator(function: Callable[..., AsyncGenerator[Any, Any]], make_span: Callable[[], Any]) -> Any:
    @functools.wraps(function)
    async def traced(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with make_span():
            inner = function(*args, **kwargs)
            try:
                value = await inner.__anext__()
                while True:
                    try:
                        sent = yield value
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        value = await inner.athrow(error)
                    else:
                        value = await inner.asend(sent)
            except StopAsyncIteration:
                return
            finally:
                await inner.aclose()

    return traced
