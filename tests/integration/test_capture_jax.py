"""A capture around JAX programs: XLA's session beside the program's own, the drained end, step markers, compiles."""

import json

import pytest

from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.schema import Kind

pytest.importorskip("jax", reason="jax is not installed: the extra `test` brings it")

pytestmark = pytest.mark.live


def runs_of(ops, module="jit_update"):
    return len({op["run_id"] for op in ops if op["hlo_module"] == module})


def test_a_whole_block_is_profiled_to_its_last_run(model, host_events):
    outcome = model(
        """
with capture(RUN):
    train(x, 0, 30)
time.sleep(0.1)
assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
"""
    )
    document = outcome.document()
    assert outcome.stderr == ""
    assert document["collectors"]["xla"]["used"] is True
    assert document["drained"] is True
    assert document["files"]["xplane"] == "plugins/profile/run/0.xplane.pb"
    assert (document["rank"], document["rank_source"]) == ("0", "jax.process_index")
    assert document["versions"]["jax"]
    events, ops = host_events(outcome.xplane())
    markers = [(line, stats) for name, line, stats in events if name == "train"]
    assert [stats["step_num"] for _, stats in markers] == list(range(30))
    assert runs_of(ops) == 30
    threads = {(line, stats["tid"]) for name, line, stats in events if name == "xprof_py.thread"}
    assert {(line, stats["xprof_tid"]) for line, stats in markers} == threads
    shard = read_shard(outcome.run / document["files"]["shard"])
    assert {tid for _, tid in threads} <= set(shard["lines"]["thread_id"].to_pylist())
    assert not any(name.startswith("$") for name, _, _ in events)
    assert {path.name for path in outcome.xplane().parent.iterdir()} == {"0.xplane.pb"}


def test_work_whose_results_are_dropped_is_profiled_to_its_end_on_every_device(program, host_events):
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
    _, ops = host_events(outcome.xplane())
    runs = {(op["device_ordinal"], op["program_id"], op["run_id"]) for op in ops if op["hlo_module"] == "jit__lambda"}
    # Twenty runs of one program on device 1, and of the other on each of three.
    assert len(runs) == 80
    assert outcome.document()["drained"] is True


def test_steps_are_profiled_alone_and_in_the_background(model, host_events):
    outcome = model(
        """
with capture(RUN, steps=(10, 20)):
    train(x, 0, 20)
    running = jax.profiler.TraceAnnotation.is_enabled()
    train(x, 20, 40)
assert not running
"""
    )
    events, ops = host_events(outcome.xplane())
    assert [stats["step_num"] for name, _, stats in events if name == "train"] == list(range(10, 20))
    assert 10 <= runs_of(ops) <= 20
    document = outcome.document()
    assert document["drained"] is True
    assert document["state"] == "finished"
    launches = [name for name, _, _ in events if name == "PjitFunction(update)"]
    assert 10 <= len(launches) <= 20


def test_jax_that_is_imported_inside_the_block(program, host_events):
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
    events, _ = host_events(outcome.xplane())
    assert [stats["step_num"] for name, _, stats in events if name == "train"] == list(range(5))


def test_a_program_without_steps_is_profiled_from_its_first_compile(program, host_events):
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
    _, ops = host_events(outcome.xplane())
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


def test_compiles_are_spans_with_the_functions_name(model):
    outcome = model(
        """
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


def test_captures_one_after_the_other(model, host_events):
    outcome = model("for name in 'ab':\n    with capture(RUN + '/' + name):\n        train(x, 0, 4)")
    for name in "ab":
        (path,) = (outcome.run / name).rglob("*.xplane.pb")
        events, ops = host_events(path)
        assert runs_of(ops) == 4
        assert len([1 for event, _, _ in events if event == "xprof_py.thread"]) == 1


def test_each_thread_with_spans_is_marked_once(model, host_events):
    outcome = model(
        """
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
    events, _ = host_events(outcome.xplane())
    tids = [stats["tid"] for name, _, stats in events if name == "xprof_py.thread"]
    assert len(tids) == len(set(tids)) == 4


def test_a_capture_in_another_thread(model, host_events):
    outcome = model(
        """
def work():
    with capture(RUN):
        train(x, 0, 5)
thread = threading.Thread(target=work)
thread.start(); thread.join()
"""
    )
    assert runs_of(host_events(outcome.xplane())[1]) == 5


def test_processes_of_one_launch_that_do_not_share_jax_keep_the_launchers_rank(model):
    outcome = model("with capture(RUN):\n    train(x, 0, 1)\n", RANK="3", WORLD_SIZE="4")
    document = outcome.document()
    assert (document["process_index"], document["process_count"], document["rank"]) == (3, 4, "3")
    assert document["files"]["xplane"] == "plugins/profile/run/3.xplane.pb"


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
