"""What the summary says of compiled code, communication and launching: thresholds, shares and words."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from xprof_py.postprocess.analyses import launch_bound as launching
from xprof_py.postprocess.rules import code_rows

PS = 10**12


def tables(findings: list[tuple[str, int | None, int]], ops: list[tuple[int, int | None]]) -> dict[str, pa.Table]:
    """``findings``: (op, lost_ps, total_ps); ``ops``: (total_ps, ideal_ps) of compute ops."""
    texts = ("op", "opcode", "class", "program", "source", "op_name")
    return {
        "code_findings": pa.table(
            {
                **{
                    name: [""] * len(findings) for name in ("program", "opcode", "source", "op_name", "parts", "advice")
                },
                "kind": ["copy"] * len(findings),
                "op": [op for op, _, _ in findings],
                "count": [1] * len(findings),
                "lost_ps": pa.array([lost for _, lost, _ in findings], pa.int64()),
                "total_ps": [total for _, _, total in findings],
            }
        ),
        "roofline": pa.table(
            {
                **{name: [f"{name}{i}" for i in range(len(ops))] for name in texts if name != "class"},
                "class": pa.array(["compute"] * len(ops), pa.string()),
                "count": [1] * len(ops),
                "total_ps": [total for total, _ in ops],
                "ideal_ps": pa.array([ideal for _, ideal in ops], pa.int64()),
                "excess_ps": pa.array([None if i is None else max(t - i, 0) for t, i in ops], pa.int64()),
                "efficiency": pa.array([None if i is None else i / t for t, i in ops], pa.float64()),
                "bound": pa.array([None] * len(ops), pa.string()),
            }
        ),
        "program_roofline": pa.table({"program": ["p"], "excess_ps": [0], "excess_unknown_ps": [0]}),
    }


def shares(compute_s: float) -> dict[str, dict[str, float]]:
    return {"compute": {"exclusive_s": compute_s}, "memory": {"exclusive_s": 0.0}}


def test_what_loses_less_than_half_a_percent_is_summed_and_not_listed() -> None:
    made = tables([("large", PS // 2, PS), ("small", PS // 1000, PS), ("note", None, 2 * PS)], [])
    found = code_rows.compiled_code(made, shares(8.0), lanes=1, whole_s=10.0)
    assert [row["op"] for row in found["findings"]] == ["large", "note"]
    assert found["findings_left_out"] == 1
    assert found["by_kind"]["copy"]["lost_s"] == pytest.approx(0.501)
    assert found["findings"][0]["share"] == pytest.approx(0.05)
    assert found["findings"][1]["share"] is None


def test_the_excess_of_steps_counts_no_instant_twice() -> None:
    """Two ops of 6 s ran at once in 8 s of compute: 1 + 2 s ideal leave 5 s, not 9."""
    found = code_rows.compiled_code(tables([], [(6 * PS, PS), (6 * PS, 2 * PS)]), shares(8.0), lanes=1, whole_s=10.0)
    assert (found["excess_s"], found["excess_share"], found["excess_unknown_s"]) == (5.0, 0.5, 0.0)
    assert [row["excess_s"] for row in found["ops"]] == [5.0, 4.0]


def test_ops_of_unknown_ideal_count_as_ideal_and_are_stated() -> None:
    found = code_rows.compiled_code(tables([], [(6 * PS, PS), (2 * PS, None)]), shares(8.0), lanes=1, whole_s=10.0)
    assert (found["excess_s"], found["excess_unknown_s"]) == (5.0, 2.0)
    nothing = code_rows.compiled_code(tables([], [(6 * PS, None)]), shares(6.0), lanes=1, whole_s=10.0)
    assert (nothing["excess_s"], nothing["excess_unknown_s"]) == (None, 6.0)


def test_a_finding_is_evidence_only_where_it_loses_enough() -> None:
    made = tables([("large", PS, PS), ("small", PS // 5, PS)], [])
    rows = code_rows.finding_evidence(code_rows.compiled_code(made, shares(8.0), lanes=1, whole_s=10.0))
    assert [(row["what"], row["op"], row["share"]) for row in rows] == [("code", "large", pytest.approx(0.1))]


def test_evidence_of_a_collective_names_kind_and_source() -> None:
    row: dict[str, Any] = {
        "class": "collective",
        "kind": "all-reduce",
        "source": "train.py:41",
        "participants": 8,
        "count": 40,
        "exposed_s": 0.03,
        "in_flight_s": 0.04,
        "mean_us": 1000.0,
        "share": 0.2,
        "per_step_ms": 3.0,
        "bus_bytes_per_s": 1.25e9,
    }
    copy = {**row, "class": "host_device", "kind": "h2d"}
    hidden = {**row, "exposed_s": 0.0}
    (found,) = code_rows.communication_evidence([row, copy, hidden], "collective")
    assert found["text"] == (
        "all-reduce at train.py:41: 40 times, 1 ms each; 75% of it exposed, 8 participants, 1.25 GB/s on the bus, "
        "waiting included"
    )
    assert (found["what"], found["source"], found["per_step_ms"]) == ("communication", "train.py:41", 3.0)


def steps(*bound: bool, idle_ps: int = 8 * 10**9) -> pa.Table:
    count = len(bound)
    columns: dict[str, Any] = {
        "host": ["h"] * count,
        "lane": [0] * count,
        "step": range(count),
        "name": ["train"] * count,
        "number": range(count),
        "phase": ["steady"] * count,
        "window_ps": [10 * 10**9] * count,
        "busy_ps": [10**9] * count,
        "launches": [100] * count,
        "runs": [100] * count,
        "dispatch_ps": [8 * 10**9] * count,
        "idle_ps": [idle_ps] * count,
        "launch_bound": list(bound),
        "function": ["add"] * count,
        "function_launches": [100] * count,
        "source": ["train.py:7"] * count,
    }
    return pa.table(columns)


def test_launch_bound_steps_have_the_numbers_of_one_launch() -> None:
    found = code_rows.launch_bound(launching.over_steps(steps(True, True, False), ("steady",)), lanes=1)
    assert found is not None
    assert (found["windows"], found["launch_bound_windows"], found["launches_per_step"]) == (3, 2, 100)
    assert (found["dispatch_us"], found["device_us"], found["share"]) == (80.0, 10.0, 0.8)
    (row,) = code_rows.launch_evidence(found)
    assert row["text"] == (
        "launch-bound: 100 launches a step, most of them of `add`; dispatching one takes 80 µs, its work on the device "
        "10 µs"
    )
    assert row["source"] == "train.py:7"


def test_a_few_launch_bound_steps_are_no_evidence() -> None:
    found = code_rows.launch_bound(launching.over_steps(steps(True, False, False), ("steady",)), lanes=1)
    assert found is not None
    assert code_rows.launch_evidence(found) == []
    assert code_rows.launch_bound(launching.over_steps(steps(False), ("steady",)), lanes=1) is None
    assert code_rows.launch_bound(None, lanes=1) is None
