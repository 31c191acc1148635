"""A case as the bytes of an XSpace with the HLO of its programs, as a JAX CPU capture would hold them."""

from __future__ import annotations

from typing import Any

from conformance.case_text import Case, CaseError, Program
from conformance.profile_tables import ORIGIN_NS
from conformance.trace_events import TraceLine, build_lines, module_of
from xspace_schema import HloProto, XSpace

ELEMENT_TYPES = {"f32": 11, "f64": 12}
"""XLA's numbers of element types (xla_data.proto)."""


def xspace_of(case: Case, order: list[int] | None = None) -> bytes:
    """The serialized XSpace of ``case``, user spans as TraceMe events. ``order`` permutes every event of the capture
    within its line, and the lines: an XSpace promises no order. Raises CaseError for an end that is no whole ns."""
    if case.start_ps or case.end_ps % 1000:
        raise CaseError("an XSpace begins at 0 and ends at a whole nanosecond")
    space = XSpace(hostnames=["host0"])
    metadata = _Plane(space, "/host:metadata")
    metadata.stat(metadata.plane.stats, "jax_version", "0.10.2")
    for program in case.programs:
        entry = metadata.event_metadata(f"{module_of(program.function)}({program.program_id})")
        metadata.stat(entry.stats, "program_id", program.program_id, unsigned=True)
        metadata.stat(entry.stats, "Hlo Proto", hlo_of(program))
    host = _Plane(space, "/host:CPU")
    lines = build_lines(case, "xspace")
    for line in lines if order is None else _permuted(lines, order):
        host.line(line, order)
    environment = _Plane(space, "Task Environment")
    for key, value in (("profile_start_time", ORIGIN_NS), ("profile_stop_time", ORIGIN_NS + case.end_ps // 1000)):
        environment.stat(environment.plane.stats, key, value, unsigned=True)
    data: bytes = space.SerializeToString()
    return data


def _permuted(values: list[Any], order: list[int]) -> list[Any]:
    ranks = [order[i % len(order)] for i in range(len(values))]
    return [values[i] for i in sorted(range(len(values)), key=lambda i: (ranks[i], i))]


class _Plane:
    """One XPlane and the ids of its event and stat metadata."""

    def __init__(self, space: Any, name: str) -> None:
        self.plane = space.planes.add(name=name)
        self.event_ids: dict[str, int] = {}
        self.stat_ids: dict[str, int] = {}

    def event_metadata(self, name: str) -> Any:
        row = self.event_ids.setdefault(name, len(self.event_ids) + 1)
        entry = self.plane.event_metadata[row]
        entry.id, entry.name = row, name
        return entry

    def stat_id(self, name: str) -> int:
        row = self.stat_ids.setdefault(name, len(self.stat_ids) + 1)
        self.plane.stat_metadata[row].id = row
        self.plane.stat_metadata[row].name = name
        return row

    def stat(
        self, stats: Any, key: str, value: int | str | bytes, *, unsigned: bool = False, ref: bool = False
    ) -> None:
        stat = stats.add(metadata_id=self.stat_id(key))
        if isinstance(value, bytes):
            stat.bytes_value = value
        elif isinstance(value, int):
            setattr(stat, "uint64_value" if unsigned else "int64_value", value)
        elif ref:  # the profiler writes texts of events once, as the name of a stat
            stat.ref_value = self.stat_id(value)
        else:
            stat.str_value = value

    def line(self, line: TraceLine, order: list[int] | None) -> None:
        written = self.plane.lines.add(id=line.line_id, name=line.name)
        for event in line.events if order is None else _permuted(line.events, order):
            if event.duration_ps is None:
                raise CaseError(f"{event.name} is open: XLA's profiler drops such an event")
            entry = written.events.add(
                metadata_id=self.event_metadata(event.name).id, offset_ps=event.start_ps, duration_ps=event.duration_ps
            )
            for key, value in event.args:
                self.stat(entry.stats, key, value, ref=True)


def hlo_of(program: Program) -> bytes:
    """The serialized HloProto of ``program``: an entry computation, and one computation per container."""
    proto = HloProto()
    module = proto.hlo_module
    module.name, module.id, module.entry_computation_name = module_of(program.function), program.program_id, "main"
    frames = module.stack_frame_index
    frames.file_names.append(program.file)
    frames.function_names.append(program.function)
    frames.file_locations.add(file_name_id=1, function_name_id=1, line=program.source_line)
    frames.stack_frames.add(file_location_id=1)
    parents = ["", *dict.fromkeys(i.parent for i in program.instructions.values() if i.parent)]
    bodies = {}
    for number, parent in enumerate(parents, 1):
        bodies[parent] = module.computations.add(name=f"body_of_{parent}" if parent else "main", id=number)
    module.entry_computation_id = bodies[""].id
    ids = {name: (1 << 32) + number for number, name in enumerate(program.instructions)}
    for instruction in program.instructions.values():
        body = bodies[instruction.parent]
        written = body.instructions.add(
            name=instruction.name,
            opcode=instruction.opcode,
            id=ids[instruction.name],
            operand_ids=[ids[operand] for operand in instruction.operands],
            called_computation_ids=[bodies[instruction.name].id] if instruction.name in bodies else [],
        )
        if instruction.shape is not None:
            element, sizes = instruction.shape
            written.shape.element_type = ELEMENT_TYPES[element]
            written.shape.dimensions.extend(sizes)
            written.shape.layout.minor_to_major.extend(reversed(range(len(sizes))))
        written.metadata.op_name = f"jit({program.function})/{instruction.name}"
        written.metadata.stack_frame_id = 1
        body.root_id = written.id
    data: bytes = proto.SerializeToString()
    return data
