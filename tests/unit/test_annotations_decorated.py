"""@trace on every kind of function: it stays what it was, and every call has its span."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import dataclasses
import functools
import gc
import inspect
import pickle
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from xprof_py import _native
from xprof_py.annotations import checkpoint, input_wait, scope, trace
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.schema import Kind

Stop = Callable[[], list[str]]


@pytest.fixture
def stop(tmp_path: Path) -> Iterator[Stop]:
    """Records until it is called; it gives the events' names in order of their start."""
    path = tmp_path / "0-1.xpr"
    _native.recorder_start(path)

    def read() -> list[str]:
        _native.recorder_stop()
        names: list[str] = read_shard(path)["events"]["name"].to_pylist()
        return names

    yield read
    _native.recorder_stop()


@trace
def plain(a: int, /, b: int = 2, *, c: int = 3) -> tuple[int, int, int]:
    """Says what it got."""
    return a, b, c


@trace("named", layer=3)
def named(x: int) -> int:
    return x


def test_a_decorated_function_behaves_like_the_function() -> None:
    assert plain(1) == (1, 2, 3)
    assert plain(1, b=4, c=5) == (1, 4, 5)
    with pytest.raises(TypeError):
        plain()  # type: ignore[call-arg]
    assert plain.__name__ == plain.__qualname__ == "plain"
    assert plain.__doc__ == "Says what it got."
    assert plain.__module__ == __name__
    assert str(inspect.signature(plain)) == "(a: 'int', /, b: 'int' = 2, *, c: 'int' = 3) -> 'tuple[int, int, int]'"
    assert inspect.unwrap(plain) is plain.__wrapped__  # type: ignore[attr-defined]
    assert plain.__code__.co_name == "plain"
    assert plain.__annotations__["b"] == "int"
    assert pickle.loads(pickle.dumps(plain)) is plain
    assert weakref.ref(plain)() is plain
    assert {plain: 1}[plain] == 1
    plain.mine = 5  # type: ignore[attr-defined]
    assert plain.mine == 5  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        _ = plain.nothing  # type: ignore[attr-defined]
    assert functools.partial(plain, 9)() == (9, 2, 3)


def test_names_and_exceptions(stop: Stop) -> None:
    @trace
    def local() -> None:
        raise KeyError("mine")

    plain(1)
    named(1)
    with pytest.raises(KeyError, match="mine"):
        local()
    assert stop() == ["plain", "named", "local"]


class Model:
    @trace
    def method(self, x: int) -> tuple[Any, int]:
        return self, x

    @classmethod
    @trace
    def inner_class(cls, x: int) -> tuple[Any, int]:
        return cls, x

    @trace
    @classmethod
    def outer_class(cls, x: int) -> tuple[Any, int]:
        return cls, x

    @staticmethod
    @trace
    def inner_static(x: int) -> int:
        return x

    @trace
    @staticmethod
    def outer_static(x: int) -> int:
        return x

    @property
    @trace
    def prop(self) -> int:
        return 5

    @trace
    def __call__(self) -> int:
        return 6


class Child(Model):
    pass


def test_methods(stop: Stop) -> None:
    model = Child()
    assert model.method(1) == (model, 1)
    bound = model.method
    assert bound(2) == (model, 2)
    assert Child.method(model, 3) == (model, 3)
    for owner in (model, Child):
        assert owner.inner_class(1) == (Child, 1)
        assert owner.outer_class(1) == (Child, 1)
        assert owner.inner_static(1) == 1
        assert owner.outer_static(1) == 1
    assert model.prop == 5
    assert model() == 6
    assert str(inspect.signature(model.method)) == "(x: 'int') -> 'tuple[Any, int]'"
    twice = ["Model.inner_class", "Model.outer_class", "Model.inner_static", "Model.outer_static"] * 2
    assert stop() == ["Model.method"] * 3 + twice + ["Model.prop", "Model.__call__"]


def test_other_kinds_decorate_too(tmp_path: Path) -> None:
    @checkpoint
    def save() -> int:
        return 1

    @input_wait("loader")
    def load() -> int:
        return 2

    _native.recorder_start(tmp_path / "x.xpr")
    assert save() + load() == 3
    _native.recorder_stop()
    events = read_shard(tmp_path / "x.xpr")["events"].to_pylist()
    assert [(e["name"], e["kind"]) for e in events] == [("save", Kind.CHECKPOINT), ("loader", Kind.INPUT)]


def test_recursion_and_threads(tmp_path: Path) -> None:
    @trace
    def down(n: int) -> int:
        return 0 if n == 0 else 1 + down(n - 1)

    _native.recorder_start(tmp_path / "x.xpr")
    threads = [threading.Thread(target=down, args=(20,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _native.recorder_stop()
    profile = read_shard(tmp_path / "x.xpr")
    assert profile["lines"].num_rows == 4
    assert profile["events"].num_rows == 4 * 21
    for line in range(4):
        ends = [
            e["start_ps"] + e["duration_ps"] for e in profile["events"].to_pylist() if e["line"] == line
        ]  # each call lies within its caller
        assert ends == sorted(ends, reverse=True)


def test_a_call_that_is_open_at_the_stop(tmp_path: Path) -> None:
    @trace
    def stopping() -> None:
        _native.recorder_stop()

    _native.recorder_start(tmp_path / "x.xpr")
    stopping()
    assert [e["duration_ps"] for e in read_shard(tmp_path / "x.xpr")["events"].to_pylist()] == [None]


@trace("generated", size=2)
def generated(n: int) -> Generator[int, int, str]:
    """Counts."""
    total = 0
    for i in range(n):
        total += (yield i) or 0
    return f"sum {total}"


def test_generators(stop: Stop) -> None:
    assert inspect.isgeneratorfunction(generated)
    assert generated.__doc__ == "Counts."
    assert list(generated(3)) == [0, 1, 2]
    generator = generated(3)
    next(generator)
    assert generator.send(10) == 1
    generator.close()
    generator = generated(1)
    next(generator)
    with pytest.raises(StopIteration, match="sum 5"):
        generator.send(5)
    generator = generated(1)
    next(generator)
    with pytest.raises(OSError, match="thrown"):
        generator.throw(OSError("thrown"))
    generated(3)  # never asked for a value: no span
    assert stop() == ["generated"] * 4


def test_interleaved_generators_are_not_mistimed(tmp_path: Path) -> None:
    _native.recorder_start(tmp_path / "x.xpr")
    first, second = generated(2), generated(2)
    next(first)
    next(second)
    list(first)
    list(second)
    _native.recorder_stop()
    a, b = read_shard(tmp_path / "x.xpr")["events"].to_pylist()
    assert a["start_ps"] < b["start_ps"] < a["start_ps"] + a["duration_ps"] < b["start_ps"] + b["duration_ps"]


@trace
async def awaited(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


def test_interleaved_coroutines(tmp_path: Path) -> None:
    assert inspect.iscoroutinefunction(awaited)
    waits_s = [0.03, 0.01, 0.02]

    async def gather() -> list[str]:
        return await asyncio.gather(*(awaited(s) for s in waits_s))

    _native.recorder_start(tmp_path / "x.xpr")
    assert asyncio.run(gather()) == ["done"] * 3
    _native.recorder_stop()
    durations_s = [e["duration_ps"] / 1e12 for e in read_shard(tmp_path / "x.xpr")["events"].to_pylist()]
    for duration_s, wait_s in zip(durations_s, waits_s, strict=True):
        assert wait_s * 0.99 <= duration_s < wait_s + 0.5


def test_cancelled_coroutine(stop: Stop) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(awaited(60))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert stop() == ["awaited"]


@trace
async def streamed(n: int) -> AsyncGenerator[int, int]:
    for i in range(n):
        try:
            sent = yield i
        except KeyError:
            yield -1
        else:
            if sent:
                yield sent * 100


def test_async_generators(stop: Stop) -> None:
    assert inspect.isasyncgenfunction(streamed)

    async def use() -> None:
        assert [i async for i in streamed(3)] == [0, 1, 2]
        stream = streamed(5)
        assert await stream.__anext__() == 0
        assert await stream.asend(7) == 700
        assert await stream.__anext__() == 1
        assert await stream.athrow(KeyError("k")) == -1
        await stream.aclose()
        stream = streamed(1)
        await stream.__anext__()
        with pytest.raises(OSError, match="thrown"):
            await stream.athrow(OSError("thrown"))

    asyncio.run(use())
    assert stop() == ["streamed"] * 3


def test_generator_based_coroutines_can_still_be_awaited(stop: Stop) -> None:
    @trace
    @types.coroutine
    def low_level() -> Generator[None, None, int]:
        yield
        return 4

    async def use() -> int:
        return await low_level()

    assert asyncio.run(use()) == 4
    assert stop() == ["low_level"]


def test_scope_without_jax_is_a_trace(stop: Stop) -> None:
    @scope("decorated")
    def inside() -> int:
        return 3

    @scope("coroutine")
    async def slow() -> int:
        return 4

    with scope("block"):
        assert inside() == 3
    assert asyncio.run(slow()) == 4
    with pytest.raises(TypeError):
        scope("x")(int)
    assert stop() == ["block", "decorated", "coroutine"]


def test_a_scope_entered_again_is_counted_not_mistimed(tmp_path: Path) -> None:
    reused = scope("reused")
    _native.recorder_start(tmp_path / "x.xpr")
    with reused, reused:
        pass
    with reused:
        pass
    assert _native.recorder_stop()["reentered"] == 2
    assert read_shard(tmp_path / "x.xpr")["events"]["name"].to_pylist() == ["reused"]


def test_cloudpickle_takes_functions_of_a_script_along(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed: the extra `test` brings it")
    script = """
import pickle, sys
import cloudpickle
from xprof_py.annotations import trace
@trace("mine", layer=3)
def double(x):
    return 2 * x
def make():
    @trace
    def local(x):
        return 3 * x
    return local
assert pickle.loads(pickle.dumps(double)) is double
with open(sys.argv[1], "wb") as file:
    cloudpickle.dump([double, make()], file)
"""
    other = """
import pickle, sys
double, triple = pickle.load(open(sys.argv[1], "rb"))
assert (double(4), triple(4)) == (8, 12) and "traced" in repr(double), repr(double)
"""
    for code in (script, other):
        command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "functions")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_decorated_functions_are_collected() -> None:
    def make() -> weakref.ref[Any]:
        @trace("cycle", holder=[])
        def inner() -> None: ...

        inner.itself = inner  # type: ignore[attr-defined]
        return weakref.ref(inner)

    dead = make()
    gc.collect()
    assert dead() is None


def test_what_the_standard_library_stacks_on_functions(stop: Stop) -> None:
    """Above and below @trace, whatever order: results are the plain ones, each call that runs has its spans."""

    @trace("outer", n=1)
    @trace
    def twice(x: int) -> int:
        return x

    @functools.lru_cache(maxsize=None)  # noqa: UP033
    @trace
    def cached(x: int) -> int:
        return x * 2

    @contextlib.contextmanager
    @trace
    def managed() -> Generator[int, None, None]:
        yield 3

    @trace
    @contextlib.contextmanager
    def managed_inside() -> Generator[int, None, None]:
        yield 4

    @functools.singledispatch
    @trace("dispatched")
    def dispatched(x: object) -> str:
        return "object"

    @dispatched.register
    @trace("dispatched int")
    def _(x: int) -> str:
        return "int"

    class Base(abc.ABC):
        @abc.abstractmethod
        @trace
        def abstract(self) -> int:
            return 5

        @functools.cached_property
        @trace
        def once(self) -> int:
            return 6

        @trace
        def add(self, a: int, b: int) -> int:
            return a + b

        add_one = functools.partialmethod(add, 1)

    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]

    class Whole(Base):
        @trace
        def abstract(self) -> int:
            return super().abstract() + 1  # type: ignore[safe-super]

    @dataclasses.dataclass
    class Record:
        x: int

        @trace
        def double(self) -> int:
            return self.x * 2

    assert twice(1) == 1
    assert [cached(2), cached(2)] == [4, 4]
    with managed() as a, managed_inside() as b:
        assert (a, b) == (3, 4)
    assert [dispatched(""), dispatched(1)] == ["object", "int"]
    whole = Whole()
    assert [whole.abstract(), whole.once, whole.once, whole.add_one(9)] == [6, 6, 6, 10]
    assert Record(4).double() == 8
    assert inspect.signature(Record.double) == inspect.signature(Record.double.__wrapped__)  # type: ignore[attr-defined]
    assert stop() == [
        *["outer", "twice", "cached", "managed", "managed_inside", "dispatched", "dispatched int"],
        *["Whole.abstract", "Base.abstract", "Base.once", "Base.add", "Record.double"],
    ]


def test_a_scope_may_be_left_on_another_thread(tmp_path: Path) -> None:
    _native.recorder_start(tmp_path / "x.xpr")
    block = scope("block")
    block.__enter__()
    with trace("here"):
        other = threading.Thread(target=block.__exit__, args=(None, None, None), name="other")
        other.start()
        other.join()
    with scope("after"):
        pass
    assert _native.recorder_stop()["reentered"] == 0
    profile = read_shard(tmp_path / "x.xpr")
    names = profile["lines"]["name"].to_pylist()
    events = {e["name"]: e for e in profile["events"].to_pylist()}
    assert names[events["block"]["line"]] == "other"
    assert names[events["here"]["line"]] == names[events["after"]["line"]] != "other"
    assert events["block"]["start_ps"] < events["here"]["start_ps"]
    assert all(event["duration_ps"] is not None for event in events.values())
