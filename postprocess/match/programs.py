"""Which programs of several processes are the same one, and which ranks run it.

A program is what it computes: the opcodes, shapes and edges of its instructions, in order. Names of modules carry
suffixes that differ between processes, ids are each process's own, and paths of source files are a machine's. Ranks
that run the same programs are a stage; pipeline stages run different ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from xprof_py.postprocess.join import host_names
from xprof_py.postprocess.join.columns import dictionary, integers
from xprof_py.postprocess.profile import Profile


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


def stages(programs_of_rank: Sequence[frozenset[str]]) -> list[int]:
    """Per rank the number of its stage: ranks with one set of programs are one stage, numbered by their first rank."""
    seen: dict[frozenset[str], int] = {}
    return [seen.setdefault(programs, len(seen)) for programs in programs_of_rank]
