"""Run a program as it is and record it: no line of it changes."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xprof_py.cli.arguments import at_least_one, named
from xprof_py.cli.witness import Witness
from xprof_py.config import choice, load_settings
from xprof_py.errors import UsageError
from xprof_py.injection import NVTX_VARIABLE, nvtx_held_by, nvtx_library
from xprof_py.places import FolderPlace, place_of
from xprof_py.run_folder import DEGRADING_ERRNOS, read_run_files
from xprof_py.session import capture

_FOLDERS = ("run", "shards")
COLLECTORS = ("xla", "cuda", "stacks", "power", "probe")
# Sent to the program by whoever sent them to us. A terminal sends its own to both.
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class Run:
    """Run a program as it is and record it: xprof-py run [options] -- python train.py ...

    The first Python process below the command is recorded, and each that a shell or another program starts there, at
    once or one after the other, and each rank of a job that a launcher starts; what these start themselves is not.
    Ranges that any library emits through NVTX are spans. The exit code is the program's own, 128 + the signal where one
    ended it. Steps that nobody marked are found afterwards: by --step-range or --step-pattern, by ranges called steps,
    or as the repetition of launches or ranges.

    Not recorded: programs that are not Python, Python with -I, -E or -S (they do not look for what records them), and
    Python in which xprof_py is not installed.
    """

    name = "run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of the command on ``parser``."""
        parser.add_argument(
            "-o", "--output", type=named, metavar="RUN", help="where to record (default: runs/<program>-<time>)"
        )
        parser.add_argument("--overwrite", action="store_true", help="replace what was in RUN before")
        parser.add_argument(
            "--steps",
            type=_steps,
            metavar="A:B",
            help="record steps A to B - 1 only, of a program that marks steps with xprof_py.step",
        )
        for name in COLLECTORS:
            parser.add_argument(
                f"--{name}", type=_choice, metavar="yes|no|auto", help=f"as capture({name}=...) takes it"
            )
        parser.add_argument("--backend", choices=("auto", "cupti", "xla"), help="as capture(backend=...) takes it")
        parser.add_argument("--budget-bytes", type=at_least_one, metavar="N", help="most bytes of a process's shard")
        parser.add_argument(
            "--no-nvtx", action="store_true", help="leave NVTX ranges to nobody, or to the tool that has them"
        )
        steps = parser.add_mutually_exclusive_group()
        steps.add_argument(
            "--step-range",
            type=named,
            metavar="NAME",
            help="the range or function that is one step; a number behind the name is the step's",
        )
        steps.add_argument(
            "--step-pattern",
            type=named,
            metavar="REGEX",
            help="the same by a regular expression over whole names; its first group is the number",
        )
        parser.add_argument(
            "program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help="the program and its arguments"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Start the program, wait for it, say what to do next. Returns its exit code.

        Raises:
            UsageError: arguments that cannot work, RUN in use or not to be made, NVTX in another tool's hands. Nothing
                is started then.
        """
        program = args.program[1:] if args.program[:1] == ["--"] else args.program
        if not program:
            raise UsageError("no program: xprof-py run [options] -- python train.py")
        run_folder = args.output or f"runs/{_label(program)}-{time.strftime('%Y%m%d-%H%M%S')}"
        if "://" not in run_folder:
            run_folder = os.path.abspath(os.path.expanduser(run_folder))
            if not args.overwrite and any(Path(run_folder, "run").glob("*.json")):
                raise UsageError(f"{run_folder} holds a capture already: name another folder, or say --overwrite")
        environ = recorded_environ(os.environ, args, run_folder)
        # What the settings say wrongly is said before the program runs.
        load_settings({}, environ, Path.cwd())
        _prepare(run_folder)
        code = _run_and_wait(program, environ)
        if code in (_NOT_FOUND, _NOT_EXECUTABLE):
            _remove_empty(run_folder)
        _say_what_next(run_folder, code, environ)
        return code


def recorded_environ(environ: Mapping[str, str], args: argparse.Namespace, run_folder: str) -> dict[str, str]:
    """The environment in which Python records itself into ``run_folder``. Raises UsageError."""
    from xprof_py.startup import sitecustomize

    told: dict[str, Any] = {"path": run_folder, "overwrite": args.overwrite}
    told.update({name: getattr(args, name) for name in COLLECTORS if getattr(args, name) is not None})
    told.update(
        {name: value for name in ("steps", "backend", "budget_bytes") if (value := getattr(args, name)) is not None}
    )
    pattern = args.step_pattern
    if args.step_range is not None:
        pattern = re.escape(args.step_range) + r"(?:[ _:#=.-]*(\d+))?"
    if pattern is not None and args.steps is not None:
        raise UsageError("--steps with --step-range or --step-pattern: these steps are found after the recording")
    out = dict(environ)
    out.pop(sitecustomize.OWNER, None)
    out[sitecustomize.RUN] = json.dumps(told)
    out[sitecustomize.RUN_ID] = uuid.uuid4().hex
    if pattern is not None:
        out["XPROF_PY_STEP_PATTERN"] = pattern
    startup = os.path.dirname(os.path.abspath(sitecustomize.__file__))
    before = environ.get("PYTHONPATH", "").removeprefix(startup).removeprefix(os.pathsep)
    out["PYTHONPATH"] = f"{startup}{os.pathsep}{before}" if before else startup
    if not args.no_nvtx:
        _inject_nvtx(out)
    # Arguments that make no sense are said here, not in the program.
    capture(**{**told, **({"steps": tuple(args.steps)} if args.steps else {})})
    return out


def _prepare(run_folder: str) -> None:
    """Make the run folder. Raises UsageError where that cannot be: the program's processes would say so one by one.

    A full disk is none of the user's mistakes: then the program runs, and its processes say what they could not record.
    An address or a network file system is not asked here, since asking may take long.
    """
    place = place_of(run_folder)
    if not isinstance(place, FolderPlace) or place.is_remote:
        return
    try:
        place.prepare(list(_FOLDERS))
    except OSError as error:
        if error.errno not in DEGRADING_ERRNOS:
            raise UsageError(f"{run_folder}: cannot record there: {error.strerror or error}") from error


def _remove_empty(run_folder: str) -> None:
    """Where no program ran, what ``_prepare`` made goes, unless something is in it."""
    for name in (*_FOLDERS, "."):
        with contextlib.suppress(OSError):
            os.rmdir(os.path.normpath(os.path.join(run_folder, name)))


def _inject_nvtx(environ: dict[str, str]) -> None:
    holder = nvtx_held_by(environ)
    if holder is not None:
        raise UsageError(
            f"{NVTX_VARIABLE} is {holder}: another tool takes the NVTX ranges. "
            "Unset it, or say --no-nvtx to go without them"
        )
    if not nvtx_library().is_file():
        raise UsageError(f"{nvtx_library()} is missing: install xprof_py again, or say --no-nvtx")
    environ[NVTX_VARIABLE] = os.fspath(nvtx_library())


def _run_and_wait(program: list[str], environ: dict[str, str]) -> int:
    """Run the program with our streams and hand on signals; returns its exit code, 128 + n where signal n ended it.

    Signals of a terminal (Ctrl-C) reach the program by themselves, and so do those that somebody sends to all of a job
    (cli/witness.py); those that somebody sends to this process are passed on. All leave it alive to say how it ended.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    watched = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    witness = Witness()
    try:
        path = shutil.which(program[0], path=environ.get("PATH", os.defpath))
        if path is None:
            exists = os.path.exists(program[0])
            print(f"xprof-py: {program[0]}: {'is no program' if exists else 'not found'}", file=sys.stderr)
            return _NOT_EXECUTABLE if exists else _NOT_FOUND
        try:
            # SIGCHLD ignored would leave nothing to wait for; the program gets the signal mask that we were given.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child = os.posix_spawn(path, program, environ, setsigmask=before)
        except OSError as error:
            print(f"xprof-py: {program[0]}: {error.strerror}", file=sys.stderr)
            return _NOT_EXECUTABLE
        while True:
            told = signal.sigwaitinfo(watched)
            if told.si_signo == signal.SIGCHLD:
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid == child:
                    return _exit_code(status)
            elif not witness.has_seen(told.si_signo) and told.si_pid:
                os.kill(child, told.si_signo)
    finally:
        witness.dismiss()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _say_what_next(run_folder: str, code: int, environ: Mapping[str, str]) -> None:
    from xprof_py.startup.sitecustomize import RUN_ID

    if "://" in run_folder:
        print(f"\nNext: xprof-py analyze {run_folder}", file=sys.stderr)
        return
    # A folder that is overwritten may still hold what was there before.
    every = read_run_files(FolderPlace(Path(run_folder)))
    found = [(name, said) for name, said in every if said.get("run_id") == environ[RUN_ID]]
    shown = os.path.relpath(run_folder) if Path(run_folder).is_relative_to(Path.cwd()) else run_folder
    if not found:
        if code not in (_NOT_FOUND, _NOT_EXECUTABLE):
            print(
                f"xprof-py: nothing was recorded in {shown}. Where no process above says why, none of Python came by: "
                "it runs none, or with -I, -E or -S, or clears PYTHONPATH",
                file=sys.stderr,
            )
        return
    processes = f"{len(found)} process{'es' if len(found) > 1 else ''}"
    print(f"\nRecorded {processes} in {shown}. Next:", file=sys.stderr)
    if _are_apart([said for _, said in found]):
        # Programs one after the other are no job: their mean would be nobody's.
        for name, said in sorted(found, key=lambda one: _span(one[1])):
            command = shlex.join(map(str, said.get("command") or ()))
            print(f"      xprof-py analyze {shown}/{name}  # {command}", file=sys.stderr)
        return
    print(f"      xprof-py analyze {shown}\n      xprof-py report {shown}", file=sys.stderr)


def _span(said: Mapping[str, Any]) -> tuple[int, int]:
    """When a process was recorded, in ns of CLOCK_REALTIME; one that did not stop until now."""
    start, stop = (said.get(edge) for edge in ("start", "stop"))
    begin = int(start.get("realtime_ns", 0)) if isinstance(start, dict) else 0
    return begin, int(stop.get("realtime_ns", begin)) if isinstance(stop, dict) else time.time_ns()


def _are_apart(said: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some of the processes had ended before others began, and no launcher says that they are one job."""
    spans = [_span(one) for one in said]
    return all(one.get("job") is None for one in said) and max(b for b, _ in spans) > min(e for _, e in spans)


def _label(program: list[str]) -> str:
    """A name for the run: the script's, else the program's."""
    words = [word for word in program if not word.startswith("-")]
    scripts = [word for word in words[1:] if word.endswith(".py")]
    stem = Path(scripts[0] if scripts else words[0] if words else "program").stem
    return re.sub(r"[^A-Za-z0-9._-]", "_", stem) or "program"


def _choice(text: str) -> bool | str:
    try:
        return choice(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: wants yes, no or auto") from None


def _steps(text: str) -> list[int]:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r}: wants A:B, two step numbers, A before B")
    return [int(match[1]), int(match[2])]
