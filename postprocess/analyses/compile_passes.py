"""Which passes of the compiler took the time, and on which module?

Per function, module and pass: self picoseconds (the pass without the passes inside it), count and the longest one, over
the threads that compile, and over what a thread that waits for its compile does meanwhile. Code is generated on several
threads at once, and a span that waits for code from other threads counts its wait: sums may exceed the time that the
program waited. `module` is what the pass, or the nearest one around it, names: the HLO module, or the kernel that code
is generated for ("" where neither says). `function` is the one whose compile was under way at the time, "" where none
or several were. A pass that was open at the end of the capture is left out.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.join import host_names
from xprof_py.postprocess.join.columns import Events, Int64
from xprof_py.postprocess.profile import Profile

KEYS = ["function", "module", "pass"]
_SUMS = ("self_ps", "count", "longest_ps")
_SCHEMA = pa.schema([*((key, pa.string()) for key in KEYS), *((name, pa.int64()) for name in _SUMS)])


def partial(profile: Profile) -> pa.Table:
    """KEYS, self_ps, count, longest_ps of one joined profile."""
    lines = profile["lines"]["name"].to_pylist()
    compiling = [row for row, name in enumerate(lines) if name.startswith(host_names.COMPILER_LINES)]
    events = Events.of(profile)
    passes = np.zeros(events.count, np.bool_)
    for line in compiling:
        passes[slice(*events.first_row([line, line + 1]))] = True
    for call in events.rows_named(host_names.COMPILE_CALL):
        # Sorted by line and start: what the call holds are the next rows.
        of_line = int(events.first_row(events.line[call] + 1))
        starts = events.start_ps[call + 1 : of_line]
        last = call + 1 + int(np.searchsorted(starts, events.end_ps[call], side="left"))
        passes[call + 1 : last] = True
    rows = np.flatnonzero(passes)
    no_pass = events.verdicts(lambda name: name.startswith(host_names.NO_PASS))
    rows = rows[(events.duration_ps[rows] >= 0) & ~no_pass[events.name[rows]]]
    if not len(rows):
        return _SCHEMA.empty_table()
    self_ps, speaker = _nested(events, rows)
    said = np.where(speaker >= 0, events.argument_of("module", speaker)[1], -1)
    texts = {int(code): events.text_of(int(code)) for code in np.unique(said) if code >= 0}
    modules = [texts.get(code, "") for code in said.tolist()]
    table = pa.table(
        {
            "function": _function_at(profile, events.start_ps[rows]),
            "module": pa.array(modules, pa.string()),
            "pass": pa.array([_pass_name(events.names[code]) for code in events.name[rows]], pa.string()),
            "self_ps": self_ps,
            "count": np.ones(len(rows), np.int64),
            "longest_ps": self_ps,
        }
    ).cast(_SCHEMA)
    return merge(table, None)


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Sums and maxima per key."""
    both = a if b is None else pa.concat_tables([a, b])
    summed = both.group_by(KEYS).aggregate([("self_ps", "sum"), ("count", "sum"), ("longest_ps", "max")])
    return summed.rename_columns([c.removesuffix("_sum").removesuffix("_max") for c in summed.column_names]).cast(
        _SCHEMA
    )


def finish(merged: pa.Table) -> pa.Table:
    """The same rows, most self time first."""
    return merged.sort_by([("self_ps", "descending"), *((key, "ascending") for key in KEYS)])


def _nested(events: Events, rows: Int64) -> tuple[Int64, Int64]:
    """(self ps, event that names the module or -1) of each of ``rows``, which come parents first on their lines."""
    self_ps = events.duration_ps[rows].copy()
    speaker = np.where(events.argument_of("module", rows)[0], rows, -1)
    stack: list[int] = []
    line = -1
    ends, starts, lines = events.end_ps[rows].tolist(), events.start_ps[rows].tolist(), events.line[rows].tolist()
    for i in range(len(rows)):
        if lines[i] != line:
            line = lines[i]
            stack.clear()
        while stack and ends[stack[-1]] <= starts[i]:
            stack.pop()
        if stack:
            self_ps[stack[-1]] -= min(ends[i], ends[stack[-1]]) - starts[i]
            if speaker[i] < 0:
                speaker[i] = speaker[stack[-1]]
        stack.append(i)
    return self_ps, speaker


def _function_at(profile: Profile, at_ps: Int64) -> pa.Array:
    """The function whose compile was under way at each time; "" where none or several were."""
    compiles = profile["compiles"].filter(pc.equal(profile["compiles"]["stage"], "compile"))
    names = pa.array(["", *compiles["function"].to_pylist()], pa.string())
    start = np.asarray(compiles["start_ps"].to_numpy(), np.int64)
    end = start + np.asarray(compiles["duration_ps"].to_numpy(), np.int64)
    number = np.arange(1, len(start) + 1)
    by_start, by_end = np.argsort(start, kind="stable"), np.argsort(end, kind="stable")
    begun = np.searchsorted(start[by_start], at_ps, side="right")
    ended = np.searchsorted(end[by_end], at_ps, side="right")
    # Numbers of those begun minus numbers of those ended: where one compile is under way, its own number.
    sums = [np.concatenate(([0], np.cumsum(number[order]))) for order in (by_start, by_end)]
    alone = begun - ended == 1
    return names.take(pa.array(np.where(alone, sums[0][begun] - sums[1][ended], 0)))


def _pass_name(name: str) -> str:
    """``simplification (jit_f)`` is the pipeline ``simplification``: its module has a column of its own."""
    return name.rsplit(" (", 1)[0] if name.endswith(")") else name
