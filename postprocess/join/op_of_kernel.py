"""How a kernel of a GPU finds its program and its HLO instruction, the surest way first (ARCHITECTURE.md).

Nothing is guessed: where a kernel can be of several instructions and nothing tells which, it is of none, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xprof_py.postprocess.join.columns import Bool, Events, Int64, integers, occurring
from xprof_py.postprocess.join.device_ops import instruction_rows, row_of
from xprof_py.postprocess.join.launch_plan import (
    NAMED,
    LaunchPlan,
    LaunchPlans,
    kind_of_kernel,
    ops_of_kernels,
    plain,
)
from xprof_py.postprocess.join.nesting import innermost_around
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.xla_ranges import xla_range

HOW = ("none", "stated", "graph_node", "name", "order", "graph_order", "ambiguous")
"""How an op's instruction was found (`join` of the table ops)."""
NONE, STATED, GRAPH_NODE, NAME, ORDER, GRAPH_ORDER, AMBIGUOUS = range(len(HOW))


@dataclass
class Kernels:
    """Device events of GPUs. ``row``: of events; ``call``: event of the call that launched each, -1 without;
    ``lane``: its lane; ``program``: row of programs, -1 where nothing names it. All of one length."""

    row: Int64
    call: Int64
    lane: Int64
    program: Int64


def programs_by_launch(profile: Profile, events: Events, kernels: Kernels) -> Int64:
    """``kernels.program``, completed by what the launching call says, else by the range `XlaModule` around it."""
    program = kernels.program.copy()
    missing = np.flatnonzero((program < 0) & (kernels.call >= 0))
    if not len(missing) or not profile["programs"].num_rows:
        return program
    calls, place = np.unique(kernels.call[missing], return_inverse=True)
    said = _program_said(profile, events, calls)
    modules = events.rows_where(lambda name: name.startswith("XlaModule"))
    around = innermost_around(events, calls, modules)
    open_ones, of_call = np.unique(around[around >= 0], return_inverse=True)
    by_range = np.full(len(calls), -1, np.int64)
    by_range[around >= 0] = _program_said(profile, events, open_ones)[of_call]
    program[missing] = np.where(said >= 0, said, by_range)[place]
    return program


def _program_said(profile: Profile, events: Events, rows: Int64) -> Int64:
    """The row of programs that an event names, in its arguments or in its own name; -1 without."""
    names = profile["programs"]["name"].to_pylist()
    unique = {name: row for row, name in enumerate(names) if names.count(name) == 1}
    known = integers(profile["programs"], "program_id")
    by_name = np.full(len(events.names), -1, np.int64)
    for code in occurring(events.name[rows], len(events.names)).tolist():
        said = xla_range(events.names[code])
        found = -1 if said.program_id is None else int(row_of(known, np.array([said.program_id]))[0])
        by_name[code] = found if found >= 0 else unique.get(said.hlo_module, -1)
    out = by_name[events.name[rows]] if len(rows) else np.empty(0, np.int64)
    has_module, module = events.argument_of("hlo_module", rows)
    texts, place = np.unique(module[has_module], return_inverse=True)
    by_module = np.array([unique.get(events.text_of(int(code)), -1) for code in texts] or [-1], np.int64)
    out[has_module] = np.where(by_module[place] >= 0, by_module[place], out[has_module])
    has_id, program_id = events.argument_of("program_id", rows)
    stated = np.where(has_id, row_of(known, program_id), -1)
    return np.where(stated >= 0, stated, out)


def instructions(profile: Profile, events: Events, kernels: Kernels, execution: Int64) -> tuple[Int64, Int64, Int64]:
    """(row of hlo_ops per kernel, -1 without; HOW per kernel; row of texts of an instruction that is stated of no
    program that is known, else -1). ``execution``: a number per kernel, -1 where not known.

    1. `stated`: the kernel, or the call that launched it alone, names the instruction: by XLA, or by the range that was
       open on the launching thread.
    2. `graph_node`: the range in which its node of a CUDA graph was made names it.
    3. `name`: of the program's instructions only one can have launched a kernel of that name.
    4. `order`, `graph_order`: several can, and their order in one execution (of the graph's nodes) tells them apart.
    """
    found = np.full(len(kernels.row), -1, np.int64)
    how = np.full(len(kernels.row), NONE, np.int64)
    name_alone = np.full(len(kernels.row), -1, np.int64)
    in_graph = events.argument_of("cuda_graph_node_id", kernels.row)[0]
    alone = np.flatnonzero(~in_graph & (kernels.call >= 0))
    for key, rows, at, way in (
        ("hlo_op", np.arange(len(kernels.row)), kernels.row, STATED),
        ("hlo_op", alone, kernels.call[alone], STATED),
        ("graph_node_op", np.flatnonzero(in_graph), kernels.row[in_graph], GRAPH_NODE),
    ):
        has, text = events.argument_of(key, at)
        left = has & (found[rows] < 0)
        texts, place = np.unique(text[left], return_inverse=True)
        names = [events.text_of(int(code)) for code in texts]
        found[rows[left]] = instruction_rows(profile, kernels.program[rows[left]], names, place.reshape(-1))
        how[rows[left]] = np.where(found[rows[left]] >= 0, way, how[rows[left]])
        nowhere = has & (kernels.program[rows] < 0) & (name_alone[rows] < 0)
        name_alone[rows[nowhere]], how[rows[nowhere]] = text[nowhere], way
    left_over = np.flatnonzero((found < 0) & (kernels.program >= 0))
    if len(left_over):
        plans = LaunchPlans(profile)
        for program in np.unique(kernels.program[left_over]).tolist():
            mine = np.flatnonzero(kernels.program == program)
            _OfProgram(events, kernels, mine, plans.of(program), found, how).resolve(execution, in_graph)
    return found, how, name_alone


class _OfProgram:
    """The kernels of one program that do not state their instruction; writes into ``found`` and ``how``."""

    def __init__(
        self, events: Events, kernels: Kernels, mine: Int64, plan: LaunchPlan, found: Int64, how: Int64
    ) -> None:
        self.events, self.kernels, self.mine, self.plan, self.found, self.how = events, kernels, mine, plan, found, how
        codes = occurring(events.name[kernels.row[mine]], len(events.names)).tolist()
        self.text = {code: plain(events.names[code].removesuffix(".kd")) for code in codes}
        self.candidates = plan.candidates(frozenset(self.text.values()))

    def resolve(self, execution: Int64, in_graph: Bool) -> None:
        name = self.events.name[self.kernels.row]
        missing = self.mine[self.found[self.mine] < 0]
        for code in occurring(name[missing], len(self.events.names)).tolist():
            ops = self.candidates[self.text[code]]
            rows = missing[name[missing] == code]
            if len(ops) == 1:
                self.found[rows], self.how[rows] = ops[0], NAME
            elif ops:
                self.how[rows] = AMBIGUOUS
        in_order = self.mine[execution[self.mine] >= 0]
        open_ones = np.unique(execution[in_order[self.found[in_order] < 0]])
        in_order = in_order[np.isin(execution[in_order], open_ones)]
        if not len(in_order) or not self.plan.slots:
            return
        in_order = self._by_launch(in_order, execution)
        # Executions whose kernels are called alike, and know the same of themselves, are laid over the plan once.
        said = np.stack((name[in_order].astype(np.int64), self.found[in_order]), axis=1)
        cuts = np.flatnonzero(np.diff(execution[in_order])) + 1
        answers: dict[bytes, tuple[Int64, Bool]] = {}
        for low, high in zip(np.append(0, cuts).tolist(), np.append(cuts, len(in_order)).tolist(), strict=True):
            key = said[low:high].tobytes()
            if key not in answers:
                fits = self._fits(said[low:high])
                answers[key] = ops_of_kernels(self.plan, fits), np.asarray(fits.any(axis=1))
            rows = in_order[low:high]
            found, possible = answers[key]
            told = (found >= 0) & (self.found[rows] < 0)
            self.how[rows[possible & ~told & (self.found[rows] < 0)]] = AMBIGUOUS
            self.found[rows[told]] = found[told]
            self.how[rows[told]] = np.where(in_graph[rows[told]], GRAPH_ORDER, ORDER)

    def _by_launch(self, rows: Int64, execution: Int64) -> Int64:
        """In the order in which each execution launched them; nodes of one graph in that in which they were made."""
        events, call = self.events, self.kernels.call[rows]
        row = self.kernels.row[rows]
        launched = np.where(call >= 0, events.start_ps[call], events.start_ps[row])
        node = events.argument_of("cuda_graph_node_id", row)[1].view(np.uint64)
        return rows[np.lexsort((events.start_ps[row], node, call, launched, execution[rows]))]

    def _fits(self, said: Int64) -> Bool:
        """(kernels, slots): by instruction where it is known, else by name and kind."""
        slots = self.plan.slots
        op = np.array([slot.op for slot in slots], np.int64)
        kind = np.array([slot.kind for slot in slots], np.int64)
        columns: dict[tuple[int, int], Bool] = {}
        for code, known in {(int(c), int(k)) for c, k in said.tolist()}:
            ops = self.candidates[self.text[code]]
            wanted = kind_of_kernel(self.events.names[code], bool(ops))
            if known >= 0:
                columns[code, known] = op == known
            else:
                columns[code, known] = np.isin(op, ops) if wanted == NAMED else kind == wanted
        return np.array([columns[int(c), int(k)] for c, k in said.tolist()], np.bool_)
