"""Say what can be recorded on this machine, what is missing, and how to get it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from xprof_py import _native
from xprof_py.annotations import trace
from xprof_py.cli.arguments import named_path
from xprof_py.cli.devices import (
    CUPTI_VARIABLE,
    NVML,
    NVML_VARIABLE,
    cuda_driver,
    cupti,
    find_cupti,
    nvml,
    subscription,
)
from xprof_py.collectors import stacks
from xprof_py.injection import NVTX_VARIABLE, nvtx_held_by, nvtx_library
from xprof_py.startup.sitecustomize import other_sitecustomize

State = Literal["ok", "less", "missing"]

_BUDGET_BYTES = 1 << 30
_OLDEST_JAX = (0, 10)
_EXTRAS = (
    ("dask", ("dask", "distributed"), "analyze --workers and --scheduler", "pip install 'xprof_py[dask]'"),
    ("duckdb", ("duckdb",), "xprof-py query", "pip install 'xprof_py[query]'"),
    ("fsspec", ("fsspec",), "gs://, s3:// and other addresses", "pip install 'xprof_py[remote]'"),
)
_GPU_PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin", "jax-rocm7-plugin", "jax-rocm60-plugin")


@dataclass(frozen=True)
class Finding:
    """One line. ``state``: ok; less, it works with losses; missing. ``fix``: "" where nothing is to do."""

    name: str
    state: State
    says: str
    fix: str = ""


class Doctor:
    """Say line by line what works on this machine, what is missing, and the fix.

    Starts no backend, takes no GPU, and calls into no driver's library that is not there; a process of its own
    subscribes to CUPTI and lets go of it. Records one span in a folder of its own, to see what the recorder gets, and
    removes it.
    """

    name = "doctor"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of the command on ``parser``."""
        parser.add_argument("--json", action="store_true", help="the findings as JSON")
        parser.add_argument(
            "--folder",
            type=named_path,
            default=Path(),
            help="where runs will be recorded (default: the current folder)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print the findings; 0, whatever they are."""
        findings = examine(args.folder)
        if args.json:
            print(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=1))
            return 0
        for finding in findings:
            print(f"{finding.state:8}{finding.name:11}{finding.says}")
            if finding.fix:
                print(f"{'':19}fix: {finding.fix}")
        return 0


def examine(folder: Path) -> list[Finding]:
    """All findings, in the order in which they are shown; ``folder``: where runs will be recorded."""
    findings: list[Finding] = []
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", python),
        ("recorder", lambda: recorder(folder)),
        ("stacks", stack_sampler),
        ("run", startup),
        ("jax", jax),
        ("nvtx", nvtx),
        ("driver", cuda_driver_line),
        ("cupti", cupti_line),
        ("nvml", nvml_line),
        ("extras", extras),
    ]
    for name, check in checks:
        try:
            findings.extend(check())
        except Exception as error:
            # A machine that is odd in one respect is still to be told about the others.
            findings.append(Finding(name, "missing", f"could not be examined: {type(error).__name__}: {error}"))
    return findings


def python() -> Iterator[Finding]:
    """The interpreter and the extension that was built for it."""
    says = f"{platform.python_implementation()} {platform.python_version()}, {Path(_native.__file__).name}"
    yield Finding("python", "ok", says)


def recorder(folder: Path) -> Iterator[Finding]:
    """What one real span shows: the clock, and where the threads' rings lie."""
    if not folder.is_dir():
        yield Finding("recorder", "missing", f"{folder} is no folder", "name one with --folder")
        return
    try:
        place = tempfile.mkdtemp(prefix=".xprof_py-doctor-", dir=folder)
    except OSError as error:
        yield Finding(
            "recorder", "missing", f"nothing can be written in {folder.resolve()}: {error.strerror}", "--folder"
        )
        return
    try:
        _native.recorder_start(os.path.join(place, "doctor.xpr"))
        with trace("doctor"):
            pass
        totals = _native.recorder_stop(5.0)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if totals["written"] != 1:
        yield Finding("recorder", "missing", f"a span was not recorded: {totals.get('error') or totals}")
        return
    clock = str(totals["clock"])
    if clock == "monotonic":
        source = _clock_source()
        yield Finding(
            "clock",
            "less",
            f"CLOCK_MONOTONIC, some 13 ns more a reading: the kernel's clock source is {source}",
            "boot a machine whose kernel trusts its counter (clock source tsc)"
            if platform.machine() == "x86_64"
            else "",
        )
    else:
        yield Finding("clock", "ok", f"{clock}, the counter that the kernel trusts")
    if totals["rings_in_memory"]:
        why = totals["rings_error"]
        yield Finding(
            "rings",
            "less",
            f"in plain memory: a process that is killed loses its last moments ({why})",
            "record into a folder on a local file system, or /dev/shm",
        )
    else:
        yield Finding("rings", "ok", "in a file beside the shard: a process that is killed loses no event")
    free = shutil.disk_usage(folder).free
    says = f"{free / 2**30:.1f} GiB free in {folder.resolve()}; a process takes at most 1 GiB unless told otherwise"
    if free < _BUDGET_BYTES:
        yield Finding("space", "less", says, "--budget-bytes, or another folder")
    else:
        yield Finding("space", "ok", says)


def _clock_source() -> str:
    with contextlib.suppress(OSError):
        text = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text(encoding="ascii")
        return text.strip()
    return "not known"


def stack_sampler() -> Iterator[Finding]:
    """Whether stacks can be sampled, and whether that takes Python's lock."""
    why = stacks.unavailable()
    if why:
        yield Finding("stacks", "missing", why, "a Python with its global lock")
        return
    takes = stacks.takes_gil()
    if takes:
        yield Finding("stacks", "less", f"each look takes Python's lock: {takes}", "CPython 3.11 to 3.13")
    else:
        yield Finding("stacks", "ok", "frames are read from memory, without Python's lock")


def startup() -> Iterator[Finding]:
    """What `xprof-py run` relies on."""
    other = other_sitecustomize(sys.path)
    says = "records Python programs as they are"
    yield Finding("run", "ok", says + (f"; {other} goes on being imported" if other else ""))


def version_of(package: str) -> str | None:
    """The installed version of a distribution, without importing it."""
    # Takes longer to import than all else that the commands share.
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def jax() -> Iterator[Finding]:
    """JAX by its metadata: importing it would take seconds, and asking for devices would take them."""
    version = version_of("jax")
    if version is None:
        yield Finding(
            "jax", "missing", "not installed: annotations and NVTX ranges are recorded, no XLA", "pip install jax"
        )
        return
    plugins = [f"{name} {found}" for name in _GPU_PLUGINS if (found := version_of(name))]
    backend = ", ".join(plugins) or ("libtpu" if version_of("libtpu") else "CPU only")
    platforms = os.environ.get("JAX_PLATFORMS")
    says = f"{version} with jaxlib {version_of('jaxlib')}: {backend}" + (
        f"; JAX_PLATFORMS={platforms}" if platforms else ""
    )
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < _OLDEST_JAX:
        yield Finding("jax", "less", f"{says}; tested are 0.10 and later", "pip install -U jax")
    else:
        yield Finding("jax", "ok", says)


def nvtx() -> Iterator[Finding]:
    """Our library, and whether the variable is another tool's."""
    library, holder = nvtx_library(), nvtx_held_by(os.environ)
    emitters = [name for name in ("nvtx", "cupy-cuda13x", "cupy-cuda12x", "torch") if version_of(name)]
    beside = f" ({', '.join(emitters)} installed)" if emitters else ""
    if not library.is_file():
        yield Finding("nvtx", "missing", f"{library} is not there", "install xprof_py again")
    elif holder:
        yield Finding(
            "nvtx", "less", f"{NVTX_VARIABLE} is {holder}: another tool takes the ranges", f"unset {NVTX_VARIABLE}"
        )
    elif os.environ.get(NVTX_VARIABLE):
        yield Finding("nvtx", "ok", f"{NVTX_VARIABLE} names our library: ranges become spans{beside}")
    else:
        yield Finding("nvtx", "ok", f"`xprof-py run` sets {NVTX_VARIABLE}: ranges become spans{beside}")


def cuda_driver_line() -> Iterator[Finding]:
    """libcuda, asked for its version alone."""
    found = cuda_driver()
    if found.version is None:
        yield Finding("driver", "missing", found.why, "install NVIDIA's driver, where there is a GPU of theirs")
    else:
        yield Finding("driver", "ok", f"libcuda.so.1 for CUDA {found.version}")


def cupti_line() -> Iterator[Finding]:
    """CUPTI's library, and whether it takes us; without a driver nothing is called in it."""
    found = cupti(os.environ, sys.path)
    if found.version is None:
        fix = "" if found.path and "driver" in found.why else "pip install nvidia-cuda-cupti"
        if os.environ.get(CUPTI_VARIABLE) and (CUPTI_VARIABLE in found.why or "loaded" in found.why):
            named = (
                find_cupti({}, sys.path) or "the path of libcupti.so.12 or .13 (pip install nvidia-cuda-cupti has it)"
            )
            says = found.why if CUPTI_VARIABLE in found.why else f"{CUPTI_VARIABLE} is {found.path}: {found.why}"
            yield Finding("cupti", "missing", says, f"unset {CUPTI_VARIABLE}, or set it to {named}")
            return
        yield Finding("cupti", "missing", f"{found.path + ': ' if found.path else ''}{found.why}", fix)
        return
    tried = subscription()
    if tried["why"]:
        yield Finding("cupti", "missing", f"{found.path}, version {found.version}: {tried['why']}", _fix(tried["why"]))
    else:
        shared = "shared with other tools" if tried["shared"] else "one tool at a time: not beside another profiler"
        yield Finding("cupti", "ok", f"{found.path}, version {found.version}, {shared}")


def _fix(why: str) -> str:
    """What helps where CUPTI does not take us, "" where that is not known."""
    if "held by" in why or "holds CUPTI" in why:
        return "end the other profiler, or record without it"
    if "privileges" in why:
        return "let everybody profile (NVreg_RestrictProfilingToAdminUsers=0), or run as root"
    if "this CUPTI" in why:
        return "pip install -U nvidia-cuda-cupti"
    return ""


def nvml_line() -> Iterator[Finding]:
    """NVML: power and heat of GPUs."""
    found = nvml(os.environ)
    if found.version is None:
        fix = "comes with NVIDIA's driver"
        if os.environ.get(NVML_VARIABLE):
            fix = f"unset {NVML_VARIABLE}, or set it to the path of {NVML}, which {fix}"
        yield Finding("nvml", "missing", found.why, fix)
    else:
        yield Finding("nvml", "ok", found.version)


def extras() -> Iterator[Finding]:
    """Optional packages and what needs them."""
    for name, packages, what, fix in _EXTRAS:
        versions = [version_of(package) for package in packages]
        if all(versions):
            yield Finding(
                name, "ok", f"{', '.join(f'{p} {v}' for p, v in zip(packages, versions, strict=True))}: {what}"
            )
        else:
            yield Finding(name, "missing", f"not installed: no {what}", fix)
