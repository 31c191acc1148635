"""The library that NVTX clients load into themselves, and the variable by which they find it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from xprof_py import _native

NVTX_VARIABLE = "NVTX_INJECTION64_PATH"
"""Read by every library that emits NVTX ranges, at its first one."""
XLA_RANGES_VARIABLE = "XPROF_PY_NVTX_XLA"
"""0: XLA's own ranges stay with XLA's profiler, which names the device's operations by them."""


def nvtx_library() -> Path:
    """The library beside the extension; it may be missing where somebody built the package otherwise."""
    return Path(_native.__file__).parent / "libxprof_py_nvtx.so"


def nvtx_held_by(environ: Mapping[str, str]) -> str | None:
    """What else receives NVTX ranges according to the environment, None where nothing does or we do."""
    value = environ.get(NVTX_VARIABLE)
    if not value or Path(value).name == nvtx_library().name:
        return None
    return value


def xla_ranges_are_taken(environ: Mapping[str, str]) -> bool:
    """Whether NVTX ranges of XLA go to whoever receives such, so that its profiler cannot name operations by them."""
    ours = nvtx_held_by(environ) is None
    return bool(environ.get(NVTX_VARIABLE)) and not (ours and environ.get(XLA_RANGES_VARIABLE) == "0")
