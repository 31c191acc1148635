"""Another profiler of the process alone, beside a capture of ours, and after it: beside.py jax|torch RUN.

Prints how many kernels it saw each time, and what the run file says of ours. Ours are counted by who reads RUN.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xprof_py import capture

WHO, RUN = sys.argv[1], Path(sys.argv[2])


def with_jax() -> Callable[[], int]:
    import jax
    import jax.numpy as jnp

    product = jax.jit(lambda x: jnp.tanh(x @ x))
    x = jnp.ones((512, 512))
    product(x).block_until_ready()

    def count() -> int:
        with tempfile.TemporaryDirectory() as folder:
            jax.profiler.start_trace(folder)
            for _ in range(20):
                product(x).block_until_ready()
            jax.profiler.stop_trace()
            planes: list[Any] = []
            for path in Path(folder).rglob("*.xplane.pb"):
                planes += jax.profiler.ProfileData.from_file(str(path)).planes
            return sum(
                1
                for plane in planes
                if plane.name.startswith("/device:GPU:")
                for line in plane.lines
                if line.name.startswith("Stream")
                for _ in line.events
            )

    return count


def with_torch() -> Callable[[], int]:
    import torch

    x = torch.ones(512, 512, device="cuda")
    torch.cuda.synchronize()

    def count() -> int:
        with torch.profiler.profile() as profiler:
            for _ in range(20):
                torch.cuda.nvtx.range_push("product")
                torch.tanh(x @ x)
                torch.cuda.nvtx.range_pop()
            torch.cuda.synchronize()
        return sum(1 for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA)

    return count


count = {"jax": with_jax, "torch": with_torch}[WHO]()
alone = count()
beside: int | None = None
why = ""
try:
    with capture(RUN, cuda=True, xla=False, stacks=False, power=False, probe=False):
        try:
            beside = count()
        except Exception as error:  # the other profiler may refuse outright
            why = f"{WHO}: {type(error).__name__}: {error}"
    (path,) = (RUN / "run").glob("*.json")
    entry = json.loads(path.read_text(encoding="utf-8"))["collectors"]["cuda"]
    why = why or entry.get("why", "")
except Exception as error:
    why = str(error)
after = count()
print(json.dumps({"alone": alone, "beside": beside or 0, "after": after, "why": why}))
