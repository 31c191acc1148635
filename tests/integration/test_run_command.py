"""`xprof-py run`: programs that know nothing of it are recorded, and end as they would have without it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from xprof_py.injection import NVTX_VARIABLE
from xprof_py.postprocess.fleet.analysis import partials, reduce_partials
from xprof_py.postprocess.readers.process import read_process
from xprof_py.postprocess.readers.sources import find_sources
from xprof_py.postprocess.schema import Kind

PLAIN = """
import time
from xprof_py import trace  # spans of the program's own, no capture
for i in range(6):
    with trace(f"iteration {i}"):
        with trace("work"): time.sleep(0.002)
"""


def environ(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XPROF_PY_", "NVTX_"))}
    if "PYTHONPATH" in more:
        more["PYTHONPATH"] = os.pathsep.join([more["PYTHONPATH"], *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, **more}


def command(run: Path, *options: str, program: str | list[str]) -> list[str]:
    child = [sys.executable, "-c", textwrap.dedent(program)] if isinstance(program, str) else program
    return [sys.executable, "-m", "xprof_py", "run", "-o", str(run), *options, "--", *child]


def xprof_run(run: Path, *options: str, program: str | list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    more.setdefault("env", environ())
    return subprocess.run(
        command(run, *options, program=program), capture_output=True, text=True, check=False, timeout=120, **more
    )


def documents(run: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((run / "run").glob("*.json"))]


def names(run: Path) -> list[str]:
    profile = read_process(find_sources([run]).processes[0])
    return list(profile["events"]["name"].to_pylist())


def test_a_plain_program_is_recorded_and_keeps_its_exit_code_and_output(tmp_path: Path) -> None:
    done = xprof_run(
        tmp_path / "r", program=PLAIN + "\nimport sys; print('out'); print(input()); sys.exit(7)", input="in"
    )
    assert (done.returncode, done.stdout) == (7, "out\nin\n"), done.stderr
    assert "xprof-py analyze" in done.stderr
    (document,) = documents(tmp_path / "r")
    assert (document["state"], document["collectors"]["host"]["used"]) == ("finished", True)
    assert [name for name in names(tmp_path / "r") if name == "work"] == ["work"] * 6


def test_nothing_of_ours_is_in_a_program_that_is_not_run_by_us(tmp_path: Path) -> None:
    """The folder alone, without the variable, is inert: no package of ours is even imported."""
    import xprof_py.startup

    folder = str(Path(str(xprof_py.startup.__file__)).parent)
    code = "import sys; print(sorted(name for name in sys.modules if name.startswith('xprof_py')))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ(PYTHONPATH=folder), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_user_s_own_sitecustomize_runs_as_well(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.CUSTOMIZED = __file__\n")
    program = "import sitecustomize; print(CUSTOMIZED); print(sitecustomize.__file__)"
    done = xprof_run(tmp_path / "r", program=program, env=environ(PYTHONPATH=str(own)))
    assert done.stdout.split() == [str(own / "sitecustomize.py")] * 2, done.stderr
    assert len(documents(tmp_path / "r")) == 1


def test_a_broken_sitecustomize_of_the_user_s_does_not_cost_the_recording(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
    done = xprof_run(tmp_path / "r", program="print('ran')", env=environ(PYTHONPATH=str(own)))
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "theirs" in done.stderr  # Python itself says so, with us or without
    assert len(documents(tmp_path / "r")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_to_the_program_ends_it_and_is_told(tmp_path: Path, number: signal.Signals) -> None:
    program = f"""
    import os, signal, time
    from xprof_py import trace
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with trace("before"): pass
    os.kill(os.getpid(), {int(number)})
    time.sleep(30)
    """
    done = xprof_run(tmp_path / "r", program=program)
    assert done.returncode == 128 + number
    (document,) = documents(tmp_path / "r")
    assert document["state"] == ("finished" if number == signal.SIGTERM else "recording")
    assert "before" in names(tmp_path / "r")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_command_reaches_the_program(tmp_path: Path, number: signal.Signals) -> None:
    program = """
    import os, signal, sys, time
    def end(number, frame):
        os.write(1, b"got %d\\n" % number)  # print may be what was interrupted: it is not reentrant
        sys.exit(3)
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    print("ready", flush=True)
    time.sleep(30)
    """
    with subprocess.Popen(
        command(tmp_path / "r", program=program),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"got {int(number)}\n"
        assert process.wait(timeout=60) == 3
    assert documents(tmp_path / "r")[0]["state"] == "finished"


def to_the_group(process: subprocess.Popen[str]) -> None:
    """The command comes to it when the program has had it: two that wait at once would be one."""
    process.send_signal(signal.SIGSTOP)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGCONT)


SENT = {
    "to the command": lambda process: process.send_signal(signal.SIGINT),
    "to the group": to_the_group,
    "to timeout": lambda process: process.send_signal(signal.SIGINT),
    "to timeout --foreground": lambda process: process.send_signal(signal.SIGINT),
}


@pytest.mark.parametrize("way", SENT)
def test_a_signal_reaches_the_program_once_however_it_was_sent(tmp_path: Path, way: str) -> None:
    """`timeout` signals the command, then the group; with --foreground the command alone. A second one is a second
    one: what came before it is forgotten. (`timeout` itself takes one only.)"""
    rounds = 1 if "timeout" in way else 2
    program = f"""
    import os, signal, time
    got = 0
    def count(number, frame):
        global got, since
        got, since = got + 1, time.monotonic()
    signal.signal(signal.SIGINT, count)
    for round in range({rounds}):
        got, since = 0, time.monotonic() + 30
        os.write(1, b"ready\\n")
        while time.monotonic() < since + 0.5: time.sleep(0.05)
        os.write(1, b"%d\\n" % got)
    """
    words = command(tmp_path / "r", program=program)
    if "timeout" in way:
        words = [*way.split()[1:], "60", *words]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ(), start_new_session=True
    ) as process:
        assert process.stdout is not None
        for _ in range(rounds):
            assert process.stdout.readline() == "ready\n"
            SENT[way](process)
            assert process.stdout.readline() == "1\n"
        assert process.wait(timeout=60) == 0


def test_a_group_s_sigterm_ends_the_recording_once(tmp_path: Path) -> None:
    """Schedulers and `timeout` signal the group."""
    program = """
    import signal, time
    from xprof_py import recording, trace
    stop = recording.Recording.stop
    def slowly(*args, **kwargs):  # so that the second one comes in the middle
        time.sleep(0.5)
        return stop(*args, **kwargs)
    recording.Recording.stop = slowly
    with trace("before"): pass
    print("ready", flush=True)
    time.sleep(30)
    """
    with subprocess.Popen(
        command(tmp_path / "r", program=program),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(),
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert documents(tmp_path / "r")[0]["state"] == "finished"
    assert "before" in names(tmp_path / "r")


def test_workers_of_a_recorded_process_are_its_own_affair(tmp_path: Path) -> None:
    program = """
    import multiprocessing, os, subprocess, sys
    def work(): print("worker", flush=True)
    if __name__ == "__main__":
        subprocess.run([sys.executable, "-c", "print('child')"], check=True)
        pid = os.fork()
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
        one = multiprocessing.get_context("spawn").Process(target=print, args=("worker",)); one.start(); one.join()
    """
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent(program))
    done = xprof_run(tmp_path / "r", program=[sys.executable, str(script)])
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["child", "worker"]), done.stderr
    assert len(documents(tmp_path / "r")) == 1


def test_each_rank_of_a_job_is_recorded(tmp_path: Path) -> None:
    """A launcher that is no Python starts two ranks; a worker of each inherits its rank and is not recorded."""
    rank = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
    start = f'WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1 {sys.executable} -c "{rank}" &'
    script = f"RANK=0 {start}\np0=$!\nRANK=1 {start}\np1=$!\nwait $p0 && wait $p1"
    done = xprof_run(tmp_path / "r", program=["/bin/sh", "-c", script])
    assert done.returncode == 0, done.stderr
    assert sorted((d["rank"], d["state"]) for d in documents(tmp_path / "r")) == [("0", "finished"), ("1", "finished")]


def test_a_program_that_replaces_itself_is_recorded_to_its_end(tmp_path: Path) -> None:
    program = """
    import os, sys
    from xprof_py import trace
    if len(sys.argv) < 2:
        os.execv(sys.executable, [sys.executable, "-c", os.environ["AGAIN"], "again"])
    """
    again = "from xprof_py import trace\nwith trace('after'): pass"
    done = xprof_run(tmp_path / "r", program=program, env=environ(AGAIN=again))
    assert done.returncode == 0, done.stderr
    assert len(documents(tmp_path / "r")) == 1
    assert "after" in names(tmp_path / "r")


def test_what_cannot_be_recorded_is_said(tmp_path: Path) -> None:
    done = xprof_run(tmp_path / "r", program=["/bin/echo", "hello"])
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "nothing was recorded" in done.stderr
    isolated = xprof_run(tmp_path / "s", program=[sys.executable, "-I", "-c", "print(1)"])
    assert (isolated.returncode, isolated.stdout) == (0, "1\n")
    assert "-I, -E or -S" in isolated.stderr


@pytest.mark.parametrize(
    ("options", "more", "says"),
    [
        ((), {NVTX_VARIABLE: "/opt/other/libtool.so"}, "/opt/other/libtool.so: another tool"),
        (("--step-pattern", "("), {}, "no regular expression"),
        (("--steps", "3:3"), {}, "wants A:B"),
        (("--steps", "1:3", "--step-range", "x"), {}, "found after the recording"),
        (("--xla", "perhaps"), {}, "wants yes, no or auto"),
    ],
)
def test_what_cannot_work_is_said_before_the_program_runs(
    tmp_path: Path, options: tuple[str, ...], more: dict[str, str], says: str
) -> None:
    done = xprof_run(tmp_path / "r", *options, program="print('ran')", env=environ(**more))
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_another_tool_may_keep_nvtx(tmp_path: Path) -> None:
    more = environ(**{NVTX_VARIABLE: "/opt/other/libtool.so"})
    program = f"import os; print(os.environ[{NVTX_VARIABLE!r}])"
    done = xprof_run(tmp_path / "r", "--no-nvtx", program=program, env=more)
    assert (done.returncode, done.stdout) == (0, "/opt/other/libtool.so\n")


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    assert xprof_run(tmp_path / "r", program="pass").returncode == 0
    again = xprof_run(tmp_path / "r", program="print('ran')")
    assert (again.returncode, again.stdout) == (2, "")
    assert xprof_run(tmp_path / "r", "--overwrite", program="pass").returncode == 0
    assert len(documents(tmp_path / "r")) == 1


@pytest.mark.parametrize(("program", "code"), [(["/nothing/there"], 127), ([str(Path(__file__))], 126)])
def test_no_such_program(tmp_path: Path, program: list[str], code: int) -> None:
    assert xprof_run(tmp_path / "r", program=program).returncode == code


def test_the_import_of_jax_is_noticed_and_not_disturbed(tmp_path: Path) -> None:
    """A module called jax that is nobody's JAX: its loader, spec and errors are as they were."""
    package = tmp_path / "packages"
    package.mkdir()
    (package / "jax.py").write_text("import sys\nLOADER = __loader__\nSPEC = __spec__\n")
    program = """
    import jax
    loader = jax.__loader__
    print(type(loader).__name__, jax.__spec__.loader is loader, jax.LOADER is loader)
    """
    done = xprof_run(tmp_path / "r", program=program, env=environ(PYTHONPATH=str(package)))
    assert done.stdout == "SourceFileLoader True True\n", done.stderr
    (package / "jax.py").write_text("raise ImportError('theirs')\n")
    done = xprof_run(
        tmp_path / "s",
        program="try: import jax\nexcept ImportError as e: print(e)",
        env=environ(PYTHONPATH=str(package)),
    )
    assert done.stdout == "theirs\n", done.stderr


NVTX_STEPS = """
import time
import nvtx
for i in range(3, 9):
    with nvtx.annotate(f"train_step {i}", domain="train"):
        with nvtx.annotate("forward"): time.sleep(0.002)
"""


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = reduce_partials(
        [partials(read_process(source)) for source in find_sources([run]).processes], []
    ).summary
    return summary


def test_ranges_that_are_called_steps_are_steps(tmp_path: Path) -> None:
    pytest.importorskip("nvtx", reason="nvtx is not installed: pip install 'xprof_py[test]'")
    assert xprof_run(tmp_path / "r", program=NVTX_STEPS).returncode == 0
    steps = summary_of(tmp_path / "r")["steps"]
    assert (steps["count"], steps["source"]) == (6, "annotated")


def test_the_user_says_which_range_is_a_step(tmp_path: Path) -> None:
    assert xprof_run(tmp_path / "r", "--step-range", "work", program=PLAIN).returncode == 0
    assert documents(tmp_path / "r")[0]["capture"]["step_pattern"]
    assert summary_of(tmp_path / "r")["steps"]["count"] == 6


JAX = """
import jax, jax.numpy as jnp
@jax.jit
def train(x): return jnp.tanh(x @ x) * 0.1
x = jnp.ones((300, 300))
for i in range(24):
    x = train(x); x.block_until_ready()
"""


@pytest.mark.live
def test_an_unmodified_jax_training(tmp_path: Path) -> None:
    began = time.monotonic()
    done = xprof_run(tmp_path / "r", program=JAX, env=environ(JAX_PLATFORMS="cpu"))
    assert done.returncode == 0, done.stderr
    (document,) = documents(tmp_path / "r")
    assert document["collectors"]["xla"]["used"], document["collectors"]["xla"]
    summary = summary_of(tmp_path / "r")
    assert (summary["steps"]["count"], summary["steps"]["source"]) == (24, "inferred")
    assert summary["breakdown"]["compute"]["share"] > 0.3
    told = xprof_run(
        tmp_path / "s", "--step-range", "PjitFunction(train)", program=JAX, env=environ(JAX_PLATFORMS="cpu")
    )
    assert told.returncode == 0, told.stderr
    steps = summary_of(tmp_path / "s")["steps"]
    assert steps["source"] == "annotated"
    assert steps["count"] >= 23  # the first call may lie before XLA's profiler
    assert time.monotonic() - began < 110


TWO = ["sh", "-c", f"{sys.executable} first.py; {sys.executable} second.py"]


def two_programs(folder: Path) -> Path:
    for name, steps in (("first", 3), ("second", 5)):
        (folder / f"{name}.py").write_text(
            f"from xprof_py import step\nfor i in range({steps}):\n    with step(i, name={name!r}): pass\n"
        )
    return folder / "r"


def steps_of(run: Path) -> list[tuple[str, int]]:
    """(name, steps) of each process of a run, by the run files that the command names."""
    out = []
    for file in (run / "run").glob("*.json"):
        (source,) = find_sources([file]).processes
        profile = read_process(source)
        events = profile["events"].to_pylist()
        kinds = [event["name"] for event in events if event["kind"] == int(Kind.STEP)]
        out.append((kinds[0], len(kinds)))
    return sorted(out)


def test_programs_one_after_the_other_are_each_recorded(tmp_path: Path) -> None:
    run = two_programs(tmp_path)
    done = xprof_run(run, program=TWO, cwd=tmp_path)
    assert (done.returncode, "not recorded" in done.stderr) == (0, False), done.stderr
    assert steps_of(run) == [("first", 3), ("second", 5)]
    assert "Recorded 2 processes" in done.stderr
    named = [line.split("analyze ")[1].split("  # ") for line in done.stderr.splitlines() if "analyze" in line]
    assert [command.endswith(f"{name}.py") for (_, command), name in zip(named, ("first", "second"), strict=True)]
    assert all((tmp_path / file).is_file() for file, _ in named)


def test_overwriting_removes_what_was_there_before_and_nothing_of_this_run(tmp_path: Path) -> None:
    run = two_programs(tmp_path)
    assert xprof_run(run, program="from xprof_py import step\nwith step(0, name='old'): pass").returncode == 0
    assert steps_of(run) == [("old", 1)]
    refused = xprof_run(run, program=TWO, cwd=tmp_path)
    assert (refused.returncode, steps_of(run)) == (2, [("old", 1)])
    done = xprof_run(run, "--overwrite", program=TWO, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert steps_of(run) == [("first", 3), ("second", 5)]
    assert len(list((run / "shards").iterdir())) == 2


def test_what_an_earlier_run_left_is_not_counted_as_recorded(tmp_path: Path) -> None:
    assert xprof_run(tmp_path / "r", program="pass").returncode == 0
    done = xprof_run(tmp_path / "r", "--overwrite", program=["true"])
    assert "nothing was recorded" in done.stderr


def test_a_folder_that_cannot_be_made_is_said_before_the_program_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = xprof_run(tmp_path / "file" / "r", program="print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path / 'file' / 'r'}: cannot record there: Not a directory" in done.stderr


def test_where_no_program_is_found_no_folder_is_left(tmp_path: Path) -> None:
    assert xprof_run(tmp_path / "r", program=["no-such-program"]).returncode == 127
    assert list(tmp_path.iterdir()) == []
