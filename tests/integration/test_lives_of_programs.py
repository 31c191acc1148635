"""Programs that make threads by the thousand, exec, end with daemon threads running, or name spans without end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from xprof_py.postprocess.readers.shard import read_shard


def run(program: str, *arguments: str | Path, expect: int = 0) -> str:
    """Stdout of a program that ends with ``expect`` and says nothing on stderr."""
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (expect, ""), done.stderr
    return done.stdout


def test_threads_that_begin_and_end_by_the_thousand(tmp_path: Path) -> None:
    """Each leaves its event, and what one leaves behind the next one uses: memory and files are those of a few."""
    out = run(
        """
        import os, resource, sys, threading
        from xprof_py import _native, trace
        def work(i):
            with trace("short", i=i):
                pass
        def begin_and_end(numbers):
            for i in numbers:
                threads = [threading.Thread(target=work, args=(k,)) for k in range(i, i + 5)]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
        _native.recorder_start(sys.argv[1])
        begin_and_end(range(0, 500, 5))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(os.listdir("/proc/self/fd"))
        begin_and_end(range(500, 4000, 5))
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(os.listdir("/proc/self/fd"))
        rings = os.path.getsize(sys.argv[1] + ".rings")
        totals = _native.recorder_stop()
        assert totals["threads"] == totals["written"] == 4000 and totals["dropped"] == 0, totals
        print(after[0] - before[0], after[1] - before[1], rings)
        """,
        tmp_path / "x.xpr",
    )
    grown_kib, grown_descriptors, rings_bytes = map(int, out.split())
    # A ring that has been written to has one page of memory here; 3,500 rings in use at once would take 14 GB of room.
    assert grown_kib < 64 * 1024
    assert grown_descriptors == 0
    assert rings_bytes <= 256 << 20
    profile = read_shard(tmp_path / "x.xpr")
    assert profile["lines"].num_rows == 4000
    assert sorted(profile["args"]["value"].to_pylist()) == list(range(4000))


@pytest.mark.parametrize("what", ["name", "text"])
def test_names_and_texts_without_end_stay_bounded(what: str, tmp_path: Path) -> None:
    """Names made with an f-string, of a kilobyte each: past the limits they are recorded as one, and counted."""
    out = run(
        """
        import resource, sys
        from xprof_py import _native, mark, trace
        def use(i):
            text = f"{i:_>1000}"
            if sys.argv[2] == "name":
                with trace(text): pass
            else:
                mark("mark", text=text)
        sent = 200_000
        _native.recorder_start(sys.argv[1], budget_bytes=1 << 30)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(sent): use(i)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        totals = _native.recorder_stop()
        assert totals["recorded"] + totals["dropped"] == sent, totals
        print(grown, totals["names"], totals["more_names"] + totals["more_texts"], totals["dropped_ring"])
        """,
        tmp_path / "x.xpr",
        what,
    )
    grown_kib, known, more, dropped = map(int, out.split())
    assert grown_kib < 200 * 1024  # 64 MiB of texts, their table, a copy on its way to the file, rings
    assert 50_000 < known < 70_000
    assert known + more >= 200_000  # those known by name, and those that were counted
    names = Counter(read_shard(tmp_path / "x.xpr")["events"]["name"].to_pylist())
    if what == "name" and not dropped:
        assert names["(more names)"] == more


def test_a_program_that_execs_another_leaves_what_it_recorded_and_nothing_open(tmp_path: Path) -> None:
    """Descriptors of the recording end with the program, in its own exec as in its children's."""
    out = run(
        """
        import os, subprocess, sys
        from xprof_py import _native, mark, step, trace
        LIST = [sys.executable, "-c", "import os; print([os.readlink(f'/proc/self/fd/{fd}') for fd in "
                "os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{fd}')])"]
        _native.recorder_start(sys.argv[1])
        for i in range(3):
            with trace("child", i=i):
                pid = os.posix_spawn(LIST[0], LIST, os.environ)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with trace("child", i=3):
            subprocess.run(LIST, close_fds=False, check=True)
        held = step(7)
        held.__enter__()
        sys.stdout.flush()
        os.execv(LIST[0], LIST)
        """,
        tmp_path / "x.xpr",
    )
    assert len(out.splitlines()) == 5
    assert ".xpr" not in out
    profile = read_shard(tmp_path / "x.xpr")
    assert [row["value"] for row in profile["args"].to_pylist() if row["key"] == "i"] == [0, 1, 2, 3]
    assert [thread["spans"] for thread in profile.metadata["was_doing"]] == [["train 7"]]


SPINNING = """
import atexit, os, sys, threading, time
from xprof_py import _native, capture, mark, step, trace
def spin():
    while True:
        with step(1), trace("spin"):
            mark("turn")
            time.sleep(0.0001)  # the cores are others' too
for _ in range(4):
    threading.Thread(target=spin, daemon=True).start()
"""


@pytest.mark.parametrize(
    "ending",
    [
        "with capture(sys.argv[1], xla=False): time.sleep(0.1)",
        "capture(sys.argv[1], xla=False).__enter__(); time.sleep(0.1)",
        "atexit.register(lambda: trace('late').__enter__()); capture(sys.argv[1], xla=False).__enter__(); sys.exit(0)",
        "_native.recorder_start(sys.argv[1] + '.xpr'); time.sleep(0.1)",
        "_native.recorder_start(sys.argv[1] + '.xpr'); time.sleep(0.1); os._exit(0)",
    ],
    ids=["after", "inside", "atexit", "never stopped", "at once"],
)
def test_daemon_threads_record_until_the_interpreter_ends(ending: str, tmp_path: Path) -> None:
    for k in range(2):
        run(SPINNING + ending, tmp_path / f"run{k}")
        (shard,) = tmp_path.rglob(f"run{k}*/**/*.xpr") if "capture" in ending else [tmp_path / f"run{k}.xpr"]
        names = Counter(read_shard(shard)["events"]["name"].to_pylist())
        assert set(names) <= {"train", "spin", "turn", "late", "gc"}
        assert names["turn"] > 0 or "sys.exit" in ending


def test_many_interpreters_ends_in_a_row_hang_nowhere(tmp_path: Path) -> None:
    """The drainer, the sampler and the finishing thread are there as the interpreter ends."""
    program = """
    import sys
    from xprof_py import capture, step
    block = capture(sys.argv[1], xla=False)
    block.__enter__()
    with step(0): pass
    """
    for k in range(4):
        run(program, tmp_path / f"run{k}")
        (shard,) = (tmp_path / f"run{k}" / "shards").glob("*.xpr")
        assert read_shard(shard)["events"]["name"].to_pylist().count("train") == 1
        assert not os.path.exists(f"{shard}.rings")
