"""The command ``xprof-py``: one file per command. Results go to stdout, messages to stderr."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from typing import Protocol

from xprof_py.cli.streams import named_streams, tell
from xprof_py.errors import XprofPyError

COMMANDS = {
    "analyze": "Analyze",
    "report": "Report",
    "diff": "Diff",
    "explain": "Explain",
    "query": "Query",
    "run": "Run",
    "fleet": "Fleet",
    "doctor": "Doctor",
    "demo": "Demo",
}
"""Command -> class in the module of the same name. A module is imported when its command is asked for."""


class Command(Protocol):
    """What a command's class offers; its docstring is the help."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


class _Version(argparse.Action):
    """Prints the version, which takes longer to look up than the other arguments to read."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import xprof_py

        print(f"xprof-py {xprof_py.__version__}")
        parser.exit()


def _load(name: str) -> Command:
    command: Command = getattr(importlib.import_module(f"xprof_py.cli.{name}"), COMMANDS[name])()
    return command


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser with all commands, or with the one that is asked for: the others need not be imported for it."""
    parser = argparse.ArgumentParser(
        prog="xprof-py", description="Where did the step time go, and what to do about it."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS if only is None else (only,):
        command = _load(name)
        text = (type(command).__doc__ or "").strip()
        sub = commands.add_parser(
            name,
            help=text.split("\n")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 0 ok, 1 error, 2 usage, 3 `diff` found a regression.

    Wrong usage and --help raise SystemExit.
    """
    try:
        with named_streams():
            return _run(argv)
    except XprofPyError as error:
        tell(str(error))
        return error.exit_code
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        tell(reason if error.filename is None else f"{error.filename}: {reason}")
        return 1
    except KeyboardInterrupt:
        tell("interrupted")
        return 130


def _without_dateutil() -> None:
    """Where dateutil is not installed, Arrow looks for it for every Python value: 150 searches of sys.path.

    One is enough in a process that is ours. None in sys.modules is Python's own word for "not there".
    """
    if importlib.util.find_spec("dateutil") is None:
        sys.modules["dateutil"] = None  # type: ignore[assignment]


def _run(argv: Sequence[str] | None) -> int:
    _without_dateutil()
    argv = sys.argv[1:] if argv is None else argv
    args = build_parser(argv[0] if argv and argv[0] in COMMANDS else None).parse_args(argv)
    return int(args.run(args))
