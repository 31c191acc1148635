"""Programs that are captured run in processes of their own: what a capture does to a process is what is tested."""

import json
import os
import subprocess
import sys
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.schema import Kind

MODEL = """
import sys, threading, time, warnings
import jax, jax.numpy as jnp
from xprof_py import capture, step, trace
from xprof_py.errors import CaptureError
RUN = sys.argv[1]
@jax.jit
def update(x):
    return x @ x * 0.001
x = jnp.ones((400, 400))
update(x).block_until_ready()
def train(x, first, last):
    for i in range(first, last):
        with step(i):
            x = update(x)
    return x
"""


@dataclass(frozen=True)
class Outcome:
    """How a program ended, and the run folder that it was given."""

    returncode: int
    stdout: str
    stderr: str
    run: Path

    def run_files(self):
        return sorted((self.run / "run").glob("*.json"))

    def document(self):
        (path,) = self.run_files()
        return json.loads(path.read_text(encoding="utf-8"))

    def step_numbers(self, shard=None):
        """The ``step_num`` of the recorded steps, in order; ``shard``: a file, else the one the run file names."""
        profile = read_shard(shard or self.run / self.document()["files"]["shard"])
        kinds = profile["events"]["kind"].to_pylist()
        args = profile["args"].select(["event", "key", "value"]).to_pylist()
        return sorted(arg["value"] for arg in args if arg["key"] == "step_num" and kinds[arg["event"]] == Kind.STEP)

    def xplane(self):
        return self.run / self.document()["files"]["xplane"]

    def messages(self):
        return "\n".join(entry["message"] for entry in self.document()["messages"])


@pytest.fixture
def program(tmp_path):
    """``program(source, *options, run=None, expect=0, **environment) -> Outcome``.

    ``source`` is a Python program whose sys.argv[1] is the run folder; ``options`` go to the interpreter. JAX programs
    get the CPU. Launcher variables of the machine that runs the tests are taken away.
    """

    def run_program(source, *options, run=None, expect=0, timeout_s=60, **environment):
        folder = Path(run) if run is not None else tmp_path / "run-a"
        hidden = ("RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "JAX_", "XPROF_PY_", "XLA_FLAGS")
        env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        env |= {"JAX_PLATFORMS": "cpu", "PYTHONFAULTHANDLER": "1", **environment}
        done = subprocess.run(
            [sys.executable, *options, "-c", textwrap.dedent(source), os.fspath(run or folder)],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == expect, f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return Outcome(done.returncode, done.stdout, done.stderr, folder)

    return run_program


@pytest.fixture
def model(program):
    """``model(source, ...)``: ``program`` behind a small JAX model: RUN, update(x), x, train(x, first, last)."""

    def run_model(source, **options):
        return program(MODEL + textwrap.dedent(source), **options)

    return run_model


@pytest.fixture
def host_events():
    """``host_events(path) -> (name, line index, stats) of /host:CPU's events, stats of the op events``, read by JAX."""
    return _host_events


def _host_events(path):
    from jax.profiler import ProfileData

    events, ops = [], []
    # Later JAX makes its types with a deprecated call on first use, and dies where that warning is an error.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for plane in ProfileData.from_file(str(path)).planes:
            if plane.name != "/host:CPU":
                continue
            for index, line in enumerate(plane.lines):
                for event in line.events:
                    stats = dict(event.stats)
                    if "hlo_op" in stats:
                        ops.append(stats)
                    else:
                        events.append((event.name, index, stats))
    return events, ops
