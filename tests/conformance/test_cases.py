"""Every case through the join and the breakdown, by three ways in, compared with the answer worked out by hand.

``shard``: our shard beside XLA's trace, as a capture makes them. ``xspace``: XLA's profiler alone, the user's spans as
its annotations. ``bytes``: the same as a serialized XSpace through the real readers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.answers import answer_of, differences
from conformance.case_text import Case, read_case
from conformance.invariants import broken, communication_differences
from conformance.profile_tables import metadata_of, profile_of
from conformance.trace_events import build_lines
from conformance.xspace_bytes import xspace_of
from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import breakdown, communication, launch_bound
from xprof_py.postprocess.fleet.analysis import partials, reduce_partials
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.xspace import read_xspace

CASES = {path.stem: path for path in sorted((Path(__file__).parent / "cases").glob("*.case"))}
WAYS = ("shard", "xspace", "bytes")
RUNS = [
    (name, way) for name, path in CASES.items() for way in WAYS if way == "shard" or not read_case(path).needs_shard
]


def read_profile(case: Case, way: str, folder: Path, order: list[int] | None = None) -> Profile:
    """The Profile that the readers make of ``case``, by that way; ``order`` (for bytes) permutes lines and events."""
    if way == "shard":
        return profile_of(case, "shard")
    if way == "xspace":
        return profile_of(case, "xspace")
    path = folder / "rank0.xplane.pb"
    path.write_bytes(xspace_of(case, order))
    profile = read_xspace(path)
    # what the run file beside the XSpace says
    return replace(profile, metadata={**profile.metadata, **metadata_of(case)})


@pytest.mark.parametrize(("name", "way"), RUNS, ids=[f"{name}-{way}" for name, way in RUNS])
def test_the_answer_is_the_one_worked_out_by_hand(name: str, way: str, tmp_path: Path) -> None:
    case = read_case(CASES[name])
    joined = join_profile(read_profile(case, way, tmp_path))
    partial = breakdown.partial(joined)
    assert broken(joined, partial) == []
    wrong = differences(case, answer_of(joined, partial))
    assert not wrong, "\n".join([case.title, *wrong])


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name, way in RUNS if read_case(CASES[name]).verdict is not None]
)
def test_the_verdict_is_the_one_worked_out_by_hand(name: str, way: str, tmp_path: Path) -> None:
    case = read_case(CASES[name])
    found = reduce_partials([partials(read_profile(case, way, tmp_path))], []).summary["verdict"]
    assert case.verdict is not None
    if case.verdict.bottleneck is None:
        assert found is None
        return
    assert found["bottleneck"] == case.verdict.bottleneck
    without_ps = case.verdict.without_ps
    assert found["step_ms_without"] == (None if without_ps is None else pytest.approx(without_ps / 1e9, abs=1e-9))


@pytest.mark.parametrize("name", [name for name, way in RUNS if way == "bytes"])
def test_lines_and_events_in_another_order_give_the_same_answer(name: str, tmp_path: Path) -> None:
    case = read_case(CASES[name])
    answers = []
    for order in (None, [3, 1, 4, 15, 9, 2, 6, 5], [0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12]):
        joined = join_profile(read_profile(case, "bytes", tmp_path, order))
        answers.append(answer_of(joined, breakdown.partial(joined)))
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("name", CASES)
def test_files_in_another_order_give_the_same_answer(name: str) -> None:
    case = read_case(CASES[name])
    rows = list(range(len(build_lines(case, "shard"))))
    answers = []
    for order in (rows, rows[::-1], rows[1::2] + rows[::2]):
        joined = join_profile(profile_of(case, "shard", order))
        answers.append(answer_of(joined, breakdown.partial(joined)))
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("name", CASES)
def test_names_of_the_runtime_threads_do_not_matter(name: str) -> None:
    """They are other names in another version of jax."""
    profile = profile_of(read_case(CASES[name]), "shard")
    names = [f"tf_XLAExecute/{row}" if "/" in n else n for row, n in enumerate(profile["lines"]["name"].to_pylist())]
    lines = profile["lines"].to_pydict()
    renamed = profile.with_tables(lines=schema.table("lines", {**lines, "name": names}))
    answers = []
    for one in (profile, renamed):
        joined = join_profile(one)
        answers.append(answer_of(joined, breakdown.partial(joined)))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", CASES)
def test_merge_and_finish_keep_every_picosecond(name: str) -> None:
    joined = [join_profile(replace(profile_of(read_case(CASES[name]), "shard"), host=host)) for host in ("a", "b", "c")]
    a, b, c = (breakdown.partial(profile) for profile in joined)
    left = breakdown.finish(breakdown.merge(breakdown.merge(a, b), c))
    right = breakdown.finish(breakdown.merge(a, breakdown.merge(b, c)))
    swapped = breakdown.finish(breakdown.merge(c, breakdown.merge(b, a)))
    assert left.equals(right)
    assert left.equals(swapped)
    rows = left.to_pylist()
    assert len(rows) == 3 * len(breakdown.finish(a))
    for row in rows:
        assert sum(row[f"{name}_ps"] for name in schema.CLASSES) == row["window_ps"]


FIELDS = {"flight": "in_flight_ps", "count": "count"}


@pytest.mark.parametrize("name", [name for name, path in CASES.items() if read_case(path).communication])
def test_communication_is_the_one_worked_out_by_hand(name: str) -> None:
    case = read_case(CASES[name])
    joined = join_profile(profile_of(case, "shard"))
    phases = tuple(set(joined["steps"]["phase"].to_pylist()))
    found = {row["kind"]: row for row in communication.finish(communication.partial(joined), phases).to_pylist()}
    assert found.keys() == {kind for kind, _ in case.communication}
    for kind, stated in case.communication:
        assert stated == {field: found[kind][FIELDS.get(field, f"{field}_ps")] for field in stated}


@pytest.mark.parametrize("name", [name for name, path in CASES.items() if read_case(path).launch_bound])
def test_launch_bound_steps_are_those_worked_out_by_hand(name: str) -> None:
    case = read_case(CASES[name])
    rows = launch_bound.finish(launch_bound.partial(join_profile(profile_of(case, "shard")))).to_pylist()
    assert {(row["name"], row["number"]): row["launch_bound"] for row in rows} == {
        (step.name, step.number): bound for step, bound in case.launch_bound
    }


@pytest.mark.parametrize("name", CASES)
def test_communication_sums_to_its_classes_exactly(name: str) -> None:
    joined = join_profile(profile_of(read_case(CASES[name]), "shard"))
    assert communication_differences(joined) == []
