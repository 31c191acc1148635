"""summary.json: the answer of one analysis as one JSON object, from finished tables. Fields stay; more may come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.analyses import breakdown
from xprof_py.postprocess.analyses import launch_bound as launching
from xprof_py.postprocess.analyses.phases_of_ops import PHASES
from xprof_py.postprocess.join.gaps import REASONS
from xprof_py.postprocess.rules import code_rows
from xprof_py.postprocess.rules import verdict as verdict_rule
from xprof_py.postprocess.rules.caveat import caveat
from xprof_py.postprocess.rules.copy_words import copy_advice, copy_evidence, copy_rows
from xprof_py.postprocess.rules.evidence_rows import MOST_ROWS, rows_by_class
from xprof_py.postprocess.rules.memory_rows import memory_summary, memory_unknown
from xprof_py.postprocess.rules.observer import observer_notes, observer_summary
from xprof_py.postprocess.rules.power_words import power_summary, throttling_advice
from xprof_py.postprocess.rules.recompile_words import summary_rows
from xprof_py.postprocess.rules.roofline_rows import roofline_summary, with_roofline
from xprof_py.postprocess.rules.run_ahead_words import run_ahead_summary, unblock_advice
from xprof_py.postprocess.rules.sampler_words import sampler_advice
from xprof_py.postprocess.rules.stages import stage_rows
from xprof_py.postprocess.rules.straggler import straggler
from xprof_py.postprocess.rules.throughput import throughput_summary
from xprof_py.postprocess.rules.unknown_words import unknown_advice
from xprof_py.postprocess.rules.wording import CLASS_WORDS
from xprof_py.postprocess.schema import CLASSES, SCHEMA_VERSION

TOP_OPS = 20
SLOWEST = 5
UNKNOWN_ROWS = 8
RECOMPILES = 64
PASSES = 10
UNALIGNED_NAMED = 4


def build_summary(
    *,
    processes: Sequence[dict[str, Any]],
    tables: Mapping[str, pa.Table],
    diagnostics: Sequence[dict[str, Any]],
    clocks: Sequence[dict[str, Any]],
    missing: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Build the summary.

    ``processes``: one dict per process (host, hostname, process_index, devices, source, capture, overhead, stacks,
    peaks, steps_source, observer, format).
    ``tables``: what the analyses finished, by name (fleet/questions.py), and those of the job (fleet/job.py).
    ``missing``: steps that a host does not have. ``clocks``: a row per process (clocks/clock_map.py).
    """
    merged, step_classes, ops = tables["breakdown"], tables["step_classes"], tables["top_ops"]
    phases = breakdown.used_phases(merged)
    steps = step_classes.filter(pc.equal(step_classes["kind"], "step"))
    # With clocks that match, lanes' waiting is handed on to whom they waited for (docs/breakdown.md).
    shares = breakdown.shares(tables.get("job_breakdown", merged), phases)
    counts = _step_counts(steps, phases)
    counts["missing"] += missing
    if 2 * counts["phases"]["unmeasured"] > counts["count"]:
        # What most steps did is not known: the few others are no sample of them.
        shares = None
    used = steps.filter(pc.is_in(steps["phase"], pa.array(phases)))
    lanes = max(merged.group_by(["host", "lane"]).aggregate([]).num_rows, 1)
    step_ps = breakdown.step_times_ps(step_classes, phases)
    main_steps = _of_main_name(steps, phases)
    main_name = main_steps["name"][0].as_py() if main_steps.num_rows else None
    main_step_ps = breakdown.step_times_ps(step_classes, phases, main_name) if main_name is not None else []
    if "job_steps" in tables and main_name is not None:
        main_step_ps = _of_job(tables["job_steps"], main_name, phases) or main_step_ps
    late = straggler(tables.get("stragglers"), tables.get("straggler_reasons"), main_step_ps)
    predicted = verdict_rule.prediction(tables.get("job_replay", tables["replay"]))
    notes = list(diagnostics)
    if shares is None:
        notes.append(_no_steps(steps, notes, processes))
    observer = observer_summary(processes)
    notes += observer_notes(observer)
    unaligned = [row["host"] for row in clocks if row["status"] == "unaligned"]
    if unaligned:
        notes.append(_unaligned(unaligned))
    memory = memory_summary(tables)
    if memory is None:
        notes.append(memory_unknown())
    whole_s = sum(line["exclusive_s"] for line in shares.values()) if shares else 0.0
    code = code_rows.compiled_code(tables, shares, lanes=lanes, whole_s=whole_s)
    moved = code_rows.communication(tables["communication"], lanes=lanes, steps=len(step_ps), whole_s=whole_s)
    launched = code_rows.launch_bound(launching.over_steps(tables["launch_bound"], phases), lanes=lanes)
    code_evidence = code_rows.finding_evidence(code)
    evidence = rows_by_class(
        gaps=tables["evidence"],
        ops=ops,
        spans=tables["host_spans"],
        compiles=tables["compile_times"],
        recompiles=tables["recompiles"],
        phases=phases,
        steps=len(step_ps),
        lanes=lanes,
        whole_s=whole_s,
        first={
            "compute": code_evidence[:1],
            "memory": code_evidence[:1],
            "collective": code_rows.communication_evidence(moved, "collective"),
            "host_device": code_rows.communication_evidence(moved, "host_device"),
            "host": code_rows.launch_evidence(launched),
        },
    )
    ahead = run_ahead_summary(tables["run_ahead"], phases)
    copies = copy_rows(tables["copy_sizes"], phases)
    power = power_summary(tables["energy"], tables["throttling"], main_name, phases, lanes)
    evidence["host_device"] = [*copy_evidence(copies), *evidence["host_device"]][:MOST_ROWS]
    return {
        "schema_version": SCHEMA_VERSION,
        "hosts": [{k: p[k] for k in ("host", "hostname", "process_index", "devices", "source")} for p in processes],
        "capture": processes[0]["capture"] if processes else None,
        "steps": {**counts, "source": _steps_source(processes)},
        "step_ms": _quantiles(main_step_ps),
        "breakdown": shares,
        "lanes": _lanes(merged, phases, processes),
        "outside_steady": breakdown.outside(merged, phases),
        "verdict": _verdict(
            shares,
            predicted,
            evidence,
            processes,
            launched,
            ahead,
            copies,
            power,
            caveat(notes, counts),
            unknown_advice(tables["evidence"], phases),
        ),
        "run_ahead": ahead,
        "copies": copies,
        "accounted": 1.0 - shares["unknown"]["share"] if shares else None,
        "predictions": _predictions(predicted, late),
        "clocks": list(clocks),
        "straggler": late,
        "stages": stage_rows(tables.get("rank_programs")),
        "top_ops": with_roofline(_top_ops(ops, lanes, whole_s), ops.slice(0, TOP_OPS), tables["roofline"], lanes),
        "compiled_code": code,
        "communication": moved,
        "launch_bound": launched,
        "roofline": roofline_summary(
            processes,
            tables["roofline"],
            tables["program_roofline"],
            window_ps=int(pc.sum(used["window_ps"]).as_py() or 0),
            lanes=lanes,
        ),
        "memory": memory,
        "throughput": throughput_summary(tables["throughput"], main_name, main_step_ps),
        "power": power,
        "op_phases": _op_phases(tables["op_phases"], lanes),
        "compiles": {
            **_compiles(tables["compile_times"]),
            **_recompiles(tables["recompiles"]),
            "passes": _passes(tables["compile_passes"]),
        },
        "slowest_steps": _slowest(steps),
        "unknown": _unknown(tables["evidence"], phases, lanes, whole_s),
        "overhead": _overhead(processes),
        "observer": observer,
        "diagnostics": _counted(notes),
    }


def _verdict(
    shares: dict[str, dict[str, float]] | None,
    predicted: verdict_rule.Prediction | None,
    evidence: dict[str, list[dict[str, Any]]],
    processes: Sequence[dict[str, Any]],
    launched: dict[str, Any] | None,
    ahead: dict[str, Any] | None,
    copies: list[dict[str, Any]],
    power: dict[str, Any] | None,
    lost: str | None,
    of_unknown: str | None,
) -> dict[str, Any] | None:
    if shares is None:
        return None
    advice = {"host": launched["advice"]} if launched is not None and launched["mostly"] else {}
    if of_unknown is not None:
        advice["unknown"] = of_unknown
    has_device = any(p["devices"] for p in processes)
    found = verdict_rule.verdict(shares, predicted, evidence, has_device=has_device, advice=advice)
    name = found["bottleneck"]
    more = unblock_advice(name, ahead, found["step_ms"]) + copy_advice(name, copies) + sampler_advice(name, processes)
    more += throttling_advice(power)
    return {**found, "caveat": lost, "advice": found["advice"] + more}


def _no_steps(steps: pa.Table, notes: Sequence[dict[str, Any]], processes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if steps.num_rows:
        unmeasured = steps.filter(pc.equal(steps["phase"], "unmeasured"))["reason"].to_pylist()
        reason = Counter(unmeasured).most_common(1)
        why = f"{len(unmeasured)} of {steps.num_rows} steps could not be measured" + (
            f": {reason[0][0]}" if reason else ""
        )
    else:
        refused = [note["message"] for note in notes if note["code"] == "steps_not_inferred"]
        how = "put `with step(i):` around the body of the loop"
        if processes and all(process.get("format") == "chrome_json" for process in processes):
            how = "call `step()` of torch.profiler's profile at the end of the body of the loop"
        why = f"no steps: {how}, without it there is no breakdown"
        why = refused[0] if refused else why
    return {"severity": "warning", "code": "no_steps", "file": "", "place": "", "count": 1, "message": why}


def _steps_source(processes: Sequence[dict[str, Any]]) -> str | None:
    """annotated, inferred, or "annotated and inferred" where processes differ; None without steps."""
    found = {source for process in processes if (source := process.get("steps_source")) is not None}
    return " and ".join(sorted(found)) or None


def _unaligned(hosts: Sequence[str]) -> dict[str, Any]:
    some = ", ".join(hosts[:UNALIGNED_NAMED]) + (" and others" if len(hosts) > UNALIGNED_NAMED else "")
    message = (
        f"nothing ties the clock of {some} to the others': every host is analysed on its own clock, and waiting for a "
        "late host counts as `collective`"
    )
    count = len(hosts)
    return {
        "severity": "warning",
        "code": "clocks_unaligned",
        "file": "",
        "place": "",
        "count": count,
        "message": message,
    }


def _keys(steps: pa.Table) -> list[tuple[str, int, int]]:
    return list(
        zip(steps["name"].to_pylist(), steps["number"].to_pylist(), steps["occurrence"].to_pylist(), strict=True)
    )


def _step_counts(steps: pa.Table, phases: tuple[str, ...]) -> dict[str, Any]:
    phase_of: dict[tuple[str, int, int], set[str]] = {}
    missing = []
    told = set()
    for key, phase, reason, host in zip(
        _keys(steps), steps["phase"].to_pylist(), steps["reason"].to_pylist(), steps["host"].to_pylist(), strict=True
    ):
        phase_of.setdefault(key, set()).add(phase)
        if phase == "unmeasured" and (key, host) not in told:
            told.add((key, host))
            missing.append({"step": key[1], "name": key[0], "host": host, "why": reason})
    order = ("unmeasured", "partial", "warmup", "outlier", "steady")
    # Steps have few sets of phases, most of one.
    sets = Counter(map(frozenset, phase_of.values()))
    counts: Counter[str] = Counter()
    for found, steps_of in sets.items():
        counts[next(p for p in order if p in found)] += steps_of
    return {
        "count": len(phase_of),
        "phases": {p: counts.get(p, 0) for p in ("warmup", "steady", "outlier", "partial", "unmeasured")},
        "missing": missing,
        "used": "steady" if phases == ("steady",) else "all measured",
        "by_name": _by_name(steps, phases),
    }


def _of_main_name(steps: pa.Table, phases: tuple[str, ...]) -> pa.Table:
    """The steps of the name that takes most time: train and eval steps have no common median."""
    used = steps.filter(pc.is_in(steps["phase"], pa.array(phases)))
    totals = used.group_by("name").aggregate([("window_ps", "sum")])
    totals = totals.sort_by([("window_ps_sum", "descending"), ("name", "ascending")])
    return steps.filter(pc.equal(steps["name"], totals["name"][0])) if totals.num_rows else steps


def _of_job(job_steps: pa.Table, name: str, phases: tuple[str, ...]) -> list[int]:
    """Times of the job's steps of one name, of those that every host has."""
    used = job_steps.filter(pc.and_(pc.equal(job_steps["name"], name), pc.is_in(job_steps["phase"], pa.array(phases))))
    return [ps for ps in used["step_ps"].to_pylist() if ps is not None]


def _by_name(steps: pa.Table, phases: tuple[str, ...]) -> dict[str, Any]:
    """Per step name: how many steps count, and their times in ms."""
    out = {}
    for name in sorted(set(steps["name"].to_pylist())):
        times = breakdown.step_times_ps(steps, phases, name)
        if times:
            out[name] = {"count": len(times), "step_ms": _quantiles(times)}
    return out


def _quantiles(step_ps: list[int]) -> dict[str, float] | None:
    if not step_ps:
        return None
    p10, median, p90 = (float(v) / 1e9 for v in np.quantile(np.array(step_ps, np.int64), [0.1, 0.5, 0.9]))
    return {"median": median, "p10": p10, "p90": p90, "mean": sum(step_ps) / len(step_ps) / 1e9}


def _lanes(merged: pa.Table, phases: tuple[str, ...], processes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    devices = {p["host"]: p["devices"] for p in processes}
    out = []
    for line in breakdown.by_lane(merged, phases):
        names = devices.get(line["host"], [])
        device = names[line["lane"]] if line["lane"] < len(names) else "host"
        out.append({"host": line["host"], "lane": line["lane"], "device": device, "breakdown": line["breakdown"]})
    return out


def _predictions(predicted: verdict_rule.Prediction | None, late: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the replays say. Without the rank that costs most only where it is a straggler, ``late``."""
    if predicted is None:
        return None
    return {
        "step_ms": predicted.measured_ps / 1e9,
        "unchanged_ms": predicted.unchanged_ps / 1e9,
        "believed": predicted.believed(),
        "without_ms": {name: value / 1e9 for name, value in predicted.without_ps.items()},
        **{
            f"without_{name}_ms": value / 1e9
            for name, value in predicted.of_job_ps.items()
            if name != "straggler" or late
        },
    }


def _top_ops(ops: pa.Table, lanes: int, whole_s: float) -> list[dict[str, Any]]:
    out = []
    for row in ops.slice(0, TOP_OPS).to_pylist():
        seconds = row["total_ps"] / 1e12 / lanes
        out.append(
            {
                "op": row["op"],
                "opcode": row["opcode"],
                "class": row["class"],
                "program": row["program"],
                "source": row["source"] or None,
                "op_name": row["op_name"],
                "total_s": seconds,
                "share": min(seconds / whole_s, 1.0) if whole_s else None,
                "count": row["count"],
                "mean_us": row["mean_ps"] / 1e6,
            }
        )
    return out


def _compiles(compiles: pa.Table) -> dict[str, Any]:
    rows = compiles.to_pylist()
    finished = [row for row in rows if row["stage"] == "compile"]
    functions: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = functions.setdefault(row["function"], {"function": row["function"], "count": 0, "total_s": 0.0})
        entry["count"] += row["count"] if row["stage"] == "compile" else 0
        entry["total_s"] += row["total_ps"] / 1e12
    return {
        "count": sum(row["count"] for row in finished),
        "total_s": sum(row["total_ps"] for row in finished) / 1e12,
        "source": rows[0]["source"] if rows else None,
        "during_steps": [
            {
                "step": row["step_number"],
                "name": row["step_name"],
                "function": row["function"],
                "phase": row["phase"],
                "seconds": row["total_ps"] / 1e12,
            }
            for row in sorted(finished, key=lambda r: (r["step_number"] is None, r["step_number"], r["function"]))
            if row["step_number"] is not None
        ],
        "by_function": sorted(
            (f for f in functions.values() if f["count"]), key=lambda f: (-f["total_s"], f["function"])
        ),
    }


def _recompiles(recompiles: pa.Table) -> dict[str, Any]:
    rows, left_out = summary_rows(recompiles, RECOMPILES)
    return {"recompiles": rows, "recompiles_left_out": left_out}


def _passes(passes: pa.Table) -> list[dict[str, Any]]:
    return [
        {
            "function": row["function"] or None,
            "module": row["module"] or None,
            "pass": row["pass"],
            "self_s": row["self_ps"] / 1e12,
            "count": row["count"],
        }
        for row in passes.slice(0, PASSES).to_pylist()
    ]


def _op_phases(op_phases: pa.Table, lanes: int) -> dict[str, Any] | None:
    """Per phase of training: seconds of its ops (mean over lanes), and their part of all op time. None without phases.

    Ops that overlap are each counted in full.
    """
    totals: Counter[str | None] = Counter()
    for row in op_phases.to_pylist():
        totals[row["op_phase"]] += row["total_ps"]
    whole = sum(totals.values())
    if not whole or set(totals) == {None}:
        return None
    return {
        phase or "unknown": {"total_s": totals[phase] / lanes / 1e12, "share": totals[phase] / whole}
        for phase in (*PHASES, None)
    }


def _slowest(steps: pa.Table) -> list[dict[str, Any]]:
    measured = steps.filter(pc.greater(steps["window_ps"], 0))
    # Warmup and partial steps have a line of their own; where nothing else was measured they stand here.
    settled = measured.filter(pc.is_in(measured["phase"], pa.array(["steady", "outlier"])))
    measured = (settled if settled.num_rows else measured).sort_by(
        [("window_ps", "descending"), ("host", "ascending"), ("lane", "ascending"), ("start_ps", "ascending")]
    )
    out = []
    for row in measured.slice(0, SLOWEST).to_pylist():
        largest = max(CLASSES, key=lambda name: row[f"{name}_ps"])
        out.append(
            {
                "host": row["host"],
                "lane": row["lane"],
                "step": row["number"],
                "name": row["name"],
                "number": row["number"],
                "ms": row["window_ps"] / 1e9,
                "phase": row["phase"],
                "largest_class": largest,
                "why": row["reason"] or f"{row[f'{largest}_ps'] / max(row['window_ps'], 1):.0%} {CLASS_WORDS[largest]}",
            }
        )
    return out


def _unknown(gaps: pa.Table, phases: tuple[str, ...], lanes: int, whole_s: float) -> list[dict[str, Any]]:
    totals: Counter[tuple[str, str, bool]] = Counter()
    for row in gaps.to_pylist():
        if row["cause"] == "unknown" and row["phase"] in phases:
            totals[row["evidence"], row["span"] or "", row["sampled"]] += row["length_ps"]
    out = []
    for (evidence, span, sampled), length in sorted(totals.items(), key=lambda pair: (-pair[1], pair[0]))[
        :UNKNOWN_ROWS
    ]:
        seconds = length / 1e12 / lanes
        why, spans = evidence, [span] if span else []
        if sampled:
            why = f"the thread waited at {evidence}, and nothing says for what"
        elif evidence not in REASONS:
            why, spans = "a span was open that is no evidence of work", [evidence]
        out.append({"why": why, "seconds": seconds, "share": seconds / whole_s if whole_s else None, "spans": spans})
    return out


def _overhead(processes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Numbers of the run files, added up over processes."""
    totals: dict[str, Any] = {}
    for process in processes:
        found = process["overhead"] or {}
        for key, value in {**found, **(found.get("recorder") or {})}.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                totals[key] = totals.get(key, 0) + value
    return totals


def _counted(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Errors first; rows that say the same are one row with their counts added up."""
    merged: dict[tuple[str, ...], int] = {}
    for row in rows:
        key = tuple(str(row[name]) for name in ("severity", "code", "file", "place", "message"))
        merged[key] = merged.get(key, 0) + int(row["count"])
    severity = {"error": 0, "warning": 1, "note": 2}
    names = ("severity", "code", "file", "place", "message")
    return [
        {**dict(zip(names, key, strict=True)), "count": count}
        for key, count in sorted(merged.items(), key=lambda pair: (severity.get(pair[0][0], 3), pair[0]))
    ]
