"""SQL over the tables of an analysis, by duckdb: one SELECT, that reads these tables and nothing else."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from xprof_py.errors import BadInputError, UsageError, XprofPyError
from xprof_py.postprocess.fleet.analysis import SUMMARY
from xprof_py.postprocess.fleet.passes import STORED

ROW = "row"
"""The column of the tables of STORED that says which row of its host's table this is: `steps.parent`, `gaps.launch` and
the like refer to it."""
_BATCH_ROWS = 1 << 16


@contextmanager
def opened(out: Path) -> Iterator[Any]:
    """A connection of duckdb in which every table of the analysis in ``out`` is a view of its name, and that can read
    their files and nothing else; a table of a file per process is one view. Raises as ``query`` does.
    """
    try:
        import duckdb
    except ImportError as error:
        raise XprofPyError("query needs duckdb: pip install 'xprof_py[query]'") from error
    files = _files(out)
    # Without a folder for temporary files nothing is written, not even where memory runs out.
    with duckdb.connect(":memory:", config={"temp_directory": "", "python_enable_replacements": False}) as connection:
        for name, parts in files.items():
            try:
                connection.execute(_view(name, parts))
            except duckdb.Error as error:
                raise BadInputError(str(out / f"{name}.parquet"), "", _words(error)) from error
        named = ", ".join(_text(str(file)) for parts in files.values() for file in parts)
        for setting in (f"allowed_paths = [{named}]", "enable_external_access = false", "lock_configuration = true"):
            connection.execute(f"set {setting}")
        try:
            yield connection
        except duckdb.CatalogException as error:
            raise UsageError(f"{_unknown_table(_words(error), files)}\nTables: {', '.join(sorted(files))}") from error
        except duckdb.OutOfMemoryException as error:
            raise XprofPyError(_words(error)) from error
        except duckdb.Error as error:
            raise UsageError(_words(error)) from error


@contextmanager
def query(out: Path, sql: str) -> Iterator[pa.RecordBatchReader]:
    """The result of ``sql`` over the analysis in ``out``, a batch of rows at a time, for the length of the block.

    Whole numbers that may pass 64 bits (sums, say) are decimal128.

    Raises UsageError where ``sql`` is not one SELECT, or one that fails; BadInputError where a table cannot be read;
    XprofPyError where duckdb is missing or memory runs out.
    """
    with opened(out) as connection:
        import duckdb

        _require_select(duckdb, sql)
        found = connection.sql(sql)
        # duckdb 1 has the reader under another name.
        reader = getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader
        yield _Checked(duckdb, reader(_BATCH_ROWS)).reader()


class _Checked:
    """Batches of a result; what goes wrong while they are read is duckdb's error, not Arrow's."""

    def __init__(self, duckdb: Any, source: pa.RecordBatchReader) -> None:
        self.duckdb, self.source = duckdb, source

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.source.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.source
        except (pa.ArrowException, OSError) as error:
            raise self.duckdb.Error(str(error)) from error


def _files(out: Path) -> dict[str, list[Path]]:
    """The Parquet files of every table. Raises BadInputError where ``out`` is no analysis or lacks one."""
    try:
        listed = orjson.loads((out / SUMMARY).read_bytes())["tables"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInputError(str(out / SUMMARY), "", f"is not that of an analysis: {error}") from error
    found = {}
    for name in listed:
        path = out / f"{name}.parquet"
        found[name] = sorted(path.glob("*.parquet")) if path.is_dir() else [path] if path.exists() else []
        if not found[name]:
            raise BadInputError(str(path), "", "is not there: analyse again")
    return found


def _view(name: str, parts: list[Path]) -> str:
    files = ", ".join(_text(str(part)) for part in parts)
    if name not in STORED:
        return f"create view {_name(name)} as select * from read_parquet([{files}])"
    # The first row of a host in its file is row 0 of its table: a file has one host, or all of them one after another.
    first = "min(file_row_number) over (partition by filename, host)" if len(parts) == 1 else "0"
    return (
        f"create view {_name(name)} as select * exclude (file_row_number, filename), "
        f"file_row_number - {first} as {_name(ROW)} "
        f"from read_parquet([{files}], file_row_number = true, filename = true)"
    )


def _require_select(duckdb: Any, sql: str) -> None:
    statements = duckdb.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError("query takes one SELECT: it reads, and changes nothing")


def _unknown_table(words: str, tables: Collection[str]) -> str:
    """duckdb's words; where a table is not there, with ours that are called alike in place of those that it suggests.

    It suggests its own tables too (pg_..., duckdb_...), and is far from them: `spans` is part of `host_spans`.
    """
    asked = re.search(r"Table with name (\S+) does not exist", words)
    if asked is None:
        return words
    name = asked[1].strip('"').lower()
    alike = [table for table in sorted(tables) if name in table or (len(table) > 3 and table in name)]
    alike = alike or difflib.get_close_matches(name, sorted(tables))
    said = f"there is no table {name}"
    return f"{said}: did you mean {' or '.join(alike[:3])}?" if alike else said


def _words(error: Exception) -> str:
    return str(error).strip()


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'
