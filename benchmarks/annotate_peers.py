"""What one annotation costs next to those of other packages, as many of them as are installed.

    python benchmarks/annotate_peers.py [--rounds 40] [PEER...]

Each peer is measured in a process of its own, because some tax everything that runs beside them. There our statement of
the same form runs interleaved with the peer's, while our recorder is off and then while it records; the peer is as its
package leaves it without a tool that listens (see interleaved.py for the method). `make bench-annotate` runs this in an
environment that has the peers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from interleaved import Case, Spread, measure, ratio

import xprof_py
from xprof_py import _native

OURS = {
    "with": Case("with trace('region')", "with trace('region'): pass", {"trace": xprof_py.trace}),
    "argument": Case("with trace('region', n=3)", "with trace('region', n=3): pass", {"trace": xprof_py.trace}),
}
LOCK = Case("with lock: pass", "with lock: pass", {"lock": threading.Lock()})

Form = tuple[str, Case]
"""(key of OURS, the peer's case)."""


def nvtx() -> list[Form]:
    import nvtx

    names = {"a": nvtx.annotate, "push": nvtx.push_range, "pop": nvtx.pop_range}
    return [
        ("with", Case("nvtx.annotate", "with a('region'): pass", names)),
        ("argument", Case("nvtx.annotate, payload", "with a('region', payload=3): pass", names)),
        ("with", Case("nvtx push_range, pop_range", "push('region'); pop()", names)),
    ]


def torch() -> list[Form]:
    import torch

    names = {"a": torch.profiler.record_function, "fast": torch._C._profiler._RecordFunctionFast}
    return [
        ("with", Case("torch record_function", "with a('region'): pass", names)),
        ("argument", Case("torch record_function, args", "with a('region', 'n=3'): pass", names)),
        ("with", Case("torch _RecordFunctionFast (private)", "with fast('region'): pass", names)),
    ]


def opentelemetry() -> list[Form]:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider, sampling

    off = trace.NoOpTracerProvider().get_tracer("bench")
    unsampled = TracerProvider(sampler=sampling.ALWAYS_OFF).get_tracer("bench")
    names = {"off": off.start_as_current_span, "sdk": unsampled.start_as_current_span}
    return [
        ("with", Case("OpenTelemetry without a tracer", "with off('region'): pass", names)),
        ("with", Case("OpenTelemetry, not sampled", "with sdk('region'): pass", names)),
        ("argument", Case("OpenTelemetry, attributes", "with sdk('region', attributes={'n': 3}): pass", names)),
    ]


def ittapi() -> list[Form]:
    import ittapi

    return [("with", Case("ittapi.task", "with a('region'): pass", {"a": ittapi.task}))]


def viztracer() -> list[Form]:
    from viztracer import VizTracer

    return [("with", Case("viztracer log_event", "with a('region'): pass", {"a": VizTracer(verbose=0).log_event}))]


PEERS: dict[str, Callable[[], list[Form]]] = {
    function.__name__: function for function in (nvtx, torch, opentelemetry, ittapi, viztracer)
}


def compare(forms: list[Form], rounds: int, wait_s: float) -> list[tuple[str, Spread, Spread, Spread]]:
    """(peer's case, its ns, our ns, ours / peer) of each form."""
    used = {key for key, _ in forms}
    cases = [LOCK, *(OURS[key] for key in used), *(case for _, case in forms)]
    samples = measure(cases, rounds, lambda: time.sleep(wait_s))
    return [
        (
            case.name,
            Spread.of(samples[case.name]),
            Spread.of(samples[OURS[key].name]),
            ratio(samples, OURS[key].name, case.name),
        )
        for key, case in forms
    ]


def run_peer(name: str, rounds: int) -> None:
    """Prints the rows of one peer."""
    forms = PEERS[name]()
    folder = tempfile.mkdtemp(prefix="xprof_py-peers-")
    try:
        off = compare(forms, rounds, 0)
        _native.recorder_start(os.path.join(folder, "x.xpr"))
        on = compare(forms, rounds, 0.06)
        _native.recorder_stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for (case, peer, ours, compared), (_, _, ours_on, compared_on) in zip(off, on, strict=True):
        print(f"  {case:38}{peer.middle:8.0f}{ours.middle:8.0f}   {told(compared)}", end="")
        print(f"{ours_on.middle:8.0f}   {told(compared_on)}")


def told(compared: Spread) -> str:
    return f"{compared.middle:.3f} ({compared.low:.3f} - {compared.high:.3f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--in-this-process", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=", ".join(PEERS))
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.peers) - set(PEERS)):
        parser.error(f"no peer called {', '.join(unknown)}")
    if arguments.in_this_process:
        run_peer(arguments.in_this_process, arguments.rounds)
        return 0
    print(f"  {'':38}{'peer ns':>8}{'ours':>8}   ours off / peer      {'ours on':>8}   ours on / peer")
    for name in arguments.peers or PEERS:
        command = [sys.executable, str(Path(__file__)), "--in-this-process", name, "--rounds", str(arguments.rounds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            print(done.stdout, end="")
        else:
            print(f"  {name}: not measured: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
