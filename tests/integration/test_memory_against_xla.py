"""Memory of compiled programs beside ``compiled.memory_analysis()`` and XLA's heap simulation; what advice saves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from heap_truth import peaks_by_lives, simulated_peaks

from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import program_memory
from xprof_py.postprocess.hlo.liveness import live_ranges
from xprof_py.postprocess.hlo.module import read_programs
from xprof_py.postprocess.hlo.shapes import Instructions
from xprof_py.postprocess.profile import Profile

PROGRAM = Path(__file__).resolve().parents[1] / "workloads" / "memory_programs.py"
NAMES = (
    "gradients",
    "train",
    "train_donated",
    "scanned",
    "scanned_gradients",
    "scanned_gradients_remat",
    "branched",
    "increment",
    "increment_donated",
    "passed_through",
)
MiB = 2**20


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return folder


def profile(folder: Path, name: str) -> Profile:
    hlo = pa.array([(folder / f"{name}.hlo").read_bytes()], pa.large_binary())
    programs = schema.table("programs", {"program_id": [1], "name": [name], "hlo": hlo})
    tables = read_programs(programs)
    assert tables["diagnostics"].num_rows == 0
    return Profile("host0", 0, 0, 1, {"programs": programs, **tables})


def memory(folder: Path, name: str) -> dict[str, Any]:
    (row,) = program_memory.partial(profile(folder, name)).to_pylist()
    return dict(row)


def saved(row: dict[str, Any], kind: str) -> int:
    return sum(advice["saves_bytes"] for advice in row["advice"] if advice["kind"] == kind)


@pytest.mark.parametrize("name", NAMES)
def test_arguments_outputs_aliases_and_temporaries_are_those_of_xla(compiled: Path, name: str) -> None:
    xla: dict[str, int] = json.loads((compiled / "memory.json").read_text())[name]
    ours = memory(compiled, name)
    assert ours["argument_bytes"] + ours["donated_bytes"] == xla["argument"]
    assert ours["output_bytes"] + ours["donated_bytes"] == xla["output"]
    assert ours["donated_bytes"] == xla["alias"]
    assert ours["temporary_bytes"] == xla["temp"]
    assert ours["held_bytes"] - ours["constant_bytes"] == xla["argument"] + xla["output"] + xla["temp"] - xla["alias"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_alive_at_the_peak_fits_the_block_and_is_listed_whole(compiled: Path, name: str) -> None:
    row = memory(compiled, name)
    assert 0 <= row["live_temporary_bytes"] <= row["temporary_bytes"]
    listed = sum(piece["bytes"] for piece in row["alive"]) + row["alive_left_out_bytes"]
    assert listed == row["live_bytes"]


@pytest.mark.parametrize("name", NAMES)
def test_peaks_of_the_heaps_are_those_of_xlas_simulation(compiled: Path, name: str) -> None:
    one = profile(compiled, name)
    assert peaks_by_lives(one, live_ranges(one, Instructions(one))) == simulated_peaks(one)


def test_donating_an_argument_saves_what_was_promised(compiled: Path) -> None:
    before, after = memory(compiled, "increment"), memory(compiled, "increment_donated")
    assert saved(before, "donate") == before["held_bytes"] - after["held_bytes"] == MiB // 2
    assert saved(after, "donate") == 0


def test_donating_the_parameters_of_a_training_saves_most_of_what_was_promised(compiled: Path) -> None:
    """XLA kept temporaries in the outputs, and needs room for those now: the promise is what is saved at most."""
    before, after = memory(compiled, "train"), memory(compiled, "train_donated")
    promised, measured = saved(before, "donate"), before["held_bytes"] - after["held_bytes"]
    assert promised == 6 * 256 * 256 * 4
    assert 0.8 * promised <= measured <= promised


def test_the_activations_that_wait_for_their_gradient_are_named(compiled: Path) -> None:
    """Each of six layers keeps 512 KiB; at the peak the last two are in use."""
    idle = [advice for advice in memory(compiled, "gradients")["advice"] if advice["kind"] == "idle"]
    assert {(advice["bytes"], advice["saves_bytes"]) for advice in idle} == {(MiB // 2, MiB // 2)}
    assert all(advice["op_name"].endswith("tanh") for advice in idle)
    assert 3 <= len(idle) <= 5


def test_recomputing_the_body_of_a_scan_saves_what_was_promised(compiled: Path) -> None:
    before, after = memory(compiled, "scanned_gradients"), memory(compiled, "scanned_gradients_remat")
    promised = saved(before, "stacked")
    assert promised == 2 * 5 * MiB  # of three stacks one stays: the loop's state
    assert before["temporary_bytes"] - after["temporary_bytes"] == pytest.approx(promised, rel=0.001)
    assert saved(after, "stacked") == 0


def test_the_stacked_values_of_a_scan_are_what_is_alive(compiled: Path) -> None:
    row = memory(compiled, "scanned_gradients")
    largest = row["alive"][0]
    assert (largest["kind"], largest["shape"], largest["bytes"]) == ("temporary", "f32[10,512,256]", 5 * MiB)
