"""``wrap_input``: the time a program waits for its next batch, as spans of kind INPUT."""

from __future__ import annotations

from typing import Any

from xprof_py._native import input_wait


def wrap_input(source: Any, name: str = "input") -> Any:
    """``source`` (a loader, iterable, iterator or asynchronous one of these), each of its ``next`` calls a span.

    The result can be iterated as often as ``source`` can, has its length, indexing and attributes, and passes on
    attributes that are set. The call that ends the iteration is a span too. ``name``: of the spans.
    Raises TypeError if ``source`` cannot be iterated.
    """
    kind = type(source)
    is_iterable = hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")
    is_async = hasattr(kind, "__aiter__")
    if not is_iterable and not is_async:
        raise TypeError(f"{kind.__name__!r} object is not iterable")
    if hasattr(kind, "__next__"):
        return _TimedIterator(source, name)
    if hasattr(kind, "__anext__"):
        return _TimedAsyncIterator(source, name)
    if is_iterable and is_async:
        return _TimedBoth(source, name)
    return _TimedAsync(source, name) if is_async else _Timed(source, name)


class _Forwarding:
    """Everything but iteration is the source's."""

    __slots__ = ("_xprof_name", "_xprof_source")

    def __init__(self, source: Any, name: str) -> None:
        object.__setattr__(self, "_xprof_source", source)
        object.__setattr__(self, "_xprof_name", name)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_xprof_"):  # not yet set: a copy or an unpickled object in the making
            raise AttributeError(attribute)
        return getattr(self._xprof_source, attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(self._xprof_source, attribute, value)

    def __delattr__(self, attribute: str) -> None:
        delattr(self._xprof_source, attribute)

    def __len__(self) -> int:
        return len(self._xprof_source)

    def __bool__(self) -> bool:
        return bool(self._xprof_source)

    def __getitem__(self, key: Any) -> Any:
        return self._xprof_source[key]

    def __repr__(self) -> str:
        return f"wrap_input({self._xprof_source!r})"

    def __reduce__(self) -> Any:
        return wrap_input, (self._xprof_source, self._xprof_name)


class _Timed(_Forwarding):
    __slots__ = ()

    def __iter__(self) -> Any:
        return _TimedIterator(iter(self._xprof_source), self._xprof_name)


class _TimedAsync(_Forwarding):
    __slots__ = ()

    def __aiter__(self) -> Any:
        return _TimedAsyncIterator(self._xprof_source.__aiter__(), self._xprof_name)


class _TimedBoth(_Timed, _TimedAsync):
    __slots__ = ()


class _TimedIterator(_Forwarding):
    __slots__ = ("_xprof_where",)

    def __init__(self, source: Any, name: str) -> None:
        super().__init__(source, name)
        object.__setattr__(self, "_xprof_where", _where(source, "__next__"))

    def __iter__(self) -> Any:
        # Some loaders are their own iterator and begin anew whenever they are asked for one.
        iterator = iter(self._xprof_source)
        return self if iterator is self._xprof_source else _TimedIterator(iterator, self._xprof_name)

    def __next__(self) -> Any:
        with input_wait(self._xprof_name, source=self._xprof_where):
            return next(self._xprof_source)


class _TimedAsyncIterator(_Forwarding):
    __slots__ = ("_xprof_where",)

    def __init__(self, source: Any, name: str) -> None:
        super().__init__(source, name)
        object.__setattr__(self, "_xprof_where", _where(source, "__anext__"))

    def __aiter__(self) -> Any:
        iterator = self._xprof_source.__aiter__()
        return self if iterator is self._xprof_source else _TimedAsyncIterator(iterator, self._xprof_name)

    async def __anext__(self) -> Any:
        with input_wait(self._xprof_name, source=self._xprof_where):
            return await self._xprof_source.__anext__()


def _where(iterator: Any, method: str) -> str:
    """``file.py:line function`` of the code that makes the batches: what a person opens to make the input faster.

    A generator's own code, else that of the iterator's next method; the iterator's type where that is not Python.
    """
    kind = type(iterator)
    code = next((c for c in (getattr(iterator, a, None) for a in ("gi_code", "ag_code")) if c is not None), None)
    if code is None:
        code = getattr(getattr(kind, method, None), "__code__", None)
    if code is None:
        return f"{kind.__module__}.{kind.__qualname__}"
    return f"{code.co_filename}:{code.co_firstlineno} {code.co_name}"
