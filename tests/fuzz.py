"""Fuzzing of the decoders, for a stated time: libFuzzer where clang has it, else random damage to the same inputs.

    python tests/fuzz.py [--seconds 60] [--folder build/fuzz] [--jobs 1]

A target per decoder (native/tests/fuzz_decode.c), each for its share of the time, under the address and
undefined-behaviour sanitizers. libFuzzer keeps what it found worth keeping in FOLDER/found, so that a later run goes on
from there, and a crashing input in FOLDER/crashes: each becomes a test. Ends with 1 where anything was found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fuzz_corpus import TARGETS, write_corpus

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(file for room in ("columns", "decode") for file in (ROOT / "native" / room).glob("*.c"))
FLAGS = [
    "-std=gnu11",
    "-g",
    "-O1",
    "-fno-omit-frame-pointer",
    "-fno-sanitize-recover=all",
    f"-I{ROOT / 'native'}",
    f"-I{ROOT / 'native' / 'include'}",
]
COPIES = 2000
"""Damaged copies of each file in one call of the random driver."""


@dataclass(frozen=True)
class Fuzzed:
    """``output`` is what the program said, where ``found`` something."""

    target: str
    executions: int
    seconds: float
    found: bool
    output: str


def compiled(compiler: str, source: str, sanitizers: str, program: Path) -> Path:
    """Compile one program of native/tests with the decoders. Raises RuntimeError with what the compiler said."""
    files = [*map(str, SOURCES), str(ROOT / "native" / "tests" / source)]
    command = [compiler, *FLAGS, f"-fsanitize={sanitizers}", *files, "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if built.returncode:
        raise RuntimeError(built.stderr)
    return program


def has_libfuzzer(compiler: str | None, folder: Path) -> bool:
    """Whether this compiler is there and brings libFuzzer: a clang without its runtime does not."""
    if compiler is None:
        return False
    source = folder / "empty.c"
    source.write_text("int LLVMFuzzerTestOneInput(const char *b, unsigned long n) { return !b && n ? -1 : 0; }\n")
    command = [compiler, "-fsanitize=fuzzer,address,undefined", str(source), "-o", str(folder / "empty")]
    return subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == 0


def with_libfuzzer(program: Path, target: str, folder: Path, seconds: float, seed: int) -> Fuzzed:
    """Run the target of one decoder on its inputs below ``folder``."""
    found, crashes = folder / "found" / target, folder / "crashes" / target
    for made in (found, crashes):
        made.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={max(1, round(seconds))}", f"-seed={seed}", "-rss_limit_mb=1024", "-timeout=10"]
    command = [str(program), *options, "-print_final_stats=1", f"-artifact_prefix={crashes}/", str(found)]
    begun = time.monotonic()
    done = subprocess.run(
        [*command, str(folder / "corpus" / target)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env={**os.environ, "XPR_FUZZ_TARGET": target},
    )
    executions = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    count = int(executions[1]) if executions else 0
    return Fuzzed(target, count, time.monotonic() - begun, done.returncode != 0, done.stdout + done.stderr)


def at_random(compiler: str, folder: Path, seconds: float, seed: int) -> Fuzzed:
    """Run every decoder on damaged copies of all inputs, with one seed after the other until the time is over."""
    program = compiled(compiler, "test_decode.c", "address,undefined", folder / "test_decode")
    files = sorted(str(file) for file in (folder / "corpus").glob("*/*") if file.stat().st_size < 1 << 13)
    begun, count = time.monotonic(), 0
    while count == 0 or time.monotonic() - begun < seconds:
        for file in files:
            command = [str(program), "--mutate", str(COPIES), str(seed), file]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            count += COPIES + 1
            if done.returncode:
                said = f"{' '.join(command)}\n{done.stdout}{done.stderr}"
                return Fuzzed("all", count, time.monotonic() - begun, True, said)
            if time.monotonic() - begun >= seconds:
                break
        seed += 1
    return Fuzzed("all", count, time.monotonic() - begun, False, "")


def fuzz(folder: Path, seconds: float, *, jobs: int = 1, seed: int = 1) -> list[Fuzzed]:
    """Fuzz for ``seconds`` in all; ``jobs`` targets at once. Raises RuntimeError where there is no compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    write_corpus(folder / "corpus")
    clang, other = shutil.which("clang"), shutil.which(os.environ.get("CC", "cc"))
    if clang is not None and has_libfuzzer(clang, folder):
        program = compiled(clang, "fuzz_decode.c", "fuzzer,address,undefined", folder / "fuzz_decode")
        share = seconds * jobs / len(TARGETS)
        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(lambda target: with_libfuzzer(program, target, folder, share, seed), TARGETS))
    if other is None:
        raise RuntimeError("neither clang nor another C compiler is there")
    print("clang with libFuzzer is not there: random damage instead", file=sys.stderr)
    return [at_random(other, folder, seconds, seed)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    done = fuzz(asked.folder, asked.seconds, jobs=asked.jobs, seed=asked.seed)
    for one in done:
        said = "FAILED" if one.found else "nothing found"
        print(f"{one.target}: {one.executions} inputs in {one.seconds:.0f} s, {said}")
        if one.found:
            print(one.output[-4000:], file=sys.stderr)
    return int(any(one.found for one in done))


if __name__ == "__main__":
    sys.exit(main())
