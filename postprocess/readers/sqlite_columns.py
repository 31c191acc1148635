"""Columns of an SQLite file, a batch of rows at a time: what can be read of a damaged one is read.

The file is opened read-only and as one that nobody changes, so that nothing is written beside it. A value that is no
integer where one belongs costs its row; a page that cannot be read ends its table there; both are counted.
"""

from __future__ import annotations

import gzip
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from xprof_py.errors import BadInputError
from xprof_py.postprocess.readers.sniff import require_regular

ABSENT = np.iinfo(np.int64).min
"""In a column of integers: null in the file."""
BATCH_ROWS = 1 << 16
MAGIC = b"SQLite format 3\0"
_GZIP_MAGIC = b"\x1f\x8b"

Int64 = npt.NDArray[np.int64]


class SqliteColumns:
    """An opened file; ``columns``: per table the names of its columns. A context manager.

    ``lost``: (table, rows that held something else than integers); ``broken``: (table, rows read before it, reason).
    Raises BadInputError where the file cannot be opened, or is no database.
    """

    def __init__(self, path: str | Path) -> None:
        self.file = str(path)
        self.lost: list[tuple[str, int]] = []
        self.broken: list[tuple[str, int, str]] = []
        self.connection = self._opened(Path(path))
        self.connection.text_factory = lambda text: text.decode("utf-8", "replace")
        try:
            # Else a file that breaks off is refused as a whole. Nothing can be written through this connection.
            self.connection.execute("pragma writable_schema = on")
            names = self.connection.execute("select name from sqlite_master where type in ('table', 'view')").fetchall()
            self.columns = {
                name: [row[1] for row in self.connection.execute(f"pragma table_info({_quoted(name)})")]
                for (name,) in sorted(names)
            }
        except sqlite3.Error as error:
            self.connection.close()
            raise BadInputError(self.file, "", f"is no whole SQLite database: {error}") from error

    def _opened(self, path: Path) -> sqlite3.Connection:
        try:
            require_regular(path)
            with path.open("rb") as opened:
                head = opened.read(len(MAGIC))
            if not head.startswith(_GZIP_MAGIC):
                return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            connection = sqlite3.connect(":memory:")
            connection.deserialize(gzip.decompress(path.read_bytes()))
            return connection
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise BadInputError(self.file, "gzip", str(error)) from error
        except OSError as error:
            raise BadInputError(self.file, "", error.strerror or str(error)) from error
        except sqlite3.Error as error:
            raise BadInputError(self.file, "", f"is no whole SQLite database: {error}") from error

    def __enter__(self) -> SqliteColumns:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def integers(self, table: str, names: Sequence[str], where: str = "") -> dict[str, Int64]:
        """Columns of ``table``, all of one length, in the file's order. One that the table lacks is ABSENT throughout.

        ``where``: a condition in SQL.
        """
        return self.rows(table, names, "", where)[0]

    def rows(self, table: str, names: Sequence[str], text: str, where: str = "") -> tuple[dict[str, Int64], pa.Array]:
        """The same, and beside them the column ``text``: null where it is no text or the table lacks it."""
        present = [name for name in names if name in self.columns.get(table, ())]
        if not present and text not in self.columns.get(table, ()):
            return {name: np.empty(0, np.int64) for name in names}, pa.array([], pa.string())
        try:
            columns = self._columns(table, present, text, where)
        except (TypeError, ValueError, OverflowError):
            whole = " and ".join(f"typeof({_quoted(name)}) in ('integer', 'null')" for name in present)
            columns = self._columns(table, present, text, f"({where}) and {whole}" if where else whole)
            self.lost.append((table, self.count(table, where) - len(columns[-1])))
        absent = np.full(len(columns[-1]), ABSENT, np.int64)
        return {name: columns[present.index(name)] if name in present else absent for name in names}, columns[-1]

    def distinct(self, table: str, column: str, shown: str) -> list[int]:
        """The different values of ``shown`` where ``column`` is a positive integer, as far as they can be read."""
        if column not in self.columns.get(table, ()):
            return []
        where = f"typeof({_quoted(column)}) = 'integer' and {_quoted(column)} > 0"
        return [row[0] for batch in self._batches(_select(f"distinct {shown}", table, where), table) for row in batch]

    def count(self, table: str, where: str) -> int:
        """Rows of ``table`` for which ``where`` holds, 0 where it cannot be read."""
        try:
            count: int = self.connection.execute(_select("count(*)", table, where)).fetchone()[0]
        except sqlite3.Error:
            return 0
        return count

    def _columns(self, table: str, names: Sequence[str], text: str, where: str) -> list[Any]:
        """A column of integers per name, and one of text."""
        shown = [f"ifnull({_quoted(name)}, {ABSENT})" for name in names]
        held = text in self.columns[table]
        shown.append(f"case when typeof({_quoted(text)}) = 'text' then {_quoted(text)} end" if held else "null")
        parts: list[list[Any]] = [[np.empty(0, np.int64)] for _ in names] + [[pa.array([], pa.string())]]
        for batch in self._batches(_select(", ".join(shown), table, where), table):
            *integers, texts = zip(*batch, strict=True)
            for column, values in zip(parts, integers, strict=False):
                # Not np.array: of numbers with fractions it would keep the whole part.
                column.append(np.fromiter(map(index, values), np.int64, len(values)))
            parts[-1].append(pa.array(texts, pa.string()))
        return [*map(np.concatenate, parts[:-1]), pa.concat_arrays(parts[-1])]

    def _batches(self, query: str, table: str) -> Iterator[list[tuple[Any, ...]]]:
        """Rows, as far as the file can be read."""
        read = 0
        try:
            cursor = self.connection.execute(query)
            while True:
                batch: list[tuple[Any, ...]] = []
                try:
                    # What came before an error stays in the list.
                    batch.extend(islice(cursor, BATCH_ROWS))
                finally:
                    read += len(batch)
                    if batch:
                        yield batch
                if len(batch) < BATCH_ROWS:
                    return
        except sqlite3.Error as error:
            if table not in {known for known, *_ in self.broken}:
                self.broken.append((table, read, str(error)))


def _select(shown: str, table: str, where: str) -> str:
    return f"select {shown} from {_quoted(table)}" + (f" where {where}" if where else "")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
