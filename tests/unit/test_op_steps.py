"""Ops per step: sums by hand, an op's identity across compiles, and every picosecond of a recorded capture."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.case_text import parse_case
from conformance.profile_tables import profile_of
from xprof_py.postprocess.analyses import op_steps
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.xspace import read_xspace

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"

RECOMPILED = """
title: Two compiles of one function, with other numbers in their names
unit ms
capture 0..40

program f@1 at train.py:10
  dot.1 = dot()
  dot.2 = dot()
program f@2 at train.py:10
  dot.7 = dot()
  dot.8 = dot()

thread main
  step 0 0..20
    launch f 0..2
    wait 2..19
  step 1 20..40
    put 20..21
    launch f 21..22
    wait 22..39

lane 0
  run f@1 1
    dot.1 2..5
    dot.2 5..9
    dot.1 9..10
  run f@2 2
    dot.7 24..26
    dot.8 26..31
  copy 21..23
"""


def joined(text: str, host: str = "host0") -> Profile:
    return join_profile(replace(profile_of(parse_case(text, "here"), "shard"), host=host))


def by_op(table: Any) -> dict[str, dict[str, Any]]:
    return {row["op"]: row for row in table.to_pylist()}


def test_steps_of_two_compiles_are_one_row_per_op() -> None:
    """op_name has the instruction's name here, so the four are four ops; opcode and source are the same."""
    rows = by_op(op_steps.partial(joined(RECOMPILED)))
    assert rows["dot.1"]["steps"] == [0]
    assert rows["dot.1"]["total_ps"] == [4 * 10**9]
    assert rows["dot.1"]["count"] == [2]
    assert rows["dot.8"]["steps"] == [1]
    assert rows["dot.8"]["total_ps"] == [5 * 10**9]
    assert {row["source"] for op, row in rows.items() if op.startswith("dot")} == {"train.py:10"}


def test_ranks_tell_equal_ops_apart_and_join_the_compiles() -> None:
    profile = joined(RECOMPILED)
    hlo = profile["hlo_ops"].to_pydict()
    same = profile.with_tables(
        hlo_ops=type(profile["hlo_ops"]).from_pydict(
            {**hlo, "op_name": ["jit(f)/dot_general"] * len(hlo["op_name"])}, schema=profile["hlo_ops"].schema
        )
    )
    rows = [row for row in op_steps.partial(same).to_pylist() if row["opcode"] == "dot"]
    assert [(row["rank"], row["op"], row["steps"]) for row in rows] == [(0, "dot.1", [0, 1]), (1, "dot.2", [0, 1])]
    assert [row["total_ps"] for row in rows] == [[4 * 10**9, 2 * 10**9], [4 * 10**9, 5 * 10**9]]


def test_a_copy_belongs_to_the_window_it_starts_in() -> None:
    rows = by_op(op_steps.partial(joined(RECOMPILED)))
    assert rows["copy to the device"]["steps"] == [1]
    assert rows["copy to the device"]["total_ps"] == [2 * 10**9]
    assert rows["copy to the device"]["class"] == "host_device"


@pytest.mark.parametrize("name", ["transformer_async20", "planted_h2d", "planted_recompile", "collectives_4dev"])
def test_every_picosecond_of_the_steps_ops_is_in_it(name: str) -> None:
    profile = join_profile(read_xspace(DATA / f"{name}.xplane.pb.gz"))
    table = op_steps.partial(profile)
    sums: dict[tuple[int, int], int] = defaultdict(int)
    for row in table.to_pylist():
        assert len(row["steps"]) == len(row["total_ps"]) == len(row["count"])
        for step, length in zip(row["steps"], row["total_ps"], strict=True):
            sums[row["lane"], step] += length
    expected: dict[tuple[int, int], int] = defaultdict(int)
    runs = profile["runs"].to_pylist()
    for op in profile["ops"].to_pylist():
        if op["leaf"] and op["run"] is not None and runs[op["run"]]["step"] is not None:
            expected[op["lane"], runs[op["run"]]["step"]] += op["duration_ps"] + op["open_ps"]
    copies = [row for row in table.to_pylist() if row["opcode"] == "copy" and not row["program"]]
    for row in copies:
        for step, length in zip(row["steps"], row["total_ps"], strict=True):
            sums[row["lane"], step] -= length
    assert {key: value for key, value in sums.items() if value} == expected
    keys = [(row["lane"], *(row[text] for text in op_steps.TEXTS), row["rank"]) for row in table.to_pylist()]
    assert len(set(keys)) == len(keys)


def test_the_order_of_merging_does_not_matter() -> None:
    a, b, c = (op_steps.partial(joined(RECOMPILED, host)) for host in ("a", "b", "c"))
    left = op_steps.finish(op_steps.merge(op_steps.merge(a, b), c))
    assert left.equals(op_steps.finish(op_steps.merge(c, op_steps.merge(b, a))))
    assert left.num_rows == 3 * a.num_rows


def test_a_capture_without_steps_has_no_rows() -> None:
    empty = join_profile(profile_of(parse_case("title: nothing\nunit ms\ncapture 0..1\n", "here"), "shard"))
    assert op_steps.finish(op_steps.partial(empty)).num_rows == 0
