"""How long the calls of one look at a GPU take, and what a capture's sampler reports: nvml_calls.py RUN SECONDS."""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

from xprof_py import capture

RUN, SECONDS, CALLS = Path(sys.argv[1]), float(sys.argv[2]), 50
library = ctypes.CDLL(os.environ.get("XPROF_NVML_LIB") or "libnvidia-ml.so.1")
gpu = ctypes.c_void_p()
assert library.nvmlInit_v2() == 0
assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(gpu)) == 0
room = (ctypes.c_ulonglong * 8)()
calls = {
    "energy": lambda: library.nvmlDeviceGetTotalEnergyConsumption(gpu, room),
    "power": lambda: library.nvmlDeviceGetPowerUsage(gpu, room),
    "temperature": lambda: library.nvmlDeviceGetTemperature(gpu, 0, room),
    "sm_clock": lambda: library.nvmlDeviceGetClockInfo(gpu, 1, room),
    "memory_clock": lambda: library.nvmlDeviceGetClockInfo(gpu, 2, room),
    "reasons": lambda: library.nvmlDeviceGetCurrentClocksEventReasons(gpu, room),
    "utilization": lambda: library.nvmlDeviceGetUtilizationRates(gpu, room),
    "memory": lambda: library.nvmlDeviceGetMemoryInfo(gpu, room),
}
took: dict[str, list[int]] = {name: [] for name in calls}
refused: dict[str, int] = {}
for _ in range(CALLS):
    for name, call in calls.items():
        begin = time.perf_counter_ns()
        result = call()
        took[name].append(time.perf_counter_ns() - begin)
        if result:
            refused[name] = result
with capture(RUN, power=True, xla=False, cuda=False, stacks=False, probe=False):
    time.sleep(SECONDS)
(path,) = (RUN / "run").glob("*.json")
overhead = json.loads(path.read_text(encoding="utf-8"))["overhead"]["power"]
print(json.dumps({"calls_ns": took, "refused": refused, "overhead": overhead}))
