"""Shapes, attributes and costs of the HLO in real traces: against protobuf, and against what TPU traces state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xprof_py.postprocess.hlo.cost import CostModel
from xprof_py.postprocess.hlo.module import read_programs
from xprof_py.postprocess.hlo.shapes import Instructions
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.xspace import read_xspace
from xprof_py.postprocess.schema import ArgKind
from xspace_schema import HloProto

TraceFiles = Callable[[str], list[Path]]

pytestmark = pytest.mark.real_traces

TUPLE = 13


def arrays_of(shape: Any, element: int = -1) -> list[tuple[int, list[int], int]]:
    """(element, dimensions, memory space) of every array in a shape."""
    if shape.element_type != TUPLE:
        return [(element, list(shape.dimensions), shape.layout.memory_space)]
    found = []
    for number, part in enumerate(shape.tuple_shapes):
        found += arrays_of(part, number if element < 0 else element)
    return found


def test_shapes_and_attributes_equal_protobuf(xspace_file: Path) -> None:
    if "corrupt" in str(xspace_file):
        pytest.skip("damaged on purpose and never parses: test_xspace_truth holds its error")
    profile = read_xspace(xspace_file)
    tables = read_programs(profile["programs"])
    see = Instructions(tables)
    row = 0
    for hlo in profile["programs"]["hlo"].to_pylist():
        message = HloProto()
        message.ParseFromString(hlo)
        for computation in message.hlo_module.computations:
            for instruction in computation.instructions:
                found = [(a.element, list(a.dimensions or ()), a.space) for a in see.arrays(row)]
                assert found == arrays_of(instruction.shape), instruction.name
                assert see.value(row, "parameter_number") == instruction.parameter_number
                assert see.value(row, "tuple_index") == instruction.tuple_index
                assert see.values(row, "dimension") == list(instruction.dimensions)
                numbers = instruction.dot_dimension_numbers
                assert see.values(row, "lhs_contracting") == list(numbers.lhs_contracting_dimensions)
                assert see.values(row, "window_size") == [d.size for d in instruction.window.dimensions if d.size]
                assert see.values(row, "replica_id") == [
                    i
                    for groups in (instruction.replica_groups, instruction.collective_device_list.replica_groups)
                    for group in groups
                    for i in group.replica_ids
                ]
                assert see.text(row, "custom_call_target") == instruction.custom_call_target
                assert see.text(row, "backend_config").encode() == instruction.backend_config
                row += 1
    assert row == see.count


def test_no_cost_of_these_programs_is_unknown(xspace_file: Path) -> None:
    if "corrupt" in str(xspace_file):
        pytest.skip("damaged on purpose and never parses: test_xspace_truth holds its error")
    model = CostModel(Instructions(read_programs(read_xspace(xspace_file)["programs"])))
    for program, computation in model.instructions.entries.items():
        total = model.of_computation(computation)
        assert (total.unknown_flops, total.unknown_bytes) == (0, 0), program


def stated(profile: Profile) -> dict[tuple[int, str], dict[str, float]]:
    """(program id, instruction) -> the numbers that the trace states of it."""
    args = profile["metadata_args"]
    found: dict[int, dict[str, float]] = {}
    for owner, key, kind, value in zip(
        *(args[name].to_pylist() for name in ("event_metadata", "key", "kind", "value")), strict=True
    ):
        number = float(np.int64(value).view(np.float64)) if kind == ArgKind.DOUBLE else value
        found.setdefault(owner, {})[key] = number
    names = profile["event_metadata"]["display_name"].to_pylist()
    return {(int(facts["program_id"]), names[owner]): facts for owner, facts in found.items() if "flops" in facts}


def test_costs_are_those_that_a_tpu_trace_states(trace_files: TraceFiles) -> None:
    (file,) = trace_files("xspace/tpu_inference_2")
    profile = read_xspace(file)
    tables = read_programs(profile["programs"])
    model = CostModel(Instructions(tables))
    program_ids = profile["programs"]["program_id"].to_pylist()
    flops = compared = 0
    facts_of = stated(profile)
    for row, (program, name) in enumerate(
        zip(tables["hlo_ops"]["program"].to_pylist(), tables["hlo_ops"]["name"].to_pylist(), strict=True)
    ):
        facts = facts_of.get((program_ids[program], name))
        if facts is None:
            continue
        cost = model.of(row)
        assert cost.flops is not None
        assert cost.flops.total + cost.flops.transcendentals == pytest.approx(facts["flops"], rel=0.001)
        flops += cost.flops.total > 0
        # The trace counts a copy once at its start and once at its end; it moves its bytes once.
        if not model.instructions.opcode(row).endswith("-done"):
            assert cost.bytes == pytest.approx(facts["bytes_accessed"], rel=0.001)
            compared += 1
    assert flops
    assert compared
