"""What comes of subscribing to CUPTI as a capture does, and the GPU's name and driver as NVML has them."""

import ctypes
import json
import os

from xprof_py.collectors.cuda import check

nvml = ctypes.CDLL(os.environ.get("XPROF_NVML_LIB") or "libnvidia-ml.so.1")
gpu, name, driver = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(gpu)) == 0
assert nvml.nvmlDeviceGetName(gpu, name, ctypes.c_uint(96)) == 0
assert nvml.nvmlSystemGetDriverVersion(driver, ctypes.c_uint(96)) == 0
print(json.dumps({"gpu": name.value.decode(), "driver": driver.value.decode(), "found": check()}))
