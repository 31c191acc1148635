"""Compiles JAX functions for an H200 where no GPU is, and leaves what XLA says of them.

usage: gpu_programs.py PLUGIN NAME FOLDER. PLUGIN is xla_cuda_plugin.so of the wheel jax-cuda13-pjrt in jaxlib's
version; NAME one of FUNCTIONS. FOLDER gets `module.pb`, the scheduled HloModuleProto, beside XLA's dump with the
thunks, which are the truth: in which order the program launches what, and of which instruction it is. Names private to
JAX are used.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

PLUGIN, NAME, FOLDER = sys.argv[1:]
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_dump_to={FOLDER}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax._src.lib import xla_client  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

TARGET = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
 shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 4800000000000
 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
 cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536 }
 platform_name: "CUDA" dnn_version_info { major: 9 minor: 1 patch: 0 } device_description_str: "NVIDIA H200" """


def blocks(a: Any, b: Any) -> Any:
    for _ in range(6):
        a = jnp.tanh(a @ b) * 0.5 + jnp.sin(a)
    return a


def mixed(a: Any, b: Any) -> Any:
    h = a @ b
    h = jnp.tanh(h) + jnp.sort(h, axis=1)

    def body(c: Any, _: None) -> tuple[Any, Any]:
        c = jnp.sin(c @ b) * 0.5
        return c + 1.0, c.sum()

    h, s = jax.lax.scan(body, h, None, length=5)
    return jnp.cumsum(h @ b, axis=0), s, (h * h).sum(axis=1), h.T.copy()


FUNCTIONS = {"blocks": (blocks, True), "blocks_of_cublas": (blocks, False), "mixed": (mixed, False)}
"""Name -> (function, whether XLA's own Triton kernels do the matmuls, or cuBLAS)."""

api = xla_client.load_pjrt_plugin_dynamically("cuda", PLUGIN)
topology = xla_client.make_c_api_device_topology(api, "", target_config=TARGET, topology="1x1x1")
devices = topologies.TopologyDescription(topology._make_compile_only_devices()).devices
placed = NamedSharding(Mesh(np.array(devices[:1]), ("x",)), PartitionSpec())
array = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=placed)
function, triton = FUNCTIONS[NAME]
lowered = jax.jit(function, in_shardings=placed).trace(array, array).lower(lowering_platforms=("cuda",))
options = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": triton}
module = lowered.compile(compiler_options=options).runtime_executable().hlo_modules()[0]
Path(FOLDER, "module.pb").write_bytes(module.as_serialized_hlo_module_proto())
