"""A job of many processes gives one answer, whoever works on it, in whatever order, and whatever dies meanwhile."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
from made_up_jobs import LATE_US, make_job

from xprof_py.cli import main
from xprof_py.cli.analyze import analyze
from xprof_py.errors import BadInputError
from xprof_py.postprocess.fleet import passes, run_job, spool
from xprof_py.postprocess.fleet.analysis import Analysis, analyse, read_analysis, write_analysis
from xprof_py.postprocess.fleet.passes import Endpoints, Solved, solve
from xprof_py.postprocess.fleet.questions import APART
from xprof_py.postprocess.fleet.run_job import analyse_job
from xprof_py.postprocess.fleet.schedulers import ATTEMPTS, Failed, InProcess, LocalWorkers, Scheduler, Task
from xprof_py.postprocess.fleet.spool import Spool
from xprof_py.postprocess.readers.sources import Source, find_sources

RECORDED = Path(__file__).parent.parent / "data" / "jax_cpu"
NAMES = ("planted_checkpoint", "planted_compute", "planted_h2d", "planted_idle", "planted_input", "planted_memory")


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of eighteen processes: more than one node of the tree of merges takes."""
    folder = tmp_path_factory.mktemp("job") / "profiles"
    folder.mkdir()
    for copy in range(3):
        for name in NAMES:
            shutil.copy(RECORDED / f"{name}.xplane.pb.gz", folder / f"{name}{copy}.xplane.pb.gz")
    return folder


@pytest.fixture(scope="module")
def expected(profiles: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("expected") / "out"
    analyze([profiles], out, workers=1)
    return contents(out)


@cache
def few(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(folder.iterdir())[:4])


def contents(out: Path) -> dict[str, bytes]:
    """Of a partial its length: what lies in its columns where a value is null is nobody's, and differs."""
    files = [f for f in sorted(out.rglob("*")) if f.is_file()]
    return {
        str(f.relative_to(out)): b"%d bytes" % f.stat().st_size if f.suffix == ".part" else f.read_bytes()
        for f in files
    }


def run(paths: Any, out: Path, scheduler: Scheduler, **options: Any) -> Analysis:
    try:
        result = analyse_job(find_sources(paths), Spool(out / spool.FOLDER), scheduler, **options)
    finally:
        scheduler.close()
    write_analysis(result, out)
    return result


@pytest.mark.parametrize("workers", [2, 8])
def test_the_number_of_workers_and_the_order_of_files_change_no_byte(
    profiles: Path, expected: dict[str, bytes], tmp_path: Path, workers: int
) -> None:
    files = sorted(profiles.iterdir(), reverse=workers == 8)
    analyze(files, tmp_path / "out", workers=workers)
    assert contents(tmp_path / "out") == expected


class Backwards(InProcess):
    """The last task first."""

    def run(self, function: Callable[..., Any], tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        for place, result in super().run(function, tasks[::-1]):
            yield len(tasks) - 1 - place, result


def test_whoever_answers_for_hosts_that_wait_for_one_another_in_whatever_order(tmp_path: Path) -> None:
    """What was done, and by what reason, is asked of the processes that did it."""
    sources = make_job(tmp_path, hosts=3, steps=7, collectives=4)
    found = []
    for scheduler in (InProcess(), Backwards(), LocalWorkers(2)):
        try:
            result = analyse_job(sources, Spool(tmp_path / "spool"), scheduler, resume=True)
        finally:
            scheduler.close()
        assert result.summary["straggler"]["host"] == "h0001"
        # Late to the first collective of a step by its own work before it.
        (reason,) = result.summary["straggler"]["reasons"]
        said = tuple(reason[name] for name in ("class", "reason", "source", "steps", "ms_per_step"))
        assert said == ("compute", "dot", "train.py:10", 7, LATE_US / 1e3)
        write_analysis(result, tmp_path / str(len(found)))
        found.append(contents(tmp_path / str(len(found))))
    assert found[0] == found[1] == found[2]


def test_it_is_the_answer_that_one_process_finds_in_memory(profiles: Path, expected: dict[str, bytes]) -> None:
    assert orjson.loads(expected["summary.json"]) == orjson.loads(orjson.dumps(analyse([profiles]).summary))


def test_tables_of_every_process_are_a_folder_with_a_file_of_each(profiles: Path, tmp_path: Path) -> None:
    files = few(profiles)
    analyze(files, tmp_path / "out", workers=1)
    assert len(list((tmp_path / "out" / "gaps.parquet").iterdir())) == len(files)
    found, alone = read_analysis(tmp_path / "out").tables, analyse(files).tables
    assert {name: table.to_pylist() for name, table in found.items()} == {n: t.to_pylist() for n, t in alone.items()}
    analyze(files[:1], tmp_path / "out")
    assert (tmp_path / "out" / "gaps.parquet").is_file()
    analyze(files, tmp_path / "out")
    assert (tmp_path / "out" / "gaps.parquet").is_dir()


def test_a_folder_one_stands_in_takes_tables_of_many_after_those_of_one(
    profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = few(profiles)
    for some in (files, files[:1], files[:2], files[:3]):
        analyze(some, Path())
        assert read_analysis(Path()).tables["gaps"].equals(analyse(some).tables["gaps"])


def test_a_bad_profile_costs_itself_alone(profiles: Path, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for file in few(profiles):
        shutil.copy(file, tmp_path / "job")
    analyze([tmp_path / "job"], tmp_path / "without", workers=2)
    bad = tmp_path / "job" / "bad.xplane.pb"
    bad.write_bytes(b"\x0a\xff\xff\xff\xff\x0f no profile")
    gone = tmp_path / "job" / "gone.xplane.pb"
    gone.symlink_to(tmp_path / "nowhere")
    _, summary = analyze([tmp_path / "job"], tmp_path / "with", workers=2)
    rows = [row for row in summary["diagnostics"] if row["code"] == "unreadable"]
    assert [row["file"] for row in rows] == [str(bad), str(gone)]
    assert all(row["message"] for row in rows)
    without = orjson.loads((tmp_path / "without" / "summary.json").read_bytes())
    assert {**summary, "diagnostics": []} == {**without, "diagnostics": []}


def test_an_analysis_that_fails_on_one_process_names_it(
    profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = few(profiles)
    real = passes.read_process

    def fails(source: Source, workers: Any) -> Any:
        if source.xspace == files[1]:
            raise ZeroDivisionError("no such thing")
        return real(source)

    monkeypatch.setattr(passes, "read_process", fails)
    result = run(files, tmp_path / "out", InProcess())
    (row,) = [row for row in result.summary["diagnostics"] if row["code"] == "unreadable"]
    assert row["file"] == str(files[1])
    assert row["message"] == "cannot be analysed: ZeroDivisionError: no such thing"
    assert row["place"].startswith("test_many_processes.py:")
    assert len(result.summary["hosts"]) == len(files) - 1


def test_nothing_that_can_be_read_is_an_error_that_says_how_many(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.xplane.pb").write_bytes(b"\x0a\xff\xff\xff\xff\x0f no profile")
    with pytest.raises(BadInputError, match="2 files, none could be read"):
        analyze([tmp_path], tmp_path / "out")
    assert main(["analyze", str(tmp_path), "-o", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()


def test_workers_that_are_killed_are_replaced(profiles: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    workers = LocalWorkers(2)
    killed: list[int] = []

    def kill_all(what: str, done: int, of: int) -> None:
        if done == 2 and what in ("reading", "applying"):
            for worker in workers._workers:
                os.kill(worker.process.pid, signal.SIGKILL)
                killed.append(worker.process.pid)

    run([profiles], tmp_path / "out", workers, progress=kill_all)
    shutil.rmtree(tmp_path / "out" / spool.FOLDER)
    assert len(set(killed)) == 4
    assert contents(tmp_path / "out") == expected


def test_a_task_that_kills_its_worker_is_given_up_and_no_other() -> None:
    workers = LocalWorkers(2)
    tasks = [("1 + 1",), ("__import__('os')._exit(7)",), ("2 + 2",), ("1 / 0",)]
    try:
        found = dict(workers.run(eval, tasks))
    finally:
        workers.close()
    assert (found[0], found[2]) == (2, 4)
    assert found[1] == Failed(f"a worker process ended with exit code 7, {ATTEMPTS} times, while it was analysed")
    assert found[3].reason == "cannot be analysed: ZeroDivisionError: division by zero"


def test_workers_end_with_the_process_that_started_them() -> None:
    program = (
        "import os, sys\nfrom xprof_py.postprocess.fleet.schedulers import LocalWorkers\nw = LocalWorkers(2)\n"
        "for i, _ in w.run(eval, [('1',), ('2',)]): pass\n"
        "print(*[x.process.pid for x in w._workers], flush=True)\nos.kill(os.getpid(), 9)"
    )
    said = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False).stdout
    pids = [int(pid) for pid in said.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class StoppedError(Exception):
    """A run that ends as a kill would end it."""


def test_an_analysis_that_was_ended_goes_on_and_repeats_nothing(
    profiles: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    made = counted(monkeypatch)

    def stop(what: str, done: int, of: int) -> None:
        if (what, done) == ("reading", 7):
            raise StoppedError

    with pytest.raises(StoppedError):
        run([profiles], out, InProcess(), progress=stop, resume=True)
    assert len(made) == 7
    assert not (out / "summary.json").exists()
    run([profiles], out, InProcess(), resume=True)
    assert sorted(made) == sorted(set(made))
    assert len(made) == 18
    run([profiles], out, InProcess(), resume=True)
    assert len(made) == 18
    assert {n: c for n, c in contents(out).items() if not n.startswith(spool.FOLDER)} == expected


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    real = run_job.first_pass

    def first_pass(source: Source, *, calibrate: bool) -> Any:
        made.append(source.key)
        return real(source, calibrate=calibrate)

    monkeypatch.setattr(run_job, "first_pass", first_pass)
    return made


def test_only_what_changed_is_made_again(profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for file in few(profiles):
        shutil.copy2(file, folder)
    made = counted(monkeypatch)
    run([folder], tmp_path / "out", InProcess(), resume=True)
    left = set((tmp_path / "out" / spool.FOLDER).iterdir())
    changed = sorted(folder.iterdir())[2]
    shutil.copy(RECORDED / "planted_input.xplane.pb.gz", changed)
    run([folder], tmp_path / "out", InProcess(), resume=True)
    assert made[4:] == [changed.name.removesuffix(".xplane.pb.gz")]
    # Partials of what is no more are gone.
    now = set((tmp_path / "out" / spool.FOLDER).iterdir())
    assert len(now) == len(left)
    assert len(now - left) == 2 + len(passes.STORED) + len(APART) + 1
    run([folder], tmp_path / "fresh", InProcess())
    shutil.rmtree(tmp_path / "out" / spool.FOLDER)
    shutil.rmtree(tmp_path / "fresh" / spool.FOLDER)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_other_code_other_settings_or_another_solution_are_another_key(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source,) = find_sources(few(profiles)[:1]).processes
    keys = {spool.key_of_source(source, calibrate=calibrate) for calibrate in (False, True)}
    monkeypatch.setattr(spool, "code_version", lambda: "another")
    keys.add(spool.key_of_source(source, calibrate=False))
    monkeypatch.setenv("XPROF_PY_PEAKS", "something")
    keys.add(spool.key_of_source(source, calibrate=False))
    monkeypatch.setattr(spool, "SCHEMA_VERSION", 99)
    keys.add(spool.key_of_source(source, calibrate=False))
    assert len(keys) == 5


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_partial_that_is_not_whole_counts_as_missing(
    profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    made = counted(monkeypatch)
    out = tmp_path / "out"
    run(few(profiles), out, InProcess(), resume=True)
    before = contents(out)
    for part in (out / spool.FOLDER).glob("*.part"):
        content = part.read_bytes()
        part.write_bytes({"cut": content[:-1], "empty": b"", "other": b"XPRPART0" + content[8:]}[damage])
    run(few(profiles), out, InProcess(), resume=True)
    assert len(made) == 8
    assert contents(out) == before


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "xprof_py", "analyze", *map(str, arguments)]


def test_a_command_that_is_killed_goes_on(profiles: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed = subprocess.Popen(command(profiles, "-o", out, "--workers", 2))
    deadline = time.monotonic() + 60
    while len(list(out.glob(f"{spool.FOLDER}/*.part"))) < 3:
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert not (out / "summary.json").exists()
    kept = {file: file.stat().st_ino for file in out.glob(f"{spool.FOLDER}/*.part")}
    subprocess.run(command(profiles, "-o", out, "--workers", 2, "--resume"), check=True, stdout=subprocess.DEVNULL)
    assert {file: file.stat().st_ino for file in kept} == kept
    assert not list(out.glob(f"{spool.FOLDER}/.writing-*"))
    assert {n: c for n, c in contents(out).items() if not n.startswith(spool.FOLDER)} == expected


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_an_error_that_says_so_and_leaves_the_old_analysis(
    profiles: Path, tmp_path: Path, workers: int
) -> None:
    out = tmp_path / "out"
    analyze(few(profiles)[:2], out)
    before = contents(out)
    # Files may hold no more than 20 kB here, as on a disk that has no more.
    limited: Callable[[], None] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # noqa: E731
    ran = subprocess.run(
        command(profiles, "-o", out, "--workers", workers),
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert f"{out}: cannot be written: File too large" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not list(out.rglob(".writing-*"))
    shutil.rmtree(out / spool.FOLDER)
    assert contents(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_shard_that_grows_while_it_is_read_says_so(
    profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for file in few(profiles)[:2]:
        shutil.copy2(file, folder)
    growing, still = sorted(folder.iterdir())
    size = growing.stat().st_size
    whole = analyse([folder]).summary
    real = passes.read_process

    def read(source: Source, workers: Any) -> Any:
        profile = real(source)
        if source.xspace == growing:
            with growing.open("ab") as opened:
                opened.write(b"more")
        return profile

    monkeypatch.setattr(passes, "read_process", read)
    summary = run([folder], tmp_path / "out", InProcess()).summary
    (row,) = [row for row in summary["diagnostics"] if row["code"] == "changed_while_read"]
    assert (row["file"], row["place"]) == (str(growing), f"byte {size}")
    assert f"grew from {size} to {size + 4} bytes" in row["message"]
    summary["diagnostics"].remove(row)
    assert summary == whole
    assert str(still) not in str(row)


def test_profiles_behind_urls_give_the_same_answer(profiles: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: the extra `test` brings it")
    files = fsspec.filesystem("memory")
    for file in few(profiles):
        files.pipe_file(f"/bucket/profiles/{file.name}", file.read_bytes())
    files.pipe_file("/bucket/profiles/bad.xplane.pb", b"\x0a\xff\xff\xff\xff\x0f no profile")
    summary = run(["memory://bucket/profiles"], tmp_path / "remote", InProcess()).summary
    (row,) = [row for row in summary["diagnostics"] if row["code"] == "unreadable"]
    assert row["file"] == "memory://bucket/profiles/bad.xplane.pb"
    assert {h["source"][0] for h in summary["hosts"]} == {f"memory://bucket/profiles/{f.name}" for f in few(profiles)}
    local = analyse(few(profiles)).summary
    different = {name for name, value in local.items() if value != summary[name]}
    assert different == {"hosts", "diagnostics"}
    with pytest.raises(BadInputError, match="memory://bucket/nothing: no such file"):
        find_sources(["memory://bucket/nothing"])


def test_hosts_of_one_name_are_told_apart_whatever_the_order() -> None:
    ends = [Endpoints("0", "vm", 0, "run/0.json"), Endpoints("1", "vm", 1, "run/1.json"), Endpoints("2", "w", 2, None)]
    solved = {"0": Solved("vm:0"), "1": Solved("vm:1"), "2": Solved("w")}
    assert solve(ends).of == solve(ends[::-1]).of == solved


def test_two_processes_of_one_index_are_two_runs() -> None:
    ends = [Endpoints("0", "a", 0, "x/0.json"), Endpoints("0 (2)", "b", 0, "y/0.json")]
    with pytest.raises(BadInputError, match=r"x/0.json and y/0.json: are two runs, both with a process 0"):
        solve(ends)
