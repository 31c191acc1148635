"""Put first on PYTHONPATH by `xprof-py run`: opens a capture as the interpreter starts, where there is to be one.

Without XPROF_PY_RUN it does nothing. Either way the sitecustomize that Python would have imported runs as well, first.
This file is imported under that name in every Python process below the command, so it imports nothing of the package
before it knows that this process is to be recorded, and no failure of it may reach the program.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing these would cost every process
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec

RUN = "XPROF_PY_RUN"
"""What to record and where to, as JSON (xprof_py/at_start.py)."""
RUN_ID = "XPROF_PY_RUN_ID"
"""Which run of the command this is: the processes below one share its folder."""
OWNER = "XPROF_PY_RUN_OWNER"
"""``<pid>:<rank>`` of the nearest recorded process above; set by it for its children."""

# Programs that only start the ranks of a job, which are recorded.
LAUNCHERS = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "deepspeed",
    "horovodrun",
    "ray",
)
RANKS = ("RANK", "JAX_PROCESS_ID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def _rank(environ: Mapping[str, str]) -> str:
    return next((environ[name] for name in RANKS if environ.get(name, "").isdigit()), "")


def _is_launcher(argv: Sequence[str]) -> bool:
    """Whether the command (interpreter included) is one of LAUNCHERS, as a script or with -m."""
    for place, word in enumerate(argv[1:], 1):
        if word == "-m":
            return "".join(argv[place + 1 : place + 2]).removesuffix(".__main__") in LAUNCHERS
        if not word.startswith("-"):
            return os.path.basename(word) in LAUNCHERS
    return False


def is_wanted(environ: Mapping[str, str], argv: Sequence[str], pid: int) -> bool:
    """Whether this process is to be recorded: the first Python process below the command, and each rank of a job.

    What a recorded process starts (workers of a loader, tools) is its own affair. A process that replaces itself (exec)
    goes on being recorded.
    """
    if _is_launcher(argv):
        # Whatever rank it has is one that it inherited: a batch script of Slurm's has SLURM_PROCID=0.
        return False
    owner_pid, _, owner_rank = environ.get(OWNER, "").partition(":")
    return owner_pid in ("", str(pid)) or _rank(environ) not in ("", owner_rank)


def _other_spec(path: Sequence[str]) -> ModuleSpec | None:
    import importlib.machinery

    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in path if os.path.abspath(entry or os.getcwd()) != here]
    return importlib.machinery.PathFinder.find_spec("sitecustomize", others)


def other_sitecustomize(path: Sequence[str]) -> str | None:
    """The file of the sitecustomize that ``path`` has beside this one, None without."""
    spec = _other_spec(path)
    return spec.origin if spec is not None else None


def _chain() -> None:
    """Import the sitecustomize that would have been imported without this one."""
    import importlib.util

    spec = _other_spec(sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    ours = sys.modules.get("sitecustomize")
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if ours is not None:
            sys.modules["sitecustomize"] = ours
        raise


def _open() -> None:
    environ = os.environ
    if not environ.get(RUN) or not is_wanted(environ, sys.orig_argv, os.getpid()):
        return
    again = environ.get(OWNER, "").startswith(f"{os.getpid()}:")
    environ[OWNER] = f"{os.getpid()}:{_rank(environ)}"
    try:
        from xprof_py.at_start import open_capture

        open_capture(environ[RUN], again=again)
    except Exception as error:
        sys.stderr.write(f"xprof_py: this process is not recorded: {type(error).__name__}: {error}\n")


if __name__ == "sitecustomize":
    try:
        _chain()
    finally:
        _open()
