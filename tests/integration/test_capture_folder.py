"""Whose a run folder is, and what happens where the disk or the server behind it does not do its part."""

import json
import os
import subprocess
import time

import pytest

LOOP = """
import sys
from xprof_py import capture, step, trace
with capture(sys.argv[1]):
    for i in range(5):
        with step(i), trace("work", layer=i):
            pass
print("trained")
"""


def test_a_run_in_use_is_refused_unless_overwritten(program):
    first = program(LOOP)
    old = first.document()
    again = program(LOOP, expect=1)
    assert "already holds a capture" in again.stderr
    assert "trained" not in again.stdout
    assert again.document() == old
    (first.run / "notes.txt").write_text("keep", encoding="utf-8")
    replaced = program(LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], overwrite=True)"))
    assert replaced.document()["pid"] != old["pid"]
    assert len(list((replaced.run / "shards").iterdir())) == 1
    assert (first.run / "notes.txt").read_text(encoding="utf-8") == "keep"


def test_a_run_file_cannot_have_files_outside_the_run_removed(program, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("keep", encoding="utf-8")
    folder = tmp_path / "run-a" / "run"
    folder.mkdir(parents=True)
    names = {"a": "shards/../../victim", "b": str(victim), "c": "../victim"}
    (folder / "0-1.json").write_text(json.dumps({"session": "run", "files": names}), encoding="utf-8")
    program(LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], overwrite=True)"))
    assert victim.read_text(encoding="utf-8") == "keep"


def test_ranks_of_one_job_share_a_run_and_its_rerun_does_not(program):
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    program(LOOP, RANK="0", **job)
    outcome = program(LOOP, RANK="1", **job)
    assert [path.name.split("-")[0] for path in outcome.run_files()] == ["0", "1"]
    assert "already holds" in program(LOOP, expect=1, RANK="1", **job).stderr
    assert "already holds" in program(LOOP, expect=1, RANK="2", **{**job, "MASTER_PORT": "2"}).stderr
    overwriting = LOOP.replace("capture(sys.argv[1])", "capture(sys.argv[1], overwrite=True)")
    rerun = {**job, "MASTER_PORT": "2"}
    program(overwriting, RANK="0", **rerun)
    outcome = program(overwriting, RANK="1", **rerun)
    assert {json.loads(path.read_text())["job"] for path in outcome.run_files()} == {"torchrun:a:2"}
    assert len(outcome.run_files()) == len(list((outcome.run / "shards").iterdir())) == 2
    alone = program(overwriting, RANK="0", **{**rerun, "WORLD_SIZE": "1"})
    assert [path.name.split("-")[0] for path in alone.run_files()] == ["0"]


CHILD = """
import sys
from xprof_py import capture, step
with capture(sys.argv[1]):
    print("in", flush=True)
    sys.stdin.readline()
    with step(1):
        pass
"""


def test_processes_of_one_parent_without_a_launcher_share_a_run(program):
    outcome = program(
        f"""
import subprocess, sys
children = []
for _ in range(3):
    command = [sys.executable, "-c", {CHILD!r}, sys.argv[1]]
    children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert children[-1].stdout.readline() == "in\\n"
for process in children:
    process.communicate("go\\n")
    assert process.returncode == 0
"""
    )
    assert len(outcome.run_files()) == len(list((outcome.run / "shards").iterdir())) == 3


def test_a_restarted_job_neither_fails_nor_overwrites(program):
    job = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    program(LOOP, **job)
    outcome = program(LOOP, TORCHELASTIC_RESTART_COUNT="1", **job)
    sessions = {json.loads(path.read_text())["session"] for path in outcome.run_files()}
    assert sessions == {"run", "run-restart1"}


@pytest.mark.parametrize("place", ["/proc/nowhere/run", "/dev/null/run", "a-file/run"])
def test_a_path_that_cannot_be_written_is_refused_before_the_block(place, program, tmp_path):
    (tmp_path / "a-file").write_text("", encoding="utf-8")
    outcome = program(LOOP, run=place, expect=1)
    assert "CaptureError" in outcome.stderr
    assert "cannot record there" in outcome.stderr
    assert outcome.stdout == ""


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB, where the tests may mount one."""
    point = tmp_path / "small"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", os.fspath(point)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield point
    subprocess.run(["umount", "-l", os.fspath(point)], check=False)


def test_a_disk_that_fills_up_while_recording(program, small_disk):
    outcome = program(
        """
        import sys, time
        from xprof_py import capture, step, trace
        with capture(sys.argv[1], xla=False):
            for i in range(60000):
                with step(i), trace("fill"):
                    pass
                if i == 10:
                    time.sleep(0.3)
        print("trained")
        """,
        run=small_disk / "run-a",
    )
    assert outcome.stdout == "trained\n"
    document = outcome.document()
    assert document["state"] == "finished"
    assert "No space left" in document["collectors"]["host"]["error"]
    assert "the shard is incomplete" in outcome.stderr
    assert outcome.step_numbers()[:11] == list(range(11))


def test_a_disk_that_is_full_from_the_start(program, small_disk):
    done = subprocess.run(
        ["dd", "if=/dev/zero", f"of={small_disk / 'filler'}", "bs=4096"], capture_output=True, text=True, check=False
    )
    assert "No space left" in done.stderr
    outcome = program(LOOP, run=small_disk / "run-a")
    assert outcome.stdout == "trained\n"
    assert "nothing is recorded" in outcome.stderr


def test_a_folder_that_vanishes_while_recording(program):
    outcome = program(
        """
        import shutil, sys
        from xprof_py import capture, step
        with capture(sys.argv[1]):
            with step(0): pass
            shutil.rmtree(sys.argv[1])
        print("trained")
        """
    )
    assert outcome.stdout == "trained\n"
    assert "run-a" in outcome.stderr


def test_an_address_is_recorded_here_and_copied_at_the_end(program, tmp_path):
    pytest.importorskip("fsspec", reason="fsspec is not installed: the extra `test` brings it")
    folder = tmp_path / "remote" / "run-a"
    outcome = program(LOOP, run=f"local://{folder}", TMPDIR=str(tmp_path))
    outcome = type(outcome)(outcome.returncode, outcome.stdout, outcome.stderr, folder)
    assert outcome.step_numbers() == [0, 1, 2, 3, 4]
    assert outcome.document()["state"] == "finished"
    assert list(tmp_path.glob("xprof_py-*")) == []
    assert "already holds" in program(LOOP, run=f"local://{folder}", expect=1).stderr


def test_a_network_folder_is_recorded_here_and_copied_at_the_end(program, tmp_path):
    (tmp_path / "tmp").mkdir()
    outcome = program(
        """
import sys
from xprof_py import places, session
places.is_far = session.is_far = lambda path: True
"""
        + LOOP
        + "from pathlib import Path\nassert not list(Path(sys.argv[1]).parent.glob('tmp/*'))\n",
        TMPDIR=str(tmp_path / "tmp"),
    )
    assert outcome.step_numbers() == [0, 1, 2, 3, 4]
    assert outcome.document()["state"] == "finished"


def test_a_server_that_does_not_answer_costs_a_bounded_time(program):
    began = time.monotonic()
    outcome = program(
        """
import sys, time
from xprof_py import places, session
places.is_far = session.is_far = lambda path: True
session.REACH_TIMEOUT_S = 0.2
places.FolderPlace.read = lambda *_: time.sleep(30)
"""
        + LOOP,
        expect=1,
    )
    assert time.monotonic() - began < 20
    assert "no answer within 0.2 s" in outcome.stderr


def test_a_server_that_dies_while_recording_costs_a_bounded_time(program):
    outcome = program(
        """
import sys, time
from xprof_py import places, session
places.is_far = session.is_far = lambda path: True
began = time.monotonic()
"""
        + LOOP.replace("    for i", "    places.FolderPlace.put = lambda *_: time.sleep(30)\n    for i")
        + "assert time.monotonic() - began < 10\n",
        XPROF_PY_STOP_TIMEOUT_S="0.3",
    )
    assert outcome.stdout == "trained\n"
    assert "still being written" in outcome.stderr


def test_a_server_that_refuses_the_copy_leaves_the_capture_here(program, tmp_path):
    (tmp_path / "tmp").mkdir()
    outcome = program(
        """
import sys
from xprof_py import places, session
places.is_far = session.is_far = lambda path: True
def refuse(*_):
    raise OSError(5, "Input/output error")
"""
        + LOOP.replace("    for i", "    places.FolderPlace.put = refuse\n    for i"),
        TMPDIR=str(tmp_path / "tmp"),
    )
    assert outcome.stdout == "trained\n"
    assert "could not be copied there" in outcome.stderr
    (here,) = (tmp_path / "tmp").glob("xprof_py-*")
    assert str(here) in outcome.stderr
    (shard,) = (here / "shards").iterdir()
    assert outcome.step_numbers(shard) == [0, 1, 2, 3, 4]


def test_an_address_that_nothing_opens_is_refused(program):
    outcome = program(LOOP, run="nosuch://bucket/run", expect=1)
    assert "CaptureError" in outcome.stderr
    assert "nosuch" in outcome.stderr


def test_an_address_without_fsspec_says_what_is_missing(program):
    outcome = program("import sys\nsys.modules['fsspec'] = None\n" + LOOP, run="gs://bucket/run", expect=1)
    assert "pip install fsspec" in outcome.stderr
