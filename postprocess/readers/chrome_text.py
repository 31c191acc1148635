"""The bytes of a trace file in pieces, whatever they are packed in: memory does not grow with the file."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa

from xprof_py.errors import BadInputError
from xprof_py.postprocess.readers.sniff import require_regular

PIECE_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_PACKED = 10
"""How many bytes one of gzip stands for, at least: the keys are the same in every event."""
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")


class Pieces:
    """Iterates over the decompressed bytes of ``path``, or of ``member`` of it where it is an archive.

    ``broken``: after the iteration, why it ended before the file did; "" where it did not. Raises BadInputError where
    the file cannot be opened, and where nothing of it could be read.
    """

    def __init__(self, path: str | Path, member: str = "") -> None:
        self.path, self.member, self.broken = path, member, ""

    def about_bytes(self) -> int:
        """How many bytes there will be, guessed from the size of the file; 0 where it cannot be opened."""
        try:
            with Path(self.path).open("rb") as opened:
                packed = opened.read(2) == _GZIP_MAGIC
            return Path(self.path).stat().st_size * (_PACKED if packed else 1)
        except OSError:
            return 0

    def __iter__(self) -> Iterator[bytes]:
        file = str(self.path)
        some = False
        try:
            require_regular(self.path)
            if self.member:
                with tarfile.open(self.path) as archive:
                    opened = archive.extractfile(self.member)
                    if opened is None:
                        raise BadInputError(file, self.member, "is no file")
                    for piece in _plain(opened):
                        some = True
                        yield piece
            else:
                with Path(self.path).open("rb") as opened:
                    for piece in _plain(opened):
                        some = True
                        yield piece
        except KeyError as error:
            raise BadInputError(file, self.member, "is not in the archive") from error
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            self.broken = getattr(error, "strerror", None) or str(error)
            if not some:
                raise BadInputError(file, self.member, self.broken) from error


def traces_in(path: str | Path) -> list[str]:
    """Names of the .json and .json.gz files of an archive, in order. Raises BadInputError where it is none."""
    try:
        with tarfile.open(path) as archive:
            found = [m.name for m in archive if m.isfile() and m.name.endswith((".json", ".json.gz"))]
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise BadInputError(str(path), "", str(error)) from error
    return sorted(found)


def _plain(opened: IO[bytes]) -> Iterator[bytes]:
    head = opened.read(PIECE_BYTES)
    if not head.startswith(_GZIP_MAGIC):
        while head:
            yield head
            head = opened.read(PIECE_BYTES)
        return
    opened.seek(0)
    done = 0
    try:
        # Arrow's inflate takes three quarters of the time of zlib's. It says of damage only that there is some.
        unpacked = pa.CompressedInputStream(pa.PythonFile(opened, "r"), "gzip")
        while piece := unpacked.read(PIECE_BYTES):
            done += len(piece)
            yield piece
    except OSError:
        opened.seek(0)
        yield from _inflated(opened, done)


def _inflated(opened: IO[bytes], skipped: int) -> Iterator[bytes]:
    """What a gzip file holds behind ``skipped`` bytes, as far as it is whole. Raises EOFError and zlib.error."""
    head = opened.read(PIECE_BYTES)
    unpack = zlib.decompressobj(wbits=31)
    while head:
        piece = unpack.decompress(head, PIECE_BYTES)
        skipped, piece = max(skipped - len(piece), 0), piece[skipped:]
        if piece:
            yield piece
        head = unpack.unconsumed_tail
        if unpack.eof:
            # Another gzip member may follow; zeros that pad the file do not.
            head = (unpack.unused_data or opened.read(PIECE_BYTES)).lstrip(b"\0")
            if not head.startswith(_GZIP_MAGIC):
                return
            unpack = zlib.decompressobj(wbits=31)
        elif not head:
            head = opened.read(PIECE_BYTES)
    if not unpack.eof:
        raise EOFError("the compressed file breaks off")
