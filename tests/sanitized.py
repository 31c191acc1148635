"""Python tests with the extension built under the address and undefined-behaviour sanitizers.

    python tests/sanitized.py [--folder build/sanitized] [--jobs 2] [PYTEST ARGUMENTS]

Builds the extension into FOLDER, leaves the installed one alone, and runs pytest with it: every program that the tests
start has it too. Ends with pytest's code; with 1 where a sanitizer spoke, in whichever process; with 3 where it cannot
be done here, and says why. Leaks are not looked for: the interpreter keeps what it likes until it ends.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CANNOT = 3
"""Exit code: no compiler, or one without sanitizers."""

# The editable install's own finder stands in front of every path, so this one stands in front of it.
FINDER = """
import importlib.util, pathlib, sys

class SanitizedExtension:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "xprof_py._native":
            return None
        (file,) = (pathlib.Path(__file__).parent / "xprof_py").glob("_native*.so")
        return importlib.util.spec_from_file_location(name, file)

sys.meta_path.insert(0, SanitizedExtension)
"""


class CannotBuildError(Exception):
    """Why there are no sanitizers here."""


def runtime(compiler: str, library: str) -> str:
    """The compiler's own shared library. Raises CannotBuildError where it has none."""
    found = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    path = found.stdout.strip()
    if not os.path.isabs(path):
        raise CannotBuildError(f"{compiler} has no {library}: install it")
    return path


def build(folder: Path, jobs: int) -> Path:
    """The folder with the extension, its headers and the finder.

    Raises CannotBuildError where it cannot be had here, RuntimeError with what the compiler said where it fails.
    """
    beside_python = Path(sys.executable).parent
    cmake = shutil.which("cmake", path=f"{beside_python}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if cmake is None:
        raise CannotBuildError("cmake is missing: pip install cmake")
    options = [
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_C_COMPILER=gcc",
        "-DCMAKE_BUILD_TYPE=None",
        "-DCMAKE_C_FLAGS=-O0",
        "-DXPROF_PY_SANITIZE=address,undefined",
    ]
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(folder / "build"), *options],
        [cmake, "--build", str(folder / "build"), "--parallel", str(jobs)],
        [cmake, "--install", str(folder / "build"), "--prefix", str(folder / "site")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
    (folder / "site" / "sitecustomize.py").write_text(FINDER, encoding="utf-8")
    return folder / "site"


def environment(site: Path, reports: Path) -> dict[str, str]:
    """What makes a program use the extension in ``site``; sanitizers write to ``reports``, whoever has stderr.

    libstdc++ comes along because the address sanitizer looks for its functions only as the process begins, and JAX
    throws exceptions. PYTHONMALLOC: each object is memory of its own, whose bounds are watched.
    """
    preloaded = [runtime("gcc", "libasan.so"), runtime("gcc", "libstdc++.so")]
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(preloaded),
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join(paths),
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={reports / 'address'}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={reports / 'undefined'}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "sanitized")
    parser.add_argument("--jobs", type=int, default=2)
    arguments, for_pytest = parser.parse_known_args()
    folder = arguments.folder.resolve()
    if shutil.which("gcc") is None:
        print("gcc is not on PATH: install it", file=sys.stderr)
        return CANNOT
    try:
        site = build(folder, arguments.jobs)
        reports = folder / "reports"
        shutil.rmtree(reports, ignore_errors=True)
        reports.mkdir()
        variables = environment(site, reports)
    except CannotBuildError as reason:
        print(reason, file=sys.stderr)
        return CANNOT
    # Its own word, so that a run with the wrong extension cannot pass for one with sanitizers.
    check = "from xprof_py import _native; print(_native.__file__)"
    asked = subprocess.run([sys.executable, "-c", check], env=variables, capture_output=True, text=True, check=False)
    if not asked.stdout.startswith(str(site)):
        print(f"not the sanitized extension: {asked.stdout}{asked.stderr}", file=sys.stderr)
        return 1
    done = subprocess.run([sys.executable, "-m", "pytest", *for_pytest], env=variables, cwd=ROOT, check=False)
    found = sorted(reports.iterdir())
    for report in found:
        print(f"--- {report}\n{report.read_text(errors='replace')}", file=sys.stderr)
    return 1 if found else done.returncode


if __name__ == "__main__":
    sys.exit(main())
