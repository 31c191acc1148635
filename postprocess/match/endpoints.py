"""Map 1: when each collective began and ended on the lanes of one process, on its own clock. Small enough to gather.

An execution is a leaf of class collective. A -start and its -done are one: it arrives with the start of the -start,
ends with the -done, and can be waited for in the -done alone. One that is cut in half by the capture stands alone.

`synchronising`: nobody's ends before all have begun, and it ends for all at about the same time. all-reduce,
all-gather, reduce-scatter and all-to-all do. The others are one-sided: a root may leave early, a send is buffered, a
permute knows its neighbours only; and a -done ends when its thread comes by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.hlo.classes import COLLECTIVES
from xprof_py.postprocess.hlo.shapes import Instructions
from xprof_py.postprocess.join.columns import Bool, Events, Int64, dictionary, integers
from xprof_py.postprocess.match.library_calls import LibraryCall, library_calls
from xprof_py.postprocess.match.programs import signatures
from xprof_py.postprocess.profile import Profile

SYNCHRONISING = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all"})

_text = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        ("lane", pa.int32()),
        ("kind", _text),
        ("op", _text),
        ("source", _text),
        # What the program computes (match/programs.py); its devices, replicas times partitions.
        ("program", _text),
        ("devices", pa.int64()),
        # Groups of device numbers in that program: `0,1|2,3`; empty: all of its devices. null: not known.
        ("groups", _text),
        ("bytes", pa.int64()),
        # The number of the collective in its group, where the trace has it.
        ("sequence", pa.int64()),
        ("run_id", pa.int64()),
        # Which execution of the op in its run it is.
        ("place", pa.int32()),
        ("step", pa.int32()),
        ("synchronising", pa.bool_()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        # Where its waiting can begin to show: the start, or that of the -done.
        ("waits_from_ns", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Endpoints:
    """Of one process. ``clock``: processes of one clock need no alignment. ``lanes``: how many it has.

    ``table``: SCHEMA, in order of (lane, start_ns). ``steps``: name, number, occurrence, source of the outermost steps,
    by the row that the table's `step` means, and start_ns. ``programs``: signature -> name and device
    time (ps, over all lanes) of the programs that ran.
    ``capture_ns``: first and last moment of the capture.
    """

    host: str
    process_index: int | None
    clock: str
    lanes: int
    capture_ns: tuple[int, int]
    table: pa.Table
    steps: pa.Table
    programs: dict[str, tuple[str, int]]


@dataclass(frozen=True)
class Executions:
    """Collectives of one process as rows of its table `ops`, in the order of Endpoints.table.

    ``first``: the op that arrives, ``last``: the op that ends it and in which it waits; the same unless asynchronous.
    """

    first: Int64
    last: Int64
    asynchronous: Bool


def read_executions(profile: Profile) -> Executions:
    """The collectives among the ops of a joined profile."""
    ops = profile["ops"]
    leaf = np.asarray(ops["leaf"].to_numpy(), np.bool_)
    code, classes = dictionary(ops, "class")
    is_collective = np.array([name == "collective" for name in classes] or [False], np.bool_)
    rows = np.flatnonzero(leaf & is_collective[code]) if ops.num_rows else np.empty(0, np.int64)
    hlo, run = integers(ops, "hlo_op"), integers(ops, "run")
    start = integers(ops, "start_ps")
    see = _opcodes(profile)
    opcode = see[hlo[rows]] if len(rows) else np.empty(0, object)
    opcode = np.where(hlo[rows] >= 0, opcode, "")
    is_done = np.array([o.endswith("-done") for o in opcode], np.bool_)
    is_start = np.array([o.endswith("-start") or o in ("send", "recv") for o in opcode], np.bool_)
    starter = hlo[rows].copy()
    operands = profile["hlo_operands"]
    consumer, producer = integers(operands, "op"), integers(operands, "operand")
    for op in np.unique(starter[is_done]).tolist():
        of = producer[consumer == op]
        if len(of):
            starter[(hlo[rows] == op) & is_done] = of[0]
    alone = rows[~is_done & ~is_start]
    parts = [(alone, alone, np.zeros(len(alone), np.bool_))]
    pending = np.flatnonzero(is_done | is_start)
    if len(pending):
        order = np.lexsort((start[rows[pending]], is_done[pending], starter[pending], run[rows[pending]]))
        pending = pending[order]
        done = is_done[pending]
        new = (np.diff(run[rows[pending]]) != 0) | (np.diff(starter[pending]) != 0)
        group = np.concatenate(([0], np.cumsum(new)))
        many = int(group[-1]) + 1
        whole = np.bincount(group[done], minlength=many) == np.bincount(group[~done], minlength=many)
        first, last = rows[pending[~done & whole[group]]], rows[pending[done & whole[group]]]
        parts.append((first, last, np.ones(len(first), np.bool_)))
        # A half whose other the capture cut off says nothing about when the whole began or ended.
    first, last, asynchronous = (np.concatenate([part[i] for part in parts]) for i in range(3))
    lane = integers(ops, "lane")
    order = np.lexsort((start[first], lane[first])) if len(first) else first
    return Executions(first[order], last[order], asynchronous[order])


def _opcodes(profile: Profile) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    code, texts = dictionary(profile["hlo_ops"], "opcode")
    return np.array(texts or [""], object)[code] if len(code) else np.array([""], object)


def read_endpoints(profile: Profile, process_index: int | None) -> Endpoints:
    """The endpoints of one joined profile.

    Half of an asynchronous collective (the other lies outside the capture) is left out. Raises nothing.
    """
    executions = read_executions(profile)
    ops = profile["ops"]
    first, last = executions.first, executions.last
    lane, hlo, run, start = (integers(ops, name) for name in ("lane", "hlo_op", "run", "start_ps"))
    end = start + integers(ops, "duration_ps") + integers(ops, "open_ps")
    of_run = run[first]
    run_id = integers(profile["runs"], "run_id")
    step = integers(profile["runs"], "step")
    has_run = of_run >= 0
    bare = hlo[first] < 0
    calls, which, has_number, number = library_calls(Events.of(profile), integers(ops, "event")[first[bare]])
    told = _tell(profile, np.where(bare, -1, hlo[first]), executions.asynchronous, calls, _spread(bare, which, -1))
    sequence, has_sequence = _spread(bare, number, 0), _spread(bare, has_number.astype(np.int64), 0) > 0
    place = _places(of_run, hlo[first], start[first])
    outer = pc.is_null(profile["steps"]["parent"])
    steps = profile["steps"].filter(outer)
    names, numbers, occurrences = (steps[name] for name in ("name", "number", "occurrence"))
    start_ns = pa.array(profile.origin_ns + integers(steps, "start_ps") // 1000)
    table = pa.table(
        {
            "lane": lane[first],
            **told,
            "sequence": pa.array(sequence, mask=~has_sequence),
            # Without a program a run's id is a correlation id, which means nothing on another rank.
            "run_id": pa.array(np.where(has_run, run_id[of_run] if len(run_id) else 0, 0), mask=~has_run | bare),
            "place": place,
            "step": _nullable(np.where(has_run, step[of_run] if len(step) else -1, -1)),
            "start_ns": profile.origin_ns + start[first] // 1000,
            "end_ns": profile.origin_ns + end[last] // 1000,
            "waits_from_ns": profile.origin_ns + start[last] // 1000,
        }
    ).select(SCHEMA.names)
    signed = signatures(profile)
    return Endpoints(
        host=profile.host,
        process_index=process_index,
        clock=_clock(profile),
        lanes=profile["lanes"].num_rows,
        capture_ns=(
            profile.origin_ns + profile.capture_start_ps // 1000,
            profile.origin_ns + profile.capture_end_ps // 1000,
        ),
        table=table.cast(SCHEMA),
        steps=pa.table(
            {
                "name": names,
                "number": numbers,
                "occurrence": occurrences,
                "source": steps["source"],
                "start_ns": start_ns,
            }
        ),
        programs=_programs(profile, signed),
    )


def _programs(profile: Profile, signed: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Endpoints.programs; a program that was compiled twice is one, under the name that it had first."""
    runs = profile["runs"]
    program, length = integers(runs, "program"), integers(runs, "end_ps") - integers(runs, "start_ps")
    names = profile["programs"]["name"].to_pylist()
    out: dict[str, tuple[str, int]] = {}
    for row in np.unique(program[program >= 0]).tolist():
        name, before = out.get(signed[row], (names[row], 0))
        out[signed[row]] = (name, before + int(length[program == row].sum()))
    return out


def _clock(profile: Profile) -> str:
    """What its times were stamped by: what the run file says; else the one domain of its lines; else its own clock."""
    run = profile.metadata.get("run") or {}
    if run.get("clock_domain"):
        return str(run["clock_domain"])
    domains = {name for name in profile["lines"]["clock_domain"].unique().to_pylist() if name}
    return next(iter(domains)) if len(domains) == 1 else profile.host


def _spread(where: Bool, values: Int64, other: int) -> Int64:
    """``values`` at the places that ``where`` marks."""
    out = np.full(len(where), other, np.int64)
    out[where] = values
    return out


def _tell(
    profile: Profile, hlo: Int64, asynchronous: Bool, calls: Sequence[LibraryCall], call: Int64
) -> dict[str, pa.Array | Int64]:
    """kind, op, source, program, devices, groups, bytes and synchronising per execution, told once per instruction.

    ``call``: of ``calls`` where an execution has no instruction, else -1. A process group stands for the program then.
    """
    see = Instructions(profile)
    signed = signatures(profile)
    names, files = profile["hlo_ops"]["name"], profile["hlo_ops"]["file"]
    lines, programs = profile["hlo_ops"]["source_line"], profile["hlo_ops"]["program"]
    known, code = np.unique(np.where(call >= 0, -1 - call, hlo), return_inverse=True)
    rows = []
    for op in known.tolist():
        if op < 0:
            of = calls[-1 - op]
            groups = None if of.members is None else ""
            rows.append((of.kind, "", "", of.group, of.members, groups, of.bytes, of.kind in SYNCHRONISING))
            continue
        kind = see.opcode(op).removesuffix("-start").removesuffix("-done")
        file = files[op].as_py()
        replicas, partitions = see.devices(op)
        devices = None if replicas is None or partitions is None else replicas * partitions
        rows.append(
            (
                kind,
                names[op].as_py(),
                f"{file}:{lines[op].as_py()}" if file else "",
                signed[programs[op].as_py()],
                devices,
                _groups(see, op) if kind in COLLECTIVES else None,
                _payload(see, op, kind, devices),
                kind in SYNCHRONISING,
            )
        )
    code = code.reshape(-1)
    types = [*(pa.string() for _ in range(4)), pa.int64(), pa.string(), pa.int64(), pa.bool_()]
    keys = ("kind", "op", "source", "program", "devices", "groups", "bytes", "synchronising")
    told = {key: pa.array([row[i] for row in rows], types[i]).take(pa.array(code)) for i, key in enumerate(keys)}
    told["synchronising"] = pc.and_(told["synchronising"], pa.array(~asynchronous))
    return {key: value.dictionary_encode() if pa.types.is_string(value.type) else value for key, value in told.items()}


def _groups(see: Instructions, op: int) -> str | None:
    """Groups of device numbers as text, "" for all devices together; None where they cannot be told.

    Ids of a module with replicas alone or partitions alone are its devices. With both, whether ids are of replicas or
    of all devices is not in what was decoded.
    """
    found: list[list[int]] = []
    size = reshape = transpose = None
    for key, value in see.numbers(op, "replica_group", "replica_id", "iota_groups", "iota_group_size"):
        if key == "replica_group":
            found.append([])
        elif key == "replica_id" and found:
            found[-1].append(value)
        elif key == "iota_group_size":
            size = value
    reshape, transpose = see.values(op, "iota_reshape"), see.values(op, "iota_transpose")
    if size:
        ids = np.arange(int(np.prod(reshape)) if reshape else size * see.value(op, "iota_groups", 1))
        ids = ids.reshape(reshape) if reshape else ids
        found = (ids.transpose(transpose) if transpose else ids).reshape(-1, size).tolist()
    found = [group for group in found if group]
    replicas, partitions = see.devices(op)
    if replicas is not None and partitions is not None and replicas > 1 and partitions > 1 and found:
        return "" if len(found) == 1 and len(found[0]) == replicas * partitions else None
    if len(found) == 1 and replicas is not None and partitions is not None and len(found[0]) == replicas * partitions:
        return ""
    return "|".join(",".join(str(i) for i in sorted(group)) for group in sorted(found))


def _payload(see: Instructions, op: int, kind: str, devices: int | None) -> int | None:
    """Bytes that one participant gives; for all-gather what it has afterwards."""
    sizes = [array.bytes for operand in see.operands(op) for array in see.arrays(operand)]
    if kind == "all-gather":
        sizes = [array.bytes for array in see.arrays(op)][-1:]
    return None if not sizes or None in sizes else sum(size for size in sizes if size is not None)


def _places(run: Int64, op: Int64, start: Int64) -> Int64:
    """Which execution of its op in its run each is."""
    order = np.lexsort((start, op, run))
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(run[order]) != 0) | (np.diff(op[order]) != 0)
    first = np.flatnonzero(new)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return place


def _nullable(values: Int64) -> pa.Array:
    return pa.array(values, pa.int64(), mask=np.asarray(values) < 0)
