"""Collectives of PyTorch across ranks: one that is lost costs itself alone, a skewed clock makes nobody late."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from kineto_traces import Trace

from xprof_py.postprocess.fleet.analysis import Analysis, analyse

NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def ranks(
    folder: Path, late_us: dict[int, float], shift_us: dict[int, float], *, count: int, seq: bool, lost: tuple[int, int]
) -> Analysis:
    """``count`` ranks, 10 all-reduces of 1024 floats, one a step of 2000 us.

    Each begins 1000 us into its step, later on a rank by its ``late_us``, and ends on all 400 us after that. ``lost``:
    (rank, number) without its kernel and call.
    """
    files = []
    for rank in range(count):
        trace, shift = Trace(rank, count), shift_us.get(rank, 0)
        for k in range(10):
            base = 2000 * k + shift
            trace.step(k, base, base + 2000).launched((base + 10, base + 20), (base + 30, base + 900))
            said = {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float"}
            group = {"Process Group Name": "0", "Process Group Ranks": str(list(range(count))), "Group size": count}
            more = {"Seq": k} if seq else {}
            start = base + 1000 + late_us.get(rank, 0)
            if (rank, k) != lost:
                trace.launched((base + 950, base + 960), (start, base + 1400), NAME, stream=20, **said, **group, **more)
        files.append(trace.written(folder / f"rank{rank}.json"))
    return analyse(files)


@pytest.mark.parametrize("seq", [True, False])
def test_a_lost_collective_costs_itself_alone(tmp_path: Path, seq: bool) -> None:
    """Two ranks, rank 1 without the kernel of number 3. Matched by order in the group, 7 of 10 would be wrong."""
    found = ranks(tmp_path, {1: 50}, {}, count=2, seq=seq, lost=(1, 3)).tables["collectives"].to_pylist()
    assert Counter(row["seen"] for row in found) == {2: 9, 1: 1}
    assert [row["number"] for row in found if row["seen"] == 1] == [3]
    assert {row["method"] for row in found if row["seen"] == 2} == {"sequence" if seq else "order"}
    assert {row["bytes"] for row in found} == {4096}
    # 50 us are less than the clocks of two hosts can be wrong by here: the start of one all-reduce and the end of the
    # other's bound them. So nobody is called last.
    assert not any(row["claimed"] for row in found)
    assert {row["bound_ns"] >= 50_000 for row in found if row["seen"] == 2} == {True}


def test_a_skewed_clock_makes_nobody_late(tmp_path: Path) -> None:
    """Four ranks, rank 1 truly 200 us late, rank 2's clock 5000 us ahead: by raw times rank 2 is last in all."""
    analysis = ranks(tmp_path, {1: 200}, {2: 5000}, count=4, seq=True, lost=(-1, -1))
    truth = {"rank0": 0, "rank1": 0, "rank2": 5_000_000, "rank3": 0}
    for row in analysis.summary["clocks"]:
        assert abs(row["offset_ns"] - truth[row["host"]]) <= row["error_ns"]
        assert row["error_ns"] <= 401_000  # from an all-reduce's start to its end, 400, and what a clock may drift
    found = analysis.tables["collectives"].to_pylist()
    assert [row["seen"] for row in found] == [4] * 10
    assert "rank2" not in {row["last_host"] for row in found if row["claimed"]}
    assert {row["kind"] for row in found} == {"all-reduce"}
