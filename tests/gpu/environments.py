"""Makes the environments in which programs use a GPU, and says what they lack: environments.py FOLDER [BASE_PYTHON].

    FOLDER/jax     JAX for CUDA 13, CuPy, nvtx: the newest CUPTI, which their wheels bring
    FOLDER/torch   PyTorch, CuPy, nvtx: the CUPTI that PyTorch pins
    FOLDER/environments.json   {"jax": {"python": ..., "packages": {name: version}, "missing": {name: why}}, ...}

What BASE_PYTHON (this interpreter, if none is named) has installed is taken over and not installed again, so that a
machine without a network tests what it has. What cannot be had is named, and the tests that need it say so. Where there
is no GPU nothing is made.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WANTED = {
    "jax": {"jax": "jax[cuda13]>=0.10", "cupy": "cupy-cuda13x[ctk]", "nvtx": "nvtx"},
    "torch": {"torch": "torch", "cupy": "cupy-cuda13x[ctk]", "nvtx": "nvtx"},
}
"""Module: what to install for it."""
_FIND = """
import importlib.util, json, sys
from importlib import metadata
of = metadata.packages_distributions()
found = {n: metadata.version(of[n][0]) for n in sys.argv[1:] if importlib.util.find_spec(n) is not None and n in of}
if "jax" in found and not any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13)):
    del found["jax"]
print(json.dumps(found))
"""
_PATHS = "import json, sys; print(json.dumps([path for path in sys.path if path.endswith('-packages')]))"


def no_gpu() -> str:
    """Why no program can use a GPU here, "" where one can. Brings the driver up: for a process that only asks."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        result, count = driver.cuInit(0), ctypes.c_int(0)
        result = result or driver.cuDeviceGetCount(ctypes.byref(count))
    except (OSError, AttributeError) as error:
        return f"no NVIDIA GPU here: {error}"
    if result:
        return f"no NVIDIA GPU here: the driver does not start, error {result}"
    return "" if count.value else "no NVIDIA GPU here: the driver sees none"


def run(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environ})


def make(folder: Path, base_python: str, wanted: dict[str, str]) -> dict[str, Any]:
    """One environment: its interpreter, what it has, and why it lacks the rest."""
    python = folder / "bin" / "python"
    if not python.exists():
        # Of pip, too, what is there is taken over: an environment without one is made ten times as fast.
        pip = ["--without-pip"] if run([base_python, "-c", "import pip"]).returncode == 0 else []
        made = run([base_python, "-m", "venv", *pip, os.fspath(folder)])
        if made.returncode:
            return {"python": "", "packages": {}, "missing": dict.fromkeys(wanted, last_line(made))}
    # An environment made from another one inherits nothing of it by itself.
    inherited = json.loads(run([base_python, "-I", "-c", _PATHS]).stdout)
    (own,) = json.loads(run([os.fspath(python), "-I", "-c", _PATHS]).stdout)[:1]
    Path(own, "inherited.pth").write_text("\n".join(inherited) + "\n", encoding="utf-8")
    missing = {}
    install = [os.fspath(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    ours = run([*install, "--no-deps", "--force-reinstall", os.fspath(ROOT)])
    if ours.returncode:
        missing["xprof_py"] = last_line(ours)
    for module, package in wanted.items():
        if module in found_in(python, [module]):
            continue
        print(f"installing {package} into {folder.name}", file=sys.stderr)
        done = run([*install, package])
        if done.returncode or module not in found_in(python, [module]):
            missing[module] = last_line(done)
    return {"python": os.fspath(python), "packages": found_in(python, [*wanted, "xprof_py"]), "missing": missing}


def found_in(python: Path, modules: list[str]) -> dict[str, str]:
    done = run([os.fspath(python), "-c", _FIND, *modules], PYTHONSAFEPATH="1")
    found: dict[str, str] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip() or done.stdout.strip() or "pip said nothing").splitlines()[-1]


def main() -> None:
    folder = Path(sys.argv[1])
    base_python = sys.argv[2] if len(sys.argv) > 2 else sys.executable
    # In a process of its own: what asks the driver has it loaded.
    why = run([sys.executable, "-c", f"import sys; sys.path.insert(0, {os.fspath(ROOT / 'tests')!r}); "
               "from gpu.environments import no_gpu; print(no_gpu())"]).stdout.strip()  # fmt: skip
    if why:
        print(f"{why}: no environments are made", file=sys.stderr)
        return
    folder.mkdir(parents=True, exist_ok=True)
    made = {name: make(folder / name, base_python, wanted) for name, wanted in WANTED.items()}
    (folder / "environments.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    for name, environment in made.items():
        for module, reason in environment["missing"].items():
            print(f"{name}: no {module}: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
