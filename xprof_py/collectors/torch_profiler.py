"""What the program records with PyTorch's own profiler during a capture: a copy of each trace that it exports.

Kineto, behind ``torch.profiler``, has the operators and, where it records GPUs, CUPTI. The analysis joins its trace to
our spans of the same process (postprocess/readers/kineto_beside.py). So that CUPTI is asked for by one at a time, our
own collector gives it back while Kineto records GPUs, and takes it again afterwards.

Four methods of PyTorch's are wrapped while a capture records, where torch is imported: two ``export_chrome_trace``
(what `tensorboard_trace_handler` calls is one of them), and where its profiler is prepared and ended. Each does what
it did, with the same arguments, result and exceptions; nothing of ours reaches the program.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xprof_py.imports import after_import

BUDGET_BYTES = 1 << 30
"""Of all copies together. What is past this is named in the run file, and read from its own place."""
_PROFILE = ("torch.autograd.profiler", "profile")
_KINETO_PROFILE = ("torch.profiler.profiler", "_KinetoProfile")


class TorchProfiler:
    """Watches torch.profiler between ``start`` and ``stop``.

    ``place_of(number, suffix)`` gives the file for a copy, below the run folder. ``before``, ``after``: called before
    Kineto takes the GPUs and after it has let go, on the program's thread.
    """

    def __init__(
        self, place_of: Callable[[int, str], Path], before: Callable[[], None], after: Callable[[], None]
    ) -> None:
        self._place_of, self._before, self._after = place_of, before, after
        self._lock = threading.Lock()
        self._exporting = threading.local()
        self._wrapped: list[tuple[type, str, Any, Any]] = []
        self._exported: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Per profiler the place of its trace in ``traces``."""
        self._of_gpus: weakref.WeakSet[Any] = weakref.WeakSet()
        self._unwatch: Callable[[], None] | None = None
        self._bytes = 0
        self.traces: list[dict[str, Any]] = []
        self.failed = 0
        self.copy_s = 0.0
        self.on = False

    def start(self) -> None:
        """Wrap now, or when the program imports torch."""
        self.on = True
        self._unwatch = after_import("torch", self._wrap)

    def stop(self) -> dict[str, Any]:
        """Put PyTorch's methods back and return what the run file says.

        Where the program has wrapped them again meanwhile, that stays: ours is then inside, and only passes on.
        """
        self.mute()
        for owner, name, original, ours in reversed(self._wrapped):
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
        wrapped, self._wrapped = self._wrapped, []
        if not wrapped:
            return {"used": False, "why": "torch is not imported" if "torch" not in sys.modules else "has no profiler"}
        return {"used": True, "traces": self.traces, "failed": self.failed, "copy_s": round(self.copy_s, 6)}

    def mute(self) -> None:
        """Take nothing more; also in a forked child."""
        self.on = False
        if self._unwatch is not None:
            self._unwatch()

    def _wrap(self) -> None:
        if not self.on:
            return
        exports = "export_chrome_trace"
        for (module, owner), name, wrapper in (
            (_KINETO_PROFILE, exports, self._around_export),
            (_PROFILE, exports, self._around_export),
            (_PROFILE, "_prepare_trace", self._around_beginning),
            (_PROFILE, "__exit__", self._around_end),
        ):
            kind = getattr(sys.modules.get(module), owner, None)
            original = vars(kind).get(name) if isinstance(kind, type) else None
            if isinstance(kind, type) and callable(original):
                ours: Any = functools.wraps(original)(wrapper(original))
                setattr(kind, name, ours)
                self._wrapped.append((kind, name, original, ours))

    # --- exports ---------------------------------------------------------------------------------------------------

    def _around_export(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def export_chrome_trace(profile: Any, path: Any, *more: Any, **named: Any) -> Any:
            # The outer of the two calls knows the file that the program wanted.
            if not self.on or getattr(self._exporting, "now", False):
                return original(profile, path, *more, **named)
            self._exporting.now = True
            try:
                result = original(profile, path, *more, **named)
            finally:
                self._exporting.now = False
            try:
                self._keep(getattr(profile, "profiler", None) or profile, os.fspath(path))
            except Exception as error:
                self.failed += 1
                self.traces.append({"path": str(path), "copied": False, "why": f"could not be copied: {error}"})
            return result

        return export_chrome_trace

    def _keep(self, profiler: Any, path: str) -> None:
        """Copy a trace into the run folder; one that was exported before is the same trace again.

        Where it could not be copied then, this is another try, and takes its place: both files hold the same events.
        """
        if not self.on:
            return
        began = time.perf_counter()
        with self._lock:
            number = self._exported.get(profiler, len(self.traces))
            if number < len(self.traces) and self.traces[number]["copied"]:
                return
            size = os.stat(path).st_size
            entry: dict[str, Any] = {"path": os.path.abspath(path), "bytes": size, "copied": False}
            self.traces[number : number + 1] = [entry]
            self._exported[profiler] = number
            if self._bytes + size > BUDGET_BYTES:
                entry["why"] = f"not copied: the copies of a capture may take {BUDGET_BYTES >> 20} MiB"
                return
            suffix = ".pt.trace.json.gz" if path.endswith(".gz") else ".pt.trace.json"
            place = self._place_of(number, suffix)
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)
                entry["copied"] = True
                self._bytes += size
            except OSError as error:
                self.failed += 1
                entry["why"] = f"could not be copied: {error.strerror or error}"
                with contextlib.suppress(OSError):
                    place.unlink()
            self.copy_s += time.perf_counter() - began

    # --- who has the GPUs --------------------------------------------------------------------------------------------

    def _around_beginning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _prepare_trace(profile: Any, *more: Any, **named: Any) -> Any:
            if self.on and getattr(profile, "use_device", None) == "cuda":
                self._of_gpus.add(profile)
                self._call(self._before)
            return original(profile, *more, **named)

        return _prepare_trace

    def _around_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __exit__(profile: Any, *more: Any, **named: Any) -> Any:  # noqa: N807
            try:
                return original(profile, *more, **named)
            finally:
                if profile in self._of_gpus:
                    self._of_gpus.discard(profile)
                    if self.on and not self._of_gpus:
                        self._call(self._after)

        return __exit__

    def _call(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception:
            self.failed += 1
