"""A result goes where it was pointed, and nothing there is destroyed."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from types import ModuleType

import pytest

from xprof_py.errors import XprofPyError
from xprof_py.viewers.html_report import write_page, write_report
from xprof_py.viewers.whole_file import write_whole


def test_a_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.html"
    write_whole(file, "one")
    file.chmod(0o600)
    before = file.stat().st_ino
    write_whole(file, "two Größe")
    assert file.read_text(encoding="utf-8") == "two Größe"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_ino != before
    assert os.listdir(file.parent) == ["a.html"]


@pytest.mark.parametrize("target_exists", [True, False])
def test_a_link_stays_and_its_target_is_written(target_exists: bool, tmp_path: Path) -> None:
    target = tmp_path / "there" / "target.html"
    target.parent.mkdir()
    if target_exists:
        target.write_text("old")
    link = tmp_path / "link.html"
    link.symlink_to(target)
    write_whole(link, "page")
    assert link.is_symlink()
    assert target.read_text() == "page"
    assert os.listdir(target.parent) == ["target.html"]


def test_a_pipe_is_written_through_and_stays_a_pipe(sample: ModuleType, tmp_path: Path) -> None:
    out = sample.write_out(tmp_path / "analysis", sample.input_bound())
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")), daemon=True)
    reader.start()
    assert write_report(out, pipe) == pipe
    reader.join(10)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert read[0] == write_report(out).read_text(encoding="utf-8")


def test_a_device_that_refuses_is_an_error_and_stays_a_device(tmp_path: Path) -> None:
    # A link in a folder of the test's own: if the link were replaced, the device of the machine would still stay.
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    with pytest.raises(XprofPyError, match="full: cannot write the report: No space left on device"):
        write_page("page", link)
    assert link.is_symlink()
    assert stat.S_ISCHR(link.stat().st_mode)
    assert os.listdir(tmp_path) == ["full"]


def test_an_open_file_without_a_name_is_written_through(tmp_path: Path) -> None:
    with (tmp_path / "gone").open("w+") as opened:
        (tmp_path / "gone").unlink()
        write_whole(Path(f"/proc/self/fd/{opened.fileno()}"), "page")
        assert opened.read() == "page"
    assert os.listdir(tmp_path) == []


def test_a_folder_and_a_circle_of_links_are_errors(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "page")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links") as caught:
        write_whole(tmp_path / "a", "page")
    assert caught.value.errno == errno.ELOOP
