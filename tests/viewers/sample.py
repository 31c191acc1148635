"""Made-up analyses that hang together: every total in a summary is summed from the step table that goes with it.

Run as a script it writes each of them as an OUT folder with its report:
``PYTHONPATH=tests python tests/viewers/sample.py FOLDER``.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
from made_up_steps import Sample, Step, make_step, step_table, summarize

from xprof_py.postprocess import schema

__all__ = ["SAMPLES", "TOP_OPS", "Sample", "make_step", "step_table", "summarize", "write_out"]


def evidence(what: str, said: str, **more: Any) -> dict[str, Any]:
    fields = ("seconds", "share", "step", "source", "span", "function", "op", "count", "per_step_ms")
    return {"what": what, "text": said, **dict.fromkeys(fields), **more}


COMPILED_CODE: dict[str, Any] = {
    "excess_s": 0.21,
    "excess_share": 0.29,
    "excess_unknown_s": 0.004,
    "programs": [{"program": "jit_train_step", "excess_s": 0.21, "excess_unknown_s": 0.004}],
    "ops": [
        {
            "op": "fusion.42",
            "opcode": "fusion",
            "class": "compute",
            "program": "jit_train_step",
            "source": "model.py:118",
            "op_name": "jit(train_step)/transpose(jvp(attention))/dot_general",
            "count": 456,
            "total_s": 0.291,
            "excess_s": 0.131,
            "share": 0.18,
            "efficiency": 0.55,
            "bound": "compute",
        }
    ],
    "by_kind": {
        "copy": {"findings": 3, "total_s": 0.05, "lost_s": 0.05, "share": 0.07},
        "slow_type": {"findings": 1, "total_s": 0.1, "lost_s": None, "share": None},
    },
    "findings": [
        {
            "kind": "unfused_chain",
            "what": "elementwise chain not fused (2 ops)",
            "program": "jit_train_step",
            "op": "add.7",
            "opcode": "add",
            "source": "model.py:61",
            "op_name": "jit(train_step)/add",
            "parts": ["multiply.6", "add.7"],
            "count": 37,
            "total_s": 0.06,
            "lost_s": 0.031,
            "share": 0.043,
            "advice": "See what keeps these ops apart.",
        },
        {
            "kind": "slow_type",
            "what": "matmul in a slow type",
            "program": "jit_train_step",
            "op": "dot.9",
            "opcode": "dot",
            "source": "",
            "op_name": "",
            "parts": [],
            "count": 37,
            "total_s": 0.1,
            "lost_s": None,
            "share": None,
            "advice": "If the precision is not needed, compute this matmul in bf16.",
        },
    ],
    "findings_left_out": 3,
    "least_share": 0.005,
}
COMMUNICATION: list[dict[str, Any]] = [
    {
        "class": "collective",
        "kind": "all-reduce",
        "source": "model.py:201",
        "program": "jit_train_step",
        "participants": 4,
        "count": 74,
        "unpaired": 0,
        "exposed_s": 0.052,
        "hidden_s": 0.011,
        "idle_s": 0.003,
        "in_flight_s": 0.066,
        "total_s": 0.06,
        "share": 0.071,
        "per_step_ms": 1.4,
        "mean_us": 891.0,
        "bytes": 4194304,
        "network_bytes": 6291456,
        "bus_bytes_per_s": 7060000000,
    },
    {
        "class": "host_device",
        "kind": "h2d",
        "source": "",
        "program": "",
        "participants": None,
        "count": 37,
        "unpaired": 0,
        "exposed_s": 0.0,
        "hidden_s": 0.061,
        "idle_s": 0.0,
        "in_flight_s": 0.061,
        "total_s": 0.061,
        "share": 0.0,
        "per_step_ms": 0.0,
        "mean_us": 1650.0,
        "bytes": None,
        "network_bytes": None,
        "bus_bytes_per_s": None,
    },
]


def diagnostic(severity: str, code: str, file: str, place: str, message: str) -> dict[str, Any]:
    return {"severity": severity, "code": code, "file": file, "place": place, "count": 1, "message": message}


def top_op(op: str, *, class_: str, **more: Any) -> dict[str, Any]:
    return {"op": op, "class": class_, "source": None, **more}


TOP_OPS = [
    top_op(
        "fusion.42",
        opcode="fusion",
        class_="compute",
        program="jit_train_step",
        source="model.py:118",
        op_name="jit(train_step)/transpose(jvp(attention))/dot_general",
        total_s=0.291,
        share=0.402,
        count=456,
        mean_us=638.2,
    ),
    top_op(
        "dot.17",
        opcode="dot",
        class_="compute",
        program="jit_train_step",
        source="model.py:74",
        op_name="jit(train_step)/jvp(mlp)/dot_general",
        total_s=0.188,
        share=0.26,
        count=912,
        mean_us=206.1,
    ),
    top_op(
        "reduce-window.3",
        opcode="reduce-window",
        class_="memory",
        program="jit_train_step",
        op_name="jit(train_step)/reduce_window_sum",
        total_s=0.0042,
        share=0.0058,
        count=38,
        mean_us=110.5,
    ),
]


def input_bound() -> Sample:
    rng = random.Random(1)
    steps = [
        make_step(
            0,
            "warmup",
            "first run of jit_train_step: its compile lies in the capture",
            compiler=1850,
            compute=21,
            host=44,
            input=29,
        )
    ]
    steps += [
        make_step(
            i,
            compute=15.2 + rng.uniform(-0.4, 0.4),
            memory=1.9 + rng.uniform(-0.1, 0.1),
            input=28.6 + rng.uniform(-2, 6),
            host=1.4 + rng.uniform(0, 0.5),
            host_device=0.6,
            device_wait=0.25,
            unknown=0.3 + rng.uniform(0, 0.3),
        )
        for i in range(1, 38)
    ]
    steps.insert(
        24,
        make_step(
            38,
            "outlier",
            "210 ms against a median of 49 ms; 73% of the excess is unknown",
            compute=15,
            memory=2,
            input=60,
            host=2,
            unknown=131,
        ),
    )
    for number, step in enumerate(steps):
        step["number"] = number
    steps.append(
        make_step(39, "partial", "a copy was still in flight at the end of the capture", compute=15, memory=2, input=12)
    )
    lanes = {("host0", 0): steps}
    summary, tables = summarize(
        lanes,
        verdict={},
        head_ms=812.0,
        tail_ms=91.0,
        hidden_s={"host_device": 0.061, "memory": 0.02},
        top_ops=TOP_OPS,
        compiled_code=COMPILED_CODE,
        communication=COMMUNICATION,
        unknown=[
            {"why": "no host span covers the time", "seconds": 0.011, "share": 0.0058, "spans": ["train", "fit"]},
            {"why": "no launch joined", "seconds": 0.004, "share": 0.0021, "spans": []},
        ],
        compiles={
            "count": 3,
            "total_s": 1.85,
            "during_steps": [{"step": 0, "function": "train_step", "seconds": 1.79}],
            "by_function": [
                {"function": "train_step", "count": 1, "total_s": 1.79},
                {"function": "convert_element_type", "count": 2, "total_s": 0.06},
            ],
        },
        diagnostics=[
            diagnostic(
                "note",
                "no_peaks",
                "0.xplane.pb",
                "/host:CPU",
                "the device's peak rates are unknown: efficiency is not reported",
            ),
            diagnostic(
                "warning",
                "partial_step",
                "0.xplane.pb",
                "step train 39",
                "a host-to-device copy was open at the end of the capture; the step is left out",
            ),
        ],
    )
    share = summary["breakdown"]["input"]["share"]
    per_step = summary["breakdown"]["input"]["exclusive_s"] * 1e3 / 37
    summary["verdict"] = {
        "bottleneck": "input",
        "sentence": f"The device waits for the next batch during {share:.0%} of each step.",
        "share": share,
        "step_ms": summary["step_ms"]["median"],
        "step_ms_without": summary["step_ms"]["median"] - per_step + 1.1,
        "evidence": [
            evidence(
                "gap",
                "wrap_input waits in next() before every launch",
                seconds=per_step * 37 / 1e3,
                share=share,
                source="train.py:41",
                span="input",
                function="next_batch",
                count=37,
                per_step_ms=per_step,
            ),
            evidence(
                "span",
                "decode_jpeg runs on the launching thread, inside the wait",
                seconds=0.87,
                share=0.48,
                source="data/loader.py:112",
                span="decode_jpeg",
                function="decode_jpeg",
                count=592,
                per_step_ms=23.5,
            ),
            evidence(
                "gap",
                "the longest single wait",
                seconds=0.0347,
                share=0.019,
                step=17,
                source="train.py:41",
                span="input",
                count=1,
            ),
        ],
        "advice": "Prefetch on another thread: decode_jpeg (data/loader.py:112) takes 23.5 ms a step on the launching "
        "thread. Two prefetch workers hide it behind the 17 ms of device work.",
    }
    return summary, tables


def recompile() -> Sample:
    rng = random.Random(2)
    steps = [make_step(0, "warmup", "first run of jit_step", compiler=620, compute=8, host=11)]
    for i in range(1, 60):
        spike = i % 9 == 0
        steps.append(
            make_step(
                i,
                compute=8.1 + rng.uniform(-0.2, 0.2),
                host=0.9 + rng.uniform(0, 0.2),
                compiler=rng.uniform(380, 450) if spike else 0.0,
                device_wait=0.3,
                checkpoint=14.0 if i == 30 else 0.0,
                unknown=0.05,
            )
        )
    during = [{"step": i, "function": "step", "seconds": 0.4} for i in range(9, 60, 9)]
    summary, tables = summarize({("host0", 0): steps}, verdict={}, head_ms=120)
    share = summary["breakdown"]["compiler"]["share"]
    summary["compiles"] = {
        "count": 7,
        "total_s": 3.1,
        "during_steps": during,
        "by_function": [{"function": "step", "count": 7, "total_s": 3.1}],
    }
    summary["top_ops"] = TOP_OPS[:2]
    summary["verdict"] = {
        "bottleneck": "compiler",
        "sentence": f"`step` is compiled again in 6 of 59 steps: {share:.0%} of the step time.",
        "share": share,
        "step_ms": summary["step_ms"]["median"],
        "step_ms_without": None,
        "step_ms_without_why": "the median step does not recompile; the mean would fall from 51.1 to 9.4 ms",
        "evidence": [
            evidence(
                "compile",
                "step compiled again: argument shapes differ from the previous call",
                seconds=0.41,
                share=0.14,
                step=9 * i,
                source="train.py:88",
                function="step",
                count=1,
            )
            for i in range(1, 7)
        ],
        "advice": "Pad the last batch to the common shape (train.py:88): each new shape compiles a new program.",
    }
    return summary, tables


def unknown_heavy() -> Sample:
    rng = random.Random(3)
    steps = [make_step(i, compute=4.0, unknown=21 + rng.uniform(-4, 9), host=0.8) for i in range(25)]
    summary, tables = summarize({("host0", 0): steps}, verdict=None)
    share = summary["breakdown"]["unknown"]["share"]
    summary["unknown"] = [
        {
            "why": "no host span covers the time",
            "seconds": summary["breakdown"]["unknown"]["exclusive_s"],
            "share": share,
            "spans": ["train", "fit", "main"],
        }
    ]
    summary["verdict"] = {
        "bottleneck": "unknown",
        "sentence": f"{share:.0%} of each step is idle and the trace does not say why.",
        "share": share,
        "step_ms": summary["step_ms"]["median"],
        "step_ms_without": None,
        "step_ms_without_why": "an unknown cause cannot be taken out of the replay",
        "evidence": [evidence("gap", "idle between jit_step and the next launch", per_step_ms=22.1, count=25)],
        "advice": "Capture again with stacks=True, or put `with trace(...)` around the parts of the loop.",
    }
    return summary, tables


def no_steps() -> Sample:
    summary, _ = unknown_heavy()
    summary |= {
        "steps": {"count": 0, "phases": {}, "missing": [], "used": None},
        "step_ms": None,
        "breakdown": None,
        "verdict": None,
        "lanes": [],
        "outside_steady": {"head": {"total_s": 4.2, "by_class": {"compute": 3.9, "unknown": 0.3}}},
        "slowest_steps": [],
        "unknown": None,
        "accounted": None,
        "top_ops": TOP_OPS[:2],
        "diagnostics": [
            diagnostic(
                "warning",
                "no_steps",
                "",
                "",
                "no step was marked: put `with step(i):` around the body of the training loop",
            )
        ],
    }
    return summary, {"step_classes": schema.empty("step_classes")}


def many_steps(count: int = 5000) -> Sample:
    rng = random.Random(4)
    steps = [make_step(0, "warmup", "first run", compiler=900, compute=6)]
    for i in range(1, count):
        slow = 2.2 if 2200 <= i < 2500 else 0.0
        spike = rng.random() < 0.001
        steps.append(
            make_step(
                i,
                "outlier" if spike else "steady",
                "mostly unknown" if spike else "",
                compute=6.0 + rng.uniform(-0.2, 0.2),
                collective=1.1 + rng.uniform(0, 0.3),
                host=0.5 + slow,
                input=0.3 * rng.random(),
                checkpoint=60.0 if i % 1000 == 0 else 0.0,
                unknown=90.0 if spike else 0.02,
            )
        )
    summary, tables = summarize({("host0", 0): steps}, verdict={})
    share = summary["breakdown"]["compute"]["share"]
    summary["verdict"] = {
        "bottleneck": "compute",
        "sentence": f"The device computes during {share:.0%} of each step: the program is compute-bound.",
        "share": share,
        "step_ms": summary["step_ms"]["median"],
        "step_ms_without": None,
        "evidence": [evidence("op", "matrix product at 31% of peak", op="dot.17", source="model.py:74", share=0.31)],
        "advice": "Look at dot.17 (model.py:74) first: bf16 inputs would double its rate.",
    }
    summary["top_ops"] = TOP_OPS
    return summary, tables


def four_hosts() -> Sample:
    lanes: dict[tuple[str, int], list[Step]] = {}
    for h in range(4):
        for lane in range(2):
            rng = random.Random(10 * h + lane)
            steps = [make_step(0, "warmup", "first run", compiler=2100, compute=40, collective=30)]
            for i in range(1, 120):
                wait = 3.0 if h == 2 else 41.0 + rng.uniform(-3, 3)
                steps.append(
                    make_step(
                        i,
                        compute=38 + rng.uniform(-1, 1),
                        collective=6 + wait,
                        memory=4,
                        host_device=1.2,
                        host=40.0 + rng.uniform(-2, 2) if h == 2 else 1.5,
                        device_wait=0.7,
                        unknown=0.4,
                    )
                )
            lanes[f"host{h}", lane] = steps
    summary, tables = summarize(lanes, verdict={}, hidden_s={"collective": 5.4})
    reason = {"class": "host", "reason": "loader.py:41 decode", "source": "/job/loader.py:41"}
    summary["straggler"] = {
        "host": "host2",
        "share": 0.41,
        "lost_ms_per_step": 38.2,
        "cause": "host",
        "steps": 119,
        "of_steps": 119,
        "reason": reason["reason"],
        "source": reason["source"],
        "reasons": [
            {**reason, "steps": 119, "ms_per_step": 37.9},
            {"class": "unknown", "reason": None, "source": None, "steps": 60, "ms_per_step": 0.3},
        ],
    }
    summary["clocks"] = [
        {"host": "host0", "offset_ns": 0, "drift_ppm": 0.0, "error_ns": 0, "method": "reference", "status": "ok"},
        {
            "host": "host1",
            "offset_ns": 812_331,
            "drift_ppm": 3.1,
            "error_ns": 14_200,
            "method": "collectives",
            "status": "ok",
        },
        {
            "host": "host2",
            "offset_ns": -92_133_000,
            "drift_ppm": -0.4,
            "error_ns": 9_800,
            "method": "probe",
            "status": "ok",
        },
        {"host": "host3", "offset_ns": 41, "drift_ppm": 0.0, "error_ns": None, "method": None, "status": "unaligned"},
    ]
    summary["steps"]["missing"] = [{"step": 119, "host": "host3", "why": "its capture ended 80 ms earlier"}]
    summary["diagnostics"] = [
        diagnostic(
            "error",
            "bad_shard",
            "shards/3-8841.xpr",
            "offset 8192",
            "the shard ends in the middle of a chunk; 4,096 spans before it were read",
        )
    ]
    share = summary["breakdown"]["host"]["share"]
    summary["verdict"] = {
        "bottleneck": "host",
        "sentence": "host2 is late to every collective: Python work there costs all hosts 38 ms of each step.",
        "share": share,
        "step_ms": summary["step_ms"]["median"],
        "step_ms_without": summary["step_ms"]["median"] - 38.2,
        "evidence": [
            evidence(
                "span",
                "tokenize runs between the step's launches on host2",
                seconds=4.5,
                share=0.41,
                source="data/text.py:203",
                span="tokenize",
                function="tokenize",
                count=119,
                per_step_ms=38.2,
            )
        ],
        "advice": "Move tokenize (data/text.py:203) off the thread that launches on host2, or share it out.",
    }
    summary["top_ops"] = TOP_OPS
    return summary, tables


SAMPLES: dict[str, Callable[[], Sample]] = {
    "input_bound": input_bound,
    "recompile": recompile,
    "unknown_heavy": unknown_heavy,
    "no_steps": no_steps,
    "many_steps": many_steps,
    "four_hosts": four_hosts,
}


def write_out(folder: Path, sample: Sample) -> Path:
    """Write ``sample`` as an OUT folder of ``analyze``."""
    summary, tables = sample
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_bytes(orjson.dumps(summary))
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


if __name__ == "__main__":
    from xprof_py.viewers.html_report import write_report

    for sample_name, build in SAMPLES.items():
        out = write_out(Path(sys.argv[1]) / sample_name, build())
        print(write_report(out, out / "report.html"))
