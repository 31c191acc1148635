"""Which ops did the device spend its time in?

Per HLO instruction: total picoseconds (own event plus the part it stayed open after it), count and the longest one.
Leaves only. Ops that overlap are each counted in full, so totals may exceed the lane's busy time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.join.columns import dictionary, integers
from xprof_py.postprocess.profile import Profile

KEYS = ["op", "opcode", "class", "program", "source", "op_name"]


def partial(profile: Profile) -> pa.Table:
    """KEYS, total_ps, count, longest_ps of one joined profile."""
    ops = profile["ops"].filter(profile["ops"]["leaf"])
    hlo_op = integers(ops, "hlo_op")
    run = integers(ops, "run")
    total = integers(ops, "duration_ps") + integers(ops, "open_ps")
    hlo = profile["hlo_ops"]
    name_code, names = dictionary(hlo, "name")
    opcode_code, opcodes = dictionary(hlo, "opcode")
    file_code, files = dictionary(hlo, "file")
    line = integers(hlo, "source_line", 0)
    op_names = hlo["op_name"]
    programs = profile["programs"]["name"].to_pylist()
    program_of = integers(hlo, "program")
    event_code, event_names = dictionary(profile["events"], "name")
    event = integers(ops, "event")
    class_code, classes = dictionary(ops, "class")
    # One key per instruction; ops without HLO are told apart by name and class.
    key = np.where(hlo_op >= 0, hlo_op, -1 - event_code[event].astype(np.int64))
    found, first, group = np.unique(key, return_index=True, return_inverse=True)
    sums = np.zeros(len(found), np.int64)
    longest = np.zeros(len(found), np.int64)
    np.add.at(sums, group, total)
    np.maximum.at(longest, group, total)
    count = np.bincount(group, minlength=len(found))
    rows = []
    for i, row in enumerate(found):
        at = int(first[i])
        if row >= 0:
            text = files[file_code[row]]
            described = {
                "op": names[name_code[row]],
                "opcode": opcodes[opcode_code[row]],
                "program": programs[program_of[row]],
                "source": f"{text}:{line[row]}" if text else "",
                "op_name": op_names[int(row)].as_py() or "",
            }
        else:
            kind = "copy" if run[at] < 0 else ""
            described = {
                "op": event_names[event_code[event[at]]],
                "opcode": kind,
                "program": "",
                "source": "",
                "op_name": "",
            }
        described["class"] = classes[class_code[at]]
        rows.append({**described, "total_ps": int(sums[i]), "count": int(count[i]), "longest_ps": int(longest[i])})
    fields = [*((k, pa.string()) for k in KEYS), *((k, pa.int64()) for k in ("total_ps", "count", "longest_ps"))]
    return merge(pa.Table.from_pylist(rows, schema=pa.schema(fields)), None)


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Sums and maxima per instruction."""
    both = a if b is None else pa.concat_tables([a, b])
    summed = both.group_by(KEYS).aggregate([("total_ps", "sum"), ("count", "sum"), ("longest_ps", "max")])
    return summed.rename_columns([c.removesuffix("_sum").removesuffix("_max") for c in summed.column_names])


def finish(merged: pa.Table) -> pa.Table:
    """The same rows, longest total first; `mean_ps` added (rounded down)."""
    table = merged.sort_by([("total_ps", "descending"), *((key, "ascending") for key in KEYS)])
    mean = pc.divide(table["total_ps"], table["count"])
    return table.append_column("mean_ps", mean)
