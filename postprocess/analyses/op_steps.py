"""How long did each op take in each step? The distributions that two runs are compared by.

Per host, lane, op and step: picoseconds (own event plus the part it stayed open after it, as in top_ops) and how often
it ran. Leaves of runs that belong to a step; a copy belongs to the step whose window it starts in. Work outside steps
is left out. Ops that overlap are each counted in full.

An op is told by what it is in its program, not by the number in its name, which changes with every compile: program
name, opcode, source line, op_name path, and `rank`, its place among the equal ones that ran, in the program's order.
Several programs of one name (recompiles) are one. `class` is the one with the most time where an op had several.

One row per host, lane and op; `steps` lists the rows of the host's table `steps` in which it ran, `total_ps` and
`count` belong to them: a step that is not listed took 0.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.analyses.leaves import leaves, step_of_leaves
from xprof_py.postprocess.analyses.top_ops import COPY, names_without_hlo, on_device_plane
from xprof_py.postprocess.join.columns import Int64, dictionary, distinct, integers
from xprof_py.postprocess.profile import Profile

TEXTS = ("program", "opcode", "source", "op_name")
"""What two ops have in common that `rank` tells apart."""
_SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("lane", pa.int32()),
        *((name, pa.string()) for name in TEXTS),
        ("rank", pa.int32()),
        ("op", pa.string()),
        ("class", pa.string()),
        ("steps", pa.list_(pa.int32())),
        ("total_ps", pa.list_(pa.int64())),
        ("count", pa.list_(pa.int32())),
    ]
)
_ORDER = [(name, "ascending") for name in ("host", "lane", *TEXTS, "rank")]
_NUMBER = re.compile(r"\.(\d+)$")


def partial(profile: Profile) -> pa.Table:
    """Columns of _SCHEMA for one joined profile."""
    ops, step = leaves(profile), step_of_leaves(profile)
    if (step < 0).any():
        ops, step = ops.filter(pa.array(step >= 0)), step[step >= 0]
    if not ops.num_rows:
        return _SCHEMA.empty_table()
    instruction, names = _instructions(profile, ops)
    identities, identity_of = _identities(profile, names)
    identity = identity_of[instruction]
    length = integers(ops, "duration_ps") + integers(ops, "open_ps")
    class_code, classes = dictionary(ops, "class")
    most = _largest_class(identity, class_code.astype(np.int64), length, len(identities), len(classes))

    lane = integers(ops, "lane")
    first_of, cell_of = distinct(lane, identity, step)
    total = np.zeros(len(first_of), np.int64)
    np.add.at(total, cell_of, length)
    count = np.bincount(cell_of, minlength=len(first_of))
    # Cells are sorted by lane, op and step, so a row's cells lie together.
    lane, identity, step = lane[first_of], identity[first_of], step[first_of]
    first = np.flatnonzero(np.r_[True, (lane[1:] != lane[:-1]) | (identity[1:] != identity[:-1])])
    offsets = pa.array(np.r_[first, len(first_of)], pa.int32())
    lane, identity = lane[first], identity[first]
    described = [identities[i] for i in identity]
    return pa.table(
        {
            "host": pa.repeat(pa.scalar(profile.host), len(first)),
            "lane": pa.array(lane, pa.int32()),
            **{name: [row[at] for row in described] for at, name in enumerate((*TEXTS, "rank", "op"))},
            "class": [classes[most[i]] for i in identity],
            "steps": pa.ListArray.from_arrays(offsets, pa.array(step, pa.int32())),
            "total_ps": pa.ListArray.from_arrays(offsets, pa.array(total)),
            "count": pa.ListArray.from_arrays(offsets, pa.array(count, pa.int32())),
        },
        schema=_SCHEMA,
    )


def _instructions(profile: Profile, ops: pa.Table) -> tuple[Int64, list[tuple[int, str]]]:
    """(place per op, (row of hlo_ops or -1, event name) per place). All copies are one; ops without HLO go by name."""
    hlo_op = integers(ops, "hlo_op")
    name, names = names_without_hlo(profile, ops)
    is_copy = (integers(ops, "run") < 0) & ~on_device_plane(profile, ops)
    nameless = np.where(is_copy, -1, -2 - name)
    what = np.where(hlo_op >= 0, hlo_op, nameless)
    first, place = distinct(what)
    found = [(k, "") if k >= 0 else (-1, COPY if k == -1 else names[-2 - k]) for k in what[first].tolist()]
    return place, found


_Identity = tuple[str, str, str, str, int, str]
"""TEXTS, rank, the name that is shown."""


def _identities(profile: Profile, names: list[tuple[int, str]]) -> tuple[list[_Identity], Int64]:
    """(distinct identities, identity per instruction of ``names``)."""
    described = _described(profile, [row for row, _ in names if row >= 0])
    equal: dict[tuple[int, tuple[str, str, str, str]], list[tuple[int, int, str, int]]] = defaultdict(list)
    for place, (row, name) in enumerate(names):
        if row >= 0:
            program, op, texts = described[row]
            equal[program, texts].append((row, 0, op, place))
        else:
            number = _NUMBER.search(name)
            stem = _NUMBER.sub("", name)
            texts = ("", "copy" if name == COPY else "", "", stem)
            equal[-1, texts].append((0, int(number[1]) if number else -1, name, place))
    of_identity: dict[tuple[str, str, str, str, int], int] = {}
    identities: list[_Identity] = []
    out = np.zeros(len(names), np.int64)
    for (_, texts), members in sorted(equal.items()):
        for rank, (_, _, op, place) in enumerate(sorted(members)):
            key = (*texts, rank)
            if key not in of_identity:
                of_identity[key] = len(identities)
                identities.append((*key, op))
            out[place] = of_identity[key]
    return identities, out


def _described(profile: Profile, rows: Iterable[int]) -> dict[int, tuple[int, str, tuple[str, str, str, str]]]:
    """Row of hlo_ops -> (program row, name, TEXTS)."""
    hlo = profile["hlo_ops"]
    programs = profile["programs"]["name"].to_pylist()
    rows = list(rows)
    wanted = ["program", "name", "opcode", "file", "source_line", "op_name"]
    picked = hlo.select(wanted).take(pa.array(rows, pa.int64())).to_pylist()
    out = {}
    for row, said in zip(rows, picked, strict=True):
        source = f"{said['file']}:{said['source_line']}" if said["file"] else ""
        texts = (programs[said["program"]], said["opcode"], source, said["op_name"] or "")
        out[row] = (said["program"], said["name"], texts)
    return out


def _largest_class(identity: Int64, class_code: Int64, length: Int64, identities: int, classes: int) -> Int64:
    """Per identity the code of the class with the most time; the earlier one where two have the same."""
    sums = np.zeros((identities, classes), np.int64)
    np.add.at(sums, (identity, class_code), length)
    return np.asarray(sums.argmax(axis=1), np.int64)


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Rows of both: an op on a lane belongs to one profile."""
    return pa.concat_tables([a, b])


def finish(merged: pa.Table) -> pa.Table:
    """The same rows, sorted by host, lane and op."""
    return merged.sort_by(_ORDER)
