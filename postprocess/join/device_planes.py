"""Planes of TPUs and GPUs -> lanes, runs and ops: what executed where, and of which class (docs/breakdown.md).

A TPU core, a SparseCore and a GPU with all its streams are each a lane. What is device work: on a TPU the lines `XLA
Ops`, `Async XLA Ops` and the waits for other cores in `XLA TraceMe`; on a GPU its streams. All other lines (`Steps`,
`Framework Ops`, `TensorFlow Name Scope`, `Source code`, ...) are derived from those, and counted nowhere.

A TPU's runs are its `XLA Modules`; a module of which no op ever shows is a leaf itself. A GPU has none: there a run is
the kernels whose launches lie in one execution of a program on the host; where no event shows that, the kernels of one
program up to the next one of an instruction that a run executes once; and for kernels of no program those of one
launch. A copy of no program belongs to no run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from xprof_py.postprocess.hlo import kernel_names
from xprof_py.postprocess.hlo.classes import CONTAINERS, class_of
from xprof_py.postprocess.join.columns import Bool, Events, Int64, dictionary, distinct, integers
from xprof_py.postprocess.join.device_ops import (
    DeviceOps,
    containers_without_ops_are_leaves,
    instruction_rows,
    row_of,
)
from xprof_py.postprocess.join.driver_calls import calls_of_work, execution_of
from xprof_py.postprocess.join.op_of_kernel import STATED, Kernels, instructions, programs_by_launch
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import CLASSES

_PLANE = re.compile(r"^/device:(?P<kind>TPU|GPU):(?P<ordinal>\d+)(?P<rest>.*)$")
_MODULE = re.compile(r"\((\d+)\)$")
_BARRIER = "barrier-cores"
_NEVER = np.iinfo(np.int64).max
_OF_GRAPHS = ("cuda_graph_id", "cuda_graph_exec_id")
_OF_NODES = ("kernel_details", "memcpy_details", "memset_details", "cuda_graph_node_id")
"""Arguments of whole graphs, and of the kernels and copies in them."""


class _Role(IntEnum):
    """What a line of a device plane holds."""

    NOTHING = 0
    OPS = 1
    ASYNC = 2
    MODULES = 3
    NOTES = 4
    STREAM = 5


_ROLES = {
    "XLA Ops": _Role.OPS,
    "Sparse Core Ops": _Role.OPS,
    "Async XLA Ops": _Role.ASYNC,
    "XLA Modules": _Role.MODULES,
    "Sparse Core Modules": _Role.MODULES,
    "XLA TraceMe": _Role.NOTES,
}


@dataclass
class DevicePlanes:
    """``ops`` in order of (lane, start). ``call``: event of the host's driver call that launched an op, -1 without.

    ``undirected``: copies whose direction nothing says yet; they have the class memory. ``run_event``: the event of
    `XLA Modules` that a run is, -1 on GPUs. ``unread``: (plane, reason) of planes with events that hold no device work
    known here; ``idle``: planes without events. ``unclear_calls``: ops whose correlation id does not tell their call.
    ``without_program``: kernels that nothing links to one of the programs that there are, nor names their instruction.
    """

    ops: DeviceOps
    call: Int64
    undirected: Bool
    run_event: Int64
    unread: list[tuple[str, str]]
    idle: list[str]
    unclear_calls: int = 0
    without_program: int = 0


def lane_order(device: str) -> tuple[str, int, str]:
    """Sorts names of devices by kind and number."""
    found = _PLANE.match(device)
    return (found["kind"], int(found["ordinal"]), found["rest"]) if found else ("", -1, device)


def device_of_line(plane: str, line: str) -> str:
    """The lane of a line of a device plane; SparseCores that share their TPU's plane are one of their own."""
    apart = line.startswith("Sparse Core") and "SparseCore" not in plane
    return f"{plane} SparseCore" if apart else plane


def read_device_planes(profile: Profile, events: Events) -> DevicePlanes:
    """Lanes, runs and ops of all TPUs and GPUs of ``profile``; launches are joined later (device_launches.py)."""
    return _Reader(profile, events).read()


class _Reader:
    def __init__(self, profile: Profile, events: Events) -> None:
        self.profile = profile
        self.events = events
        lines = profile["lines"]
        self.planes, self.line_names = lines["plane"].to_pylist(), lines["name"].to_pylist()
        self.count = np.diff(events.first_row(np.arange(len(self.planes) + 1)))
        roles = [_role(plane, name) for plane, name in zip(self.planes, self.line_names, strict=True)]
        self.role = np.array(roles or np.zeros(0), np.int64)
        working = (self.role > 0) & (self.role != _Role.NOTES) & (self.count > 0)
        of_line = [device_of_line(p, n) for p, n in zip(self.planes, self.line_names, strict=True)]
        self.devices = sorted({of_line[i] for i in np.flatnonzero(working)}, key=lane_order)
        lane = {device: i for i, device in enumerate(self.devices)}
        self.lane_of_line = np.array([lane.get(device, -1) for device in of_line] or np.zeros(0), np.int64)

    def read(self) -> DevicePlanes:
        events = self.events
        working = np.isin(self.role, (_Role.OPS, _Role.ASYNC, _Role.STREAM, _Role.NOTES)) & (self.lane_of_line >= 0)
        rows = events.rows_on(np.flatnonzero(working))
        role = self.role[events.line[rows]]
        work = (role != _Role.NOTES) | (events.verdicts(lambda name: name == _BARRIER)[events.name[rows]])
        rows, role = rows[work], role[work]
        self.rows, self.on_gpu = rows, role == _Role.STREAM
        self.lane = self.lane_of_line[events.line[rows]]
        self.call, self.unclear_calls = calls_of_work(self.profile, events, np.where(self.on_gpu, rows, -1))
        self.module_rows = events.rows_on(np.flatnonzero(self.role == _Role.MODULES))
        self.module_lane = self.lane_of_line[events.line[self.module_rows]]
        module = self._module_of_ops()
        program = self._programs(module)
        hlo_op, how, stated = self._instructions(program)
        class_code, undirected = self._classes(hlo_op)
        run, run_columns = self._runs(module, program, hlo_op)
        run_lane, run_program, run_id, run_start, run_event = run_columns
        ops = DeviceOps(
            lanes=[lane_order(device)[1] for device in self.devices],
            event=rows,
            lane=self.lane,
            run=run,
            hlo_op=hlo_op,
            class_code=class_code,
            leaf=np.ones(len(rows), np.bool_),
            start_ps=events.start_ps[rows],
            end_ps=events.end_ps[rows],
            open_end_ps=events.end_ps[rows].copy(),
            run_lane=run_lane,
            run_program=run_program,
            run_id=run_id,
            run_start_ps=run_start,
            run_end_ps=np.zeros(len(run_lane), np.int64),
            devices=self.devices,
            how=how,
            stated=stated,
        )
        copy = events.verdicts(kernel_names.is_copy)[events.name[rows]]
        unlinked = self.on_gpu & (program < 0) & (stated < 0) & ~copy & bool(self.profile["programs"].num_rows)
        self._set_leaves(ops, role == _Role.OPS)
        call = np.concatenate((self.call, self._add_bare_modules(ops, module)))
        undirected = np.concatenate((undirected, np.zeros(len(ops.event) - len(undirected), np.bool_)))
        _end_runs(ops, run_event, events)
        order = np.lexsort((ops.start_ps, ops.lane))
        ops.take(order)
        unread, idle = self._planes_without_lane()
        return DevicePlanes(
            ops,
            call[order],
            undirected[order],
            run_event,
            unread,
            idle,
            unclear_calls=self.unclear_calls,
            without_program=int(np.count_nonzero(unlinked)),
        )

    def _planes_without_lane(self) -> tuple[list[tuple[str, str]], list[str]]:
        unread, idle = [], []
        for plane in sorted({p for p in self.planes if p.startswith("/device:")}):
            if plane.startswith("/device:CUSTOM") or any(device.startswith(plane) for device in self.devices):
                continue
            mine = [i for i, name in enumerate(self.planes) if name == plane]
            if not self.count[mine].any():
                idle.append(plane)
            elif _PLANE.match(plane):
                found = ", ".join(sorted({self.line_names[i] for i in mine if self.count[i]})[:5])
                unread.append((plane, f"none of its lines is known to hold device work: {found}"))
            else:
                unread.append((plane, "planes of this kind of device are not known"))
        stated = {p for p in self.profile["plane_args"]["plane"].to_pylist() if _PLANE.match(p)}
        idle += sorted(stated - set(self.planes))
        return unread, idle

    # --- what an op is ------------------------------------------------------------------------------------------

    def _module_of_ops(self) -> Int64:
        """Per op the module (place in ``module_rows``) that is open when it starts, -1 without."""
        events = self.events
        out = np.full(len(self.rows), -1, np.int64)
        for lane in np.unique(self.module_lane).tolist():
            mine = np.flatnonzero(self.module_lane == lane)
            mine = mine[np.argsort(events.start_ps[self.module_rows[mine]], kind="stable")]
            start, end = events.start_ps[self.module_rows[mine]], events.end_ps[self.module_rows[mine]]
            ops = np.flatnonzero((self.lane == lane) & ~self.on_gpu)
            at = events.start_ps[self.rows[ops]]
            place = np.searchsorted(start, at, side="right") - 1
            inside = (place >= 0) & (at < end[place])
            out[ops] = np.where(inside, mine[place], -1)
        return out

    def _module_programs(self) -> Int64:
        """The program id in a module's name, 0 without: XLA's ids are fingerprints, and count from 1 elsewhere."""
        of_name: dict[int, int] = {}
        for code in np.unique(self.events.name[self.module_rows]).tolist():
            found = _MODULE.search(self.events.names[code])
            of_name[code] = int(np.uint64(int(found[1]) % 2**64).astype(np.int64)) if found else 0
        return np.array([of_name[int(code)] for code in self.events.name[self.module_rows]] or np.zeros(0), np.int64)

    def _programs(self, module: Int64) -> Int64:
        """Row of programs per op, -1 where nothing names it."""
        known = integers(self.profile["programs"], "program_id")
        stated, program_id = self.events.argument_of("program_id", self.rows)
        in_kind, of_kind = _of_kind(self.profile, "program_id", self.rows)
        module_program = self._module_programs()
        wanted = np.where(module >= 0, module_program[module] if len(module_program) else 0, 0)
        wanted = np.where(in_kind, of_kind, wanted)
        wanted = np.where(stated, program_id, wanted)
        program = np.where(wanted != 0, row_of(known, wanted), -1)
        # Older files name the module alone: it counts where one program has that name.
        has_module, module_text = self.events.argument_of("hlo_module", self.rows)
        names = self.profile["programs"]["name"].to_pylist()
        unique = {name: row for row, name in enumerate(names) if names.count(name) == 1}
        nameless = np.flatnonzero((program < 0) & has_module)
        texts = module_text[nameless]
        row_of_text = {t: unique.get(self.events.text_of(t), -1) for t in np.unique(texts).tolist()}
        program[nameless] = np.array([row_of_text[int(t)] for t in texts] or np.zeros(0), np.int64)
        gpu = np.flatnonzero(self.on_gpu)
        program[gpu] = programs_by_launch(self.profile, self.events, self._kernels(gpu, program))
        return program

    def _kernels(self, gpu: Int64, program: Int64) -> Kernels:
        return Kernels(self.rows[gpu], self.call[gpu], self.lane[gpu], program[gpu])

    def _instructions(self, program: Int64) -> tuple[Int64, Int64, Int64]:
        """(row of hlo_ops per op, how it was found, row of texts of a name alone): a TPU's by its text, a GPU's in one
        of several ways."""
        tpu, gpu = np.flatnonzero(~self.on_gpu), np.flatnonzero(self.on_gpu)
        found, how, stated = np.full((3, len(self.rows)), -1, np.int64)
        used, code = np.unique(self.events.name[self.rows[tpu]], return_inverse=True)
        names = [kernel_names.instruction_name(self.events.names[c]) for c in used.tolist()]
        found[tpu] = instruction_rows(self.profile, program[tpu], names, code.astype(np.int64))
        how[tpu] = np.where(found[tpu] >= 0, STATED, 0)
        launched_in = execution_of(self.events, self.call[gpu])
        execution = np.where(launched_in >= 0, distinct(self.lane[gpu], launched_in)[1], -1)
        kernels = self._kernels(gpu, program)
        found[gpu], how[gpu], stated[gpu] = instructions(self.profile, self.events, kernels, execution)
        return found, how, stated

    def _classes(self, hlo_op: Int64) -> tuple[Int64, Bool]:
        """Code of CLASSES per op, and which are copies that do not say their direction. Decided per distinct name."""
        opcode_code, opcodes = dictionary(self.profile["hlo_ops"], "opcode")
        opcode = np.where(hlo_op >= 0, opcode_code[np.maximum(hlo_op, 0)] if len(opcode_code) else 0, -1)
        has_category, category = _of_kind(self.profile, "hlo_category", self.rows)
        key = (self.events.name[self.rows], opcode, np.where(has_category, category, -1), self.on_gpu)
        first, group = distinct(*key)
        codes, open_copies = [], []
        for name_code, opcode_number, category_text, gpu in zip(*(part[first].tolist() for part in key), strict=True):
            name = self.events.names[name_code]
            op = opcodes[opcode_number] if opcode_number >= 0 else ""
            said = self.events.text_of(category_text) if category_text >= 0 else ""
            found = _class_on_gpu(name, op) if gpu else _class_on_tpu(name, op, said)
            codes.append(CLASSES.index(found or "memory"))
            open_copies.append(found is None)
        return (
            np.array(codes or [0], np.int64)[group],
            np.array(open_copies or [False], np.bool_)[group],
        )

    def _set_leaves(self, ops: DeviceOps, on_op_line: Bool) -> None:
        """Containers hold ops: by opcode, and without HLO those around others. A launched graph holds its kernels."""
        code, opcodes = dictionary(self.profile["hlo_ops"], "opcode")
        by_opcode = np.array([o in CONTAINERS for o in opcodes] or [False], np.bool_)
        known = ops.hlo_op >= 0
        container = known & by_opcode[code[np.maximum(ops.hlo_op, 0)] if len(code) else 0] & on_op_line
        containers_without_ops_are_leaves(self.profile, ops, container)
        # Events are in order of (line, start, longest first): what an event holds follows it.
        follows = np.flatnonzero(on_op_line[:-1] & on_op_line[1:] & (np.diff(self.events.line[ops.event]) == 0))
        inside = (ops.start_ps[follows + 1] < ops.end_ps[follows]) & (ops.end_ps[follows + 1] <= ops.end_ps[follows])
        holders = follows[inside & ~known[follows]]
        ops.leaf[holders] = False
        graph = self._graph_launches()
        if len(graph):
            kernel = np.setdiff1d(np.flatnonzero(self.on_gpu & (self.call >= 0)), graph)
            ops.leaf[graph[np.isin(self.call[graph], self.call[kernel])]] = False

    def _graph_launches(self) -> Int64:
        """Ops that are a whole graph: they name a graph, and are neither kernel nor copy."""
        has = {key: self.events.argument_of(key, self.rows)[0] for key in (*_OF_GRAPHS, *_OF_NODES)}
        graph, node = (np.logical_or.reduce([has[key] for key in keys]) for keys in (_OF_GRAPHS, _OF_NODES))
        return np.flatnonzero(self.on_gpu & graph & ~node)

    # --- runs ---------------------------------------------------------------------------------------------------

    def _runs(self, module: Int64, program: Int64, hlo_op: Int64) -> tuple[Int64, tuple[Int64, ...]]:
        """Run per op, -1 without, and the columns lane, program, run_id, start and event of the runs."""
        events, rows = self.events, self.rows
        has_correlation, correlation = events.argument_of("correlation_id", rows)
        by = np.full(len(rows), -1, np.int64)
        number = np.zeros(len(rows), np.int64)
        for kind, mask, values in self._groupings(module, program, hlo_op, has_correlation, correlation):
            chosen = mask & (by < 0)
            by[chosen], number[chosen] = kind, values[chosen]
        # A module is a run even if none of its ops shows.
        in_run = np.flatnonzero(by >= 0)
        modules = np.arange(len(self.module_rows))
        lane = np.concatenate((self.lane[in_run], self.module_lane))
        by, number = np.concatenate((by[in_run], np.zeros_like(modules))), np.concatenate((number[in_run], modules))
        first, place = distinct(lane, by, number)
        lane = lane[first]
        of_op, of_module = place[: len(in_run)], place[len(in_run) :]
        start = np.full(len(first), _NEVER)
        np.minimum.at(start, of_op, events.start_ps[rows[in_run]])
        run_program = np.full(len(first), -1, np.int64)
        np.maximum.at(run_program, of_op, program[in_run])
        run_id = np.full(len(first), _NEVER)
        np.minimum.at(run_id, of_op, correlation[in_run])
        event = np.full(len(first), -1, np.int64)
        event[of_module] = self.module_rows
        start[of_module] = np.minimum(start[of_module], events.start_ps[self.module_rows])
        run_id[of_module] = events.argument_of("run_id", self.module_rows)[1]
        wanted = self._module_programs()
        row = row_of(integers(self.profile["programs"], "program_id"), wanted)
        run_program[of_module] = np.where((wanted != 0) & (row >= 0), row, run_program[of_module])
        order = np.lexsort((start, lane))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        run = np.full(len(rows), -1, np.int64)
        run[in_run] = rank[of_op]
        self.run_of_module = rank[of_module]
        columns = (lane[order], run_program[order], run_id[order], start[order], event[order])
        return run, columns

    def _groupings(
        self, module: Int64, program: Int64, hlo_op: Int64, has_correlation: Bool, correlation: Int64
    ) -> list[tuple[int, Bool, Int64]]:
        """(kind, for which ops, number of the run): what says that ops are of one run, the surest first."""
        execution = execution_of(self.events, self.call)
        of_program = program >= 0
        copy = self.on_gpu & self.events.verdicts(kernel_names.is_copy)[self.events.name[self.rows]]
        unlaunched = np.arange(len(self.rows))
        return [
            (0, ~self.on_gpu & (module >= 0), module),
            (1, execution >= 0, execution),
            (2, of_program, self._executions_in_order(of_program & (execution < 0) & (module < 0), program, hlo_op)),
            (3, self.on_gpu & ~copy & (self.call >= 0), self.call),
            (4, self.on_gpu & ~copy & has_correlation, correlation),
            (5, ~copy, unlaunched),
        ]

    def _executions_in_order(self, asked: Bool, program: Int64, hlo_op: Int64) -> Int64:
        """A number per op asked for that rises with every execution of its program, in the order of the launches.

        A run executes an instruction of the entry computation once, as one kernel or several of different names: where
        one comes again, or another program does, a new run begins.
        """
        events = self.events
        entry = np.asarray(self.profile["hlo_computations"]["entry"].to_numpy(zero_copy_only=False), np.bool_)
        computation = integers(self.profile["hlo_ops"], "computation")
        op = np.maximum(hlo_op, 0)
        once = (hlo_op < 0) | (entry[computation[op]] if len(computation) else True)
        launched = np.where(self.call >= 0, events.start_ps[self.call], events.start_ps[self.rows])
        line = np.where(self.call >= 0, events.line[self.call], -1)
        chosen = np.flatnonzero(asked)
        chosen = chosen[np.lexsort((launched[chosen], line[chosen], self.lane[chosen]))]
        what = (hlo_op + 1) * len(events.names) + events.name[self.rows]
        out = np.zeros(len(self.rows), np.int64)
        if not len(chosen):
            return out
        again = _last_time(what[chosen], np.broadcast_to(once, len(hlo_op))[chosen])
        other = np.zeros(len(chosen), np.bool_)
        for column in (self.lane, line, program):
            other[1:] |= np.diff(column[chosen]) != 0
        # What ran before a change of program can be no repetition after it, so the latest repetition so far rises.
        latest, changes = np.maximum.accumulate(again), np.append(np.flatnonzero(other), len(chosen))
        at = number = 0
        while at < len(chosen):
            repeated = int(np.searchsorted(latest, at))
            behind = min(repeated, int(changes[np.searchsorted(changes, at, side="right")]))
            number += 1
            out[chosen[at:behind]] = number
            at = behind
        return out

    def _add_bare_modules(self, ops: DeviceOps, module: Int64) -> Int64:
        """Add the modules of which no op ever shows on the lane as leaves; returns their calls, -1 each."""
        if not len(self.module_rows):
            return np.empty(0, np.int64)
        what = self.module_lane * len(self.events.names) + self.events.name[self.module_rows]
        bare = np.flatnonzero(~np.isin(what, what[module[module >= 0]]))
        rows = self.module_rows[bare]
        count = len(bare)
        compute = CLASSES.index("compute")
        for name, values in (
            ("event", rows),
            ("lane", self.module_lane[bare]),
            ("run", self.run_of_module[bare]),
            ("hlo_op", np.full(count, -1, np.int64)),
            ("class_code", np.full(count, compute, np.int64)),
            ("leaf", np.ones(count, np.bool_)),
            ("start_ps", self.events.start_ps[rows]),
            ("end_ps", self.events.end_ps[rows]),
            ("open_end_ps", self.events.end_ps[rows]),
            ("launch", np.full(count, -1, np.int64)),
            ("how", np.zeros(count, np.int64)),
            ("stated", np.full(count, -1, np.int64)),
        ):
            setattr(ops, name, np.concatenate((getattr(ops, name), values)))
        return np.full(count, -1, np.int64)


def _end_runs(ops: DeviceOps, run_event: Int64, events: Events) -> None:
    """A run ends with its last leaf, without any with its module."""
    end = np.full(len(ops.run_lane), np.iinfo(np.int64).min)
    in_run = ops.leaf & (ops.run >= 0)
    np.maximum.at(end, ops.run[in_run], ops.open_end_ps[in_run])
    bare = end == np.iinfo(np.int64).min
    of_module = np.where(
        run_event >= 0, events.end_ps[np.maximum(run_event, 0)] if events.count else 0, ops.run_start_ps
    )
    ops.run_end_ps = np.where(bare, of_module, end)


def _role(plane: str, line: str) -> int:
    found = _PLANE.match(plane)
    if found is None:
        return _Role.NOTHING
    if found["kind"] == "GPU":
        return _Role.STREAM if line.startswith("Stream #") else _Role.NOTHING
    return _ROLES.get(line, _Role.NOTHING)


def _class_on_gpu(name: str, opcode: str) -> str | None:
    if not kernel_names.is_copy(name):
        return kernel_names.class_of_kernel(name, opcode)
    # XLA exchanges some data between devices by copies.
    if opcode and class_of(opcode) == "collective":
        return "collective"
    return kernel_names.class_of_copy(name, "")


def _class_on_tpu(text: str, opcode: str, category: str) -> str:
    if text == _BARRIER:
        return "collective"
    if not opcode:
        return kernel_names.class_of_op_text(text, category)
    return kernel_names.class_of_category(category) or class_of(opcode)


def _last_time(what: Int64, asked: Bool) -> Int64:
    """Per place that is asked for the last such place before it that says the same; -1 without."""
    out = np.full(len(what), -1, np.int64)
    rows = np.flatnonzero(asked)
    rows = rows[np.argsort(what[rows], kind="stable")]
    same = np.flatnonzero(np.diff(what[rows]) == 0)
    out[rows[same + 1]] = rows[same]
    return out


def _of_kind(profile: Profile, key: str, rows: Int64) -> tuple[Bool, Int64]:
    """(present, raw value) per event of what an XSpace says once for its kind (event_metadata_of, metadata_args)."""
    args = profile["metadata_args"]
    code, keys = dictionary(args, "key")
    mine = np.flatnonzero(code == keys.index(key)) if key in keys else np.empty(0, np.int64)
    of = profile["event_metadata_of"]
    if not len(mine) or not of.num_rows:
        return np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.int64)
    has = np.zeros(profile["event_metadata"].num_rows, np.bool_)
    value = np.zeros(len(has), np.int64)
    owner = integers(args, "event_metadata")[mine]
    has[owner] = True
    value[owner] = integers(args, "value")[mine]
    place = row_of(integers(of, "event"), rows)
    kind = integers(of, "event_metadata")[np.maximum(place, 0)]
    return (place >= 0) & has[kind], value[kind]
