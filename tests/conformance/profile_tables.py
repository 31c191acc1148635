"""A case as the Profile that the readers deliver for it: the shard's and the XSpace's lines on one origin."""

from __future__ import annotations

from math import prod
from typing import Any

from conformance.case_text import ELEMENT_BYTES, Case
from conformance.trace_events import TraceLine, Where, build_lines, module_of
from xprof_py.postprocess import schema
from xprof_py.postprocess.hlo.peaks import Peaks
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import ArgKind

ORIGIN_NS = 1_790_000_000_000_000_000
"""The capture's start, UTC; large, as it is in life, so that a time that went through a double shows."""


def profile_of(case: Case, spans_in: Where, order: list[int] | None = None) -> Profile:
    """The reader and HLO tables of ``case``; ``order`` permutes the lines (row numbers), None keeps them."""
    lines = build_lines(case, spans_in)
    if order is not None:
        lines = [lines[i] for i in order]
    texts: dict[str, int] = {}
    tables = {
        "lines": _columns(
            "lines",
            [(ln.plane, ln.name, ln.line_id, ln.thread_id, ln.source, "boot-of-the-case") for ln in lines],
        ),
        **_event_tables(lines, texts),
        **_stack_tables(case, lines),
        "texts": schema.table("texts", {"text": list(texts)}),
        "plane_args": _columns(
            "plane_args",
            [
                ("/host:metadata", "jax_version", int(ArgKind.TEXT), 0, "0.10.2"),
                ("Task Environment", "profile_start_time", int(ArgKind.UINT), ORIGIN_NS, None),
                ("Task Environment", "profile_stop_time", int(ArgKind.UINT), ORIGIN_NS + case.end_ps // 1000, None),
            ],
        ),
        "programs": _columns("programs", [(p.program_id, module_of(p.function), None) for p in case.programs]),
        "diagnostics": schema.empty("diagnostics"),
        **_hlo_tables(case),
    }
    profile = Profile(
        host="host0",
        origin_ns=ORIGIN_NS,
        capture_start_ps=case.start_ps,
        capture_end_ps=case.end_ps,
        metadata=metadata_of(case),
    )
    return profile.with_tables(**tables)


def metadata_of(case: Case) -> dict[str, Any]:
    """What the run file says of the capture: whether its end was drained. And the peaks of its devices, if known."""
    found: dict[str, Any] = {"drained": "end" in case.drained}
    if case.peaks:
        found["peaks"] = {"cpu": Peaks("a CPU", "the case", **case.peaks).document()}
    return found


def _columns(name: str, rows: list[tuple[Any, ...]]) -> Any:
    names = schema.TABLES[name].names
    return schema.table(name, {key: [row[i] for row in rows] for i, key in enumerate(names)})


def _event_tables(lines: list[TraceLine], texts: dict[str, int]) -> dict[str, Any]:
    events: list[tuple[Any, ...]] = []
    args: list[tuple[Any, ...]] = []
    for row, line in enumerate(lines):
        for event in line.events:
            for key, value in event.args:
                if isinstance(value, str):
                    args.append((len(events), key, int(ArgKind.TEXT), texts.setdefault(value, len(texts))))
                else:
                    args.append((len(events), key, int(ArgKind.INT), value))
            events.append((row, event.name, int(event.kind), event.start_ps, event.duration_ps))
    return {"events": _columns("events", events), "args": _columns("args", args)}


def _stack_tables(case: Case, lines: list[TraceLine]) -> dict[str, Any]:
    """Samples lie on the shard's line of their thread, which a thread without spans of the user's does not have."""
    row_of = {line.name: row for row, line in enumerate(lines) if line.source == "shard"}
    frames: dict[tuple[str, int, str], int] = {}
    stacks: dict[tuple[int, ...], int] = {}
    samples: list[tuple[int, int, int, int, bool, int | None]] = []
    for thread in case.threads:
        for sample in thread.samples if thread.name in row_of else []:
            members = tuple(frames.setdefault(frame, len(frames)) for frame in sample.frames)
            stack = stacks.setdefault(members, len(stacks)) if members else None
            samples.append((row_of[thread.name], sample.time_ps, 0, 0, sample.on_cpu, stack))
    samples.sort(key=lambda row: row[:2])
    return {
        "stack_samples": _columns("stack_samples", samples),
        "stacks": _columns(
            "stacks", [(stack, depth, frame) for row, stack in stacks.items() for depth, frame in enumerate(row)]
        ),
        "frames": _columns("frames", [(file, function, line) for file, line, function in frames]),
    }


def _hlo_tables(case: Case) -> dict[str, Any]:
    computations: list[tuple[Any, ...]] = []
    ops: list[tuple[Any, ...]] = []
    operands: list[tuple[Any, ...]] = []
    calls: list[tuple[Any, ...]] = []
    shapes: list[tuple[Any, ...]] = []
    for row, program in enumerate(case.programs):
        parents = ["", *dict.fromkeys(i.parent for i in program.instructions.values() if i.parent)]
        bodies = {parent: len(computations) + n for n, parent in enumerate(parents)}
        computations += [(row, f"body_of_{parent}" if parent else "main", not parent) for parent in parents]
        rows = {name: len(ops) + n for n, name in enumerate(program.instructions)}
        for instruction in program.instructions.values():
            where = (f"jit({program.function})/{instruction.name}", program.file, program.source_line)
            ops.append(
                (row, instruction.name, instruction.opcode, bodies[instruction.parent], *where, program.function)
            )
            if instruction.shape is not None:
                element, sizes = instruction.shape
                size = ELEMENT_BYTES[element] * prod(sizes)
                shapes.append((rows[instruction.name], -1, element, list(sizes), size, 0))
            operands += [(rows[instruction.name], rows[operand]) for operand in instruction.operands]
            if instruction.name in bodies:
                calls.append((rows[instruction.name], bodies[instruction.name]))
    return {
        "hlo_computations": _columns("hlo_computations", computations),
        "hlo_ops": _columns("hlo_ops", ops),
        "hlo_operands": _columns("hlo_operands", operands),
        "hlo_calls": _columns("hlo_calls", calls),
        "hlo_shapes": _columns("hlo_shapes", shapes),
        "program_functions": _columns(
            "program_functions", [(row, p.function, p.file, p.source_line) for row, p in enumerate(case.programs)]
        ),
    }
