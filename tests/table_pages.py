"""docs/tables.md, written by `python tests/table_pages.py` from the tables of an analysis and what is said here.

A test holds that the page is what this makes, that every table and column is spoken of, and that every example runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.fleet.passes import STORED

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tables.md"
CAPTURE = ROOT / "tests" / "data" / "jax_cpu" / "collectives_4dev.xplane.pb.gz"
BEGIN = "<!-- From here on written by tests/table_pages.py -->\n"

ABOUT: Mapping[str, tuple[str, str]] = {
    "allocations": (
        "One row per allocator, step and innermost span: the device memory that was asked for there and given back",
        "select span, sum(allocated_bytes) as bytes, sum(allocations) as count from allocations group by span "
        "order by bytes desc limit 10",
    ),
    "breakdown": (
        "One row per window of a lane and class: where the time of a step (or of what lies before and after the steps) "
        "went on that lane. Exclusive times of a window sum to its length",
        "select class, sum(exclusive_ps) / 1e9 as ms from breakdown where phase = 'steady' group by class "
        "order by ms desc",
    ),
    "clock_map": (
        "One row per straight stretch of a clock against the reference clock",
        "select domain, offset_ns, drift_ppm, error_ns from clock_map order by domain, begin_ns",
    ),
    "clock_samples": (
        "One row per exchange of time stamps between two hosts (docs/probe.md)",
        "select host, peer, count(*) as exchanges, min(t4_ns - t1_ns - (t3_ns - t2_ns)) as least_round_trip_ns "
        "from clock_samples where outcome = 'answered' group by host, peer",
    ),
    "code_findings": (
        "One row per finding in compiled code: copies, unfused chains, recomputation (docs/breakdown.md)",
        "select kind, source, lost_ps / 1e9 as lost_ms, advice from code_findings order by lost_ps desc limit 10",
    ),
    "collectives": (
        "One row per execution of a collective by all of its participants",
        "select op, last_host, late_by_ns / 1e6 as late_by_ms from collectives where claimed order by late_by_ns desc "
        "limit 10",
    ),
    "communication": (
        "One row per kind of collective or copy, source line and program",
        "select kind, source, exposed_ps / 1e9 as exposed_ms, hidden_ps / 1e9 as hidden_ms from communication "
        "order by exposed_ps desc",
    ),
    "compile_passes": (
        "One row per pass of the compiler and function",
        'select pass, sum(self_ps) / 1e9 as ms from compile_passes group by "pass" order by ms desc limit 10',
    ),
    "compile_times": (
        "One row per function, stage of its compilation and step",
        "select function, stage, sum(total_ps) / 1e12 as s from compile_times group by function, stage order by s desc",
    ),
    "compiles": (
        "One row per interval of tracing, lowering or compiling",
        "select host, function, stage, duration_ps / 1e9 as ms from compiles order by duration_ps desc limit 10",
    ),
    "copies": (
        "One row per copy to, from, on or between devices",
        "select direction, count(*) as copies, sum(bytes) as bytes, sum(bytes) / sum(duration_ps) * 1e3 as gb_per_s "
        "from copies where bytes is not null group by direction",
    ),
    "copy_sizes": (
        "One row per direction of copies and phase of steps",
        "select direction, sum(known_bytes) as bytes, sum(count) as copies from copy_sizes group by direction",
    ),
    "energy": (
        "One row per step window of a lane whose device was sampled: the energy it took (docs/breakdown.md)",
        "select number, sum(energy_uj) / 1e6 as joules from energy where phase = 'steady' group by number "
        "order by number",
    ),
    "evidence": (
        "One row per cause of gaps and what shows it",
        "select cause, evidence, source, length_ps / 1e9 as ms from evidence where phase = 'steady' "
        "order by length_ps desc limit 10",
    ),
    "gap_chains": (
        "One row per piece and cause of the larger gaps of a step's window, and one per cause for what is left",
        "select step, cause, length_ps / 1e9 as ms, evidence, source, after_op from gap_chains "
        "order by length_ps desc limit 10",
    ),
    "gaps": (
        "One row per piece of a gap of a lane (cut at windows), cause and step",
        "select g.cause, s.number as caused_by_step, sum(g.length_ps) / 1e9 as ms from gaps g "
        "left join steps s on s.host = g.host and s.row = g.cause_step group by all order by ms desc limit 10",
    ),
    "host_spans": (
        "One row per name of the user's own spans",
        "select name, count, total_ps / count / 1e9 as mean_ms from host_spans where count > 0 order by total_ps desc",
    ),
    "job_breakdown": (
        "The job's view: breakdown with waits for late participants replaced by what those were doing",
        "select class, sum(exclusive_ps) / 1e9 as ms from job_breakdown where phase = 'steady' group by class "
        "order by ms desc",
    ),
    "job_steps": (
        "One row per step of the job",
        "select number, step_ps / 1e9 as ms from job_steps where phase = 'steady' order by step_ps desc limit 10",
    ),
    "lanes": (
        "One row per device of a host that ran anything",
        "select host, device, ordinal from lanes",
    ),
    "launch_bound": (
        "One row per lane and step: whether the host could not dispatch fast enough (docs/breakdown.md)",
        "select function, count(*) as steps from launch_bound where launch_bound group by function order by steps desc",
    ),
    "launches": (
        "One row per dispatch of a program by a host thread; on GPUs per call of the driver that started work",
        "select name, count(*) as launches, median(end_ps - start_ps) / 1e6 as median_us from launches group by name",
    ),
    "memory_advice": (
        "One row per change that would lower a program's peak of device memory (docs/memory.md)",
        "select program, kind, saves_bytes, source from memory_advice order by saves_bytes desc limit 10",
    ),
    "memory_alive": (
        "One row per value that is alive at the peak of a program",
        "select program, op, bytes, shape, source from memory_alive order by bytes desc limit 10",
    ),
    "memory_allocators": (
        "One row per allocator whose events the trace has",
        "select host, allocator, peak_bytes from memory_allocators",
    ),
    "memory_timeline": (
        "One row per event of an allocator, until its next one, and one per run of a program (`basis`)",
        "select device, max(bytes) as most_bytes from memory_timeline group by device",
    ),
    "network": (
        "One row per host, address that it asks and second (docs/probe.md)",
        "select host, peer, max(rtt_p99_ns) as worst_p99_ns, sum(lost) as lost from network group by host, peer",
    ),
    "op_phases": (
        "One row per part of the training (forward, backward, ...) that the operations' names say, and class",
        "select op_phase, total_ps / 1e9 as ms from op_phases order by total_ps desc",
    ),
    "op_steps": (
        "One row per host, lane and operation, with a list entry per step",
        "select op, unnest(steps) as step, unnest(total_ps) as ps from op_steps order by ps desc limit 10",
    ),
    "participants": (
        "One row per participant of a row of collectives",
        "select host, lane, sum(wait_ns) / 1e6 as ms from participants group by host, lane order by ms desc",
    ),
    "power": (
        "One row per device and moment that NVML was asked: power, energy, clocks, temperature. `hw_` names are "
        "OpenTelemetry's",
        "select host, device, avg(hw_power_mw) / 1e3 as watts, max(hw_temperature_c) as hottest, "
        "median(sm_clock_mhz) as clock_mhz from power group by host, device order by host, device",
    ),
    "program_memory": (
        "One row per compiled program: what it holds of a device's memory",
        "select program, held_bytes, temporary_bytes, source from program_memory order by held_bytes desc",
    ),
    "program_roofline": (
        "One row per compiled program: work done, against what the device can do (docs/roofline.md)",
        "select program, run_ps / runs / 1e9 as mean_ms, bound, efficiency from program_roofline where runs > 0",
    ),
    "recompiles": (
        "One row per compilation of a function that had been compiled before, and why",
        "select function, step_number, compile_ps / 1e9 as ms, kind from recompiles order by start_ps",
    ),
    "job_replay": (
        "One row per class, and one for the straggler: the job's steps replayed without it. An empty name is the "
        "replay with nothing removed",
        "select removed, (measured_ps - replayed_ps) / steps / 1e9 as saves_ms_per_step from job_replay "
        "where steps > 0",
    ),
    "rank_programs": (
        "One row per host and program that ran there, and the stage of a pipeline that the host is",
        "select stage, host, name, device_ps / 1e9 as device_ms from rank_programs order by stage, device_ps desc",
    ),
    "replay": (
        "One row per class: the steps replayed without it. An empty name is the replay with nothing removed",
        "select removed, (measured_ps - replayed_ps) / steps / 1e9 as saves_ms_per_step from replay where steps > 0",
    ),
    "roofline": (
        "One row per operation: work done, against what the device can do (docs/roofline.md)",
        "select op, source, total_ps / 1e9 as ms, bound, efficiency from roofline order by total_ps desc limit 10",
    ),
    "run_ahead": (
        "One row per lane and step: how far the host was ahead of the device",
        "select number, ahead_ps / 1e9 as ahead_ms, blocked_ps / 1e9 as blocked_ms from run_ahead "
        "order by number limit 10",
    ),
    "runs": (
        "One row per execution of a program on a lane",
        "select l.name, count(*) as runs, median(r.end_ps - r.start_ps) / 1e9 as median_ms from runs r "
        "join launches l on l.host = r.host and l.row = r.launch group by l.name",
    ),
    "step_classes": (
        "One row per window of a lane, a column per class: the breakdown as one looks at it",
        "select number, window_ps / 1e9 as ms, 100 * compute_ps / window_ps as compute_percent from step_classes "
        "where kind = 'step' order by lane, number limit 10",
    ),
    "steps": (
        "One row per step of a host: outermost ones in order of start, then nested ones",
        "select number, phase, reason, (end_ps - start_ps) / 1e9 as host_ms from steps order by number limit 10",
    ),
    "straggler_reasons": (
        "One row per rank, class, reason and source line: what a late rank did more than the second last. The rows of "
        "a rank and class sum to its row of stragglers",
        "select host, class, reason, source, length_ps / 1e9 as ms from straggler_reasons order by length_ps desc",
    ),
    "stragglers": (
        "One row per rank: how often it came last to collectives, and what that cost",
        "select host, lane, times_last, lost_ns / 1e6 as lost_ms, cause from stragglers order by lost_ns desc",
    ),
    "throughput": (
        "One row per name of steps: what they did in all",
        "select name, tokens / (device_ps / 1e12) as tokens_per_device_second from throughput where device_ps > 0",
    ),
    "throttling": (
        "One row per step window of a lane whose device was sampled: what clocks that were held down cost "
        "(docs/breakdown.md)",
        "select number, lost_ps / 1e9 as lost_ms, reference_mhz from throttling where lost_ps > 0 "
        "order by lost_ps desc",
    ),
    "top_ops": (
        "One row per operation of a program",
        "select op, opcode, source, total_ps / 1e9 as ms, count from top_ops order by total_ps desc limit 10",
    ),
    "windows": (
        "One row per window of a lane: head, steps and tail tile the capture, nested ones lie in steps",
        "select w.lane, w.kind, s.number, (w.end_ps - w.start_ps) / 1e9 as ms from windows w "
        "left join steps s on s.host = w.host and s.row = w.step order by w.lane, w.start_ps limit 10",
    ),
}
"""What a row is, and an example."""

OF_JOBS = frozenset(
    {
        *("collectives", "participants", "rank_programs", "job_breakdown", "job_steps", "job_replay"),
        *("stragglers", "straggler_reasons"),
    }
)
"""Tables that an analysis of one lane does not have."""

_OP = "the operation's name in its program"
COLUMNS: Mapping[str, str] = {
    "host": "the process, by the name that reports show",
    "lane": "row of `lanes` of the host",
    "window": "row of `windows` of the host",
    "step": "row of `steps` of the host; null: of no step",
    "row": "this row's number in the host's table; what other tables refer to",
    "kind": "of what kind it is; of windows: step, head, tail, nested",
    "name": "of the step, program or span",
    "number": "the step's number",
    "occurrence": "which of several steps of one name and number, from 0",
    "phase": "of the step: warmup, steady, outlier, partial, unmeasured",
    "reason": "why the step has its phase, empty for steady; of a straggler, what it did",
    "start_ps": "since the host's profile began",
    "end_ps": "since the host's profile began; null: still open when it ended",
    "duration_ps": "null: still open when the profile ended",
    "window_ps": "the window's length",
    "class": "compute, memory, collective, host_device, or a cause of gaps (docs/breakdown.md)",
    "exclusive_ps": "it won the overlap",
    "total_ps": "in all; of the breakdown: covered by others or not",
    "foreign_ps": "exclusive time of work of other steps",
    "domain": "the clock",
    "begin_ns": "start of the stretch, on this clock (UTC)",
    "end_ns": "on fleet time, or of the stretch on its clock (UTC)",
    "offset_ns": "how far the clock is ahead of the reference at the stretch's start",
    "drift_ppm": "how much faster it runs than the reference",
    "error_ns": "half-width; null: no bound is known",
    "method": "how it was found",
    "peer": "the host that answered, null where it is not known",
    "session": "random number of the process's prober",
    "peer_session": "of the one that answered",
    "address": "that was asked",
    "outcome": "answered, lost, refused, not_sent",
    **{f"t{i}_ns": f"CLOCK_REALTIME at stamp {i} (docs/probe.md)" for i in range(1, 5)},
    **{f"m{i}_ns": f"CLOCK_MONOTONIC at stamp {i}" for i in range(1, 5)},
    "wait2_ns": "how long the packet had lain in the kernel at stamp 2",
    "wait4_ns": "how long the packet had lain in the kernel at stamp 4",
    "program": "the compiled program (module)",
    "op": _OP,
    "opcode": "HLO opcode, empty without HLO",
    "source": "file:line in the user's code, or what states the value",
    "op_name": "JAX's name stack of the operation",
    "parts": "the operations that make up the finding",
    "lost_ps": "what it costs in all; of throttling null: not known",
    "count": "how many",
    "advice": "what to do",
    "collective": "number of the collective's execution in the job",
    "bytes": "null: not stated",
    "participants": "how many it has, by its program or trace",
    "seen": "how many of them are in the profiles",
    "synchronising": "whether all wait for the last",
    "first_start_ns": "fleet time of the first arrival",
    "last_start_ns": "fleet time of the last arrival",
    "first_end_ns": "fleet time at which the first left",
    "last_end_ns": "fleet time at which the last left",
    "last_host": "who came last",
    "last_lane": "its lane",
    "late_by_ns": "how much later the last came than the one before it",
    "bound_ns": "how much of that the clocks' error could be",
    "claimed": "whether who came last is sure",
    "transfer_ns": "from the last arrival to the first end",
    "bus_bytes_per_s": "network bytes over the time",
    "unpaired": "starts without a done",
    "exposed_ps": "its class won: nothing was computed meanwhile",
    "in_flight_ps": "from start to done",
    "idle_ps": "the device idled meanwhile",
    "hidden_ps": "something else ran meanwhile",
    "network_bytes": "what a participant must send",
    "function": "the Python function",
    "module": "the module that was compiled",
    "pass": "of the compiler",
    "self_ps": "without the passes inside",
    "longest_ps": "the longest one",
    "stage": "trace, lower, compile; of a pipeline: its number, equal for hosts that run the same programs",
    "step_name": "of the step it lies in",
    "step_number": "of the step it lies in; null: in none",
    "line": "the thread, as a row of the profile's lines",
    "event": "row of the profile's events; null: none",
    "put": "event of the call that began the copy; null: not known",
    "device": "the device; of power, energy and throttling NVML's index of it",
    "direction": "to_device, to_host, on_device, between_devices, unknown",
    "known_count": "copies whose bytes and duration are known",
    "known_bytes": "their bytes",
    "known_ps": "their durations",
    "cause": "of the gap, or of what went wrong",
    "evidence": "the host span or source line that shows it",
    "length_ps": "how much of the gap it is",
    "pieces": "how many pieces are added up",
    "gap": "which of the step's larger gaps; null: all the others",
    "cause_step": "the step whose host work it was, as `step`",
    "sampled": "the evidence is the place of a sampled stack",
    "event_start_ps": "of the host span that is the evidence",
    "event_duration_ps": "of the host span that is the evidence",
    "before_op": "the operation before the gap",
    "before_source": "its source line",
    "after_op": "the operation that ends the gap",
    "after_source": "its source line",
    "program_source": "source line of the program that ends the gap",
    "join": "how run and launch were joined: id, order, steps_line, inferred, ambiguous, none",
    "thread": "the launching thread",
    "launch_start_ps": "of the launch of what ends the gap",
    "launch_end_ps": "of the launch of what ends the gap",
    "launch_step": "the step of that launch, as `step`",
    "launch": "row of `launches` of the host; null: none is joined",
    "uuid": "of the device, as NVML writes it",
    "energy_uj": "null: not sampled from before its start to after its end",
    "start_error_uj": "how far the energy at its start can be off; null: not known",
    "end_error_uj": "the same at its end, which is the next window's start",
    "time_ps": "since the host's profile began",
    "hw_power_mw": "hw.power. Null here and below: the device does not tell",
    "hw_energy_mj": "since the driver was loaded; hw.energy",
    "hw_temperature_c": "degrees Celsius; hw.temperature",
    "hw_gpu_utilization_percent": "of NVML's last sample period, in which a kernel ran; hw.gpu.utilization",
    "hw_gpu_memory_usage_bytes": "hw.gpu.memory.usage",
    "memory_busy_percent": "of NVML's last sample period, in which memory was read or written",
    "sm_clock_mhz": "of the multiprocessors",
    "memory_clock_mhz": "of the memory",
    "clock_reasons": "bits of nvmlClocksEventReasons: why the clock is not higher",
    "reference_mhz": "the clock at which kernels run when nothing holds it down; null: not known",
    "thermal_lost_ps": "of the lost time, by temperature",
    "power_lost_ps": "of the lost time, by power",
    "hardware_lost_ps": "of the lost time, by hardware that names no cause",
    "kernel_ps": "kernels ran",
    "limited_ps": "kernels ran and something held clocks down",
    "throttled_ps": "kernels ran slower than their median at a clock that was held down",
    "unjudged_ps": "at such a clock ran kernels that never ran at full clock",
    "stack": "sampled stack that is the evidence; null: none",
    "still_open": "spans that were open when the profile ended",
    "hosts": "how many hosts have the step",
    "step_ps": "the job's step time",
    "ordinal": "the device's number",
    "busy_ps": "device time",
    "launches": "how many",
    "runs": "how many",
    "dispatch_ps": "time in calls that dispatch",
    "launch_bound": "whether it is",
    "function_launches": "launches of `function`",
    "run_id": "XLA's id of the run; null: none is stated",
    "program_id": "XLA's id of the program",
    "rank": "place among equal ones",
    "saves_bytes": "how much lower the peak would be",
    "shape": "type and dimensions",
    "parameter_number": "which parameter of the program; null: none",
    "idle_after": "operation after which nothing reads it for a while",
    "idle_until": "operation that reads it again",
    "output": "output that could take its memory",
    "padding_bytes": "part of bytes that is padding",
    "live_from": "operation that makes it",
    "live_to": "operation that reads it last",
    "allocator": "its name",
    "host_memory": "whether it is memory of the host",
    "peak_bytes": "the most in use",
    "at_ps": "when that was",
    "ever_peak_bytes": "the most since the program began",
    "start_bytes": "in use when the profile began",
    "events": "how many",
    "basis": "what the numbers come from",
    "changed_bytes": "against the row before",
    "allocations": "times that memory was asked for",
    "allocated_bytes": "what the allocator took for them, its rounding included",
    "span": "the innermost span of the program's around it on its thread; null: none",
    "frees": "times that memory was given back",
    "freed_bytes": "what was given back there, wherever it was allocated",
    "pool_bytes": "what the allocator held of the device, in use or not; null: not told",
    "start_ns": "UTC, or fleet time",
    "sent": "requests",
    "answered": "of them",
    "lost": "of them",
    "refused": "of them",
    "not_sent": "of them",
    "rtt_min_ns": "round trips",
    "rtt_median_ns": "round trips",
    "rtt_p99_ns": "round trips",
    "responder_delay_median_ns": "delay in the peer",
    "responder_delay_max_ns": "delay in the peer",
    "prober_delay_median_ns": "delay in the asker",
    "prober_delay_max_ns": "delay in the asker",
    "round_trip_median_ns": "without both delays",
    "op_phase": "forward, backward, remat, optimizer; null: none of these",
    "steps": "how many; of op_steps: rows of `steps` of the host",
    "wait_ns": "last arrival less own arrival",
    "sure": "whether the arrival is certain",
    "held_bytes": "while it runs",
    "live_bytes": "most that is alive at once",
    "packing_bytes": "held and not alive",
    "argument_bytes": "of the held bytes",
    "output_bytes": "of the held bytes",
    "donated_bytes": "arguments whose memory becomes an output's",
    "temporary_bytes": "of the held bytes",
    "constant_bytes": "of the held bytes",
    "live_temporary_bytes": "alive at the peak",
    "host_bytes": "in the host's memory",
    "alive_left_out": "values at the peak that memory_alive leaves out",
    "alive_left_out_bytes": "their bytes",
    "flops": "null: not known",
    "computing_ps": "what the arithmetic needs at the device's peak",
    "moving_ps": "what the bytes need at the device's bandwidth",
    "network_ps": "what the network needs",
    "ideal_ps": "the longest of these",
    "flops_per_s": "reached",
    "bytes_per_s": "reached",
    "bound": "compute or memory: which takes longer",
    "efficiency": "ideal over measured",
    "run_ps": "of all runs",
    "hlo_flops": "by the compiled programs",
    "hlo_bytes": "by the compiled programs",
    "excess_ps": "measured less ideal",
    "excess_unknown_ps": "time of operations whose ideal is not known",
    "compile_ps": "of the compilation alone",
    "result_was": "shape of the result before",
    "result_is": "shape of the result now",
    "compared_with": "program id of the one before",
    "match": "how compilation and program were matched: launch, order, none",
    "removed": "the class that was taken away, or `straggler`",
    "measured_ps": "all steps as they were",
    "replayed_ps": "all steps without it",
    "ahead_ps": "from launch to start of the step's first run",
    "ahead_runs": "runs that had not ended at the launch",
    "ahead_steps": "other steps that these belong to",
    "blocked_ps": "the host waited for the device",
    "parent": "row of `steps` around a nested step",
    "tokens": "that `step` was given",
    "model_flops": "that `step` was given",
    "of_steps": "how many steps count",
    "times_last": "how often it came last",
    "share": "of the steps, those in which it lost most",
    "lost_ns": "what coming last cost",
    "p": "chance that one of equal ranks loses most so often",
    "matmul_type": "type of most matrix products",
    "peak_flops_per_s": "of the devices, in that type",
    "matmul_flops": "of matrix products",
    "tokens_known": "steps that say their tokens",
    "model_flops_known": "steps that say their flops",
    "per_token": "steps whose model flops are their tokens times a setting",
    "runs_known": "runs whose flops are known",
    "device_ps": "the steps' windows, summed over lanes",
    "mean_ps": "per execution",
}
"""What a column is, whatever its table."""


def _unit(name: str) -> str:
    for ending, unit in (
        ("bytes_per_s", "B/s"),
        ("flops_per_s", "FLOP/s"),
        ("_ps", "ps"),
        ("_ns", "ns"),
        ("bytes", "B"),
        ("flops", "FLOP"),
        ("_ppm", "ppm"),
        ("_uj", "uJ"),
        ("_mj", "mJ"),
        ("_mw", "mW"),
        ("_mhz", "MHz"),
        ("_percent", "%"),
    ):
        if name.endswith(ending):
            return unit
    return "0 to 1" if name in ("share", "efficiency", "p") else ""


def _type(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type)
    if pa.types.is_list(kind):
        return f"list of {_type(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "struct of " + ", ".join(field.name for field in kind)
    return "int128" if pa.types.is_decimal(kind) else str(kind)


def meaning(table: str, column: str) -> str | None:
    """What a column is; None where nothing says it."""
    if column.endswith("_ps") and column[:-3] in ("compute", "memory", "collective", "host_device"):
        return "exclusive time of the class"
    if table in ("step_classes", "stragglers") and column.endswith("_ps") and column not in COLUMNS:
        return "time of the cause"
    return COLUMNS.get(column)


def schemas(tables: Mapping[str, pa.Table]) -> dict[str, pa.Schema]:
    """The tables of an analysis as `query` shows them."""
    found = {}
    for name, table in sorted(tables.items()):
        extra = [pa.field("row", pa.int64())] if name in STORED else []
        found[name] = pa.schema([*table.schema, *extra])
    return found


def page(found: Mapping[str, pa.Schema]) -> str:
    """The generated part: the tables, then what their columns are."""
    lines = [BEGIN]
    said: dict[str, str] = {}
    for name, schema in found.items():
        about, example = ABOUT[name]
        about += ". Only where several lanes were profiled" if name in OF_JOBS else ""
        lines += [f"## {name}\n", f"{about}.\n", f"    {example}\n"]
        lines += [", ".join(f"`{field.name}` {_type(field.type)}" for field in schema) + "\n"]
        for field in schema:
            said.setdefault(field.name, meaning(name, field.name) or "")
    lines += ["## Columns\n", "| column | unit | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{column}` | {_unit(column)} | {said[column]} |" for column in sorted(said)]
    return "\n".join(lines) + "\n"


def write_page() -> None:
    """Replace what follows the marker."""
    kept = PAGE.read_text(encoding="utf-8").split(BEGIN)[0]
    PAGE.write_text(kept + page(schemas(analyse([CAPTURE]).tables)), encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("XPROF_PY_CALIBRATE", "0")
    write_page()
