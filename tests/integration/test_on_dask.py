"""The same answer from a Dask cluster, with a worker killed in the middle, and a clear error without its scheduler."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from xprof_py.cli.analyze import analyze
from xprof_py.postprocess.fleet import spool

pytest.importorskip("distributed", reason="distributed is not installed: the extra `test` brings it")

RECORDED = Path(__file__).parent.parent / "data" / "jax_cpu"
COPIES = 12
WAIT_S = 60


@dataclass
class Cluster:
    """A scheduler and two workers, each in a process of its own, as on machines of their own."""

    address: str
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    file = tmp_path / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    dask = [sys.executable, "-m", "dask"]
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    processes = [subprocess.Popen([*dask, "scheduler", *options], **quiet)]
    try:
        deadline = time.monotonic() + WAIT_S
        while not (file.exists() and file.stat().st_size):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        worker = ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--local-directory", str(tmp_path)]
        processes += [subprocess.Popen([*dask, "worker", address, *worker], **quiet) for _ in range(2)]
        yield Cluster(address, processes[0], processes[1:])
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    folder = tmp_path / "profiles"
    folder.mkdir()
    for copy in range(COPIES):
        shutil.copy(RECORDED / "planted_input.xplane.pb.gz", folder / f"{copy}.xplane.pb.gz")
    return folder


def contents(out: Path) -> dict[str, bytes]:
    return {
        str(f.relative_to(out)): f.read_bytes()
        for f in sorted(out.rglob("*"))
        if f.is_file() and spool.FOLDER not in f.parts
    }


def started(profiles: Path, out: Path, cluster: Cluster, *more: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "xprof_py",
        "analyze",
        str(profiles),
        "-o",
        str(out),
        "--scheduler",
        cluster.address,
    ]
    return subprocess.Popen([*command, *more], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for_parts(out: Path, count: int, running: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(list(out.glob(f"{spool.FOLDER}/*.part"))) < count:
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_cluster_gives_the_same_bytes_though_a_worker_dies(profiles: Path, cluster: Cluster, tmp_path: Path) -> None:
    running = started(profiles, tmp_path / "out", cluster)
    wait_for_parts(tmp_path / "out", 3, running)
    os.kill(cluster.workers[0].pid, signal.SIGKILL)
    _, said = running.communicate(timeout=WAIT_S)
    assert running.returncode == 0, said
    analyze([profiles], tmp_path / "here", workers=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "here")


def test_a_scheduler_that_goes_away_is_said_and_what_was_done_is_kept(
    profiles: Path, cluster: Cluster, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    running = started(profiles, out, cluster)
    wait_for_parts(out, 3, running)
    cluster.scheduler.kill()
    _, said = running.communicate(timeout=WAIT_S)
    assert running.returncode == 1
    assert "the Dask scheduler is gone" in said
    assert "--resume" in said
    assert "Traceback" not in said, said
    assert not (out / "summary.json").exists()
    kept = {file: file.stat().st_ino for file in out.glob(f"{spool.FOLDER}/*.part")}
    assert len(kept) >= 3
    analyze([profiles], out, workers=1, resume=True)
    assert {file: file.stat().st_ino for file in kept} == kept
    analyze([profiles], tmp_path / "here", workers=1)
    assert contents(out) == contents(tmp_path / "here")


def test_no_scheduler_at_the_address_is_an_error(profiles: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "xprof_py", "analyze", str(profiles), "-o", str(tmp_path / "out")]
    ran = subprocess.run(
        [*command, "--scheduler", "tcp://127.0.0.1:9"], capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert ran.returncode == 1
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in ran.stderr
    assert not (tmp_path / "out").exists()
