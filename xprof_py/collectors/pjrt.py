"""XLA's profile in programs without JAX's profiler: taken from the PJRT plugin that the program has loaded.

A plugin (XLA's for CUDA, libtpu, others') has a profiler in its C API, which gives an XSpace of what it traced: the
device, and its own calls on the host. It is the same tracer that JAX's profiler uses, and there is one: this is used
only where JAX is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xprof_py import _native
from xprof_py.collectors.xla import XlaError, XlaResult


def loaded_plugins() -> list[dict[str, Any]]:
    """The loaded plugins with a profiler. Cheap while no library is loaded."""
    return [plugin for plugin in _native.pjrt_plugins() if plugin["profiler"]]


def profile_options(host_tracer_level: int, device_tracer_level: int) -> bytes:
    """tensorflow.ProfileOptions: version (5), host_tracer_level (2), device_tracer_level (3), enable_hlo_proto (7)."""
    return bytes([5 << 3, 1, 2 << 3, host_tracer_level, 3 << 3, device_tracer_level, 7 << 3, 1])


class PjrtProfiler:
    """One session of the first plugin that starts one: to its owner what collectors/xla.py's XlaProfiler is."""

    def __init__(self, plugins: list[dict[str, Any]], host_tracer_level: int) -> None:
        self._plugins = plugins
        self.plugin: dict[str, Any] = {}
        self._host_tracer_level = host_tracer_level
        self.running = False
        self.has_devices = False

    def can_start(self) -> bool:
        """A plugin is loaded, so yes."""
        return True

    def start(self, log_dir: str, *, devices: bool = True) -> None:
        """Start the session; nothing is written to ``log_dir``. Raises XlaError with the words of every plugin.

        ``devices`` False: the host alone, as another collector has the devices.
        """
        said = []
        options = profile_options(self._host_tracer_level, int(devices))
        for plugin in self._plugins:
            try:
                _native.pjrt_start(plugin["path"], options)
            except RuntimeError as error:
                said.append(f"{plugin['path']}: {error}")
            else:
                self.plugin, self.running, self.has_devices = plugin, True, devices
                return
        raise XlaError("; ".join(said))

    def stop(self) -> XlaResult:
        """End the session. Raises XlaError: the events are lost, or there are none."""
        self.running = False
        try:
            content = _native.pjrt_stop()
        except RuntimeError as error:
            raise XlaError(f"{self.plugin['path']}: {error}") from error
        if not content:
            raise XlaError(f"{self.plugin['path']} traced nothing")
        return XlaResult(content, None)

    def is_taking(self) -> bool:
        """Whether the session still takes events."""
        return self.running

    @staticmethod
    def step_marker() -> Callable[..., Any] | None:
        """None: a plugin has no step marker of ours; steps come from the shard."""
        return None

    @staticmethod
    def mark_thread(tid: int) -> None:
        """Nothing: annotations of this process do not reach the plugin's own lines."""
