"""Run every benchmark of this folder, each in a process of its own, and print its tables.

    python benchmarks/run.py [NAME...]

Numbers are printed, never asserted: what a machine does today is no property of the code.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
BENCHMARKS = ("annotate", "nvtx_ranges", "decode", "analyze", "sample_stacks", "confusion", "counterfactual")


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        print(f"no benchmark called {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or BENCHMARKS:
        print(f"== {name} " + "=" * (100 - len(name)), flush=True)
        if subprocess.run([sys.executable, str(FOLDER / f"{name}.py")], check=False).returncode != 0:
            failed.append(name)
        print(flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
