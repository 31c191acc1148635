"""A capture around a program without JAX: what it leaves, and that it never harms the program."""

import subprocess
import sys
import textwrap
import time

import pytest

from xprof_py import _native, capture, step
from xprof_py.collectors.monitoring import COMPILE_KIND
from xprof_py.errors import UsageError
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
    assert outcome.step_numbers() == [0, 1, 2, 3, 4]
    assert document["state"] == "finished"
    assert document["capture"]["mode"] == "whole"
    assert document["collectors"]["host"]["used"] is True
    assert document["collectors"]["xla"] == {"used": False, "why": "no JAX"}
    assert document["drained"] is None
    assert document["overhead"]["spans"] == 10 + document["collectors"]["gc"]["recorded"]
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
    assert outcome.step_numbers() == [10, 11, 12]
    recorded = [line.split()[0] for line in outcome.stdout.splitlines() if line.endswith("True")]
    assert recorded == ["10", "11", "12"]
    assert document["capture"]["steps"] == [10, 13]
    assert document["capture"]["started_at_step"] == 10
    assert document["state"] == "finished"


def test_a_loop_that_ends_inside_the_range_keeps_what_there_was(program):
    outcome = program(LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], steps=(3, 100))"))
    assert outcome.step_numbers() == [3, 4]
    assert "ended before step 99" in outcome.messages()
    assert outcome.stderr == ""


def test_steps_that_never_come_are_said(program):
    outcome = program(LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], steps=(100, 200))"))
    assert outcome.document()["state"] == "not_started"
    assert "steps 0 to 4 were seen" in outcome.messages()
    assert "no step in [100, 200) began, steps 0 to 4 were seen" in outcome.stderr
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


def test_a_collector_wants_a_known_word(tmp_path):
    with pytest.raises(UsageError, match="cuda"):
        capture(tmp_path, cuda="yes")
    with pytest.raises(UsageError, match="backend"):
        capture(tmp_path, backend=True)


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
    assert outcome.stdout == "xla=True: JAX is not installed here, and no PJRT plugin with a profiler is loaded\n"


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
    assert outcome.step_numbers() == [0, 1, 2]
    assert outcome.document()["capture"]["block_error"] == kind
    assert outcome.document()["state"] == "finished"
    if code == 1:
        assert outcome.stderr.splitlines()[-1].startswith(kind)


def test_ctrl_c_while_the_capture_starts_leaves_nothing_running(program):
    outcome = program(
        """
        import sys
        from xprof_py import _native, capture, recording, step
        real = recording.Recording.try_xla
        def interrupted(self):
            recording.Recording.try_xla = real
            raise KeyboardInterrupt
        recording.Recording.try_xla = interrupted
        try:
            with capture(sys.argv[1] + "-first"):
                print("never")
        except KeyboardInterrupt:
            assert not _native.recording()
        with capture(sys.argv[1]), step(4):
            pass
        """
    )
    assert outcome.stdout == ""
    assert outcome.step_numbers() == [4]


def test_a_fault_of_the_captures_own_costs_the_capture_only(program):
    outcome = program(
        "from xprof_py import session\nsession.settled_rank = lambda environ: 1 / 0\n" + LOOP,
    )
    assert outcome.stdout == "trained\n"
    assert "nothing is recorded: ZeroDivisionError" in outcome.stderr


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
    assert outcome.step_numbers() == [0]


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
    assert outcome.step_numbers() == list(range(10))


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
    assert outcome.step_numbers() == [0]


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
    assert outcome.step_numbers() == [1, 2]
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
        assert outcome.step_numbers(shard) == [ord(name)]


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
    assert outcome.step_numbers() == [1]
    (shard,) = (outcome.run.parent / "run-a-async" / "shards").iterdir()
    assert outcome.step_numbers(shard) == [2]


@pytest.mark.parametrize("overwrite", [False, True])
def test_later_calls_of_a_decorated_function_run_unrecorded_and_are_told_once(overwrite, program):
    outcome = program(
        f"""
        import sys
        from xprof_py import _native, capture, step
        recorded = capture(sys.argv[1], overwrite={overwrite})

        @recorded
        def epoch(number):
            with step(number):
                print(number, _native.recording())
            return number

        @recorded
        def evaluate():
            with step(50):
                return epoch(3)

        assert [epoch(0), epoch(1), epoch(2), evaluate()] == [0, 1, 2, 3]
        """
    )
    assert outcome.stdout.splitlines() == ["0 True", "1 False", "2 False", "3 False"]
    assert outcome.step_numbers() == [0]
    assert outcome.stderr.count("Warning") == 1
    assert "only the first call was recorded, this one of epoch and later ones are not" in outcome.stderr


def test_a_function_that_calls_itself_is_recorded_once(program):
    outcome = program(
        """
        import sys
        from xprof_py import capture, step

        @capture(sys.argv[1])
        def down(number):
            with step(number):
                return number if number == 0 else down(number - 1)

        down(2)
        """
    )
    assert outcome.step_numbers() == [0, 1, 2]


def test_a_first_call_that_could_not_begin_may_be_made_again(program):
    outcome = program(
        """
        import os, sys
        from xprof_py import capture, step
        from xprof_py.errors import CaptureError
        with capture(sys.argv[1]), step(1):
            pass

        @capture(sys.argv[1])
        def train():
            with step(2):
                print("trained")

        for _ in range(2):
            try:
                train()
            except CaptureError as error:
                print("in use" if "already holds" in str(error) else error)
        os.rename(sys.argv[1], sys.argv[1] + "-first")
        train()
        """
    )
    assert outcome.stdout.splitlines() == ["in use", "in use", "trained"]
    assert outcome.step_numbers() == [2]


def test_a_warning_names_the_line_of_the_program(program, tmp_path):
    source = LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], steps=(100, 200))")
    (tmp_path / "training.py").write_text(source, encoding="utf-8")
    outcome = program("import runpy, sys; runpy.run_path('training.py')")
    line = 1 + source.splitlines().index("with capture(sys.argv[1], steps=(100, 200)):")
    assert outcome.stderr.startswith(f"training.py:{line}: XprofPyWarning: "), outcome.stderr


def test_a_warning_of_a_thread_of_our_own_names_where_the_capture_began(program, tmp_path):
    source = """
    import sys
    from xprof_py import capture, run_folder, step
    def failing(*args, **kwargs):
        raise OSError("cannot")
    capture_ = capture(sys.argv[1])
    with capture_:
        run_folder.RunFolder.write_run_file = failing
    """
    (tmp_path / "training.py").write_text(textwrap.dedent(source), encoding="utf-8")
    outcome = program("import runpy, sys; runpy.run_path('training.py')")
    assert outcome.stderr.startswith("training.py:7: XprofPyWarning: "), outcome.stderr
    assert "could not be written: cannot" in outcome.stderr


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
    assert outcome.step_numbers() == [1, 2]


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
    assert outcome.step_numbers() == [1, 2]
    (shard,) = (outcome.run.parent / "run-a-child" / "shards").iterdir()
    assert outcome.step_numbers(shard) == [4]


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


def test_the_budget_of_the_shard_holds_and_is_said(program):
    outcome = program(
        LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], budget_bytes=1 << 16)").replace("(5)", "(20000)")
    )
    document = outcome.document()
    assert (outcome.run / document["files"]["shard"]).stat().st_size <= (1 << 16) + 4096
    assert document["overhead"]["recorder"]["dropped"] > 0
    assert "were dropped" in outcome.stderr


def test_the_budget_holds_however_long_spans_go_on_being_dropped(program):
    outcome = program(
        """
        import sys, time
        from xprof_py import capture, trace
        with capture(sys.argv[1], budget_bytes=1 << 16):
            for _ in range(100):
                for _ in range(200):
                    with trace("again"):
                        pass
                time.sleep(0.03)
        """
    )
    document = outcome.document()
    assert (outcome.run / document["files"]["shard"]).stat().st_size <= (1 << 16) + 2048
    assert document["overhead"]["recorder"]["dropped"] > 10_000


def test_hooks_are_gone_after_a_capture(tmp_path):
    with capture(tmp_path / "r", steps=(1, 2)), step(5):
        pass
    assert not _native.recording()
    with step(1):
        assert not _native.recording()
