"""Captures of programs with devices that are not here: an NVML and a PJRT plugin of ours stand in for theirs."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from xprof_py.postprocess.readers.shard import read_shard

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "native" / "tests" / "fakes"

STEPS = """
import sys, time
from xprof_py import capture, step
from xprof_py.errors import CaptureError
RUN = sys.argv[1]
def train(n, seconds=0.05):
    for i in range(n):
        with step(i, tokens=10):
            time.sleep(seconds)
"""


@pytest.fixture(scope="module")
def fakes(tmp_path_factory):
    """``fakes(name, *definitions) -> path`` of the library."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on PATH: install cc, gcc or clang")
    folder = tmp_path_factory.mktemp("fakes")

    def build(name, *definitions):
        library = folder / f"{name}{''.join(definitions)}.so"
        if not library.exists():
            flags = [f"-D{definition}" for definition in definitions]
            command = [compiler, "-O1", "-shared", "-fPIC", *flags, "-o", str(library), str(FAKES / f"{name}.c")]
            subprocess.run(command, check=True)
        return str(library)

    return build


def sampled(outcome):
    """Rows of the table power, and the run file's collectors.power."""
    document = outcome.document()
    return read_shard(outcome.run / document["files"]["shard"])["power"].to_pylist(), document["collectors"]["power"]


def test_power_of_every_device_is_in_the_shard(program, fakes):
    outcome = program(
        STEPS + "with capture(RUN, power=True):\n    train(8)\n",
        XPROF_NVML_LIB=fakes("nvml"),
        FAKE_NVML="devices=2 power=300000",
        XPROF_PY_POWER_PERIOD_MS="20",
    )
    assert outcome.stderr == ""
    rows, told = sampled(outcome)
    assert told["used"] is True
    assert [(d["index"], d["ordinal"], d["uuid"], d["power_limit_mw"]) for d in told["devices"]] == [
        (0, 0, "GPU-0000abc0-0000-0000-0000-000000000001", 700_000),
        (1, 1, "GPU-0000abc1-0000-0000-0000-000000000001", 700_000),
    ]
    for device in (0, 1):
        mine = [row for row in rows if row["device"] == device]
        assert {row["uuid"] for row in mine} == {told["devices"][device]["uuid"]}
        assert {(row["hw_power_mw"], row["sm_clock_mhz"], row["clock_reasons"]) for row in mine} == {(300_000, 1980, 4)}
        seconds = (mine[-1]["time_ps"] - mine[0]["time_ps"]) / 1e12
        assert seconds > 0.1
        joules = (mine[-1]["hw_energy_mj"] - mine[0]["hw_energy_mj"]) / 1e3
        # Stamps lie half way through a call; a machine that is busy may hold the thread in the middle of one.
        assert joules == pytest.approx(300 * seconds, rel=0.3)
    overhead = outcome.document()["overhead"]["power"]
    assert overhead["looks"] == len(rows) / 2
    assert overhead["failed_calls"] == 0


def test_cuda_visible_devices_narrows_what_is_sampled(program, fakes):
    outcome = program(
        STEPS + "with capture(RUN):\n    train(3)\n",
        XPROF_NVML_LIB=fakes("nvml"),
        FAKE_NVML="devices=4",
        CUDA_VISIBLE_DEVICES="3,1",
    )
    rows, told = sampled(outcome)
    assert {row["device"] for row in rows} == {1, 3}
    assert [(d["index"], d["ordinal"]) for d in told["devices"]] == [(3, 0), (1, 1)]


def test_without_nvml_auto_says_why_and_true_is_an_error_before_the_block(program):
    outcome = program(STEPS + "with capture(RUN):\n    train(1)\n", XPROF_NVML_LIB="libno-such-nvml.so.1")
    told = outcome.document()["collectors"]["power"]
    assert outcome.stderr == ""
    assert told["used"] is False
    assert "libno-such-nvml.so.1" in told["why"]
    refused = program(
        STEPS
        + """
try:
    with capture(RUN, power=True):
        print("ran")
except CaptureError as error:
    print(error)
""",
        run=outcome.run.with_name("b"),
        XPROF_NVML_LIB="libno-such-nvml.so.1",
    )
    assert refused.stdout.startswith("power=True: libno-such-nvml.so.1")
    assert not refused.run.exists()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("fail=init:9", "nvmlInit_v2: Driver Not Loaded"),
        ("devices=0", "no device can be asked"),
    ],
)
def test_true_is_an_error_with_nvmls_own_words(program, fakes, script, words):
    source = "try:\n    with capture(RUN, power=True): pass\nexcept CaptureError as error: print(error)\n"
    outcome = program(STEPS + source, XPROF_NVML_LIB=fakes("nvml"), FAKE_NVML=script)
    assert words in outcome.stdout


def test_switched_off_nothing_is_opened(program, fakes):
    outcome = program(
        STEPS
        + """
with capture(RUN, power=False):
    train(1)
print("fake" if "nvml.so" in open("/proc/self/maps").read() else "none")
""",
        XPROF_NVML_LIB=fakes("nvml"),
    )
    assert outcome.document()["collectors"]["power"] == {"used": False, "why": "switched off"}
    assert outcome.stdout == "none\n"


def test_a_call_that_hangs_costs_what_comes_after_it_alone(program, fakes):
    """The capture ends in its time, with the rows before the hang, and says which call it was."""
    outcome = program(
        STEPS
        + """
with capture(RUN, power="auto"):
    train(6)
    began = time.monotonic()
print(time.monotonic() - began)
""",
        XPROF_NVML_LIB=fakes("nvml"),
        FAKE_NVML="hang=temperature:1",
        XPROF_PY_POWER_PERIOD_MS="20",
    )
    rows, told = sampled(outcome)
    assert len(rows) == 1
    assert told["used"] is True
    assert "nvmlDeviceGetTemperature did not return" in outcome.messages()
    # One second is the sampler's, the rest what a busy machine takes.
    assert float(outcome.stdout) < 30
    assert outcome.step_numbers() == list(range(6))


def test_a_forked_child_leaves_the_parents_sampler_alone(program, fakes):
    outcome = program(
        STEPS
        + """
import os
with capture(RUN, power=True):
    train(2)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    train(2)
""",
        XPROF_NVML_LIB=fakes("nvml"),
        XPROF_PY_POWER_PERIOD_MS="20",
    )
    rows, _ = sampled(outcome)
    # The last row is that of the stop: the thread was there to take it.
    assert outcome.stderr == outcome.messages() == ""
    assert len(rows) == outcome.document()["overhead"]["power"]["looks"]


# --- the plugin's profiler --------------------------------------------------------------------------------------------

PLUGIN = (
    f"import sys\nsys.path.insert(0, {str(ROOT / 'tests')!r})\n"
    + """
import ctypes, os
import device_spaces
ctypes.CDLL(os.environ["PLUGIN"])
def leave_xspace(began_ns, step_ns, kernel_ns, n):
    '''What the plugin traced of `n` steps: one kernel each, and the device's own line of steps.'''
    device_spaces.START_NS = began_ns
    end_ps = (time.time_ns() - began_ns) * 1000
    planes = device_spaces.Planes(end_ps)
    steps, stream = planes.line("/device:TPU:0", "Steps"), planes.line("/device:TPU:0", "XLA Ops")
    modules = planes.line("/device:TPU:0", "XLA Modules")
    for i in range(n):
        at = i * step_ns * 1000
        steps.event(str(i), at, at + step_ns * 1000)
        modules.event("jit_f(11)", at, at + kernel_ns * 1000, run_id=i)
        stream.event("%dot.1 = f32[] dot(f32[] %a)", at, at + kernel_ns * 1000)
    open(os.environ["FAKE_PJRT_XSPACE"], "wb").write(planes.space.SerializeToString())
"""
)


def plugin_run(program, fakes, tmp_path, body, script="", plugin=PLUGIN, **environment):
    (tmp_path / "planted.pb").write_bytes(b"\n\4\x12\2ab")  # a plane of that name, where the program plants no other
    return program(
        STEPS + plugin + body,
        PLUGIN=fakes("pjrt"),
        FAKE_PJRT=script,
        FAKE_PJRT_XSPACE=str(tmp_path / "planted.pb"),
        **environment,
    )


def test_a_program_without_jax_is_profiled_by_its_plugin(program, fakes, tmp_path):
    outcome = plugin_run(
        program,
        fakes,
        tmp_path,
        """
with capture(RUN):
    began = time.time_ns()
    train(6, 0.02)
    leave_xspace(began, 20_000_000, 15_000_000, 6)
assert "jax" not in sys.modules
""",
    )
    told = outcome.document()["collectors"]["xla"]
    assert told["used"] is True
    assert told["plugin"]["path"].endswith("pjrt.so")
    assert (told["plugin"]["major"], told["plugin"]["minor"]) == (0, 99)
    # The file is the planted one, without the plugin's NUL, where TensorBoard and XProf look for it.
    assert outcome.xplane().read_bytes() == (tmp_path / "planted.pb").read_bytes()
    assert outcome.xplane().parent.parent == outcome.run / "plugins" / "profile"
    done = subprocess.run(
        [sys.executable, "-m", "xprof_py", "analyze", str(outcome.run), "-o", str(tmp_path / "out"), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["hosts"][0]["devices"] == ["/device:TPU:0"]
    assert summary["breakdown"]["compute"]["share"] == pytest.approx(0.75, abs=0.1)
    assert summary["power"] is None


def test_energy_of_steps_of_a_gpu_end_to_end(program, fakes, tmp_path):
    """300 W in steps of 100 ms: 30 J. The two fakes together: what the plugin traced, what NVML said."""
    body = """
with capture(RUN, power=True):
    time.sleep(0.3)
    began = time.time_ns()
    train(6, 0.1)
    leave_xspace(began, 100_000_000, 90_000_000, 6)
    time.sleep(0.3)
""".replace("leave_xspace(", "gpu_xspace(")
    gpu = """
def gpu_xspace(began_ns, step_ns, kernel_ns, n):
    '''Driver calls on this thread inside its steps, and their kernels; the steps are the host's own.'''
    device_spaces.START_NS = began_ns
    planes = device_spaces.Planes((time.time_ns() - began_ns) * 1000)
    main, gpu = planes.line("/host:CPU", "python", 1), planes.line("/device:GPU:0", "Stream #1", 1)
    for i in range(n):
        at = i * step_ns * 1000
        main.event("train", at, at + step_ns * 1000 - 1000, _r=1, step_num=i)
        main.event("cuLaunchKernel", at + 1000, at + 2000, correlation_id=i + 1)
        gpu.event("gemm", at + 5000, at + kernel_ns * 1000, correlation_id=i + 1, kernel_details="regs:1")
    open(os.environ["FAKE_PJRT_XSPACE"], "wb").write(planes.space.SerializeToString())
"""
    outcome = plugin_run(
        program,
        fakes,
        tmp_path,
        gpu + body.replace("train(6, 0.1)", "time.sleep(0.6)"),
        XPROF_NVML_LIB=fakes("nvml"),
        FAKE_NVML="power=300000",
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "xprof_py", "analyze", str(outcome.run), "-o", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    power = summary["power"]
    assert (power["devices"], power["method"]) == (1, "counter")
    rows = pq.read_table(out / "energy.parquet").to_pylist()
    for row in rows:
        if row["energy_uj"] is not None:
            truth_uj = 300 * (row["end_ps"] - row["start_ps"]) / 1e6
            assert abs(row["energy_uj"] - truth_uj) <= row["start_error_uj"] + row["end_error_uj"]
    assert power["steps"] >= 3
    assert abs(power["joules_per_step"] - 30) <= power["joules_per_step_error"]
    # 1980 MHz all the time, and always the power cap's bit: no sample shows what the clock would be without it.
    assert power["throttling"]["limited_share"] == pytest.approx(1)
    assert "too few samples" in power["throttling"]["why"]
    assert f"{power['joules_per_step']:,.4g} J a step" in " ".join(
        subprocess.run(
            [sys.executable, "-m", "xprof_py", "analyze", str(outcome.run), "-o", str(out)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "200"},
        ).stdout.split()
    )


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("no_extension", "no JAX"),
        ("old", "no JAX"),
        ("fail=create", "planted failure of create"),
        ("fail=start", "planted failure of start"),
        ("fail=stop", "planted failure of stop"),
        ("fail=collect", "planted failure of collect"),
    ],
)
def test_a_plugin_that_fails_costs_its_profile_alone(program, fakes, tmp_path, script, why):
    outcome = plugin_run(program, fakes, tmp_path, "with capture(RUN):\n    train(2)\n", script)
    told = outcome.document()["collectors"]["xla"]
    assert told["used"] is False
    assert why in told.get("error", told["why"])
    assert outcome.step_numbers() == [0, 1]
    assert "xplane" not in outcome.document()["files"]


@pytest.mark.parametrize("script", ["nul", "nul own"])
def test_an_empty_profile_of_one_nul_is_no_file_and_said(program, fakes, tmp_path, script):
    outcome = plugin_run(program, fakes, tmp_path, "with capture(RUN):\n    train(2)\n", script)
    assert outcome.document()["collectors"]["xla"]["used"] is False
    assert "pjrt.so traced nothing" in outcome.messages()
    assert "xplane" not in outcome.document()["files"]
    assert outcome.step_numbers() == [0, 1]


def test_a_program_with_jax_is_left_to_jax(program, fakes, tmp_path):
    """JAX is imported and has no devices yet: the plugin is not touched, though it is loaded."""
    outcome = plugin_run(program, fakes, tmp_path, "import jax\nwith capture(RUN):\n    train(2)\n")
    assert outcome.document()["collectors"]["xla"] == {"used": False, "why": "the program's devices never came up"}


def test_a_plugin_that_comes_late_is_found_at_a_step(program, fakes, tmp_path):
    late = PLUGIN.replace('ctypes.CDLL(os.environ["PLUGIN"])\n', "")
    body = 'with capture(RUN):\n    train(2)\n    ctypes.CDLL(os.environ["PLUGIN"])\n    train(2)\n'
    outcome = plugin_run(program, fakes, tmp_path, body, plugin=late)
    assert outcome.document()["collectors"]["xla"]["used"] is True


def test_true_without_jax_or_a_plugin_is_an_error(program, fakes, tmp_path):
    hide = "sys.modules['jax'] = None\n"
    source = "try:\n    with capture(RUN, xla=True): train(1)\nexcept CaptureError as error: print(error)\n"
    without = program(STEPS + hide + source)
    assert "no PJRT plugin" in without.stdout
    loaded = plugin_run(program, fakes, tmp_path, hide + source)
    assert loaded.stdout == ""
    assert loaded.document()["collectors"]["xla"]["used"] is True


def real_plugins():
    """Plugins that are installed here, and need no device to be asked: XLA's for CUDA, libtpu."""
    named = os.environ.get("XPROF_PY_PJRT_PLUGINS", "").split(os.pathsep)
    for package, file in (("libtpu", "libtpu.so"), ("jax_plugins.xla_cuda13", "xla_cuda_plugin.so")):
        try:
            spec = importlib.util.find_spec(package)
        except ImportError:
            continue
        if spec is not None and spec.submodule_search_locations:
            named.append(os.path.join(spec.submodule_search_locations[0], file))
    return [path for path in named if path and os.path.exists(path)]


def test_real_plugins_have_the_layouts_that_are_declared_here(program):
    """Their tables are walked, and a session is begun and ended, or refused in the plugin's own words."""
    plugins = real_plugins()
    if not plugins:
        pytest.skip("no PJRT plugin here: pip install jax-cuda13-pjrt or libtpu, or name one in XPROF_PY_PJRT_PLUGINS")
    source = """
import ctypes, json, sys
from xprof_py import _native
from xprof_py.collectors.pjrt import profile_options
ctypes.CDLL(sys.argv[1])
(plugin,) = _native.pjrt_plugins()
assert plugin["profiler"] and plugin["major"] == 0 and plugin["minor"] > 50, plugin
try:
    _native.pjrt_start(plugin["path"], profile_options(2, 1))
    print(json.dumps(["stopped", len(_native.pjrt_stop())]))
except RuntimeError as error:
    print(json.dumps(["refused", str(error)]))
"""
    for path in plugins:
        outcome = program(source, run=path)
        how, what = json.loads(outcome.stdout.splitlines()[-1])
        assert (how == "stopped" and what >= 0) or (how == "refused" and len(what) > 10), outcome.stdout
