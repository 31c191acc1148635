"""Collectives of a communication library (NCCL, RCCL) of which a trace has kernels and no HLO.

PyTorch copies what it knows of a collective to its kernel: the process group and its ranks, a number that counts in the
group (`Seq`), elements and their type. Kernels without these say their kind by name alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from xprof_py.postprocess.join.columns import Bool, Events, Int64

_KINDS = (
    ("all-reduce", re.compile(r"all_?reduce", re.I)),
    ("all-gather", re.compile(r"all_?gather", re.I)),
    ("reduce-scatter", re.compile(r"reduce_?scatter", re.I)),
    ("all-to-all", re.compile(r"all_?to_?all", re.I)),
    ("collective-broadcast", re.compile(r"broadcast", re.I)),
)
# Names of ScalarType in c10, as the trace writes them.
_ELEMENT_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e5m2", "Float8_e4m3fn"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
}


@dataclass(frozen=True)
class LibraryCall:
    """``group``: names the set of ranks, equal on all of them, "" where nothing says it; ``members``: how many, None
    unknown. ``bytes`` of one participant; for all-gather what it has afterwards."""

    kind: str
    group: str
    members: int | None
    bytes: int | None


def library_calls(events: Events, rows: Int64) -> tuple[list[LibraryCall], Int64, Bool, Int64]:
    """(distinct calls, which of them each event is, whether it has a number in its group, that number)."""
    keys = ("Collective name", "Process Group Name", "Process Group Ranks", "Group size", "dtype")
    said = [np.where(*_pair(events, key, rows)) for key in keys]
    counts = [np.where(*_pair(events, key, rows)) for key in ("In msg nelems", "Out msg nelems")]
    what = np.stack([events.name[rows].astype(np.int64), *said, *counts], axis=1)
    first, which = np.unique(what, axis=0, return_inverse=True)
    has_number, number = events.argument_of("Seq", rows)
    return [_call(events, *row) for row in first.tolist()], which.reshape(-1), has_number, number


def _pair(events: Events, key: str, rows: Int64) -> tuple[Bool, Int64, int]:
    has, value = events.argument_of(key, rows)
    return has, value, -1


def _call(
    events: Events, code: int, name: int, group: int, ranks: int, size: int, dtype: int, given: int, got: int
) -> LibraryCall:
    said = events.text_of(name) if name >= 0 else events.names[code]
    kind = next((kind for kind, test in _KINDS if test.search(said)), "collective")
    listed = events.text_of(ranks) if ranks >= 0 else ""
    element = _ELEMENT_BYTES.get(events.text_of(dtype)) if dtype >= 0 else None
    count = got if kind == "all-gather" else given
    return LibraryCall(
        kind=kind,
        # Long lists of ranks are elided in the trace: then the name and what is left of the list must do.
        group=f"{events.text_of(group) if group >= 0 else ''} {listed}".strip(),
        members=size if size > 0 else None,
        bytes=count * element if element is not None and count >= 0 else None,
    )
