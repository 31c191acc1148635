"""Which programs of several processes are the same one, and which ranks run it.

A program is what it computes: the opcodes, shapes and edges of its instructions, in order. Names of modules carry
suffixes that differ between processes, ids are each process's own, and paths of source files are a machine's. Ranks
that run the same programs are a stage; pipeline stages run different ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from xprof_py.postprocess.join import host_names
from xprof_py.postprocess.join.columns import dictionary, integers
from xprof_py.postprocess.profile import Profile

LEAST_SHARE = 20
"""One part in so many of a rank's device time: what takes less does not make it a stage of its own."""


def signatures(profile: Profile) -> list[str]:
    """Per row of `programs` a text that is equal for equal programs: a digest, or the module's name without HLO."""
    names = profile["programs"]["name"].to_pylist()
    out = [f"name:{host_names.module_key(name)}" for name in names]
    if not profile["hlo_ops"].num_rows:
        return out
    hlo = profile["hlo_ops"]
    program, computation = integers(hlo, "program"), integers(hlo, "computation")
    code, opcodes = dictionary(hlo, "opcode")
    operands, shapes = profile["hlo_operands"], profile["hlo_shapes"]
    consumer, producer = integers(operands, "op"), integers(operands, "operand")
    shaped = integers(shapes, "op")
    types, dimensions = shapes["type"].to_pylist(), shapes["dimensions"].to_pylist()
    for row in np.unique(program).tolist():
        rows = np.flatnonzero(program == row)
        first = int(rows[0])
        edges = np.flatnonzero((consumer >= first) & (consumer <= rows[-1]))
        digest = hashlib.sha256()
        digest.update(",".join(opcodes[c] for c in code[rows].tolist()).encode())
        digest.update((computation[rows] - computation[rows].min()).astype("<i8").tobytes())
        digest.update((np.stack([consumer[edges], producer[edges]]) - first).astype("<i8").tobytes())
        mine = np.flatnonzero((shaped >= first) & (shaped <= rows[-1])).tolist()
        digest.update(repr([(int(shaped[i]) - first, types[i], dimensions[i]) for i in mine]).encode())
        out[row] = digest.hexdigest()[:16]
    return out


def stages(programs_of_rank: Sequence[Mapping[str, int]]) -> list[int | None]:
    """Per rank the number of its stage, from the device time of each of its programs; None for a rank without any.

    Two ranks are of one stage unless a program that takes LEAST_SHARE of the one does not run on the other at all: a
    rank that also logs or saves is none of its own. A rank belongs to the first stage whose first rank it goes with.
    """
    first: list[Mapping[str, int]] = []
    out: list[int | None] = []
    for programs in programs_of_rank:
        if not programs:
            out.append(None)
            continue
        at = next((at for at, other in enumerate(first) if not _apart(programs, other)), len(first))
        if at == len(first):
            first.append(programs)
        out.append(at)
    return out


def _apart(a: Mapping[str, int], b: Mapping[str, int]) -> bool:
    return any(
        ps * LEAST_SHARE >= sum(mine.values()) and name not in other
        for mine, other in ((a, b), (b, a))
        for name, ps in mine.items()
    )
