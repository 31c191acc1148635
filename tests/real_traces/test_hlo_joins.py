"""Every thunk of a JAX CPU trace finds its HLO instruction, and nearly all op time its line of source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from xprof_py.postprocess import schema
from xprof_py.postprocess.hlo.module import read_programs
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.xspace import read_xspace
from xspace_schema import HloProto

TraceFiles = Callable[[str], list[Path]]

pytestmark = pytest.mark.real_traces


def thunks(profile: Profile, hlo: dict[str, pa.Table]) -> list[tuple[int, int | None]]:
    """(event, its row of hlo_ops or None) of every event with the arguments hlo_op and program_id."""
    args, texts = profile["args"], profile["texts"]["text"].to_pylist()

    def values(key: str) -> dict[int, int]:
        chosen = args.filter(pc.equal(args["key"], key))
        return dict(zip(chosen["event"].to_pylist(), chosen["value"].to_pylist(), strict=True))

    program_row = {number: row for row, number in enumerate(profile["programs"]["program_id"].to_pylist())}
    ops = hlo["hlo_ops"]
    op_row = {key: row for row, key in enumerate(zip(ops["program"].to_pylist(), ops["name"].to_pylist(), strict=True))}
    program_ids = values("program_id")
    return [
        (event, op_row.get((program_row.get(program_ids[event]), texts[name])))
        for event, name in values("hlo_op").items()
        if event in program_ids
    ]


def test_every_thunk_finds_its_instruction(jax_cpu_file: Path) -> None:
    profile = read_xspace(jax_cpu_file)
    hlo = read_programs(profile["programs"])
    assert hlo["diagnostics"].num_rows == 0
    found = thunks(profile, hlo)
    assert found
    assert all(op is not None for _, op in found)


def test_op_time_has_a_source_line(trace_files: TraceFiles) -> None:
    sourced_ps = named_ps = total_ps = 0
    for file in trace_files("jax_cpu"):
        profile = read_xspace(file)
        hlo = read_programs(profile["programs"])
        ops = hlo["hlo_ops"].to_pylist()
        durations_ps = profile["events"]["duration_ps"].to_pylist()
        for event, op in thunks(profile, hlo):
            assert op is not None
            total_ps += durations_ps[event]
            sourced_ps += durations_ps[event] if ops[op]["file"] and ops[op]["source_line"] > 0 else 0
            named_ps += durations_ps[event] if ops[op]["op_name"] else 0
    assert total_ps > 0
    assert sourced_ps / total_ps >= 0.998
    assert named_ps / total_ps >= 0.998


def modules(profile: Profile) -> list[tuple[int, Any]]:
    found = []
    for row, hlo in enumerate(profile["programs"]["hlo"].to_pylist()):
        message = HloProto()
        message.ParseFromString(hlo)
        found.append((row, message.hlo_module))
    return found


def test_tables_equal_protobuf(xspace_file: Path) -> None:
    if "corrupt" in str(xspace_file):
        pytest.skip("damaged on purpose and never parses: test_xspace_truth holds its error")
    profile = read_xspace(xspace_file)
    hlo = read_programs(profile["programs"])
    for name, table in hlo.items():
        assert table.schema == schema.TABLES[name], name
        table.validate(full=True)
    ops, computations = [], []
    operands, calls = [], []
    for row, module in modules(profile):
        first = len(computations)
        computation_row = {computation.id: first + i for i, computation in enumerate(module.computations)}
        for computation in module.computations:
            computations.append((row, computation.name, computation.id == module.entry_computation_id))
            first_op = len(ops)
            op_row = {instruction.id: first_op + i for i, instruction in enumerate(computation.instructions)}
            for instruction in computation.instructions:
                operands += [(len(ops), op_row[operand]) for operand in instruction.operand_ids]
                calls += [(len(ops), computation_row[called]) for called in instruction.called_computation_ids]
                ops.append((row, instruction.name, instruction.opcode, computation_row[computation.id]))

    def rows(table: str, *columns: str) -> list[tuple[Any, ...]]:
        return list(zip(*(hlo[table][column].to_pylist() for column in columns), strict=True))

    assert rows("hlo_ops", "program", "name", "opcode", "computation") == ops
    assert rows("hlo_computations", "program", "name", "entry") == computations
    assert rows("hlo_operands", "op", "operand") == operands
    assert sorted(rows("hlo_calls", "op", "computation")) == sorted(calls)


def test_frames_equal_protobuf(jax_cpu_file: Path) -> None:
    """The innermost frame of every instruction that has one; these programs are all the user's."""
    profile = read_xspace(jax_cpu_file)
    ops = iter(read_programs(profile["programs"])["hlo_ops"].to_pylist())
    compared = 0
    for _, module in modules(profile):
        index = module.stack_frame_index
        for computation in module.computations:
            for instruction in computation.instructions:
                op = next(ops)
                if not instruction.metadata.stack_frame_id:
                    continue
                frame = index.stack_frames[instruction.metadata.stack_frame_id - 1]
                place = index.file_locations[frame.file_location_id - 1]
                file = index.file_names[place.file_name_id - 1]
                if "/jax/" in file:
                    continue
                function = index.function_names[place.function_name_id - 1]
                assert (op["file"], op["source_line"], op["function"]) == (file, place.line, function)
                assert op["op_name"] == instruction.metadata.op_name or not instruction.metadata.op_name
                compared += 1
    assert compared


def test_two_lambdas_are_two_functions(trace_files: TraceFiles) -> None:
    profile = read_xspace(trace_files("jax_cpu/planted_input")[0])
    names = profile["programs"]["name"].to_pylist()
    functions = read_programs(profile["programs"])["program_functions"].to_pylist()
    lambdas = [row for row in functions if names[row["program"]] == "jit__lambda"]
    assert [row["function"] for row in lambdas] == ["<lambda>", "<lambda>"]
    assert {(row["file"].rsplit("/", 1)[-1], row["source_line"]) for row in lambdas} == {
        ("planted.py", 54),
        ("planted.py", 58),
    }
    (step,) = [row for row in functions if names[row["program"]] == "jit_mlp_step"]
    assert (step["function"], step["source_line"]) == ("mlp_step", 31)
    # A program that is one copy has no frames at all.
    assert {row["file"] for row in functions if names[row["program"]] == "jit_stage"} == {None}


def test_the_same_program_has_one_place_in_every_process(trace_files: TraceFiles) -> None:
    places = []
    for file in trace_files("jax_cpu/mp4_skew"):
        profile = read_xspace(file)
        rows = read_programs(profile["programs"])["program_functions"].to_pylist()
        names = profile["programs"]["name"].to_pylist()
        places.append(sorted((names[row["program"]], str(row["file"]), row["source_line"] or 0) for row in rows))
    assert len(places) == 4
    assert all(place == places[0] for place in places)
    assert any(file != "None" for _, file, _ in places[0])
