"""`xprof-py doctor` on machines that are made up, and on this one."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from xprof_py import _native
from xprof_py.cli import devices, doctor, main
from xprof_py.cli.doctor import Finding, examine
from xprof_py.injection import NVTX_VARIABLE, nvtx_held_by, nvtx_library
from xprof_py.startup.sitecustomize import is_wanted, other_sitecustomize


def found(findings: list[Finding], name: str) -> Finding:
    (one,) = [finding for finding in findings if finding.name == name]
    return one


class Driver:
    """A libcuda that knows one thing."""

    def __init__(self, version: int, result: int = 0) -> None:
        self._version, self._result = version, result

    def cuDriverGetVersion(self, number: Any) -> int:  # noqa: N802
        number._obj.value = self._version
        return self._result


class Cupti:
    def __init__(self) -> None:
        self.asked = 0

    def cuptiGetVersion(self, number: Any) -> int:  # noqa: N802
        self.asked += 1
        number._obj.value = 130501
        return 0


class Nvml:
    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, room: ctypes.c_uint) -> int:  # noqa: N802
        text.value = b"580.1"
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0


def libraries(monkeypatch: pytest.MonkeyPatch, **there: Any) -> None:
    def load(path: str) -> Any:
        for name, library in there.items():
            if name in path:
                return library
        raise OSError(f"{path}: cannot open shared object file")

    monkeypatch.setattr(devices, "_load", load)


def test_cupti_is_not_asked_anything_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "nvidia/cu13/lib"
    wheel.mkdir(parents=True)
    (wheel / "libcupti.so.13").touch()
    cupti = Cupti()
    libraries(monkeypatch, libcupti=cupti)
    where = devices.cupti({}, [str(tmp_path)])
    assert (where.path, where.version, cupti.asked) == (str(wheel / "libcupti.so.13"), None, 0)
    assert "no driver" in where.why
    libraries(monkeypatch, libcupti=cupti, libcuda=Driver(13000))
    assert devices.cupti({}, [str(tmp_path)]).version == "130501"
    assert devices.cupti({devices.CUPTI_VARIABLE: "/x/libcupti.so"}, []).path == "/x/libcupti.so"


def test_a_machine_with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(devices.CUPTI_VARIABLE, "/x/libcupti.so.13")
    libraries(monkeypatch, libcuda=Driver(12080), libcupti=Cupti(), nvidia=Nvml())
    monkeypatch.setattr(doctor, "subscription", lambda: {"why": None, "shared": True})
    findings = examine(tmp_path)
    assert found(findings, "driver") == Finding("driver", "ok", "libcuda.so.1 for CUDA 12.8")
    assert found(findings, "cupti").says == "/x/libcupti.so.13, version 130501, shared with other tools"
    assert found(findings, "nvml").says == "driver 580.1, 2 GPUs"


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        ("CUPTI is held by CUPTI for Nsight Systems", "end the other profiler"),
        ("CUPTI does not take us: insufficient privileges: ... (35)", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("this CUPTI lacks its activity calls", "pip install -U nvidia-cuda-cupti"),
        ("CUPTI does not take us: out of memory (8)", ""),
    ],
)
def test_a_cupti_that_does_not_take_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, fix: str) -> None:
    monkeypatch.setenv(devices.CUPTI_VARIABLE, "/x/libcupti.so.13")
    libraries(monkeypatch, libcuda=Driver(12080), libcupti=Cupti())
    monkeypatch.setattr(doctor, "subscription", lambda: {"why": why})
    finding = found(examine(tmp_path), "cupti")
    assert (finding.state, finding.says) == ("missing", f"/x/libcupti.so.13, version 130501: {why}")
    assert fix in finding.fix
    assert bool(fix) == bool(finding.fix)


@pytest.mark.parametrize(
    ("does", "says"),
    [("import os; os.abort()", "ends with -6"), ("import time; time.sleep(60)", "did not answer within 2 s")],
)
def test_a_cupti_that_crashes_or_hangs_costs_its_own_process_alone(
    monkeypatch: pytest.MonkeyPatch, does: str, says: str
) -> None:
    monkeypatch.setattr(devices, "_TRY", does)
    monkeypatch.setattr(devices, "_TRY_TIMEOUT_S", 2.0)
    assert says in devices.subscription()["why"]


def test_a_driver_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries(monkeypatch, libcuda=Driver(0, result=3), nvidia=Nvml())
    assert (found(examine(tmp_path), "driver").state, devices.cuda_driver().why[-7:]) == ("missing", "error 3")


def test_nothing_is_left_where_it_looked(tmp_path: Path) -> None:
    findings = examine(tmp_path)
    assert found(findings, "clock").state in ("ok", "less")
    assert list(tmp_path.iterdir()) == []
    assert _native.recorder_stop(0.0).get("recorded") in (0, 1, None)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    findings = examine(tmp_path / "absent")
    assert found(findings, "recorder").state == "missing"
    assert found(findings, "python").state == "ok"


def test_little_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage("/"))(10**9, 10**9, 10**6)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert found(examine(tmp_path), "space").state == "less"


def test_nvtx_in_another_tool_s_hands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NVTX_VARIABLE, "/opt/other.so")
    finding = found(examine(tmp_path), "nvtx")
    assert (finding.state, finding.fix) == ("less", f"unset {NVTX_VARIABLE}")
    assert nvtx_held_by({NVTX_VARIABLE: str(nvtx_library())}) is None
    assert nvtx_held_by({}) is None


def test_old_and_absent_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"jax": "0.4.30", "jaxlib": "0.4.30", "jax-cuda12-plugin": "0.4.30"}
    monkeypatch.setattr(doctor, "version_of", there.get)
    findings = examine(tmp_path)
    assert found(findings, "jax").state == "less"
    assert "jax-cuda12-plugin 0.4.30" in found(findings, "jax").says
    assert {found(findings, name).state for name in ("dask", "duckdb", "fsspec")} == {"missing"}
    monkeypatch.setattr(doctor, "version_of", lambda _: None)
    assert found(examine(tmp_path), "jax").fix == "pip install jax"


def test_a_check_that_fails_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(environ: Any) -> Any:
        raise RuntimeError("odd")

    monkeypatch.setattr(doctor, "nvml", broken)
    findings = examine(tmp_path)
    assert "RuntimeError: odd" in found(findings, "nvml").says
    assert found(findings, "duckdb").name == "duckdb"


def test_the_command_prints_lines_or_json_and_ends_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[:2] == ["ok", "python"]
    assert main(["doctor", "--folder", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["findings"]
    assert {tuple(one) for one in told} == {("name", "state", "says", "fix")}


@pytest.mark.parametrize(
    ("environ", "argv", "wanted"),
    [
        ({}, ["python", "train.py"], True),
        ({}, ["python", "-u", "train.py"], True),
        ({}, ["python", "-c", "pass"], True),
        ({}, ["python", "/usr/bin/torchrun", "--nproc", "2", "train.py"], False),
        ({}, ["python", "-m", "torch.distributed.run", "train.py"], False),
        ({}, ["python", "-m", "train", "torchrun"], True),
        ({"RANK": "0"}, ["python", "train.py"], True),
        ({"SLURM_PROCID": "0"}, ["python", "/usr/bin/torchrun", "train.py"], False),
        ({"SLURM_PROCID": "0", "RANK": "0"}, ["python", "train.py"], True),
        ({"RANK": "0", "XPROF_PY_RUN_OWNER": "5:"}, ["python", "train.py"], True),
        ({"RANK": "0", "XPROF_PY_RUN_OWNER": "5:0"}, ["python", "-c", "worker"], False),
        ({"XPROF_PY_RUN_OWNER": "5:"}, ["python", "-c", "worker"], False),
        ({"XPROF_PY_RUN_OWNER": "77:"}, ["python", "-c", "after exec"], True),
    ],
)
def test_which_processes_are_recorded(environ: dict[str, str], argv: list[str], wanted: bool) -> None:
    assert is_wanted(environ, argv, 77) is wanted


def test_the_sitecustomize_beside_ours(tmp_path: Path) -> None:
    import xprof_py.startup

    ours = str(Path(str(xprof_py.startup.__file__)).parent)
    assert other_sitecustomize([ours]) is None
    (tmp_path / "sitecustomize.py").touch()
    assert other_sitecustomize([ours, str(tmp_path)]) == str(tmp_path / "sitecustomize.py")


def test_the_library_links_nothing_of_ours() -> None:
    if shutil.which("nm") is None:
        pytest.skip("nm is not on PATH: install binutils")
    wanted = subprocess.run(["nm", "-D", "-u", str(nvtx_library())], capture_output=True, text=True, check=True).stdout
    assert not [line for line in wanted.splitlines() if "xpr" in line or "Py" in line]


@pytest.mark.parametrize(
    ("variable", "line", "library"),
    [
        ("XPROF_NVML_LIB", doctor.nvml_line, "libnvidia-ml.so.1"),
        ("XPROF_CUPTI_LIB", doctor.cupti_line, "libcupti.so.12"),
    ],
)
@pytest.mark.parametrize("content", [None, b"no library"])
def test_a_variable_that_names_no_library_is_named_with_its_file_and_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, line: Any, library: str, content: bytes | None
) -> None:
    file = tmp_path / "lib.so"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv(variable, str(file))
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setattr(devices, "_TOOLKIT", str(tmp_path))
    (found,) = line()
    assert found.state == "missing"
    reason = ": No such file or directory" if content is None else ", which is no library that has "
    assert found.says.startswith(f"{variable} names {file}{reason}")
    assert found.fix.startswith(f"unset {variable}, or set it to the path of {library}")
