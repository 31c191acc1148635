"""What a run file says about a process.

Fields (JSON; absent or null where nothing is known):

    format, schema_version      "xprof_py.run", 1
    state                       armed (waits for its steps), recording, stopping (files are being written), finished,
                                failed (neither annotations nor XLA were recorded), not_started (the steps never came).
                                A process that was killed leaves armed, recording or stopping.
    session                     folder below plugins/profile
    run_id                      equal for the processes below one `xprof-py run`; null without
    rank, rank_source           label in the file names, and the variable or JAX call that it comes from, or "pid"
    job, job_processes          equal for the processes of one job; their number as the launcher states it
    process_index, process_count    JAX's; the launcher's where JAX does not say or runs each process by itself
    clock_domain                of processes with one CLOCK_REALTIME: the boot_id, or what XPROF_PY_CLOCK_DOMAIN says
    hostname, boot_id, pid, ppid, command, versions {xprof_py, python, jax, jaxlib}
    capture                     mode (whole, steps, flight_recorder), steps [first, last), started_at_step,
                                budget_bytes, model_flops_per_token, step_pattern (ranges that are steps),
                                block_error; level, categories: the filter of annotations in the settings; of a flight
                                recorder what it was told: seconds, slow_step, on_exception, on_signal, snapshots
    flight                      of a flight recorder: slow_steps, slow_steps_without_snapshot, snapshots [{name, about,
                                error, events, bytes}], refused (past the limit)
    snapshot                    in the run file of a snapshot: its name and about {reason: "signal", "exception", "slow
                                step" or "asked for", and what belongs to it}
    start, stop                 {realtime_ns, monotonic_ns, error_ns}: both clocks at one moment, +- error_ns.
                                stop is after the drain: device work launched before it has ended, if drained
    drained                     whether all work in flight was waited for; null without XLA's profiler
    collectors                  host, xla, compiles, gc, stacks, cuda, ...: {used, why, error, note, ...}; xla.start and
                                xla.stop, cuda.start and cuda.stop are as start and stop above: both may begin later,
                                XLA may, at its limit, end earlier; drained is about its end. probe: token (given,
                                derived), session (its random number, under which other hosts' shards know it), port
                                (0: answers nobody), serve_error, peers [{address, error, sent, answered}].
                                stacks: takes_gil, why frames could not be read from memory.
                                cuda: chosen (why it has the devices), library, version, shared (CUPTI with others),
                                holder (who had CUPTI before), os_threads (calls tell their thread), clock_offset_ns (of
                                CUPTI's clock to CLOCK_REALTIME, within clock_width_ns), notes (what CUPTI refused).
                                programs (where cuda is used): count, bytes, failed (times that JAX did not answer),
                                left_out (past the limit). xla.plugin: the PJRT plugin {path, major, minor} whose
                                profiler it was, absent where JAX's was. power: period_ms, devices [{index (NVML's),
                                ordinal (CUDA's, null: not certain), uuid, name, power_limit_mw, lost}]
                                cuda.lent: [{to, start, stop}], times in which another profiler of the program had CUPTI
                                (stop null: to the end); cuda.why beside used: why it was not taken back.
                                torch: traces that torch.profiler exported [{path, bytes, copied, why}], failed (hooks
                                that raised), copy_s. cupy_memory: threads (hooked), allocations, frees, not_recorded
                                (past their part of the budget), failed, corrected (by the pool's own figure),
                                several_pools (devices with more than one)
    files                       shard, xplane, programs: names below RUN; torch: a list of them
    overhead                    start_s, stop_s: time the program waited (stop_s with drain_s, the part that waited for
                                its own device work); finish_s: time behind it; drain_arrays, drain_fenced; spans;
                                recorder: the recorder's totals; stacks: the stack sampler's: looks, samples,
                                without_gil (samples that needed no GIL), torn (looks at a stack that changed each
                                time it was read), taken_by_force (looks that took the GIL from a running thread),
                                cost_ns (CPU time, with that of such threads to stop and go on), held_ns and
                                longest_hold_ns (of the GIL), threads, threads_left_out; probe:
                                cpu_ns of wall_ns, postponed (bursts, to stay within its share), served, and packets
                                ignored: malformed, bad_token, replayed, late, rate_limited (null: not known); cuda:
                                activities, calls, graph_nodes that were read, dropped (by CUPTI), buffers_refused,
                                cut_buffers, no_memory, unknown_kinds, clamped, ranges_refused, late_ranges, cpu_ns; or
                                ended: false where CUPTI did not give them back in time; power: looks, postponed (to
                                stay within its share), failed_calls, cpu_ns of wall_ns, of it open_cpu_ns for NVML's
                                own start
    observer                    what steps took before, inside and after a capture of some steps: {name, before_ns,
                                inside_ns, after_ns}, each at most 64 times from a step's start to the next one's;
                                after: from when the files were written. null for a whole block
    messages                    [{severity, message}]
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from typing import Any

from xprof_py.rank import Rank, jax_process
from xprof_py.run_folder import RunFolder, boot_id

FORMAT = "xprof_py.run"
SCHEMA_VERSION = 1


def clock_pair() -> dict[str, int]:
    """CLOCK_REALTIME and CLOCK_MONOTONIC of one moment, in ns, and the half-width in ns of the moment itself."""
    best: dict[str, int] | None = None
    for _ in range(5):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        realtime = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        error = (after - before + 1) // 2
        if best is None or error < best["error_ns"]:
            best = {"realtime_ns": realtime, "monotonic_ns": (before + after) // 2, "error_ns": error}
    assert best is not None
    return best


def versions() -> dict[str, str | None]:
    """Versions of this package, Python and, where they are imported, jax and jaxlib."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own: str | None = version("xprof_py")
    except PackageNotFoundError:
        own = None
    return {
        "xprof_py": own,
        "python": platform.python_version(),
        "jax": getattr(sys.modules.get("jax"), "__version__", None),
        "jaxlib": getattr(sys.modules.get("jaxlib"), "__version__", None),
    }


def identity(folder: RunFolder, rank: Rank) -> dict[str, Any]:
    """Who this process is, as far as is known now: rank, job, process index and count, host, boot, pid."""
    index, count = rank.index, rank.count
    place = jax_process()
    # Processes of one launch that each run a JAX of their own are all process 0 of 1 to it.
    if place is not None and (place[1] > 1 or count in (None, 1)):
        index, count = place
    return {
        "rank": rank.label(folder.pid),
        "rank_source": rank.source,
        "job": rank.job,
        "job_processes": rank.count,
        "process_index": index,
        "process_count": count,
        "hostname": os.uname().nodename,
        "boot_id": boot_id(),
        "clock_domain": os.environ.get("XPROF_PY_CLOCK_DOMAIN") or boot_id(),
        "pid": folder.pid,
        "ppid": os.getppid(),
    }


def first_document(folder: RunFolder, capture: Mapping[str, Any]) -> dict[str, Any]:
    """The run file's fields at the start of a capture; ``capture``: its mode, steps and settings."""
    return {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "state": "armed",
        "session": folder.session,
        "run_id": folder.run_id,
        **identity(folder, folder.rank),
        "command": list(sys.orig_argv),
        "versions": versions(),
        "capture": dict(capture),
        "start": None,
        "stop": None,
        "drained": None,
        "collectors": {},
        "files": {},
        "overhead": {},
        "observer": None,
        "messages": [],
    }
