"""A capture around JAX programs: XLA's session beside the program's own, the drained end, step markers, compiles."""

import json
import warnings

import pytest

from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.schema import Kind

pytest.importorskip("jax", reason="jax is not installed")

pytestmark = pytest.mark.live

MODEL = """
import sys, threading, time, warnings
import jax, jax.numpy as jnp
from xprof_py import capture, step, trace
from xprof_py.errors import CaptureError
RUN = sys.argv[1]
@jax.jit
def update(x):
    return x @ x * 0.001
x = jnp.ones((400, 400))
update(x).block_until_ready()
def train(x, first, last):
    for i in range(first, last):
        with step(i):
            x = update(x)
    return x
"""


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


def host_events(path):
    """``name, line index, stats`` of the events of /host:CPU, and the stats of the op events, read by JAX itself."""
    from jax.profiler import ProfileData

    events, ops = [], []
    # Later JAX makes its types with a deprecated call on first use, and dies where that warning is an error.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for plane in ProfileData.from_file(str(path)).planes:
            if plane.name != "/host:CPU":
                continue
            for index, line in enumerate(plane.lines):
                for event in line.events:
                    stats = dict(event.stats)
                    if "hlo_op" in stats:
                        ops.append(stats)
                    else:
                        events.append((event.name, index, stats))
    return events, ops


def xplane(outcome):
    document = outcome.document()
    return outcome.run / document["files"]["xplane"]


def runs_of(ops, module="jit_update"):
    return len({op["run_id"] for op in ops if op["hlo_module"] == module})


def test_a_whole_block_is_profiled_to_its_last_run(program):
    outcome = program(MODEL + "with capture(RUN):\n    train(x, 0, 30)\nprint('trained')")
    document = outcome.document()
    assert outcome.stderr == ""
    assert document["collectors"]["xla"]["used"] is True
    assert document["drained"] is True
    assert document["files"]["xplane"] == "plugins/profile/run/0.xplane.pb"
    assert (document["rank"], document["rank_source"]) == ("0", "jax.process_index")
    assert document["versions"]["jax"]
    events, ops = host_events(xplane(outcome))
    markers = [(line, stats) for name, line, stats in events if name == "train"]
    assert [stats["step_num"] for _, stats in markers] == list(range(30))
    assert runs_of(ops) == 30
    threads = {(line, stats["tid"]) for name, line, stats in events if name == "xprof_py.thread"}
    assert {(line, stats["xprof_tid"]) for line, stats in markers} == threads
    shard = read_shard(outcome.run / document["files"]["shard"])
    assert {tid for _, tid in threads} <= set(shard["lines"]["thread_id"].to_pylist())
    assert not any(name.startswith("$") for name, _, _ in events)
    assert {path.name for path in xplane(outcome).parent.iterdir()} == {"0.xplane.pb"}


def test_work_whose_results_are_dropped_is_profiled_to_its_end_on_every_device(program):
    outcome = program(
        """
import sys, numpy as np
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from xprof_py import capture, step
devices = jax.devices()
one = jax.jit(lambda x: x @ x * 0.001)
many = jax.jit(lambda x: jnp.einsum("dij,djk->dik", x, x) * 0.001)
x = jax.device_put(np.ones((400, 400), np.float32), devices[1])
spread = NamedSharding(Mesh(np.array(devices), ("d",)), PartitionSpec("d"))
y = jax.device_put(np.ones((3, 200, 200), np.float32), spread)
one(x).block_until_ready(), many(y).block_until_ready()
def train(x, y):
    for i in range(20):
        with step(i):
            x, y = one(x), many(y)
with capture(sys.argv[1]):
    train(x, y)
""",
        XLA_FLAGS="--xla_force_host_platform_device_count=3",
    )
    _, ops = host_events(xplane(outcome))
    runs = {(op["device_ordinal"], op["program_id"], op["run_id"]) for op in ops if op["hlo_module"] == "jit__lambda"}
    # Twenty runs of one program on device 1, and of the other on each of three.
    assert len(runs) == 80
    assert outcome.document()["drained"] is True


def test_steps_are_profiled_alone_and_in_the_background(program):
    outcome = program(
        MODEL
        + """
with capture(RUN, steps=(10, 20)):
    train(x, 0, 20)
    running = jax.profiler.TraceAnnotation.is_enabled()
    train(x, 20, 40)
assert not running
"""
    )
    events, ops = host_events(xplane(outcome))
    assert [stats["step_num"] for name, _, stats in events if name == "train"] == list(range(10, 20))
    assert 10 <= runs_of(ops) <= 20
    document = outcome.document()
    assert document["drained"] is True
    assert document["state"] == "finished"
    launches = [name for name, _, _ in events if name == "PjitFunction(update)"]
    assert 10 <= len(launches) <= 20


def test_jax_that_is_imported_inside_the_block(program):
    outcome = program(
        """
        import sys
        from xprof_py import capture, step
        with capture(sys.argv[1]):
            import jax, jax.numpy as jnp
            x = jnp.ones((100, 100))
            f = jax.jit(lambda x: x @ x)
            for i in range(5):
                with step(i):
                    x = f(x)
        """
    )
    events, _ = host_events(xplane(outcome))
    assert [stats["step_num"] for name, _, stats in events if name == "train"] == list(range(5))


def test_a_program_without_steps_is_profiled_from_its_first_compile(program):
    outcome = program(
        """
        import sys
        import jax, jax.numpy as jnp
        from xprof_py import capture
        with capture(sys.argv[1]):
            assert not jax.profiler.TraceAnnotation.is_enabled()
            f = jax.jit(lambda x: x @ x)
            f(jnp.ones((100, 100))).block_until_ready()
            assert jax.profiler.TraceAnnotation.is_enabled()
        """
    )
    _, ops = host_events(xplane(outcome))
    assert ops


def test_a_capture_never_brings_the_devices_up(program):
    outcome = program(
        """
        import sys
        import jax
        from jax._src import xla_bridge
        from xprof_py import capture, step
        with capture(sys.argv[1]):
            for i in range(3):
                with step(i):
                    pass
        assert not xla_bridge.backends_are_initialized()
        """
    )
    document = outcome.document()
    assert document["collectors"]["xla"]["why"] == "the program's devices never came up"
    assert document["rank_source"] == "pid"
    assert document["state"] == "finished"


def test_compiles_are_spans_with_the_functions_name(program):
    outcome = program(
        MODEL
        + """
from jax._src import monitoring
before = list(monitoring._event_duration_secs_listeners)
with capture(RUN, xla=False):
    @jax.jit
    def fresh(x):
        return x + 41
    with step(0):
        fresh(x)
assert list(monitoring._event_duration_secs_listeners) == before
"""
    )
    document = outcome.document()
    profile = read_shard(outcome.run / document["files"]["shard"])
    kinds = [event["name"] for event in profile["events"].to_pylist() if event["kind"] == Kind.COMPILE]
    wanted = {"jaxpr_trace_duration", "jaxpr_to_mlir_module_duration", "backend_compile_duration"}
    assert set(kinds) == wanted
    assert document["collectors"]["compiles"]["spans"] == len(kinds)
    assert any("fresh" in text for text in profile["texts"]["text"].to_pylist())
    assert document["collectors"]["xla"] == {"used": False, "why": "switched off"}
    assert "xplane" not in document["files"]


def test_a_trace_of_the_programs_own_is_left_alone(program):
    outcome = program(
        MODEL
        + """
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


def test_a_trace_that_the_program_starts_inside_gets_jaxs_own_error(program):
    outcome = program(
        MODEL
        + """
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
    assert runs_of(host_events(xplane(outcome))[1]) == 6
    (own,) = (outcome.run.parent / "run-a-own").rglob("*.xplane.pb")
    assert runs_of(host_events(own)[1]) == 3


def test_a_program_that_stops_our_trace_loses_nothing(program):
    outcome = program(
        MODEL
        + """
with capture(RUN):
    train(x, 0, 3).block_until_ready()
    jax.profiler.stop_trace()
    train(x, 3, 6)
"""
    )
    document = outcome.document()
    assert document["files"]["xplane"] == "plugins/profile/run/0.xplane.pb"
    assert "the program stopped XLA's profiler itself" in outcome.stderr
    assert runs_of(host_events(xplane(outcome))[1]) == 3
    assert document["drained"] is False
    assert document["state"] == "finished"


def test_a_jax_that_hides_its_session_is_stopped_its_own_way(program):
    outcome = program(
        MODEL
        + """
from xprof_py.collectors import xla
xla._raw_session = lambda session: None
with capture(RUN):
    train(x, 0, 3)
jax.profiler.start_trace(RUN + "-own")
jax.profiler.stop_trace()
"""
    )
    assert runs_of(host_events(xplane(outcome))[1]) == 3
    assert "does not show its session" in outcome.messages()


def test_another_session_of_xla_costs_ours_and_is_said(program):
    outcome = program(
        MODEL
        + """
from jax._src.lib import _profiler
other = _profiler.ProfilerSession()
with capture(RUN):
    train(x, 0, 3)
print(len(other.stop()) > 0)
"""
    )
    assert outcome.stdout == "True\n"
    assert "another session of XLA's profiler is running" in outcome.stderr


def test_a_session_that_gives_nothing_back_leaves_jax_usable(program):
    outcome = program(
        MODEL
        + """
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
def test_a_failing_block_keeps_xlas_profile(statement, program):
    outcome = program(
        MODEL + f"import signal\nwith capture(RUN):\n    train(x, 0, 3)\n    {statement}",
        expect={"r": 1, "s": 7 if "exit" in statement else -2}[statement[0]],
    )
    assert runs_of(host_events(xplane(outcome))[1]) == 3


def test_captures_one_after_the_other(program):
    outcome = program(MODEL + "for name in 'ab':\n    with capture(RUN + '/' + name):\n        train(x, 0, 4)")
    for name in "ab":
        (path,) = (outcome.run / name).rglob("*.xplane.pb")
        events, ops = host_events(path)
        assert runs_of(ops) == 4
        assert len([1 for event, _, _ in events if event == "xprof_py.thread"]) == 1


def test_each_thread_with_spans_is_marked_once(program):
    outcome = program(
        MODEL
        + """
def spans():
    with trace("a"): pass
    with trace("b"): pass
with capture(RUN):
    spans()
    for _ in range(3):
        thread = threading.Thread(target=spans)
        thread.start(); thread.join()
"""
    )
    events, _ = host_events(xplane(outcome))
    tids = [stats["tid"] for name, _, stats in events if name == "xprof_py.thread"]
    assert len(tids) == len(set(tids)) == 4


def test_a_capture_in_another_thread(program):
    outcome = program(
        MODEL
        + """
def work():
    with capture(RUN):
        train(x, 0, 5)
thread = threading.Thread(target=work)
thread.start(); thread.join()
"""
    )
    assert runs_of(host_events(xplane(outcome))[1]) == 5


def test_the_interpreters_end_closes_an_open_capture(program):
    outcome = program(MODEL + "capture(RUN).__enter__()\ntrain(x, 0, 3)")
    assert outcome.document()["state"] == "finished"
    assert runs_of(host_events(xplane(outcome))[1]) == 3


def test_work_that_does_not_end_is_not_waited_for_forever(program):
    outcome = program(
        MODEL
        + LONG
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


@pytest.mark.parametrize(
    ("handler", "signal_name", "code"),
    [("lambda *_: sys.exit(5)", "SIGTERM", 5), ("signal.default_int_handler", "SIGINT", -2)],
)
def test_a_signal_while_a_step_waits_for_the_device_reaches_the_program(handler, signal_name, code, program):
    outcome = program(
        MODEL
        + LONG
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


def test_jobs_of_their_own_in_one_run_do_not_overwrite_each_other(program):
    # Neither knows its rank when it enters; both find at the end that JAX calls them 0.
    child = """
import sys
from xprof_py import capture, step
with capture(sys.argv[1]):
    print("in", flush=True)
    sys.stdin.readline()
    import jax
    x = jax.numpy.ones((10, 10))
    with step(0):
        x = x + x
"""
    outcome = program(
        f"""
import subprocess, sys
children = []
for _ in range(2):
    command = [sys.executable, "-c", {child!r}, sys.argv[1]]
    children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert children[-1].stdout.readline() == "in\\n"
for process in children:
    process.communicate("go\\n")
    assert process.returncode == 0
"""
    )
    names = {json.loads(path.read_text())["files"]["xplane"] for path in outcome.run_files()}
    assert len(names) == 2
    assert all((outcome.run / name).stat().st_size > 1000 for name in names)


def test_files_that_take_too_long_do_not_hold_the_program(program):
    outcome = program(
        MODEL
        + """
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


def test_two_processes_of_one_job(program):
    outcome = program(
        """
import subprocess, sys, socket
child = '''
import sys
import jax, jax.numpy as jnp
from xprof_py import capture, step
jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[3]))
with capture(sys.argv[1]):
    f = jax.jit(lambda x: x @ x)
    x = jnp.ones((50, 50))
    for i in range(3):
        with step(i):
            x = f(x)
'''
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    address = "127.0.0.1:%d" % s.getsockname()[1]
children = [
    subprocess.Popen([sys.executable, "-c", child, sys.argv[1], address, str(rank)]) for rank in range(2)
]
assert [c.wait() for c in children] == [0, 0]
        """
    )
    documents = [json.loads(path.read_text()) for path in outcome.run_files()]
    assert [(d["process_index"], d["process_count"], d["state"]) for d in documents] == [
        (0, 2, "finished"),
        (1, 2, "finished"),
    ]
    assert {d["files"]["xplane"] for d in documents} == {f"plugins/profile/run/{rank}.xplane.pb" for rank in (0, 1)}
    assert all((outcome.run / d["files"]["xplane"]).exists() for d in documents)


def test_a_full_disk_costs_xlas_profile_and_not_the_program(program):
    outcome = program(
        MODEL
        + """
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


def test_warnings_as_errors_do_not_reach_the_program(program):
    outcome = program(
        MODEL + "jax.profiler.start_trace(RUN + '-own')\nwarnings.simplefilter('error')\n"
        "with capture(RUN):\n    train(x, 0, 3)\njax.profiler.stop_trace()\nprint('trained')"
    )
    assert outcome.stdout == "trained\n"
    assert "xprof_py: " in outcome.stderr
