"""The C decoders under AddressSanitizer and UBSan: their own claims, and thousands of damaged files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from xspace_schema import HloProto, XSpace

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "native" / "decode").glob("*.c"))
FLAGS = ["-std=gnu11", "-g", "-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", f"-I{ROOT / 'native'}"]


def compiled(compiler: str, source: Path, sanitizers: str, program: Path) -> None:
    """Compile one program of native/tests with the decoders."""
    command = [compiler, *FLAGS, f"-fsanitize={sanitizers}", *map(str, SOURCES), str(source), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr


def run(*command: str) -> str:
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def small_space() -> bytes:
    """Every kind of field, in a few hundred bytes: damage hits structure more often than in a large file."""
    space = XSpace(hostnames=["host"], errors=["an error"], warnings=["a warning"])
    for name in ("/host:CPU", "/device:TPU:0"):
        plane = space.planes.add(id=1, name=name)
        for number in (1, 2, 2**40):
            plane.event_metadata[number].name = f"event {number}"
            plane.event_metadata[number].stats.add(metadata_id=1, bytes_value=b"metadata")
            plane.stat_metadata[number].name = f"stat {number}"
        plane.stats.add(metadata_id=1, str_value="text")
        line = plane.lines.add(id=-1, name="line", display_name="shown", timestamp_ns=5)
        for number in range(4):
            event = line.events.add(metadata_id=number, offset_ps=number * 1000, duration_ps=7)
            event.stats.add(metadata_id=1, ref_value=2)
            event.stats.add(metadata_id=2, double_value=0.5)
            event.stats.add(metadata_id=9, int64_value=-1)
        line.events.add(metadata_id=1, num_occurrences=3)
    return space.SerializeToString()


def say_everything(op: Any) -> None:
    """A shape of shapes, and every number and text that the decoder reads."""
    op.shape.element_type = 13
    for element_type in (11, 13):
        part = op.shape.tuple_shapes.add(element_type=element_type, dimensions=[3, 2**40], is_dynamic_dimension=[True])
        part.layout.memory_space, part.layout.element_size_in_bits = 5, 4
        part.tuple_shapes.add(element_type=21, dimensions=[7])
    op.literal.s32s.append(-1)
    op.literal.s64s.extend([1, 2])
    op.parameter_number, op.tuple_index, op.channel_id, op.fft_type = 1, 2, 3, 1
    op.dimensions.extend([0, 1])
    op.fft_length.append(8)
    op.window.dimensions.add(size=3, stride=2, padding_low=-1)
    op.window.dimensions.add()
    op.convolution_dimension_numbers.input_spatial_dimensions.extend([1, 2])
    op.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    op.precision_config.operand_precision.extend([0, 2])
    op.replica_groups.add(replica_ids=[0, 1])
    op.collective_device_list.replica_groups.add(replica_ids=[2])
    op.collective_device_list.iota_replica_group_list.num_devices_per_group = 4
    op.source_target_pairs.add(source=1)
    op.custom_call_target, op.comparison_direction, op.fusion_kind = "target", "LT", "kLoop"
    op.backend_config = b'{"known_trip_count":{"n":"10"}}'
    op.feature_group_count = op.batch_group_count = 2


def small_hlo() -> bytes:
    hlo = HloProto()
    module = hlo.hlo_module
    module.name, module.entry_computation_id = "jit_f", 2
    for number in (1, 2):
        computation = module.computations.add(id=number, name=f"computation.{number}", root_id=11)
        for instruction in (10, 11):
            op = computation.instructions.add(id=instruction, name=f"op.{instruction}", opcode="add")
            op.operand_ids.extend([10, 99])
            op.called_computation_ids.extend([1, 77])
            op.metadata.op_name, op.metadata.stack_frame_id = "jit(f)/add", 2
            say_everything(op)
    module.schedule.sequences[2].instruction_ids.extend([10, 11, 99])
    assignment = hlo.buffer_assignment
    assignment.logical_buffers.add(id=7, size=2**40, color=5).defined_at.instruction_id = 11
    assignment.logical_buffers.add(id=8, size=4).defined_at.shape_index.extend([1, 2**40])
    for number in range(2):
        allocation = assignment.buffer_allocations.add(
            index=number, size=64, parameter_number=3, color=1, maybe_live_out=True, is_constant=True, is_tuple=True
        )
        allocation.is_thread_local = allocation.is_entry_computation_parameter = bool(number)
        allocation.assigned.add(logical_buffer_id=7, offset=8, size=16)
    trace = assignment.heap_simulator_traces.add(whole_module_simulation=True, buffer_allocation_index=1)
    for kind in range(4):
        trace.events.add(kind=kind, buffer_id=7, share_with_canonical_id=8)
    module.device_assignment.replica_count = 8
    frames = module.stack_frame_index
    frames.file_names.append("train.py")
    frames.function_names.append("f")
    frames.file_locations.add(file_name_id=1, function_name_id=1, line=3)
    frames.stack_frames.add(file_location_id=1)
    frames.stack_frames.add(file_location_id=1, parent_frame_id=1)
    return hlo.SerializeToString()


def small_trace() -> bytes:
    """A trace in JSON with escapes, odd strings, numbers of all kinds, and every key that is read."""
    return (
        b'{"schemaVersion": 1, "distributedInfo": {"rank": 0, "pg_config": [{"ranks": [0, 1]}]}, "traceEvents": [\n'
        b'{"ph": "X", "cat": "kernel", "name": "k\\u00e9\\n<a, b>", "pid": 0, "tid": "stream 7", "ts": 1694128201.435, '
        b'"dur": 1e2, "args": {"correlation": 7, "External id": 18446744073709551615, "grid": [1, 2], "Seq": 1e400}},\n'
        b'{"ph": "s", "id": 7, "pid": 1, "tid": 2, "ts": 0, "cat": "ac2g", "name": "ac2g", "bp": "e"},\n'
        b'{"ph": "X", "name": "C:\\dir\x01", "args": {"Process Group Ranks": "[0]", "device": true, "bytes": null}},\n'
        b'{"ph": "X", "name": "ends\\", "pid": 1, "tid": -5, "ts": -1.5, "dur": NaN, "args": {"a": {"b": [{}, []]}}}\n'
        b'], "displayTimeUnit": "ms", "baseTimeNanoseconds": 1711964646000000000}'
    )


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


def test_fuzz_target(tmp_path: Path) -> None:
    compiler = shutil.which("clang")
    if compiler is None:
        pytest.skip("clang is not on PATH: with it and its libFuzzer runtime the fuzz target is built and run")
    program = tmp_path / "fuzz_decode"
    compiled(compiler, ROOT / "native" / "tests" / "fuzz_decode.c", "fuzzer,address,undefined", program)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "space").write_bytes(small_space())
    (corpus / "hlo").write_bytes(small_hlo())
    (corpus / "trace").write_bytes(small_trace())
    run(str(program), "-runs=50000", "-seed=1", "-rss_limit_mb=1024", str(corpus))
