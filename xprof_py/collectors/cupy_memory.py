"""What CuPy's memory pool handed out and took back, as instants on the thread that asked.

CuPy keeps its hooks per thread. One of ours joins those of the program on the thread that starts the capture, on the
one that imports CuPy, and on every other at its first annotation; what the remaining threads ask for is not seen.
Nothing is imported, and nothing asks the device: the pool's own figures are read inside its first allocation, and
again at most every SYNC_NS, since blocks that threads without a hook hold, or that were given back to the device,
change them unseen.

The instants have the names and arguments that XLA's allocators use, so that one analysis reads both:
`MemoryAllocation` and `MemoryDeallocation` with ``allocator_name``, ``allocation_bytes`` (what the pool took for it),
``requested_bytes``, ``bytes_allocated`` (in use after it), ``peak_bytes_in_use`` (since the capture began) and
``pool_bytes`` (what the pool holds of the device, free blocks included).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Any

from xprof_py import _native
from xprof_py.imports import after_import

ALLOCATED, FREED = "MemoryAllocation", "MemoryDeallocation"
# schema.Kind.MARK, which the SDK does not import; a test holds the two together.
MARK_KIND = 5
SYNC_NS = 100_000_000
_SYNC_SHARE = 100
"""Reading the pool's figures takes at most one part in so many: it walks over all blocks in use."""
EVENT_BYTES = 160
"""What one instant takes in the shard: its slot and those of six arguments."""
BUDGET_SHARE = 4
"""At most this part of the capture's budget: what the program annotates comes first."""
_KEY = "xprof_py"


class _Pool:
    """The pool of one device. Added to without a lock: CPython changes threads at calls and jumps only."""

    __slots__ = ("known", "name", "peak", "pool", "several", "sync_at_ns", "total", "used")

    def __init__(self, device_id: int) -> None:
        self.name = f"cupy GPU:{device_id}"
        self.known = self.several = False
        self.pool: Any = None
        self.used = self.total = self.peak = self.sync_at_ns = 0


class CupyMemory:
    """Hooks the pool between ``start`` and ``stop``, of which its owner calls one at a time."""

    def __init__(self, budget_bytes: int | None) -> None:
        """``budget_bytes``: the capture's; None where only its last moments are kept."""
        self._most = sys.maxsize if budget_bytes is None else budget_bytes // BUDGET_SHARE // EVENT_BYTES
        self._lock = threading.Lock()
        self._hook = _Hook(self)
        self._tables: dict[int, MutableMapping[str, Any]] = {}
        self._pools: dict[int, _Pool] = {}
        self._unwatch: Callable[[], None] | None = None
        self.on = False
        self.allocations = self.frees = self.not_recorded = self.failed = self.corrected = 0

    def start(self) -> None:
        """Hook this thread, now or when the program imports CuPy."""
        self.on = True
        self._unwatch = after_import("cupy", self.hook_thread)

    def hook_thread(self) -> None:
        """Hook the calling thread, if CuPy is imported. A second call changes nothing."""
        of_thread = getattr(sys.modules.get("cupy.cuda.memory_hook"), "get_memory_hooks", None)
        if not self.on or of_thread is None:
            return
        table = of_thread()
        if table.get(_KEY) is self._hook:
            return
        with self._lock:
            table[_KEY] = self._hook
            self._tables[threading.get_ident()] = table

    def stop(self) -> dict[str, Any]:
        """Take the hooks away and return what the run file says.

        Another thread may be walking over its hooks at this moment, which must not lose one meanwhile: there a hook
        that does nothing takes the place of ours.
        """
        self.mute()
        own = threading.get_ident()
        with self._lock:
            for thread, table in self._tables.items():
                if table.get(_KEY) is self._hook:
                    if thread == own:
                        del table[_KEY]
                    else:
                        table[_KEY] = _Nothing()
        if not self._tables:
            return {"used": False, "why": "CuPy is not imported"}
        counts = ("allocations", "frees", "not_recorded", "failed", "corrected")
        several = sorted(pool.name for pool in self._pools.values() if pool.several)
        about = {"used": True, "threads": len(self._tables), **{name: getattr(self, name) for name in counts}}
        return {**about, **({"several_pools": several} if several else {})}

    def mute(self) -> None:
        """Record nothing more; also in a forked child, whose hooks stay."""
        self.on = False
        if self._unwatch is not None:
            self._unwatch()

    def allocated(self, device_id: int, requested: int, size: int) -> None:
        """Inside an allocation on ``device_id``, which is the current device: its pool can be asked."""
        pool = self._pool(device_id)
        pool.used += size
        now = time.monotonic_ns()
        if now >= pool.sync_at_ns:
            self._sync(pool, now)
        self.allocations += 1
        self._record(ALLOCATED, pool, size, requested)

    def freed(self, device_id: int, size: int) -> None:
        pool = self._pool(device_id)
        pool.used -= size
        self.frees += 1
        self._record(FREED, pool, size, size)

    def grew(self, device_id: int, size: int) -> None:
        """The pool took more of the device."""
        self._pool(device_id).total += size

    def _pool(self, device_id: int) -> _Pool:
        found = self._pools.get(device_id)
        return found if found is not None else self._pools.setdefault(device_id, _Pool(device_id))

    def _sync(self, pool: _Pool, now: int) -> None:
        allocator = sys.modules["cupy.cuda"].get_allocator()
        current = getattr(allocator, "__self__", None)
        if pool.pool is not None and current is not pool.pool:
            # Of several pools none says what all have in use: from here on it is the sum of what the hooks see.
            pool.several = True
        if pool.several or current is None or not hasattr(current, "used_bytes"):
            pool.sync_at_ns = sys.maxsize
            return
        used, total = int(current.used_bytes()), int(current.total_bytes())
        self.corrected += pool.known and used != pool.used
        pool.pool, pool.known, pool.used, pool.total = current, True, used, total
        pool.sync_at_ns = now + max(SYNC_NS, (time.monotonic_ns() - now) * _SYNC_SHARE)

    def _record(self, name: str, pool: _Pool, size: int, requested: int) -> None:
        if self.allocations + self.frees > self._most:
            self.not_recorded += 1
            return
        used = pool.used
        if not pool.known:
            # Before the first allocation: how much is in use is not known, only what was given back.
            _native.record_past(name, MARK_KIND, 0, allocator_name=pool.name, allocation_bytes=size)
            return
        if used > pool.peak:
            pool.peak = used
        _native.record_past(
            name,
            MARK_KIND,
            0,
            allocator_name=pool.name,
            bytes_allocated=used,
            peak_bytes_in_use=pool.peak,
            allocation_bytes=size,
            requested_bytes=requested,
            pool_bytes=pool.total,
        )


class _Nothing:
    """The six calls of a hook of CuPy's pool (cupy.cuda.MemoryHook), which it makes by keyword."""

    def alloc_preprocess(self, **about: int) -> None: ...
    def alloc_postprocess(self, **about: int) -> None: ...
    def malloc_preprocess(self, **about: int) -> None: ...
    def malloc_postprocess(self, **about: int) -> None: ...
    def free_preprocess(self, **about: int) -> None: ...
    def free_postprocess(self, **about: int) -> None: ...


class _Hook(_Nothing):
    """Ours. An address of 0 says that the allocation failed. Nothing may be raised into the program's allocation."""

    def __init__(self, collector: CupyMemory) -> None:
        self._collector = collector

    def alloc_postprocess(self, **about: int) -> None:
        collector = self._collector
        try:
            if collector.on and about["mem_ptr"]:
                collector.grew(about["device_id"], about["mem_size"])
        except Exception:
            collector.failed += 1

    def malloc_postprocess(self, **about: int) -> None:
        collector = self._collector
        try:
            if collector.on and about["mem_ptr"]:
                collector.allocated(about["device_id"], about["size"], about["mem_size"])
        except Exception:
            collector.failed += 1

    def free_postprocess(self, **about: int) -> None:
        collector = self._collector
        try:
            if collector.on:
                collector.freed(about["device_id"], about["mem_size"])
        except Exception:
            collector.failed += 1
