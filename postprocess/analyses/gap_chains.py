"""Why did the device idle in a step, gap by gap? Each larger gap with its chain: late launch, host span, source line.

One row per piece of a gap (tables `gaps`, docs/breakdown.md) and cause, with what its numbers refer to written out: the
op that ends the gap and the one before it, the launch of that op's run (program, thread, from when to when), and the
host event that is the evidence, with the function that it names and its source line.

In each step window and lane the LARGEST gaps that take at least LEAST_SHARE of it have rows of their own. What is left
of the window's gaps is one row per cause, with `gap` null and `pieces` summed up, so that the rows of a window sum to
its gap time exactly. Head, tail and nested windows are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.analyses.evidence import own_spans, sampled_places
from xprof_py.postprocess.analyses.leaves import leaves
from xprof_py.postprocess.join import host_names
from xprof_py.postprocess.join.columns import Bool, Events, Int64, Integers, dictionary, distinct, integers
from xprof_py.postprocess.join.device_ops import row_of
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import CLASSES

LARGEST = 12
LEAST_SHARE = 1000
"""One part in so many of the window."""
_FRAME = re.compile(r"\$(?P<where>\S+:\d+) \S+$")
_SEEN = ("evidence", "sampled", "span")
_TEXTS = ("before_op", "before_source", "after_op", "after_source")
_SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("lane", pa.int32()),
        ("step", pa.int32()),  # row of the host's table `steps`
        ("gap", pa.int32()),  # place among the gaps of the window, in order of time; null for what is left
        ("start_ps", pa.int64()),
        ("end_ps", pa.int64()),
        ("cause", pa.string()),
        ("length_ps", pa.int64()),
        ("pieces", pa.int64()),
        ("cause_step", pa.int32()),  # row of the host's table `steps`; null outside steps
        ("evidence", pa.string()),
        ("sampled", pa.bool_()),  # the evidence is the place of a sampled stack
        ("span", pa.string()),  # the program's own span that was open; null: none
        ("function", pa.string()),
        ("source", pa.string()),
        ("event_start_ps", pa.int64()),
        ("event_duration_ps", pa.int64()),
        *((name, pa.string()) for name in _TEXTS),
        ("program", pa.string()),
        ("program_source", pa.string()),
        ("join", pa.string()),
        ("thread", pa.string()),
        ("launch_start_ps", pa.int64()),
        ("launch_end_ps", pa.int64()),
        ("launch_step", pa.int32()),
    ]
)
_ORDER = [(name, "ascending") for name in ("host", "lane", "step", "start_ps", "end_ps", "cause", "cause_step")]


def partial(profile: Profile) -> pa.Table:
    """Columns of _SCHEMA for one joined profile."""
    gaps = profile["gaps"]
    number, names = own_spans(profile)
    span = pa.array(names, pa.string()).take(pa.array(number))
    gaps = gaps.append_column("sampled", pa.array(sampled_places(profile) != 0)).append_column("span", span)
    window = integers(gaps, "window")
    kind = profile["windows"]["kind"].to_pylist()
    in_step = np.array([k == "step" for k in kind] or [False], np.bool_)
    rows = np.flatnonzero(in_step[window]) if gaps.num_rows else window
    if not len(rows):
        return _SCHEMA.empty_table()
    start, end, length = (integers(gaps, name)[rows] for name in ("start_ps", "end_ps", "length_ps"))
    order = np.lexsort((end, start, window[rows]))
    rows, start, end, length = rows[order], start[order], end[order], length[order]
    # Pieces of one gap touch, those of two gaps have an op between them; a window boundary cuts a gap.
    new = np.r_[True, (window[rows][1:] != window[rows][:-1]) | (start[1:] > end[:-1])]
    gap = np.cumsum(new) - 1
    lengths = integers(profile["windows"], "end_ps") - integers(profile["windows"], "start_ps")
    shown = _largest(gap, window[rows], length, lengths)[gap]
    step = integers(profile["windows"], "step")[window[rows]]
    place = gap - np.repeat(*_first_gap(window[rows], gap))
    chain = _Chain(profile)
    count = int(np.count_nonzero(shown))
    own = _table(
        {
            "host": pa.repeat(pa.scalar(profile.host), count),
            "step": step[shown],
            "gap": place[shown],
            "pieces": np.ones(count, np.int64),
            **chain.of(gaps.take(pa.array(rows[shown]))),
        }
    )
    left = gaps.select(["lane", "cause", *_SEEN]).take(pa.array(rows[~shown]))
    cause = left["cause"].combine_chunks().dictionary_encode()
    rank = np.array([CLASSES.index(name) for name in cause.dictionary.to_pylist()] or [0], np.int64)[cause.indices]
    lane, step_of = integers(left, "lane"), step[~shown]
    first, member = distinct(lane, step_of, rank)
    # The longest piece of each key comes first and speaks for the rest.
    low, high, size = start[~shown], end[~shown], length[~shown]
    order = np.lexsort((low, -size, member))
    edges = np.searchsorted(member[order], np.arange(len(first)))
    summed = _table(
        {
            "host": pa.repeat(pa.scalar(profile.host), len(first)),
            "lane": lane[first],
            "step": step_of[first],
            "start_ps": np.minimum.reduceat(low[order], edges) if len(first) else low,
            "end_ps": np.maximum.reduceat(high[order], edges) if len(first) else high,
            "cause": left["cause"].take(pa.array(first)),
            "length_ps": np.add.reduceat(size[order], edges) if len(first) else size,
            "pieces": np.bincount(member, minlength=len(first)),
            **{name: left[name].take(pa.array(order[edges])) for name in _SEEN},
        }
    )
    return pa.concat_tables([own, summed]).combine_chunks()


def _table(columns: Mapping[str, Any]) -> pa.Table:
    """Columns of _SCHEMA, null where they are not among ``columns``."""
    absent = pa.nulls(len(columns["host"]))
    return pa.table([columns.get(name, absent) for name in _SCHEMA.names], names=_SCHEMA.names).cast(_SCHEMA)


def _largest(gap: Int64, window: Int64, length: Int64, window_ps: Int64) -> Bool:
    """Per gap whether it is one of the LARGEST of its window and takes LEAST_SHARE; of equal ones the earlier."""
    sums = np.zeros(int(gap[-1]) + 1, np.int64)
    np.add.at(sums, gap, length)
    of_window = window[np.flatnonzero(np.r_[True, gap[1:] != gap[:-1]])]
    # What is too small comes behind what is not.
    enough = np.flatnonzero(sums * LEAST_SHARE >= window_ps[of_window])
    enough = enough[np.lexsort((-sums[enough], of_window[enough]))]
    ranked = of_window[enough]
    shown = np.zeros(len(sums), np.bool_)
    shown[enough] = np.arange(len(enough)) - np.searchsorted(ranked, ranked) < LARGEST
    return shown


def _first_gap(window: Int64, gap: Int64) -> tuple[Int64, Int64]:
    """(first gap of each run of equal windows, how many rows the run has)."""
    first = np.flatnonzero(np.r_[True, window[1:] != window[:-1]])
    return gap[first], np.diff(np.r_[first, len(window)])


class _Chain:
    """What a row of gaps refers to, written out."""

    def __init__(self, profile: Profile) -> None:
        self._events = Events.of(profile)
        self._lines = profile["lines"]["name"].to_pylist()
        self._launches, self._runs = profile["launches"], profile["runs"]
        self._programs = profile["programs"]["name"].to_pylist()
        self._program_source: dict[int, str] = {}
        places: dict[str, set[str]] = defaultdict(set)
        for row in profile["program_functions"].to_pylist():
            if row["file"] is not None:
                where = f"{row['file']}:{row['source_line']}"
                self._program_source[row["program"]] = where
                places[row["function"]].add(where)
        # Two functions of one name are two places: then the name alone does not say which.
        self._function_source = {name: next(iter(found)) for name, found in places.items() if len(found) == 1}
        self._compiled = {
            (row["line"], row["start_ps"], row["duration_ps"]): row["function"]
            for row in profile["compiles"].to_pylist()
        }
        self._compile_start = integers(profile["compiles"], "start_ps")
        self._compile_end = self._compile_start + integers(profile["compiles"], "duration_ps")
        self._compile_function = profile["compiles"]["function"].to_pylist()
        self._read_calls()
        self._read_ops(profile)

    def _read_calls(self) -> None:
        """Per line the outermost calls of jitted functions, in order: disjoint."""
        events = self._events
        calls = events.rows_where(lambda name: host_names.JIT_CALL.match(name) is not None)
        self._calls: dict[int, Int64] = {}
        for line in np.unique(events.line[calls]):
            mine = calls[events.line[calls] == line]
            mine = mine[np.lexsort((-events.end_ps[mine], events.start_ps[mine]))]
            reached = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, events.end_ps[mine][:-1]])
            self._calls[int(line)] = mine[events.start_ps[mine] >= reached]

    def _read_ops(self, profile: Profile) -> None:
        ops = leaves(profile)
        lane, start = integers(ops, "lane"), integers(ops, "start_ps")
        first, which = distinct(lane)
        self._op_row = {int(lane[row]): np.flatnonzero(which == at) for at, row in enumerate(first.tolist())}
        self._op_start = {one: start[rows] for one, rows in self._op_row.items()}
        self._op_event = integers(ops, "event")
        self._op_hlo = integers(ops, "hlo_op")
        self._op_run = integers(ops, "run")
        hlo = profile["hlo_ops"]
        self._file, self._files = dictionary(hlo, "file")
        self._line = integers(hlo, "source_line", 0)

    def of(self, gaps: pa.Table) -> dict[str, Any]:
        """The columns of _SCHEMA that rows of the table gaps say."""
        said = ("lane", "start_ps", "end_ps", "cause", "length_ps", "cause_step", *_SEEN)
        lane = integers(gaps, "lane")
        before, after = self._neighbours(lane, integers(gaps, "end_ps"))
        columns: dict[str, Any] = {name: gaps[name] for name in said}
        for name, op in (("before", before), ("after", after)):
            columns[f"{name}_op"], columns[f"{name}_source"] = self._op(op)
        return columns | self._launched(lane, after, integers(gaps, "launch")) | self._evidence(gaps)

    def _launched(self, lane: Int64, after: Int64, launch: Int64) -> dict[str, pa.Array]:
        """What is known of the launch of each gap (-1: there is none) and of the run of the op that ends it."""
        launches, runs = self._launches, self._runs
        known = launch >= 0
        run = _at(self._op_run, after)
        # A launch on several devices has one run on each lane.
        width = launches.num_rows + 1
        of_lane = row_of(integers(runs, "lane") * width + integers(runs, "launch") + 1, lane * width + launch + 1)
        run = np.where(after >= 0, np.where(known & (of_lane >= 0), of_lane, run), -1)
        program = _at(integers(runs, "program"), run)
        names, launch_name = [*self._programs], _at(dictionary(launches, "name")[0], launch)
        name = np.where(program >= 0, program, np.where(known, launch_name + len(names), -1))
        names += dictionary(launches, "name")[1]
        sources = [self._program_source.get(row) for row in range(len(self._programs))]
        asked = _rows(launch)
        return {
            "program": pa.array(names, pa.string()).take(_rows(name)),
            "program_source": pa.array(sources, pa.string()).take(_rows(program)),
            "join": runs["join"].take(_rows(run)),
            "thread": pa.array(self._lines, pa.string()).take(_rows(_at(integers(launches, "line"), launch))),
            "launch_start_ps": launches["start_ps"].take(asked),
            "launch_end_ps": launches["end_ps"].take(asked),
            "launch_step": launches["step"].take(asked),
        }

    def _neighbours(self, lane: Int64, end_ps: Int64) -> tuple[Int64, Int64]:
        """Per gap the op before and the op behind it, -1 without.

        No leaf runs in a gap: the next op to start ends it, wherever the window cut the gap.
        """
        before, after = np.full(len(lane), -1, np.int64), np.full(len(lane), -1, np.int64)
        for one, starts in self._op_start.items():
            mine = np.flatnonzero(lane == one)
            place = np.searchsorted(starts, end_ps[mine], side="left")
            op, some, more = self._op_row[one], place > 0, place < len(starts)
            before[mine[some]] = op[place[some] - 1]
            after[mine[more]] = op[place[more]]
        return before, after

    def _op(self, op: Int64) -> tuple[pa.Array, pa.Array]:
        """Name and source line of ops (rows of the leaves, -1 where there is none)."""
        hlo = _at(self._op_hlo, op)
        known, which = np.unique(hlo, return_inverse=True)
        files = [self._files[self._file[row]] if row >= 0 else None for row in known.tolist()]
        sources = [
            f"{file}:{self._line[row]}" if file else None for file, row in zip(files, known.tolist(), strict=True)
        ]
        name = _at(self._events.name, _at(self._op_event, op))
        codes, of = np.unique(name, return_inverse=True)
        names = [self._events.names[code] if code >= 0 else None for code in codes.tolist()]
        return pa.array(names, pa.string()).take(pa.array(of)), pa.array(sources, pa.string()).take(pa.array(which))

    def _compiling(self, start: int, end: int) -> str | None:
        """The function that was compiled in most of [start, end): XLA's own events name none, jax.monitoring's do."""
        if not len(self._compile_start):
            return None
        shared = np.minimum(self._compile_end, end) - np.maximum(self._compile_start, start)
        most = int(shared.argmax())
        return self._compile_function[most] if 2 * int(shared[most]) > end - start else None

    def _calling(self, event: Int64) -> Int64:
        """Per event the call of a jitted function that encloses it on its thread, the outermost one; -1 without."""
        events = self._events
        found = np.full(len(event), -1, np.int64)
        for line, calls in self._calls.items():
            mine = np.flatnonzero(events.line[event] == line)
            place = np.searchsorted(events.start_ps[calls], events.start_ps[event[mine]], side="right") - 1
            inside = (place >= 0) & (events.end_ps[calls[place]] >= events.end_ps[event[mine]])
            found[mine[inside]] = calls[place[inside]]
        return found

    def _evidence(self, gaps: pa.Table) -> dict[str, pa.Array]:
        """What the events say that are the evidence for the causes of gaps."""
        events = self._events
        event = integers(gaps, "event")
        rows = np.flatnonzero(event >= 0)
        functions: list[str | None] = [None] * len(event)
        sources: list[str | None] = [None] * len(event)
        asked = event[rows]
        calling = self._calling(asked)
        stated, text = events.argument_of("source", asked)
        named: dict[int, str | None] = {}
        for row, line, start, end, code, call, why, states, said in zip(
            rows.tolist(),
            events.line[asked].tolist(),
            events.start_ps[asked].tolist(),
            events.end_ps[asked].tolist(),
            events.name[asked].tolist(),
            np.where(calling >= 0, events.name[np.maximum(calling, 0)], -1).tolist(),
            gaps["cause"].take(pa.array(rows)).to_pylist(),
            stated.tolist(),
            text.tolist(),
            strict=True,
        ):
            function = self._compiled.get((line, start, end - start))
            if function is None and why == "compiler":
                function = self._compiling(start, end)
            if function is None and why in ("host", "compiler") and call >= 0:
                called = host_names.JIT_CALL.match(events.names[call])
                function = called["function"] if called else None
            if code not in named:
                frame = _FRAME.match(events.names[code])
                named[code] = frame["where"] if frame is not None else None
            functions[row] = function
            if states:
                sources[row] = events.text_of(said)
            elif named[code] is not None:
                sources[row] = named[code]
            elif function:
                sources[row] = self._function_source.get(host_names.function_name(function))
        return {
            "function": pa.array(functions, pa.string()),
            "source": pa.array(sources, pa.string()),
            "event_start_ps": pa.array(_at(events.start_ps, event), mask=event < 0),
            "event_duration_ps": pa.array(_at(events.end_ps, event) - _at(events.start_ps, event), mask=event < 0),
        }


class _Column(Protocol):
    """What is read row by row: a column, or one that is worked out when it is asked for."""

    def __getitem__(self, rows: Int64) -> Integers: ...


def _at(column: _Column, row: Int64) -> Int64:
    """The values of ``column`` at rows, -1 where a row is -1."""
    out = np.full(len(row), -1, np.int64)
    known = row >= 0
    if known.any():
        out[known] = column[row[known]]
    return out


def _rows(row: Int64) -> pa.Array:
    """Rows to take, null where they are -1."""
    return pa.array(row, mask=row < 0)


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Rows of both: a window belongs to one profile."""
    return pa.concat_tables([a, b])


def finish(merged: pa.Table) -> pa.Table:
    """The same rows, by host, lane, step and time."""
    return merged.sort_by(_ORDER)
