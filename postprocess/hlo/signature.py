"""What a compiled program takes and gives: names, dtypes and shapes of its entry parameters, and of its result.

Read from the serialized HloProto. JAX writes each argument's name (``x``, ``p[0]['w']``) into the metadata of the entry
parameter it becomes; arguments that the program does not use are no parameters. Types are written as jaxprs write them:
``f32[100,256]``. Under SPMD partitioning they are what one device holds, and ``sharded(4,1)`` says how it was cut.
Weak types, static arguments and values from closures are not in a program.

Fields of the protobuf messages, from XLA's hlo.proto and xla_data.proto: HloProto.hlo_module 1; HloModuleProto.name 1,
computations 3, host_program_shape 4, id 5, entry_computation_id 6; HloComputationProto.instructions 2, id 5;
HloInstructionProto.name 1, opcode 2, shape 3, metadata 7, parameter_number 9, sharding 40; OpMetadata.op_name 2;
ProgramShapeProto.result 2; ShapeProto.element_type 2, dimensions 3, tuple_shapes 4, layout 5;
LayoutProto.minor_to_major 1; OpSharding.type 1, tile_assignment_dimensions 3, replicate_on_last_tile_dim 6.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# fmt: off
_DTYPES = (
    "invalid", "bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "tuple", "opaque",
    "c64", "bf16", "token", "c128", "f8_e5m2", "f8_e4m3fn", "i4", "u4", "f8_e4m3b11fnuz", "f8_e5m2fnuz",
    "f8_e4m3fnuz", "i2", "u2", "f8_e4m3", "f8_e3m4", "i1", "u1", "f4_e2m1fn", "f8_e8m0fnu", "type34", "f6_e3m2fn",
    "f6_e2m3fn",
)
# fmt: on
"""By number of XLA's PrimitiveType, in the spelling of jaxprs."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SHARDED_BY_TILES = 3
_MOST_NESTED = 64


@dataclass(frozen=True)
class Argument:
    """One entry parameter: the name of the argument it came from, and its type as text."""

    name: str
    type: str


@dataclass(frozen=True)
class Signature:
    """The entry parameters in order, the type of the result, and a digest of all of the module but its id."""

    arguments: tuple[Argument, ...]
    result: str
    digest: bytes


def read_signature(hlo: Any) -> Signature:
    """Read the signature of one program.

    ``hlo``: the bytes of a serialized HloProto (anything with the buffer protocol). Raises ValueError, with the byte,
    where they are no HloProto or hold no entry computation.
    """
    whole = memoryview(hlo).cast("B")
    module = next((value for number, value in _messages(whole, 1) if number == 1), None)
    if module is None:
        raise ValueError("byte 0: holds no hlo_module")
    digest = hashlib.sha256()
    entry_id = 0
    result = "?"
    computations = []
    for number, value in _fields(module):
        if number == 6 and isinstance(value, int):
            entry_id = value
        if number == 3 and isinstance(value, memoryview):
            computations.append(value)
        if number == 4 and isinstance(value, memoryview):
            result = next((_type(shape) for field, shape in _messages(value, 2) if field == 2), result)
        if number != 5:
            digest.update(b"%d:" % number)
            digest.update(value if isinstance(value, memoryview) else b"%d" % value)
    entry = next((c for c in computations if _number(c, 5) == entry_id), None)
    if entry is None:
        raise ValueError("byte 0: holds no entry computation")
    parameters = sorted(_parameters(entry), key=lambda parameter: parameter[0])
    return Signature(tuple(_distinct([a for _, found in parameters for a in found])), result, digest.digest())


def _parameters(entry: memoryview) -> Iterator[tuple[int, list[Argument]]]:
    """(parameter number, its arguments): several where all arguments were packed into one tuple."""
    for _, instruction in _messages(entry, 2):
        # The opcode comes second, so that the long rest of other instructions is not walked.
        opcode = next((v for n, v in _fields(instruction) if n == 2 and isinstance(v, memoryview)), b"")
        if bytes(opcode) != b"parameter":
            continue
        number, name, split = 0, "", ""
        shape = memoryview(b"")
        for field, value in _fields(instruction):
            if field == 3 and isinstance(value, memoryview):
                shape = value
            elif field == 7 and isinstance(value, memoryview):
                name = next((_text(v) for n, v in _messages(value, 2) if n == 2), "")
            elif field == 9 and isinstance(value, int):
                number = value
            elif field == 40 and isinstance(value, memoryview):
                split = _sharding(value)
        name = name or f"parameter {number}"
        leaves = [leaf for _, leaf in _messages(shape, 4)]
        if leaves:
            yield number, [Argument(f"{name}[{i}]", _type(leaf)) for i, leaf in enumerate(leaves)]
        else:
            yield number, [Argument(name, _type(shape) + split)]


def _distinct(arguments: list[Argument]) -> Iterator[Argument]:
    """The same, with a number behind a name that comes again: names are what arguments are compared by."""
    seen: dict[str, int] = {}
    for argument in arguments:
        seen[argument.name] = count = seen.get(argument.name, 0) + 1
        yield argument if count == 1 else Argument(f"{argument.name} ({count})", argument.type)


def _type(shape: memoryview, depth: int = 0) -> str:
    if depth > _MOST_NESTED:
        raise ValueError("a shape nests too deep")
    element, dimensions, leaves, order = 0, [], [], []
    for number, value in _fields(shape):
        if number == 2 and isinstance(value, int):
            element = value
        elif number == 3:
            dimensions += _integers(value)
        elif number == 4 and isinstance(value, memoryview):
            leaves.append(_type(value, depth + 1))
        elif number == 5 and isinstance(value, memoryview):
            order += [axis for field, axes in _fields(value) if field == 1 for axis in _integers(axes)]
    dtype = _DTYPES[element] if element < len(_DTYPES) else f"type{element}"
    if dtype == "tuple":
        return f"({', '.join(leaves)})"
    usual = order == sorted(order, reverse=True)
    layout = "" if usual else "{" + ",".join(str(axis) for axis in order) + "}"
    return f"{dtype}[{','.join(str(size) for size in dimensions)}]{layout}"


def _sharding(sharding: memoryview) -> str:
    kind, tiles, last_is_copies = 0, [], 0
    for number, value in _fields(sharding):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 3:
            tiles += _integers(value)
        elif number == 6 and isinstance(value, int):
            last_is_copies = value
    if kind != _SHARDED_BY_TILES:
        return ""
    tiles = tiles[:-1] if last_is_copies else tiles
    return f" sharded({','.join(str(count) for count in tiles)})"


def _number(message: memoryview, field: int) -> int:
    return next((v for n, v in _fields(message) if n == field and isinstance(v, int)), 0)


def _text(value: memoryview) -> str:
    return bytes(value).decode("utf-8", "replace")


def _integers(value: int | memoryview) -> list[int]:
    """A repeated integer: packed, or one field per number."""
    if isinstance(value, int):
        return [value]
    out, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        out.append(number)
    return out


def _messages(message: memoryview, field: int) -> Iterator[tuple[int, memoryview]]:
    for number, value in _fields(message):
        if number == field and isinstance(value, memoryview):
            yield number, value


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) of a message's fields: an integer, or the bytes of a string or message. Nothing is copied."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == _BYTES:
            length, at = _varint(message, at)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"byte {start}: wire type {wire}")
        if length > len(message) - at:
            raise ValueError(f"byte {start}: a field ends after its message")
        yield number, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """(number, place after it)."""
    number = shift = 0
    while at < len(message):
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            break
    raise ValueError(f"byte {at}: a number does not end")
