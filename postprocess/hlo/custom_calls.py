"""What a custom call computes, where its text tells: library matmuls, convolutions, attention forward, Pallas kernels.

A custom call that is not here is unknown: its name alone says neither its operations nor its bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

from xprof_py.postprocess.hlo.flops import Flops, convolution, first_array, multiply_adds
from xprof_py.postprocess.hlo.shapes import Array, Instructions

_GEMM = re.compile(r"^__cublas\$(?:gemm|lt\$matmul)")
_ATTENTION = re.compile(r"^__cudnn\$fmha(?!.*(?:F8|Backward))")


def call_flops(instructions: Instructions, op: int) -> Flops | None:
    """Operations of a custom call, None where its text does not tell them."""
    target = instructions.text(op, "custom_call_target")
    config = parsed(instructions.text(op, "backend_config"))
    operands = [first_array(instructions.arrays(operand)) for operand in instructions.operands(op)]
    result = first_array(instructions.arrays(op))
    if result is None or result.elements is None or not operands:
        return None
    estimate = cost_estimate(config)
    if estimate is not None:
        return Flops(other=estimate["flops"], transcendentals=estimate["transcendentals"])
    if _GEMM.match(target):
        gemm = _mapping(config, "gemm_backend_config") or config
        return _contracted(instructions, op, operands[0], result, _mapping(gemm, "dot_dimension_numbers"))
    if target.startswith("__cudnn$conv"):
        return _library_convolution(instructions, op, target, operands, result)
    if target == "__onednn$matmul":
        return _onednn(instructions, op, operands, result, _mapping(config, "onednn_matmul_config"))
    if _ATTENTION.match(target):
        return _attention(instructions, op, operands, _mapping(config, "cudnn_fmha_backend_config"))
    return None


def cost_estimate(config: Mapping[str, Any]) -> dict[str, int] | None:
    """flops, transcendentals and bytes_accessed as a Pallas kernel's author states them, None where he does not."""
    stated = _mapping(_mapping(config, "custom_call_config"), "cost_estimate")
    try:
        return {name: int(stated[name]) for name in ("flops", "transcendentals", "bytes_accessed")}
    except (KeyError, TypeError, ValueError):
        return None


def parsed(text: str) -> Mapping[str, Any]:
    """A backend_config as JSON; empty where it is something else."""
    if not text.startswith("{"):
        return {}
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _mapping(source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = source.get(key)
    return found if isinstance(found, dict) else {}


def _integers(source: Mapping[str, Any], key: str) -> list[int] | None:
    """A list of int64, which JSON of protobuf writes as texts."""
    try:
        return [int(value) for value in source[key]]
    except (KeyError, TypeError, ValueError):
        return None


def _contracted(
    instructions: Instructions, op: int, left: Array | None, result: Array, numbers: Mapping[str, Any]
) -> Flops | None:
    contracting = _integers(numbers, "lhs_contracting_dimensions")
    if left is None or left.dimensions is None or not contracting or result.elements is None:
        return None
    if any(not 0 <= d < len(left.dimensions) for d in contracting):
        return None
    depth = math.prod(left.dimensions[d] for d in contracting)
    return multiply_adds(instructions, op, result.elements * depth, left.type)


def _library_convolution(
    instructions: Instructions, op: int, target: str, operands: list[Array | None], result: Array
) -> Flops | None:
    """cuDNN's three: the window and dimension numbers are those of the forward convolution."""
    if len(operands) < 2:
        return None
    if target.startswith("__cudnn$convBackwardInput"):
        return convolution(instructions, op, [result, operands[1]], operands[0])
    if target.startswith("__cudnn$convBackwardFilter"):
        return convolution(instructions, op, [operands[0], result], operands[1])
    if target.startswith(("__cudnn$convForward", "__cudnn$convBiasActivationForward")):
        return convolution(instructions, op, [operands[0], operands[1]], result)
    return None


def _onednn(
    instructions: Instructions, op: int, operands: list[Array | None], result: Array, config: Mapping[str, Any]
) -> Flops | None:
    left = operands[0]
    if left is None or not left.dimensions or len(left.dimensions) < 2 or result.elements is None:
        return None
    depth = left.dimensions[-2 if config.get("transpose_a") else -1]
    return multiply_adds(instructions, op, result.elements * depth, left.type)


def _attention(
    instructions: Instructions, op: int, operands: list[Array | None], config: Mapping[str, Any]
) -> Flops | None:
    """cuDNN's fused attention, forward: its two matmuls; the softmax between them is not counted.

    A causal mask is counted as if it were none: what the library skips is its own affair, and efficiencies of other
    tools are stated so. Q and K are the first operands; their contracted dimensions are the config's.
    """
    numbers = _mapping(config, "bmm1_dot_dimension_numbers")
    contracting = _integers(numbers, "lhs_contracting_dimensions")
    right_contracting = _integers(numbers, "rhs_contracting_dimensions")
    right_batch = _integers(numbers, "rhs_batch_dimensions")
    if not contracting or not right_contracting or right_batch is None or len(operands) < 3:
        return None
    query, key = operands[0], operands[1]
    if query is None or key is None or query.elements is None or key.dimensions is None:
        return None
    if any(not 0 <= d < len(key.dimensions) for d in (*right_contracting, *right_batch)):
        return None
    keys = math.prod(n for d, n in enumerate(key.dimensions) if d not in (*right_contracting, *right_batch))
    # Every element of Q meets every key once; the second matmul is as large where V is as wide as K.
    value = operands[2]
    if value is None or value.elements != key.elements:
        return None
    return multiply_adds(instructions, op, 2 * query.elements * keys, query.type)
