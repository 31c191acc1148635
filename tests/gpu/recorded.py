"""Programs of this folder, run under `xprof-py run` or by themselves, and what reading and joining make of a run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.process import read_process
from xprof_py.postprocess.readers.sources import find_sources

PROGRAMS = Path(__file__).resolve().parent / "programs"
_HIDDEN = ("XPROF_PY_", "NVTX_", "RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_")


def environ(**more: str) -> dict[str, str]:
    """This process's environment without what a launcher or another recording left there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    return {**kept, "PYTHONSAFEPATH": "1", **more}


def told(
    python: str, program: str, *arguments: str, run: Path | None = None, options: Sequence[str] = (), **more: str
) -> Any:
    """The JSON that a program printed last, the program run by ``python``; with ``run`` recorded there.

    Raises AssertionError with what the program said where it fails.
    """
    command = [python, os.fspath(PROGRAMS / f"{program}.py"), *arguments]
    if run is not None:
        command = [python, "-m", "xprof_py", "run", "-o", os.fspath(run), *options, "--", *command]
    variables = environ(PYTHONPATH=os.fspath(PROGRAMS), **more)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=variables)
    assert done.returncode == 0, f"{program} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def joined(run: Path) -> Profile:
    """The run's only process, joined."""
    (source,) = find_sources([run]).processes
    return join_profile(read_process(source))


def document(run: Path) -> Mapping[str, Any]:
    """The run file of the run's only process."""
    (path,) = (run / "run").glob("*.json")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
