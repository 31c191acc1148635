"""Arrow schemas of every table of a Profile, with units: the contract between the rooms of postprocess.

Times: ``start_ps`` is int64 picoseconds since the profile's ``origin_ns`` (UTC, int64 nanoseconds); ``duration_ps`` is
int64 picoseconds and null while the event was still open at the end of the capture. No double holds an absolute time.

Ids: ``line``, ``event``, ``step`` and so on are row numbers of the table of that name, in one process's Profile.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 1
"""Raised when a column is renamed, removed or changes its meaning."""


class Kind(IntEnum):
    """What an event is, as far as its source says so. The shard writes these numbers (shard_format.h)."""

    PLAIN = 0
    """An event of another tool's trace; what it means is for the join to find out."""
    SPAN = 1
    """A ``trace`` interval of the user's program."""
    STEP = 2
    """A ``step`` interval; arguments ``step_num`` and, from 0.1 ms on, ``cpu_ns``, the CPU time of its thread."""
    INPUT = 3
    """Waiting for the next batch (``wrap_input``, ``input_wait``)."""
    CHECKPOINT = 4
    """Saving or restoring (``checkpoint``)."""
    MARK = 5
    """An instant; duration 0."""
    COUNTER = 6
    """A sampled value; argument ``value``; duration 0."""
    COMPILE = 7
    """A tracing, lowering or compile interval reported by jax.monitoring; argument ``fun_name``."""
    GC = 8
    """A collection of garbage by Python; arguments ``generation``, ``collected``."""
    HOST_OP = 9
    """An operation of a framework at work on the host (Kineto's `cpu_op`)."""


class ArgKind(IntEnum):
    """How ``args.value`` (64 raw bits as int64) is to be read."""

    INT = 1
    """A signed integer."""
    UINT = 2
    """An unsigned integer: reinterpret as uint64."""
    DOUBLE = 3
    """The bits of an IEEE double."""
    TEXT = 4
    """Row of ``texts``."""
    BYTES = 5
    """Opaque bytes; their length in bytes. The bytes themselves stay with the reader."""
    BOOL = 6
    """0 or 1."""


_name = pa.dictionary(pa.int32(), pa.string())


def _schema(*fields: tuple[str, pa.DataType] | tuple[str, pa.DataType, bool]) -> pa.Schema:
    return pa.schema([pa.field(f[0], f[1], nullable=f[2] if len(f) == 3 else False) for f in fields])


CLASSES = (
    "compute",
    "memory",
    "collective",
    "host_device",
    "compiler",
    "input",
    "checkpoint",
    "host",
    "device_wait",
    "no_work",
    "unknown",
)
"""Classes of device-busy time and causes of gaps, in table order (ties are broken by it). BREAKDOWN.md 4 and 5."""

BUSY_CLASSES = CLASSES[:4]
"""The classes of leaf ops; where they overlap on a lane the earlier one wins."""

_STAMPS: tuple[tuple[str, pa.DataType] | tuple[str, pa.DataType, bool], ...] = (
    ("t1_ns", pa.int64()),
    ("t2_ns", pa.int64(), True),
    ("t3_ns", pa.int64(), True),
    ("t4_ns", pa.int64(), True),
    ("m1_ns", pa.int64()),
    ("m2_ns", pa.int64(), True),
    ("m3_ns", pa.int64(), True),
    ("m4_ns", pa.int64(), True),
    ("wait2_ns", pa.int64(), True),
    ("wait4_ns", pa.int64(), True),
)

TABLES: dict[str, pa.Schema] = {
    # --- what the readers deliver -------------------------------------------------------------------------------
    # One row per thread, stream or queue of a trace. `thread_id` is the kernel's thread id where the source knows it
    # (shards do; XSpace lines do not: join/threads.py links the two). `source`: xspace, shard, chrome_json or nsys.
    "lines": _schema(
        ("plane", pa.string()),
        ("name", pa.string()),
        ("line_id", pa.int64()),
        ("thread_id", pa.int64(), True),
        ("source", pa.string()),
        ("clock_domain", pa.string()),
    ),
    # Sorted by (line, start_ps, duration_ps descending): a parent comes before its children.
    "events": _schema(
        ("line", pa.int32()),
        ("name", _name),
        ("kind", pa.uint8()),
        ("start_ps", pa.int64()),
        ("duration_ps", pa.int64(), True),
    ),
    # The arguments (XPlane stats) of events, sorted by event, in the order in which the source wrote them.
    "args": _schema(
        ("event", pa.int64()),
        ("key", _name),
        ("kind", pa.uint8()),
        ("value", pa.int64()),
    ),
    "texts": _schema(("text", pa.large_string())),
    # Where events of a thread are lost: those that ended after `start_ps` and up to `end_ps`. `cause`: damaged (all of
    # them: a chunk of the shard is), dropped (some of them, by the recorder).
    "lost_events": _schema(
        ("line", pa.int32()),
        ("start_ps", pa.int64()),
        ("end_ps", pa.int64()),
        ("cause", pa.string()),
    ),
    # Sampled Python stacks. One row per sample: `line` was at `time_ps` in `stack` (null: no Python frame, or one past
    # the recorder's limits), at work (`on_cpu`: on a CPU, or ready for one that others had) or waiting; in the
    # `interval_ps` since it was last looked at it used `cpu_ps` of a CPU. Sorted by (line, time_ps).
    "stack_samples": _schema(
        ("line", pa.int32()),
        ("time_ps", pa.int64()),
        ("interval_ps", pa.int64()),
        ("cpu_ps", pa.int64()),
        ("on_cpu", pa.bool_()),
        ("stack", pa.int32(), True),
    ),
    # One row per frame of each distinct stack, sorted by (stack, depth); depth 0 is innermost. `frame` is a row of
    # frames, null for the frames past the depth limit, or one past the limit of frames.
    "stacks": _schema(("stack", pa.int32()), ("depth", pa.int32()), ("frame", pa.int32(), True)),
    # Places in Python code. `file` as the code object has it, `function` its qualified name; `source_line` 0: unknown.
    "frames": _schema(("file", _name), ("function", _name), ("source_line", pa.int32())),
    # One row per exchange of time stamps that this process began with another, in the order of asking. The client sends
    # at 1, the server reads at 2 and answers at 3, the client reads at 4: `t` on CLOCK_REALTIME, `m` on CLOCK_MONOTONIC
    # of whoever stamps; sending is stamped m before t, reading t before m. `wait2_ns` (`wait4_ns`): how long the packet
    # had lain in the reader's kernel at 2 (4), null where it does not say; it ends before t and m are read. `outcome`:
    # answered; lost (no answer in 1 s), refused (nobody listens there), not_sent (no route, say): then stamps 2 to 4
    # are null. `session` is the random number of this process's prober (metadata["probe"]["session"]), `peer_session`
    # that of the one that answered; `address`: where, as configured.
    "clock_samples": _schema(
        ("session", pa.uint64()), ("address", _name), ("peer_session", pa.uint64(), True), ("outcome", _name), *_STAMPS
    ),
    # What NVML said of a device, one row per device and moment, sorted by (device, time_ps). `device`: NVML's index, of
    # the machine; `uuid` as NVML writes it, empty where it is not known. Null: the device does not tell. Names with
    # hw_ are OpenTelemetry's hw.power (here in mW), hw.energy (mJ since the driver was loaded), hw.temperature (Cel),
    # hw.gpu.utilization (percent, of NVML's last sample period, in which a kernel ran), hw.gpu.memory.usage (By);
    # `memory_busy_percent`: of that period, in which memory was read or written. `clock_reasons`: the bits
    # nvmlClocksEventReasons, why clocks are not higher. It is the whole device's, other processes included.
    "power": _schema(
        ("device", pa.int32()),
        ("uuid", _name),
        ("time_ps", pa.int64()),
        ("hw_power_mw", pa.int64(), True),
        ("hw_energy_mj", pa.int64(), True),
        ("hw_temperature_c", pa.int64(), True),
        ("hw_gpu_utilization_percent", pa.int64(), True),
        ("hw_gpu_memory_usage_bytes", pa.int64(), True),
        ("memory_busy_percent", pa.int64(), True),
        ("sm_clock_mhz", pa.int64(), True),
        ("memory_clock_mhz", pa.int64(), True),
        ("clock_reasons", pa.int64(), True),
    ),
    # Facts about a plane or a program that belong to no event (plane stats, Task Environment).
    "plane_args": _schema(
        ("plane", pa.string()),
        ("key", pa.string()),
        ("kind", pa.uint8()),
        ("value", pa.int64()),
        ("text", pa.large_string(), True),
    ),
    # What an XSpace says once for a kind of event (XEventMetadata stats: flops, HLO category, ... of a TPU op) instead
    # of in every event. `event_metadata` has the kinds that say something; `event_metadata_of` which of them an event
    # has (sorted by event; events without are not in it); `metadata_args` what is said, sorted by event_metadata.
    "event_metadata": _schema(("plane", pa.string()), ("name", pa.string()), ("display_name", pa.string())),
    "event_metadata_of": _schema(("event", pa.int64()), ("event_metadata", pa.int32())),
    "metadata_args": _schema(
        ("event_metadata", pa.int32()),
        ("key", _name),
        ("kind", pa.uint8()),
        ("value", pa.int64()),
    ),
    # One row per compiled program found in the profile. `hlo` is the serialized HloProto.
    "programs": _schema(
        ("program_id", pa.int64()),
        ("name", pa.string()),
        ("hlo", pa.large_binary(), True),
    ),
    # severity: "error" (data lost or unusable), "warning" (an answer is weaker for it), "note".
    "diagnostics": _schema(
        ("severity", pa.string()),
        ("code", pa.string()),
        ("file", pa.string()),
        ("place", pa.string()),
        ("count", pa.int64()),
        ("message", pa.string()),
    ),
    # --- HLO ----------------------------------------------------------------------------------------------------
    # One row per instruction of every program. `file`/`line` are the innermost frame of the user's source; a fusion
    # without one takes its fused computation's.
    "hlo_ops": _schema(
        ("program", pa.int32()),
        ("name", _name),
        ("opcode", _name),
        ("computation", pa.int32()),
        ("op_name", pa.string()),
        ("file", _name),
        ("source_line", pa.int32()),
        ("function", _name),
    ),
    # One row per computation of every program. `entry`: the one that runs when the program runs.
    "hlo_computations": _schema(("program", pa.int32()), ("name", pa.string()), ("entry", pa.bool_())),
    # Rows of hlo_ops: `op` reads the result of `operand` (same computation).
    "hlo_operands": _schema(("op", pa.int32()), ("operand", pa.int32())),
    # `op` (fusion, call, while, conditional, reduce...) calls a row of hlo_computations.
    "hlo_calls": _schema(("op", pa.int32()), ("computation", pa.int32())),
    # One row per array in the result of a row of hlo_ops, in order. `element`: which element of the op's tuple it is
    # part of, -1 where the result is no tuple. `type`: f32, bf16, pred, ... `dimensions` is null where they are only
    # bounds of a size that the program decides, and `bytes` too. `space`: XLA's memory space, 0 the device's memory, 5
    # the host's; others are on the chip.
    "hlo_shapes": _schema(
        ("op", pa.int32()),
        ("element", pa.int32()),
        ("type", _name),
        ("dimensions", pa.list_(pa.int64()), True),
        ("bytes", pa.int64(), True),
        ("space", pa.int32()),
    ),
    # Numbers and texts of a row of hlo_ops by the names of native/decode/hlo_attributes.c, in order. A number that is
    # absent has its default. A window's dimension and a replica group begin with a row of their own.
    "hlo_attributes": _schema(("op", pa.int32()), ("key", _name), ("value", pa.int64())),
    "hlo_texts": _schema(("op", pa.int32()), ("key", _name), ("text", _name)),
    # The op of a computation whose result is the computation's.
    "hlo_roots": _schema(("computation", pa.int32()), ("op", pa.int32())),
    # The ops of a program's scheduled computations, each computation's in the order in which they run.
    "hlo_schedule": _schema(("program", pa.int32()), ("computation", pa.int32()), ("op", pa.int32())),
    # One row per piece of memory that XLA reserves for a run of a program. `kind`: argument, donated (an argument whose
    # memory becomes an output's), output, temporary, constant, thread_local. `space` as in hlo_shapes. A program whose
    # HLO has no buffer assignment has no rows.
    "hlo_allocations": _schema(
        ("program", pa.int32()),
        ("bytes", pa.int64()),
        ("space", pa.int32()),
        ("kind", _name),
        ("parameter_number", pa.int64(), True),
    ),
    # One row per value of a program: defined by a row of hlo_ops (as `element` of its tuple, -1 the whole result;
    # `depth`: how many tuples deep), kept at `offset` of a row of hlo_allocations.
    "hlo_buffers": _schema(
        ("program", pa.int32()),
        ("allocation", pa.int32(), True),
        ("offset", pa.int64()),
        ("bytes", pa.int64()),
        ("op", pa.int32(), True),
        ("element", pa.int32()),
        ("depth", pa.int32()),
    ),
    # What XLA's own simulation of its heaps says, in order: `kind` alloc, free, share (with another buffer). A program
    # has a `trace` for every allocation that was packed, and where it says which one, that is often not so.
    "hlo_heap_events": _schema(
        ("program", pa.int32()),
        ("trace", pa.int32()),
        ("kind", _name),
        ("buffer", pa.int32()),
        ("shares_with", pa.int32(), True),
    ),
    # How many replicas and partitions a program runs on; null where its HLO does not say.
    "program_devices": _schema(
        ("program", pa.int32()), ("replica_count", pa.int64(), True), ("partition_count", pa.int64(), True)
    ),
    # What one execution of a row of hlo_ops needs (hlo/cost.py); null: not known. `flops` are all of them,
    # `matmul_flops` those of dots and convolutions, in `matmul_type` ("" for none, "mixed" for several types).
    # Transcendental functions are counted apart. `network_bytes`: what a collective's participant must send.
    "hlo_costs": _schema(
        ("op", pa.int32()),
        ("flops", pa.int64(), True),
        ("matmul_flops", pa.int64(), True),
        ("matmul_type", pa.string()),
        ("transcendentals", pa.int64(), True),
        ("bytes_read", pa.int64(), True),
        ("bytes_written", pa.int64(), True),
        ("network_bytes", pa.int64(), True),
    ),
    # What one execution of a program needs, loops multiplied by their trip counts: sums over what is known of it, and
    # over how many ops nothing is known (a loop whose trip count is unknown counts as one).
    "program_costs": _schema(
        ("program", pa.int32()),
        ("flops", pa.int64()),
        ("bytes", pa.int64()),
        ("network_bytes", pa.int64()),
        ("unknown_flops_ops", pa.int64()),
        ("unknown_bytes_ops", pa.int64()),
        ("unknown_network_ops", pa.int64()),
    ),
    # One row per program with HLO: the Python function it was traced from, as its module name says (`<lambda>` for a
    # lambda), the file that defines it and its least line in the module's stack frames; null where no frame is in it.
    # Two lambdas compile to one module name: file and line tell them apart.
    "program_functions": _schema(
        ("program", pa.int32()),
        ("function", pa.string()),
        ("file", pa.string(), True),
        ("source_line", pa.int32(), True),
    ),
    # --- join ---------------------------------------------------------------------------------------------------
    # One row per executed leaf or container op. `lane` is a row of lanes, `run` of runs, `hlo_op` of hlo_ops.
    # `run` is null for copies that belong to no program. `open_ps`: how long the op may have stayed open after its own
    # event (BREAKDOWN.md 1), 0 if it did not. `join`: how `hlo_op` was found: stated, graph_node, name, order,
    # graph_order; where it is null, ambiguous (several instructions can be it) or none (join/op_of_kernel.py).
    # `stated_op`: the instruction that a range of XLA names (join stated, graph_node) of a program that is not stored.
    "lanes": _schema(("device", pa.string()), ("ordinal", pa.int64())),
    "ops": _schema(
        ("event", pa.int64()),
        ("lane", pa.int32()),
        ("run", pa.int32(), True),
        ("hlo_op", pa.int32(), True),
        ("join", _name),
        ("class", _name),
        ("leaf", pa.bool_()),
        ("start_ps", pa.int64()),
        ("duration_ps", pa.int64()),
        ("open_ps", pa.int64()),
        ("stated_op", _name, True),
    ),
    # One row per dispatch of a program by a host thread (`line`); on GPUs per call of the driver that started work.
    "launches": _schema(
        ("event", pa.int64()),
        ("line", pa.int32()),
        ("name", _name),
        ("run_id", pa.int64(), True),
        ("device", pa.int64(), True),
        ("step", pa.int32(), True),
        ("start_ps", pa.int64()),
        ("end_ps", pa.int64(), True),
    ),
    # One row per execution of a program on a lane. join: id, order, steps_line, inferred, ambiguous, none.
    # `run_id`: of a GPU's run the least correlation id of its kernels. Kernels of no program are runs by launch.
    "runs": _schema(
        ("lane", pa.int32()),
        ("program", pa.int32(), True),
        ("run_id", pa.int64()),
        ("launch", pa.int32(), True),
        ("step", pa.int32(), True),
        ("start_ps", pa.int64()),
        ("end_ps", pa.int64()),
        ("join", pa.string()),
    ),
    # Waits of host threads (`line`) for the device, from the call to its return. `for_work`: device work ended in it.
    "device_waits": _schema(
        ("line", pa.int32()),
        ("event", pa.int64()),
        ("step", pa.int32(), True),
        ("start_ps", pa.int64()),
        ("end_ps", pa.int64()),
        ("for_work", pa.bool_()),
    ),
    # Copies to, from and on devices (join/copy_rows.py). `device`: cpu:0, gpu:1, tpu:4, empty where the trace names
    # none. direction: to_device, to_host, on_device, between_devices, unknown. `bytes` null: the trace does not state
    # them; `source`: the argument that did, else empty. `put`: the event of the call that began it, null where that is
    # not known; `step`: the step around that call.
    "copies": _schema(
        ("event", pa.int64()),
        ("put", pa.int64(), True),
        ("step", pa.int32(), True),
        ("device", pa.string()),
        ("direction", pa.string()),
        ("start_ps", pa.int64()),
        ("duration_ps", pa.int64(), True),
        ("bytes", pa.int64(), True),
        ("source", pa.string()),
    ),
    # Outermost steps of the process in order of host start, then nested ones. phase: warmup, steady, outlier, partial,
    # unmeasured; `reason` says why, empty for steady. `parent` is the enclosing step's row for nested steps. source:
    # annotated, inferred (from the order of launches: their `line` is one of the thread's). `tokens`, `model_flops`:
    # what `step` was given of them.
    "steps": _schema(
        ("name", pa.string()),
        ("number", pa.int64()),
        ("occurrence", pa.int32()),
        ("parent", pa.int32(), True),
        ("line", pa.int32()),
        ("start_ps", pa.int64()),
        ("end_ps", pa.int64(), True),
        ("phase", pa.string()),
        ("reason", pa.string()),
        ("source", pa.string()),
        ("tokens", pa.int64(), True),
        ("model_flops", pa.int64(), True),
    ),
    # kind: step, head, tail, nested. Head, steps and tail of a lane tile the capture; nested ones divide a step's
    # window and enter no sum.
    "windows": _schema(
        ("lane", pa.int32()),
        ("kind", pa.string()),
        ("step", pa.int32(), True),
        ("start_ps", pa.int64()),
        ("end_ps", pa.int64()),
    ),
    # One row per gap piece (cut at window boundaries), cause and step. method: order, interval, none.
    # `event`: the host event that is the evidence; `evidence`: its name, or the names of the open spans for unknown.
    # `stack`: the sampled stack that is the evidence instead (`stack` of stacks); `evidence` is then its place in the
    # user's code, `file.py:line function`, and `event` the span that was open and says nothing.
    "gaps": _schema(
        ("lane", pa.int32()),
        ("window", pa.int32()),
        ("start_ps", pa.int64()),
        ("end_ps", pa.int64()),
        ("cause", pa.string()),
        ("cause_step", pa.int32(), True),
        ("length_ps", pa.int64()),
        ("launch", pa.int32(), True),
        ("method", pa.string()),
        ("event", pa.int64(), True),
        ("stack", pa.int32(), True),
        ("evidence", pa.string()),
    ),
    # Straight stretches that tile the capture of every clock that is tied to the reference (clocks/clock_map.py). What
    # the clock shows at `t` in [begin_ns, end_ns), its own UTC ns, is ahead of the reference by
    # offset_ns + drift_ppm * 1e-6 * (t - begin_ns), wrong by at most `error_ns` (half-width; null: no bound is known).
    "clock_map": _schema(
        ("domain", pa.string()),
        ("begin_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("offset_ns", pa.int64()),
        ("drift_ppm", pa.float64()),
        ("error_ns", pa.int64(), True),
        ("method", pa.string()),
    ),
    # One row per window and class: the partial of the breakdown analysis. The exclusive picoseconds of a window sum to
    # its length exactly. `total`: covered or not; `foreign`: by work of other steps. Head and tail have no number.
    "breakdown": _schema(
        ("host", pa.string()),
        ("lane", pa.int32()),
        ("window", pa.int32()),
        ("step", pa.int32(), True),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("number", pa.int64(), True),
        ("occurrence", pa.int32(), True),
        ("phase", pa.string()),
        ("reason", pa.string()),
        ("start_ps", pa.int64()),
        ("window_ps", pa.int64()),
        ("class", pa.string()),
        ("exclusive_ps", pa.int64()),
        ("total_ps", pa.int64()),
        ("foreign_ps", pa.int64()),
    ),
    # What finish makes of the breakdown: one row per host, lane and window (head and tail included), wide, for
    # viewers and queries. `window_ps` is the sum of the class columns, exactly. `number` is null for head and tail.
    "step_classes": _schema(
        ("host", pa.string()),
        ("lane", pa.int32()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("number", pa.int64(), True),
        ("occurrence", pa.int32(), True),
        ("phase", pa.string()),
        ("reason", pa.string()),
        ("start_ps", pa.int64()),
        ("window_ps", pa.int64()),
        *((f"{c}_ps", pa.int64()) for c in CLASSES),
    ),
    # What an analysis of a job writes as `clock_samples`: those of all processes (clocks/exchanges.py). `host` asked,
    # `peer` answered; null where it is not known who did.
    "job_clock_samples": _schema(
        ("host", pa.string()),
        ("peer", pa.string(), True),
        ("session", pa.uint64()),
        ("address", pa.string()),
        ("peer_session", pa.uint64(), True),
        ("outcome", pa.string()),
        *_STAMPS,
    ),
    # One row per host, address that it asks and second of its REALTIME (analyses/network.py defines the numbers).
    "network": _schema(
        ("host", pa.string()),
        ("peer", pa.string(), True),
        ("address", pa.string()),
        ("start_ns", pa.int64()),
        ("sent", pa.int64()),
        ("answered", pa.int64()),
        ("lost", pa.int64()),
        ("refused", pa.int64()),
        ("not_sent", pa.int64()),
        ("rtt_min_ns", pa.int64(), True),
        ("rtt_median_ns", pa.int64(), True),
        ("rtt_p99_ns", pa.int64(), True),
        ("responder_delay_median_ns", pa.int64(), True),
        ("responder_delay_max_ns", pa.int64(), True),
        ("prober_delay_median_ns", pa.int64(), True),
        ("prober_delay_max_ns", pa.int64(), True),
        ("round_trip_median_ns", pa.int64(), True),
    ),
    # compile, trace and lowering intervals by function. source: jax.monitoring or xspace.
    "compiles": _schema(
        ("function", pa.string()),
        ("stage", pa.string()),
        ("line", pa.int32()),
        ("step", pa.int32(), True),
        ("start_ps", pa.int64()),
        ("duration_ps", pa.int64()),
        ("source", pa.string()),
    ),
}


def table(name: str, columns: dict[str, Any]) -> pa.Table:
    """Build the table ``name`` from columns (numpy arrays, lists or Arrow arrays), cast to its schema.

    Raises KeyError for an unknown table or a missing column, pyarrow.ArrowInvalid for values that do not fit.
    """
    schema = TABLES[name]
    arrays = []
    for field in schema:
        column = columns[field.name]
        if not isinstance(column, pa.Array | pa.ChunkedArray):
            wanted = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            column = pa.array(column, type=wanted)
        if column.type != field.type:
            column = column.dictionary_encode() if pa.types.is_dictionary(field.type) else column.cast(field.type)
            if column.type != field.type:
                column = column.cast(field.type)
        arrays.append(column)
    unknown = set(columns) - set(schema.names)
    if unknown:
        raise KeyError(f"table {name} has no columns {sorted(unknown)}")
    return pa.Table.from_arrays(arrays, schema=schema)


def empty(name: str) -> pa.Table:
    """The table ``name`` with no rows."""
    return TABLES[name].empty_table()
