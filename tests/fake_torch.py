"""A torch that is not there, for what the collector of torch.profiler wraps: written as a package into a folder.

Its profiler exports what ``TRACE`` of `torch.autograd.profiler` says, and tells a list what happened to it.
"""

from __future__ import annotations

from pathlib import Path

_AUTOGRAD_PROFILER = """
import json
TRACE = {"schemaVersion": 1, "traceEvents": []}
calls = []
class profile:
    def __init__(self, use_device=None):
        self.use_device = use_device
    def _prepare_trace(self):
        calls.append("prepare")
    def __enter__(self):
        self._prepare_trace()
        return self
    def __exit__(self, kind, value, traceback):
        calls.append("end")
    def export_chrome_trace(self, path, metadata=None):
        calls.append("export")
        with open(path, "w") as file:
            json.dump(TRACE, file)
        return "exported"
"""
_PROFILER = """
import gzip, os
from torch.autograd import profiler as prof
class _KinetoProfile:
    def __init__(self, use_device=None):
        self.profiler = None
        self.use_device = use_device
    def start(self):
        self.profiler = prof.profile(self.use_device)
        self.profiler._prepare_trace()
    def stop(self):
        self.profiler.__exit__(None, None, None)
    def export_chrome_trace(self, path):
        if not path.endswith(".gz"):
            return self.profiler.export_chrome_trace(path, {})
        self.profiler.export_chrome_trace(path + ".tmp", {})
        with open(path + ".tmp", "rb") as plain, gzip.open(path, "wb") as packed:
            packed.write(plain.read())
        os.remove(path + ".tmp")
class profile(_KinetoProfile):
    def __enter__(self):
        self.start()
        return self
    def __exit__(self, *_):
        self.stop()
"""


def write(folder: Path) -> Path:
    """Write the package into ``folder``, which then belongs on sys.path."""
    for name, text in (
        ("torch/__init__.py", "import torch.autograd.profiler\nimport torch.profiler\n"),
        ("torch/autograd/__init__.py", ""),
        ("torch/autograd/profiler.py", _AUTOGRAD_PROFILER),
        ("torch/profiler/__init__.py", "from torch.profiler.profiler import profile\n"),
        ("torch/profiler/profiler.py", _PROFILER),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
