"""What is the evidence for each cause? Which host span, on how many steps, and for how long did the device wait for it.

Per (cause, evidence, source, phase of the step) over the pieces of gaps: picoseconds and pieces. The
evidence is the name of the span that decided (for `unknown`: of the span that was open and says nothing); its source is
the code that it names itself (`wrap_input` does). Where a sampled stack decided (`sampled`), evidence and source are
its place in the user's code; `span` is the program's own span that was open, null where none was (a step is none).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.join.columns import Events, integers
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
    step = windows["step"].take(gaps["window"])
    kind = windows["kind"].take(gaps["window"])
    phase = steps["phase"].take(step) if steps.num_rows else pa.nulls(gaps.num_rows, pa.string())
    table = pa.table(
        {
            "cause": gaps["cause"],
            "evidence": gaps["evidence"],
            "source": sources_of_gaps(profile),
            "phase": pc.if_else(pc.equal(kind, "step"), phase, kind),
            "span": own_spans(profile),
            "sampled": sampled_places(profile),
            "length_ps": gaps["length_ps"],
            "pieces": pa.repeat(pa.scalar(1, pa.int64()), gaps.num_rows),
        }
    ).cast(_SCHEMA)
    return merge(table, None)


def sources_of_gaps(profile: Profile) -> pa.StringArray:
    """Per row of `gaps` the source line of its evidence as `path:line`, "" where it names none."""
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
    return pa.array(texts, pa.string()).take(pa.array(number))


def own_spans(profile: Profile) -> pa.StringArray:
    """Per row of `gaps` the name of the program's own span that was open, null where none was or it was only a step."""
    events = Events.of(profile)
    event = integers(profile["gaps"], "event")
    own = event >= 0
    own[own] = events.kind[event[own]] == Kind.SPAN
    name = np.zeros(len(event), np.int64)
    name[own] = events.name[event[own]]
    return pa.array(events.names, pa.string()).take(pa.array(name, mask=~own))


def sampled_places(profile: Profile) -> pa.BooleanArray:
    """Per row of `gaps` whether its evidence is the place of a sampled stack."""
    stack = integers(profile["gaps"], "stack")
    stacks = Stacks(profile)
    placed = [row for row in np.unique(stack[stack >= 0]).tolist() if stacks.place(row) is not None]
    return pa.array(np.isin(stack, placed))


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Sums per key."""
    both = a if b is None else pa.concat_tables([a, b])
    summed = both.group_by(KEYS).aggregate([("length_ps", "sum"), ("pieces", "sum")])
    return summed.rename_columns([c.removesuffix("_sum") for c in summed.column_names]).cast(_SCHEMA)


def finish(merged: pa.Table) -> pa.Table:
    """The same rows, longest first."""
    return merged.sort_by([("length_ps", "descending"), *((key, "ascending") for key in KEYS)])
