"""Programs that are captured run in processes of their own: what a capture does to a process is what is tested."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest


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
