"""Which part of training do ops belong to: forward, backward, rematerialisation or optimizer?

From the path that JAX writes as an op's op_name (for a fusion that of its root, or the first inside it that has one):
  remat      `rematted_computation` on the path, or an instruction that XLA itself made again (`.remat` in its name)
  backward   `transpose(` and `jvp(` on the path
  forward    `jvp(` alone
  optimizer  none of these, and it reads, directly or through others, the result of a backward op: what comes after the
             backward pass, so gradient accumulation, clipping and explicit reductions of gradients count here
An op without a path (a copy, a bitcast) belongs to the phase that all of its operands with a phase share. In the body
of a loop or call, what is still open takes the phase of the op that calls it. Everything else is null, and so is every
op of a program without `jvp(`: an evaluation step has no phases.

Sums are as in analyses.top_ops: own event plus the part it stayed open after it, leaves only; ops that overlap are each
counted in full, so that sums may exceed the lane's busy time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses.leaves import leaves
from xprof_py.postprocess.analyses.top_ops import phase_of_leaves
from xprof_py.postprocess.join.columns import Int64, Integers, dictionary, distinct, integers, occurring
from xprof_py.postprocess.profile import Profile

PHASES = ("forward", "backward", "remat", "optimizer")
KEYS = ["op_phase", "class", "phase"]
_SCHEMA = pa.schema([*((key, pa.string()) for key in KEYS), ("total_ps", pa.int64()), ("count", pa.int64())])

_OPEN, _FORWARD, _BACKWARD, _REMAT, _OPTIMIZER = range(5)
_REMATTED = re.compile(r"(^|/)rematted_computation(/|$)")
_TRANSPOSE = re.compile(r"(^|[/(;])transpose\(")
_JVP = re.compile(r"(^|[/(;])jvp\(")
_XLA_REMAT = re.compile(r"\.remat\d*(\.|$)")
_NO_VALUE = frozenset({"parameter", "constant"})


def partial(profile: Profile) -> pa.Table:
    """KEYS, total_ps, count of one joined profile; `op_phase` is null where unknown, `phase` where no step is known."""
    ops = leaves(profile)
    in_program = np.flatnonzero((integers(ops, "hlo_op") >= 0) & (integers(ops, "run") >= 0))
    if not len(in_program):
        return _SCHEMA.empty_table()
    hlo_op = integers(ops, "hlo_op")[in_program]
    executed = occurring(hlo_op, profile["hlo_ops"].num_rows)
    of_instruction = phase_codes(profile, np.unique(integers(profile["hlo_ops"], "program")[executed]))
    class_code, classes = dictionary(ops, "class")
    phase_code, phases = phase_of_leaves(profile)
    codes: tuple[Integers, ...] = (of_instruction[hlo_op], class_code[in_program], phase_code[in_program])
    first, group = distinct(*codes)
    total_ps = np.zeros(len(first), np.int64)
    np.add.at(total_ps, group, (integers(ops, "duration_ps") + integers(ops, "open_ps"))[in_program])
    texts: tuple[Sequence[str | None], ...] = ([None, *PHASES], classes, [phase or None for phase in phases])
    named = {
        key: [words[code] for code in column[first].tolist()]
        for key, column, words in zip(KEYS, codes, texts, strict=True)
    }
    count = np.bincount(group, minlength=len(first))
    return merge(pa.table({**named, "total_ps": total_ps, "count": count}, schema=_SCHEMA), None)


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Sums per key."""
    both = a if b is None else pa.concat_tables([a, b])
    return _summed(both, KEYS)


def _summed(table: pa.Table, keys: list[str]) -> pa.Table:
    summed = table.group_by(keys).aggregate([("total_ps", "sum"), ("count", "sum")])
    return summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])


def finish(merged: pa.Table, phases: tuple[str, ...]) -> pa.Table:
    """Per phase of training and class, over steps of these phases (of all ops, if there is no step), longest first."""
    steps = merged.filter(pc.is_in(merged["phase"], pa.array(phases)))
    keys = [key for key in KEYS if key != "phase"]
    used = _summed(steps if steps.num_rows else merged, keys)
    return used.sort_by([("total_ps", "descending"), *((key, "ascending") for key in keys)])


def phase_codes(profile: Profile, programs: Sequence[int] | Int64) -> Int64:
    """Per row of `hlo_ops` 0 (unknown) or 1 + the row of PHASES; only ``programs`` (rows of `programs`) are read."""
    hlo = profile["hlo_ops"]
    codes = np.zeros(hlo.num_rows, np.int64)
    wanted = np.isin(integers(hlo, "program"), programs)
    rows = np.flatnonzero(wanted)
    if not len(rows):
        return codes
    graph = _Graph(profile, rows)
    own = [_own_phase(path, name) for path, name in zip(graph.paths, graph.names, strict=True)]
    with_jvp = np.unique(graph.program[np.array(own) != _OPEN])
    codes[rows] = np.where(np.isin(graph.program, with_jvp), graph.settle(own), _OPEN)
    return codes


def _own_phase(path: str, name: str) -> int:
    """What the path and the name of an instruction say by themselves."""
    if _REMATTED.search(path) or _XLA_REMAT.search(name):
        return _REMAT
    if _JVP.search(path):
        return _BACKWARD if _TRANSPOSE.search(path) else _FORWARD
    return _OPEN


class _Graph:
    """The instructions of some programs by position, with their operands and the computations that they call."""

    def __init__(self, profile: Profile, rows: Int64) -> None:
        hlo = profile["hlo_ops"]
        position = np.full(hlo.num_rows, -1, np.int64)
        position[rows] = np.arange(len(rows))
        self.paths: list[str] = hlo["op_name"].take(pa.array(rows)).to_pylist()
        codes, names = dictionary(hlo, "name")
        self.names = [names[code] for code in codes[rows]]
        opcodes, words = dictionary(hlo, "opcode")
        self._no_value = np.isin(opcodes[rows], [i for i, word in enumerate(words) if word in _NO_VALUE])
        self.program = integers(hlo, "program")[rows]
        self._computation = integers(hlo, "computation")[rows]
        self._operands = _lists(profile["hlo_operands"], "op", "operand", position)
        self._calls = _lists(profile["hlo_calls"], "op", "computation", position, second=False)

    def settle(self, own: list[int]) -> Int64:
        """The phase of every instruction, from what each says by itself."""
        members: dict[int, list[int]] = {}
        for at, computation in enumerate(self._computation.tolist()):
            members.setdefault(computation, []).append(at)
        # Callees first, as XLA writes them: whether a loop holds backward ops is known when its caller is reached.
        makes_gradients = [phase in (_BACKWARD, _REMAT) for phase in own]
        holds = set()
        phase = list(own)
        for computation, inside in members.items():
            after = set()
            for at in inside:
                calls = self._calls.get(at, ())
                makes_gradients[at] |= any(called in holds for called in calls)
                operands = self._operands.get(at, ())
                if any(makes_gradients[operand] or operand in after for operand in operands):
                    after.add(at)
                if phase[at] != _OPEN:
                    continue
                shared = {phase[operand] for operand in operands} - {_OPEN}
                if not self.paths[at] and len(shared) == 1:
                    phase[at] = shared.pop()
                elif at in after and not self._no_value[at]:
                    phase[at] = _OPTIMIZER
            if any(makes_gradients[at] for at in inside):
                holds.add(computation)
        # Callers last first, so that a body inside a body takes what its caller was given.
        for at in reversed(range(len(phase))):
            for called in self._calls.get(at, ()) if phase[at] != _OPEN else ():
                for inner in members.get(called, ()):
                    if phase[inner] == _OPEN:
                        phase[inner] = phase[at]
        return np.array(phase, np.int64)


def _lists(
    table: pa.Table, first: str, second_name: str, position: Int64, *, second: bool = True
) -> dict[int, list[int]]:
    """Edges as lists by position of the first end; ``second``: the second end is an instruction too."""
    start = position[integers(table, first)]
    end = integers(table, second_name)
    end = position[end] if second else end
    out: dict[int, list[int]] = {}
    for a, b in zip(start[start >= 0].tolist(), end[start >= 0].tolist(), strict=True):
        out.setdefault(a, []).append(b)
    return out
