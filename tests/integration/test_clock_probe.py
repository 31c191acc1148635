"""The clock prober between processes: known offsets are recovered, and nothing that happens to it harms them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from xprof_py.errors import CaptureError
from xprof_py.postprocess.clocks.exchanges import exchanges
from xprof_py.postprocess.fleet.analysis import analyse, write_analysis
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.session import capture

TRAINING = """
import os, sys, time
from xprof_py import capture, step
RUN, SECONDS, PROBE = sys.argv[1], float(sys.argv[2]), sys.argv[3]
with capture(RUN, xla=False, stacks=False, probe={"True": True, "auto": "auto"}[PROBE]):
    end, i = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        with step(i):
            time.sleep(0.02)
        i += 1
print("done")
"""
HIDDEN = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "JAX_", "XPROF_PY_")


@dataclass(frozen=True)
class Process:
    """One process of a job of the test's: ``end`` waits for it."""

    rank: int
    running: subprocess.Popen[str]
    run: Path

    def end(self, expect: int = 0) -> dict[str, Any]:
        """The run file, after the process ended as expected."""
        out, err = self.running.communicate(timeout=60)
        assert self.running.returncode == expect, f"{self.running.returncode}\n{out}\n{err}"
        return self.document()

    def document(self) -> dict[str, Any]:
        (path,) = (self.run / "run").glob(f"{self.rank}-{self.running.pid}.json")
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document

    def profile(self) -> Any:
        return read_shard(self.run / self.document()["files"]["shard"])

    def await_capture(self) -> None:
        """Wait until it records, and its prober has had time to make its sockets: a busy machine starts it late."""
        deadline = time.monotonic() + 30
        while not list((self.run / "run").glob(f"{self.rank}-*.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)


Job = Callable[..., Process]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """``job(rank, seconds, probe="True", before=(), **environment)``: starts one process of a job of two."""
    started: list[subprocess.Popen[str]] = []

    def start(rank: int, seconds: float, probe: str = "True", before: tuple[str, ...] = (), **more: str) -> Process:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
        environment |= {"RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job", **more}
        running = subprocess.Popen(
            [*before, sys.executable, "-c", TRAINING, str(tmp_path / "run"), str(seconds), probe],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(running)
        return Process(rank, running, tmp_path / "run")

    yield start
    for running in started:
        if running.poll() is None:
            running.kill()
        running.communicate()


@pytest.fixture
def address() -> str:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as free:
        free.bind(("::", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture(scope="session")
def skewclock(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on PATH: install one to build the clock shim")
    source = Path(__file__).parents[1] / "workloads" / "skewclock.c"
    library = tmp_path_factory.mktemp("shim") / "skewclock.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return str(library)


def answered(rows: Any) -> dict[str, np.ndarray]:
    kept = rows.filter(pc.equal(rows["outcome"].cast("string"), "answered"))
    return {name: kept[name].to_numpy() for name in kept.column_names if name.endswith("_ns")}


def outcomes(rows: Any) -> dict[str, int]:
    counted = pc.value_counts(rows["outcome"].cast("string")).to_pylist()
    return {row["values"]: row["counts"] for row in counted}


def bounds_hold(rows: dict[str, np.ndarray], truth_ns: np.ndarray | int, drift: float = 0.0) -> bool:
    """Whether client clock - server clock lies between the stamps of every exchange; ``drift``: its change in one."""
    slack = np.abs(rows["t4_ns"] - rows["t1_ns"]) * drift + 1
    below = rows["t1_ns"] - (rows["t2_ns"] - rows["wait2_ns"])
    above = (rows["t4_ns"] - rows["wait4_ns"]) - rows["t3_ns"]
    return bool((below <= truth_ns + slack).all() and (truth_ns - slack <= above).all())


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_the_offset_and_drift_of_a_clock_are_recovered_within_half_the_round_trip(
    job: Job, address: str, skewclock: str, family: str
) -> None:
    if family == "IPv6":
        address = address.replace("127.0.0.1", "[::1]")
        try:
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as there:
                there.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
    began_ns = time.time_ns()
    off_ns, ppm = -120_800_000, 50.0
    server = job(0, 4, XPROF_PY_PROBE_ADDRESS=address)
    skew = {"SKEW_OFF_NS": str(off_ns), "SKEW_PPM": str(ppm), "SKEW_T0_NS": str(began_ns), "LD_PRELOAD": skewclock}
    client = job(1, 3, XPROF_PY_PROBE_ADDRESS=address, XPROF_PY_CLOCK_DOMAIN="skewed", **skew)
    about = client.end()
    assert server.end()["collectors"]["probe"]["port"] == int(address.rpartition(":")[2])
    assert about["clock_domain"] == "skewed"
    rows = exchanges([server.profile(), client.profile()])
    assert set(rows["host"].to_pylist()) == {client.profile().host}
    found = answered(rows)
    assert len(found["t1_ns"]) >= 20
    truth_ns = (off_ns + ppm * 1e-6 * (found["t2_ns"] - began_ns)).astype(np.int64)
    assert bounds_hold(found, truth_ns, drift=1e-4)
    round_trip_ns = (found["t4_ns"] - found["t1_ns"]) - (found["t3_ns"] - found["t2_ns"])
    best = int(np.argmin(round_trip_ns))
    offset_ns = ((found["t1_ns"] - found["t2_ns"]) + (found["t4_ns"] - found["t3_ns"]))[best] / 2
    assert abs(offset_ns - truth_ns[best]) <= round_trip_ns[best] / 2 + 1
    # MONOTONIC is one clock for both, whatever REALTIME shows.
    assert (found["m1_ns"] <= found["m2_ns"]).all()
    assert (found["m3_ns"] <= found["m4_ns"]).all()


def test_a_step_of_the_own_clock_shows_between_the_two_clocks(job: Job, address: str, skewclock: str) -> None:
    server = job(0, 10, XPROF_PY_PROBE_ADDRESS=address)
    at_ns = time.time_ns() + 6_000_000_000
    client = job(
        1,
        9,
        XPROF_PY_PROBE_ADDRESS=address,
        LD_PRELOAD=skewclock,
        SKEW_STEP_NS="5000000",
        SKEW_STEP_AT_NS=str(at_ns),
    )
    client.end()
    server.end()
    found = answered(client.profile()["clock_samples"])
    apart_ns = found["t1_ns"] - found["m1_ns"]
    (jump,) = np.flatnonzero(np.abs(np.diff(apart_ns)) > 1_000_000)
    assert np.diff(apart_ns)[jump] == pytest.approx(5_000_000, abs=500_000)
    assert found["t1_ns"][jump] <= at_ns + 1_000_000_000


def test_its_cost_stays_in_the_share_that_it_measures(job: Job, address: str) -> None:
    server = job(0, 8, XPROF_PY_PROBE_ADDRESS=address)
    client = job(1, 8, XPROF_PY_PROBE_ADDRESS=address)
    for process in (client, server):
        cost = process.end()["overhead"]["probe"]
        # 0.08 % of the time and 5 ms in advance; a burst that has begun is finished.
        assert cost["cpu_ns"] <= 0.001 * cost["wall_ns"] + 5_000_000 + 2_000_000


def test_a_hostile_flood_is_counted_and_harms_neither_samples_nor_steps(job: Job, address: str) -> None:
    server = job(0, 7, XPROF_PY_PROBE_ADDRESS=address)
    client = job(1, 6, XPROF_PY_PROBE_ADDRESS=address)
    host, _, port = address.rpartition(":")
    server.await_capture()
    flood = 100_000
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect((host, int(port)))
        for i in range(flood):
            stranger.send(os.urandom(80) if i % 1000 == 0 else b"XPRP" + bytes(76))
    about = server.end()
    client.end()
    told = about["overhead"]["probe"]
    assert told["malformed"] + told["rate_limited"] >= flood
    # Some requests of the client may be among those that the kernel dropped.
    assert told["malformed"] + told["rate_limited"] <= flood + 100
    assert told["bad_token"] == told["replayed"] == 0
    # 200 packets in 10 ms at some us each: a few percent of a core, while it lasts.
    assert told["cpu_ns"] <= 0.1 * told["wall_ns"]
    found = answered(client.profile()["clock_samples"])
    assert len(found["t1_ns"]) >= 20
    assert bounds_hold(found, 0)
    codes = {row["code"]: row["count"] for row in server.profile()["diagnostics"].to_pylist()}
    assert codes["probe_strangers"] == told["malformed"]


def test_another_jobs_token_gets_no_answer(job: Job, address: str) -> None:
    server = job(0, 2.5, XPROF_PY_PROBE_ADDRESS=address, XPROF_PY_PROBE_TOKEN="ours")
    client = job(1, 2, XPROF_PY_PROBE_ADDRESS=address, XPROF_PY_PROBE_TOKEN="theirs")
    about = client.end()
    assert about["collectors"]["probe"]["token"] == "given"
    assert about["collectors"]["probe"]["peers"][0]["answered"] == 0
    assert "none of" in "".join(entry["message"] for entry in about["messages"])
    told = server.end()["overhead"]["probe"]
    assert told["served"] == 0
    assert told["bad_token"] >= 1


def test_a_killed_server_is_a_row_of_refusals_and_nothing_else(job: Job, address: str) -> None:
    server = job(0, 30, XPROF_PY_PROBE_ADDRESS=address)
    client = job(1, 4, XPROF_PY_PROBE_ADDRESS=address)
    client.await_capture()
    server.running.send_signal(signal.SIGKILL)
    client.end()
    counted = outcomes(client.profile()["clock_samples"])
    assert counted["answered"] >= 4
    assert counted["refused"] >= 1
    # What the killed process had written names its session.
    assert read_shard(next((server.run / "shards").glob("0-*.xpr"))).metadata["probe"]["session"] is not None


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("no-such-host.invalid:9", ""),
        ("127.0.0.1:9", "none of"),
        ("[fe80::1%nowhere]:9", ""),
        ("240.0.0.1:9", ""),
    ],
)
def test_an_address_that_cannot_be_reached_costs_the_job_nothing(job: Job, where: str, said: str) -> None:
    about = job(1, 0.7, XPROF_PY_PROBE_ADDRESS=where).end()
    assert about["state"] == "finished"
    assert about["collectors"]["host"] == {"used": True}
    messages = "".join(entry["message"] for entry in about["messages"])
    assert "clock prober" in messages
    assert said in messages


def test_a_port_that_is_taken_costs_the_job_nothing(job: Job, address: str) -> None:
    port = int(address.rpartition(":")[2])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("0.0.0.0", port))
        about = job(0, 0.5, XPROF_PY_PROBE_ADDRESS=address).end()
    assert about["state"] == "finished"
    assert "in use" in about["collectors"]["probe"]["serve_error"]


def test_the_exit_code_is_the_programs(job: Job, address: str, tmp_path: Path) -> None:
    source = TRAINING.replace('print("done")', "sys.exit(7)")
    environment = {"RANK": "0", "WORLD_SIZE": "2", "XPROF_PY_PROBE_ADDRESS": address}
    done = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path / "run"), "0.3", "True"],
        env={**os.environ, **environment},
        check=False,
        timeout=60,
    )
    assert done.returncode == 7


def test_auto_stays_off_where_there_is_one_process(job: Job) -> None:
    about = job(0, 0.2, "auto", WORLD_SIZE="1").end()
    assert about["collectors"]["probe"] == {"used": False, "why": "the job has one process"}
    assert "probe" not in about["overhead"]


def test_auto_is_on_where_several_hosts_know_an_address(job: Job, address: str) -> None:
    about = job(0, 0.3, "auto", XPROF_PY_PROBE_ADDRESS=address, LOCAL_WORLD_SIZE="1", LOCAL_RANK="0").end()
    assert about["collectors"]["probe"]["used"] is True
    assert about["collectors"]["probe"]["token"] == "derived"


def test_true_without_an_address_is_refused_before_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(HIDDEN):
            monkeypatch.delenv(name)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CaptureError, match="no address is known"), capture(tmp_path / "run", xla=False, probe=True):
        pass
    assert not (tmp_path / "run").exists()


def test_an_analysis_writes_who_asked_whom_and_the_network_between_them(job: Job, address: str, tmp_path: Path) -> None:
    server = job(0, 3, XPROF_PY_PROBE_ADDRESS=address)
    client = job(1, 2.5, XPROF_PY_PROBE_ADDRESS=address)
    client.end()
    server.end()
    analysis = analyse([tmp_path / "run"])
    samples, network = analysis.tables["clock_samples"], analysis.tables["network"]
    names = {row["process_index"]: row["host"] for row in analysis.summary["hosts"]}
    of_answered = samples.filter(pc.equal(samples["outcome"], "answered"))
    assert set(of_answered["host"].to_pylist()) == {names[1]}
    assert set(of_answered["peer"].to_pylist()) == {names[0]}
    assert sum(network["sent"].to_pylist()) == samples.num_rows
    assert sum(network["answered"].to_pylist()) == of_answered.num_rows
    for row in network.to_pylist():
        assert row["peer"] == names[0]
        if row["rtt_median_ns"] is not None:
            assert 0 <= row["rtt_min_ns"] <= row["rtt_median_ns"] <= row["rtt_p99_ns"] < 1_000_000_000
    for folder in ("a", "b"):
        write_analysis(analyse([tmp_path / "run"]), tmp_path / folder)
    for name in ("clock_samples", "network"):
        first, second = ((tmp_path / folder / f"{name}.parquet").read_bytes() for folder in "ab")
        assert first == second


def test_a_link_that_is_cut_is_a_loss_of_the_network(job: Job, tmp_path: Path) -> None:
    ip = shutil.which("ip")
    if ip is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the command ip")
    names = [f"xpr{os.getpid()}{side}" for side in "ab"]

    def run(*words: str) -> None:
        subprocess.run([ip, *words], check=True, capture_output=True)

    try:
        run("netns", "add", names[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    try:
        run("netns", "add", names[1])
        run("-n", names[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for i, name in enumerate(names):
            run("-n", name, "addr", "add", f"10.99.7.{i + 1}/24", "dev", "veth0")
            run("-n", name, "link", "set", "veth0", "up")
        environment = {"XPROF_PY_PROBE_ADDRESS": "10.99.7.1:9473"}
        server = job(0, 8, before=(ip, "netns", "exec", names[0]), **environment)
        client = job(1, 7, before=(ip, "netns", "exec", names[1]), **environment)
        time.sleep(3)
        # Packets are sent and go nowhere: the server's side drops them.
        run("-n", names[0], "link", "set", "veth0", "arp", "off")
        subprocess.run([ip, "-n", names[0], "route", "add", "blackhole", "10.99.7.2/32"], check=True)
        time.sleep(1.5)
        run("-n", names[0], "route", "del", "blackhole", "10.99.7.2/32")
        run("-n", names[0], "link", "set", "veth0", "arp", "on")
        client.end()
        server.end()
    finally:
        for name in names:
            subprocess.run([ip, "netns", "del", name], check=False, capture_output=True)
    rows = client.profile()["clock_samples"]
    counted = outcomes(rows)
    assert counted["answered"] >= 20
    assert counted["lost"] >= 1
    assert bounds_hold(answered(rows), 0)
    order = rows["outcome"].cast("string").to_pylist()
    assert order[0] == order[-1] == "answered"
