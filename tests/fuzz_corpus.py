"""Inputs that fuzzing of the decoders begins with, all made by our own generators: small ones that hold every kind of
field, and whole traces of every layout.

    python tests/fuzz_corpus.py FOLDER      FOLDER/json, FOLDER/wire, FOLDER/xspace, FOLDER/hlo
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kineto_traces import Trace

from conformance.case_text import CaseError, read_case
from conformance.xspace_bytes import hlo_of, xspace_of
from xspace_schema import HloProto, XSpace

TESTS = Path(__file__).resolve().parent
TARGETS = ("json", "wire", "xspace", "hlo")
LARGEST_BYTES = 1 << 16
"""Larger inputs cost more executions than they show."""


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
        b'{"ph": "X", "name": "C:\\dir\x01", "args": {"Process Group Ranks": "[0]", "device": true, "bytes": null, '
        b'"Seq": 18446744073709551616}},\n'
        b'{"ph": "X", "name": "ends\\", "pid": 1, "tid": -5, "ts": -1.5, "dur": NaN, "args": {"a": {"b": [{}, []]}}}\n'
        b'], "displayTimeUnit": "ms", "baseTimeNanoseconds": 1711964646000000000}'
    )


def spaces() -> Iterator[tuple[str, bytes]]:
    """Every conformance case as an XSpace, and our own recordings of JAX on CPUs that are small enough."""
    yield "small", small_space()
    for file in sorted((TESTS / "conformance" / "cases").glob("*.case")):
        case = read_case(file)
        try:
            yield file.stem, xspace_of(case)
        except CaseError:
            continue  # it begins before its session or ends within a nanosecond: only a shard can hold it
    for file in sorted((TESTS / "data" / "jax_cpu").glob("*.pb.gz")):
        yield file.stem, gzip.decompress(file.read_bytes())


def modules() -> Iterator[tuple[str, bytes]]:
    """Every program of the conformance cases, and those in our own recordings."""
    yield "small", small_hlo()
    for file in sorted((TESTS / "conformance" / "cases").glob("*.case")):
        for program in read_case(file).programs:
            yield f"{file.stem}-{program.program_id}", hlo_of(program)
    for file in sorted((TESTS / "data" / "jax_cpu").glob("*.pb.gz")):
        space = XSpace.FromString(gzip.decompress(file.read_bytes()))
        for plane in space.planes:
            for number, metadata in plane.event_metadata.items():
                for stat in metadata.stats:
                    if plane.stat_metadata[stat.metadata_id].name == "Hlo Proto":
                        yield f"{file.stem}-{number}", stat.bytes_value


def traces() -> Iterator[tuple[str, bytes]]:
    """Steps, kernels, copies, a graph and a collective, spaced and compact; times with three digits and with none."""
    yield "small", small_trace()
    trace = Trace(1, 4)
    for number in range(3):
        base = 1000 * number
        trace.step(number, base, base + 1000).add("cpu_op", "aten::mm", base, base + 4.25, 1000, 1000)
        trace.launched((base + 5, base + 5.125), (base + 7, base + 9))
        trace.launched((base + 6, base + 7), (base + 9, base + 10), "Memcpy HtoD (Pageable -> Device)", bytes=4096)
        said = {"Collective name": "allreduce", "In msg nelems": 1024, "dtype": "Float", "Seq": number}
        trace.launched((base + 8, base + 9), (base + 20, base + 90), "ncclDevKernel_AllReduce", stream=20, **said)
    trace.top["distributedInfo"]["pg_config"] = [{"pg_name": "0", "ranks": [0, 1, 2, 3]}]
    yield "spaced", trace.text().encode()
    yield "compact", trace.text(separators=(",", ":")).encode()
    yield "indented", trace.text(indent=1).encode()
    yield "cut", trace.text()[:-40].encode()
    yield "events alone", trace.text().split('"traceEvents": ')[1][:-1].encode()


def write_corpus(folder: Path) -> dict[str, int]:
    """Write the inputs of every target below ``folder``; how many each has."""
    inputs = {"json": list(traces()), "xspace": list(spaces()), "hlo": list(modules())}
    inputs["wire"] = [("space", small_space()), ("hlo", small_hlo())]
    counts = {}
    for target in TARGETS:
        (folder / target).mkdir(parents=True, exist_ok=True)
        small = [(name, data) for name, data in inputs[target] if len(data) <= LARGEST_BYTES]
        for name, data in small:
            (folder / target / name).write_bytes(data)
        counts[target] = len(small)
    return counts


if __name__ == "__main__":
    print(write_corpus(Path(sys.argv[1])))
