"""Eight ranks of one host, each file shifted by a known time: the clocks are found again, by collectives alone.

What is true of the clocks of these files: they are one, that of the host; three all-reduces end on all ranks within
7 us. So an offset that is found must be the one that was put in, and after alignment their ends must coincide.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shifted_ranks import ARCHIVE, SHIFT_US, reading, solved

from xprof_py.postprocess.clocks.clock_map import clock_rows, to_fleet_ns
from xprof_py.postprocess.clocks.solve import Solution
from xprof_py.postprocess.match.collectives import Collectives
from xprof_py.postprocess.match.endpoints import Endpoints

pytestmark = [
    pytest.mark.real_traces,
    pytest.mark.skipif(not ARCHIVE.exists(), reason=f"{ARCHIVE} is absent: XPROF_PY_REAL_TRACES names the folder"),
]
WITHIN_NS = 5_000


def every_offset_is_found(solution: Solution, shift_us: Mapping[str, int]) -> None:
    """Within 5 us, and within the bound that is stated. The first rank's clock is the reference."""
    rows = clock_rows(solution)
    first_us = shift_us[rows[0]["host"]]
    for row in rows:
        wrong_ns = row["offset_ns"] - 1000 * (shift_us[row["host"]] - first_us)
        assert abs(wrong_ns) <= WITHIN_NS, row
        assert abs(wrong_ns) <= row["error_ns"]
        assert abs(row["drift_ppm"]) <= 20, "three collectives in 4 ms tell no rate"
        # Certified is what the shortest collectives leave, not what ends suggest.
        assert row["method"] == "reference" or 100_000 < row["error_ns"] <= 1_000_000


def spread_of_ends_us(found: Collectives, solution: Solution) -> list[float]:
    """Per all-reduce: the last end less the first, on fleet time."""
    out = []
    for number in [i for i, kind in enumerate(found.kind) if kind == "all-reduce"]:
        mine = np.flatnonzero(found.of == number)
        ends = [
            int(to_fleet_ns(solution, found.ranks[found.rank[at]].process, found.end_ns[at : at + 1])[0][0])
            for at in mine.tolist()
        ]
        out.append((max(ends) - min(ends)) / 1000)
    return out


@pytest.fixture(scope="module")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> list[Endpoints]:
    return reading(tmp_path_factory.mktemp("shifted"), SHIFT_US, {})


SHIFTS = {f"rank{rank}": shift for rank, shift in enumerate(SHIFT_US)}


def test_offsets_that_were_put_in_are_found_within_5_us(shifted: list[Endpoints]) -> None:
    found, solution = solved(shifted)
    every_offset_is_found(solution, SHIFTS)
    spread_us = spread_of_ends_us(found, solution)
    assert len(spread_us) == 3
    assert max(spread_us) <= 10


def test_a_shift_moves_the_solution_by_itself(tmp_path: Path, shifted: list[Endpoints]) -> None:
    """Whatever the true clocks were: what is added to a file is added to its offset, to the microsecond."""
    as_they_are = reading(tmp_path, (0,) * len(SHIFT_US), {})
    plain, moved = (clock_rows(solved(endpoints)[1]) for endpoints in (as_they_are, shifted))
    for before, after, shift_us in zip(plain, moved, SHIFT_US, strict=True):
        assert abs(after["offset_ns"] - before["offset_ns"] - 1000 * shift_us) <= 1000
        assert abs(after["error_ns"] - before["error_ns"]) <= 1000


@pytest.mark.parametrize("missing", [0, 5])
def test_a_missing_rank_costs_itself(shifted: list[Endpoints], missing: int) -> None:
    every_offset_is_found(solved([*shifted[:missing], *shifted[missing + 1 :]])[1], SHIFTS)


def test_lost_and_doubled_events_and_other_programs_cost_themselves(tmp_path: Path) -> None:
    """Rank 2 has lost its second all-reduce. Rank 3 has its third twice. Rank 6 runs collectives that no other does."""

    def reduces(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = [e for e in events if e["ph"] == "X" and e["name"].startswith("ncclKernel_AllReduce")]
        return sorted(found, key=lambda e: e["ts"])

    def without_one(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        gone = reduces(events)[1]
        return [e for e in events if e is not gone]

    def twice(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*events, reduces(events)[2]]

    def others(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        first, *_, last = reduces(events)
        name = "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
        return [*events, *({**first, "name": name, "ts": last["ts"] + 2000 * (1 + i), "dur": 90} for i in range(4))]

    _, solution = solved(reading(tmp_path, SHIFT_US, {2: without_one, 3: twice, 6: others}))
    every_offset_is_found(solution, SHIFTS)
