"""Ranges of a shard or of XLA's trace that are steps, in a program that marks none itself.

Told by the capture (``step_pattern``): a regular expression that must match a range's whole name; its first group is
the step's number. Else NVTX ranges that are called steps, by the rule of nsys_steps.py. A range that becomes a step is
one in every respect: the table `events` has it as Kind.STEP with the argument `step_num`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from xprof_py.errors import UsageError
from xprof_py.postprocess import schema
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.nsys_steps import step_numbers
from xprof_py.postprocess.readers.sqlite_columns import ABSENT
from xprof_py.postprocess.schema import ArgKind, Kind

_SETTING = "step_pattern"
_NUMBER = "step_num"
_DOMAIN = "domain"
_PAYLOAD = "payload"
_SHOWN = 3

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]


def mark_step_ranges(profile: Profile, told: object, file: str) -> Profile:
    """``profile`` with the ranges that are steps marked as such, and a row in diagnostics that says which.

    Args:
        told: the run file's ``step_pattern``, None where the capture says nothing. Steps that it names take the place
            of those that the program marks; without it a program that marks any keeps them.
        file: the run file, for diagnostics.
    """
    events = profile["events"]
    kind = np.asarray(events["kind"].to_numpy())
    marked = kind == int(Kind.STEP)
    if told is None and (marked.any() or _has_key(profile, _NUMBER)):
        return profile
    may_be = _ranges(profile, kind)
    if told is None:
        may_be &= _with_key(profile, _DOMAIN, None)[0]
    if not may_be.any():
        return (
            profile if told is None else _noted(profile, "warning", "step_pattern_unmatched", 1, file, _nothing(told))
        )
    names = (
        events["name"].unify_dictionaries().combine_chunks()
        if events["name"].num_chunks != 1
        else events["name"].chunk(0)
    )
    code = np.asarray(names.indices.to_numpy(zero_copy_only=False), np.int64)
    start = np.asarray(events["start_ps"].to_numpy())
    has_payload, payload = _with_key(profile, _PAYLOAD, (ArgKind.INT, ArgKind.UINT))
    stated = np.where(has_payload, payload, ABSENT)
    try:
        found = step_numbers(names.dictionary, code, start, stated, may_be, str(told) if told is not None else "")
    except UsageError as error:
        return _noted(profile, "error", "step_pattern_unmatched", 1, file, str(error))
    rows = np.flatnonzero(found.number >= 0)
    if not len(rows):
        return (
            profile if told is None else _noted(profile, "warning", "step_pattern_unmatched", 1, file, _nothing(told))
        )
    kind = kind.copy()
    kind[marked] = int(Kind.SPAN)
    kind[rows] = int(Kind.STEP)
    # Steps of one loop have one name: that of their ranges, without the number.
    code_of = {text: at for at, text in enumerate(names.dictionary.to_pylist())}
    label = np.array([code_of.setdefault(name, len(code_of)) for name in found.names], np.int64)
    code = code.copy()
    code[rows] = label[found.name[rows]]
    columns = {
        "name": pa.DictionaryArray.from_arrays(pa.array(code.astype(np.int32)), pa.array(list(code_of), pa.string())),
        "kind": pa.array(kind),
    }
    for column, values in columns.items():
        place = events.schema.get_field_index(column)
        events = events.set_column(place, events.schema.field(place), values.cast(events.schema.field(place).type))
    shown = [f"`{name}`" for name in found.names[:_SHOWN]] + ["others"] * (len(found.names) > _SHOWN)
    words = f"ranges called {', '.join(shown)} are taken for steps"
    if told is not None and marked.any():
        words += f"; the {int(marked.sum())} steps that the program marks are not"
    out = profile.with_tables(
        events=events,
        args=_numbered(profile["args"], rows, found.number[rows]),
    )
    return _noted(out, "note", "steps_from_ranges", len(rows), file, words)


def _nothing(told: object) -> str:
    return f"no range or function is called what --step-range or --step-pattern says ({told!r})"


def _ranges(profile: Profile, kind: npt.NDArray[Any]) -> Bool:
    """Events of the host that took time: spans of annotations, XLA's own, operations; not a device's."""
    planes = profile["lines"]["plane"].to_pylist()
    host = np.array([plane.startswith("/host:") for plane in planes] or np.zeros(0), np.bool_)
    line = np.asarray(profile["events"]["line"].to_numpy())
    may_be: Bool = host[line] if len(host) else np.zeros(len(line), np.bool_)
    for other in (Kind.MARK, Kind.COUNTER, Kind.GC, Kind.COMPILE):
        may_be &= kind != int(other)
    return may_be


def _has_key(profile: Profile, key: str) -> bool:
    """Whether any event has the argument: asked of every file, so without a column per event."""
    return any(
        key in (texts := chunk.dictionary.to_pylist())
        and bool((np.asarray(chunk.indices.to_numpy(zero_copy_only=False)) == texts.index(key)).any())
        for chunk in profile["args"]["key"].chunks
    )


def _with_key(profile: Profile, key: str, kinds: tuple[ArgKind, ...] | None) -> tuple[Bool, Int64]:
    """Per event whether it has the argument ``key`` (of one of ``kinds``), and its first value; 0 without."""
    args = profile["args"]
    has = np.zeros(profile["events"].num_rows, np.bool_)
    value = np.zeros(len(has), np.int64)
    if not args.num_rows:
        return has, value
    keys = args["key"].unify_dictionaries().combine_chunks() if args["key"].num_chunks != 1 else args["key"].chunk(0)
    texts = keys.dictionary.to_pylist()
    if key not in texts:
        return has, value
    rows = np.asarray(keys.indices.to_numpy(zero_copy_only=False)) == texts.index(key)
    if kinds is not None:
        rows &= np.isin(np.asarray(args["kind"].to_numpy()), [int(one) for one in kinds])
    # The first of repeated ones: written last.
    event = np.asarray(args["event"].to_numpy())[rows][::-1]
    has[event] = True
    value[event] = np.asarray(args["value"].to_numpy())[rows][::-1]
    return has, value


def _numbered(args: pa.Table, rows: Int64, number: Int64) -> pa.Table:
    """``args`` with the steps' numbers, the first argument of each step's event."""
    added = pa.Table.from_arrays(
        [
            pa.array(rows),
            pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(rows), np.int32)), pa.array([_NUMBER])),
            pa.array(np.full(len(rows), int(ArgKind.INT), np.uint8)),
            pa.array(number),
        ],
        names=args.schema.names,
    ).cast(schema.TABLES["args"])
    both = pa.concat_tables([added, args]).unify_dictionaries().combine_chunks()
    order = np.argsort(np.asarray(both["event"].to_numpy()), kind="stable")
    return both.take(pa.array(order)).combine_chunks().cast(schema.TABLES["args"])


def _noted(profile: Profile, severity: str, code: str, count: int, file: str, message: str) -> Profile:
    row = {"severity": severity, "code": code, "file": file, "place": "", "count": count, "message": message}
    added = pa.Table.from_pylist([row], schema=schema.TABLES["diagnostics"])
    return profile.with_tables(diagnostics=pa.concat_tables([profile["diagnostics"], added]))
