"""Which process of a job this one is, from what the launcher or JAX already say; asking never initialises a backend."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

# (name, rank variable, count variable, variables that together name the job). Slurm is last: a batch script has
# SLURM_PROCID=0, and everything that mpirun or torchrun starts in it inherits that 0.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")),
    ("jax", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", ("JAX_COORDINATOR_ADDRESS",)),
    ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    ("pmix", "PMIX_RANK", "PMIX_SIZE", ("PMIX_NAMESPACE",)),
    ("pmi", "PMI_RANK", "PMI_SIZE", ("PMI_JOBID", "PMI_PORT")),
    ("slurm", "SLURM_PROCID", "SLURM_NTASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
)
_RESTART_COUNTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


@dataclass(frozen=True)
class Rank:
    """A process's place in its job.

    ``index``: its number, None where nothing says it yet. ``count``: processes in the job, None where not said.
    ``source``: who said so. ``job``: equal for the processes of one job, None where nothing names the job.
    """

    index: int | None
    count: int | None
    source: str
    job: str | None

    def label(self, pid: int) -> str:
        """The ``<rank>`` of the run folder's file names: the number, else the pid."""
        return str(pid if self.index is None else self.index)


def launcher_rank(environ: Mapping[str, str]) -> Rank:
    """The rank that the launcher's environment states; ``index`` None where it states none.

    The first launcher of torchrun, JAX, Open MPI, PMIx, PMI, Slurm whose rank variable is a number >= 0 counts.
    """
    for launcher, rank_name, count_name, job_names in _LAUNCHERS:
        index = _number(environ.get(rank_name))
        if index is None:
            continue
        job = [environ[name] for name in job_names if environ.get(name)]
        return Rank(index, _number(environ.get(count_name)), rank_name, f"{launcher}:{':'.join(job)}" if job else None)
    return Rank(None, None, "pid", None)


def settled_rank(environ: Mapping[str, str]) -> Rank:
    """The best answer now: the launcher's rank, else what JAX knows, else none.

    JAX is asked only where it is imported, first ``jax.distributed``'s own record, then the process index of a backend
    that is already up.
    """
    rank = launcher_rank(environ)
    if rank.index is not None:
        return rank
    distributed = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if distributed is not None and getattr(distributed, "client", None) is not None:
        index, count = getattr(distributed, "process_id", None), getattr(distributed, "num_processes", None)
        address = getattr(distributed, "coordinator_address", None)
        if isinstance(index, int):
            return Rank(index, count, "jax.distributed", f"jax:{address}" if address else None)
    place = jax_process()
    if place is not None:
        return Rank(place[0], place[1], "jax.process_index", None)
    return rank


def jax_process() -> tuple[int, int] | None:
    """``(process_index, process_count)`` of JAX, None where it is not imported or its backend is not up."""
    if not jax_backend_is_up():
        return None
    jax = sys.modules["jax"]
    try:
        return int(jax.process_index()), int(jax.process_count())
    except Exception:
        return None


def jax_backend_is_up() -> bool:
    """Whether JAX is imported and has its devices. Never waits: jax's own question waits while a backend comes up."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if sys.modules.get("jax") is None or bridge is None:
        return False
    lock = getattr(bridge, "_backend_lock", None)
    if lock is not None and hasattr(bridge, "_default_backend") and hasattr(lock, "locked"):
        return bridge._default_backend is not None and not lock.locked()
    try:
        return bool(bridge.backends_are_initialized())
    except Exception:
        return False


def restart_count(environ: Mapping[str, str]) -> int:
    """How often the launcher has restarted this job, 0 where it does not say."""
    return max((_number(environ.get(name)) or 0 for name in _RESTART_COUNTS), default=0)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
