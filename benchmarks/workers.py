"""What a second worker takes off the analysis of one large file.

    python benchmarks/workers.py PROFILE [--repeats 5]

`analyze --workers 1` and `--workers 2` take turns, each in a process of its own. Printed are, as the least of the
repeats: seconds on the clock; CPU seconds of all threads; and the critical path, the CPU seconds that remain one after
the other however many cores there are: those of the leading thread, and of each part that threads share what the
longest of them took beyond the leading one. A machine that does other things at the same time adds to the clock and
hardly to the others. The outputs of both must be the same bytes.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class CriticalPath:
    """CPU seconds of the other threads that the leading one did not spend itself in the meantime."""

    def __init__(self) -> None:
        self.beyond_s = 0.0
        self.parts: dict[str, tuple[float, float]] = {}

    @contextmanager
    def part(self, name: str, others_s: list[float], lead_from_s: float | None = None) -> Iterator[None]:
        begun = time.thread_time() if lead_from_s is None else lead_from_s
        yield
        lead = time.thread_time() - begun
        longest = max(others_s, default=0.0)
        self.beyond_s += max(0.0, longest - lead)
        self.parts[name] = lead, longest


def measured_here(profile: str, out: str, workers: int) -> dict[str, Any]:
    """Analyse in this process, whose imports begin here, with a stopwatch at every part that threads share."""
    path = CriticalPath()
    from xprof_py.postprocess.readers import begun_xspace
    from xprof_py.postprocess.readers import workers as shared

    ahead_s: list[float] = []
    run, work, take = shared.Workers.run, begun_xspace.BegunXSpace._work, begun_xspace.BegunXSpace.take
    begun_at: list[float] = []

    def timed_work(self: Any) -> None:
        start = time.thread_time()
        work(self)
        ahead_s.append(time.thread_time() - start)

    def timed_take(self: Any, file: Path) -> Any:
        with path.part("imports | reading and decoding", ahead_s, begun_at[0]):
            return take(self, file)

    def timed_run(self: Any, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        lead, others = threading.get_ident(), {}

        def timed(task: Callable[[], Any]) -> Callable[[], Any]:
            def call() -> Any:
                start = time.thread_time()
                try:
                    return task()
                finally:
                    me = threading.get_ident()
                    if me != lead:
                        others[me] = others.get(me, 0.0) + time.thread_time() - start

            return call

        spent: list[float] = []
        name = getattr(tasks[0], "__qualname__", "tasks") if tasks else "tasks"
        with path.part(f"{len(tasks)} {name}", spent):
            found = run(self, [timed(task) for task in tasks])
            spent += others.values()
        return found

    begun_xspace.BegunXSpace._work = timed_work  # type: ignore[method-assign]
    begun_xspace.BegunXSpace.take = timed_take  # type: ignore[method-assign]
    shared.Workers.run = timed_run  # type: ignore[method-assign]
    begun_at.append(time.thread_time())
    from xprof_py.cli.analyze import analyze

    analyze([profile], out, workers=workers)
    return {"lead_s": time.thread_time(), "beyond_s": path.beyond_s, "parts": path.parts}


def measured(profile: Path, out: Path, workers: int) -> dict[str, Any]:
    command = [sys.executable, __file__, str(profile), "--here", str(out), "--workers", str(workers)]
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    found: dict[str, Any] = json.loads(child.stdout.read())
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    found["clock_s"] = time.perf_counter() - begun
    found["cpu_s"] = usage.ru_utime + usage.ru_stime
    # What all threads took beside those that are counted is of starting and ending the process.
    found["critical_s"] = found["lead_s"] + found["beyond_s"]
    found["peak_mb"] = usage.ru_maxrss / 1024
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measured_here(str(options.profile), options.here, options.workers)))
        return
    # Bytecode that is never written is compiled anew each time: that would be measured too.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    counts = (1, options.workers)
    found: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory(prefix="xprof_py-workers-") as folder:
        for repeat in range(options.repeats):
            for count in counts:
                found[count].append(measured(options.profile, Path(folder, f"{repeat}-{count}"), count))
            different = filecmp.dircmp(Path(folder, f"{repeat}-1"), Path(folder, f"{repeat}-{counts[1]}"))
            if different.diff_files or different.left_only or different.right_only:
                raise SystemExit(f"not the same bytes: {different.diff_files}")
    size = options.profile.stat().st_size
    print(f"{options.profile.name}, {size / 1e6:.0f} MB, least of {options.repeats}; the same bytes each time")
    least = {c: {k: min(r[k] for r in found[c]) for k in ("critical_s", "cpu_s", "clock_s", "peak_mb")} for c in counts}
    for count in counts:
        row = least[count]
        print(
            f"  {count} workers: critical path {row['critical_s']:.2f} s, CPU {row['cpu_s']:.2f} s, "
            f"clock {row['clock_s']:.2f} s, {row['peak_mb']:.0f} MB"
        )
    one, more = least[counts[0]], least[counts[1]]
    print(
        f"  ratio: critical path {more['critical_s'] / one['critical_s']:.2f}, "
        f"clock {more['clock_s'] / one['clock_s']:.2f}"
    )
    for name, (lead, other) in min(found[counts[1]], key=lambda r: float(r["critical_s"]))["parts"].items():
        print(f"    {name}: leading thread {lead:.2f} s, another {other:.2f} s")


if __name__ == "__main__":
    main()
