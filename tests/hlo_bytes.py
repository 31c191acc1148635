"""A serialized HloProto of one entry computation, written field by field: what programs take, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BOOL, I32, F32, TUPLE, BF16 = 1, 4, 11, 13, 16


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def shape(element: int, *dimensions: int, order: Sequence[int] | None = None, packed: bool = True) -> bytes:
    """A ShapeProto; ``order`` is its layout, minor to major, the usual one where None."""
    order = range(len(dimensions))[::-1] if order is None else order
    sizes = b"".join(varint(size) for size in dimensions)
    sized = message(3, sizes) if packed else b"".join(number(3, size) for size in dimensions)
    layout = message(1, b"".join(varint(axis) for axis in order)) if dimensions else b""
    return number(2, element) + (sized if dimensions else b"") + message(5, layout)


def tuple_of(*shapes: bytes) -> bytes:
    return number(2, TUPLE) + b"".join(message(4, leaf) for leaf in shapes)


@dataclass(frozen=True)
class Parameter:
    """An entry parameter. ``sharding``: the bytes of its OpSharding."""

    name: str
    shape: bytes
    sharding: bytes = b""


def program(
    *parameters: Parameter, result: bytes = b"", body: str = "add", program_id: int = 1, name: str = "jit_f"
) -> bytes:
    """The HloProto; ``body`` is the opcode of the one instruction besides the parameters."""
    # A fused computation comes first, with parameters that are nobody's arguments.
    inner = message(1, "fused") + message(2, message(1, "p") + message(2, "parameter") + message(3, shape(F32, 9)))
    instructions = []
    for place, parameter in enumerate(parameters):
        fields = message(1, f"param.{place}") + message(2, "parameter") + message(3, parameter.shape)
        fields += message(7, message(2, parameter.name)) if parameter.name else b""
        fields += number(9, place) if place else b""
        fields += message(40, parameter.sharding) if parameter.sharding else b""
        instructions.append(message(2, fields + number(35, place)))
    root = message(2, message(1, "root") + message(2, body) + message(3, result or shape(F32)))
    # XLA writes parameters in any order.
    entry = message(1, "main") + b"".join(reversed(instructions)) + root + number(5, 7)
    signature = b"".join(message(1, parameter.shape) for parameter in parameters) + message(2, result or shape(F32))
    module = message(1, name) + message(3, inner + number(5, 2)) + message(3, entry) + message(4, signature)
    return message(1, module + number(5, program_id) + number(6, 7))
