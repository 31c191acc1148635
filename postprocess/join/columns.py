"""The events of a Profile as numpy columns, and their arguments by key: what every step of the join reads.

No event becomes a Python object. Most events of a large capture are Python frames without arguments, which no step of
the join asks for by name: rows are found through an index of the other names, and arguments are kept as they come, by
event. `Events.of` makes the columns once per profile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from xprof_py import _native
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import ArgKind, Kind

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Integers = npt.NDArray[np.integer]
"""Rows, codes or times of any width: what comes from a table is often int32, what is computed int64."""
UInt8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]
_Column = TypeVar("_Column", bound=npt.NDArray[Any])

OPEN = np.int64(-1)
"""The duration of an event that was still open at the end of the capture."""
FRAME = "$"
"""Beginning of the names of Python frames in XLA's trace."""


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """One array, without a copy where the column is one already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def integers(table: pa.Table, name: str, null: int = -1) -> Int64:
    """Column ``name`` of ``table`` as int64, with ``null`` in place of nulls."""
    return np.asarray(_plain(table, name, null), dtype=np.int64)


def _plain(table: pa.Table, name: str, null: int = -1) -> npt.NDArray[np.integer]:
    """The same in the width that the table has."""
    column = table.column(name)
    if column.null_count:
        column = column.fill_null(null)
    column = _flat(column)
    if isinstance(column, pa.ChunkedArray):
        return np.empty(0, column.type.to_pandas_dtype())
    return np.asarray(column.to_numpy(zero_copy_only=False))


def dictionary(table: pa.Table, name: str) -> tuple[Int32, list[str]]:
    """Column ``name`` as (codes, texts): row i says ``texts[codes[i]]``."""
    column = table.column(name)
    if column.num_chunks > 1:
        column = column.unify_dictionaries()
    column = _flat(column)
    if isinstance(column, pa.ChunkedArray):
        column = pa.array([], column.type)
    return np.asarray(column.indices.to_numpy(zero_copy_only=False), dtype=np.int32), column.dictionary.to_pylist()


def codes(column: pa.ChunkedArray) -> tuple[Int32, list[str]]:
    """A column of texts as (codes, texts): row i says ``texts[codes[i]]``."""
    return dictionary(pa.table({"": column.dictionary_encode()}), "")


def among(rows: Int64, known: Int64) -> Bool:
    """Which of ``rows`` are in ``known``, which is in order."""
    if not len(known):
        return np.zeros(len(rows), np.bool_)
    return np.asarray(known[np.minimum(np.searchsorted(known, rows), len(known) - 1)] == rows)


def united(*columns: Int64) -> Int64:
    """The values of all columns in order, each once.

    What numpy.unique does, which makes a table of hashes of them. Columns of rows are in order mostly, and merged.
    """
    together = np.sort(np.concatenate(columns), kind="stable")
    return together[_changes([together])]


def occurring(codes: Integers, count: int) -> Int64:
    """Which of the codes below ``count`` occur, in order."""
    return np.flatnonzero(np.bincount(codes, minlength=count))


def distinct(*columns: Integers) -> tuple[Int64, Int64]:
    """(the first row of each distinct combination, which one each row is), in order of the columns, the first leading.

    What numpy.unique does over rows, without making objects of them.
    """
    # Rows of one combination mostly follow one another: only the first of each such run is looked at.
    head = np.flatnonzero(_changes(columns))
    firsts = [column[head] for column in columns]
    first, group = _numbered(firsts) or _sorted(firsts)
    return head[first], np.repeat(group, np.diff(np.append(head, len(columns[0]))))


def in_order_of_rows(*columns: Integers) -> tuple[Int64, Int64]:
    """The same in the order in which the combinations come first."""
    first, group = distinct(*columns)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return first[order], rank[group]


_PLACES_PER_ROW = 4
"""So many places for a row take less time than sorting it."""


def _numbered(columns: Sequence[Integers]) -> tuple[Int64, Int64] | None:
    """distinct, by a place for every combination that the columns' ranges leave; None where these are too many."""
    count = len(columns[0])
    if not count:
        return None
    lows = [int(column.min()) for column in columns]
    sizes = [int(column.max()) - low + 1 for column, low in zip(columns, lows, strict=True)]
    places = math.prod(sizes)
    if places > _PLACES_PER_ROW * count:
        return None
    place = np.zeros(count, np.int64)
    for column, low, size in zip(columns, lows, sizes, strict=True):
        place *= size
        place += column
        place -= low
    first = np.full(places, -1, np.int64)
    # Of rows that are written to one place the last one stays: from behind that is the first.
    first[place[::-1]] = np.arange(count - 1, -1, -1)
    taken = first >= 0
    return first[taken], (np.cumsum(taken) - 1)[place]


def _one_number(columns: Sequence[Integers]) -> Int64 | None:
    """A number per row that is in order as the columns are; None where 64 bits do not hold it."""
    if not len(columns[0]):
        return None
    key = np.zeros(len(columns[0]), np.int64)
    places = 1
    for column in columns:
        low = int(column.min())
        size = int(column.max()) - low + 1
        places *= size
        if places >= 1 << 63:
            return None
        key *= size
        key += column
        key -= low
    return key


def _sorted(columns: Sequence[Integers]) -> tuple[Int64, Int64]:
    """distinct, by sorting: once, where one number can stand for all columns."""
    key = _one_number(columns)
    order = np.lexsort(columns[::-1]) if key is None else np.argsort(key, kind="stable")
    new = _changes([column[order] for column in columns])
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(new) - 1
    return order[new], group


def _changes(columns: Sequence[Integers]) -> Bool:
    """Which rows are not the same as the one before them."""
    new = np.zeros(len(columns[0]), np.bool_)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return new


def _rows_by_code(code: Int32, keep: Bool) -> tuple[Int32, Int64]:
    """(rows by code and then in order, where each code's begin); codes that are not kept have none."""
    rows, begin = _native.rows_by_code(np.ascontiguousarray(code), keep)
    return np.asarray(rows), np.asarray(begin)


_ROWS_GATHERED = 64
_BYTES_GATHERED = 64 << 20
"""Of a column in a file. What surrounds a row comes into memory with it, up to a megabyte: so many rows, or those
that lie within so many bytes, are gathered before all is dropped again."""


class _InFile(np.ndarray[Any, Any]):
    """A column that lies in a file (readers/column_memory.py): rows are gathered without having all of it in memory."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """What is computed of it is a plain array. It is read-only: it is never `out`."""
        return getattr(ufunc, method)(*(np.asarray(x) if isinstance(x, _InFile) else x for x in inputs), **options)

    def __getitem__(self, key: Any) -> Any:
        plain = np.asarray(self)
        if not isinstance(key, np.ndarray) or key.ndim != 1 or (key.dtype == np.bool_ and len(key) != len(plain)):
            return plain[key]
        rows = np.flatnonzero(key) if key.dtype == np.bool_ else key
        out = np.empty(len(rows), self.dtype)
        # In the order in which they lie.
        order = None if (rows[1:] >= rows[:-1]).all() else np.argsort(rows, kind="stable")
        rows = rows if order is None else rows[order]
        low = 0
        while low < len(rows):
            near = np.searchsorted(rows, rows[low] + _BYTES_GATHERED // self.itemsize)
            part = slice(low, max(int(near), low + _ROWS_GATHERED))
            out[part if order is None else order[part]] = plain[rows[part]]
            _native.passed(plain)
            low = part.stop
        return out


def _where_it_lies(column: _Column) -> _Column:
    if not _native.in_file(column):
        return column
    found = column.view(_InFile)
    found.flags.writeable = False
    return cast(_Column, found)


class _Ends:
    """When events ended, in ps, for those that are asked for: a column of them would be a sixth of all memory."""

    def __init__(self, start_ps: Int64, duration_ps: Int64, capture_end_ps: int | None) -> None:
        self._start_ps, self._duration_ps = start_ps, duration_ps
        self._capture_end_ps = capture_end_ps
        """Where events may be open: an open event lasted at least until then."""

    @overload
    def __getitem__(self, rows: int | np.integer) -> np.int64: ...
    @overload
    def __getitem__(self, rows: Integers | list[int]) -> Int64: ...
    def __getitem__(self, rows: int | np.integer | Integers | list[int]) -> np.int64 | Int64:
        start, duration = self._start_ps[rows], self._duration_ps[rows]
        end: np.int64 | Int64 = start + duration
        if self._capture_end_ps is not None:
            end = np.where(duration < 0, np.maximum(self._capture_end_ps, start), end)[()]
        return end


class Events:
    """Columns of ``profile["events"]``: line, name (codes into ``names``), kind, times in ps."""

    @staticmethod
    def of(profile: Profile) -> Events:
        """The events of ``profile``, made once for it and for every profile that adds tables to it."""
        return profile.once("events", (profile["events"], profile["args"]), lambda: Events(profile))

    def __init__(self, profile: Profile) -> None:
        table = profile["events"]
        self.count = table.num_rows
        self.line: Int32 = _where_it_lies(_plain(table, "line").astype(np.int32, copy=False))
        name, self.names = dictionary(table, "name")
        self.name = _where_it_lies(name)
        self.kind: UInt8 = _where_it_lies(_plain(table, "kind").astype(np.uint8, copy=False))
        self.start_ps = _where_it_lies(integers(table, "start_ps"))
        self.duration_ps = _where_it_lies(integers(table, "duration_ps", int(OPEN)))
        self.has_open = table["duration_ps"].null_count > 0
        """Whether events were still open at the end of the capture: their duration is OPEN."""
        self.end_ps = _Ends(self.start_ps, self.duration_ps, profile.capture_end_ps if self.has_open else None)
        args = profile["args"]
        self._arg_event = integers(args, "event")
        self._arg_key, keys = dictionary(args, "key")
        self._arg_kind = _plain(args, "kind")
        self._arg_value = integers(args, "value")
        self._keys = {key: code for code, key in enumerate(keys)}
        self._key_count = len(keys)
        self._texts = profile["texts"]["text"]
        self._having: dict[str, tuple[Int64, Int64]] = {}
        self._rows_by_count: dict[int, Int64] = {}

    def index(self) -> None:
        """Make what finding rows by name and arguments by key needs; else that is made when first asked for."""
        _ = self._by_name, self._by_key

    def last_end_ps(self) -> int:
        """When the last event ended. Raises ValueError without any."""
        chunks = range(0, self.count, 1 << 20)
        return max(int(self.end_ps[np.arange(low, min(low + (1 << 20), self.count))].max()) for low in chunks)

    @cached_property
    def rows_not_plain(self) -> Int64:
        """Rows, in order, of the events that say themselves what they are: none of another tool's trace."""
        return np.flatnonzero(self.kind != Kind.PLAIN)

    def rows_of_kind(self, *kinds: Kind) -> Int64:
        """Rows, in order, of the events of these kinds, none of them PLAIN."""
        kind = self.kind[self.rows_not_plain]
        return self.rows_not_plain[np.isin(kind, [int(one) for one in kinds])]

    def having(self, key: str) -> tuple[Int64, Int64]:
        """(rows, values) of the events with argument ``key``, in order: raw 64 bits, the first of repeated ones."""
        if key not in self._having:
            code = self._keys.get(key)
            args = self._args_of(code) if code is not None else np.empty(0, np.int32)
            rows = self._arg_event[args]
            if len(rows) and not (rows[1:] > rows[:-1]).all():
                rows, first = np.unique(rows, return_index=True)
                args = args[first]
            # Ops all have the same arguments: their rows are kept once.
            alike = self._rows_by_count.setdefault(len(rows), rows)
            self._having[key] = (alike if np.array_equal(alike, rows) else rows, self._arg_value[args])
        return self._having[key]

    def forget(self) -> None:
        """Give back the memory of what ``having`` found; who asks again has it looked up again."""
        self._having.clear()
        self._rows_by_count.clear()

    def argument_of(self, key: str, rows: Int64) -> tuple[Bool, Int64]:
        """(present, value) of argument ``key`` for each of ``rows``; 0 where it is absent."""
        known, values = self.having(key)
        if not len(known):
            return np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.int64)
        if known is rows or (len(known) == len(rows) and np.array_equal(known, rows)):
            # Ops are asked for by one of their arguments.
            return np.ones(len(rows), np.bool_), values.copy()
        if _PLACES_PER_ROW * len(rows) > self.count and (rows >= 0).all():
            place_of = np.full(self.count, -1, np.int32)
            place_of[known] = np.arange(len(known), dtype=np.int32)
            place = place_of[rows]
            present = place >= 0
        else:
            place = np.minimum(np.searchsorted(known, rows), len(known) - 1)
            present = known[place] == rows
        value = values[place]
        value[~present] = 0
        return present, value

    def argument(self, key: str) -> tuple[Bool, Int64]:
        """(present, value) per event. Nine bytes for every event there is: ``having`` and ``argument_of`` take less."""
        present = np.zeros(self.count, dtype=np.bool_)
        value = np.zeros(self.count, dtype=np.int64)
        rows, values = self.having(key)
        present[rows] = True
        value[rows] = values
        return present, value

    def amounts(self, key: str, events: Int64) -> list[int | None]:
        """The numeric argument ``key`` of each of ``events`` as a whole number from 0 to below 2^63, else None."""
        wanted = {int(event) for event in events}
        code = self._keys.get(key)
        found: dict[int, int] = {}
        for row in np.flatnonzero(self._arg_key == code)[::-1].tolist() if code is not None else []:
            if int(self._arg_event[row]) not in wanted:
                continue
            value: float = int(self._arg_value[row])
            kind = int(self._arg_kind[row])
            if kind == ArgKind.DOUBLE:
                value = float(self._arg_value[row : row + 1].view(np.float64)[0])
            if kind in (ArgKind.INT, ArgKind.UINT, ArgKind.DOUBLE) and 0 <= value < 2**63:
                found[int(self._arg_event[row])] = round(value)
        return [found.get(int(event)) for event in events]

    def text_of(self, code: int) -> str:
        """The text of a TEXT argument value."""
        return str(self._texts[code].as_py())

    def verdicts(self, test: Callable[[str], object]) -> Bool:
        """What ``test`` says per distinct name."""
        return np.fromiter((bool(test(name)) for name in self.names), dtype=np.bool_, count=len(self.names))

    @cached_property
    def _by_name(self) -> tuple[Int32, Int64]:
        """(rows of events that are no Python frames by name and then in order, where each name's begin)."""
        return _rows_by_code(self.name, ~self.verdicts(lambda name: name.startswith(FRAME)))

    def _args_of(self, code: int) -> Int32:
        """Rows of the arguments with this key, in order."""
        rows, begin = self._by_key
        return rows[begin[code] : begin[code + 1]]

    @cached_property
    def _by_key(self) -> tuple[Int32, Int64]:
        return _rows_by_code(self._arg_key, np.ones(self._key_count, np.bool_))

    def rows_where(self, test: Callable[[str], object]) -> Int64:
        """Rows, in order, of the events whose name passes ``test``; the test runs once per distinct name."""
        wanted = np.flatnonzero(self.verdicts(test))
        if any(self.names[code].startswith(FRAME) for code in wanted):
            return np.flatnonzero(self.matching(test))
        rows, begin = self._by_name
        found = [rows[begin[code] : begin[code + 1]] for code in wanted]
        return np.sort(np.concatenate(found)).astype(np.int64) if found else np.empty(0, np.int64)

    def first_row(self, lines: npt.ArrayLike) -> Int64:
        """Per line the row at which its events begin; a line's end where the next one begins."""
        # In the column's own type: for another one numpy would copy the whole column first.
        return np.searchsorted(self.line, np.asarray(lines, np.int32))

    def first_row_from(self, line: int, at_ps: Int64) -> Int64:
        """Per time the first row of ``line`` that starts then or later, its end where there is none."""
        low, high = self.first_row([line, line + 1])
        starts: Int64 = np.asarray(self.start_ps)[low:high]
        if not isinstance(self.start_ps, _InFile):
            return np.asarray(low + np.searchsorted(starts, at_ps))
        if starts.nbytes <= _BYTES_GATHERED:
            out = low + np.searchsorted(starts, at_ps)
            _native.passed(starts)
            return np.asarray(out)
        out = np.empty(len(at_ps), np.int64)
        for first in range(0, len(at_ps), _ROWS_GATHERED):
            part = at_ps[first : first + _ROWS_GATHERED]
            out[first : first + len(part)] = low + np.searchsorted(starts, part)
            _native.passed(starts)
        return out

    def rows_on(self, lines: Int64) -> Int64:
        """Rows, in order, of the events on these lines, which ascend as the events do."""
        first, behind = self.first_row(lines), self.first_row(np.asarray(lines) + 1)
        found = [np.arange(low, high) for low, high in zip(first.tolist(), behind.tolist(), strict=True)]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def rows_named(self, *names: str) -> Int64:
        """Rows, in order, of the events with one of these names."""
        return self.rows_where(lambda name: name in names)

    def named(self, *names: str) -> Bool:
        """True for events with one of these names."""
        return self.matching(lambda name: name in names)

    def matching(self, test: Callable[[str], object]) -> Bool:
        """True for events whose name passes ``test``; the test runs once per distinct name."""
        if not len(self.names):
            return np.zeros(self.count, dtype=np.bool_)
        return np.asarray(self.verdicts(test)[self.name])
