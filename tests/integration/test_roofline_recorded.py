"""The roofline of recorded JAX CPU captures, with peaks that the user states: a recording has none."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from xprof_py.postprocess.analyses import breakdown, roofline
from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.hlo.known_peaks import with_peaks
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.xspace import read_xspace

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"
# Of the size of the machine that recorded them: numpy did 49 GFLOP/s in f32 and 37.6 GB/s there.
PEAKS = {"flops_per_s": {"f32": 50 * 10**9}, "vector_flops_per_s": 50 * 10**9, "memory_bytes_per_s": 38 * 10**9}
ELEMENTS, SIZE = 16 << 20, 768
"""Of the planted axpy (three arrays of f32) and of the planted matmul."""


def file(name: str) -> Path:
    return DATA / f"{name}.xplane.pb.gz"


@cache
def joined(name: str) -> Profile:
    return join_profile(with_peaks(read_xspace(file(name)), {"XPROF_PY_PEAKS": json.dumps(PEAKS)}, calibrate=False))


def summary_of(name: str, monkeypatch: pytest.MonkeyPatch, peaks: dict[str, Any] | None) -> dict[str, Any]:
    monkeypatch.setenv("XPROF_PY_PEAKS", json.dumps(peaks) if peaks else "")
    summary: dict[str, Any] = analyse([file(name)]).summary
    return summary


def codes(summary: dict[str, Any]) -> list[str]:
    return [row["code"] for row in summary["diagnostics"]]


def test_an_axpy_is_bound_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = summary_of("planted_memory", monkeypatch, PEAKS)
    assert summary["verdict"]["bottleneck"] == "memory"
    assert summary["breakdown"]["compute"]["share"] == 0
    assert "memory_unavailable" not in codes(summary)
    op = summary["top_ops"][0]
    assert (op["class"], op["bound"]) == ("memory", "memory")
    assert (op["flops"], op["bytes"]) == (2 * ELEMENTS, 3 * 4 * ELEMENTS)
    seconds = op["mean_us"] / 1e6
    assert op["efficiency"] == pytest.approx(12 * ELEMENTS / PEAKS["memory_bytes_per_s"] / seconds, rel=0.001)


def test_a_matmul_is_bound_by_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = summary_of("planted_compute", monkeypatch, PEAKS)
    assert summary["verdict"]["bottleneck"] == "compute"
    assert summary["breakdown"]["memory"]["share"] == 0
    assert "memory_unavailable" not in codes(summary)
    op = summary["top_ops"][0]
    assert (op["class"], op["bound"], op["flops"]) == ("compute", "compute", 2 * SIZE**3)
    assert 0.3 < op["efficiency"] < 1
    used = summary["roofline"]["compute_utilization"]
    steps = summary["steps"]["phases"]["steady"]
    assert used == pytest.approx(2 * SIZE**3 * steps / 50e9 / (summary["step_ms"]["mean"] / 1e3 * steps), rel=0.001)
    (program,) = [p for p in summary["roofline"]["programs"] if p["flops_per_run"] == 2 * SIZE**3]
    assert program["runs"] == steps
    assert program["ideal_s"] == pytest.approx(2 * SIZE**3 * steps / 50e9)
    assert summary["roofline"]["peaks"][0]["source"] == "XPROF_PY_PEAKS"


def test_an_op_far_below_both_roofs_is_not_memory_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """On memory five times as fast the axpy is slow for another reason."""
    summary = summary_of("planted_memory", monkeypatch, {**PEAKS, "memory_bytes_per_s": 190 * 10**9})
    assert summary["breakdown"]["memory"]["share"] == 0
    assert summary["top_ops"][0]["bound"] == "memory"
    assert summary["top_ops"][0]["efficiency"] < 0.3
    assert "memory_unavailable" not in codes(summary)


def test_without_peaks_memory_is_unavailable_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = summary_of("planted_memory", monkeypatch, None)
    assert codes(summary).count("memory_unavailable") == 1
    assert summary["breakdown"]["memory"]["share"] == 0
    op = summary["top_ops"][0]
    assert (op["class"], op["flops"], op["bytes"]) == ("compute", 2 * ELEMENTS, 12 * ELEMENTS)
    assert (op["efficiency"], op["bound"]) == (None, None)
    assert summary["roofline"]["peaks"] == []
    assert summary["roofline"]["compute_utilization"] is None


def test_a_rate_that_is_not_known_leaves_the_class_open(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = summary_of("planted_compute", monkeypatch, {"memory_bytes_per_s": 38 * 10**9})
    assert "memory_unavailable" in codes(summary)
    assert summary["top_ops"][0]["bound"] is None


@pytest.mark.parametrize("name", ["planted_memory", "transformer_async20", "collectives_4dev"])
def test_windows_still_sum_with_the_class_memory(name: str) -> None:
    sums: dict[tuple[int, int], int] = {}
    windows = {}
    for row in breakdown.partial(joined(name)).to_pylist():
        key = (row["lane"], row["window"])
        sums[key] = sums.get(key, 0) + row["exclusive_ps"]
        windows[key] = row["window_ps"]
    assert sums == windows


@pytest.mark.parametrize("name", ["mlp_async40", "transformer_async20", "collectives_4dev"])
def test_every_cost_is_known_and_each_op_has_one_class(name: str) -> None:
    profile = joined(name)
    costs = profile["hlo_costs"]
    assert costs.num_rows
    for column in ("flops", "bytes_read", "bytes_written"):
        assert costs[column].null_count == 0, column
    leaves = profile["ops"].filter(pc.and_(profile["ops"]["leaf"], pc.is_valid(profile["ops"]["hlo_op"])))
    classes = leaves.group_by("hlo_op").aggregate([("class", "count_distinct")])
    assert set(classes["class_count_distinct"].to_pylist()) == {1}


def test_what_runs_is_what_the_program_promises() -> None:
    """Without loops a run executes what its HLO says: the executed ops and the program's cost are two ways to count."""
    merged = roofline.partial(joined("mlp_async40"))
    for program in roofline.programs(merged, ("steady", "warmup", "partial", "outlier", "")).to_pylist():
        assert program["flops"] == program["hlo_flops"] * program["runs"]


def test_a_collective_says_what_it_sends() -> None:
    profile = joined("collectives_4dev")
    opcodes = profile["hlo_ops"]["opcode"].to_pylist()
    arrays = profile["hlo_shapes"].to_pylist()
    sent = {
        opcodes[row["op"]]: (row["network_bytes"], sum(a["bytes"] for a in arrays if a["op"] == row["op"]))
        for row in profile["hlo_costs"].to_pylist()
        if opcodes[row["op"]] in ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
    }
    # Four devices; the second number is the size of the result.
    for opcode, share in (
        ("all-reduce", 6 / 4),
        ("all-gather", 3 / 4),
        ("reduce-scatter", 3),
        ("collective-permute", 1),
    ):
        network_bytes, result_bytes = sent[opcode]
        assert network_bytes == share * result_bytes, opcode


def test_merging_is_exact_and_has_no_order() -> None:
    parts = [roofline.partial(joined(name)) for name in ("planted_memory", "planted_compute", "mlp_async40")]
    phases = ("steady",)
    first = roofline.finish(reduce(roofline.merge, parts), phases)
    second = roofline.finish(roofline.merge(parts[2], roofline.merge(parts[1], parts[0])), phases)
    assert first.equals(second)
    doubled = roofline.merge(parts[0], parts[0])
    assert pc.sum(doubled["flops"]).as_py() == 2 * pc.sum(parts[0]["flops"]).as_py()


def test_sums_go_beyond_64_bits() -> None:
    part = roofline.partial(joined("planted_compute"))
    once = pc.sum(part["flops"]).as_py()
    for _ in range(34):
        part = roofline.merge(part, part.set_column(0, part.schema.field(0), part["op"])).combine_chunks()
        part = part.set_column(
            part.schema.get_field_index("total_ps"), part.schema.field("total_ps"), pc.divide(part["total_ps"], 2)
        )
        for name in ("computing_ps", "moving_ps", "ideal_ps"):
            at = part.schema.get_field_index(name)
            part = part.set_column(at, part.schema.field(name), pc.divide(part[name], 2))
    assert pc.sum(part["flops"]).as_py() == once * 2**34 > Decimal(2**63)
