"""The rank comes from the launcher, then from JAX, and asking never brings a backend up."""

import sys
import types

import pytest

from xprof_py.rank import Rank, jax_backend_is_up, jax_process, launcher_rank, restart_count, settled_rank


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Rank(None, None, "pid", None)),
        (
            {"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "j1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"},
            Rank(3, 8, "RANK", "torchrun:j1:a:29500"),
        ),
        (
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"},
            Rank(5, 6, "SLURM_PROCID", "slurm:77:0"),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "n"},
            Rank(2, 4, "OMPI_COMM_WORLD_RANK", "openmpi:n"),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Rank(1, 2, "PMI_RANK", None)),
        (
            {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "h:1"},
            Rank(1, 2, "JAX_PROCESS_ID", "jax:h:1"),
        ),
    ],
)
def test_launcher_rank(environ, expected):
    assert launcher_rank(environ) == expected


def test_a_batch_scripts_own_slurm_rank_yields_to_the_launcher_inside_it():
    environ = {"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    assert launcher_rank(environ).index == 3


@pytest.mark.parametrize("text", ["", "-1", "one", "1.0", "٣"])
def test_what_is_no_number_is_no_rank(text):
    assert launcher_rank({"RANK": text}).index is None


def test_the_label_is_the_rank_else_the_pid():
    assert Rank(4, None, "RANK", None).label(123) == "4"
    assert Rank(None, None, "pid", None).label(123) == "123"


def test_restart_count():
    assert restart_count({}) == 0
    assert restart_count({"TORCHELASTIC_RESTART_COUNT": "2"}) == 2
    assert restart_count({"SLURM_RESTART_COUNT": "x"}) == 0


class _Lock:
    def __init__(self, locked):
        self._locked = locked

    def locked(self):
        return self._locked


def _pretend_jax(monkeypatch, *, backend, locked=False, index=1, count=4, client=None):
    jax = types.ModuleType("jax")
    asked = []
    jax.process_index = lambda: asked.append("index") or index
    jax.process_count = lambda: count
    bridge = types.ModuleType("jax._src.xla_bridge")
    bridge._default_backend = backend
    bridge._backend_lock = _Lock(locked)
    distributed = types.ModuleType("jax._src.distributed")
    distributed.global_state = types.SimpleNamespace(
        client=client, process_id=2, num_processes=4, coordinator_address="h:9"
    )
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    monkeypatch.setitem(sys.modules, "jax._src.distributed", distributed)
    return asked


def test_a_backend_that_is_down_or_coming_up_is_not_asked(monkeypatch):
    asked = _pretend_jax(monkeypatch, backend=None)
    assert not jax_backend_is_up()
    assert settled_rank({}).index is None
    asked += _pretend_jax(monkeypatch, backend=object(), locked=True)
    assert jax_process() is None
    assert asked == []


def test_a_backend_that_is_up_names_the_rank_where_no_launcher_does(monkeypatch):
    _pretend_jax(monkeypatch, backend=object())
    assert settled_rank({}) == Rank(1, 4, "jax.process_index", None)
    assert settled_rank({"RANK": "9"}).index == 9


def test_jax_distributed_names_rank_and_job_before_the_backend_is_up(monkeypatch):
    _pretend_jax(monkeypatch, backend=None, client=object())
    assert settled_rank({}) == Rank(2, 4, "jax.distributed", "jax:h:9")
