"""A CuPy that is not there: a pool that calls its hooks as CuPy's does, per thread and by keyword.

:func:`install` puts the modules that the collector looks for into ``sys.modules``. A block's size is rounded up to 512
bytes; what the pool has is handed out before it takes more of the device.
"""

from __future__ import annotations

import collections
import sys
import threading
import types
from typing import Any

ROUND = 512


class _Hooks(threading.local):
    def __init__(self) -> None:
        self.table: collections.OrderedDict[str, Any] = collections.OrderedDict()


_hooks = _Hooks()


def get_memory_hooks() -> collections.OrderedDict[str, Any]:
    return _hooks.table


class Pool:
    """The pool of device ``device_id``."""

    def __init__(self, device_id: int = 0) -> None:
        self.device_id = device_id
        self.in_use: dict[int, int] = {}
        self.total = 0
        self.asked = 0
        self._next = 4096

    def used_bytes(self) -> int:
        self.asked += 1
        return sum(self.in_use.values())

    def total_bytes(self) -> int:
        return self.total

    def malloc(self, size: int, fails: bool = False) -> int:
        """The address, 0 where it fails."""
        rounded = (size + ROUND - 1) // ROUND * ROUND
        about = {"device_id": self.device_id, "size": size, "mem_size": rounded}
        _call("malloc_preprocess", **about)
        address = 0
        if not fails:
            address, self._next = self._next, self._next + rounded
            if sum(self.in_use.values()) + rounded > self.total:
                _call("alloc_preprocess", device_id=self.device_id, mem_size=rounded)
                self.total += rounded
                _call("alloc_postprocess", device_id=self.device_id, mem_size=rounded, mem_ptr=address)
            self.in_use[address] = rounded
        _call("malloc_postprocess", **about, mem_ptr=address, pmem_id=address)
        return address

    def free(self, address: int) -> None:
        about = {"device_id": self.device_id, "mem_size": self.in_use[address], "mem_ptr": address, "pmem_id": address}
        _call("free_preprocess", **about)
        del self.in_use[address]
        _call("free_postprocess", **about)


def _call(what: str, **about: int) -> None:
    for hook in get_memory_hooks().values():
        getattr(hook, what)(**about)


def install(pool: Pool) -> Pool:
    """``import cupy`` finds it from now on, with ``pool`` as the current allocator's."""
    top, cuda, hooks = (types.ModuleType(name) for name in ("cupy", "cupy.cuda", "cupy.cuda.memory_hook"))
    top.cuda, cuda.memory_hook = cuda, hooks  # type: ignore[attr-defined]
    cuda.pool = pool  # type: ignore[attr-defined]
    cuda.get_allocator = lambda: cuda.pool.malloc  # type: ignore[attr-defined]
    hooks.get_memory_hooks = get_memory_hooks  # type: ignore[attr-defined]
    for module in (top, cuda, hooks):
        sys.modules[module.__name__] = module
    return pool
