"""The flight recorder: the last seconds are there when something happens, and the program does not notice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import xprof_py
from xprof_py.errors import UsageError
from xprof_py.postprocess.readers.shard import read_shard

HEAD = """
import os, signal, sys, threading, time
from xprof_py import flight_recorder, mark, step, trace
RUN = sys.argv[1]
"""


def marks(shard: Path) -> list[int]:
    """The numbers of the marks in a shard, in order."""
    profile = read_shard(shard)
    args = profile["args"].to_pylist()
    return [arg["value"] for arg in args if arg["key"] == "i"]


def snapshot(run: Path, name: str) -> tuple[Path, dict[str, Any]]:
    folder = run / "snapshots" / name
    (run_file,) = (folder / "run").iterdir()
    (shard,) = (folder / "shards").iterdir()
    assert run_file.stem == shard.stem
    return shard, json.loads(run_file.read_text(encoding="utf-8"))


def test_the_last_seconds_are_kept_whole_and_no_more(program: Any) -> None:
    outcome = program(
        HEAD
        + """
times = []
with flight_recorder(RUN, seconds=0.4) as recorder:
    end = time.monotonic() + 1.5
    i = 0
    while time.monotonic() < end:
        mark("m", i=i)
        times.append(time.monotonic())
        i += 1
        time.sleep(0.001)
    recorder.snapshot()
    asked = time.monotonic()
inside = [k for k, at in enumerate(times) if at > asked - 0.4]
long_before = [k for k, at in enumerate(times) if at < asked - 1.2]
print(inside[0], long_before[-1], len(times))
"""
    )
    first_inside, last_before, count = map(int, outcome.stdout.split())
    kept = marks(snapshot(outcome.run, "asked-for")[0])
    assert kept == list(range(kept[0], count)), "a hole in what is kept"
    assert last_before < kept[0] <= first_inside
    at_end = marks(outcome.run / outcome.document()["files"]["shard"])
    assert at_end == list(range(at_end[0], count))
    assert list((outcome.run / "shards").iterdir()) == [outcome.run / outcome.document()["files"]["shard"]]
    totals = outcome.document()["overhead"]["recorder"]
    assert totals["forgotten"] == at_end[0]
    assert totals["written"] == count
    assert totals["dropped"] == 0


def test_a_budget_keeps_the_newest(program: Any) -> None:
    outcome = program(
        HEAD
        + """
with flight_recorder(RUN, seconds=3600, budget_bytes=1 << 17, stacks=False) as recorder:
    for i in range(20_000):
        mark("m", i=i)
        if i % 500 == 0: time.sleep(0.02)
    recorder.snapshot()
"""
    )
    shard, _ = snapshot(outcome.run, "asked-for")
    kept = marks(shard)
    assert kept == list(range(kept[0], 20_000))
    assert 2_000 < len(kept) < 10_000
    assert outcome.document()["overhead"]["recorder"]["dropped"] == 0


def test_a_slow_step_leaves_the_seconds_before_it(program: Any) -> None:
    outcome = program(
        HEAD
        + """
with flight_recorder(RUN, seconds=30, slow_step=3.0):
    for i in range(24):
        with step(i), trace("load"):
            time.sleep(0.4 if i in (15, 16) else 0.01)
"""
    )
    shard, run_file = snapshot(outcome.run, "slow-step-15")
    about = run_file["snapshot"]["about"]
    assert (about["reason"], about["step"], about["step_name"]) == ("slow step", 15, "train")
    assert about["duration_ms"] >= 400 > about["median_ms"] >= 10
    assert outcome.step_numbers(shard)[:16] == list(range(16))
    flight = outcome.document()["flight"]
    # The second one lies within the seconds of the first one's snapshot: counted, not written again.
    assert (flight["slow_steps"], flight["slow_steps_without_snapshot"]) == (2, 1)
    summary = xprof_py.load(shard.parent.parent).summary()
    assert summary["steps"]["count"] >= 16
    said = {row["code"]: row["message"] for row in summary["diagnostics"]}
    assert said["snapshot"].startswith("a snapshot of the flight recorder: step 15 of train took 4")


def test_an_exception_that_leaves_the_block_takes_a_snapshot_and_goes_on(program: Any) -> None:
    outcome = program(
        HEAD
        + """
try:
    with flight_recorder(RUN):
        mark("m", i=1)
        raise ValueError("a \\"quoted\\" \\ud800 reason")
except ValueError as error:
    print("caught")
try:
    with flight_recorder(RUN + "-exit"):
        mark("m", i=2)
        sys.exit(0)
except SystemExit:
    print(os.listdir(RUN + "-exit/snapshots"))
"""
    )
    assert outcome.stdout == "caught\n[]\n"
    shard, run_file = snapshot(outcome.run, "exception-ValueError")
    assert run_file["snapshot"]["about"]["exception"] == "ValueError"
    assert run_file["snapshot"]["about"]["text"] == 'a "quoted" ? reason'
    assert marks(shard) == [1]


def test_the_signal_asks_even_a_program_that_hangs_with_the_interpreters_lock(program: Any) -> None:
    outcome = program(
        HEAD
        + """
import ctypes
with flight_recorder(RUN):
    mark("m", i=7)
    time.sleep(0.2)
    killer = os.fork()
    if killer == 0:
        time.sleep(0.3)
        os.kill(os.getppid(), signal.SIGUSR2)
        os._exit(0)
    # A mutex that is held already: waits with the interpreter's lock, and no signal ends the wait.
    native, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    until = (ctypes.c_long * 2)(int(time.time()) + 2, 0)
    native.pthread_mutex_lock(mutex)
    native.pthread_mutex_timedlock(mutex, until)
    ended = time.time()
    (run_file,) = os.listdir(os.path.join(RUN, "snapshots", "signal-1", "run"))
    print(os.stat(os.path.join(RUN, "snapshots", "signal-1", "run", run_file)).st_mtime < ended - 0.1)
    os.waitpid(killer, 0)
"""
    )
    assert outcome.stdout == "True\n", "written only when the hang was over"
    shard, run_file = snapshot(outcome.run, "signal-1")
    assert run_file["snapshot"]["about"] == {"reason": "signal", "count": 1}
    assert marks(shard) == [7]


def test_the_programs_own_handler_is_called_too_and_is_back_afterwards(program: Any) -> None:
    outcome = program(
        HEAD
        + """
calls = []
def own(number, frame): calls.append(number)
signal.signal(signal.SIGUSR2, own)
with flight_recorder(RUN):
    os.kill(os.getpid(), signal.SIGUSR2)
    time.sleep(0.3)
os.kill(os.getpid(), signal.SIGUSR2)
time.sleep(0.05)
print(len(calls), signal.getsignal(signal.SIGUSR2) is own)
signal.signal(signal.SIGUSR2, signal.SIG_DFL)
with flight_recorder(RUN + "-b"):
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGUSR2)  # as in a program that nobody records: it ends the child
        time.sleep(5)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGUSR2)
""",
        "-W",
        "ignore",
    )
    assert outcome.stdout == "2 True\nTrue\n"
    assert snapshot(outcome.run, "signal-1")


def test_snapshots_are_bounded(program: Any) -> None:
    outcome = program(
        HEAD
        + """
with flight_recorder(RUN, snapshots=2) as recorder:
    for i in range(4):
        mark("m", i=i)
        print(recorder.snapshot("again") is not None)
print(recorder.snapshot() is None)
""",
        "-W",
        "ignore",
    )
    assert outcome.stdout.split() == ["True", "True", "False", "False", "True"]
    assert sorted(path.name for path in (outcome.run / "snapshots").iterdir()) == ["asked-for", "asked-for.2"]
    assert outcome.document()["flight"]["refused"] == 2
    assert "there are 2 already" in outcome.messages()
    assert marks(snapshot(outcome.run, "asked-for.2")[0]) == [0, 1]


def test_a_folder_that_is_removed_costs_the_snapshots_alone(program: Any) -> None:
    outcome = program(
        HEAD
        + """
import shutil
with flight_recorder(RUN) as recorder:
    mark("m", i=0)
    shutil.rmtree(RUN)
    print(recorder.snapshot())
    raise SystemExit(5)
""",
        "-W",
        "ignore",
        expect=5,
    )
    assert outcome.stdout == "None\n"


def test_a_run_made_anew_has_no_snapshot_of_the_old_one(program: Any) -> None:
    source = """
for i in range(2):
    with flight_recorder(RUN, overwrite=True) as recorder:
        mark("m", i=i)
        if i == 0: recorder.snapshot()
"""
    outcome = program(HEAD + source)
    assert [path for path in (outcome.run / "snapshots").rglob("*") if path.is_file()] == []
    assert marks(outcome.run / outcome.document()["files"]["shard"]) == [1]


@pytest.mark.parametrize(
    "arguments", [{"seconds": 0}, {"seconds": True}, {"slow_step": 1}, {"slow_step": "3"}, {"snapshots": 0}]
)
def test_arguments_that_make_no_sense(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(arguments))):
        xprof_py.flight_recorder(tmp_path / "run", **arguments)
