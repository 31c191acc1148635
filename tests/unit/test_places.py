"""Which folders are far, and waits for them that end."""

import errno
import json
import os
import threading
import time

import pytest

from xprof_py import run_folder
from xprof_py.errors import CaptureError
from xprof_py.places import FolderPlace, file_system_of, is_far, place_of, within
from xprof_py.rank import Rank
from xprof_py.run_folder import RunFolder

MOUNTS = """22 1 8:1 / / rw,relatime - ext4 /dev/root rw
40 22 0:50 / /home rw - nfs4 server:/home rw
41 40 0:51 / /home/me/fast\\040disk rw shared:1 - xfs /dev/sdb rw
42 22 0:52 / /mnt/bucket rw - fuse.gcsfuse bucket rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/tmp/a", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/run", "nfs4"),
        ("/homework/run", "ext4"),
        ("/home/me/fast disk/run", "xfs"),
        ("/mnt/bucket/x", "fuse.gcsfuse"),
    ],
)
def test_the_deepest_mount_decides(path, kind):
    assert file_system_of(path, MOUNTS) == kind


def test_an_address_is_far_and_a_temporary_folder_is_not(tmp_path):
    assert is_far("gs://bucket/run")
    assert not is_far(os.fspath(tmp_path))
    place = place_of(os.fspath(tmp_path))
    assert isinstance(place, FolderPlace)
    assert not place.is_remote


def test_within_returns_raises_and_ends():
    assert within(5, "x", lambda: 3) == 3
    with pytest.raises(OSError, match="mine"):
        within(5, "x", lambda: (_ for _ in ()).throw(OSError("mine")))
    release = threading.Event()
    began = time.monotonic()
    with pytest.raises(CaptureError, match=r"x: no answer within 0\.05 s"):
        within(0.05, "x", release.wait)
    assert time.monotonic() - began < 5
    release.set()


@pytest.fixture
def folder(tmp_path):
    taken = RunFolder(os.fspath(tmp_path / "run-a"), "run", Rank(0, 1, "RANK", None), uses_xla=True)
    taken.claim(False, {"state": "armed", "pid": taken.pid})
    return taken


def test_the_last_state_is_written_in_place_when_the_disk_is_full(folder, monkeypatch):
    def full(path, content, replace=True):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_folder, "_write_whole", full)
    folder.write_run_file({"state": "finished"})
    assert json.loads((folder.root / folder.run_file_name).read_text(encoding="utf-8")) == {"state": "finished"}
    with pytest.raises(OSError, match="No space"):
        folder.write_run_file({"state": "x" * 2 * run_folder.RUN_FILE_RESERVE_BYTES})


def test_settling_renames_the_shard_and_the_run_file(tmp_path):
    taken = RunFolder(os.fspath(tmp_path), "run", Rank(None, None, "pid", None), uses_xla=False)
    taken.claim(False, {"state": "armed"})
    shard = taken.root / taken.shard_name
    shard.write_bytes(b"x")
    taken.settle(Rank(7, 8, "jax.process_index", None))
    assert taken.shard_name == f"shards/7-{taken.pid}.xpr"
    assert (taken.root / taken.shard_name).read_bytes() == b"x"
    assert not shard.exists()
    assert [path.name for path in (tmp_path / "run").iterdir()] == [f"7-{taken.pid}.json"]


def test_a_profile_that_is_there_already_is_not_replaced(folder):
    assert folder.write_xplane(b"first") == "plugins/profile/run/0.xplane.pb"
    assert folder.write_xplane(b"second") == f"plugins/profile/run/0-{folder.pid}.xplane.pb"
    names = {path.name: path.read_bytes() for path in (folder.root / "plugins/profile/run").iterdir()}
    assert names == {"0.xplane.pb": b"first", f"0-{folder.pid}.xplane.pb": b"second"}
