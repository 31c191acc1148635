"""The compiled programs of the process, for captures in which XLA's own profiler does not deliver them.

JAX's client knows the programs that are alive: they are asked for at the end of the capture, and the newest after every
compile, since a program may die before the end. JAX is never imported from here, nor are its devices brought up.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

from xprof_py.rank import jax_backend_is_up

BUDGET_BYTES = 512 << 20
"""Programs with large constants are large. What is past this is left out, and counted."""
_METADATA_PLANE = "/host:metadata"


class HloModules:
    """Collects each program once. Any thread may call."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._lock = threading.Lock()
        self._budget = budget_bytes
        self._seen: set[tuple[int, Any]] = set()
        self._modules: dict[int, tuple[str, bytes]] = {}
        self._bytes = 0
        self.left_out = 0
        self.failed = 0

    def take_newest(self) -> None:
        """Take the programs that were compiled since the last call; cheap where there is none. Raises nothing."""
        self._take(all_of_them=False)

    def take_all(self) -> None:
        """Take every program that is alive. Raises nothing."""
        self._take(all_of_them=True)

    def _take(self, all_of_them: bool) -> None:
        # Two threads that compile at once: the one that comes second has its program taken with the next one, or at
        # the end.
        if not jax_backend_is_up() or not self._lock.acquire(blocking=all_of_them):
            return
        try:
            for executable in sys.modules["jax"].devices()[0].client.live_executables():  # the newest first
                # The address alone may be that of one that died.
                key = (id(executable), getattr(executable, "fingerprint", None))
                if key in self._seen:
                    if all_of_them:
                        continue
                    break
                self._seen.add(key)
                try:
                    self._keep(executable)
                except Exception:
                    self.failed += 1
        except Exception:
            self.failed += 1
        finally:
            self._lock.release()

    def _keep(self, executable: Any) -> None:
        for module in executable.hlo_modules():
            content = module.as_serialized_hlo_module_proto()
            program_id = module_id(content)
            if program_id in self._modules:
                continue
            if self._bytes + len(content) > self._budget:
                self.left_out += 1
            else:
                self._modules[program_id] = (module.name, content)
                self._bytes += len(content)

    def __len__(self) -> int:
        return len(self._modules)

    def xspace(self) -> bytes:
        """The programs as an XSpace with the plane that XLA's profiler writes them to, so that other tools read it."""
        with self._lock:
            modules = sorted(self._modules.items())
        plane = _field(2, _METADATA_PLANE.encode())
        for number, (program_id, (name, content)) in enumerate(modules, 1):
            stat = _field(5, _number(1, 1) + _field(6, hlo_proto(content)))
            event = _number(1, number) + _field(2, f"{name}({program_id % 2**64})".encode()) + stat
            plane += _field(4, _number(1, number) + _field(2, event))
        plane += _field(5, _number(1, 1) + _field(2, _number(1, 1) + _field(2, b"Hlo Proto")))
        return _field(1, plane)


def hlo_proto(module: bytes) -> bytes:
    """A serialized HloModuleProto as an HloProto."""
    return _field(1, module)


def module_id(module: bytes) -> int:
    """The id of a serialized HloModuleProto (its field 5), which XLA calls `program_id`; 0 where it states none.

    Raises ValueError where the bytes are no message.
    """
    return next((value for field, value in _numbers(module) if field == 5), 0)


def _numbers(message: bytes) -> Iterator[tuple[int, int]]:
    """(field, value) of the numbers at a message's top level; what lies in between is passed over."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        if key & 7 == 0:
            value, at = _read_varint(message, at)
            yield key >> 3, value if value < 1 << 63 else value - (1 << 64)
        elif key & 7 == 2:
            length, at = _read_varint(message, at)
            at += length
        elif key & 7 in (1, 5):
            at += 8 if key & 7 == 1 else 4
        else:
            raise ValueError(f"byte {at}: no field of a message begins here")


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"byte {at}: a number breaks off")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content
