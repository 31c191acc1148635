"""The checks on a GPU where there is none: the same tests and programs over doubles, and each claim where it must fail.

What no double can answer is what real drivers do: whether CUPTI's records are as NVIDIA's headers say, whether XLA
pushes its ranges for every launch, who wins when two profilers ask, and every figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import device_spaces
import fake_gpu
import numpy as np
import pytest
from gpu_shards import GpuShard, scheduled

from gpu import checks, environments
from gpu.recorded import PROGRAMS, environ, told
from gpu.table import rows_of, write_table
from xprof_py.injection import NVTX_VARIABLE, nvtx_library
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.xspace import read_programs_file, read_xspace

ROOT = fake_gpu.ROOT
ON_DOUBLES = "01 or 02 or ranges_reach or 04 or 08"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables under which a process finds the doubles as it would find NVIDIA's libraries."""
    pytest.importorskip("nvtx", reason="nvtx is not installed: pip install 'xprof_py[test]'")
    return fake_gpu.machine(fake_gpu.build(tmp_path_factory.mktemp("machine")))


@pytest.fixture(scope="module")
def table(machine: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The rows that the tests on a GPU come to on the doubles, in an environment that only says that it has CuPy."""
    folder = tmp_path_factory.mktemp("table")
    has = {"python": sys.executable, "packages": dict.fromkeys(("xprof_py", "cupy", "nvtx"), "double"), "missing": {}}
    lacks = {"python": sys.executable, "packages": {"xprof_py": "0"}, "missing": {"cupy": "no network"}}
    (folder / "environments.json").write_text(json.dumps({"jax": has, "torch": lacks}), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "-k", ON_DOUBLES]
    variables = environ(**machine, GPU_ENVIRONMENTS=str(folder), OUT=str(folder / "out"))
    variables.pop("PYTEST_XDIST_WORKER", None)
    variables.pop("PYTHONSAFEPATH")
    file = str(PROGRAMS.parent / "test_on_a_gpu.py")
    done = subprocess.run([*command, file], capture_output=True, text=True, check=False, env=variables, cwd=ROOT)
    rows = json.loads((folder / "out" / "checks.json").read_text(encoding="utf-8"))
    assert done.returncode == 0, done.stdout
    assert "| 01 cupti takes us[jax] | holds |" in (folder / "out" / "checks.md").read_text(encoding="utf-8")
    return {row["check"]: row for row in rows}


@pytest.mark.parametrize(
    ("check", "figures"),
    [
        ("01_cupti_takes_us[jax]", {"gpu": "Fake H200 0", "driver": "580.1", "cupti": 130500, "shared": True}),
        ("02_records_are_sane[jax]", {"kernels": 41, "placed": 24, "streams": 2}),
        ("03_ranges_reach_kernels[jax]", {"with_range": 16}),
        ("04_graph_nodes_are_told[jax]", {"graph_kernels": 16}),
        ("08_nvml_is_quick", {"refused": {}}),
    ],
)
def test_a_check_holds_on_the_doubles(table: dict[str, dict[str, Any]], check: str, figures: dict[str, Any]) -> None:
    row = table[check]
    assert row["result"] == "holds", row["why"]
    assert {name: row["figures"][name] for name in figures} == figures


def test_what_an_environment_lacks_is_said_in_the_table(table: dict[str, dict[str, Any]]) -> None:
    row = table["02_records_are_sane[torch]"]
    assert (row["result"], row["why"]) == ("not run", "no cupy: no network")


def test_the_table_has_a_row_per_test_and_the_first_line_of_a_failure(tmp_path: Path) -> None:
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message="AssertionError: 3 kernels have no launch\nassert ..."))
    reports = [
        SimpleNamespace(when="setup", outcome="passed", nodeid="f::test_a", user_properties=[], longrepr=None),
        SimpleNamespace(when="call", outcome="failed", nodeid="f::test_b", user_properties=[], longrepr=crash),
        SimpleNamespace(
            when="call",
            outcome="passed",
            nodeid="f::test_a",
            user_properties=[("figures", {"kernels": 7}), ("versions", {"jax": "0.11"})],
            longrepr=None,
        ),
    ]
    assert write_table(rows_of(reports), tmp_path).splitlines()[2:] == [
        "| a | holds | kernels 7 | jax 0.11 |",
        "| b | does not hold: 3 kernels have no launch |  |  |",
    ]


def test_01_fails_where_cupti_does_not_take_us_or_does_not_share_although_it_can() -> None:
    found = {"why": None, "library": "l", "version": 130300, "shared": False, "notes": "not shared: 39"}
    assert checks.cupti_takes_us(found, 580)["shared"] is False  # the driver is too old for that
    with pytest.raises(AssertionError, match="not shared although both can"):
        checks.cupti_takes_us(found, 610)
    with pytest.raises(AssertionError, match="CUPTI is held by Nsight"):
        checks.cupti_takes_us({**found, "why": "CUPTI is held by Nsight"}, 610)


ENTRY = {"clock_offset_ns": 50, "clock_width_ns": 100}


def two_kernels() -> GpuShard:
    """One on each of two streams, launched under `a` of step 4 and under `b` outside steps."""
    shard = GpuShard(100_000_000)
    shard.span(900, "train", 10_000_000, 50_000_000, number=4)
    shard.span(900, "a", 11_000_000, 20_000_000)
    shard.launch("first", (12_000_000, 12_005_000), (60_000_000, 61_000_000), range="Thunk:#name=m/x,hlo_op=x.1#")
    shard.span(900, "b", 70_000_000, 80_000_000)
    shard.launch("second", (71_000_000, 71_005_000), (75_000_000, 76_000_000), stream=8)
    return shard


def test_02_fails_for_what_is_not_sane(tmp_path: Path) -> None:
    profile = two_kernels().joined(tmp_path)
    assert checks.records_are_sane(profile, ENTRY, {"first": 1, "second": 1})["kernels"] == 2
    with pytest.raises(AssertionError, match=r"recorded .* launched"):
        checks.records_are_sane(profile, ENTRY, {"first": 2, "second": 1})
    with pytest.raises(AssertionError, match="2000000 ns off"):
        checks.records_are_sane(profile, {**ENTRY, "clock_offset_ns": 2_000_000}, {"first": 1, "second": 1})
    shard = two_kernels()
    shard.kernel("of nobody", 90_000_000, 91_000_000, 77)
    with pytest.raises(AssertionError, match="1 kernels have no launch"):
        checks.records_are_sane(shard.joined(tmp_path), ENTRY, {"first": 1, "second": 1, "of nobody": 1})
    shard = two_kernels()
    shard.launch("early", (85_000_000, 85_005_000), (84_000_000, 84_500_000))
    with pytest.raises(AssertionError, match=r"begins .* before its call"):
        checks.records_are_sane(shard.joined(tmp_path), ENTRY, {"first": 1, "second": 1, "early": 1})


def test_02_fails_for_another_span_step_or_stream(tmp_path: Path) -> None:
    profile = two_kernels().joined(tmp_path)
    assert checks.kernels_find_their_place(profile, {"first": ("a", 4, "main")}) == {"placed": 1, "streams": 1}
    for place in (("b", 4, "main"), ("a", 5, "main")):
        with pytest.raises(AssertionError, match="1 of 1 kernels are elsewhere"):
            checks.kernels_find_their_place(profile, {"first": place})
    shard = two_kernels()
    shard.span(900, "c", 90_000_000, 95_000_000, number=5)
    shard.launch("third", (91_000_000, 91_005_000), (92_000_000, 93_000_000), stream=9)
    with pytest.raises(AssertionError, match="streams are mixed up"):
        checks.kernels_find_their_place(shard.joined(tmp_path), {"first": ("a", 4, "main"), "third": ("c", 5, "main")})


def test_03_fails_for_a_range_or_an_op_that_is_missing(tmp_path: Path) -> None:
    shard = two_kernels()
    shard.program(7, "jit_m", scheduled("jit_m", 7, ("main", [("x.1", "fusion", ())])))
    profile = shard.joined(tmp_path)
    assert checks.launches_carry_their_range(profile, {"first": "x.1"}) == {"with_range": 1}
    with pytest.raises(AssertionError, match="1 of 2 kernels have another range or none"):
        checks.launches_carry_their_range(profile, {"first": "x.1", "second": "x.1"})
    with pytest.raises(AssertionError, match=r"0.0% of 2 kernels know their op"):
        checks.kernels_find_their_ops(profile)  # no range names the program
    shard = GpuShard(100_000_000)
    shard.span(900, "XlaModule:#hlo_module=jit_m,program_id=7#", 10_000_000, 30_000_000)
    for at in (12_000_000, 20_000_000):
        ran = (at + 2_000_000, at + 3_000_000)
        shard.launch("x_1", (at, at + 5000), ran, range="Thunk:#name=m/x,hlo_op=x.1#")
    shard.program(7, "jit_m", scheduled("jit_m", 7, ("main", [("x.1", "fusion", ())])))
    assert checks.kernels_find_their_ops(shard.joined(tmp_path)) == {"kernels": 2, "hit_share": 1.0, "by_stated": 2}


def test_04_fails_for_a_node_of_another_range(tmp_path: Path) -> None:
    shard = GpuShard(100_000_000)
    shard.node(5, "Thunk:#name=m/x,hlo_op=x.1#")
    call = shard.call(12_000_000, 12_005_000, name="cudaGraphLaunch")
    shard.kernel("of a node", 14_000_000, 15_000_000, call, graph=1, node=5)
    profile = shard.joined(tmp_path)
    assert checks.graph_nodes_are_told(profile, {"of a node": "x.1"}) == {"graph_kernels": 1}
    with pytest.raises(AssertionError, match="1 of 1 have another op or none"):
        checks.graph_nodes_are_told(profile, {"of a node": "x.2"})
    with pytest.raises(AssertionError, match="kernels of the graph are missing"):
        checks.graph_nodes_are_told(profile, {"of a node": "x.1", "gone": "x.2"})


HELD = """
import json, os, sys
sys.path.insert(0, os.environ["TESTS"])
from fake_gpu import FakeGpu, load_driver
from xprof_py import capture
from xprof_py.errors import CaptureError
load_driver(os.environ["FAKES"])
gpu = FakeGpu(os.environ["FAKES"])
gpu.set("refuse_shared", 39)
def profiled():
    '''Another tool's session: it has the kernels unless somebody else has CUPTI.'''
    if gpu.get("subscribed"): return 0
    gpu.hold("CUPTI for XLA")
    return 20
def let_go(): gpu.hold(None)
alone = profiled()
if sys.argv[2] == "first": let_go()
why = ""
try:
    with capture(sys.argv[1], cuda=True, xla=False):
        beside = profiled()
        gpu.launches("gemm", 1, 20)
except CaptureError as error:
    why, beside = str(error), 20
let_go()
after = profiled()
ours = 20 if not why else 0
print(json.dumps({"alone": alone, "beside": beside, "after": after, "ours": ours, "why": why}))
"""


@pytest.mark.parametrize(("who", "has"), [("first", "ours"), ("second", "theirs")])
def test_05_who_subscribes_first_has_the_devices_and_the_other_works_afterwards(
    machine: dict[str, str], tmp_path: Path, who: str, has: str
) -> None:
    """The double serves one tool at a time, as CUPTI does before 13.3."""
    variables = environ(TESTS=str(ROOT / "tests"), **machine)
    command = [sys.executable, "-c", HELD, str(tmp_path / "run"), who]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert checks.one_has_the_devices(seen)["beside_each_other"] == has
    assert ("CUPTI is held by CUPTI for XLA" in seen["why"]) == (has == "theirs")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"alone": 0}, "sees nothing even alone"),
        ({"after": 0}, "we left something behind"),
        ({"ours": 0, "beside": 0}, "nobody has the kernels"),
        ({"ours": 0}, "does not say why"),
    ],
)
def test_05_and_07_fail(changed: dict[str, Any], words: str) -> None:
    seen = {"alone": 20, "beside": 20, "after": 20, "ours": 20, "why": ""}
    assert checks.one_has_the_devices(seen)["beside_each_other"] == "both"
    with pytest.raises(AssertionError, match=words):
        checks.one_has_the_devices({**seen, **changed})


def test_06_measures_every_way_and_loses_nothing(machine: dict[str, str], tmp_path: Path) -> None:
    """That a ratio is small is for a quiet GPU to show; here the bound is tried with steps that are made up."""
    variables = {**machine, NVTX_VARIABLE: str(nvtx_library())}
    cost = told(sys.executable, "costs", str(tmp_path), "1", "12", **variables)
    assert {how: len(steps) for how, steps in cost["step_ms"].items()} == {"off": 12, "on": 12, "with_ranges": 12}
    assert cost["lost"] == 0
    assert len(list(tmp_path.glob("*/run/*.json"))) == 6
    steps = {"off": [1.0] * 10, "on": [1.04] * 10}
    figures = checks.overhead_is_bounded(steps, 0, launch_cpu=190.44)
    assert figures == {"step_off_ms": 1.0, "step_on_ms": 1.04, "on_over_off": 1.04, "launch_cpu_ns": 190.4}
    with pytest.raises(AssertionError, match=r"longer by more than 1.10: {'on': 1.2}"):
        checks.overhead_is_bounded({**steps, "on": [1.2] * 10}, 0)
    with pytest.raises(AssertionError, match="3 records were lost"):
        checks.overhead_is_bounded(steps, 3)
    with pytest.raises(AssertionError, match="too few steps"):
        checks.overhead_is_bounded({**steps, "on": [1.0]}, 0)


@pytest.mark.parametrize(
    ("calls_ns", "overhead", "words"),
    [
        ([200_000_000], {}, "a look takes 200 ms"),
        ([1000], {"looks": 0}, "took no look"),
        ([1000], {"failed_calls": 2}, "2 calls failed"),
        ([1000], {"cpu_ns": 30_000_000}, "3.00% of a core"),
    ],
)
def test_08_fails(calls_ns: list[int], overhead: dict[str, int], words: str) -> None:
    sampled = {"looks": 10, "failed_calls": 0, "cpu_ns": 1_000_000, "wall_ns": 1_000_000_000, "postponed": 0}
    assert checks.nvml_is_quick({"power": [1000]}, sampled)["power_median_us"] == 1.0
    with pytest.raises(AssertionError, match=words):
        checks.nvml_is_quick({"power": calls_ns}, {**sampled, **overhead})


def test_09_jax_s_live_programs_are_stored_with_their_hlo(tmp_path: Path) -> None:
    """On the CPU: what its client tells is the same call."""
    said = told(sys.executable, "jax_programs", str(tmp_path / "programs.pb"), JAX_PLATFORMS="cpu")
    programs = read_programs_file(tmp_path / "programs.pb")
    assert checks.programs_are_there(programs, said["programs"])["programs"] >= 2
    with pytest.raises(AssertionError, match=r"not stored: \['jit_gone'\]"):
        checks.programs_are_there(programs, [*said["programs"], "jit_gone"])
    emptied = programs.set_column(2, "hlo", [[b""] * programs.num_rows])
    with pytest.raises(AssertionError, match="stored without HLO"):
        checks.programs_are_there(emptied, said["programs"])


def test_an_environment_takes_over_what_is_installed_and_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    made = environments.make(tmp_path / "jax", sys.executable, {"nvtx": "nvtx", "absent_module": "absent-module"})
    assert made["python"] == str(tmp_path / "jax/bin/python")
    assert list(made["packages"]) == ["nvtx"]
    assert set(made["missing"]) == {"xprof_py", "absent_module"}
    assert "absent-module" in made["missing"]["absent_module"]


@pytest.mark.parametrize("there", [True, False])
def test_a_gpu_is_one_that_the_driver_sees(machine: dict[str, str], there: bool) -> None:
    code = "from gpu.environments import no_gpu; print(no_gpu())"
    variables = environ(PYTHONPATH=str(ROOT / "tests"), **(machine if there else {"LD_LIBRARY_PATH": "/nowhere"}))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=variables)
    if there:
        assert done.stdout == "\n"
    elif not done.stdout.strip():
        pytest.skip("this machine has a GPU")
    else:
        assert done.stdout.startswith("no NVIDIA GPU here: ")


def planted_xspace(tmp_path: Path, *, with_ops: bool) -> Path:
    planes = device_spaces.Planes(100_000_000)
    planes.program(11, "jit_f", {"dot.1": "dot"})
    stream = planes.line("/device:GPU:0", "Stream #7", 7)
    for i in np.arange(1, 5).tolist():
        op = {"hlo_op": "dot.1", "hlo_module": "jit_f", "program_id": 11} if with_ops else {}
        stream.event("gemm", i * 10_000_000, i * 10_000_000 + 5_000_000, correlation_id=i, **op)
    path = tmp_path / "planted.pb"
    path.write_bytes(planes.space.SerializeToString())
    return path


def test_10_a_plugin_s_own_profiler_gives_the_device(tmp_path: Path) -> None:
    """The plugin is a double that is loaded before Python, the program and the JAX in it (on the CPU) are real."""
    plugin = tmp_path / "pjrt.so"
    source = ROOT / "native/tests/fakes/pjrt.c"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(plugin), str(source)], check=True)
    xspace = planted_xspace(tmp_path, with_ops=True)
    variables = {"LD_PRELOAD": str(plugin), "FAKE_PJRT_XSPACE": str(xspace), "JAX_PLATFORMS": "cpu"}
    said = told(sys.executable, "jax_plugin", str(tmp_path / "out.pb"), **variables)
    assert said["version"] == [0, 99]
    assert os.path.samefile(said["plugin"], plugin)
    assert plugin_profile(tmp_path / "out.pb") == {"kernels": 4, "with_op": 4}
    with pytest.raises(AssertionError, match="0 of 4 kernels have an op"):
        plugin_profile(planted_xspace(tmp_path, with_ops=False))


def plugin_profile(path: Path) -> checks.Figures:
    profile: Profile = join_profile(read_xspace(path))
    return checks.plugin_traces_the_device(profile)
