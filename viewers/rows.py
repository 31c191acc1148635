"""Rows of any table as text: aligned for people, CSV and JSON for programs."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv

from xprof_py.errors import UsageError
from xprof_py.viewers.markup import printable

WIDEST: Final = 60
"""Characters of a cell; a longer one is cut."""


def aligned(table: pa.Table, *, encoding: str) -> str:
    """All rows of ``table`` under their column names: numbers on the right, nulls empty, no control characters."""
    numeric = [_is_number(field.type) for field in table.schema]
    columns = [
        [_cell(name), *(_cell(_shown(value)) for value in column.to_pylist())]
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in zip(*columns, strict=True):
        cells = zip(row, widths, numeric, strict=True)
        lines.append("  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    text = "\n".join(lines) + "\n"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def csv_pieces(reader: pa.RecordBatchReader) -> Iterator[str]:
    """CSV with a header, by RFC 4180 but for its line ends. Null is nothing, an empty text `""`; lists are JSON."""
    options = {"quoting_style": "needed"}
    head = pa.table({str(i): pa.array([name]) for i, name in enumerate(reader.schema.names)})
    yield _csv(head, pa_csv.WriteOptions(include_header=False, **options))
    for batch in reader:
        columns = [_flat(column) for column in batch.columns]
        if batch.num_rows:
            table = pa.table({str(i): column for i, column in enumerate(columns)})
            yield _csv(table, pa_csv.WriteOptions(include_header=False, **options))


def json_pieces(reader: pa.RecordBatchReader) -> Iterator[str]:
    """An array of objects, a row a line. Whole numbers keep all digits, what is no number (nan, infinity) is null,
    bytes are base64. Raises UsageError where two columns have one name."""
    require_distinct(reader.schema)
    yield "["
    between = "\n"
    for batch in reader:
        for row in batch.to_pylist():
            yield between + json.dumps(_json(row), ensure_ascii=False)
            between = ",\n"
    yield "\n]\n"


def require_distinct(schema: pa.Schema) -> None:
    """Raises UsageError where two columns have one name."""
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise UsageError(f"two columns are called {name!r}: give one another name (select ... as ...)")


def _csv(table: pa.Table, options: pa_csv.WriteOptions) -> str:
    sink = pa.BufferOutputStream()
    pa_csv.write_csv(table, sink, options)
    return str(sink.getvalue().to_pybytes(), "utf-8")


def _flat(column: pa.Array) -> pa.Array:
    """What CSV can hold: of nested values, bytes and intervals the text of JSON."""
    kind = column.type
    if (
        pa.types.is_nested(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_interval(kind)
    ):
        shown = (None if value is None else _json(value) for value in column.to_pylist())
        return pa.array(
            [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in shown], pa.string()
        )
    return column


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_json(part) for part in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if value is None or isinstance(value, str | int | bool):
        return value
    return str(value)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Decimal | timedelta):
        return str(value)
    found = _json(value)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _cell(text: str) -> str:
    shown = printable(text.replace("\n", " "))
    return shown if len(shown) <= WIDEST else shown[: WIDEST - 1] + "…"
