"""Gap chains: every picosecond of a window's gaps, and what stands behind the larger ones."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.case_text import parse_case, read_case
from conformance.profile_tables import profile_of
from xprof_py.postprocess.analyses import gap_chains
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.xspace import read_xspace

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"
CASES = Path(__file__).parent.parent / "conformance" / "cases"
MS = 10**9


@cache
def case(name: str) -> Profile:
    return join_profile(profile_of(read_case(CASES / f"{name}.case"), "shard"))


@cache
def recorded(name: str) -> Profile:
    return join_profile(read_xspace(DATA / f"{name}.xplane.pb.gz"))


def gap_time(profile: Profile) -> dict[tuple[int, int, str], int]:
    """From the breakdown: what no leaf covered, by cause."""
    sums: dict[tuple[int, int, str], int] = defaultdict(int)
    causes = ("compiler", "input", "checkpoint", "host", "device_wait", "no_work", "unknown")
    for row in profile["breakdown"].to_pylist():
        if row["kind"] == "step" and row["class"] in causes and row["exclusive_ps"]:
            sums[row["lane"], row["step"], row["class"]] += row["exclusive_ps"]
    return dict(sums)


def chain_time(profile: Profile) -> dict[tuple[int, int, str], int]:
    sums: dict[tuple[int, int, str], int] = defaultdict(int)
    for row in gap_chains.partial(profile).to_pylist():
        sums[row["lane"], row["step"], row["cause"]] += row["length_ps"]
    return dict(sums)


@pytest.mark.parametrize("name", sorted(path.stem for path in CASES.glob("*.case")))
def test_the_rows_of_a_window_sum_to_its_gaps(name: str) -> None:
    assert chain_time(case(name)) == gap_time(case(name))


@pytest.mark.parametrize("name", ["planted_recompile", "transformer_async20", "planted_h2d", "collectives_4dev"])
def test_so_they_do_in_recorded_captures(name: str) -> None:
    assert chain_time(recorded(name)) == gap_time(recorded(name))


def test_only_the_larger_gaps_have_rows_of_their_own() -> None:
    profile = recorded("transformer_async20")
    rows = gap_chains.partial(profile).to_pylist()
    per_window: dict[int, set[int]] = defaultdict(set)
    window_ps = {w["step"]: w["end_ps"] - w["start_ps"] for w in profile["windows"].to_pylist() if w["kind"] == "step"}
    for row in rows:
        if row["gap"] is not None:
            per_window[row["step"]].add(row["gap"])
    assert all(len(found) <= gap_chains.LARGEST for found in per_window.values())
    own = {(row["step"], row["gap"]): 0 for row in rows if row["gap"] is not None}
    for row in rows:
        if row["gap"] is not None:
            own[row["step"], row["gap"]] += row["length_ps"]
    assert all(length * gap_chains.LEAST_SHARE >= window_ps[step] for (step, _), length in own.items())
    assert len(rows) < profile["gaps"].num_rows / 10


def test_a_late_launch_is_followed_to_its_host_spans() -> None:
    """Hand answer of the case: the gap 95..100 of step 1 came of a launch 80..100: 3 ms input, 2 ms dispatch."""
    rows = [row for row in gap_chains.partial(case("late_launch")).to_pylist() if row["step"] == 1]
    assert [(row["cause"], row["length_ps"]) for row in rows] == [("input", 3 * MS), ("host", 2 * MS)]
    for row in rows:
        assert (row["start_ps"], row["end_ps"]) == (95 * MS, 100 * MS)
        assert (row["before_op"], row["after_op"]) == ("dot.1", "dot.1")
        # XLA's own launch event begins 2 ps inside the dispatch of the case.
        assert (row["launch_start_ps"], row["launch_end_ps"], row["launch_step"]) == (80 * MS + 2, 100 * MS, 1)
        assert row["join"] == "order"
        assert row["program"] == "jit_f"
        assert row["cause_step"] == 1
    waited, dispatched = rows
    assert (waited["event_start_ps"], waited["event_duration_ps"]) == (50 * MS, 30 * MS)
    assert dispatched["function"] == "f"
    assert dispatched["source"] == dispatched["program_source"]


def test_a_compile_names_its_function_and_where_it_is() -> None:
    rows = gap_chains.partial(recorded("planted_recompile")).to_pylist()
    longest = max((row for row in rows if row["step"] == 3), key=lambda row: row["length_ps"])
    assert longest["cause"] == "compiler"
    assert longest["function"] == "mlp_step"
    assert longest["source"].endswith("planted.py:31")
    assert longest["program"] == "jit_mlp_step"


def test_two_functions_of_one_name_have_no_source_that_could_be_wrong() -> None:
    text = """
title: two lambdas
unit ms
capture 0..60

program <lambda>@1 at a.py:1
  dot.1 = dot()
program <lambda>@2 at a.py:9
  dot.2 = dot()

thread main
  step 0 0..60
    launch <lambda> 10..20
    wait 20..29
    launch <lambda> 30..40
    wait 40..49

lane 0
  run <lambda>@1 1
    dot.1 20..28
  run <lambda>@2 2
    dot.2 40..48
"""
    rows = gap_chains.partial(join_profile(profile_of(parse_case(text, "here"), "shard"))).to_pylist()
    host = [row for row in rows if row["cause"] == "host"]
    assert host
    assert {row["source"] for row in host} == {None}
    # The launched program is known, and so is its place.
    assert {row["program_source"] for row in host} == {"a.py:1", "a.py:9"}


def test_a_process_without_a_device_has_its_spans() -> None:
    rows: list[dict[str, Any]] = gap_chains.partial(case("no_device")).to_pylist()
    assert rows
    assert {row["after_op"] for row in rows} == {None}
    assert all(row["evidence"] for row in rows)


def test_the_order_of_merging_does_not_matter() -> None:
    a, b = gap_chains.partial(case("late_launch")), gap_chains.partial(case("two_lanes"))
    assert gap_chains.finish(gap_chains.merge(a, b)).num_rows == a.num_rows + b.num_rows
