"""A process that is alone in its job and has one lane is asked by nobody: its details are not worked out."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.case_text import read_case
from conformance.profile_tables import profile_of
from xprof_py.postprocess.fleet.analysis import partials, reduce_partials

CASES = Path(__file__).parent.parent / "conformance" / "cases"


@pytest.mark.parametrize("name", ["copies_after_last_op", "two_lanes"])
def test_what_is_left_out_changes_no_answer(name: str) -> None:
    profile = profile_of(read_case(CASES / f"{name}.case"), "shard")
    alone, one_of_many = partials(profile, alone=True), partials(profile)
    assert (alone.detail is None) == (profile["lanes"].num_rows < 2 and len(alone.process["devices"]) < 2)
    assert one_of_many.detail is not None
    found, expected = (reduce_partials([part], []) for part in (alone, one_of_many))
    assert found.summary == expected.summary
    assert found.tables == expected.tables
