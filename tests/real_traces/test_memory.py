"""Memory in real traces: heaps against XLA's own simulation, allocator events against the programs they served."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow.compute as pc
import pytest
from heap_truth import peaks_by_lives, simulated_peaks

from xprof_py.postprocess.analyses import memory_timeline, program_memory
from xprof_py.postprocess.hlo.liveness import live_ranges
from xprof_py.postprocess.hlo.module import read_programs
from xprof_py.postprocess.hlo.shapes import Instructions
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.xspace import read_xspace

TraceFiles = Callable[[str], list[Path]]

pytestmark = pytest.mark.real_traces

INDEX_TABLES = 64
"""Bytes by which tables of tuples may be taken to be alive longer than they are."""


def profile_of(file: Path) -> Profile:
    profile = read_xspace(file)
    programs = read_programs(profile["programs"])
    del programs["diagnostics"]
    return profile.with_tables(**programs)


def test_peaks_of_heaps_are_those_of_xlas_simulation(xspace_file: Path) -> None:
    if "corrupt" in str(xspace_file):
        pytest.skip("damaged on purpose and never parses: test_xspace_truth holds its error")
    profile = profile_of(xspace_file)
    ours, xla = peaks_by_lives(profile, live_ranges(profile, Instructions(profile))), simulated_peaks(profile)
    assert ours.keys() == xla.keys()
    for trace, peak in xla.items():
        assert peak <= ours[trace] <= peak + INDEX_TABLES


def test_every_program_says_where_its_values_are(xspace_file: Path) -> None:
    """Of jax 0.8 to 0.10 on CPU, AMD and TPU: none lacks its buffer assignment."""
    if "corrupt" in str(xspace_file):
        pytest.skip("damaged on purpose and never parses: test_xspace_truth holds its error")
    profile = profile_of(xspace_file)
    with_hlo = {row for row, hlo in enumerate(profile["programs"]["hlo"]) if hlo.is_valid}
    assert set(profile["hlo_allocations"]["program"].to_pylist()) == with_hlo


def test_a_gpus_allocator_hands_out_what_its_program_reserves(trace_files: TraceFiles) -> None:
    (file,) = trace_files("xspace/amd_jax08_conv")
    profile = profile_of(file)
    programs = program_memory.finish(program_memory.partial(profile))["program_memory"].to_pylist()
    conv = programs[0]
    assert (conv["program"], conv["op"]) == ("jit_forward_3d_conv", "cudnn-conv.1")
    assert conv["source"].endswith("generate_conv_trace.py:23")
    assert (conv["output_bytes"], conv["temporary_bytes"]) == (572026880, 579072256)
    finished = memory_timeline.finish(memory_timeline.partial(profile))
    timeline = finished["memory_timeline"]
    allocated = timeline.filter(pc.greater(timeline["changed_bytes"], 0))["changed_bytes"].to_pylist()
    assert {conv["output_bytes"], conv["temporary_bytes"]} <= set(allocated)
    peaks = {row["allocator"]: row["peak_bytes"] for row in finished["memory_allocators"].to_pylist()}
    assert (peaks["GPU_0_bfc"], peaks["GPU_1_bfc"]) == (1730171904, 1732169984)


def test_an_allocators_level_is_the_sum_of_its_changes(trace_files: TraceFiles) -> None:
    for folder in ("xspace/amd_jax08_conv", "xspace/amd_jax08_gemm", "xspace/amd_jax_conv_legacy"):
        (file,) = trace_files(folder)
        timeline = memory_timeline.finish(memory_timeline.partial(profile_of(file)))["memory_timeline"]
        for name in set(timeline["device"].to_pylist()):
            own = timeline.filter(pc.equal(timeline["device"], name)).to_pylist()
            assert own
            for before, after in pairwise(own):
                assert after["bytes"] - before["bytes"] == after["changed_bytes"]


def test_a_tpu_program_with_its_arguments_in_the_hosts_memory(trace_files: TraceFiles) -> None:
    (file,) = trace_files("xspace/tpu_inference_2/")
    row = program_memory.finish(program_memory.partial(profile_of(file)))["program_memory"].to_pylist()[0]
    assert (row["program"], row["op"]) == ("jit_f", "broadcast_add_fusion.2")
    assert (row["host_bytes"], row["live_temporary_bytes"]) == (3 * 5 * 2**30, 4 * 5 * 2**30 + 64)
