"""What a file is, by its content; its name says nothing."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from io import FileIO
from pathlib import Path
from typing import Literal

from xprof_py import _native
from xprof_py.errors import BadInputError
from xprof_py.postprocess.profile import SAVED_FORMAT
from xprof_py.postprocess.readers.column_memory import Content, read_content

Format = Literal["xspace", "shard", "chrome_json", "sqlite", "profile", "other"]

_HEAD_BYTES = 4096
_PIECE_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_SHARD_MAGIC = b"XPRSHARD"
_SQLITE_MAGIC = b"SQLite format 3\0"
_SAVED_PROFILE = f'"format": "{SAVED_FORMAT}"'.encode()
_TRACE_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"ph"')
"""One of these is near the beginning of a trace in JSON."""
# First byte of an XPlane's fields id, name, lines, event_metadata, stat_metadata and stats.
_PLANE_TAGS = frozenset(b"\x08\x12\x1a\x22\x2a\x32")
_TEXT_BYTES = frozenset(range(0x20, 0x7F)) | frozenset(range(0x80, 0x100)) | frozenset(b"\t\n\r\f")


def read_bytes(path: str | Path, *, empty: str = "is empty") -> Content:
    """The whole content of a file, decompressed where it is gzip; in the memory of columns where it is much.

    Raises BadInputError where there is no such file, where it is a folder, a pipe or a device, or unreadable, where it
    is empty (with the reason ``empty``), and where its compressed form breaks off.
    """
    file = str(path)
    try:
        require_regular(path)
        with Path(path).open("rb", buffering=0) as opened:
            packed = opened.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            opened.seek(0)
            content = _unpacked(file, opened) if packed else read_content(opened)
    except OSError as error:
        raise BadInputError(file, "", error.strerror or str(error)) from error
    if not len(content):
        raise BadInputError(file, "", empty)
    return content


def _unpacked(file: str, opened: FileIO) -> Content:
    """What a gzip file holds. Raises BadInputError where it breaks off."""
    content = _native.Bytes()
    try:
        with gzip.GzipFile(fileobj=opened) as unpack:
            while piece := unpack.read(_PIECE_BYTES):
                content.append(piece)
    except (EOFError, OSError, zlib.error) as error:
        raise BadInputError(file, "gzip", str(error)) from error
    return content if len(content) > _PIECE_BYTES else bytes(content)


def require_regular(path: str | os.PathLike[str]) -> None:
    """Refuse what a read may never come back from: a pipe without a writer blocks, /dev/zero has no end.

    Raises BadInputError for what is no regular file, OSError where there is nothing.
    """
    mode = Path(path).stat().st_mode
    if stat.S_ISDIR(mode):
        raise BadInputError(os.fspath(path), "", "is a folder, not a file")
    if not stat.S_ISREG(mode):
        raise BadInputError(os.fspath(path), "", "is not a regular file")


def sniff(path: str | Path) -> Format:
    """The format of a file, from its first bytes (of what is inside, where it is gzip).

    A truncated or damaged file keeps the format that its beginning shows, so that its reader can say what is wrong.
    Raises BadInputError where the file cannot be opened, or is a folder, a pipe or a device.
    """
    file = str(path)
    try:
        require_regular(path)
        with Path(path).open("rb") as opened:
            head = opened.read(_HEAD_BYTES)
    except OSError as error:
        raise BadInputError(file, "", error.strerror or str(error)) from error
    if head.startswith(_GZIP_MAGIC):
        head = _decompressed_head(head)
    return sniff_bytes(head)


def sniff_bytes(head: bytes) -> Format:
    """The format of a file that starts with ``head`` (a few hundred bytes are enough)."""
    if head.startswith(_SHARD_MAGIC):
        return "shard"
    if head.startswith(_SQLITE_MAGIC):
        return "sqlite"  # its reader says whether Nsight Systems wrote it
    if head.startswith(b"{") and _SAVED_PROFILE in head[:64]:
        return "profile"
    if any(key in head for key in _TRACE_KEYS) and head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return "chrome_json"  # whatever bytes its strings hold
    if _is_text(head):
        return "chrome_json" if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[") else "other"
    return "xspace" if _is_xspace(head) else "other"


def is_trace(path: str | Path) -> bool:
    """Whether a file of JSON is a trace: settings and results of other tools are JSON too.

    Raises OSError or BadInputError where it cannot be read.
    """
    require_regular(path)
    with Path(path).open("rb") as opened:
        head = opened.read(_HEAD_BYTES)
    if head.startswith(_GZIP_MAGIC):
        head = _decompressed_head(head)
    return any(key in head for key in _TRACE_KEYS)


def _decompressed_head(head: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(head)) as opened:
            return opened.read1(_HEAD_BYTES)
    except (EOFError, OSError, zlib.error):
        return b""


def _is_text(head: bytes) -> bool:
    return bool(head) and _TEXT_BYTES.issuperset(head)


def _is_xspace(head: bytes) -> bool:
    """Whether the first field is one of an XSpace: a plane, or its errors, warnings or host names."""
    if head[:1] in (b"\x12", b"\x1a", b"\x22"):
        return True
    if head[:1] != b"\x0a":
        return False
    at = 1
    while at < len(head) and head[at] >= 0x80:
        at += 1
    empty_plane = at == 1 and head[1:2] == b"\0"
    return empty_plane or (1 <= at <= 10 and at + 1 < len(head) and head[at + 1] in _PLANE_TAGS)
