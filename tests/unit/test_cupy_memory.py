"""CuPy's memory pool in a capture: each allocation and release, with its bytes, its step and its span."""

from __future__ import annotations

import collections
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_cupy
import pytest

from xprof_py import _native, step, trace
from xprof_py.collectors import cupy_memory
from xprof_py.collectors.cupy_memory import CupyMemory
from xprof_py.postprocess.analyses import allocations, memory_timeline
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.schema import Kind

MIB = 1 << 20
MODULES = ("cupy", "cupy.cuda", "cupy.cuda.memory_hook")


@pytest.fixture
def without_cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    fake_cupy.get_memory_hooks().clear()
    yield
    for name in MODULES:
        sys.modules.pop(name, None)
    fake_cupy.get_memory_hooks().clear()


@pytest.fixture
def pool(without_cupy: None) -> fake_cupy.Pool:
    return fake_cupy.install(fake_cupy.Pool())


class Recorded:
    """A recorder and the collector around a block; then the joined profile and what the run file would say."""

    def __init__(self, folder: Path, budget_bytes: int | None = 1 << 30) -> None:
        self.path = folder / "0-1.xpr"
        self.collector = CupyMemory(budget_bytes)
        self.about: dict[str, Any] = {}

    def __enter__(self) -> Recorded:
        _native.recorder_start(self.path)
        self.collector.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.about = self.collector.stop()
        _native.recorder_stop()

    def profile(self) -> Profile:
        return join_profile(read_shard(self.path))

    def timeline(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = memory_timeline.partial(self.profile()).to_pylist()
        return rows

    def allocations(self) -> list[tuple[Any, ...]]:
        found = allocations.finish(allocations.partial(self.profile()))
        names = ("step", "span", "allocations", "allocated_bytes", "frees", "freed_bytes", "peak_bytes")
        return [tuple(row[name] for name in names) for row in found.to_pylist()]


def test_each_allocation_belongs_to_the_step_and_span_that_asked_for_it(pool: fake_cupy.Pool, tmp_path: Path) -> None:
    """Two steps: `forward` takes 1 MiB and 2 MiB, `backward` gives 2 MiB back; step 1 also gives back the 1 MiB of
    step 0. In use: 1, 3, 1 | 2, 4, 2, 1 MiB. The pool, which has 1 free when 2 are wanted, takes 2 more."""
    with Recorded(tmp_path) as recorded:
        kept = []
        for number in range(2):
            with step(number):
                with trace("forward"):
                    kept.append(pool.malloc(MIB))
                    large = pool.malloc(2 * MIB)
                with trace("backward"):
                    pool.free(large)
                    if number:
                        pool.free(kept[0])
    assert [row["bytes"] // MIB for row in recorded.timeline()] == [1, 3, 1, 2, 4, 2, 1]
    assert [row["changed_bytes"] // MIB for row in recorded.timeline()] == [1, 2, -2, 1, 2, -2, -1]
    assert [row["pool_bytes"] // MIB for row in recorded.timeline()] == [1, 3, 3, 3, 5, 5, 5]
    assert {row["device"] for row in recorded.timeline()} == {"cupy GPU:0"}
    assert not any(row["host_memory"] for row in recorded.timeline())
    assert recorded.allocations() == [
        (0, "backward", 0, 0, 1, 2 * MIB, MIB),
        (0, "forward", 2, 3 * MIB, 0, 0, 3 * MIB),
        (1, "backward", 0, 0, 2, 3 * MIB, 2 * MIB),
        (1, "forward", 2, 3 * MIB, 0, 0, 4 * MIB),
    ]
    assert (recorded.about["allocations"], recorded.about["frees"], recorded.about["failed"]) == (4, 3, 0)


def test_what_was_in_use_before_the_capture_is_in_the_first_figure(pool: fake_cupy.Pool, tmp_path: Path) -> None:
    pool.malloc(5 * MIB)
    with Recorded(tmp_path) as recorded:
        pool.malloc(1000)
    (row,) = recorded.timeline()
    assert (row["bytes"], row["changed_bytes"], row["pool_bytes"]) == (5 * MIB + 1024, 1024, 5 * MIB + 1024)


def test_a_release_before_any_allocation_says_its_size_and_no_more(pool: fake_cupy.Pool, tmp_path: Path) -> None:
    """How much is in use is asked inside an allocation: until then it is not known, and not made up."""
    address = pool.malloc(MIB)
    with Recorded(tmp_path) as recorded:
        pool.free(address)
    assert recorded.timeline() == []
    assert recorded.allocations() == [(None, None, 0, 0, 1, MIB, None)]


def test_an_allocation_that_fails_is_none(pool: fake_cupy.Pool, tmp_path: Path) -> None:
    with Recorded(tmp_path) as recorded:
        assert pool.malloc(MIB, fails=True) == 0
    assert recorded.allocations() == []


def test_hooks_of_the_program_stay_and_ours_is_gone_after_the_stop(pool: fake_cupy.Pool, tmp_path: Path) -> None:
    theirs = cupy_memory._Nothing()
    fake_cupy.get_memory_hooks()["theirs"] = theirs
    with Recorded(tmp_path):
        assert list(fake_cupy.get_memory_hooks()) == ["theirs", "xprof_py"]
    assert dict(fake_cupy.get_memory_hooks()) == {"theirs": theirs}


def test_a_thread_is_hooked_from_its_first_annotation(pool: fake_cupy.Pool, tmp_path: Path) -> None:
    """And keeps a hook that does nothing: it may be walking over its hooks while the capture stops."""
    tables: list[collections.OrderedDict[str, Any]] = []

    def work() -> None:
        pool.malloc(100)  # before: not seen
        recorded.collector.hook_thread()
        pool.malloc(1000)
        tables.append(fake_cupy.get_memory_hooks())

    with Recorded(tmp_path) as recorded:
        pool.malloc(512)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert recorded.about["allocations"] == 2
    assert recorded.about["threads"] == 2
    assert isinstance(tables[0]["xprof_py"], cupy_memory._Nothing)
    assert tables[0]["xprof_py"] is not recorded.collector._hook


def test_cupy_may_be_imported_in_the_capture(
    without_cupy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package of that name, which installs the double as it is imported."""
    package = tmp_path / "path" / "cupy.py"
    package.parent.mkdir()
    package.write_text("import fake_cupy, sys\nown = sys.modules['cupy']\nfake_cupy.install(fake_cupy.Pool())\n")
    monkeypatch.syspath_prepend(str(package.parent))
    before = list(sys.meta_path)
    with Recorded(tmp_path) as recorded:
        importlib.import_module("cupy")
        sys.modules["cupy.cuda"].pool.malloc(512)  # type: ignore[attr-defined]
    assert recorded.about["allocations"] == 1
    assert sys.meta_path == before


def test_without_cupy_nothing_is_imported_and_nothing_stays(without_cupy: None, tmp_path: Path) -> None:
    before = list(sys.meta_path)
    with Recorded(tmp_path) as recorded:
        pass
    assert recorded.about == {"used": False, "why": "CuPy is not imported"}
    assert sys.meta_path == before
    assert "cupy" not in sys.modules


def test_the_pools_own_figure_corrects_what_the_hooks_did_not_see(
    pool: fake_cupy.Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread without a hook takes 3 MiB: the next time the pool is asked they are in the figure, and counted."""
    monkeypatch.setattr(cupy_memory, "SYNC_NS", 0)
    monkeypatch.setattr(cupy_memory, "_SYNC_SHARE", 0)
    with Recorded(tmp_path) as recorded:
        pool.malloc(MIB)
        thread = threading.Thread(target=pool.malloc, args=(3 * MIB,))
        thread.start()
        thread.join()
        pool.malloc(MIB)
    assert [row["bytes"] // MIB for row in recorded.timeline()] == [1, 5]
    assert recorded.about["corrected"] == 1


def test_asking_the_pool_is_rare(pool: fake_cupy.Pool, tmp_path: Path) -> None:
    """Its answer takes a walk over all blocks in use."""
    with Recorded(tmp_path):
        for _ in range(200):
            pool.malloc(512)
    assert pool.asked <= 5


def test_with_several_pools_the_figure_is_the_sum_of_what_was_seen(
    pool: fake_cupy.Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupy_memory, "SYNC_NS", 0)
    monkeypatch.setattr(cupy_memory, "_SYNC_SHARE", 0)
    other = fake_cupy.Pool()
    with Recorded(tmp_path) as recorded:
        pool.malloc(MIB)
        monkeypatch.setattr(sys.modules["cupy.cuda"], "pool", other)
        other.malloc(2 * MIB)
        pool.malloc(MIB)
    assert [row["bytes"] // MIB for row in recorded.timeline()] == [1, 3, 4]
    assert recorded.about["several_pools"] == ["cupy GPU:0"]


def test_allocations_leave_the_budget_to_what_the_program_annotates(pool: fake_cupy.Pool, tmp_path: Path) -> None:
    budget = 100 * cupy_memory.BUDGET_SHARE * cupy_memory.EVENT_BYTES
    with Recorded(tmp_path, budget) as recorded:
        for _ in range(130):
            pool.malloc(512)
    assert recorded.about["allocations"] == 130
    assert recorded.about["not_recorded"] == 30
    assert len(recorded.timeline()) == 100


def test_an_instant_takes_no_more_of_the_shard_than_is_reckoned(pool: fake_cupy.Pool, tmp_path: Path) -> None:
    with Recorded(tmp_path) as recorded:
        for _ in range(5000):
            pool.malloc(512)
    assert recorded.path.stat().st_size < 5000 * cupy_memory.EVENT_BYTES + 100_000


def test_the_kind_is_the_schemas() -> None:
    assert Kind.MARK == cupy_memory.MARK_KIND
    assert (cupy_memory.ALLOCATED, cupy_memory.FREED) == (memory_timeline.ALLOCATED, memory_timeline.FREED)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed: pip install cupy-cuda13x")
def test_the_real_cupy_takes_our_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU its pool allocates nothing: its table of hooks is the real one, and the calls are made by hand."""
    import cupy  # type: ignore[import-not-found,unused-ignore]

    monkeypatch.setattr(cupy.cuda, "get_allocator", lambda: fake_cupy.Pool().malloc)
    with Recorded(tmp_path) as recorded:
        (hook,) = cupy.cuda.memory_hook.get_memory_hooks().values()
        about = {"device_id": 0, "mem_size": 512, "mem_ptr": 7}
        hook.alloc_preprocess(device_id=0, mem_size=512)
        hook.alloc_postprocess(**about)
        hook.malloc_postprocess(**about, size=4, pmem_id=1)
        hook.free_postprocess(**about, pmem_id=1)
        missing = {name for name in vars(cupy.cuda.MemoryHook) if name.endswith("process")} - set(dir(hook))
    assert not missing
    assert (recorded.about["allocations"], recorded.about["frees"], recorded.about["failed"]) == (1, 1, 0)
    assert not cupy.cuda.memory_hook.get_memory_hooks()
