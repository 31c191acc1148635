"""Noticing that the program imports a module, without importing it."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(name: str, then: Callable[[], None]) -> Callable[[], None]:
    """Call ``then`` when the top-level module ``name`` has been imported; at once where it is already there.

    It is called on the importing thread. What is returned stops waiting for the import.
    """
    if name in sys.modules:
        then()
        return _nothing
    watch = _Watch(name, then)
    sys.meta_path.insert(0, watch)
    return watch.stop


def _nothing() -> None:
    pass


class _Watch:
    """Finds one module as the finders behind it do, once, and notices the end of its import."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def stop(self) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name != self._name:
            return None
        self.stop()
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Noticed(spec, self._then)  # type: ignore[assignment]
        return spec


class _Noticed:
    """A loader around another one, gone from the module again before that runs."""

    def __init__(self, spec: ModuleSpec, then: Callable[[], None]) -> None:
        self._spec = spec
        self._loader: Any = spec.loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        # Only noticing may fail here, never the import.
        with contextlib.suppress(Exception):
            self._then()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
