"""A capture around JAX programs that trace, stop, hang, fail or die: neither harms the other."""

import pytest

pytest.importorskip("jax", reason="jax is not installed: the extra `test` brings it")

pytestmark = pytest.mark.live


# ``y = long(1.5)`` returns at once; the device works on it for about that many seconds.
LONG = """
@jax.jit
def repeat(x, n):
    return jax.lax.fori_loop(0, n, lambda i, x: x @ x * 0.001, x)
repeat(x, 1).block_until_ready()
began = time.perf_counter()
repeat(x, 20).block_until_ready()
rate = 20 / (time.perf_counter() - began)
def long(seconds):
    return repeat(x, int(rate * seconds))
"""


def runs_of(ops, module="jit_update"):
    return len({op["run_id"] for op in ops if op["hlo_module"] == module})


def test_a_trace_of_the_programs_own_is_left_alone(model, host_events):
    outcome = model(
        """
jax.profiler.start_trace(RUN + "-own")
with capture(RUN):
    train(x, 0, 3).block_until_ready()
try:
    with capture(RUN + "-must", xla=True):
        print("never")
except CaptureError as error:
    print(error)
jax.profiler.stop_trace()
"""
    )
    document = outcome.document()
    assert document["collectors"]["xla"]["used"] is False
    assert "own jax.profiler trace is running" in document["collectors"]["xla"]["error"]
    assert "own jax.profiler trace is running" in outcome.stderr
    assert outcome.stdout == "xla=True: the program's own jax.profiler trace is running\n"
    (own,) = (outcome.run.parent / "run-a-own").rglob("*.xplane.pb")
    assert runs_of(host_events(own)[1]) == 3


def test_a_trace_that_the_program_starts_inside_gets_jaxs_own_error(model, host_events):
    outcome = model(
        """
with capture(RUN):
    x = train(x, 0, 3)
    try:
        jax.profiler.start_trace(RUN + "-own")
    except RuntimeError as error:
        print(error)
    train(x, 3, 6)
jax.profiler.start_trace(RUN + "-own")
train(x, 6, 9).block_until_ready()
jax.profiler.stop_trace()
"""
    )
    assert "already been started" in outcome.stdout
    assert runs_of(host_events(outcome.xplane())[1]) == 6
    (own,) = (outcome.run.parent / "run-a-own").rglob("*.xplane.pb")
    assert runs_of(host_events(own)[1]) == 3


def test_a_program_that_stops_our_trace_loses_nothing(model, host_events):
    outcome = model(
        """
with capture(RUN):
    train(x, 0, 3).block_until_ready()
    jax.profiler.stop_trace()
    train(x, 3, 6)
"""
    )
    document = outcome.document()
    assert document["files"]["xplane"] == "plugins/profile/run/0.xplane.pb"
    assert "the program stopped XLA's profiler itself" in outcome.stderr
    assert runs_of(host_events(outcome.xplane())[1]) == 3
    assert document["drained"] is False
    assert document["state"] == "finished"


def test_a_jax_that_hides_its_session_is_stopped_its_own_way(model, host_events):
    outcome = model(
        """
from xprof_py.collectors import xla
xla._raw_session = lambda session: None
with capture(RUN):
    train(x, 0, 3)
jax.profiler.start_trace(RUN + "-own")
jax.profiler.stop_trace()
"""
    )
    assert runs_of(host_events(outcome.xplane())[1]) == 3
    assert "does not show its session" in outcome.messages()


def test_another_session_of_xla_costs_ours_and_is_said(model):
    outcome = model(
        """
from jax._src.lib import _profiler
other = _profiler.ProfilerSession()
with capture(RUN):
    train(x, 0, 3)
print(len(other.stop()) > 0)
"""
    )
    assert outcome.stdout == "True\n"
    assert "another session of XLA's profiler is running" in outcome.stderr


def test_a_session_that_gives_nothing_back_leaves_jax_usable(model, host_events):
    outcome = model(
        """
from xprof_py.collectors import xla
real = xla.is_collecting
from jax._src.lib import _profiler
other = _profiler.ProfilerSession()
xla.is_collecting = lambda: False
with capture(RUN):
    train(x, 0, 3)
xla.is_collecting = real
other.stop()
jax.profiler.start_trace(RUN + "-own")
train(x, 0, 2).block_until_ready()
jax.profiler.stop_trace()
"""
    )
    document = outcome.document()
    assert document["collectors"]["xla"]["why"] == "lost"
    assert "xplane" not in document["files"]
    assert document["state"] == "finished"
    (own,) = (outcome.run.parent / "run-a-own").rglob("*.xplane.pb")
    assert runs_of(host_events(own)[1]) == 2


@pytest.mark.parametrize("statement", ["raise ValueError('mine')", "sys.exit(7)", "signal.raise_signal(signal.SIGINT)"])
def test_a_failing_block_keeps_xlas_profile(statement, model, host_events):
    outcome = model(
        f"import signal\nwith capture(RUN):\n    train(x, 0, 3)\n    {statement}",
        expect={"r": 1, "s": 7 if "exit" in statement else -2}[statement[0]],
    )
    assert runs_of(host_events(outcome.xplane())[1]) == 3


def test_the_interpreters_end_closes_an_open_capture(model, host_events):
    outcome = model("capture(RUN).__enter__()\ntrain(x, 0, 3)")
    assert outcome.document()["state"] == "finished"
    assert runs_of(host_events(outcome.xplane())[1]) == 3


def test_work_that_does_not_end_is_not_waited_for_forever(model):
    outcome = model(
        LONG
        + """
began = time.monotonic()
with capture(RUN):
    with step(0):
        y = long(1.5)
waited = time.monotonic() - began
y.block_until_ready()
took = time.monotonic() - began
assert 0.3 < waited < took, (waited, took)
""",
        XPROF_PY_DRAIN_TIMEOUT_S="0.3",
    )
    document = outcome.document()
    assert document["drained"] is False
    assert "still running 0.3 s after" in outcome.stderr
    assert document["state"] == "finished"


def test_xla_stops_at_its_limit_and_annotations_go_on(model, host_events):
    outcome = model(
        """
with capture(RUN):
    began = time.monotonic()
    for i in range(60):
        x = train(x, i, i + 1)
        time.sleep(0.01)
    assert not jax.profiler.TraceAnnotation.is_enabled()
jax.profiler.start_trace(RUN + "-own")
jax.profiler.stop_trace()
""",
        XPROF_PY_XLA_LIMIT_S="0.2",
    )
    document = outcome.document()
    events, ops = host_events(outcome.xplane())
    profiled = [stats["step_num"] for name, _, stats in events if name == "train"]
    assert profiled == list(range(len(profiled)))
    assert 0 < len(profiled) < 60
    assert runs_of(ops) == len(profiled)
    assert document["drained"] is True
    assert document["collectors"]["xla"]["stop"]["monotonic_ns"] < document["stop"]["monotonic_ns"]
    assert "stopped after 0.2 s" in outcome.stderr
    # Longer pauses for garbage are spans of their own, and come when they come.
    assert document["overhead"]["spans"] == 60 + document["collectors"]["gc"]["recorded"]
    assert document["state"] == "finished"


def test_xla_stops_at_its_limit_in_a_program_without_steps(model, host_events):
    outcome = model(
        """
from xprof_py import recording
recording.XLA_GRACE_S = 0.1
with capture(RUN):
    for i in range(100):
        x = update(x)
        x.block_until_ready()
        time.sleep(0.01)
    assert not jax.profiler.TraceAnnotation.is_enabled()
""",
        XPROF_PY_XLA_LIMIT_S="0.1",
    )
    assert outcome.document()["drained"] is False
    assert 0 < runs_of(host_events(outcome.xplane())[1]) < 100


def test_a_forked_child_leaves_xlas_session_alone(model, host_events):
    outcome = model(
        """
import multiprocessing, os
warnings.simplefilter("ignore")
def spans():
    with step(7), trace("in the child"):
        pass
with capture(RUN):
    train(x, 0, 2)
    child = os.fork()
    if child == 0:
        spans()
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    process = multiprocessing.get_context("fork").Process(target=spans)
    process.start(), process.join()
    assert process.exitcode == 0
    train(x, 2, 4)
"""
    )
    events, ops = host_events(outcome.xplane())
    assert [stats["step_num"] for name, _, stats in events if name == "train"] == [0, 1, 2, 3]
    assert runs_of(ops) == 4


@pytest.mark.parametrize(
    ("handler", "signal_name", "code"),
    [("lambda *_: sys.exit(5)", "SIGTERM", 5), ("signal.default_int_handler", "SIGINT", -2)],
)
def test_a_signal_while_a_step_waits_for_the_device_reaches_the_program(handler, signal_name, code, model):
    outcome = model(
        LONG
        + f"""
import os, signal
signal.signal(signal.{signal_name}, {handler})
def strike():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.{signal_name})
with capture(RUN, steps=(0, 1)):
    threading.Thread(target=strike).start()
    with step(0):
        y = long(1.5)
    for i in range(1, 1000):
        with step(i):
            time.sleep(0.005)
    print("not interrupted")
""",
        expect=code,
    )
    assert outcome.stdout == ""
    assert outcome.document()["state"] == "finished"


def test_files_that_take_too_long_do_not_hold_the_program(model):
    outcome = model(
        """
from xprof_py.run_folder import RunFolder
write = RunFolder.write_xplane
def slow(self, content):
    time.sleep(2)
    return write(self, content)
RunFolder.write_xplane = slow
began = time.monotonic()
with capture(RUN):
    train(x, 0, 3)
assert time.monotonic() - began < 1.5
""",
        XPROF_PY_STOP_TIMEOUT_S="0.4",
    )
    # Past its budget the block ends; the interpreter's end waits the same time once more and no longer.
    document = outcome.document()
    assert document["state"] == "stopping"
    assert "still being written" in outcome.stderr


def test_a_full_disk_costs_xlas_profile_and_not_the_program(model):
    outcome = model(
        """
import errno
from xprof_py import run_folder
def full(path, content, **options):
    if path.name.endswith(".pb"):
        raise OSError(errno.ENOSPC, "No space left on device")
    return real(path, content, **options)
real, run_folder._write_whole = run_folder._write_whole, full
with capture(RUN):
    train(x, 0, 3)
print("trained")
"""
    )
    assert outcome.stdout == "trained\n"
    assert "No space left" in outcome.document()["collectors"]["xla"]["error"]
    assert outcome.document()["state"] == "finished"
    assert not list(outcome.run.rglob("*.pb*"))


def test_warnings_as_errors_do_not_reach_the_program(model):
    outcome = model(
        "jax.profiler.start_trace(RUN + '-own')\nwarnings.simplefilter('error')\n"
        "with capture(RUN):\n    train(x, 0, 3)\njax.profiler.stop_trace()\nprint('trained')"
    )
    assert outcome.stdout == "trained\n"
    assert "xprof_py: " in outcome.stderr
