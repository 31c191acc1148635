"""The XSpace of the loaded PJRT plugin's own profiler, without JAX's, around real work: jax_plugin.py FILE."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

from xprof_py import _native
from xprof_py.collectors.pjrt import loaded_plugins, profile_options

product = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.ones((512, 512))
product(x).block_until_ready()
(plugin, *_) = loaded_plugins()
_native.pjrt_start(plugin["path"], profile_options(2, 1))
for _ in range(20):
    product(x).block_until_ready()
content = _native.pjrt_stop()
Path(sys.argv[1]).write_bytes(content)
print(json.dumps({"plugin": plugin["path"], "version": [plugin["major"], plugin["minor"]], "bytes": len(content)}))
