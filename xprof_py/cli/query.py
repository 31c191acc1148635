"""``xprof-py query``: SQL over the tables of a run."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any

from xprof_py.cli.arguments import at_least_one, named_path
from xprof_py.errors import UsageError

FORMATS = ("table", "csv", "json", "parquet")


class Query:
    """Ask the tables of a run in SQL: xprof-py query RUN "select name, number, window_ps from step_classes".

    PATH is a run folder, profiles, or a folder that `analyze` wrote. docs/tables.md says which tables there are, with
    an example for each; `show tables` and `describe steps` list them too. The query is one SELECT of duckdb's SQL. It
    reads these tables and nothing else, and writes nothing but FILE. Needs duckdb: pip install 'xprof_py[query]'.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """PATH, SQL, --format, --limit, -o."""
        parser.add_argument("path", metavar="PATH", help="a run folder, profiles, or a folder that `analyze` wrote")
        parser.add_argument("sql", metavar="SQL", help="one SELECT")
        parser.add_argument(
            "--format", choices=FORMATS, help="default: what the ending of FILE says, else an aligned table"
        )
        parser.add_argument(
            "--limit",
            type=at_least_one,
            metavar="N",
            default=200,
            help="rows of an aligned table (default: %(default)s)",
        )
        parser.add_argument("-o", "--output", metavar="FILE", type=named_path, help="write there, not to stdout")

    def run(self, args: argparse.Namespace) -> int:
        """Analyse where needed, ask, print or write. Returns 0."""
        from xprof_py.cli.analyze import ensure_analysis
        from xprof_py.postprocess.fleet.query import query

        form = args.format or _by_ending(args.output)
        if form == "parquet" and args.output is None:
            raise UsageError("parquet is written to a file: name it with -o FILE")
        if not args.sql.strip():
            raise UsageError("an empty query (is a variable not set?)")
        with query(ensure_analysis(args.path), args.sql) as reader:
            if form == "parquet":
                _write_parquet(reader, args.output)
                return 0
            # The first piece is made before FILE is touched: what is wrong with the query is known by then.
            pieces = _begun(_text_of(reader, form, args.limit))
            if args.output is None:
                for piece in pieces:
                    sys.stdout.write(piece)
            else:
                _write(args.output, lambda file: file.writelines(piece.encode("utf-8") for piece in pieces))
        return 0


def _by_ending(output: Path | None) -> str:
    ending = "" if output is None else output.suffix.removeprefix(".").lower()
    return ending if ending in FORMATS else "table"


def _text_of(reader: Any, form: str, limit: int) -> Iterable[str]:
    from xprof_py.viewers import rows

    if form == "csv":
        return rows.csv_pieces(reader)
    if form == "json":
        return rows.json_pieces(reader)
    return _table(reader, limit)


def _table(reader: Any, limit: int) -> Iterator[str]:
    import pyarrow as pa

    from xprof_py.viewers.rows import aligned

    batches, count = [], 0
    for batch in reader:
        batches.append(batch)
        count += batch.num_rows
        if count > limit:
            break
    yield aligned(pa.Table.from_batches(batches, reader.schema).slice(0, limit), encoding=sys.stdout.encoding)
    if count > limit:
        sys.stderr.write(f"the first {limit} rows, there are more: --limit N, or --format csv for all of them\n")


def _begun(pieces: Iterable[str]) -> Iterator[str]:
    rest = iter(pieces)
    first = list(next(rest, "").splitlines(keepends=True))
    return chain(first, rest)


def _write_parquet(reader: Any, output: Path) -> None:
    import pyarrow.parquet as pq

    from xprof_py.viewers.rows import require_distinct

    require_distinct(reader.schema)

    def write(file: IO[bytes]) -> None:
        with pq.ParquetWriter(file, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)

    _write(output, write)


def _write(output: Path, write: Callable[[IO[bytes]], None]) -> None:
    """A regular file is replaced as a whole; a pipe or a device is written straight through."""
    with _opened(output) as file:
        write(file)


@contextmanager
def _opened(output: Path) -> Iterator[IO[bytes]]:
    target = Path(os.path.realpath(output))
    if target.exists() and not stat.S_ISREG(target.stat().st_mode):
        with target.open("wb") as file:
            yield file
        return
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(target)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and error.filename == str(partial):
            raise OSError(error.errno, error.strerror, str(output)) from error
        raise
