"""Ops of JAX's CPU devices -> lanes, runs and ops: what executed where, and of which class (BREAKDOWN.md 1 and 4).

Those of GPUs and TPUs are read by join/device_planes.py. A JAX CPU device has no plane of its own: its ops are the host
events that carry `hlo_op`, `run_id` and `device_ordinal`; its lane is the ordinal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.hlo.classes import CONTAINERS, class_of
from xprof_py.postprocess.join import host_names
from xprof_py.postprocess.join.columns import Bool, Events, Int64, dictionary, distinct, integers
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import CLASSES

Edges = np.ndarray[tuple[int, int], np.dtype[np.int64]]
_NEVER = int(np.iinfo(np.int64).max)

NO_DEVICE = "host"
"""The lane of a process without a device: the windows of its steps are gaps of the host."""


@dataclass
class DeviceOps:
    """Executed ops in order of (lane, start). ``run`` is a row of the runs below, -1 for a copy that belongs to none.

    ``end_ps`` is where the op's own event ended, ``open_end_ps`` >= end_ps until when it may have stayed open.
    ``class_code`` indexes schema.CLASSES. ``runs`` are in order of (lane, first start). ``devices``: the name of every
    lane's device. ``launch``: row of the launches of an op that has a launch of its own (a GPU's), else -1. ``how``:
    how ``hlo_op`` was found, of op_of_kernel.HOW. ``stated``: row of texts of the instruction's name, where that is
    stated and its program is not in the profile, else -1.
    """

    lanes: list[int]
    event: Int64
    lane: Int64
    run: Int64
    hlo_op: Int64
    class_code: Int64
    leaf: Bool
    start_ps: Int64
    end_ps: Int64
    open_end_ps: Int64
    run_lane: Int64
    run_program: Int64
    run_id: Int64
    run_start_ps: Int64
    run_end_ps: Int64
    unplaced_copies: int = 0
    devices: list[str] = field(default_factory=list)
    launch: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    how: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    stated: Int64 = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        if not self.devices:
            self.devices = [f"cpu:{ordinal}" for ordinal in self.lanes]
        if not len(self.launch):
            self.launch = np.full(len(self.event), -1, np.int64)
        if not len(self.how):
            # An op of a CPU or TPU names its instruction itself.
            self.how = (self.hlo_op >= 0).astype(np.int64)
        if not len(self.stated):
            self.stated = np.full(len(self.event), -1, np.int64)

    def take(self, order: Int64 | Bool) -> None:
        """Reorder or select the ops."""
        columns = (
            "event",
            "lane",
            "run",
            "hlo_op",
            "class_code",
            "leaf",
            "start_ps",
            "end_ps",
            "open_end_ps",
            "launch",
            "how",
            "stated",
        )
        for name in columns:
            setattr(self, name, getattr(self, name)[order])


def read_ops(profile: Profile, events: Events) -> DeviceOps:
    """Ops, lanes and runs of the CPU devices of ``profile`` (tables events, args, programs and the HLO tables)."""
    rows, op_text = events.having("hlo_op")
    has_run, run_id = events.argument_of("run_id", rows)
    if not has_run.all():
        rows, op_text, run_id = rows[has_run], op_text[has_run], run_id[has_run]
    ordinal = events.argument_of("device_ordinal", rows)[1]
    # Every device that is named at all has a lane, so that one without work shows as idle and not as absent.
    first, lane = distinct(ordinal)
    lanes = ordinal[first].tolist()
    program_id = events.argument_of("program_id", rows)[1]
    program = row_of(integers(profile["programs"], "program_id"), program_id)
    hlo_op = _instruction_of(profile, events, program, op_text)

    start = events.start_ps[rows]
    end = events.end_ps[rows]
    first, run = distinct(lane, program_id, run_id)
    lane_of_run, id_of_run = lane[first], run_id[first]
    count = len(first)
    run_start = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(run_start, run, start)
    run_program = np.full(count, -1, np.int64)
    run_program[run] = program
    order = np.lexsort((run_start, lane_of_run))
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    run = rank[run] if count else run

    opcode_code, opcodes = dictionary(profile["hlo_ops"], "opcode")
    class_by_opcode = np.array([CLASSES.index(class_of(o)) for o in opcodes] or [0], np.int64)
    container_by_opcode = np.array([o in CONTAINERS for o in opcodes] or [False], np.bool_)
    known = hlo_op >= 0
    opcode = np.where(known, opcode_code[np.maximum(hlo_op, 0)] if len(opcode_code) else 0, 0)
    class_code = np.where(known, class_by_opcode[opcode], CLASSES.index("compute"))
    container = known & container_by_opcode[opcode]
    ops = DeviceOps(
        lanes=lanes,
        event=rows,
        lane=lane,
        run=run,
        hlo_op=hlo_op,
        class_code=class_code,
        leaf=~container,
        start_ps=start,
        end_ps=end,
        open_end_ps=end.copy(),
        run_lane=lane_of_run[order],
        run_program=run_program[order] if count else np.empty(0, np.int64),
        run_id=id_of_run[order],
        run_start_ps=run_start[order] if count else np.empty(0, np.int64),
        run_end_ps=np.zeros(count, np.int64),
    )
    containers_without_ops_are_leaves(profile, ops, container)
    _extend_open_ops(profile, events, ops)
    # A run ends with its last leaf; a container may be closed later. A run that shows containers alone ends with them.
    run_end = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(run_end, ops.run[ops.leaf], ops.open_end_ps[ops.leaf])
    bare = run_end[ops.run] == np.iinfo(np.int64).min
    np.maximum.at(run_end, ops.run[bare], ops.open_end_ps[bare])
    ops.run_end_ps = run_end
    if not _in_order(ops.lane, ops.start_ps):
        ops.take(np.lexsort((ops.start_ps, ops.lane)))
    return ops


def _in_order(lane: Int64, start_ps: Int64) -> bool:
    """Whether rows are by lane, each lane's by start."""
    same = lane[1:] == lane[:-1]
    return bool(((lane[1:] > lane[:-1]) | (same & (start_ps[1:] >= start_ps[:-1]))).all())


def row_of(keys: Int64, wanted: Int64) -> Int64:
    """The row of each wanted value in ``keys`` (the last one where it is repeated), -1 where it is absent."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    low, high = int(keys.min()), int(keys.max())
    if high - low < 4 * (len(keys) + len(wanted)):
        # Ids are counted on: each has a place. Of keys that are written to one place the last one stays.
        row = np.full(high - low + 2, -1, np.int64)
        row[keys - low] = np.arange(len(keys))
        return row[np.where((wanted >= low) & (wanted <= high), wanted - low, -1)]
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], wanted, side="right") - 1
    found = (place >= 0) & (keys[order][np.maximum(place, 0)] == wanted)
    return np.where(found, order[np.maximum(place, 0)], -1).astype(np.int64)


def _instruction_of(profile: Profile, events: Events, program: Int64, op_text: Int64) -> Int64:
    """Row of hlo_ops per event, joined by (program, hlo_op); -1 where the program's HLO does not hold it."""
    first, text = distinct(op_text)
    return instruction_rows(profile, program, [events.text_of(row) for row in op_text[first].tolist()], text)


def instruction_rows(profile: Profile, program: Int64, names: list[str], name: Int64) -> Int64:
    """Row of hlo_ops of the instruction ``names[name]`` of a row of programs, -1 where its HLO does not hold it."""
    hlo = profile["hlo_ops"]
    if not hlo.num_rows or not len(name):
        return np.full(len(name), -1, np.int64)
    hlo_name, hlo_names = dictionary(hlo, "name")
    code_of = {text: code for code, text in enumerate(hlo_names)}
    # Few instructions execute often.
    first, which = distinct(program, name)
    of = program[first]
    code = np.array([code_of.get(text, -1) for text in names] or [-1], np.int64)[name[first]]
    width = len(hlo_names) + 1
    keys = integers(hlo, "program") * width + hlo_name
    found = np.where((of >= 0) & (code >= 0), row_of(keys, of * width + code), -1)
    return np.asarray(found[which], np.int64)


def containers_without_ops_are_leaves(profile: Profile, ops: DeviceOps, container: Bool) -> None:
    """XLA's CPU backend runs some `call`s as one kernel: a container whose computation never shows is a leaf."""
    if not container.any():
        return
    calls = profile["hlo_calls"]
    caller, called = integers(calls, "op"), integers(calls, "computation")
    seen = np.zeros(profile["hlo_computations"].num_rows, np.bool_)
    seen[integers(profile["hlo_ops"], "computation")[ops.hlo_op[ops.hlo_op >= 0]]] = True
    holds = np.zeros(profile["hlo_ops"].num_rows, np.bool_)
    np.logical_or.at(holds, caller, seen[called])
    ops.leaf = ~container | ~holds[np.maximum(ops.hlo_op, 0)]


def _extend_open_ops(profile: Profile, events: Events, ops: DeviceOps) -> None:
    """Set ``open_end_ps``: min(`end:` marker, first consumer's start, end of the run's wait for completion).

    An asynchronous op's own event ends when its calling thread returns, while the pool goes on; its `end:` marker comes
    late, after the continuation. An op without a marker is closed.
    """
    ends = events.rows_where(lambda name: name.startswith(host_names.END_MARKER))
    has_consumer, consumer = events.argument_of("_c", ends)
    ends, consumer = ends[has_consumer], consumer[has_consumer]
    if not len(ends) or not len(ops.event):
        return
    has_producer, producer = events.argument_of("_p", ops.event)
    marker = row_of(consumer, producer)
    marked = has_producer & (marker >= 0)
    limit = np.where(marked, events.start_ps[ends][np.maximum(marker, 0)], ops.end_ps)

    waits = events.rows_named(host_names.RUN_WAIT)
    has_run, run_id = events.argument_of("run_id", waits)
    waits, run_id = waits[has_run], run_id[has_run]
    ordinal = events.argument_of("device_ordinal", waits)[1]
    if len(waits):
        # The last wait of a (device, run_id) bounds it. run_ids of two programs may collide: then the wait that follows
        # the run's start is meant, and a wait that ended before the op did bounds nothing.
        wait_key = ordinal * (1 << 33) + run_id
        op_key = np.array(ops.lanes, np.int64)[ops.lane] * (1 << 33) + ops.run_id[ops.run]
        row = row_of(wait_key, op_key)
        wait_end = events.end_ps[waits][np.maximum(row, 0)]
        bounded = (row >= 0) & (wait_end >= ops.end_ps)
        limit = np.where(bounded, np.minimum(limit, wait_end), limit)
    limit = np.minimum(limit, _first_consumer_start(profile, ops, marked))
    ops.open_end_ps = np.maximum(ops.end_ps, limit)


def _first_consumer_start(profile: Profile, ops: DeviceOps, asked: Bool) -> Int64:
    """Per op ``asked`` for, the start of the first op of its run that reads its result, seen through tuples.

    2**63 - 1 for the others, and where nothing reads it.
    """
    first = np.full(len(ops.event), _NEVER)
    edges = _data_edges(profile)
    known = np.flatnonzero(ops.hlo_op >= 0)
    if not len(edges) or not asked[known].any():
        return first
    program = ops.run_program[ops.run[known]]
    order = np.argsort(program, kind="stable")
    cuts = np.flatnonzero(np.diff(program[order])) + 1
    for rows in np.split(known[order], cuts):
        ran = np.zeros(profile["hlo_ops"].num_rows, np.bool_)
        ran[ops.hlo_op[rows]] = True
        mine = edges[ran[edges].all(axis=1)]
        columns = (ops.run[rows], ops.hlo_op[rows], ops.start_ps[rows])
        found = first_reads_once(*columns, mine)
        if found is None:
            found = first_reads(*columns, mine)
        first[rows] = np.where(asked[rows], found, _NEVER)
    return first


def first_reads_once(run: Int64, op: Int64, start_ps: Int64, edges: Edges) -> Int64 | None:
    """The same as first_reads where each run executed each op once at most, and most of them; None where not.

    The starts of an op are then a row with a place per run, and an edge compares two rows.
    """
    op_place, run_place = _numbered(op), _numbered(run)
    ops, runs = int(op_place[op].max()) + 1, int(run_place[run].max()) + 1
    if ops * runs > 4 * len(op):
        return None
    slot: Int64 = op_place[op] * runs + run_place[run]
    starts = np.full((ops, runs), _NEVER)
    starts.ravel()[slot] = start_ps
    if np.count_nonzero(starts != _NEVER) != len(op):
        return None
    found = np.full((ops, runs), _NEVER)
    for producer, consumer in op_place[edges].tolist():
        read = np.where(starts[consumer] >= starts[producer], starts[consumer], _NEVER)
        np.minimum(found[producer], read, out=found[producer])
    return found.ravel()[slot]


def _numbered(values: Int64) -> Int64:
    """Per number up to the largest of ``values``, which one it is of those that there are."""
    there = np.zeros(int(values.max()) + 1, np.int64)
    there[values] = 1
    return np.cumsum(there) - 1


def first_reads(run: Int64, op: Int64, start_ps: Int64, edges: Edges) -> Int64:
    """Per execution the start of the first one of its run, not before it, of an op that reads its result.

    ``run``, ``op``, ``start_ps``: of each execution; ``edges``: (producer, consumer) ops. 2**63 - 1 where nothing does.
    """
    first = np.full(len(op), _NEVER)
    consumers = edges[np.argsort(edges[:, 0], kind="stable")]
    low = np.searchsorted(consumers[:, 0], op, side="left")
    high = np.searchsorted(consumers[:, 0], op, side="right")
    count = high - low
    owner = np.repeat(np.arange(len(op)), count)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    reader = consumers[np.repeat(low, count) + offset, 1]
    # In a loop the k-th execution is read by the first that follows it: what is looked for is sorted in among what
    # there is, before executions of the same start.
    width = int(max(op.max(), edges.max(initial=0))) + 1
    key = np.concatenate((run * width + op, run[owner] * width + reader))
    start = np.concatenate((start_ps, start_ps[owner]))
    there = np.arange(len(key)) < len(op)
    order = np.lexsort((there, start, key))
    place = np.empty(len(key), np.int64)
    place[order] = np.cumsum(there[order])
    execution = order[there[order]]
    next_one = execution[np.minimum(place[len(op) :], len(op) - 1)]
    found = (place[len(op) :] < len(op)) & (key[next_one] == key[len(op) :])
    np.minimum.at(first, owner[found], start[next_one[found]])
    return first


_TRANSPARENT = frozenset({"tuple", "get-tuple-element", "bitcast", "optimization-barrier", "copy-done"})


def _data_edges(profile: Profile) -> Edges:
    """(producer, consumer) rows of hlo_ops, with opcodes that execute nothing seen through."""
    table = profile["hlo_operands"]
    consumer, producer = integers(table, "op"), integers(table, "operand")
    code, opcodes = dictionary(profile["hlo_ops"], "opcode")
    through = np.array([o in _TRANSPARENT for o in opcodes] or [False], np.bool_)[code]
    edges = np.stack([producer, consumer], axis=1)
    settled = []
    while len(edges):
        open_ended = through[edges[:, 1]]
        settled.append(edges[~open_ended])
        edges = edges[open_ended]
        # Replace a transparent consumer by its own consumers.
        order = np.argsort(producer, kind="stable")
        low = np.searchsorted(producer[order], edges[:, 1], side="left")
        high = np.searchsorted(producer[order], edges[:, 1], side="right")
        count = high - low
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        edges = (
            np.stack([np.repeat(edges[:, 0], count), consumer[order][np.repeat(low, count) + offset]], axis=1)
            if len(edges)
            else edges
        )
    merged = np.concatenate(settled) if settled else np.empty((0, 2), np.int64)
    return merged[~through[merged[:, 0]]] if len(merged) else merged


def lanes_table_columns(ops: DeviceOps) -> dict[str, pa.Array]:
    """Columns of the table `lanes`."""
    if not ops.lanes:
        return {"device": pa.array([NO_DEVICE]), "ordinal": pa.array([-1], pa.int64())}
    return {
        "device": pa.array(ops.devices, pa.string()),
        "ordinal": pa.array(ops.lanes, pa.int64()),
    }
