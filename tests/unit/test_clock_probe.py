"""Whom a process asks for the time follows from its place in the job, and what is not known is said."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from xprof_py.clock_probe import DEFAULT_PORT, Address, ProbePlan, parse_address, plan
from xprof_py.config import load_settings
from xprof_py.errors import UsageError
from xprof_py.rank import Rank, launcher_rank


def planned(
    index: int | None,
    *,
    count: int | None = 4,
    job: str | None = "job",
    insist: bool = False,
    address: str | None = None,
    peers: tuple[str, ...] = (),
    token: str = "",
    source: str = "RANK",
    **environ: str,
) -> ProbePlan | str:
    return plan(
        insist=insist,
        address=None if address is None else parse_address(address),
        peers=[parse_address(peer) for peer in peers],
        token=token,
        rank=Rank(index, count, source, job),
        environ=environ,
    )


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node1:7000", "node1", 7000),
        ("node1", "node1", DEFAULT_PORT),
        ("10.0.0.1:80", "10.0.0.1", 80),
        ("[fe80::1]:80", "fe80::1", 80),
        ("[::1]", "::1", DEFAULT_PORT),
        ("fe80::1", "fe80::1", DEFAULT_PORT),
        (" a.b-c:1 ", "a.b-c", 1),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(text.strip(), host, port)


@pytest.mark.parametrize(
    "text", ["", ":80", "a:0", "a:65536", "a:b", "a b:1", "http://a:1", "[::1", "1:2:3", "x" * 300]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="wants"):
        parse_address(text)


def test_process_0_answers_and_the_others_ask_it() -> None:
    first, second = planned(0, address="node0:7000"), planned(1, address="node0:7000")
    assert isinstance(first, ProbePlan)
    assert isinstance(second, ProbePlan)
    assert (first.serve_port, first.addresses) == (7000, ())
    assert (second.serve_port, second.addresses) == (0, (("node0:7000", "node0", 7000, False),))
    assert first.key == second.key
    assert len(first.key) == 16


def test_of_a_mesh_each_address_is_asked_once() -> None:
    mesh = ("node0:7000", "node1:7000")
    first, second = planned(0, address="node0:7000", peers=mesh), planned(1, address="node0:7000", peers=mesh)
    assert isinstance(first, ProbePlan)
    assert isinstance(second, ProbePlan)
    assert first.addresses == (("node1:7000", "node1", 7000, True),)
    assert second.addresses == (("node0:7000", "node0", 7000, False), ("node1:7000", "node1", 7000, True))


@pytest.mark.parametrize(
    "environ", [{"MASTER_ADDR": "node0"}, {"JAX_COORDINATOR_ADDRESS": "node0:1234"}, {"MASTER_ADDR": "node0:29500"}]
)
def test_the_coordinators_host_is_asked_at_the_usual_port(environ: dict[str, str]) -> None:
    found = planned(3, **environ)
    assert isinstance(found, ProbePlan)
    assert found.addresses == (("node0", "node0", DEFAULT_PORT, False),)


def test_the_coordinator_of_jax_distributed_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(client=object(), coordinator_address="[fd00::1]:1234")
    monkeypatch.setitem(sys.modules, "jax._src.distributed", SimpleNamespace(global_state=state))  # type: ignore[arg-type]
    found = planned(1, MASTER_ADDR="node9")
    assert isinstance(found, ProbePlan)
    assert found.addresses == (("[fd00::1]", "fd00::1", DEFAULT_PORT, False),)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"index": None, "address": "a:1"}, "which process"),
        ({"index": 0, "count": 1, "address": "a:1"}, "one process"),
        ({"index": 0, "count": None, "address": "a:1"}, "several processes"),
        ({"index": 0}, "no address"),
        ({"index": 0, "MASTER_ADDR": "localhost"}, "one host"),
        ({"index": 0, "MASTER_ADDR": "127.0.1.1"}, "one host"),
        ({"index": 0, "MASTER_ADDR": "::1"}, "one host"),
        ({"index": 0, "MASTER_ADDR": "a", "LOCAL_WORLD_SIZE": "4"}, "one host"),
        ({"index": 1, "MASTER_ADDR": "a", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "LOCAL_RANK"),
        ({"index": 0, "MASTER_ADDR": "a", "source": "SLURM_PROCID", "SLURM_STEP_NUM_NODES": "1"}, "one host"),
        ({"index": 1, "MASTER_ADDR": "a", "source": "SLURM_PROCID", "SLURM_LOCALID": "1"}, "SLURM_LOCALID"),
        ({"index": 0, "MASTER_ADDR": "not an address"}, "not understood"),
    ],
)
def test_where_nothing_is_to_be_asked_the_reason_is_said(options: dict[str, Any], reason: str) -> None:
    found = planned(**options)
    assert isinstance(found, str)
    assert reason in found


def test_who_insists_asks_on_one_host_too() -> None:
    found = planned(1, count=1, insist=True, MASTER_ADDR="localhost", LOCAL_RANK="1")
    assert isinstance(found, ProbePlan)


def test_the_key_depends_on_the_token_and_without_one_on_the_job() -> None:
    def key(**options: Any) -> bytes:
        found = planned(0, **{"address": "a:1", **options})
        assert isinstance(found, ProbePlan)
        assert found.token == ("given" if options.get("token") else "derived")
        return found.key

    different = [key(), key(job="other"), key(address="b:1"), key(token="x"), key(token="y"), key(job=None)]
    assert len(set(different)) == len(different)
    # A token that is given is all that counts: processes may name their job differently.
    assert key(token="x", job="other", address="b:1") == key(token="x")


def test_settings_come_from_the_environment(tmp_path: Any) -> None:
    environ = {
        "XPROF_PY_PROBE": "1",
        "XPROF_PY_PROBE_ADDRESS": "node0:7000",
        "XPROF_PY_PROBE_PEERS": "node0:7000, node1",
        "XPROF_PY_PROBE_TOKEN": "secret",
        "RANK": "1",
        "WORLD_SIZE": "2",
    }
    settings = load_settings({}, environ, tmp_path)
    assert settings.probe is True
    found = settings.probe_plan(launcher_rank(environ), environ)
    assert isinstance(found, ProbePlan)
    assert [address[0] for address in found.addresses] == ["node0:7000", "node1"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("PROBE_ADDRESS", "a:b"), ("PROBE_PEERS", "a:1,,b:1"), ("PROBE_PEERS", ",".join(["a"] * 64)), ("PROBE", "maybe")],
)
def test_settings_that_make_no_sense_name_their_variable(tmp_path: Any, name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"XPROF_PY_{name}"):
        load_settings({}, {f"XPROF_PY_{name}": value}, tmp_path)
