"""Recorded trainings, each with its steps marked and as if they were not: the same answer within five points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unmarked import without_steps

from xprof_py.postprocess.fleet.analysis import partials, reduce_partials
from xprof_py.postprocess.readers.process import read_process
from xprof_py.postprocess.readers.sources import find_sources

RECORDED = sorted((Path(__file__).resolve().parents[1] / "data" / "jax_cpu").glob("*.xplane.pb.gz"))


@pytest.mark.parametrize("file", RECORDED, ids=[file.name.split(".")[0] for file in RECORDED])
def test_the_answer_does_not_need_the_marks(file: Path) -> None:
    profile = read_process(find_sources([file]).processes[0])
    marked, unmarked = (reduce_partials([partials(p)], []).summary for p in (profile, without_steps(profile)))
    assert (marked["steps"]["source"], unmarked["steps"]["source"]) == ("annotated", "inferred")
    assert unmarked["steps"]["count"] == marked["steps"]["count"]
    # The first step is the one whose beginning nobody knows.
    assert unmarked["steps"]["phases"]["steady"] == marked["steps"]["phases"]["steady"] - 1
    assert _shares(unmarked) == pytest.approx(_shares(marked), abs=0.05)
    assert unmarked["verdict"]["bottleneck"] == marked["verdict"]["bottleneck"]


def _shares(summary: dict[str, Any]) -> dict[str, float]:
    return {name: line["share"] for name, line in summary["breakdown"].items()}
