"""The collector's own declarations of CUPTI's records, against whatever NVIDIA headers are installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORDS = {
    "KERNEL": "Kernel",
    "MEMCPY": "Memcpy",
    "MEMCPY_PEER": "MemcpyPtoP",
    "MEMSET": "Memset",
    "SYNC": "Synchronization",
    "OVERHEAD": "Overhead",
    "GRAPH": "GraphTrace",
    "DEVICE": "Device",
}


def header_folders() -> list[Path]:
    """Include folders with CUPTI's headers: of CUDA toolkits and of NVIDIA's wheels on this interpreter's path."""
    places = [Path("/usr/local").glob("cuda*/include"), Path("/usr/local").glob("cuda*/extras/CUPTI/include")]
    for entry in map(Path, sys.path):
        places += [entry.glob("nvidia/cu1*/include"), entry.glob("nvidia/cuda_cupti/include")]
    found = {folder.resolve() for place in places for folder in place if (folder / "cupti_activity.h").is_file()}
    return sorted(found)


FOLDERS = header_folders()


@pytest.mark.parametrize("folder", FOLDERS or [None], ids=lambda folder: str(folder))
def test_our_records_lie_as_nvidia_s_do(folder: Path | None) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on PATH: install gcc")
    if folder is None:
        pytest.skip("no CUPTI headers: install a CUDA toolkit, or pip install nvidia-cuda-cupti nvidia-cuda-runtime")
    cuda = [place for place in FOLDERS if (place / "cuda.h").is_file()]
    if not cuda:
        pytest.skip("CUPTI's headers need cuda.h: pip install nvidia-cuda-runtime")
    text = (folder / "cupti_activity.h").read_text(encoding="utf-8", errors="replace")
    newest = []
    for ours, theirs in RECORDS.items():
        versions = re.findall(rf"}}\s*CUpti_Activity{theirs}(\d*)\s*;", text)
        newest.append(f"-D{ours}=CUpti_Activity{theirs}{max(versions, key=lambda v: int(v or 1))}")
    includes = ["-I", str(ROOT / "native"), "-isystem", str(folder), "-isystem", str(cuda[0])]
    command = [compiler, "-std=gnu11", "-fsyntax-only", *includes, *newest, str(HERE / "cupti_abi_check.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
