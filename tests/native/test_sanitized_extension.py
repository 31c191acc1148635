"""The extension itself, with the interpreter around it, under the address and undefined-behaviour sanitizers.

A part that takes seconds; `make sanitize` runs every test that is not live.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = [
    "tests/unit/test_annotations_spans.py",
    "tests/unit/test_annotations_decorated.py",
    "tests/unit/test_annotations_inputs.py",
    "tests/unit/test_annotations_recorder.py",
    "tests/unit/test_shard_columns.py",
    "tests/unit/test_event_columns.py",
    "tests/unit/test_chrome_json.py",
    "tests/unit/test_chrome_slices.py",
    "tests/unit/test_hlo_module.py",
    "tests/integration/test_open_spans.py",
]


CULPRIT = """
import subprocess, sys
CODE = "import ctypes; m = ctypes.create_string_buffer(8); ctypes.CDLL(None).memcmp(m, ctypes.byref(m, 0), 640)"
def test_reads_past_its_memory():
    subprocess.run([sys.executable, "-c", CODE], check=False)
"""


def sanitized(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "sanitized.py"), "--folder", str(folder), *arguments],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    return done


def test_the_tests_pass_and_no_sanitizer_speaks(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sanitized")
    done = sanitized(
        folder, "-q", "-p", "no:cacheprovider", "-m", "not hypothesis", "-k", "not cloudpickle and not limit", *PARTS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # A check of the check: a sanitizer that speaks in any process fails the run, though its tests pass.
    culprit = folder / "test_culprit.py"
    culprit.write_text(CULPRIT, encoding="utf-8")
    done = sanitized(folder, "-q", "-p", "no:cacheprovider", str(culprit))
    assert "1 passed" in done.stdout
    assert done.returncode == 1
    assert "heap-buffer-overflow" in done.stderr
