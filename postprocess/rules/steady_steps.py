"""The steady steps of an analysed run as samples: step time, classes and ops per step, as the mean over lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xprof_py.postprocess.schema import CLASSES

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Op:
    """What an op is in its program; ``rank`` tells apart those that are equal in the rest. ``op``, ``class_name``: as
    this run names and classes it, no part of what it is."""

    program: str
    opcode: str
    source: str
    op_name: str
    rank: int
    op: str
    class_name: str


@dataclass(frozen=True)
class SteadySteps:
    """``n`` steps of one name in order of start, each steady on every lane. Times are ps, mean over lanes.

    ``number``: (n,). ``step_ps``: (n,). ``class_ps``: (len(CLASSES), n). ``ops``: k of them, ``op_ps``: (k, n).
    """

    name: str
    number: Int64
    lanes: int
    step_ps: Float64
    class_ps: Float64
    ops: tuple[Op, ...]
    op_ps: Float64

    def __len__(self) -> int:
        return len(self.number)

    def take(self, steps: Int64) -> SteadySteps:
        """The same with these steps only; ``steps``: places in 0..n-1, in order."""
        return replace(
            self,
            number=self.number[steps],
            step_ps=self.step_ps[steps],
            class_ps=self.class_ps[:, steps],
            op_ps=self.op_ps[:, steps],
        )


def names_by_time(tables: Mapping[str, pa.Table]) -> list[str]:
    """Names of steps that are steady somewhere, the one with the most time first."""
    steady = _steady(tables["step_classes"])
    sums = steady.group_by("name").aggregate([("window_ps", "sum")]).to_pylist()
    return [row["name"] for row in sorted(sums, key=lambda row: (-row["window_ps_sum"], row["name"]))]


def read_steady_steps(tables: Mapping[str, pa.Table], name: str) -> SteadySteps:
    """The steady steps called ``name`` of an analysis (tables step_classes, steps, op_steps).

    A step that is not steady on every lane of the job is left out. May be empty.
    """
    windows = tables["step_classes"]
    windows = windows.filter(pc.and_(pc.equal(windows["kind"], "step"), pc.equal(windows["name"], name)))
    lanes = max(windows.group_by(["host", "lane"]).aggregate([]).num_rows, 1)
    steady = _steady(windows)
    keys = _keys(steady)
    found = Counter(keys)
    # Sorted by host, lane and start: the first lane's order is the order of the steps.
    column = {key: at for at, key in enumerate(key for key in dict.fromkeys(keys) if found[key] == lanes)}
    at = np.array([column.get(key, -1) for key in keys] or np.zeros(0), np.int64)
    rows, at = np.flatnonzero(at >= 0), at[at >= 0]
    step = np.zeros(len(column), np.int64)
    np.add.at(step, at, steady["window_ps"].to_numpy()[rows])
    classes = np.zeros((len(CLASSES), len(column)), np.int64)
    for code, class_name in enumerate(CLASSES):
        np.add.at(classes[code], at, steady[f"{class_name}_ps"].to_numpy()[rows])
    ops, op_ps = _read_ops(tables, name, column)
    return SteadySteps(
        name=name,
        number=np.array([number for number, _ in column] or np.zeros(0), np.int64),
        lanes=lanes,
        step_ps=step / lanes,
        class_ps=classes / lanes,
        ops=ops,
        op_ps=op_ps / lanes,
    )


def _steady(windows: pa.Table) -> pa.Table:
    return windows.filter(pc.and_(pc.equal(windows["kind"], "step"), pc.equal(windows["phase"], "steady")))


def _keys(steps: pa.Table) -> list[tuple[int, int]]:
    return list(zip(steps["number"].to_pylist(), steps["occurrence"].to_pylist(), strict=True))


def _read_ops(
    tables: Mapping[str, pa.Table], name: str, column: Mapping[tuple[int, int], int]
) -> tuple[tuple[Op, ...], Int64]:
    """(ops in order of what they are, picoseconds per op and step summed over lanes)."""
    column_of_row = {}
    for host in tables["steps"]["host"].unique().to_pylist():
        steps = tables["steps"].filter(pc.equal(tables["steps"]["host"], host))
        named = steps["name"].to_pylist()
        column_of_row[host] = np.array(
            [column.get(key, -1) if named[row] == name else -1 for row, key in enumerate(_keys(steps))], np.int64
        )
    places: dict[tuple[str, str, str, str, int], int] = {}
    ops: list[Op] = []
    sums: list[Int64] = []
    for row in tables["op_steps"].to_pylist():
        steps = column_of_row[row["host"]][np.array(row["steps"], np.int64)]
        key = (row["program"], row["opcode"], row["source"], row["op_name"], row["rank"])
        if key not in places:
            places[key] = len(ops)
            ops.append(Op(*key, row["op"], row["class"]))
            sums.append(np.zeros(len(column), np.int64))
        np.add.at(sums[places[key]], steps[steps >= 0], np.array(row["total_ps"], np.int64)[steps >= 0])
    order = [places[key] for key in sorted(places)]
    matrix = np.stack([sums[i] for i in order]) if order else np.zeros((0, len(column)), np.int64)
    ran = np.flatnonzero((matrix > 0).any(axis=1))
    return tuple(ops[order[i]] for i in ran), matrix[ran]


def matched_ops(a: SteadySteps, b: SteadySteps) -> list[tuple[int, int]]:
    """(place among ``a.ops``, place among ``b.ops``) of every op of either run; -1 where the other run has none.

    Ops of one program name, opcode and op_name path are the same where both runs have as many of them: in the order of
    their source lines and ranks, so that an edit above them changes nothing. Otherwise those at the same source line
    and rank are.
    """
    groups: dict[tuple[str, str, str], tuple[list[int], list[int]]] = {}
    for side, ops in enumerate((a.ops, b.ops)):
        for place, op in enumerate(ops):
            groups.setdefault((op.program, op.opcode, op.op_name), ([], []))[side].append(place)
    out = []
    for _, (left, right) in sorted(groups.items()):
        if len(left) == len(right):
            in_order = (
                sorted(left, key=lambda i: _position(a.ops[i])),
                sorted(right, key=lambda i: _position(b.ops[i])),
            )
            out += list(zip(*in_order, strict=True))
            continue
        exact = {(b.ops[place].source, b.ops[place].rank): place for place in right}
        out += [(place, exact.pop((a.ops[place].source, a.ops[place].rank), -1)) for place in left]
        out += [(-1, place) for place in exact.values()]
    return out


def _position(op: Op) -> tuple[str, int, int]:
    file, _, line = op.source.rpartition(":")
    return file, int(line) if line.isdigit() else -1, op.rank
