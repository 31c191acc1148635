"""What the summary says of compiled code, communication and launching: overlays of the breakdown, not classes of it.

Seconds are the mean over lanes; shares are of the step time (0-1), None without steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses.code_findings import ADVICE
from xprof_py.postprocess.analyses.roofline import COMPILED_CLASSES
from xprof_py.postprocess.hlo.kernel_names import KERNEL_LAUNCH
from xprof_py.postprocess.rules.evidence_rows import evidence_row
from xprof_py.postprocess.rules.wording import byte_rate, counted, duration, times

LEAST_SHARE = 0.005
"""Of the step time: what is less is not listed. Two runs of one program differ by more (rules/significance.py)."""
EVIDENCE_SHARE = 0.05
"""Of the step time: a finding that loses as much stands among the evidence of a compute or memory verdict."""
FINDINGS, TRANSFERS, EXCESS_OPS, PROGRAMS = 30, 30, 10, 10
MOSTLY = 2
"""One in so many step windows, at least, must be launch-bound for the verdict `host` to say so."""
KIND_WORDS = {
    "rematerialised": "computed again to save memory",
    "loop_slice": "slices in a loop",
    "transpose": "transpose of its own",
    "copy": "copy of its own",
    "bitcast_convert": "bitcast-convert of its own",
    "f32_from_bf16": "f32 matmul of values that were bf16",
    "unfused_chain": "elementwise chain not fused",
    "slow_type": "matmul in a slow type",
}
LAUNCH_BOUND_ADVICE = (
    "Launch fewer, larger programs: put the calls of the step into one jitted function, turn a Python loop into "
    "lax.scan or vmap, or run several steps in one program."
)
KERNEL_LAUNCH_ADVICE = (
    "Launch fewer, larger kernels: torch.compile or a library's fused operations make one of several, a CUDA graph "
    "launches a whole step at once, a larger batch gives each kernel more to do."
)


def compiled_code(
    tables: Mapping[str, pa.Table], shares: Mapping[str, Mapping[str, float]] | None, *, lanes: int, whole_s: float
) -> dict[str, Any]:
    """The summary's `compiled_code`: codegen excess per op and program, and the findings, ranked by time lost.

    ``tables``: code_findings, roofline and program_roofline as finished; ``shares``: the breakdown; ``whole_s``:
    seconds of the steps used. ``excess_s`` is of the steps, not the sum over ops, which run at once on some devices:
    the exclusive time of compute and memory less the ideals of all ops, at least 0. ``excess_unknown_s``: the time of
    ops whose ideal is not known; in ``excess_s`` they count as ideal, so it is a least.
    """
    roofline, findings = tables["roofline"], tables["code_findings"]
    of = roofline.filter(pc.is_in(roofline["class"], pa.array(COMPILED_CLASSES)))
    known = of.filter(pc.is_valid(of["excess_ps"]))
    unknown_ps = pc.sum(of.filter(pc.is_null(of["excess_ps"]))["total_ps"]).as_py() or 0
    excess_s = None
    if shares is not None and known.num_rows:
        ideal_ps = pc.sum(known["ideal_ps"]).as_py() or 0
        busy_s = sum(shares[name]["exclusive_s"] for name in COMPILED_CLASSES)
        excess_s = max(busy_s - (ideal_ps + unknown_ps) / 1e12 / lanes, 0.0)
    base_s = whole_s or _seconds(pc.sum(of["total_ps"]).as_py() or 0, lanes) or 0.0
    listed = [row for row in findings.to_pylist() if _weight_s(row, lanes) >= LEAST_SHARE * base_s]
    by_excess = known.sort_by(
        [("excess_ps", "descending"), *((name, "ascending") for name in ("program", "op", "source"))]
    )
    ops = [
        {
            **{name: row[name] for name in ("op", "opcode", "class", "program", "source", "op_name", "count")},
            "total_s": _seconds(row["total_ps"], lanes),
            "excess_s": _seconds(row["excess_ps"], lanes),
            "share": _share(row["excess_ps"], lanes, whole_s),
            "efficiency": row["efficiency"],
            "bound": row["bound"],
        }
        for row in by_excess.slice(0, EXCESS_OPS).to_pylist()
        if row["excess_ps"] / 1e12 / lanes >= LEAST_SHARE * base_s
    ]
    return {
        "excess_s": excess_s,
        "excess_share": excess_s / whole_s if excess_s is not None and whole_s else None,
        "excess_unknown_s": _seconds(unknown_ps, lanes),
        "programs": [
            {
                "program": row["program"],
                "excess_s": _seconds(row["excess_ps"], lanes),
                "excess_unknown_s": _seconds(row["excess_unknown_ps"], lanes),
            }
            for row in tables["program_roofline"].slice(0, PROGRAMS).to_pylist()
        ],
        "ops": ops,
        "by_kind": _by_kind(findings, lanes, whole_s),
        "findings": [_finding(row, lanes, whole_s) for row in listed[:FINDINGS]],
        "findings_left_out": findings.num_rows - len(listed[:FINDINGS]),
        "least_share": LEAST_SHARE,
    }


def _weight_s(row: Mapping[str, Any], lanes: int) -> float:
    """What a finding is ranked by: the time lost, or all of its time where that is not known."""
    return float((row["total_ps"] if row["lost_ps"] is None else row["lost_ps"]) / 1e12 / lanes)


def _by_kind(findings: pa.Table, lanes: int, whole_s: float) -> dict[str, Any]:
    """Kind -> all that it lost, the findings that are not listed included."""
    sums: dict[str, dict[str, int]] = {}
    for row in findings.to_pylist():
        entry = sums.setdefault(row["kind"], {"findings": 0, "lost": 0, "total": 0, "unknown": 0})
        entry["findings"] += 1
        entry["lost"] += row["lost_ps"] or 0
        entry["total"] += row["total_ps"]
        entry["unknown"] += row["lost_ps"] is None
    return {
        kind: {
            "findings": entry["findings"],
            "total_s": _seconds(entry["total"], lanes),
            "lost_s": _seconds(entry["lost"], lanes) if entry["unknown"] < entry["findings"] else None,
            "share": _share(entry["lost"], lanes, whole_s) if entry["unknown"] < entry["findings"] else None,
        }
        for kind, entry in sorted(sums.items(), key=lambda pair: (-pair[1]["lost"], -pair[1]["total"], pair[0]))
    }


def _finding(row: Mapping[str, Any], lanes: int, whole_s: float) -> dict[str, Any]:
    parts = row["parts"].split()
    return {
        **{name: row[name] for name in ("kind", "program", "op", "opcode", "source", "op_name", "count")},
        "parts": parts,
        "what": KIND_WORDS[row["kind"]] + (f" ({len(parts)} ops)" if parts else ""),
        "total_s": _seconds(row["total_ps"], lanes),
        "lost_s": _seconds(row["lost_ps"], lanes),
        "share": _share(row["lost_ps"], lanes, whole_s),
        "advice": ADVICE[row["kind"]],
    }


def communication(table: pa.Table, *, lanes: int, steps: int, whole_s: float) -> list[dict[str, Any]]:
    """The summary's `communication`: analyses/communication.py per kind, source and program, most exposed first."""
    out = []
    for row in table.slice(0, TRANSFERS).to_pylist():
        seconds = {name: _seconds(row[f"{name}_ps"], lanes) for name in ("exposed", "hidden", "idle", "in_flight")}
        exposed_s = seconds["exposed"] or 0.0
        out.append(
            {
                **{name: row[name] for name in ("class", "kind", "source", "program", "participants", "count")},
                "unpaired": row["unpaired"],
                **{f"{name}_s": value for name, value in seconds.items()},
                "total_s": _seconds(row["total_ps"], lanes),
                "share": _share(row["exposed_ps"], lanes, whole_s),
                "per_step_ms": exposed_s / steps * 1000 if steps else None,
                "mean_us": row["duration_ps"] / row["count"] / 1e6 if row["count"] else None,
                # Of one execution and participant.
                "bytes": None if row["bytes"] is None else int(row["bytes"]) // row["count"],
                "network_bytes": None if row["network_bytes"] is None else int(row["network_bytes"]) // row["count"],
                "bus_bytes_per_s": row["bus_bytes_per_s"],
            }
        )
    return out


def communication_evidence(rows: Sequence[Mapping[str, Any]], class_name: str) -> list[dict[str, Any]]:
    """Evidence of a collective or host_device verdict: kind and source line, what was exposed and what hidden."""
    out = []
    for row in rows:
        if row["class"] != class_name or not row["exposed_s"]:
            continue
        flight_s = row["in_flight_s"] or row["exposed_s"]
        place = f" at {row['source']}" if row["source"] else ""
        each = f", {duration(row['mean_us'] / 1e6)} each" if row["mean_us"] else ""
        text = f"{row['kind']}{place}: {times(row['count'])}{each}; {row['exposed_s'] / flight_s:.0%} of it exposed"
        if row["participants"]:
            text += f", {row['participants']} participants"
        if row["bus_bytes_per_s"]:
            text += f", {byte_rate(row['bus_bytes_per_s'])} on the bus, waiting included"
        out.append(
            evidence_row(
                "communication",
                text,
                row["exposed_s"],
                share=row["share"],
                source=row["source"] or None,
                count=row["count"],
                per_step_ms=row["per_step_ms"],
            )
        )
    return out


def finding_evidence(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Evidence of a compute or memory verdict: findings that lose EVIDENCE_SHARE or more."""
    out = []
    for row in found["findings"]:
        if row["share"] is None or row["share"] < EVIDENCE_SHARE:
            continue
        place = f" at {row['source']}" if row["source"] else ""
        text = f"{row['what']}: `{row['op']}` of `{row['program']}`{place}, {times(row['count'])}"
        more = {"share": row["share"], "source": row["source"] or None, "op": row["op"], "count": row["count"]}
        out.append(evidence_row("code", text, row["lost_s"], **more))
    return out


def launch_bound(sums: Mapping[str, Any] | None, *, lanes: int) -> dict[str, Any] | None:
    """The summary's `launch_bound` from analyses/launch_bound.py's sums; None where no step window is launch-bound.

    ``share``: of the time of the launch-bound windows, in which the device idled while the thread dispatched.
    """
    if sums is None or not sums["launch_bound"]:
        return None
    bound = sums["launch_bound"]
    return {
        "windows": sums["windows"],
        "launch_bound_windows": bound,
        "launches_per_step": sums["launches"] / bound,
        "dispatch_us": sums["dispatch_ps"] / sums["launches"] / 1e6,
        "device_us": sums["busy_ps"] / sums["runs"] / 1e6,
        "idle_s": _seconds(sums["idle_ps"], lanes),
        "idle_ms_per_step": sums["idle_ps"] / bound / 1e9,
        "share": sums["idle_ps"] / sums["window_ps"],
        "function": sums["function"] or None,
        "source": sums["source"] or None,
        "mostly": bound * MOSTLY >= sums["windows"],
        "advice": KERNEL_LAUNCH_ADVICE if KERNEL_LAUNCH.match(sums["function"]) else LAUNCH_BOUND_ADVICE,
    }


def launch_evidence(found: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The first evidence of a `host` verdict where most steps are launch-bound."""
    if found is None or not found["mostly"]:
        return []
    launches = found["launches_per_step"]
    function = f", most of them of `{found['function']}`" if found["function"] and launches > 1 else ""
    text = (
        f"launch-bound: {counted(round(launches), 'launch', 'launches')} a step{function}; dispatching one takes "
        f"{duration(found['dispatch_us'] / 1e6)}, its work on the device {duration(found['device_us'] / 1e6)}"
    )
    return [
        evidence_row(
            "launch",
            text,
            found["idle_s"],
            share=found["share"],
            source=found["source"],
            function=found["function"],
            per_step_ms=found["idle_ms_per_step"],
        )
    ]


def _seconds(ps: int | None, lanes: int) -> float | None:
    return None if ps is None else ps / 1e12 / lanes


def _share(ps: int | None, lanes: int, whole_s: float) -> float | None:
    return None if ps is None or not whole_s else ps / 1e12 / lanes / whole_s
