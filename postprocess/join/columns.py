"""The events of a Profile as numpy columns, and their arguments by key: what every step of the join reads.

No event becomes a Python object. A dense argument column costs 9 bytes per event and key, so keys are made dense only
when asked for.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import ArgKind

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]

OPEN = np.int64(-1)
"""The duration of an event that was still open at the end of the capture."""


def integers(table: pa.Table, name: str, null: int = -1) -> Int64:
    """Column ``name`` of ``table`` as int64, with ``null`` in place of nulls."""
    column = table.column(name)
    if column.null_count:
        column = column.fill_null(null)
    return np.asarray(column.to_numpy(), dtype=np.int64)


def dictionary(table: pa.Table, name: str) -> tuple[Int32, list[str]]:
    """Column ``name`` as (codes, texts): row i says ``texts[codes[i]]``."""
    column = table.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries()
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return np.asarray(column.indices.to_numpy(zero_copy_only=False), dtype=np.int32), column.dictionary.to_pylist()


class Events:
    """Columns of ``profile["events"]``: line, name (codes into ``names``), kind, times in ps."""

    def __init__(self, profile: Profile) -> None:
        table = profile["events"]
        self.count = table.num_rows
        self.line = integers(table, "line")
        self.name, self.names = dictionary(table, "name")
        self.kind = integers(table, "kind")
        self.start_ps = integers(table, "start_ps")
        self.duration_ps = integers(table, "duration_ps", int(OPEN))
        # An open event lasted at least until the end of the capture.
        self.end_ps = np.where(
            self.duration_ps < 0, np.maximum(profile.capture_end_ps, self.start_ps), self.start_ps + self.duration_ps
        )
        args = profile["args"]
        self._arg_event = integers(args, "event")
        self._arg_key, keys = dictionary(args, "key")
        self._arg_kind = integers(args, "kind")
        self._arg_value = integers(args, "value")
        self._keys = {key: code for code, key in enumerate(keys)}
        self._texts = profile["texts"]["text"]

    @cached_property
    def _dense(self) -> dict[str, tuple[Bool, Int64]]:
        return {}

    def argument(self, key: str) -> tuple[Bool, Int64]:
        """(present, value) per event: the raw 64-bit value of ``key``; its first occurrence where it is repeated."""
        if key not in self._dense:
            present = np.zeros(self.count, dtype=np.bool_)
            value = np.zeros(self.count, dtype=np.int64)
            code = self._keys.get(key)
            if code is not None:
                rows = np.flatnonzero(self._arg_key == code)[::-1]
                present[self._arg_event[rows]] = True
                value[self._arg_event[rows]] = self._arg_value[rows]
            self._dense[key] = (present, value)
        return self._dense[key]

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

    def named(self, *names: str) -> Bool:
        """True for events with one of these names."""
        return self.matching(lambda name: name in names)

    def matching(self, test: Any) -> Bool:
        """True for events whose name passes ``test(name) -> bool``; the test runs once per distinct name."""
        verdicts = np.fromiter((bool(test(name)) for name in self.names), dtype=np.bool_, count=len(self.names))
        if not len(verdicts):
            return np.zeros(self.count, dtype=np.bool_)
        return np.asarray(verdicts[self.name])
