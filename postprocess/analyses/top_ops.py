"""Which ops did the device spend its time in?

Per HLO instruction: total picoseconds (own event plus the part it stayed open after it), count and the longest one,
over the steps of the phases asked for. Leaves only. Ops that overlap are each counted in full, so totals may exceed the
lane's busy time. A copy belongs to no run: its step is that of the window it starts in.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses.leaves import leaves, step_of_leaves
from xprof_py.postprocess.join.columns import Int64, dictionary, distinct, integers
from xprof_py.postprocess.profile import Profile

KEYS = ["op", "opcode", "class", "program", "source", "op_name", "phase"]
_SUMS = ("total_ps", "count", "longest_ps")
_SCHEMA = pa.schema([*((k, pa.string()) for k in KEYS), *((k, pa.int64()) for k in _SUMS)])
COPY = "copy to the device"


def partial(profile: Profile) -> pa.Table:
    """KEYS, total_ps, count, longest_ps of one joined profile; `phase` is "" outside steps."""
    ops = leaves(profile)
    hlo_op = integers(ops, "hlo_op")
    total = integers(ops, "duration_ps") + integers(ops, "open_ps")
    class_code, classes = dictionary(ops, "class")
    name_code, names = names_without_hlo(profile, ops)
    phase_code, phases = phase_of_leaves(profile)
    # One key per instruction; ops without HLO are told apart by their names, copies are all one.
    is_copy = (integers(ops, "run") < 0) & ~on_device_plane(profile, ops)
    nameless = np.where(is_copy, -1, -2 - name_code)
    instruction_of = np.where(hlo_op >= 0, hlo_op, nameless)
    first, group = distinct(instruction_of, phase_code)
    found = np.stack([instruction_of[first], phase_code[first]], axis=1)
    sums = np.zeros(len(found), np.int64)
    longest = np.zeros(len(found), np.int64)
    np.add.at(sums, group, total)
    np.maximum.at(longest, group, total)
    count = np.bincount(group, minlength=len(found))
    instruction = Instructions(profile)
    rows = []
    for i, (row, phase) in enumerate(found.tolist()):
        at = int(first[i])
        name = COPY if row == -1 else names[name_code[at]]
        described = instruction.describe(row) if row >= 0 else _without_hlo(name, "copy" if row == -1 else "")
        described |= {"class": classes[class_code[at]], "phase": phases[phase]}
        rows.append({**described, "total_ps": int(sums[i]), "count": int(count[i]), "longest_ps": int(longest[i])})
    return merge(pa.Table.from_pylist(rows, schema=_SCHEMA), None)


def names_without_hlo(profile: Profile, ops: pa.Table) -> tuple[Int64, list[str]]:
    """(code per row of ``ops``, names): what an op without HLO is called, its stated instruction, else its event."""
    of_event, names = dictionary(profile["events"], "name")
    code = of_event[integers(ops, "event")].astype(np.int64)
    rows = np.flatnonzero(pc.is_valid(ops["stated_op"]).to_numpy())
    if not len(rows):
        return code, names
    stated, texts = dictionary(ops.select(["stated_op"]).take(pa.array(rows)), "stated_op")
    number = {name: at for at, name in enumerate(names)}
    of_text = np.array([number.setdefault(text, len(number)) for text in texts], np.int64)
    code[rows] = of_text[stated]
    return code, list(number)


def on_device_plane(profile: Profile, ops: pa.Table) -> npt.NDArray[np.bool_]:
    """Per row of ``ops`` whether its lane is a device with a plane of its own: there copies have names."""
    named = np.array([name.startswith("/device:") for name in profile["lanes"]["device"].to_pylist()], np.bool_)
    return named[integers(ops, "lane")]


def phase_of_leaves(profile: Profile) -> tuple[Int64, list[str]]:
    """(code per leaf, phases): that of its step."""
    phases = ["", *sorted(set(profile["steps"]["phase"].to_pylist()))]
    of_step = np.array([phases.index(p) for p in profile["steps"]["phase"].to_pylist()] or [0], np.int64)
    step = step_of_leaves(profile)
    return np.where(step >= 0, of_step[np.maximum(step, 0)], 0), phases


class Instructions:
    """What hlo_ops says of an instruction, as the text columns of KEYS."""

    def __init__(self, profile: Profile) -> None:
        hlo = profile["hlo_ops"]
        self._name, self._names = dictionary(hlo, "name")
        self._opcode, self._opcodes = dictionary(hlo, "opcode")
        self._file, self._files = dictionary(hlo, "file")
        self._line = integers(hlo, "source_line", 0)
        self._op_name = hlo["op_name"]
        self._program = integers(hlo, "program")
        self._programs = profile["programs"]["name"].to_pylist()

    def describe(self, row: int) -> dict[str, str]:
        """Row ``row`` of hlo_ops: op, opcode, program, source, op_name."""
        file = self._files[self._file[row]]
        return {
            "op": self._names[self._name[row]],
            "opcode": self._opcodes[self._opcode[row]],
            "program": self._programs[self._program[row]],
            "source": f"{file}:{self._line[row]}" if file else "",
            "op_name": self._op_name[row].as_py() or "",
        }


def _without_hlo(name: str, opcode: str) -> dict[str, str]:
    return {"op": name, "opcode": opcode, "program": "", "source": "", "op_name": ""}


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Sums and maxima per instruction and phase."""
    both = a if b is None else pa.concat_tables([a, b])
    return _summed(both, KEYS)


def _summed(table: pa.Table, keys: list[str]) -> pa.Table:
    summed = table.group_by(keys).aggregate([("total_ps", "sum"), ("count", "sum"), ("longest_ps", "max")])
    return summed.rename_columns([c.removesuffix("_sum").removesuffix("_max") for c in summed.column_names])


def finish(merged: pa.Table, phases: tuple[str, ...]) -> pa.Table:
    """Per instruction over steps of these phases (outside steps too, if there is no step), longest total first.

    `mean_ps` is added, rounded down.
    """
    steps = merged.filter(pc.is_in(merged["phase"], pa.array(phases)))
    keys = [key for key in KEYS if key != "phase"]
    used = _summed(steps if steps.num_rows else merged, keys)
    table = used.sort_by([("total_ps", "descending"), *((key, "ascending") for key in keys)])
    return table.append_column("mean_ps", pc.divide(table["total_ps"], table["count"]))
