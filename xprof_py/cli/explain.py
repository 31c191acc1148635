"""``xprof-py explain``: one step, gap by gap, down to the source line."""

from __future__ import annotations

import argparse
import json
import sys


class Explain:
    """Explain one step: where its time went, and why the device idled, gap by gap down to the source line.

    RUN is a run folder, profiles, or a folder that `analyze` wrote. On several lanes the one with the longest window is
    explained. The step is compared with the median of the other steady steps of its name.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """RUN, --step, what chooses among several, --json."""
        parser.add_argument("path", metavar="RUN", help="a run folder, profiles, or a folder that `analyze` wrote")
        parser.add_argument("--step", type=int, required=True, metavar="N", help="the number of the step")
        parser.add_argument("--name", help="of the step, where several names have the number")
        parser.add_argument("--occurrence", type=int, metavar="K", help="which of several steps of one number, from 0")
        parser.add_argument("--host", help="the host, where the run has several")
        parser.add_argument("--lane", type=int, help="the lane (default: the one with the longest window)")
        parser.add_argument("--json", action="store_true", help="print the explanation as JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Analyse where needed, explain, print. Returns 0."""
        from xprof_py.cli.analyze import on_terminal, read_run
        from xprof_py.postprocess.rules.explanation import explain_step
        from xprof_py.viewers.terminal_explain import render_explanation

        found = read_run(args.path, ("step_classes", "steps", "op_steps", "gap_chains", "run_ahead"))
        told = explain_step(
            found.summary,
            found.tables,
            args.step,
            name=args.name,
            occurrence=args.occurrence,
            host=args.host,
            lane=args.lane,
        )
        if args.json:
            print(json.dumps(told, indent=1))
        else:
            sys.stdout.write(on_terminal(render_explanation, told))
        return 0
