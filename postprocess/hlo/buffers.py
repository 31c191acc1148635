"""Where a compiled program keeps its values: XLA's buffer assignment and its schedule as tables.

An allocation is one piece of memory that is reserved while the program runs; a buffer is one value, with its place in
an allocation. Several buffers share a place one after the other, or at once where one is the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_I64 = npt.NDArray[np.int64]

BUFFER_TABLES = ("hlo_schedule", "hlo_allocations", "hlo_buffers", "hlo_heap_events")
KINDS = ("argument", "donated", "output", "temporary", "constant", "thread_local")
"""What an allocation is for. `donated`: an argument whose memory becomes an output's."""

_MOST_BYTES = 2**62
_HEAP_EVENTS = ("alloc", "free", "share")


def buffer_columns(
    columns: Mapping[str, Any], program: int, *, first_op: int, first_computation: int, first: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """The columns of BUFFER_TABLES of one decoded module.

    ``first``: how many rows of hlo_allocations and hlo_buffers there are before it; rows count from there. Places that
    name an instruction, computation or buffer that is not in the module are left out, or null where the column can be.
    """

    def column(table: str, name: str) -> _I64:
        return np.asarray(columns[table][name]).astype(np.int64)

    # An instruction's id counts within its computation in hand-made modules only: XLA numbers them module-wide.
    op_of = _Rows(column("instructions", "id"))
    computation_of = _Rows(column("computations", "id"))
    buffer_of = _Rows(column("buffers", "id"))

    computation = computation_of.find(column("sequences", "computation"))[column("schedule", "sequence")]
    scheduled = op_of.find(column("schedule", "instruction"))
    in_order = (computation >= 0) & (scheduled >= 0)

    assigned = buffer_of.find(column("assigned", "buffer"))
    held = np.flatnonzero(assigned >= 0)
    buffers = len(buffer_of)
    allocation, offset, size = np.full(buffers, -1, np.int64), np.zeros(buffers, np.int64), column("buffers", "size")
    allocation[assigned[held]] = column("assigned", "allocation")[held]
    offset[assigned[held]] = column("assigned", "offset")[held]
    size[assigned[held]] = column("assigned", "size")[held]

    defined_by = op_of.find(column("buffers", "instruction"))
    trace = column("heap_events", "trace")
    event_buffer = buffer_of.find(column("heap_events", "buffer"))
    kind = column("heap_events", "kind")
    simulated = (event_buffer >= 0) & (kind < len(_HEAP_EVENTS))
    shares_with = buffer_of.find(column("heap_events", "shares_with"))
    shares = simulated & (kind == _HEAP_EVENTS.index("share")) & (shares_with >= 0)

    parameter = column("allocations", "parameter") != 0
    return {
        "hlo_schedule": {
            "program": np.full(np.count_nonzero(in_order), program, np.int32),
            "computation": computation[in_order] + first_computation,
            "op": scheduled[in_order] + first_op,
        },
        "hlo_allocations": {
            "program": np.full(len(parameter), program, np.int32),
            "bytes": column("allocations", "size"),
            "space": column("allocations", "color"),
            "kind": _named(_allocation_kind(columns), KINDS),
            "parameter_number": _nullable(column("allocations", "parameter_number"), parameter),
        },
        "hlo_buffers": {
            "program": np.full(buffers, program, np.int32),
            "allocation": _nullable(allocation + first["hlo_allocations"], allocation >= 0),
            "offset": offset,
            "bytes": size,
            "op": _nullable(defined_by + first_op, defined_by >= 0),
            "element": column("buffers", "element"),
            "depth": column("buffers", "depth"),
        },
        "hlo_heap_events": {
            "program": np.full(np.count_nonzero(simulated), program, np.int32),
            "trace": trace[simulated],
            "kind": _named(kind[simulated], _HEAP_EVENTS),
            "buffer": event_buffer[simulated] + first["hlo_buffers"],
            "shares_with": _nullable((shares_with + first["hlo_buffers"])[simulated], shares[simulated]),
        },
    }


def impossible_sizes(columns: Mapping[str, Any]) -> int:
    """How many allocations and buffers cannot be as large as the module says, alone or together: 0 in XLA's files."""
    tables = ("allocations", "buffers", "assigned")
    sizes = [size for table in tables for size in np.asarray(columns[table]["size"]).tolist()]
    negative = sum(size < 0 for size in sizes)
    return negative or (len(sizes) if sum(sizes) >= _MOST_BYTES else 0)


class _Rows:
    """Rows of a column of ids, by id; of equal ids the first."""

    def __init__(self, ids: _I64) -> None:
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, ids: _I64) -> _I64:
        """The rows, -1 where an id is not there."""
        if not len(self._ids):
            return np.full(len(ids), -1, np.int64)
        place = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[place] == ids, self._order[place], -1)


def _allocation_kind(columns: Mapping[str, Any]) -> _I64:
    """KINDS by number, with XLA's own precedence: an entry parameter that may be live out is aliased with an output."""
    flags = {name: np.asarray(column) != 0 for name, column in columns["allocations"].items()}
    parameter, live_out = flags["parameter"], flags["live_out"]
    choices = (parameter & live_out, parameter, flags["thread_local"], flags["constant"], live_out)
    kinds = ("donated", "argument", "thread_local", "constant", "output")
    return np.select(choices, [KINDS.index(kind) for kind in kinds], KINDS.index("temporary")).astype(np.int64)


def _named(codes: _I64, names: tuple[str, ...]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, pa.string()))


def _nullable(values: _I64, known: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, pa.int64(), mask=~known)
