"""The stack sampler in programs of their own: it names what they do, and leaves them alone whatever they do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from xprof_py import _native, capture, step
from xprof_py.errors import CaptureError
from xprof_py.postprocess.join.samples import Stacks
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.schema import Kind

SPIN = """
import os, sys, threading, time
from xprof_py import capture, step, trace, wrap_input, input_wait
RUN = sys.argv[1]
def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
"""


def samples_of(outcome: Any) -> list[dict[str, Any]]:
    """Every sample of the run's shard: thread, the function that its place is in, whether it was at work."""
    profile = read_shard(outcome.run / outcome.document()["files"]["shard"])
    stacks = Stacks(profile)
    lines = profile["lines"].to_pylist()
    out = []
    for row in profile["stack_samples"].to_pylist():
        place = None if row["stack"] is None else stacks.place(row["stack"])
        name = "" if place is None else place.function
        out.append({"thread": lines[row["line"]]["name"], "function": name, "on": row["on_cpu"], **row})
    return out


def functions(outcome: Any, on: bool) -> Counter[str]:
    return Counter(sample["function"] for sample in samples_of(outcome) if sample["on"] is on)


def test_work_and_waiting_are_told_apart_and_named(program: Any) -> None:
    outcome = program(
        SPIN
        + """
def work(): spin(0.1)
def pause(): time.sleep(0.1)
with capture(RUN, xla=False):
    for i in range(10):
        with step(i):
            work()
            pause()
"""
    )
    at_work, waiting = functions(outcome, on=True), functions(outcome, on=False)
    assert at_work["spin"] >= 5
    assert waiting["pause"] >= 5
    # A moment of the other kind at an edge is no error; most of it is.
    assert at_work["pause"] <= waiting["pause"] / 4
    assert waiting["spin"] <= at_work["spin"] / 4


def test_a_thread_that_waits_for_a_cpu_is_at_work(program: Any) -> None:
    outcome = program(
        SPIN
        + """
import subprocess
hog = "import time\\nend = time.time() + 4\\nwhile time.time() < end: pass"
hogs = [subprocess.Popen([sys.executable, "-c", hog]) for _ in range(len(os.sched_getaffinity(0)))]
os.nice(10)
with capture(RUN, xla=False), step(0):
    spin(0.15)
for process in hogs: process.kill(); process.wait()
"""
    )
    at_work, waiting = functions(outcome, on=True), functions(outcome, on=False)
    assert at_work["spin"] >= 3
    assert waiting["spin"] <= at_work["spin"] / 4


def test_where_frames_cannot_be_read_from_memory_the_sampler_takes_the_gil_and_says_why(program: Any) -> None:
    outcome = program(
        "from xprof_py.collectors import stacks\nstacks.takes_gil = lambda: 'planted'\n"
        + SPIN
        + "with capture(RUN, xla=False), step(0): spin(0.4)\n"
    )
    document = outcome.document()
    assert document["collectors"]["stacks"] == {"used": True, "takes_gil": "planted"}
    assert document["overhead"]["stacks"]["held_ns"] > 0
    assert functions(outcome, on=True)["spin"] >= 3


def test_both_ways_of_reading_agree_on_any_stack() -> None:
    def numbers(depth: int) -> Iterator[str | None]:
        yield deeper(depth)

    def deeper(depth: int) -> str | None:
        if depth == 0:
            return _native.sampler_self_test()
        # In turn a generator, a call through C, and Python alone.
        ways = (lambda: next(numbers(depth - 1)), lambda: next(map(deeper, [depth - 1])), lambda: deeper(depth - 1))
        return ways[depth % 3]()

    assert [deeper(depth) for depth in (0, 1, 2, 3, 10, 40, 200)] == [None] * 7
    for name in ("plain", "b\u00e9b\u00e9", "\u4f8b\u5b50", "\U0001d4d0", "long_" * 400):
        space: dict[str, Any] = {"test": _native.sampler_self_test}
        lines = "\n" * 300 + f"def {name}():\n\n  return (\n    test())\n"
        exec(compile(lines, f"/tmp/{name}.py", "exec"), space)
        (function,) = (value for key, value in space.items() if getattr(value, "__code__", None) and key != "test")
        assert function() is None


def test_its_cost_stays_in_the_bound_that_it_measures(program: Any) -> None:
    outcome = program(SPIN + "with capture(RUN, xla=False), step(0):\n    spin(3)\n", timeout_s=120)
    document = outcome.document()
    totals = document["overhead"]["stacks"]
    wall_ns = document["stop"]["monotonic_ns"] - document["start"]["monotonic_ns"]
    assert totals["looks"] > 10
    # 0.2 % of the time, and half a millisecond in advance for the cold start; one look may come on top.
    assert totals["cost_ns"] <= 0.002 * wall_ns + 500_000 + 2_000_000


def test_only_launching_threads_are_sampled(program: Any) -> None:
    outcome = program(
        SPIN
        + """
def trainer():
    for i in range(5):
        with step(i):
            spin(0.05)
def bystander():
    with trace("not a step"):
        spin(0.25)
with capture(RUN, xla=False):
    threads = [threading.Thread(target=f, name=f.__name__) for f in (trainer, bystander)]
    for t in threads: t.start()
    for t in threads: t.join()
"""
    )
    names = {sample["thread"] for sample in samples_of(outcome)}
    assert "trainer" in names
    assert "bystander" not in names


def test_without_steps_the_main_thread_is_sampled(program: Any) -> None:
    outcome = program(SPIN + "def work(): spin(0.4)\nwith capture(RUN, xla=False): work()\n")
    assert functions(outcome, on=True)["spin"] >= 3
    lines = read_shard(outcome.run / outcome.document()["files"]["shard"])["lines"].to_pylist()
    assert [line["thread_id"] for line in lines] == [outcome.document()["pid"]]


def test_a_thread_that_waits_for_its_batch_is_sampled(program: Any) -> None:
    outcome = program(
        SPIN
        + """
def worker():
    for _ in wrap_input(range(4)):
        spin(0.1)
with capture(RUN, xla=False):
    t = threading.Thread(target=worker, name="worker"); t.start(); t.join()
"""
    )
    assert "worker" in {sample["thread"] for sample in samples_of(outcome)}


def test_switched_off_nothing_is_sampled(program: Any) -> None:
    outcome = program(SPIN + "with capture(RUN, xla=False, stacks=False), step(0): spin(0.2)\n")
    assert samples_of(outcome) == []
    assert outcome.document()["collectors"]["stacks"] == {"used": False, "why": "switched off"}
    assert "stacks" not in outcome.document()["overhead"]


def test_the_environment_switches_it_off(program: Any) -> None:
    outcome = program(SPIN + "with capture(RUN, xla=False), step(0): spin(0.2)\n", XPROF_PY_STACKS="0")
    assert samples_of(outcome) == []


def test_true_is_accepted_where_it_works(tmp_path: Any) -> None:
    with capture(tmp_path / "run", xla=False, stacks=True), step(0):
        time.sleep(0.05)


def test_true_is_refused_where_frames_cannot_be_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(CaptureError, match="global lock"), capture(tmp_path / "run", xla=False, stacks=True):
        pass


def test_threads_may_end_at_any_time(program: Any) -> None:
    outcome = program(
        SPIN
        + """
def short(i):
    with step(i):
        spin(0.003)
with capture(RUN, xla=False):
    for i in range(150):
        t = threading.Thread(target=short, args=(i,)); t.start()
        if i % 3: t.join()
    spin(0.2)
print("done")
"""
    )
    assert outcome.stdout == "done\n"
    totals = outcome.document()["overhead"]["stacks"]
    assert totals["ended"]
    # 64 threads at most are followed; those left out are counted.
    assert totals["threads"] + totals["threads_left_out"] == 150


def test_a_c_call_that_keeps_the_gil_delays_a_look_and_nothing_else(program: Any) -> None:
    outcome = program(
        SPIN
        + """
def hold():
    pow(3, 5_000_000)
with capture(RUN, xla=False):
    for i in range(2):
        with step(i):
            hold()
print("done")
""",
        timeout_s=120,
    )
    assert outcome.stdout == "done\n"
    assert functions(outcome, on=True)["hold"] >= 1


def test_a_forked_child_has_no_sampler_and_may_start_its_own(program: Any) -> None:
    outcome = program(
        SPIN
        + """
with capture(RUN, xla=False):
    with step(0): spin(0.1)
    children = []
    for n in range(8):
        child = os.fork()
        if child == 0:
            with step(1): spin(0.02)
            if n == 7:
                with capture(RUN + "-child", xla=False), step(2): spin(0.3)
            os._exit(0)
        children.append(child)
        spin(0.02)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    with step(3): spin(0.2)
print("done")
"""
    )
    assert outcome.stdout == "done\n"
    assert outcome.document()["overhead"]["stacks"]["ended"]
    assert functions(outcome, on=True)["spin"] >= 3
    (child,) = (outcome.run.parent / f"{outcome.run.name}-child" / "shards").glob("*.xpr")
    assert read_shard(child)["stack_samples"].num_rows >= 3


@pytest.mark.parametrize("end", ["sys.exit(3)", "os._exit(3)", "raise SystemExit(3)"])
def test_the_interpreter_may_end_inside_the_capture(program: Any, end: str) -> None:
    outcome = program(
        SPIN
        + f"""
threading.Thread(target=spin, args=(0.3,), daemon=True).start()
opened = capture(RUN, xla=False).__enter__()
with step(0):
    spin(0.15)
    {end}
""",
        expect=3,
    )
    if "os._exit" not in end:
        assert outcome.document()["overhead"]["stacks"]["ended"]


def test_deep_stacks_keep_their_inner_frames(program: Any) -> None:
    outcome = program(
        SPIN
        + """
sys.setrecursionlimit(5000)
def deep(n): spin(0.4) if n == 0 else deep(n - 1)
with capture(RUN, xla=False), step(0): deep(2000)
"""
    )
    profile = read_shard(outcome.run / outcome.document()["files"]["shard"])
    assert max(profile["stacks"]["depth"].to_pylist()) == 96
    assert profile["stacks"]["frame"].null_count >= 1
    assert functions(outcome, on=True)["spin"] >= 1


def test_code_that_is_made_and_thrown_away_is_not_kept_alive(program: Any) -> None:
    outcome = program(
        SPIN
        + """
import gc, weakref
alive = []
with capture(RUN, xla=False):
    for i in range(30):
        space = {"spin": spin}
        exec(compile(f"def f{i}(): spin(0.01)", f"made_{i}.py", "exec"), space)
        made = space[f"f{i}"]
        alive.append(weakref.ref(made.__code__))
        with step(i): made()
        del made, space
    gc.collect()
    print(sum(r() is not None for r in alive))
"""
    )
    assert outcome.stdout == "0\n"


def test_no_finalizer_runs_on_the_samplers_thread(program: Any) -> None:
    outcome = program(
        SPIN
        + """
import gc
seen = set()
class Ring:
    def __init__(self): self.me = self
    def __del__(self): seen.add(threading.get_native_id())
gc.set_threshold(1)
with capture(RUN, xla=False), step(0):
    end = time.perf_counter() + 0.6
    while time.perf_counter() < end: Ring()
    # What is left over may be collected by any thread that runs Python later, the capture's own at its end among them.
    while_sampled = set(seen)
print(while_sampled == {threading.get_native_id()})
"""
    )
    assert outcome.stdout == "True\n"


def test_signals_of_the_program_stay_on_its_main_thread(program: Any) -> None:
    outcome = program(
        SPIN
        + """
import signal
ticks = []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(threading.get_ident()))
with capture(RUN, xla=False), step(0):
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    time.sleep(0.3); spin(0.2)
    signal.setitimer(signal.ITIMER_REAL, 0)
print(set(ticks) == {threading.get_ident()}, len(ticks) > 10)
"""
    )
    assert outcome.stdout == "True True\n"


def test_capture_after_capture(program: Any) -> None:
    outcome = program(
        SPIN
        + """
for n in range(12):
    with capture(RUN, xla=False, overwrite=True), step(n): spin(0.05)
print("done", threading.active_count())
"""
    )
    assert outcome.stdout == "done 1\n"
    assert len(samples_of(outcome)) >= 1


def test_steps_hold_their_cpu_time(program: Any) -> None:
    outcome = program(
        SPIN
        + """
with capture(RUN, xla=False):
    with step(0): spin(0.1)
    with step(1): time.sleep(0.1)
"""
    )
    args = read_shard(outcome.run / outcome.document()["files"]["shard"])["args"].to_pylist()
    busy_ns, idle_ns = (arg["value"] for arg in args if arg["key"] == "cpu_ns")
    assert 100e6 <= busy_ns < 110e6
    assert idle_ns < 20e6


def test_long_collections_of_garbage_are_spans(program: Any) -> None:
    outcome = program(
        SPIN
        + """
import gc
gc.disable()
kept = [[i] for i in range(400_000)]
with capture(RUN, xla=False), step(0):
    gc.collect()
print(len(gc.callbacks))
"""
    )
    assert outcome.stdout == "0\n"
    events = read_shard(outcome.run / outcome.document()["files"]["shard"])["events"].to_pylist()
    (pause,) = [event for event in events if event["kind"] == Kind.GC]
    (whole,) = [event for event in events if event["kind"] == Kind.STEP]
    assert pause["name"] == "gc"
    assert whole["start_ps"] <= pause["start_ps"]
    assert 1_000_000_000 <= pause["duration_ps"] <= whole["duration_ps"]
    assert outcome.document()["collectors"]["gc"]["pauses"] == 1
