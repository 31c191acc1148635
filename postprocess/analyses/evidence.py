"""What is the evidence for each cause? Which host span, on how many steps, and for how long did the device wait for it.

Per (cause, evidence, source, phase of the step) over the pieces of gaps: picoseconds and pieces. The
evidence is the name of the span that decided (for `unknown`: of the span that was open and says nothing); its source is
the code that it names itself (`wrap_input` does). Where a sampled stack decided (`sampled`), evidence and source are
its place in the user's code; `span` is the program's own span that was open, null where none was (a step is none).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.join.columns import Events, Int64, Integers, UInt8, codes, distinct, integers
from xprof_py.postprocess.join.samples import Stacks
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import Kind

KEYS = ["cause", "evidence", "source", "phase", "span", "sampled"]
_SCHEMA = pa.schema(
    [
        *((k, pa.string()) for k in KEYS[:-1]),
        ("sampled", pa.bool_()),
        ("length_ps", pa.int64()),
        ("pieces", pa.int64()),
    ]
)


def partial(profile: Profile) -> pa.Table:
    """KEYS, length_ps, pieces of one joined profile. `phase` is that of the window's step; head and tail say so."""
    gaps, windows, steps = profile["gaps"], profile["windows"], profile["steps"]
    if not gaps.num_rows:
        return _SCHEMA.empty_table()
    phase = steps["phase"].take(windows["step"]) if steps.num_rows else pa.nulls(windows.num_rows, pa.string())
    phase, phases = codes(pc.if_else(pc.equal(windows["kind"], "step"), phase, windows["kind"]))
    (cause, causes), (evidence, texts) = codes(gaps["cause"]), codes(gaps["evidence"])
    (source, sources), (span, spans) = sources_of_gaps(profile), own_spans(profile)
    phase_of = phase[integers(gaps, "window")]
    columns: tuple[Integers, ...] = (cause, evidence, source, phase_of, span, sampled_places(profile))
    words: tuple[Sequence[str | bool | None], ...] = (causes, texts, sources, phases, spans, (False, True))
    first, group = distinct(*columns)
    length_ps = np.zeros(len(first), np.int64)
    np.add.at(length_ps, group, integers(gaps, "length_ps"))
    named = {
        key: [said[code] for code in column[first].tolist()]
        for key, column, said in zip(KEYS, columns, words, strict=True)
    }
    pieces = np.bincount(group, minlength=len(first))
    return merge(pa.table({**named, "length_ps": length_ps, "pieces": pieces}, schema=_SCHEMA), None)


def sources_of_gaps(profile: Profile) -> tuple[Int64, list[str]]:
    """(number of a text per row of `gaps`, texts): the source line of its evidence as `path:line`, "" without one.

    A text may have several numbers.
    """
    gaps, events = profile["gaps"], Events.of(profile)
    event = integers(gaps, "event")
    known, source = events.argument_of("source", event)
    texts = [""]
    number = np.zeros(gaps.num_rows, np.int64)
    for row in np.unique(source[known]).tolist():
        number[known & (source == row)] = len(texts)
        texts.append(events.text_of(row))
    stack = integers(gaps, "stack")
    stacks = Stacks(profile)
    for row in np.unique(stack[stack >= 0]).tolist():
        place = stacks.place(row)
        if place is not None:
            number[stack == row] = len(texts)
            texts.append(place.source)
    return number, texts


def own_spans(profile: Profile) -> tuple[Int64, list[str | None]]:
    """(per row of `gaps` which name, names) of the program's own span that was open; None: none was, or only a step."""
    events = Events.of(profile)
    event = integers(profile["gaps"], "event")
    own = event >= 0
    own[own] = events.kind[event[own]] == Kind.SPAN
    name = np.full(len(event), len(events.names), np.int64)
    name[own] = events.name[event[own]]
    return name, [*events.names, None]


def sampled_places(profile: Profile) -> UInt8:
    """Per row of `gaps` 1 where its evidence is the place of a sampled stack."""
    stack = integers(profile["gaps"], "stack")
    stacks = Stacks(profile)
    placed = [row for row in np.unique(stack[stack >= 0]).tolist() if stacks.place(row) is not None]
    return np.isin(stack, placed).astype(np.uint8)


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Sums per key."""
    both = a if b is None else pa.concat_tables([a, b])
    summed = both.group_by(KEYS).aggregate([("length_ps", "sum"), ("pieces", "sum")])
    return summed.rename_columns([c.removesuffix("_sum") for c in summed.column_names]).cast(_SCHEMA)


def finish(merged: pa.Table) -> pa.Table:
    """The same rows, longest first."""
    return merged.sort_by([("length_ps", "descending"), *((key, "ascending") for key in KEYS)])
