"""What the names of host events mean: the only place that knows names of JAX, XLA and user spans.

Names of XLA's own events change between versions, so each set holds the names of every version that the tests run on
(jax 0.10 and 0.12), and whatever is not listed is no evidence of anything.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

from xprof_py.postprocess.hlo import kernel_names

STEP_MARKER_ARG = "xprof_tid"
"""Argument of the XLA step markers that our `step` writes: the kernel's id of the thread."""
THREAD_MARKER = "xprof_py.thread"
"""Event that our recorder writes into XLA's trace at a thread's first event; argument `tid`."""

RUN_WAIT = "ThunkExecutor::Execute (wait for completion)"
AWAIT = "CommonPjRtBuffer::Await"
"""Comes twice per wait, at its start (`_p`) and its end (`_c`)."""
READS = frozenset({"np.asarray(jax.Array)"})
"""Reading an array waits until it is computed. Mostly an AWAIT inside says how long; in `if loss > 3` there is none."""
_DRIVER_SYNC = re.compile(r"(cu|cuda|hip)(Stream|Event|Ctx|Device)Synchronize")
LAUNCH = "CommonPjRtLoadedExecutable::ExecuteHelperOnSingleDevice"
LAUNCH_MANY = re.compile(r"CommonPjRtLoadedExecutable::Execute \((?P<module>.*)\)$")
"""The launch on several local devices; carries run_id."""
JIT_CALL = re.compile(r"PjitFunction\((?P<function>.*)\)$")
END_MARKER = "end: "
HAND_OVER, HAND_OVER_BEGIN, HAND_OVER_END = (
    "ThreadpoolListener::Record",
    "ThreadpoolListener::StartRegion",
    "ThreadpoolListener::StopRegion",
)
COPIES_TO_DEVICE = frozenset({"H2D Dispatch", "CommonPjRtClient::LinearizeIntoImpl"})
PUTS = frozenset({"DevicePutWithSharding", "DevicePut", "shard_args"})
BETWEEN_DEVICES = re.compile(r"Buffer::CopyToDevice")
"""The runtime hands an array to another device of its own."""

COMPILES = frozenset(
    {
        "backend_compile_and_load",
        "lower_sharding_computation",
        "PjRtCpuClient::Compile",
        "PjRtCpuClient::CompileAndLoad",
        "trace_to_jaxpr",
    }
)
COMPILER_LINES = ("tf_PjRtCompilerThreadPool", "tf_xla-cpu-codegen")
"""Lines of the threads that run XLA's passes and generate code; what they hold is theirs, but for hand-overs."""
COMPILE_CALL = "backend_compile_and_load"
"""Around a compile, on the thread that waits for it; later JAX runs XLA's passes right inside it."""
NO_PASS = ("ThreadpoolListener::", "$")
"""Beginnings of events among the passes that are none: hand-overs between threads, and Python frames."""
MONITORING_STAGES = {
    "jaxpr_trace_duration": "trace",
    "jaxpr_to_mlir_module_duration": "lower",
    "backend_compile_duration": "compile",
}

_DISPATCH = re.compile(
    r"PjitFunction\(|ParseArguments$|CommonPjRt|PjRt|ExecuteReplicated|shard_args$|DevicePut|[Bb]atched_?[Cc]opy|"
    r"BatchedCopyToDevice|PythonRefManager::|Handle inputs$|Handle input event recording$|AllocateOutputBuffers|"
    r"Wait for (LaunchOnDevice completion|(donation|usage) holds)$|"
    r"np\.asarray\(jax\.Array\)$|ArrayImpl\.|Transpose::Execute|ThunkExecutor::|"
    r"jax\.jit$|pmap_|Transfer(To|From)|copy_to_host_async|ThreadpoolListener::|"
    r"(Scheduled )?TfrtTpu|tpu::System::Execute$|DoEnqueueProgram$|EnqueueContinuationProgram$|PJRT_|GpuExecutable::"
)

_XLA_RANGE = re.compile(r"(?P<what>Thunk|Xla[A-Z]\w*):#")
# A user's span or a Python function of exactly one of these names (words joined by _) is evidence for the cause it
# names. Never a part of a name: `step_input` runs the step, `input_ids` is no loader.
_WHAT = r"(batch|batches|data|input|inputs|sample|samples|example|examples|minibatch|next_element)"
_INPUT = re.compile(
    rf"(input|inputs|input_pipeline|input_wait|wait_input|wait_for_input|dataset_next|next_element|iterator_get_next|"
    rf"data_?load(er|ing)?|((data|batch|input|device|cuda)_)?prefetcher|data_wait|batch_wait|{_WHAT}_(load|loader|loading|fetch|wait|iterator)|"
    rf"(load|get|fetch|read|make|prepare|wait_for|next)_(next_|train_|eval_|host_)?{_WHAT})"
)
_CHECKPOINT = re.compile(
    r"(checkpoint|checkpoints|checkpointing|ckpt|orbax_(save|restore)|"
    r"(save|restore|write|load)_(checkpoint|ckpt|train_state|state|weights|params)|checkpoint_(save|restore|write))"
)
# Libraries whose frames are evidence by where they are, whatever the function is called.
_LOADER_FILE = re.compile(
    r"/torch/utils/data/|/torchdata/|/torch_xla/distributed/parallel_loader\.py$|/grain/(_src/)?python/|"
    r"/tensorflow/python/data/|/tensorflow_datasets/|/seqio/(dataset_providers|feature_converters|preprocessors)\.py$|/array_record/python/|"
    r"/datasets/(iterable_dataset|arrow_dataset)\.py$|/webdataset/|/ffcv/loader/|/streaming/base/|/litdata/|"
    r"/squirrel/(iterstream|driver)/|/deeplake/|/nvidia/dali/|/flax/training/prefetch_iterator\.py$|"
    r"/xprof_py/inputs\.py$"
)
_CHECKPOINT_FILE = re.compile(
    r"/orbax/checkpoint/|/flax/training/(checkpoints|orbax_utils)\.py$|/torch/distributed/checkpoint/|"
    r"/torch/serialization\.py$|/jax/experimental/array_serialization/|/safetensors/|/equinox/_serialisation\.py$|"
    r"/tensorflow/python/(checkpoint/|training/saver\.py$)"
)
# Files that do other things as well: only these functions of theirs. Reading with numpy.load names nothing: what is
# read may be the next batch or the last checkpoint.
_LOADER_FUNCTION = re.compile(r"/flax/jax_utils\.py:prefetch_to_device$")
_CHECKPOINT_FUNCTION = re.compile(
    r"/numpy/lib/(_npyio_impl|npyio)\.py:_?save(z|z_compressed)?$|"
    r"/flax/serialization\.py:(msgpack_serialize|msgpack_restore|to_bytes|from_bytes)$"
)
# XLA's Python tracer shows of a frame's file the last part alone, so here the function has to fit as well.
_TRACED_LOADER = re.compile(
    r"(dataloader|data_loader|stateful_dataloader|base_node|parallel_loader|iterator_ops|epoch_iterator)\.py:"
    r"(__next__|_next_data|_try_get_data|_next_internal)$|(iterable_dataset|arrow_dataset)\.py:__iter__$"
)
_TRACED_CHECKPOINT = re.compile(
    r"(checkpoint_manager|\w*checkpointer)\.py:(save|restore|wait_until_finished)$|"
    r"serialization\.py:(save|_save|load|_load|_legacy_save|to_bytes|from_bytes|msgpack_serialize|msgpack_restore)$|"
    r"(_npyio_impl|npyio)\.py:_?save(z|z_compressed)?$"
)
# Events that loaders write into the trace themselves: tf.data, torch's DataLoader. Only those on the thread that
# launches count; a tf.data pipeline's own threads have lines of their own.
_LOADER_EVENT = re.compile(
    r"(MultiDevice)?IteratorGetNext|Iterator(::|$)|(IteratorGetNextOp|IteratorGetNextAsOptionalOp)::DoCompute$|"
    r"enumerate\(DataLoader\)#\w+\.__next__$"
)
PIPELINE_STAGE_ARG = "_ipl_stage_name"
"""Argument of the events that an input pipeline writes around its stages (grain, tf.data), whatever their names are."""
# What these call their functions is about arrays and programs, not about what the program wants of them.
_NUMERIC_FILE = re.compile(r"(^|/)(jax|jaxlib|numpy)/|^<")
_PROTOCOL = frozenset({"__next__", "__iter__", "__anext__", "__getitem__", "__call__"})

_PYTHON_FRAME = re.compile(r"\$(?P<where>\S+) (?P<function>\S+)$")
_KINETO_FRAME = re.compile(r"(?P<file>\S+\.py)\(\d+\): (?P<function>\S+)$")
"""A Python frame as the PyTorch profiler names it: `torch/nn/modules/module.py(1511): _wrapped_call_impl`."""
_IDLE_FUNCTIONS = frozenset(
    {"sleep", "wait", "acquire", "select", "poll", "epoll", "join", "recv", "accept", "get", "result", "read", "_wait"}
)


class Evidence(IntEnum):
    """What an open host event says about its thread. Higher numbers name a cause; see BREAKDOWN.md 5."""

    NOTHING = 0
    """Open, but no evidence of work: a user's span of any other name, a frame of sleep."""
    HOST = 1
    """Dispatch, or a Python frame of a thread at work."""
    WAIT = 2
    """Waiting for the device."""
    CHECKPOINT = 3
    INPUT = 4
    COMPILER = 5


def _words(name: str) -> str:
    """``LoadBatch`` and ``load-batch`` as ``load_batch``."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())


def named_cause(name: str) -> Evidence:
    """INPUT or CHECKPOINT where a span or function of this name is known to mean it, else NOTHING."""
    words = _words(name).strip("_")
    if _CHECKPOINT.fullmatch(words):
        return Evidence.CHECKPOINT
    return Evidence.INPUT if _INPUT.fullmatch(words) else Evidence.NOTHING


def span_evidence(name: str) -> Evidence:
    """What a span of the program is evidence of, by its name; XLA's own ranges, which NVTX hands on, are such spans.

    It opens them around launching (`Thunk:#...#`, `XlaModule:#...#`) and compiling (`XlaCompile:#...#`, ...).
    """
    if _XLA_RANGE.match(name) is None:
        return named_cause(name)
    return Evidence.HOST if is_launch_range(name) else Evidence.COMPILER


def is_read(name: str) -> bool:
    """Whether an event of this name lasts until device work has ended."""
    return name in READS or _DRIVER_SYNC.match(name) is not None


def is_launch_range(name: str) -> bool:
    """Whether this is a range that XLA opens around launching: `Thunk:#...#`, `XlaModule:#...#`."""
    found = _XLA_RANGE.match(name)
    return found is not None and found["what"] in ("Thunk", "XlaModule")


def is_dispatch(name: str) -> bool:
    """Whether an event of this name is JAX or XLA handing work to the device, or a call that launches a kernel."""
    return (
        _DISPATCH.match(name) is not None or is_launch_range(name) or kernel_names.KERNEL_LAUNCH.match(name) is not None
    )


def evidence_of(name: str) -> Evidence:
    """What an event of another tool's trace (schema.Kind.PLAIN) is evidence of, by its name."""
    if name in COMPILES:
        return Evidence.COMPILER
    if _XLA_RANGE.match(name):
        return span_evidence(name)
    if _DRIVER_SYNC.match(name):
        return Evidence.WAIT
    if is_dispatch(name):
        return Evidence.HOST
    frame = _KINETO_FRAME.match(name)
    if frame is not None:
        return _traced_frame(frame["file"].rpartition("/")[2], frame["function"])
    frame = _PYTHON_FRAME.match(name)
    if frame is None:
        return Evidence.INPUT if _LOADER_EVENT.match(name) else named_cause(name)
    return _traced_frame(frame["where"].rpartition(":")[0], frame["function"])


def _traced_frame(file: str, function: str) -> Evidence:
    """A frame of XLA's Python tracer. ``file``: the last part of its path, empty for a function written in C."""
    place = f"{file}:{function}"
    if _TRACED_CHECKPOINT.match(place):
        return Evidence.CHECKPOINT
    if _TRACED_LOADER.match(place):
        return Evidence.INPUT
    if function in _IDLE_FUNCTIONS:
        return Evidence.NOTHING
    return named_cause(function) or Evidence.HOST


def frame_cause(file: str, function: str) -> Evidence:
    """INPUT or CHECKPOINT where a frame of a sampled stack is known to mean it, else NOTHING.

    ``file``: its path; ``function``: its qualified name. Of `__next__` and the like the class's name counts.
    """
    if _LOADER_FILE.search(file):
        return Evidence.INPUT
    if _CHECKPOINT_FILE.search(file):
        return Evidence.CHECKPOINT
    outermost = function.split(".", 1)[0]
    if _CHECKPOINT_FUNCTION.search(f"{file}:{outermost}"):
        return Evidence.CHECKPOINT
    if _LOADER_FUNCTION.search(f"{file}:{outermost}"):
        return Evidence.INPUT
    if _NUMERIC_FILE.search(file):
        return Evidence.NOTHING
    *outer, own = function.split(".")
    return named_cause(outer[-1] if own in _PROTOCOL and outer else own)


@lru_cache(maxsize=4096)
def function_name(text: str) -> str:
    """``jit(train_step)``, as jax.monitoring names what it lowers and compiles, as ``train_step``."""
    return re.sub(r"^(?:p?jit|pmap)\((.*)\)$", r"\1", text)


@lru_cache(maxsize=4096)
def module_key(name: str) -> str:
    """One key for a function's name and for the module that XLA makes of it: ``<lambda>`` and ``jit__lambda``."""
    stem = re.sub(r"^(jit|pmap)_", "", name)
    return re.sub(r"[^A-Za-z0-9.]+", "_", stem).strip("_")
