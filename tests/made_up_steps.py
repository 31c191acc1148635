"""Steps made up from milliseconds per class, with the step table and summary.json that an analysis would write."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from xprof_py.postprocess import schema

Step = dict[str, Any]
Sample = tuple[dict[str, Any], dict[str, pa.Table]]
MS = 10**9


def make_step(number: int, phase: str = "steady", reason: str = "", name: str = "train", **class_ms: float) -> Step:
    return {
        "name": name,
        "number": number,
        "phase": phase,
        "reason": reason,
        "classes": {c: round(class_ms.get(c, 0.0) * MS) for c in schema.CLASSES},
    }


def step_table(lanes: dict[tuple[str, int], list[Step]], *, head_ms: float = 0.0, tail_ms: float = 0.0) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [] for name in schema.TABLES["step_classes"].names}

    def put(host: str, lane: int, kind: str, start_ps: int, step: Step) -> int:
        window_ps = sum(step["classes"].values())
        is_step = kind == "step"
        values = {
            "host": host,
            "lane": lane,
            "kind": kind,
            "name": step["name"] if is_step else kind,
            "number": step["number"] if is_step else None,
            "occurrence": step.get("occurrence", 0) if is_step else None,
            "phase": step["phase"] if is_step else "",
            "reason": step["reason"],
            "start_ps": start_ps,
            "window_ps": window_ps,
            **{f"{c}_ps": step["classes"][c] for c in schema.CLASSES},
        }
        for column, value in values.items():
            columns[column].append(value)
        return start_ps + window_ps

    for (host, lane), steps in lanes.items():
        now_ps = put(host, lane, "head", 0, make_step(0, unknown=head_ms))
        for step in steps:
            now_ps = put(host, lane, "step", now_ps, step)
        put(host, lane, "tail", now_ps, make_step(0, unknown=tail_ms))
    return schema.table("step_classes", columns)


def classes_of(steps: list[Step], hidden_s: dict[str, float] | None = None) -> dict[str, Any]:
    seconds = {c: sum(step["classes"][c] for step in steps) / 1e12 for c in schema.CLASSES}
    whole = sum(seconds.values()) or 1.0
    return {
        c: {
            "exclusive_s": seconds[c],
            "total_s": seconds[c] + (hidden_s or {}).get(c, 0.0),
            "share": seconds[c] / whole,
        }
        for c in schema.CLASSES
    }


def step_ms(step: Step) -> float:
    return float(sum(step["classes"].values())) / MS


def quantile(values: list[float], q: float) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def outside(steps: list[Step], head_ms: float, tail_ms: float) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for phase in ("warmup", "outlier", "partial"):
        chosen = [step for step in steps if step["phase"] == phase]
        by_class = {c: sum(step["classes"][c] for step in chosen) / 1e12 for c in schema.CLASSES}
        parts[phase] = {"steps": len(chosen), "total_s": sum(by_class.values()), "by_class": by_class}
    for edge, length_ms in (("head", head_ms), ("tail", tail_ms)):
        parts[edge] = {"total_s": length_ms / 1e3, "by_class": {"unknown": length_ms / 1e3}}
    return parts


def summarize(
    lanes: dict[tuple[str, int], list[Step]],
    *,
    verdict: dict[str, Any] | None,
    head_ms: float = 0.0,
    tail_ms: float = 0.0,
    hidden_s: dict[str, float] | None = None,
    **more: Any,
) -> Sample:
    """A summary and its step table. The job view is the mean over lanes: no collective waits to hand on in these."""
    hosts = sorted({host for host, _ in lanes})
    every = [step for steps in lanes.values() for step in steps]
    first = next(iter(lanes.values()))
    steady = [step for step in every if step["phase"] == "steady"]
    lengths = [step_ms(step) for step in steady]
    breakdown = classes_of(steady, hidden_s)
    for cell in breakdown.values():
        cell["exclusive_s"] /= len(lanes)
        cell["total_s"] /= len(lanes)
    slowest = sorted((s for s in every if s["phase"] != "warmup"), key=step_ms, reverse=True)[:5]
    summary: dict[str, Any] = {
        "schema_version": 1,
        "hosts": [
            {
                "host": host,
                "hostname": f"{host}.cluster.internal",
                "process_index": i,
                "devices": [f"TFRT_CPU_{lane}" for h, lane in lanes if h == host],
                "source": f"plugins/profile/run/{i}.xplane.pb",
            }
            for i, host in enumerate(hosts)
        ],
        "steps": {
            "count": len(first),
            "phases": {p: sum(1 for s in first if s["phase"] == p) for p in _PHASES},
            "missing": [],
            "used": "steady",
        },
        "step_ms": {"median": quantile(lengths, 0.5), "p10": quantile(lengths, 0.1), "p90": quantile(lengths, 0.9)},
        "breakdown": breakdown,
        "lanes": [
            {
                "host": host,
                "lane": lane,
                "device": f"TFRT_CPU_{lane}",
                "breakdown": classes_of([s for s in steps if s["phase"] == "steady"]),
            }
            for (host, lane), steps in lanes.items()
        ],
        "outside_steady": outside(first, head_ms, tail_ms),
        "verdict": verdict,
        "accounted": 1.0 - breakdown["unknown"]["share"],
        "clocks": [
            {"host": h, "offset_ns": 0, "drift_ppm": 0.0, "error_ns": 0, "method": "reference", "status": "ok"}
            for h in hosts[:1]
        ],
        "straggler": None,
        "stages": None,
        "top_ops": [],
        "compiles": {"count": 0, "total_s": 0.0, "during_steps": [], "by_function": []},
        "slowest_steps": [
            {
                "host": hosts[0],
                "step": i,
                "name": s["name"],
                "number": s["number"],
                "ms": step_ms(s),
                "phase": s["phase"],
                "largest_class": max(schema.CLASSES, key=lambda c, s=s: s["classes"][c]),
                "why": s["reason"],
            }
            for i, s in enumerate(slowest)
        ],
        "unknown": [],
        "overhead": {
            "spans": 4 * len(every),
            "dropped": 0,
            "start_s": 0.41,
            "stop_s": 0.88,
            "ns_per_span": 112.0,
            "share": 0.0004,
        },
        "diagnostics": [],
        "capture": {
            "command": "python train.py --config small",
            "jax": "0.10.2",
            "xprof_py": "0.1.0",
            "python": "3.11.7",
            "started_utc": "2026-11-14T09:31:07Z",
            "seconds": sum(step_ms(s) for s in first) / 1e3 + (head_ms + tail_ms) / 1e3,
            "mode": "capture",
        },
        **more,
    }
    return summary, {"step_classes": step_table(lanes, head_ms=head_ms, tail_ms=tail_ms)}


_PHASES = ("warmup", "steady", "outlier", "partial", "unmeasured")
