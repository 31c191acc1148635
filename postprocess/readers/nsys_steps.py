"""What the names of NVTX ranges say: which are steps, and which are operations of PyTorch (emit_nvtx)."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.errors import UsageError
from xprof_py.postprocess.readers.sqlite_columns import ABSENT, Int64

VARIABLE = "XPROF_PY_NVTX_STEPS"
"""The environment variable that names the steps: a regular expression."""

_STEP = r"(?i)(?:(?:train|training|global|profiler|profile)[ _:./-]?)?(?:step|iteration|iter)(?:[ _:#=.-]*(\d+))?"
_BETWEEN = " _:#=.-"
_OP = r"^(?P<name>.+?)(?:, seq = (?P<seq>\d{1,18}))?(?:, op_id = (?P<op_id>\d{1,18}))?(?:, sizes = .*)?$"


@dataclass(frozen=True)
class FrameworkOps:
    """Per distinct name: without its numbers, whether it is an operation's, and these numbers (ABSENT without)."""

    names: pa.StringArray
    is_op: npt.NDArray[np.bool_]
    seq: Int64
    op_id: Int64


@dataclass(frozen=True)
class StepRanges:
    """Per range: its number, -1 for what is no step, and its place in ``names``."""

    names: list[str]
    number: Int64
    name: Int64


def framework_ops(names: pa.StringArray) -> FrameworkOps:
    """`aten::mm, seq = 3, op_id = 17, sizes = [[2, 2]]` is `aten::mm`: 20,000 calls of one operation have one name."""
    is_op = pc.match_substring_regex(names, r", (seq|op_id) = \d+")
    found = pc.extract_regex(pc.if_else(is_op, names, pa.scalar(None, pa.string())), _OP)
    told = {key: pc.struct_field(found, key) for key in ("name", "seq", "op_id")}
    numbers = {}
    for key in ("seq", "op_id"):
        text = pc.if_else(pc.equal(told[key], ""), pa.scalar(None, pa.string()), told[key])
        numbers[key] = np.asarray(pc.fill_null(pc.cast(text, pa.int64()), ABSENT))
    return FrameworkOps(pc.coalesce(told["name"], names), np.asarray(is_op), numbers["seq"], numbers["op_id"])


def step_numbers(
    names: pa.StringArray, name: Int64, start_ns: Int64, payload: Int64, is_range: npt.NDArray[np.bool_], wanted: str
) -> StepRanges:
    """The steps among ranges. ``name``: their place in ``names``; ``payload``: their NVTX number, ABSENT without.

    ``wanted``: the regular expression of read_nsys. Without, steps are the ranges whose whole name is a word for a step
    and a number (`step 3`, `train_step_3`, `ProfilerStep#3`, `iter=3`); where there are none, those with the word alone
    (`step`), by their payload, else in order. Raises UsageError where ``wanted`` is no regular expression.
    """
    try:
        pattern = re.compile(wanted or _STEP)
    except re.error as error:
        raise UsageError(f"{VARIABLE}={wanted!r} is no regular expression: {error}") from error
    # Of millions of names nearly all are not asked: none of them holds the word.
    asked = np.ones(len(names), np.bool_) if wanted else np.asarray(pc.match_substring_regex(names, "(?i)step|iter"))
    labels: dict[str, int] = {}
    label, numbered = np.full(len(names), -1, np.int64), np.full(len(names), -1, np.int64)
    for code in np.flatnonzero(asked).tolist():
        text = names[code].as_py()
        match = pattern.fullmatch(text)
        if match is None:
            continue
        digits = match[1] if pattern.groups else None
        if digits and digits.isdecimal() and len(digits) < 19:
            numbered[code] = int(digits)
            text = text[: match.start(1)].rstrip(_BETWEEN) or text
        label[code] = labels.setdefault(text, len(labels))
    number = np.where(is_range, numbered[name], -1)
    if not (number >= 0).any():
        for code in np.flatnonzero(label >= 0).tolist():
            rows = np.flatnonzero((name == code) & is_range)
            rows = rows[np.argsort(start_ns[rows], kind="stable")]
            stated = payload[rows]
            number[rows] = stated if (stated >= 0).all() else np.arange(len(rows))
    return StepRanges(list(labels), number, np.where(number >= 0, label[name], 0))
