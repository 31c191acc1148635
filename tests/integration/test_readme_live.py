"""The README's quick start is run as it stands, on a training that only the test knows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")

TRAINING = """
import time
import jax, jax.numpy as jnp

params = jnp.ones((128, 128))
loader = [jnp.ones((128, 128))] * 12
update = jax.jit(lambda params, batch: (params + 0.001 * batch, jnp.tanh(params @ batch).sum()))

def train_step(params, batch):
    return update(params, batch)

def save(params):
    time.sleep(0.01)
"""


def run(command: list[str], cwd: Path) -> str:
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=180, check=False)
    assert ran.returncode == 0, f"{command}:\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def test_the_quick_start_works_as_it_is_written(tmp_path: Path) -> None:
    block = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert block is not None
    (tmp_path / "training.py").write_text(TRAINING + block[1])
    run([sys.executable, "training.py"], tmp_path)
    commands = re.findall(r"^    xprof-py (analyze|report) (runs/first)", README, re.MULTILINE)
    assert [command for command, _ in commands] == ["analyze", "report"]
    for command in commands:
        run([sys.executable, "-m", "xprof_py", *command], tmp_path)
    summary = json.loads((tmp_path / "runs/first/analysis/summary.json").read_text())
    described = (CHECKOUT / "docs" / "summary.md").read_text(encoding="utf-8").split("## Fields")[1].split("\n## ")[0]
    fields = set(re.findall(r"^\| `(\w+)` \|", described.split("\n### ")[0], re.MULTILINE))
    assert set(summary) == fields
    in_python = re.search(r"or in Python: `(p = [^`]*)`", README)
    assert in_python is not None
    said = run([sys.executable, "-c", f"import xprof_py; {in_python[1]}; print(type(p['breakdown']))"], tmp_path)
    assert said == "<class 'pyarrow.lib.Table'>\n"


def test_every_command_that_the_readme_lists_exists(tmp_path: Path) -> None:
    listed = set(re.findall(r"^\| `xprof-py (\w+)", README, re.MULTILINE))
    offered = re.findall(r"^    (\w+)", run([sys.executable, "-m", "xprof_py", "--help"], tmp_path), re.MULTILINE)
    assert listed == set(offered)
