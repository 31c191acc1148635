"""What HLO instructions say of themselves: the tables hlo_shapes, hlo_attributes, hlo_texts, and one view on all HLO
tables that answers per instruction.

The view makes Python objects for the instructions that are asked for, never for events.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from xprof_py.postprocess.readers.xspace import strings

_I64 = npt.NDArray[np.int64]

_TYPES: Mapping[int, tuple[str, int]] = {
    # XLA's PrimitiveType: number -> name, bytes of an element. Types below one byte take a whole one, unless the
    # layout packs them.
    1: ("pred", 1),
    2: ("s8", 1),
    3: ("s16", 2),
    4: ("s32", 4),
    5: ("s64", 8),
    6: ("u8", 1),
    7: ("u16", 2),
    8: ("u32", 4),
    9: ("u64", 8),
    10: ("f16", 2),
    11: ("f32", 4),
    12: ("f64", 8),
    15: ("c64", 8),
    16: ("bf16", 2),
    17: ("token", 0),
    18: ("c128", 16),
    19: ("f8e5m2", 1),
    20: ("f8e4m3fn", 1),
    21: ("s4", 1),
    22: ("u4", 1),
    23: ("f8e4m3b11fnuz", 1),
    24: ("f8e5m2fnuz", 1),
    25: ("f8e4m3fnuz", 1),
    26: ("s2", 1),
    27: ("u2", 1),
    28: ("f8e4m3", 1),
    29: ("f8e3m4", 1),
    30: ("s1", 1),
    31: ("u1", 1),
    32: ("f4e2m1fn", 1),
    33: ("f8e8m0fnu", 1),
}

DEVICE_MEMORY, HOST_MEMORY = 0, 5
"""Memory spaces of XLA; the others are on the chip."""


class Array(NamedTuple):
    """One array of an instruction's result. ``dimensions`` is None where only bounds of them are known."""

    element: int
    type: str
    dimensions: tuple[int, ...] | None
    bytes: int | None
    space: int = DEVICE_MEMORY

    @property
    def elements(self) -> int | None:
        """How many elements it has, None where that is not known."""
        return None if self.dimensions is None else math.prod(self.dimensions)


def shape_columns(columns: Mapping[str, Any], first_op: int) -> dict[str, Any]:
    """The columns of hlo_shapes of one decoded module; rows of ops count from ``first_op``."""
    shapes = {name: np.asarray(column) for name, column in columns["shapes"].items()}
    sizes = np.asarray(columns["dimensions"]["size"])
    count = len(shapes["op"])
    ends = np.searchsorted(np.asarray(columns["dimensions"]["shape"]), np.arange(count), side="right")
    starts = np.concatenate([[0], ends[:-1]]) if count else ends
    numbers, code = np.unique(shapes["type"], return_inverse=True)
    known: list[tuple[str, int | None]] = [_TYPES.get(int(n), (f"type {n}", None)) for n in numbers]
    dimensions: list[list[int] | None] = []
    size_bytes: list[int | None] = []
    all_sizes = sizes.tolist()
    for row, (start, end, dynamic, bits) in enumerate(
        zip(starts.tolist(), ends.tolist(), shapes["dynamic"].tolist(), shapes["bits"].tolist(), strict=True)
    ):
        own = all_sizes[start:end]
        of_type = known[code[row]][1]
        settled = not dynamic and all(size >= 0 for size in own)
        total = math.prod(own) * of_type if settled and of_type is not None else None
        if total is not None and 0 < bits < 8:
            total = -(-math.prod(own) * bits // 8)
        dimensions.append(own if settled else None)
        size_bytes.append(total if total is not None and total < 2**62 else None)
    return {
        "op": shapes["op"] + np.int32(first_op),
        "element": shapes["element"],
        "type": pa.DictionaryArray.from_arrays(
            pa.array(code.reshape(-1).astype(np.int32)), pa.array([name for name, _ in known], pa.string())
        ),
        "dimensions": pa.array(dimensions, pa.list_(pa.int64())),
        "bytes": pa.array(size_bytes, pa.int64()),
        "space": shapes["space"],
    }


def attribute_columns(columns: Mapping[str, Any], first_op: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns of hlo_attributes and hlo_texts of one decoded module; rows of ops count from ``first_op``."""
    names = pa.array(columns["attribute_names"], pa.string())
    numbers, texts = columns["attributes"], columns["texts"]

    def named(keys: Any) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(pa.array(np.asarray(keys).astype(np.int32)), names)

    return (
        {
            "op": np.asarray(numbers["op"]) + np.int32(first_op),
            "key": named(numbers["key"]),
            "value": np.asarray(numbers["value"]),
        },
        {
            "op": np.asarray(texts["op"]) + np.int32(first_op),
            "key": named(texts["key"]),
            "text": pa.DictionaryArray.from_arrays(
                pa.array(np.asarray(texts["text"])), strings(columns["text_values"])
            ),
        },
    )


class _Rows:
    """Columns of a table as lists, found by an owner's row number."""

    def __init__(self, table: pa.Table, owner: str, owners: int) -> None:
        of = np.asarray(table[owner].to_numpy())
        if len(of) and bool(np.any(of[1:] < of[:-1])):
            table = table.take(pa.array(np.argsort(of, kind="stable")))
            of = np.asarray(table[owner].to_numpy())
        self._bounds: list[int] = np.searchsorted(of, np.arange(owners + 1)).tolist()
        self._columns: dict[str, list[Any]] = {
            name: table[name].to_pylist() for name in table.column_names if name != owner
        }

    def of(self, owner: int, column: str) -> list[Any]:
        return self._columns[column][self._bounds[owner] : self._bounds[owner + 1]]


class Instructions:
    """All instructions of a profile: rows of hlo_ops, asked one at a time."""

    def __init__(self, tables: Mapping[str, pa.Table] | Any) -> None:
        """``tables``: a Profile or what read_programs returned."""
        ops = tables["hlo_ops"]
        self.count: int = ops.num_rows
        computations: int = tables["hlo_computations"].num_rows
        self._opcode: list[str] = ops["opcode"].to_pylist()
        self._program: list[int] = ops["program"].to_pylist()
        self._computation: list[int] = ops["computation"].to_pylist()
        self._operands = _Rows(tables["hlo_operands"], "op", self.count)
        self._calls = _Rows(tables["hlo_calls"], "op", self.count)
        self._shapes = _Rows(tables["hlo_shapes"], "op", self.count)
        self._numbers = _Rows(tables["hlo_attributes"], "op", self.count)
        self._texts = _Rows(tables["hlo_texts"], "op", self.count)
        roots = tables["hlo_roots"]
        self._root: dict[int, int] = dict(zip(roots["computation"].to_pylist(), roots["op"].to_pylist(), strict=True))
        members = pa.table({"computation": ops["computation"], "op": pa.array(np.arange(self.count))})
        self._members = _Rows(members, "computation", computations)
        self._entry: list[bool] = tables["hlo_computations"]["entry"].to_pylist()
        self._program_of_computation: list[int] = tables["hlo_computations"]["program"].to_pylist()
        self._devices = {
            row["program"]: (row["replica_count"], row["partition_count"])
            for row in tables["program_devices"].to_pylist()
        }

    def opcode(self, op: int) -> str:
        """The opcode of row ``op``."""
        return self._opcode[op]

    def computation(self, op: int) -> int:
        """The row of the computation that ``op`` is in."""
        return self._computation[op]

    def operands(self, op: int) -> list[int]:
        """Rows of the instructions that ``op`` reads, in order."""
        return self._operands.of(op, "operand")

    def called(self, op: int) -> list[int]:
        """Rows of the computations that ``op`` calls, in order."""
        return self._calls.of(op, "computation")

    def members(self, computation: int) -> list[int]:
        """Rows of a computation's instructions."""
        return self._members.of(computation, "op")

    def root(self, computation: int) -> int | None:
        """The row whose result is the computation's, None where the module does not say."""
        return self._root.get(computation)

    def arrays(self, op: int) -> list[Array]:
        """The arrays of the result of ``op``; none where the module has no shapes."""
        columns = (self._shapes.of(op, name) for name in ("element", "type", "dimensions", "bytes", "space"))
        return [
            Array(element, kind, None if dimensions is None else tuple(dimensions), size, space)
            for element, kind, dimensions, size, space in zip(*columns, strict=True)
        ]

    def numbers(self, op: int, *keys: str) -> list[tuple[str, int]]:
        """(key, value) of the attributes of ``op`` that have one of these keys, in order."""
        found = zip(self._numbers.of(op, "key"), self._numbers.of(op, "value"), strict=True)
        return [(key, value) for key, value in found if key in keys]

    def values(self, op: int, key: str) -> list[int]:
        """The values of one attribute."""
        return [value for _, value in self.numbers(op, key)]

    def value(self, op: int, key: str, default: int = 0) -> int:
        """The last value of one attribute."""
        return ([default, *self.values(op, key)])[-1]

    def text(self, op: int, key: str) -> str:
        """A text of ``op``, "" where there is none."""
        found: list[str] = [
            text
            for name, text in zip(self._texts.of(op, "key"), self._texts.of(op, "text"), strict=True)
            if name == key
        ]
        return found[-1] if found else ""

    def devices(self, op: int) -> tuple[int | None, int | None]:
        """Replicas and partitions that the program of ``op`` runs on, None where it does not say."""
        return self._devices.get(self._program[op], (None, None))

    @cached_property
    def entries(self) -> dict[int, int]:
        """program -> its entry computation."""
        return {self._program_of_computation[row]: row for row, is_entry in enumerate(self._entry) if is_entry}

    def source(self, op: int, callers: Sequence[int] = ()) -> tuple[int, tuple[int, ...]]:
        """Where the value of ``op`` is made: through copies, bitcasts and the bodies of fusions.

        ``callers``: the fusions whose bodies ``op`` is in, outermost first. Returns the same for the maker.
        """
        at = tuple(callers)
        for _ in range(self.count + 1):
            opcode = self._opcode[op]
            if opcode in ("copy", "bitcast") and self.operands(op):
                op = self.operands(op)[0]
            elif opcode == "fusion" and self.called(op) and self.root(self.called(op)[0]) is not None:
                at = (*at, op)
                op = self._root[self.called(op)[0]]
            elif opcode == "parameter" and at and self.value(op, "parameter_number") < len(self.operands(at[-1])):
                op = self.operands(at[-1])[self.value(op, "parameter_number")]
                at = at[:-1]
            else:
                break
        return op, at


def group_sizes(instructions: Instructions, op: int) -> set[int]:
    """How many participants the groups of a collective have; empty where its program does not say.

    Groups written out or as an iota. Where none are named all devices take part: every replica, and every partition
    too where the collective has a channel.
    """
    sizes: list[int] = []
    for key, value in instructions.numbers(op, "replica_group", "replica_id", "iota_group_size"):
        if key == "replica_group":
            sizes.append(0)
        elif key == "replica_id" and sizes:
            sizes[-1] += 1
        elif key == "iota_group_size":
            sizes.append(value)
    if any(sizes):
        return set(sizes)
    replicas, partitions = instructions.devices(op)
    with_channel = instructions.value(op, "channel_id") > 0
    if replicas is None or (with_channel and partitions is None):
        return set()
    return {replicas * (partitions or 1) if with_channel else replicas}
