"""What one annotation costs, next to JAX's own annotation of the same form, off and on.

    python benchmarks/annotate.py [--rounds 60]

off      nothing records
on       our recorder and a trace of JAX's profiler (Python tracer off) both record
capture  inside `with capture(...)`: JAX's profiler records as well, and our `step` writes its marker too

See interleaved.py for the method.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from interleaved import Case, Spread, measure, ratio

import xprof_py

LOCK = "with lock: pass"

PAIRS = [
    ("with trace('region')", "with TraceAnnotation('region')"),
    ("with trace('region', layer=3)", "with TraceAnnotation('region', layer=3)"),
    ("with trace('region', 3 arguments)", "with TraceAnnotation('region', 3 arguments)"),
    ("with step(i)", "with StepTraceAnnotation(step_num=i)"),
    ("@trace, called", "@annotate_function, called"),
]
"""Ours and the peer of the same form."""


def plain() -> None:
    """The function whose calls are annotated."""


def cases() -> list[Case]:
    import jax

    profiler = jax.profiler
    ours: dict[str, Any] = {"trace": xprof_py.trace, "step": xprof_py.step}
    theirs: dict[str, Any] = {"T": profiler.TraceAnnotation, "S": profiler.StepTraceAnnotation}
    arguments = "layer=3, loss=0.5, phase='warm'"
    statements: list[tuple[str, str, dict[str, Any]]] = [
        (PAIRS[0][0], "with trace('region'): pass", ours),
        (PAIRS[0][1], "with T('region'): pass", theirs),
        (PAIRS[1][0], "with trace('region', layer=3): pass", ours),
        (PAIRS[1][1], "with T('region', layer=3): pass", theirs),
        (PAIRS[2][0], f"with trace('region', {arguments}): pass", ours),
        (PAIRS[2][1], f"with T('region', {arguments}): pass", theirs),
        (PAIRS[3][0], "with step(i): pass", ours),
        (PAIRS[3][1], "with S('train', step_num=i): pass", theirs),
        (PAIRS[4][0], "f()", {"f": xprof_py.trace(plain)}),
        (PAIRS[4][1], "f()", {"f": profiler.annotate_function(plain)}),
        ("plain call", "f()", {"f": plain}),
        (LOCK, "with lock: pass", {"lock": threading.Lock()}),
    ]
    return [Case(*statement) for statement in statements]


def show(title: str, samples: dict[str, list[float]]) -> None:
    print(f"\n{title}")
    print(f"  {'':36}{'ns':>7}   {'JAX ns':>7}   ours / JAX, median (10 % - 90 %)")
    for ours, theirs in PAIRS:
        compared = ratio(samples, ours, theirs)
        print(
            f"  {ours:36}{Spread.of(samples[ours]).middle:7.0f}   {Spread.of(samples[theirs]).middle:7.0f}   "
            f"{compared.middle:.2f} ({compared.low:.2f} - {compared.high:.2f})"
        )
    for yardstick in ("plain call", LOCK):
        print(f"  {yardstick:36}{Spread.of(samples[yardstick]).middle:7.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds

    import jax

    print(f"Cost of one annotation, jax {jax.__version__}, {rounds} rounds, thread CPU time less an empty loop")
    folder = Path(tempfile.mkdtemp(prefix="xprof_py-annotate-"))

    def let_the_rings_drain() -> None:
        time.sleep(0.06)

    try:
        show("off: nothing records", measure(cases(), rounds))
        with xprof_py.capture(folder / "host", xla=False):
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            jax.profiler.start_trace(str(folder / "jax"), profiler_options=options)
            on = measure(cases(), rounds, let_the_rings_drain)
            jax.profiler.stop_trace()
        show("on: our recorder and JAX's profiler record", on)
        with xprof_py.capture(folder / "both"):
            both = measure(cases(), rounds, let_the_rings_drain)
        show("capture: as above, and our step writes JAX's step marker too", both)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
