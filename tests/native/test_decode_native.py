"""The C decoders under AddressSanitizer and UBSan: their own claims, and thousands of damaged files.

XPROF_PY_FUZZ_SECONDS lets the fuzz targets run longer than a few seconds; `make fuzz` runs them alone.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from fuzz import TARGETS, at_random, fuzz
from fuzz_corpus import small_hlo, small_space, small_trace, write_corpus


def run(*command: str) -> str:
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_claims(build: Path) -> None:
    assert run(str(build / "test_decode")) == "ok\n"


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_files_are_read_or_refused(build: Path, tmp_path: Path, seed: int) -> None:
    files = []
    for name, data in (("space", small_space()), ("hlo", small_hlo()), ("trace", small_trace())):
        file = tmp_path / name
        file.write_bytes(data)
        files.append(str(file))
    assert run(str(build / "test_decode"), "--mutate", "8000", str(seed), *files) == "3 files, 8000 copies each\n"


def test_fuzz_targets(tmp_path: Path) -> None:
    """libFuzzer's where clang has it, else the random driver, from the corpus that our own generators make."""
    done = fuzz(tmp_path, float(os.environ.get("XPROF_PY_FUZZ_SECONDS", "4")))
    assert {one.target for one in done} in ({"all"}, set(TARGETS))
    assert [one.output for one in done if one.found] == []
    assert all(one.executions > 0 for one in done)


def test_the_corpus_holds_every_layout(tmp_path: Path) -> None:
    counts = write_corpus(tmp_path)
    assert counts["json"] >= 6
    assert counts["wire"] >= 2
    assert counts["xspace"] >= 90
    assert counts["hlo"] >= 200


def test_the_random_driver_says_what_it_found(tmp_path: Path) -> None:
    """A decoder that refuses is no finding; a program that aborts is one, with its file and seed."""
    (tmp_path / "corpus" / "json").mkdir(parents=True)
    (tmp_path / "corpus" / "json" / "text").write_bytes(b"no trace")
    broken = tmp_path / "cc"
    broken.write_text(
        '#!/bin/sh\nfor last; do :; done\nprintf \'#!/bin/sh\\necho planted; exit 7\\n\' > "$last"; chmod +x "$last"\n'
    )
    broken.chmod(0o755)
    found = at_random(str(broken), tmp_path, 0, 3)
    assert found.found
    assert "planted" in found.output
    assert "--mutate 2000 3" in found.output
