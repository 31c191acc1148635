"""A capture around a program without JAX: what it leaves, and that it never harms the program."""

import json
import os
import subprocess
import sys
import time

import pytest

from xprof_py import _native, capture, step
from xprof_py.collectors.monitoring import COMPILE_KIND
from xprof_py.errors import CaptureError, UsageError
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.schema import Kind

LOOP = """
import sys
from xprof_py import capture, step, trace
with capture(sys.argv[1]):
    for i in range(5):
        with step(i), trace("work", layer=i):
            pass
print("trained")
"""


def step_numbers(outcome):
    """The ``step_num`` of the recorded steps, in order, read from the shard that the run file names."""
    return _step_numbers(outcome.run / outcome.document()["files"]["shard"])


def _step_numbers(shard):
    profile = read_shard(shard)
    kinds = profile["events"]["kind"].to_pylist()
    args = profile["args"].select(["event", "key", "value"]).to_pylist()
    return sorted(arg["value"] for arg in args if arg["key"] == "step_num" and kinds[arg["event"]] == Kind.STEP)


def test_importing_the_sdk_is_inert():
    source = """
import sys, threading, signal, os
before = set(sys.modules)
files = set(os.listdir("/proc/self/fd"))
import xprof_py
heavy = {"numpy", "jax", "pyarrow", "dask", "cupy", "nvtx", "orjson", "importlib.metadata", "asyncio", "socket"}
assert not heavy & (set(sys.modules) - before), heavy & set(sys.modules)
assert threading.active_count() == 1
assert set(os.listdir("/proc/self/fd")) == files
assert len(os.listdir("/proc/self/task")) == 1
assert sys.gettrace() is None and sys.getprofile() is None
assert not xprof_py._native.recording()
assert xprof_py.__version__
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr


def test_the_compile_kind_is_the_schemas():
    assert COMPILE_KIND == Kind.COMPILE


def test_a_whole_block(program):
    outcome = program(LOOP)
    document = outcome.document()
    assert outcome.stdout == "trained\n"
    assert outcome.stderr == ""
    assert step_numbers(outcome) == [0, 1, 2, 3, 4]
    assert document["state"] == "finished"
    assert document["capture"]["mode"] == "whole"
    assert document["collectors"]["host"]["used"] is True
    assert document["collectors"]["xla"] == {"used": False, "why": "no JAX"}
    assert document["collectors"]["cuda"]["why"] == "not available in this version"
    assert document["drained"] is None
    assert document["overhead"]["spans"] == 10
    assert document["messages"] == []
    assert document["rank_source"] == "pid"
    assert document["pid"] == int(document["rank"])
    assert document["versions"]["xprof_py"]
    assert not (outcome.run / "plugins").exists()
    start, stop = document["start"], document["stop"]
    assert 0 < stop["monotonic_ns"] - start["monotonic_ns"] < 10_000_000_000
    drift_ns = (stop["realtime_ns"] - start["realtime_ns"]) - (stop["monotonic_ns"] - start["monotonic_ns"])
    assert abs(drift_ns) < 50_000_000
    assert abs(start["realtime_ns"] - time.time_ns()) < 60_000_000_000


def test_the_launchers_rank_names_the_files(program):
    outcome = program(LOOP, RANK="3", WORLD_SIZE="4")
    document = outcome.document()
    assert (document["rank"], document["process_index"], document["process_count"]) == ("3", 3, 4)
    assert outcome.run_files()[0].name == f"3-{document['pid']}.json"
    assert document["files"]["shard"] == f"shards/3-{document['pid']}.xpr"


def test_steps_record_a_half_open_range(program):
    outcome = program(
        """
        import sys
        from xprof_py import capture, step, trace, _native
        with capture(sys.argv[1], steps=(10, 13)):
            for i in range(20):
                with step(i), trace("inside"):
                    print(i, _native.recording())
        """
    )
    document = outcome.document()
    assert step_numbers(outcome) == [10, 11, 12]
    recorded = [line.split()[0] for line in outcome.stdout.splitlines() if line.endswith("True")]
    assert recorded == ["10", "11", "12"]
    assert document["capture"]["steps"] == [10, 13]
    assert document["capture"]["started_at_step"] == 10
    assert document["state"] == "finished"


def test_a_loop_that_ends_inside_the_range_keeps_what_there_was(program):
    outcome = program(LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], steps=(3, 100))"))
    assert step_numbers(outcome) == [3, 4]
    assert "ended before step 99" in outcome.messages()
    assert outcome.stderr == ""


def test_steps_that_never_come_are_said(program):
    outcome = program(LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], steps=(100, 200))"))
    assert outcome.document()["state"] == "not_started"
    assert "steps 0 to 4 were seen" in outcome.messages()
    assert "steps 0 to 4 were seen" in outcome.stderr
    assert outcome.stdout == "trained\n"


@pytest.mark.parametrize("steps", ["(5, 5)", "(7, 3)", "(-1, 3)", "(1, 2, 3)", "5", "('a', 'b')", "(1.0, 2.0)"])
def test_a_bad_range_is_an_error_at_the_call(steps, program):
    outcome = program(
        f"""
        import sys
        from xprof_py import capture
        from xprof_py.errors import UsageError
        try:
            capture(sys.argv[1], steps={steps})
        except UsageError as error:
            assert "steps" in str(error)
            print("refused")
        """
    )
    assert outcome.stdout == "refused\n"
    assert not outcome.run.exists()


@pytest.mark.parametrize("collector", ["cuda", "stacks", "power", "probe", "backend"])
def test_a_collector_that_is_not_built_is_refused_before_the_block(collector, tmp_path):
    ran = []
    with (
        pytest.raises(CaptureError, match="not available in this version"),
        capture(tmp_path / "r", **{collector: True}),
    ):
        ran.append(1)
    assert ran == []
    with capture(tmp_path / "r", **{collector: False}):
        ran.append(1)
    assert ran == [1]


def test_a_collector_wants_a_known_word(tmp_path):
    with pytest.raises(UsageError, match="cuda"):
        capture(tmp_path, cuda="yes")


def test_xla_that_is_asked_for_needs_jax(program):
    outcome = program(
        """
        import sys
        from xprof_py import capture
        from xprof_py.errors import CaptureError
        sys.modules["jax"] = None
        try:
            with capture(sys.argv[1], xla=True):
                print("never")
        except CaptureError as error:
            print(error)
        """
    )
    assert outcome.stdout == "xla=True: JAX is not installed here\n"


def test_a_run_in_use_is_refused_unless_overwritten(program):
    first = program(LOOP)
    old = first.document()
    again = program(LOOP, expect=1)
    assert "already holds a capture" in again.stderr
    assert "trained" not in again.stdout
    assert again.document() == old
    (first.run / "notes.txt").write_text("keep", encoding="utf-8")
    replaced = program(LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], overwrite=True)"))
    assert replaced.document()["pid"] != old["pid"]
    assert len(list((replaced.run / "shards").iterdir())) == 1
    assert (first.run / "notes.txt").read_text(encoding="utf-8") == "keep"


def test_a_run_file_cannot_have_files_outside_the_run_removed(program, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("keep", encoding="utf-8")
    folder = tmp_path / "run-a" / "run"
    folder.mkdir(parents=True)
    names = {"a": "shards/../../victim", "b": str(victim), "c": "../victim"}
    (folder / "0-1.json").write_text(json.dumps({"session": "run", "files": names}), encoding="utf-8")
    program(LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], overwrite=True)"))
    assert victim.read_text(encoding="utf-8") == "keep"


def test_ranks_of_one_job_share_a_run_and_its_rerun_does_not(program):
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    program(LOOP, RANK="0", **job)
    outcome = program(LOOP, RANK="1", **job)
    assert [path.name.split("-")[0] for path in outcome.run_files()] == ["0", "1"]
    assert "already holds" in program(LOOP, expect=1, RANK="1", **job).stderr
    assert "already holds" in program(LOOP, expect=1, RANK="2", **{**job, "MASTER_PORT": "2"}).stderr
    overwriting = LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], overwrite=True)")
    rerun = {**job, "MASTER_PORT": "2"}
    program(overwriting, RANK="0", **rerun)
    outcome = program(overwriting, RANK="1", **rerun)
    assert {json.loads(path.read_text())["job"] for path in outcome.run_files()} == {"torchrun:a:2"}
    assert len(outcome.run_files()) == len(list((outcome.run / "shards").iterdir())) == 2


CHILD = """
import sys
from xprof_py import capture, step
with capture(sys.argv[1]):
    print("in", flush=True)
    sys.stdin.readline()
    with step(1):
        pass
"""


def test_processes_of_one_parent_without_a_launcher_share_a_run(program):
    outcome = program(
        f"""
import subprocess, sys
children = []
for _ in range(3):
    command = [sys.executable, "-c", {CHILD!r}, sys.argv[1]]
    children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert children[-1].stdout.readline() == "in\\n"
for process in children:
    process.communicate("go\\n")
    assert process.returncode == 0
"""
    )
    assert len(outcome.run_files()) == len(list((outcome.run / "shards").iterdir())) == 3


def test_a_restarted_job_neither_fails_nor_overwrites(program):
    job = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    program(LOOP, **job)
    outcome = program(LOOP, TORCHELASTIC_RESTART_COUNT="1", **job)
    sessions = {json.loads(path.read_text())["session"] for path in outcome.run_files()}
    assert sessions == {"run", "run-restart1"}


@pytest.mark.parametrize("place", ["/proc/nowhere/run", "/dev/null/run", "a-file/run"])
def test_a_path_that_cannot_be_written_is_refused_before_the_block(place, program, tmp_path):
    (tmp_path / "a-file").write_text("", encoding="utf-8")
    outcome = program(LOOP, run=place, expect=1)
    assert "CaptureError" in outcome.stderr
    assert "cannot record there" in outcome.stderr
    assert outcome.stdout == ""


@pytest.mark.parametrize(
    ("statement", "code", "kind"),
    [
        ("raise ValueError('mine')", 1, "ValueError"),
        ("sys.exit(7)", 7, "SystemExit"),
        ("1 / 0", 1, "ZeroDivisionError"),
    ],
)
def test_a_failing_block_passes_its_exception_on_and_keeps_the_capture(statement, code, kind, program):
    outcome = program(
        f"""
        import sys
        from xprof_py import capture, step
        with capture(sys.argv[1]):
            for i in range(3):
                with step(i):
                    pass
            {statement}
        """,
        expect=code,
    )
    assert step_numbers(outcome) == [0, 1, 2]
    assert outcome.document()["capture"]["block_error"] == kind
    assert outcome.document()["state"] == "finished"
    if code == 1:
        assert outcome.stderr.splitlines()[-1].startswith(kind)


def test_ctrl_c_passes_through(program):
    outcome = program(
        """
        import signal, sys
        from xprof_py import capture, step
        with capture(sys.argv[1]):
            with step(0):
                pass
            signal.raise_signal(signal.SIGINT)
        """,
        expect=-2,
    )
    assert "KeyboardInterrupt" in outcome.stderr
    assert step_numbers(outcome) == [0]


@pytest.mark.parametrize("death", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_killed_process_leaves_a_readable_prefix(death, program):
    outcome = program(
        f"""
        import os, sys, time
        from xprof_py import capture, step
        with capture(sys.argv[1]):
            for i in range(10):
                with step(i):
                    pass
            time.sleep(0.5)
            {death}
        """,
        expect=3 if "exit" in death else -9,
    )
    assert outcome.document()["state"] == "recording"
    assert step_numbers(outcome) == list(range(10))


def test_the_interpreters_end_closes_an_open_capture(program):
    outcome = program(
        """
        import sys
        from xprof_py import capture, step
        capture(sys.argv[1]).__enter__()
        with step(0):
            pass
        """
    )
    assert outcome.document()["state"] == "finished"
    assert "interpreter ended inside the capture" in outcome.messages()
    assert step_numbers(outcome) == [0]


def test_a_capture_inside_a_capture_records_nothing_and_harms_nothing(program):
    outcome = program(
        """
        import sys
        from xprof_py import capture, step
        with capture(sys.argv[1]):
            with capture(sys.argv[1] + "-inner", cuda=True), step(1):
                pass
            with step(2):
                pass
        """
    )
    assert step_numbers(outcome) == [1, 2]
    assert not (outcome.run.parent / "run-a-inner").exists()
    assert "another capture of this process is open" in outcome.stderr


def test_captures_one_after_the_other(program):
    outcome = program(
        """
        import sys
        from xprof_py import capture, step
        for name in "abc":
            with capture(sys.argv[1] + "/" + name):
                with step(ord(name)):
                    pass
        """
    )
    for name in "abc":
        (shard,) = (outcome.run / name / "shards").iterdir()
        assert _step_numbers(shard) == [ord(name)]


def test_one_capture_object_used_as_a_decorator(program):
    outcome = program(
        """
        import asyncio, sys
        from xprof_py import capture, step
        from xprof_py.errors import UsageError

        @capture(sys.argv[1])
        def train(x):
            "doc"
            with step(1):
                return x + 1

        @capture(sys.argv[1] + "-async")
        async def serve(x):
            await asyncio.sleep(0)
            with step(2):
                return x + 2

        assert train(1) == 2 and train.__doc__ == "doc"
        assert asyncio.run(serve(1)) == 3
        try:
            capture(sys.argv[1])(lambda: (yield))
        except UsageError:
            print("no generators")
        """
    )
    assert outcome.stdout == "no generators\n"
    assert step_numbers(outcome) == [1]
    (shard,) = (outcome.run.parent / "run-a-async" / "shards").iterdir()
    assert _step_numbers(shard) == [2]


def test_a_capture_in_another_thread_sees_all_threads(program):
    outcome = program(
        """
        import sys, threading
        from xprof_py import capture, step
        inside, leave = threading.Event(), threading.Event()
        def hold():
            with capture(sys.argv[1]):
                with step(1): pass
                inside.set(); leave.wait()
        thread = threading.Thread(target=hold)
        thread.start(); inside.wait()
        with step(2): pass
        leave.set(); thread.join()
        """
    )
    assert step_numbers(outcome) == [1, 2]


def test_a_forked_child_leaves_the_parents_capture_alone(program):
    outcome = program(
        """
        import os, sys
        from xprof_py import capture, step
        with capture(sys.argv[1]):
            with step(1): pass
            child = os.fork()
            with step(2 if child else 3): pass
        if child == 0:
            with capture(sys.argv[1] + "-child"), step(4): pass
            sys.exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        with step(6): pass
        """
    )
    assert outcome.document()["state"] == "finished"
    assert step_numbers(outcome) == [1, 2]
    (shard,) = (outcome.run.parent / "run-a-child" / "shards").iterdir()
    assert _step_numbers(shard) == [4]


def test_warnings_as_errors_do_not_reach_the_program(program):
    outcome = program(LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], steps=(100, 200))"), "-W", "error")
    assert outcome.stdout == "trained\n"
    assert "xprof_py: " in outcome.stderr


def test_a_recorder_in_use_costs_the_annotations_only(program):
    outcome = program(
        """
        import sys
        from xprof_py import _native, capture, step
        _native.recorder_start(sys.argv[1] + ".xpr", budget_bytes=1 << 20, ring_bytes=1 << 16)
        with capture(sys.argv[1]), step(1):
            print("trained")
        """
    )
    assert outcome.stdout == "trained\n"
    assert outcome.document()["state"] == "failed"
    assert "annotations are not recorded" in outcome.stderr


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB, where the tests may mount one."""
    point = tmp_path / "small"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", os.fspath(point)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield point
    subprocess.run(["umount", "-l", os.fspath(point)], check=False)


def test_a_disk_that_fills_up_while_recording(program, small_disk):
    outcome = program(
        """
        import sys, time
        from xprof_py import capture, step, trace
        with capture(sys.argv[1], xla=False):
            for i in range(60000):
                with step(i), trace("fill"):
                    pass
                if i == 10:
                    time.sleep(0.3)
        print("trained")
        """,
        run=small_disk / "run-a",
    )
    assert outcome.stdout == "trained\n"
    document = outcome.document()
    assert document["state"] == "finished"
    assert "No space left" in document["collectors"]["host"]["error"]
    assert "the shard is incomplete" in outcome.stderr
    assert step_numbers(outcome)[:11] == list(range(11))


def test_a_disk_that_is_full_from_the_start(program, small_disk):
    done = subprocess.run(
        ["dd", "if=/dev/zero", f"of={small_disk / 'filler'}", "bs=4096"], capture_output=True, text=True, check=False
    )
    assert "No space left" in done.stderr
    outcome = program(LOOP, run=small_disk / "run-a")
    assert outcome.stdout == "trained\n"
    assert "nothing is recorded" in outcome.stderr


def test_a_folder_that_vanishes_while_recording(program):
    outcome = program(
        """
        import shutil, sys
        from xprof_py import capture, step
        with capture(sys.argv[1]):
            with step(0): pass
            shutil.rmtree(sys.argv[1])
        print("trained")
        """
    )
    assert outcome.stdout == "trained\n"
    assert "run-a" in outcome.stderr


def test_the_budget_of_the_shard_holds_and_is_said(program):
    outcome = program(
        LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], budget_bytes=1 << 16)").replace("(5)", "(20000)")
    )
    document = outcome.document()
    assert (outcome.run / document["files"]["shard"]).stat().st_size <= (1 << 16) + 4096
    assert document["overhead"]["recorder"]["dropped"] > 0
    assert "were dropped" in outcome.stderr


def test_an_address_is_recorded_here_and_copied_at_the_end(program, tmp_path):
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    folder = tmp_path / "remote" / "run-a"
    outcome = program(LOOP, run=f"local://{folder}", TMPDIR=str(tmp_path))
    outcome = type(outcome)(outcome.returncode, outcome.stdout, outcome.stderr, folder)
    assert step_numbers(outcome) == [0, 1, 2, 3, 4]
    assert outcome.document()["state"] == "finished"
    assert list(tmp_path.glob("xprof_py-*")) == []
    assert "already holds" in program(LOOP, run=f"local://{folder}", expect=1).stderr


def test_a_network_folder_is_recorded_here_and_copied_at_the_end(program, tmp_path):
    (tmp_path / "tmp").mkdir()
    outcome = program(
        """
import sys
from xprof_py import places, session
places.is_far = session.is_far = lambda path: True
"""
        + LOOP
        + "from pathlib import Path\nassert not list(Path(sys.argv[1]).parent.glob('tmp/*'))\n",
        TMPDIR=str(tmp_path / "tmp"),
    )
    assert step_numbers(outcome) == [0, 1, 2, 3, 4]
    assert outcome.document()["state"] == "finished"


def test_a_server_that_does_not_answer_costs_a_bounded_time(program):
    began = time.monotonic()
    outcome = program(
        """
import sys, time
from xprof_py import places, session
places.is_far = session.is_far = lambda path: True
session.REACH_TIMEOUT_S = 0.2
places.FolderPlace.read = lambda *_: time.sleep(30)
"""
        + LOOP,
        expect=1,
    )
    assert time.monotonic() - began < 20
    assert "no answer within 0.2 s" in outcome.stderr


def test_a_server_that_dies_while_recording_costs_a_bounded_time(program):
    outcome = program(
        """
import sys, time
from xprof_py import places, session
places.is_far = session.is_far = lambda path: True
began = time.monotonic()
"""
        + LOOP.replace("    for i", "    places.FolderPlace.put = lambda *_: time.sleep(30)\n    for i")
        + "assert time.monotonic() - began < 10\n",
        XPROF_PY_STOP_TIMEOUT_S="0.3",
    )
    assert outcome.stdout == "trained\n"
    assert "still being written" in outcome.stderr


def test_a_server_that_refuses_the_copy_leaves_the_capture_here(program, tmp_path):
    (tmp_path / "tmp").mkdir()
    outcome = program(
        """
import sys
from xprof_py import places, session
places.is_far = session.is_far = lambda path: True
def refuse(*_):
    raise OSError(5, "Input/output error")
"""
        + LOOP.replace("    for i", "    places.FolderPlace.put = refuse\n    for i"),
        TMPDIR=str(tmp_path / "tmp"),
    )
    assert outcome.stdout == "trained\n"
    assert "could not be copied there" in outcome.stderr
    (here,) = (tmp_path / "tmp").glob("xprof_py-*")
    assert str(here) in outcome.stderr
    (shard,) = (here / "shards").iterdir()
    assert _step_numbers(shard) == [0, 1, 2, 3, 4]


def test_an_address_that_nothing_opens_is_refused(program):
    outcome = program(LOOP, run="nosuch://bucket/run", expect=1)
    assert "CaptureError" in outcome.stderr
    assert "nosuch" in outcome.stderr


def test_an_address_without_fsspec_says_what_is_missing(program):
    outcome = program("import sys\nsys.modules['fsspec'] = None\n" + LOOP, run="gs://bucket/run", expect=1)
    assert "pip install fsspec" in outcome.stderr


def test_hooks_are_gone_after_a_capture(tmp_path):
    with capture(tmp_path / "r", steps=(1, 2)), step(5):
        pass
    assert not _native.recording()
    with step(1):
        assert not _native.recording()
