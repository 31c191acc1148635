"""A file is what its content says."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from xprof_py.errors import BadInputError
from xprof_py.postprocess.readers.sniff import read_bytes, sniff, sniff_bytes
from xspace_schema import XSpace


def space(**fields: object) -> bytes:
    return bytes(XSpace(**fields).SerializeToString())


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (space(planes=[{"name": "/host:CPU"}]), "xspace"),
        (space(planes=[{"id": 3, "name": "x" * 300}]), "xspace"),
        (space(planes=[{}, {"name": "a"}]), "xspace"),
        (space(planes=[{"lines": [{"name": "x"}]}]), "xspace"),
        (space(hostnames=["a\1"]), "xspace"),
        (space(planes=[{"name": "/host:CPU"}])[:6], "xspace"),  # cut short: its reader says so
        (b"XPRSHARD" + bytes(56), "shard"),
        (b'{"traceEvents": []}', "chrome_json"),
        (b"\xef\xbb\xbf  \n[{", "chrome_json"),
        ('{"name": "Größe"}'.encode(), "chrome_json"),
        (b"SQLite format 3\0", "sqlite"),
        (b'\n"*2 text that begins like a plane\n', "other"),
        (b"step,time\n1,2\n", "other"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "other"),
        (b"\x7fELF\2\1\1\0", "other"),
        (b"\x0a", "other"),
        (b"", "other"),
    ],
)
def test_formats_by_content(tmp_path: Path, content: bytes, found: str) -> None:
    assert sniff_bytes(content) == found
    file = tmp_path / "any.name"
    file.write_bytes(content)
    assert sniff(file) == found
    file.write_bytes(gzip.compress(content))
    assert sniff(file) == found


def test_large_gzip_is_sniffed_by_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "a.gz"
    file.write_bytes(gzip.compress(b'{"traceEvents": [' + bytes(range(32, 127)) * 20_000)[:5000])
    assert sniff(file) == "chrome_json"


def test_unreadable_is_bad_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    said = {
        tmp_path: "is a folder",
        tmp_path / "absent": "No such file",
        tmp_path / "pipe": "is not a regular file",
        Path("/dev/null"): "is not a regular file",
    }
    for path, why in said.items():
        for read in (sniff, read_bytes):
            with pytest.raises(BadInputError, match=why):
                read(path)
