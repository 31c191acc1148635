"""Two threads that launch under spans and on streams of their own, the device three steps behind; a graph in each step.

Prints what was planted: how often each kernel was launched, where each one belongs, and the op of each.
"""

import json
import sys
import threading
import time

from devices import MAIN, SIDE, XlaRanges, device

STEPS, STEP_S = 8, 0.02
late_ns = int(3 * STEP_S * 1e9)
gpu = device(late_ns)

import nvtx  # noqa: E402  its ranges go where NVTX_INJECTION64_PATH said as the process began

places: dict[str, tuple[str, int, str]] = {}
ops: dict[str, str] = {}
in_op = XlaRanges("jit_planted")
of_kernel = {name: f"{name}.0" for name in ("node_first", "node_second")}
names = [f"{what}_{i}" for i in range(STEPS) for what in ("forward", "augment", "backward")]
gpu.compile([*names, *of_kernel, "hold"])
gpu.until_recorded()
graph = gpu.graph(list(of_kernel), 500, lambda name: in_op(of_kernel[name]))
if len(sys.argv) > 1 and sys.argv[1] == "hold":
    gpu.launch("hold", MAIN, late_ns // 1000)  # keeps a real device busy, as the double is by itself


def launch(what: str, step: int, stream: str, took_us: int) -> None:
    name = f"{what}_{step}"
    places[name] = what, step, stream
    with nvtx.annotate(what):
        gpu.launch(name, stream, took_us)


def augment() -> None:
    for i in range(STEPS):
        begin.wait()
        launch("augment", i, SIDE, 1000)
        done.wait()


begin, done = threading.Barrier(2), threading.Barrier(2)
side = threading.Thread(target=augment)
side.start()
for i in range(STEPS):
    until = time.monotonic() + STEP_S
    with nvtx.annotate(f"step {i}"):
        with in_op(ops.setdefault(f"forward_{i}", f"forward.{i}")):
            launch("forward", i, MAIN, 5000)
        begin.wait()
        done.wait()
        with nvtx.annotate("replay"):
            graph(MAIN)
        with in_op(ops.setdefault(f"backward_{i}", f"backward.{i}")):
            launch("backward", i, MAIN, 8000)
        time.sleep(max(0.0, until - time.monotonic()))
side.join()
gpu.wait()
launched = dict.fromkeys(places, 1) | dict.fromkeys(of_kernel, STEPS)
if len(sys.argv) > 1 and sys.argv[1] == "hold":
    launched["hold"] = 1
print(json.dumps({"launched": launched, "places": places, "graph_ops": of_kernel, "ops": ops}))
