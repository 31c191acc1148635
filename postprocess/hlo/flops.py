"""How many operations one HLO instruction does by itself: the formulas, per opcode.

Counted as XLA's own cost analysis counts them: a multiply-add is two operations; an elementwise instruction is one per
element of its result, comparisons, selections and conversions included; moving bytes is none; transcendental functions
(exp, tanh, sqrt, power, ...) are counted apart, since no device states a rate for them. Differences, on purpose:

- a complex dot counts the real operations: a complex multiply-add is eight;
- a Fourier transform of n points counts 5 n log2 n, half of it where the input or output is real (the convention of
  the FFTW benchmarks, http://www.fftw.org/speed/method.html);
- what depends on the values (sort, random numbers) is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from xprof_py.postprocess.hlo.shapes import Array, Instructions

TRANSCENDENTALS = frozenset(
    "exponential exponential-minus-one log log-plus-one logistic power rsqrt sqrt cbrt sine cosine tan tanh atan2 erf"  # noqa: SIM905
    " acos acosh asin asinh atanh cosh sinh".split()
)
ELEMENTWISE = frozenset(
    "add subtract multiply divide maximum minimum remainder abs negate sign floor ceil round-nearest-afz"  # noqa: SIM905
    " round-nearest-even compare select and or xor not shift-left shift-right-arithmetic shift-right-logical popcnt"
    " count-leading-zeros is-finite clamp convert real imag complex reduce-precision stochastic-convert".split()
)
MOVES_ONLY = frozenset(
    "parameter constant iota tuple get-tuple-element bitcast bitcast-convert reshape transpose copy broadcast slice"  # noqa: SIM905
    " dynamic-slice dynamic-update-slice dynamic-reshape concatenate pad reverse gather copy-start copy-done domain"
    " optimization-barrier after-all add-dependency partition-id replica-id get-dimension-size set-dimension-size"
    " infeed outfeed send send-done recv recv-done all-gather all-gather-start all-gather-done all-to-all"
    " ragged-all-to-all collective-permute collective-permute-start collective-permute-done collective-broadcast"
    " all-reduce-done async-update async-done rng-get-and-update-state".split()
)
_REDUCING_COLLECTIVES = ("all-reduce", "all-reduce-start", "reduce-scatter")
_DEFAULT_PRECISION = 0


@dataclass(frozen=True)
class Flops:
    """Operations: ``matmul`` by element type (those of dots and convolutions), ``other``, and ``transcendentals``.

    A matmul in f32 whose precision is left to the backend has the type "f32_default": TPUs and tensor cores then
    compute it with fewer bits, and faster.
    """

    matmul: Mapping[str, int] = field(default_factory=dict)
    other: int = 0
    transcendentals: int = 0

    @property
    def total(self) -> int:
        """All but the transcendentals."""
        return sum(self.matmul.values()) + self.other

    def plus(self, more: Flops) -> Flops:
        """The sum."""
        types = {*self.matmul, *more.matmul}
        matmul = {name: self.matmul.get(name, 0) + more.matmul.get(name, 0) for name in sorted(types)}
        return Flops(matmul, self.other + more.other, self.transcendentals + more.transcendentals)

    def times(self, count: int) -> Flops:
        """As many times."""
        matmul = {name: value * count for name, value in self.matmul.items()}
        return Flops(matmul, self.other * count, self.transcendentals * count)


NONE = Flops()


def applied(instructions: Instructions, op: int) -> int | None:
    """How often a reduction, scatter, map or select-and-scatter applies the computation that it calls."""
    opcode = instructions.opcode(op)
    result = first_array(instructions.arrays(op))
    operands = [instructions.arrays(operand) for operand in instructions.operands(op)]
    first = first_array(operands[0]) if operands else None
    if result is None or result.elements is None or first is None or first.elements is None:
        return None
    if opcode == "reduce":
        return max(first.elements - result.elements, 0)
    if opcode == "reduce-window":
        return result.elements * max(math.prod(_window(instructions, op, "window_size", 1)) - 1, 0)
    if opcode == "map":
        return result.elements
    if opcode == "scatter":
        # Operands: the n arrays, the indices, the n updates.
        updates = operands[len(operands) // 2 + 1 :]
        update = first_array(updates[0]) if updates else None
        return None if update is None else update.elements
    return None


def own_flops(instructions: Instructions, op: int) -> Flops | None:
    """Operations of ``op`` itself, None where not known.

    Instructions that call computations (fusions, loops, reductions) are not told here: hlo/cost.py goes through them.
    """
    opcode = instructions.opcode(op)
    if opcode in MOVES_ONLY:
        return NONE
    result = first_array(instructions.arrays(op))
    if result is None or result.elements is None:
        return None
    if opcode in ELEMENTWISE:
        return Flops(other=result.elements)
    if opcode in TRANSCENDENTALS:
        return Flops(transcendentals=result.elements)
    operands = [first_array(instructions.arrays(operand)) for operand in instructions.operands(op)]
    if opcode == "dot":
        return _dot(instructions, op, operands, result)
    if opcode == "convolution":
        return convolution(instructions, op, operands, result) if len(operands) == 2 else None
    if opcode == "fft":
        return _fft(instructions, op, operands, result)
    if opcode in _REDUCING_COLLECTIVES:
        return Flops(other=sum(array.elements or 0 for array in instructions.arrays(op)))
    if opcode in ("cholesky", "triangular-solve"):
        return _solve(opcode, operands)
    return None


def matmul_type(instructions: Instructions, op: int, type_name: str) -> str:
    """The element type of a dot or convolution as peaks name it."""
    precision = instructions.values(op, "operand_precision")
    free = all(value == _DEFAULT_PRECISION for value in precision)
    if type_name == "f32" and free and not instructions.value(op, "dot_algorithm"):
        return "f32_default"
    return type_name


def multiply_adds(instructions: Instructions, op: int, count: int, type_name: str) -> Flops:
    """``count`` multiply-adds of elements of a type."""
    each = 8 if type_name in ("c64", "c128") else 2
    return Flops({matmul_type(instructions, op, type_name): each * count})


def first_array(arrays: list[Array]) -> Array | None:
    """The first array of a result, None where there is none."""
    return arrays[0] if arrays else None


def _picked(array: Array, dimensions: list[int]) -> int | None:
    if array.dimensions is None or any(not 0 <= d < len(array.dimensions) for d in dimensions):
        return None
    return math.prod(array.dimensions[d] for d in dimensions)


def _dot(instructions: Instructions, op: int, operands: list[Array | None], result: Array) -> Flops | None:
    left = operands[0] if operands else None
    if left is None or result.elements is None:
        return None
    contracted = _picked(left, instructions.values(op, "lhs_contracting"))
    return None if contracted is None else multiply_adds(instructions, op, result.elements * contracted, left.type)


def _window(instructions: Instructions, op: int, key: str, default: int) -> list[int]:
    """One number of every dimension of the window; proto3 leaves a 0 out."""
    out: list[int] = []
    for name, value in instructions.numbers(op, "window_dimension", key):
        if name == "window_dimension":
            out.append(default)
        elif out:
            out[-1] = value
    return out


def convolution(
    instructions: Instructions, op: int, operands: list[Array | None], result: Array | None
) -> Flops | None:
    """Multiply-adds that meet a real input element: padding and the holes of dilation are not computed.

    ``operands``: input and kernel. The numbers of dimensions and the window are those of ``op``.
    """
    source, kernel = operands[0], operands[1]
    if source is None or kernel is None or result is None:
        return None
    if source.dimensions is None or kernel.dimensions is None or result.dimensions is None:
        return None
    kernel_spatial = instructions.values(op, "kernel_spatial")
    source_spatial = instructions.values(op, "input_spatial")
    result_spatial = instructions.values(op, "output_spatial")
    window = {
        key: _window(instructions, op, f"window_{key}", default)
        for key, default in (("stride", 1), ("padding_low", 0), ("dilation", 1), ("base_dilation", 1))
    }
    if not len(kernel_spatial) == len(source_spatial) == len(result_spatial) == len(window["stride"]):
        return None
    places = 1
    for i, axes in enumerate(zip(source_spatial, kernel_spatial, result_spatial, strict=True)):
        sizes = [_picked(array, [axis]) for array, axis in zip((source, kernel, result), axes, strict=True)]
        if None in sizes or min(window["stride"][i], window["dilation"][i], window["base_dilation"][i]) < 1:
            return None
        steps = [window[key][i] for key in ("stride", "padding_low", "dilation", "base_dilation")]
        places *= _valid_places(*(size for size in sizes if size is not None), *steps)
    batch_groups = max(instructions.value(op, "batch_group_count", 1), 1)
    outer = [
        _picked(kernel, [instructions.value(op, "kernel_input_feature")]),
        _picked(result, [instructions.value(op, "output_feature")]),
        _picked(source, [instructions.value(op, "input_batch")]),
    ]
    if any(size is None for size in outer):
        return None
    # The kernel's input features are those of one feature group already.
    count = places * math.prod(size for size in outer if size is not None) // batch_groups
    return multiply_adds(instructions, op, count, source.type)


def _valid_places(
    source: int, kernel: int, result: int, stride: int, padding_low: int, dilation: int, base_dilation: int
) -> int:
    """Pairs (result place, kernel place) of one dimension that meet an element of the input.

    Result place r and kernel place k meet position r * stride + k * dilation - padding_low of the dilated input.
    """
    reach = (source - 1) * base_dilation
    place = np.arange(result, dtype=np.int64) * stride - padding_low
    met = 0
    for k in range(kernel):
        position = place + k * dilation
        met += int(np.count_nonzero((position >= 0) & (position <= reach) & (position % base_dilation == 0)))
    return met


def _fft(instructions: Instructions, op: int, operands: list[Array | None], result: Array) -> Flops | None:
    source = operands[0] if operands else None
    lengths = instructions.values(op, "fft_length")
    points = math.prod(lengths)
    if source is None or source.elements is None or result.elements is None or points < 1:
        return None
    real = not (source.type.startswith("c") and result.type.startswith("c"))
    # The side that is real has all points of a transform; the other about half of them.
    transforms = max(source.elements, result.elements) // points
    whole = round(5 * points * math.log2(points)) * transforms
    return Flops(other=whole // 2 if real else whole)


def _solve(opcode: str, operands: list[Array | None]) -> Flops | None:
    """n^3 / 3 for a Cholesky factor, n^2 m for a triangular system with m right-hand sides; per matrix."""
    matrix = operands[0] if operands else None
    if matrix is None or matrix.elements is None or not matrix.dimensions or len(matrix.dimensions) < 2:
        return None
    if opcode == "cholesky":
        return Flops(other=matrix.elements * matrix.dimensions[-1] // 3)
    right = operands[1] if len(operands) > 1 else None
    if right is None or right.elements is None:
        return None
    return Flops(other=right.elements * matrix.dimensions[-1])
