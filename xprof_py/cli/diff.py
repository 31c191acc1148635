"""``xprof-py diff``: what changed between two runs, and whether it is more than chance."""

from __future__ import annotations

import argparse
import json
import sys

REGRESSION = 3
"""The exit code where a limit of --fail-over is exceeded."""


class Diff:
    """Compare two runs: step time, classes, causes and ops, and whether a change is more than chance.

    A is before, B after: run folders, profiles, or folders that `analyze` wrote. Steady steps are compared, by their
    medians; a change counts where the distributions of the steps differ by more than chance. Ops are matched by what
    they are in their program, whatever the compiler calls them.

    With --fail-over the exit code is 3 where something got significantly longer than allowed: `5%` is the step time,
    `input=10%` a class or cause, `op=20%` any one op. Each is a part of what it was in A.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """A, B, --fail-over, --name, --json."""
        parser.add_argument("a", metavar="A", help="the run before")
        parser.add_argument("b", metavar="B", help="the run after")
        parser.add_argument(
            "--fail-over",
            metavar="[WHAT=]N%",
            action="append",
            default=[],
            help="end with exit code 3 where the step time (or WHAT) grew by more; may be repeated",
        )
        parser.add_argument("--name", help="of the steps to compare (default: the ones with the most time in A)")
        parser.add_argument("--json", action="store_true", help="print the comparison as JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Analyse both where needed, compare, print. Returns 0, or REGRESSION where a limit is exceeded."""
        from xprof_py.cli.analyze import on_terminal, read_run
        from xprof_py.postprocess.rules.difference import compare_runs, read_limit
        from xprof_py.viewers.terminal_diff import render_diff

        limits = [read_limit(text) for text in args.fail_over]
        needed = ("step_classes", "steps", "op_steps")
        a, b = read_run(args.a, needed), read_run(args.b, needed)
        found = compare_runs(a.summary, a.tables, b.summary, b.tables, name=args.name, limits=limits)
        if args.json:
            print(json.dumps({"a": args.a, "b": args.b, **found}, indent=1))
        else:
            sys.stdout.write(on_terminal(render_diff, found))
        return REGRESSION if found["regression"] else 0
