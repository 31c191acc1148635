"""Peaks: who is believed, how devices are recognised, what is never guessed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xprof_py.errors import UsageError
from xprof_py.postprocess import schema
from xprof_py.postprocess.hlo import cpu_peaks, known_peaks
from xprof_py.postprocess.hlo.cpu_peaks import cpu_model, measure_cpu, physical_cores, stored_file
from xprof_py.postprocess.hlo.known_peaks import with_peaks
from xprof_py.postprocess.hlo.peaks import (
    PUBLIC,
    Peaks,
    device_peaks,
    from_document,
    ideal_times_ps,
    peaks_of,
    public_peaks,
    stated_by_user,
)
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import ArgKind
from xprof_py.run_folder import boot_id

HERE = {"hostname": os.uname().nodename, "boot_id": boot_id()}
MEASURED = Peaks("a CPU, 2 cores", "measured on this machine", {"f32": 10**11}, 10**11, 2 * 10**10)


def profile(*, plane: str = "/host:CPU", run: dict[str, Any] | None = None, **facts: Any) -> Profile:
    """A profile with one plane and its stats; a host plane has the ops of a CPU device."""
    rows: dict[str, list[Any]] = {name: [] for name in ("plane", "key", "kind", "value", "text")}
    for key, value in {"process_id": 1, **facts}.items():
        kind, number, text = int(ArgKind.INT), value, None
        if isinstance(value, float):
            kind, number = int(ArgKind.DOUBLE), int(np.float64(value).view(np.int64))
        elif isinstance(value, str):
            kind, number, text = int(ArgKind.TEXT), 0, value
        for name, column in zip(rows, (plane, key, kind, number, text), strict=True):
            rows[name].append(column)
    args = {"event": [0], "key": ["hlo_op"], "kind": [int(ArgKind.TEXT)], "value": [0]}
    tables = {"plane_args": schema.table("plane_args", rows)}
    if plane == "/host:CPU":
        tables["args"] = schema.table("args", args)
    return Profile("host", 0, 0, 1, metadata={"run": run or {}}).with_tables(**tables)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("AMD Instinct MI300X", "MI300X"),
        ("TPU v6 Lite", "TPU v6e"),
        ("TPU v5 lite", "TPU v5e"),
        ("TPU v5", "TPU v5p"),
        ("TPU v4", "TPU v4"),
        ("NVIDIA H100 NVL", None),
        ("TPU v4 lite", None),
        ("", None),
    ],
)
def test_a_device_is_known_by_its_name(name: str, device: str | None) -> None:
    found = public_peaks(name)
    assert (found.device if found else None) == device


@pytest.mark.parametrize(
    ("facts", "device"),
    [
        ({"compute_cap_major": 7, "compute_cap_minor": 0, "core_count": 80, "memory_size": 16945512448}, "V100"),
        (
            {"compute_cap_major": 9, "compute_cap_minor": 0, "core_count": 132, "memory_size": 85_000_000_000},
            "H100 SXM",
        ),
        ({"compute_cap_major": 9, "compute_cap_minor": 0, "core_count": 132, "memory_size": 150_000_000_000}, "H200"),
        ({"compute_cap_major": 9, "compute_cap_minor": 0, "core_count": 132, "memory_size": 99_000_000_000}, None),
        (
            {"compute_cap_major": 8, "compute_cap_minor": 0, "core_count": 108, "memory_size": 42_000_000_000},
            "A100 40GB",
        ),
        (
            {
                "device_vendor": "AMD",
                "compute_cap_major": 9,
                "compute_cap_minor": 4,
                "core_count": 304,
                "memory_size": 206141652992,
            },
            "MI300X",
        ),
        ({"core_count": 132}, None),
    ],
)
def test_a_gpu_is_known_by_its_capability_cores_and_memory(facts: dict[str, Any], device: str | None) -> None:
    found = device_peaks(facts)
    assert (found.device if found else None) == device


def test_the_profiles_own_statement_goes_before_public_figures() -> None:
    stated = {"peak_teraflops_per_second": 900.0, "peak_hbm_bw_gigabytes_per_second": 1638.0}
    tpu = profile(plane="/device:TPU:0", device_type_string="TPU v6 Lite", **stated)
    found = peaks_of(with_peaks(tpu, {}, calibrate=False), "/device:TPU:0")
    assert found is not None
    assert (found.source, found.flops_per_s["bf16"], found.memory_bytes_per_s) == (
        "the profile",
        900 * 10**12,
        1638 * 10**9,
    )
    assert found.flops_per_s["s8"] == 1836 * 10**12  # completed by the public ones


@pytest.mark.parametrize(
    ("device", "bf16_t", "eight_bits_t", "memory_g", "both_ways_g"),
    [
        # As the vendors' pages write them: dense, interconnect both ways.
        ("TPU v4", 275, 275, 1200, 600),
        ("TPU v5e", 197, 393, 819, 400),
        ("TPU v5p", 459, 918, 2765, 1200),
        ("TPU v6e", 918, 1836, 1638, 800),
        ("A100 80GB PCIe", 312, 624, 1935, None),
        ("A100 80GB", 312, 624, 2039, 600),
        ("H100 SXM", 989.4, 1978.9, 3350, 900),
        ("H200", 989.4, 1978.9, 4800, 900),
        ("B200", 2250, 4500, 7700, 1800),
    ],
)
def test_public_figures_are_those_of_the_vendors_pages(
    device: str, bf16_t: float, eight_bits_t: float, memory_g: int, both_ways_g: int | None
) -> None:
    (found,) = [peaks for peaks in PUBLIC if peaks.device == device]
    assert found.flops_per_s["bf16"] == round(bf16_t * 1e12)
    assert found.flops_per_s["s8"] == round(eight_bits_t * 1e12)
    assert found.memory_bytes_per_s == memory_g * 10**9
    assert found.network_bytes_per_s == (None if both_ways_g is None else both_ways_g * 10**9 // 2)


def test_public_figures_are_rates_that_make_sense() -> None:
    for peaks in PUBLIC:
        assert peaks.memory_bytes_per_s is not None
        ridge = max(peaks.flops_per_s.values()) / peaks.memory_bytes_per_s
        assert 100 < ridge < 1500, peaks.device
        assert from_document(peaks.document()) == peaks


def test_f32_left_to_the_backend_runs_on_what_the_backend_takes() -> None:
    h100, tpu, v100 = (public_peaks(name) for name in ("NVIDIA H100 PCIe", "TPU v4", "Tesla V100"))
    assert h100 is not None
    assert tpu is not None
    assert v100 is not None
    assert h100.matmul_flops_per_s("f32_default") == 378 * 10**12
    assert h100.matmul_flops_per_s("f32") == round(51.2e12)
    assert tpu.matmul_flops_per_s("f32_default") == 275 * 10**12
    assert tpu.matmul_flops_per_s("f32") is None
    assert v100.matmul_flops_per_s("f32_default") == round(15.7e12)
    assert v100.matmul_flops_per_s("bf16") is None
    assert h100.matmul_flops_per_s("f8e4m3fn") == h100.flops_per_s["f8"]


# --- the user ---------------------------------------------------------------------------------------------------------


def test_the_user_has_the_last_word(tmp_path: Path) -> None:
    stated = {"flops_per_s": {"bf16": 5}, "memory_bytes_per_s": 7}
    file = tmp_path / "peaks.json"
    file.write_text(json.dumps({"/device:TPU": stated}))
    tpu = profile(plane="/device:TPU:0", device_type_string="TPU v4")
    for text in (json.dumps(stated), str(file)):
        found = peaks_of(with_peaks(tpu, {"XPROF_PY_PEAKS": text}, calibrate=False), "/device:TPU:0")
        assert found is not None
        assert (found.source, found.flops_per_s, found.memory_bytes_per_s) == ("XPROF_PY_PEAKS", {"bf16": 5}, 7)
    untouched = with_peaks(tpu, {"XPROF_PY_PEAKS": json.dumps({"cpu": stated})}, calibrate=False)
    assert peaks_of(untouched, "/device:TPU:0") == public_peaks("TPU v4")


@pytest.mark.parametrize(
    "text", ["/no/such/file", "[1]", "{", '{"memory_bytes_per_s": -1}', '{"memory": 1}', '{"cpu": {"flops_per_s": 3}}']
)
def test_what_the_user_states_must_be_peaks(text: str) -> None:
    with pytest.raises(UsageError, match="XPROF_PY_PEAKS"):
        stated_by_user(text)


# --- CPUs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measuring takes a second: here it gives MEASURED, and is counted."""
    made: list[str] = []

    def measure(model: str, cores: int) -> Peaks:
        made.append(f"{model}, {cores}")
        return MEASURED

    monkeypatch.setattr(cpu_peaks, "measure_cpu", measure)
    return made


def test_a_cpu_is_measured_once(tmp_path: Path, measurements: list[str]) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    first, second = (with_peaks(profile(run=HERE), environ, calibrate=True) for _ in range(2))
    assert len(measurements) == 1
    assert first.metadata["peaks"] == second.metadata["peaks"] == {"cpu": MEASURED.document()}
    assert peaks_of(first, "cpu:3") == MEASURED
    assert first["diagnostics"].to_pylist() == second["diagnostics"].to_pylist()
    (note,) = first["diagnostics"].to_pylist()
    assert (note["code"], note["severity"]) == ("cpu_peaks", "note")
    assert "100 GFLOP/s in f32, 20.0 GB/s" in note["message"]


def test_only_analyze_measures(tmp_path: Path, measurements: list[str]) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert with_peaks(profile(run=HERE), environ, calibrate=False).metadata["peaks"] == {}
    assert not measurements
    with_peaks(profile(run=HERE), environ, calibrate=True)
    assert "cpu" in with_peaks(profile(run=HERE), environ, calibrate=False).metadata["peaks"]


@pytest.mark.parametrize(
    ("run", "environ"),
    [
        ({}, {}),
        ({**HERE, "boot_id": "another boot"}, {}),
        ({**HERE, "hostname": "another host"}, {}),
        ({"hostname": HERE["hostname"]}, {}),
        (HERE, {"XPROF_PY_CALIBRATE": "off"}),
    ],
)
def test_another_machine_has_no_peaks(
    tmp_path: Path, measurements: list[str], run: dict[str, Any], environ: dict[str, str]
) -> None:
    found = with_peaks(profile(run=run), {"XDG_CACHE_HOME": str(tmp_path), **environ}, calibrate=True)
    assert found.metadata["peaks"] == {}
    assert not measurements
    assert not list(tmp_path.iterdir())


def test_a_gpus_host_is_not_measured(tmp_path: Path, measurements: list[str]) -> None:
    on_gpu = profile(plane="/device:GPU:0", run=HERE)
    with_peaks(on_gpu, {"XDG_CACHE_HOME": str(tmp_path)}, calibrate=True)
    assert not measurements


def test_the_run_files_peaks_need_no_machine(measurements: list[str]) -> None:
    recorded = {"cpu_peaks": {"flops_per_s": {"f32": 3}, "memory_bytes_per_s": 4}}
    found = peaks_of(with_peaks(profile(run=recorded), {}, calibrate=True), "cpu:0")
    assert found is not None
    assert (found.source, found.flops_per_s, found.memory_bytes_per_s) == ("the run file", {"f32": 3}, 4)
    assert not measurements


def test_what_cannot_be_stored_is_not_used(tmp_path: Path, measurements: list[str]) -> None:
    (tmp_path / "file").write_text("not a folder")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    assert with_peaks(profile(run=HERE), environ, calibrate=True).metadata["peaks"] == {}


def test_a_broken_stored_file_is_measured_again(tmp_path: Path, measurements: list[str]) -> None:
    file = stored_file(tmp_path / "xprof_py", *cpu_peaks.machine())
    file.parent.mkdir()
    file.write_text("{")
    with_peaks(profile(run=HERE), {"XDG_CACHE_HOME": str(tmp_path)}, calibrate=True)
    assert from_document(json.loads(file.read_text())) == MEASURED
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_bad_switch_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="XPROF_PY_CALIBRATE"):
        known_peaks.with_peaks(profile(), {"XPROF_PY_CALIBRATE": "perhaps"}, calibrate=True)


def test_a_cpu_can_be_measured() -> None:
    found = measure_cpu("model", 2)
    assert found is not None
    assert found.memory_bytes_per_s is not None
    # Any machine that runs this does more than a GFLOP/s and 100 MB/s, and less than a thousand times a fast one.
    assert all(10**9 < rate < 10**16 for rate in found.flops_per_s.values())
    assert 10**8 < found.memory_bytes_per_s < 10**14


def test_threads_of_one_core_are_one_core(tmp_path: Path) -> None:
    for cpu, siblings in ((0, "0,2"), (1, "1,3"), (2, "0,2")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert physical_cores([0, 1, 2], tmp_path) == 2
    assert physical_cores([7, 8], tmp_path) == 2  # a machine that does not tell


def test_a_cpu_has_a_name(tmp_path: Path) -> None:
    intel, arm = tmp_path / "intel", tmp_path / "arm"
    intel.write_text("processor\t: 0\nmodel name\t: A  Fast   CPU\nflags: x\n")
    arm.write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\nCPU revision\t: 1\n")
    assert cpu_model(intel) == "A Fast CPU"
    assert "0x41" in cpu_model(arm)
    assert "0xd40" in cpu_model(arm)
    assert cpu_model(tmp_path / "absent")


# --- ideal times ------------------------------------------------------------------------------------------------------


def cost(**fields: Any) -> dict[str, Any]:
    return {
        "flops": 0,
        "matmul_flops": 0,
        "matmul_type": "",
        "bytes_read": 0,
        "bytes_written": 0,
        **fields,
    }


def test_a_matmul_and_an_axpy_lie_on_the_right_sides() -> None:
    """768^3 and 16 Mi elements of f32, as the planted workloads compute, on 100 GFLOP/s and 20 GB/s."""
    matmul = 2 * 768**3
    computing_ps, moving_ps = ideal_times_ps(
        cost(flops=matmul, matmul_flops=matmul, matmul_type="f32_default", bytes_read=2**21, bytes_written=2**21),
        MEASURED,
    )
    assert (computing_ps, moving_ps) == (matmul * 10, 2**22 * 50)
    computing_ps, moving_ps = ideal_times_ps(cost(flops=2**25, bytes_read=2**27, bytes_written=2**26), MEASURED)
    assert (computing_ps, moving_ps) == (2**25 * 10, 3 * 2**26 * 50)


def test_without_a_rate_there_is_no_ideal() -> None:
    unknown = cost(flops=9, matmul_flops=9, matmul_type="bf16")
    assert ideal_times_ps(unknown, MEASURED)[0] is None
    assert ideal_times_ps(cost(flops=9, matmul_flops=9, matmul_type="mixed"), MEASURED)[0] is None
    assert ideal_times_ps(cost(flops=None, matmul_flops=None), MEASURED)[0] is None
    assert ideal_times_ps(cost(bytes_written=None), MEASURED)[1] is None
