"""The demo: record a training with a planted bottleneck, and show that the analysis finds it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from xprof_py.errors import UsageError

DEFAULT_STEPS = 40


class Demo:
    """Train a small transformer with a slow input pipeline, record it, and show where its time went.

    Takes well under a minute on two CPU cores. Needs JAX: pip install 'xprof_py[demo]'.
    """

    name = "demo"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of the command on ``parser``."""
        parser.add_argument("--fast-input", action="store_true", help="the same training with its bottleneck removed")
        parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="training steps (default: %(default)s)")
        parser.add_argument(
            "--run-dir",
            type=Path,
            help="where to record (default: runs/demo or runs/demo-fast-input, replaced by each demo)",
        )
        parser.add_argument("--json", action="store_true", help="print summary.json instead of the table")

    def run(self, args: argparse.Namespace) -> int:
        """Record, analyse, print. Returns the exit code: the training's own where that failed.

        Raises:
            UsageError: fewer than one step; XprofPyError: what was recorded cannot be analysed or written.
        """
        from xprof_py.cli.analyze import analyze, print_summary
        from xprof_py.viewers.html_report import write_report

        if args.steps < 1:
            raise UsageError("demo --steps: at least one")
        run_dir: Path = args.run_dir or Path("runs", "demo-fast-input" if args.fast_input else "demo")
        code = self.record(run_dir, steps=args.steps, fast_input=args.fast_input, overwrite=args.run_dir is None)
        if code != 0:
            return code
        out, summary = analyze([run_dir])
        report = write_report(out, out / "report.html")
        if args.json:
            print(json.dumps(summary, indent=1))
            return 0
        print_summary(summary)
        print(f"Report: {report}", flush=True)
        self.say_what_next(args.fast_input)
        return 0

    def record(self, run_dir: Path, *, steps: int, fast_input: bool, overwrite: bool) -> int:
        """Run the training in a process of its own, as a user's would be; returns its exit code."""
        command = [sys.executable, "-m", "xprof_py.demo_training", "--run-dir", str(run_dir), "--steps", str(steps)]
        command += ["--fast-input"] * fast_input + ["--overwrite"] * overwrite
        # The training's own lines are messages here: the result on stdout is the analysis.
        return subprocess.run(command, stdout=sys.stderr.fileno(), check=False).returncode

    def say_what_next(self, fast_input: bool) -> None:
        """Tell on stderr what is worth trying after this demo."""
        program = Path(__file__).parent.parent / "demo_training.py"
        other = "xprof-py demo" if fast_input else "xprof-py demo --fast-input"
        why = "with the slow input pipeline" if fast_input else "with its tokens made before the training"
        print(
            f"\nNext: open the report in a browser\n      {other}   (the same training {why})\n"
            f"      read the program: {program}",
            file=sys.stderr,
        )
