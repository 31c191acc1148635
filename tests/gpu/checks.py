"""What must hold on a GPU, each claim a function over what was recorded; they judge what the doubles record, too.

Each returns its figures, by names that carry units, and raises AssertionError in words where the claim does not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import pyarrow as pa

from gpu.device_rows import kernels_of
from xprof_py.postprocess.profile import Profile

Figures = dict[str, Any]

FIRST_SHARED_CUPTI = 130300
FIRST_SHARED_DRIVER = 610
"""CUPTI serves several tools from these releases on (CUPTI 13.4 manual, 2.2.2)."""
LEAST_HIT_SHARE = 0.99
MOST_SLOWDOWN = 1.10
MOST_CLOCK_OFFSET_NS = 1_000_000
MOST_EARLY_PS = 2_000_000
"""A kernel may seem to begin this much before its call, as the device's clock is fitted to the host's."""
POWER_PERIOD_NS = 100_000_000
MOST_POWER_SHARE = 0.01


def cupti_takes_us(found: Mapping[str, Any], driver_release: int | None) -> Figures:
    """1. CUPTI subscribes us, shared where driver and library can.

    Args:
        found: what ``collectors.cuda.check`` returns.
        driver_release: 580 of driver 580.159.03; None where NVML does not tell.
    """
    assert not found["why"], f"CUPTI does not take us: {found['why']}"
    can_share = found["version"] >= FIRST_SHARED_CUPTI and (driver_release or 0) >= FIRST_SHARED_DRIVER
    assert found["shared"] or not can_share, f"not shared although both can: {found['notes']}"
    return {"library": found["library"], "cupti": found["version"], "shared": found["shared"], "notes": found["notes"]}


def records_are_sane(profile: Profile, entry: Mapping[str, Any], launched: Mapping[str, int]) -> Figures:
    """2. Every launch is one kernel of its name, of a length, after its call; the clocks agree.

    Args:
        entry: ``collectors.cuda`` of the run file.
        launched: how often each kernel was launched, by its name.
    """
    kernels = kernels_of(profile)
    counted = Counter(kernels.name)
    assert counted == Counter(launched), f"recorded {dict(counted)}, launched {dict(launched)}"
    assert (kernels.launch >= 0).all(), f"{int((kernels.launch < 0).sum())} kernels have no launch"
    assert (kernels.duration_ps > 0).all(), f"{int((kernels.duration_ps <= 0).sum())} kernels have no length"
    early_ps = int((kernels.launch_start_ps - kernels.start_ps).max(initial=0))
    assert early_ps <= MOST_EARLY_PS, f"a kernel begins {early_ps} ps before its call"
    offset = entry["clock_offset_ns"]
    assert entry["clock_width_ns"] >= 0, "CUPTI's clock could not be read"
    assert abs(offset) <= MOST_CLOCK_OFFSET_NS, f"CUPTI's clock is {offset} ns off"
    delays = kernels.start_ps - kernels.launch_start_ps
    return {
        "kernels": len(kernels),
        "clock_offset_ns": offset,
        "clock_width_ns": entry["clock_width_ns"],
        "earliest_before_call_ps": early_ps,
        "launch_to_start_median_us": round(median(delays.tolist()) / 1e6, 1),
    }


def kernels_find_their_place(profile: Profile, planted: Mapping[str, Sequence[Any]]) -> Figures:
    """2. Every kernel lies under the span, in the step and on the stream that it was launched in.

    ``planted``: (span, step, stream) by the kernel's name; streams have names of the program's, each one on the device.
    """
    kernels = kernels_of(profile)
    found = {name: (span, step) for name, span, step in zip(kernels.name, kernels.span, kernels.step, strict=True)}
    wrong = {name: found.get(name) for name, (span, step, _) in planted.items() if found.get(name) != (span, step)}
    assert not wrong, f"{len(wrong)} of {len(planted)} kernels are elsewhere: {dict(list(wrong.items())[:3])}"
    pairs = {(planted[name][2], on) for name, on in zip(kernels.name, kernels.stream, strict=True) if name in planted}
    streams, lines = {stream for stream, _ in pairs}, {line for _, line in pairs}
    assert len(pairs) == len(streams) == len(lines), f"streams are mixed up: {sorted(pairs)}"
    return {"placed": len(planted), "streams": len(streams)}


def launches_carry_their_range(profile: Profile, planted: Mapping[str, str]) -> Figures:
    """3. XLA's range around a launch reaches the launch's kernel, through CUPTI's external correlation.

    ``planted``: the op that the range named, by the kernel's name.
    """
    kernels = kernels_of(profile)
    told = {name: op for name, op in zip(kernels.name, kernels.stated_op, strict=True) if name in planted}
    wrong = {name: told.get(name) for name, op in planted.items() if told.get(name) != op}
    assert not wrong, (
        f"{len(wrong)} of {len(planted)} kernels have another range or none: {dict(list(wrong.items())[:3])}"
    )
    return {"with_range": len(planted)}


def kernels_find_their_ops(profile: Profile) -> Figures:
    """3. Kernels of XLA's programs know their HLO instruction; how they found it (``ops.join``) is counted."""
    kernels = kernels_of(profile)
    assert len(kernels), "no kernel was recorded"
    ways = Counter(kernels.join)
    share = sum(op is not None for op in kernels.hlo_op) / len(kernels)
    assert share >= LEAST_HIT_SHARE, f"{share:.1%} of {len(kernels)} kernels know their op: {dict(ways)}"
    return {
        "kernels": len(kernels),
        "hit_share": round(share, 4),
        **{f"by_{way}": n for way, n in sorted(ways.items())},
    }


def graph_nodes_are_told(profile: Profile, planted: Mapping[str, str]) -> Figures:
    """4. The kernels of a CUDA graph know the range in which their node was made: ``planted``, op by kernel name."""
    kernels = kernels_of(profile)
    rows = [row for row, name in enumerate(kernels.name) if name in planted]
    assert {kernels.name[row] for row in rows} == set(planted), "kernels of the graph are missing"
    wrong = [row for row in rows if kernels.node_op[row] != planted[kernels.name[row]]]
    assert not wrong, (
        f"{len(wrong)} of {len(rows)} have another op or none: {Counter(kernels.node_op[row] for row in wrong)}"
    )
    return {"graph_kernels": len(rows)}


def one_has_the_devices(seen: Mapping[str, Any]) -> Figures:
    """5, 7. Another profiler works before and after us; meanwhile somebody has the kernels; if not we, it is said why.

    ``seen``: kernels that it has ``alone``, ``beside`` us and ``after``; ``ours`` beside it, and ``why`` where none.
    """
    assert seen["alone"], "the other profiler sees nothing even alone"
    assert seen["after"], "the other profiler sees nothing after us: we left something behind"
    assert seen["ours"] or seen["beside"], "nobody has the kernels while both are on"
    assert seen["ours"] or seen["why"], "ours has no kernels and does not say why"
    who = "both" if seen["ours"] and seen["beside"] else "ours" if seen["ours"] else "theirs"
    return {**seen, "beside_each_other": who}


def overhead_is_bounded(step_ms: Mapping[str, Sequence[float]], lost: int, **more_ns: float) -> Figures:
    """6. A step is at most MOST_SLOWDOWN as long as without us, and nothing was lost meanwhile.

    Args:
        step_ms: ms of steps by how they were recorded; ``off`` is one of the keys.
        lost: records that were lost in them.
        more_ns: further costs, by name: figures without a bound.
    """
    few = {how: len(steps) for how, steps in step_ms.items() if len(steps) < 10}
    assert not few, f"too few steps to say anything: {few}"
    assert not lost, f"{lost} records were lost: what remains is no measure of recording all"
    of = {how: median(steps) for how, steps in step_ms.items()}
    ratios = {how: of[how] / of["off"] for how in of if how != "off"}
    slow = {how: round(ratio, 3) for how, ratio in ratios.items() if ratio > MOST_SLOWDOWN}
    assert not slow, f"steps are longer by more than {MOST_SLOWDOWN:.2f}: {slow}"
    figures: Figures = {f"step_{how}_ms": round(value, 4) for how, value in of.items()}
    figures |= {f"{how}_over_off": round(ratio, 4) for how, ratio in ratios.items()}
    return figures | {f"{name}_ns": round(value, 1) for name, value in more_ns.items()}


def nvml_is_quick(calls_ns: Mapping[str, Sequence[int]], overhead: Mapping[str, Any]) -> Figures:
    """8. A look at a device costs no more of the sampler's period than it may: then none has to be put off.

    Args:
        calls_ns: how long calls took, by name: those that one look makes.
        overhead: ``overhead.power`` of a run file.
    """
    assert overhead["looks"], "the sampler took no look"
    assert not overhead["failed_calls"], f"{overhead['failed_calls']} calls failed"
    look_ns = sum(median(took) for took in calls_ns.values())
    assert look_ns < POWER_PERIOD_NS, f"a look takes {look_ns / 1e6:.0f} ms, longer than the period"
    share = overhead["cpu_ns"] / overhead["wall_ns"]
    assert share <= 2 * MOST_POWER_SHARE, f"the sampler took {share:.2%} of a core"
    figures = {f"{name}_median_us": round(median(took) / 1000, 1) for name, took in calls_ns.items()}
    longest = max(calls_ns, key=lambda name: max(calls_ns[name]))
    return figures | {
        "longest_call": longest,
        "longest_us": round(max(calls_ns[longest]) / 1000, 1),
        "sampler_core_share": round(share, 5),
        "looks": overhead["looks"],
        "postponed": overhead["postponed"],
    }


def programs_are_there(programs: pa.Table, names: Sequence[str]) -> Figures:
    """9. The programs that ran are stored, with their HLO, under XLA's own numbers."""
    stored = {row["name"]: row for row in programs.to_pylist()}
    missing = [name for name in names if name not in stored]
    assert not missing, f"not stored: {missing}; there are {sorted(stored)}"
    empty = [name for name in names if not stored[name]["hlo"]]
    assert not empty, f"stored without HLO: {empty}"
    assert all(stored[name]["program_id"] for name in names), "a program has no number"
    return {"programs": len(stored), "bytes": sum(len(row["hlo"] or b"") for row in stored.values())}


def plugin_traces_the_device(profile: Profile) -> Figures:
    """10. What a PJRT plugin's profiler gives holds the device's kernels, most of them with their op."""
    kernels = kernels_of(profile)
    assert len(kernels), "the plugin's profile has no kernel of a GPU"
    with_op = sum(op is not None for op in kernels.hlo_op)
    assert with_op / len(kernels) >= LEAST_HIT_SHARE, f"{with_op} of {len(kernels)} kernels have an op"
    return {"kernels": len(kernels), "with_op": with_op}
