"""A loader of a library, unannotated and slow: found as input, by what the library writes into XLA's trace or by its
frames, with the line that is slow. Runs where the library is installed.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.live

TRAINING = """
import sys, time
import jax, jax.numpy as jnp, numpy as np
from xprof_py import capture, step

class Source:
    def __len__(self): return 4000
    def __getitem__(self, i): return np.full((64, 64), i, np.float32)

def slow(x):
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        np.sort(np.random.rand(200))
    return x

{loader}

@jax.jit
def train(x): return (x @ x).sum()

train(jnp.ones((64, 64)))
with capture(sys.argv[1]):
    waited, began = 0.0, time.perf_counter()
    for i in range(30):
        with step(i):
            at = time.perf_counter()
            batch = np.asarray(next(loader))[0]
            waited += time.perf_counter() - at
            train(batch).block_until_ready()
    print(waited / (time.perf_counter() - began))
"""

LOADERS = {
    "grain": """
import grain
options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
loader = iter(grain.MapDataset.source(Source()).map(slow).to_iter_dataset(options).batch(1))
""",
    "torch": """
import torch.utils.data
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, i): return slow(Source()[i])
loader = iter(torch.utils.data.DataLoader(Slow(), batch_size=1))
""",
}


@pytest.mark.parametrize("library", sorted(LOADERS))
def test_a_librarys_loader_is_input_with_its_slow_line(library: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"pip install {library}: it is not installed here")
    program, run = tmp_path / "training.py", tmp_path / "run"
    program.write_text(TRAINING.format(loader=LOADERS[library]))
    measured = float(_output([sys.executable, str(program), str(run)]).split()[-1])
    found: dict[str, Any] = json.loads(_output([sys.executable, "-m", "xprof_py", "analyze", str(run), "--json"]))
    assert found["verdict"]["bottleneck"] == "input"
    assert found["breakdown"]["input"]["share"] == pytest.approx(measured, abs=0.10)
    assert any(row["span"].startswith("training.py:") for row in found["verdict"]["evidence"])
    assert any(row["span"].endswith(" slow") for row in found["verdict"]["evidence"])


def _output(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert ran.returncode == 0, f"{command} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout
