"""SIGKILL at random moments: what was recorded is read back, all of it and nothing else, and what was open is named.

XPROF_PY_KILLS=200 kills so many programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import xprof_py
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.run_file import no_device_reason
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.readers.shard_left import left_beside

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("XPROF_PY_KILLS", "10"))


def killed(folder: Path, count: int, seed: int, seconds: float = 0) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.workloads.killed", str(folder), str(count), str(seed), str(seconds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 + 3 * count, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def numbers(profile: Profile) -> dict[str, list[int]]:
    """``i`` of each thread's marks, by start; the other arguments are as they were given."""
    names = profile["lines"]["name"].to_pylist()
    line, event_name = profile["events"]["line"].to_pylist(), profile["events"]["name"].to_pylist()
    args: dict[int, dict[str, Any]] = defaultdict(dict)
    for row in profile["args"].to_pylist():
        args[row["event"]][row["key"]] = row["value"]
    out: dict[str, list[int]] = defaultdict(list)
    for event, name in enumerate(event_name):
        if name not in ("train", "save"):
            i, given = args[event]["i"], len(args[event])
            assert given == (1 if i % 7 == 0 else 9 if i % 3 == 0 else 3)
            assert name.startswith("name ") if i % 7 == 0 else name == ("many" if i % 3 == 0 else "some")
            out[names[line[event]]].append(i)
    return out


def test_every_committed_event_of_a_killed_process_is_read_and_no_other(tmp_path: Path) -> None:
    from_rings = 0
    for row in killed(tmp_path, KILLS, seed=1):
        profile = read_shard(row["shard"])
        diagnostics = {d["code"]: d["message"] for d in profile["diagnostics"].to_pylist()}
        assert set(diagnostics) <= {"shard_not_finished", "was_doing", "shard_truncated", "dropped_ring"}, diagnostics
        from_rings += int(diagnostics["shard_not_finished"].split(": ")[1].split()[0])
        dropped = sum(d["count"] for d in profile["diagnostics"].to_pylist() if d["code"] == "dropped_ring")
        found = numbers(profile)
        assert set(found) <= set(row["begun"])
        for thread, begun in row["begun"].items():
            kept = found[thread]
            assert kept == sorted(set(kept)), "an event is there twice, or out of order"
            assert row["done"][thread] - dropped <= len(kept) <= begun, (row, thread, len(kept))
            if not dropped:
                assert kept == list(range(len(kept)))
    assert from_rings > 0


def test_a_killed_flight_recorder_leaves_its_last_seconds_to_the_last_event(tmp_path: Path) -> None:
    for row in killed(tmp_path, max(KILLS // 3, 4), seed=2, seconds=0.1):
        profile = read_shard(row["shard"])
        found = numbers(profile)
        for thread in list(row["done"])[:-1]:
            kept, done = found[thread], row["done"][thread]
            if not done:
                continue
            assert kept == list(range(kept[0], kept[-1] + 1))
            assert kept[-1] + 1 in (done, done + 1), (row, thread)


def test_what_the_process_was_doing_is_said(tmp_path: Path) -> None:
    (row,) = killed(tmp_path, 1, seed=3)
    shard = tmp_path / "run" / "shards" / "0-9.xpr"
    shard.parent.mkdir(parents=True)
    for file in (Path(row["shard"]), *left_beside(row["shard"])):
        file.rename(shard.with_name(file.name.replace("0.xpr", shard.name)))
    (doing,) = read_shard(shard).metadata["was_doing"]
    assert doing["thread"] == "MainThread"
    assert doing["spans"][0] == "train 412"
    messages = [
        r["message"] for r in xprof_py.load(tmp_path / "run").summary()["diagnostics"] if r["code"] == "was_doing"
    ]
    assert messages == ["when the process was killed it was doing: " + " > ".join(doing["spans"])]


def test_rings_of_another_shard_are_not_taken(tmp_path: Path) -> None:
    (first, second) = killed(tmp_path, 2, seed=4)
    Path(second["shard"] + ".rings").replace(first["shard"] + ".rings")
    (row,) = [d for d in read_shard(first["shard"])["diagnostics"].to_pylist() if d["code"] == "shard_not_finished"]
    assert "those of another shard" in row["message"]


@pytest.mark.parametrize("damage", ["cut", "zeros", "noise"])
def test_damaged_rings_cost_themselves_alone(tmp_path: Path, damage: str) -> None:
    (row,) = killed(tmp_path, 1, seed=5)
    rings = Path(row["shard"] + ".rings")
    content = bytearray(rings.read_bytes())
    if damage == "cut":
        content = content[: 65536 + 1000]
    elif damage == "zeros":
        content[64:] = bytes(len(content) - 64)
    else:
        content[192:] = (b"\xa5\x17\x00\xff\x93" * (len(content) // 5 + 1))[: len(content) - 192]
    rings.write_bytes(content)
    profile = read_shard(row["shard"])
    assert "shard_not_finished" in profile["diagnostics"]["code"].to_pylist()


def test_a_killed_program_without_jax_has_the_steps_of_its_host(tmp_path: Path) -> None:
    """Nothing of a device is missing where there was none, although the process did not get to say so."""
    program = f"""
import os, signal, time, xprof_py
with xprof_py.capture({str(tmp_path / "run")!r}):
    for i in range(6):
        with xprof_py.step(i), xprof_py.input_wait(): time.sleep(0.01)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr
    summary = xprof_py.load(tmp_path / "run").summary()
    assert summary["steps"]["phases"]["unmeasured"] == 0
    assert summary["verdict"]["bottleneck"] == "input"
    assert "capture_not_ended" in {row["code"] for row in summary["diagnostics"]}
    assert "no_xla_profile" not in {row["code"] for row in summary["diagnostics"]}


@pytest.mark.parametrize(("used", "why"), [(True, None), (False, "not started")])
def test_of_a_killed_program_with_jax_it_is_said_what_would_have_kept_the_profile(used: bool, why: str | None) -> None:
    run = {"state": "recording", "collectors": {"xla": {"used": used, "why": why}}}
    said = no_device_reason(run, has_xspace=False, compiled=True)
    assert said.startswith("no XLA profile: XLA gives it as the capture ends, and this one did not end")
    assert "capture(steps=(10, 20))" in said
    assert no_device_reason({**run, "state": "finished"}, has_xspace=False, compiled=True) != said
