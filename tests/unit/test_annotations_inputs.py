"""wrap_input: the loader stays the loader, and each wait for a batch is a span."""

from __future__ import annotations

import asyncio
import copy
import pickle
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xprof_py import _native
from xprof_py.annotations import wrap_input
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.schema import Kind

Stop = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def stop(tmp_path: Path) -> Iterator[Stop]:
    """Records until it is called; it gives the events."""
    _native.recorder_start(tmp_path / "x.xpr")

    def read() -> list[dict[str, Any]]:
        _native.recorder_stop()
        events: list[dict[str, Any]] = read_shard(tmp_path / "x.xpr")["events"].to_pylist()
        return events

    yield read
    _native.recorder_stop()


class Loader:
    batch_size = 4

    def __init__(self, n: int = 3, delay_s: float = 0.0) -> None:
        self.n = n
        self.delay_s = delay_s

    def __iter__(self) -> Iterator[int]:
        for i in range(self.n):
            time.sleep(self.delay_s)
            yield i

    def __len__(self) -> int:
        return self.n


def test_it_iterates_anew_and_times_each_next(stop: Stop) -> None:
    wrapped = wrap_input(Loader(3, delay_s=0.02), name="batches")
    assert list(wrapped) == [0, 1, 2]
    assert list(wrapped) == [0, 1, 2]
    events = stop()
    assert [(e["name"], e["kind"]) for e in events] == [("batches", Kind.INPUT)] * 8
    slow = [e["duration_ps"] >= 0.019e12 for e in events]
    assert slow == [True, True, True, False] * 2  # the last call only finds the end


def test_it_is_the_loader_in_every_other_way() -> None:
    loader = Loader(3)
    wrapped = wrap_input(loader)
    assert len(wrapped) == 3
    assert wrapped.batch_size == 4
    wrapped.n = 5
    assert loader.n == len(wrapped) == 5
    with pytest.raises(AttributeError):
        _ = wrapped.nothing
    assert not hasattr(wrapped, "__next__")
    assert bool(wrap_input([])) is False
    assert wrap_input([7, 8])[1] == 8
    assert list(copy.copy(wrapped)) == list(pickle.loads(pickle.dumps(wrapped))) == [0, 1, 2, 3, 4]
    assert "Loader" in repr(wrapped)
    assert list(zip(wrap_input("ab"), wrap_input(range(2)), strict=True)) == [("a", 0), ("b", 1)]
    generator = wrap_input(i for i in range(2))
    assert bool(generator)
    with pytest.raises(TypeError):
        len(generator)
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        wrap_input(5)


def test_one_shot_iterators(stop: Stop) -> None:
    wrapped = wrap_input(iter([1, 2]))
    assert iter(wrapped) is wrapped
    assert next(wrapped) == 1
    assert list(wrapped) == [2]
    assert list(wrapped) == []
    with pytest.raises(StopIteration):
        next(wrapped)
    assert len(stop()) == 5


def test_a_loader_that_is_its_own_iterator_begins_anew(stop: Stop) -> None:
    class Resetting:
        left = 0

        def __iter__(self) -> Resetting:
            self.left = 2
            return self

        def __next__(self) -> int:
            if self.left == 0:
                raise StopIteration
            self.left -= 1
            return self.left

    wrapped = wrap_input(Resetting())
    assert [list(wrapped), list(wrapped)] == [[1, 0], [1, 0]]
    assert len(stop()) == 6


def test_an_error_of_the_loader_passes_and_ends_its_span(stop: Stop) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(wrap_input(broken()))
    assert [e["duration_ps"] is not None for e in stop()] == [True, True]


def test_asynchronous_sources(stop: Stop) -> None:
    class Stream:
        size = 2

        async def __aiter__(self) -> AsyncIterator[int]:
            for i in range(self.size):
                await asyncio.sleep(0.02)
                yield i

    class Both(Loader, Stream):
        pass

    async def collect(source: Any) -> list[int]:
        return [i async for i in source]

    stream = wrap_input(Stream())
    assert stream.size == 2
    assert not hasattr(type(stream), "__iter__")
    for _ in range(2):
        assert asyncio.run(collect(stream)) == [0, 1]
    both = wrap_input(Both(1))
    assert list(both) == [0]
    assert asyncio.run(collect(both)) == [0, 1]
    assert asyncio.run(collect(wrap_input(aiter(Stream())))) == [0, 1]
    events = stop()
    assert [e["kind"] for e in events] == [Kind.INPUT] * (3 + 3 + 2 + 3 + 3)
    assert [e["duration_ps"] >= 0.019e12 for e in events[:3]] == [True, True, False]
