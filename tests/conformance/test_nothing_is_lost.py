"""Whatever a trace lacks, it is counted: runs, ops, steps and hosts; and no order of files or repetition is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xprof_py
from conformance.case_text import Case, all_ops, parse_case, read_case, walk
from conformance.invariants import broken
from conformance.profile_tables import profile_of
from conformance.random_cases import case_texts
from conformance.xspace_bytes import xspace_of
from object_counts import peak_objects
from xprof_py.postprocess.analyses import breakdown
from xprof_py.postprocess.fleet.analysis import Analysis, analyse, partials, reduce_partials
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.readers.xspace import read_xspace

CASES = Path(__file__).parent / "cases"
CAREFUL = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def without_some_launches(case: Case, random: Random) -> Case:
    """As a trace has it that lost host events: dispatches are gone, what they launched is not."""
    for thread in case.threads:
        for span in walk(thread.spans):
            span.children = [c for c in span.children if c.kind != "dispatch" or random.random() < 0.6]
        thread.spans = [s for s in thread.spans if s.kind != "dispatch" or random.random() < 0.6]
    return case


@CAREFUL
@given(
    case_texts() | case_texts(cut=True) | case_texts(cut=True, lanes=2),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_runs_ops_and_steps_are_all_there_or_counted(text: str, lose: bool, random: Random) -> None:
    case = parse_case(text, "random")
    if lose:
        case = without_some_launches(case, random)
    profile = profile_of(case, "shard")
    joined = join_profile(profile)
    assert broken(joined, breakdown.partial(joined)) == []

    counted = dict(
        zip(joined["diagnostics"]["code"].to_pylist(), joined["diagnostics"]["count"].to_pylist(), strict=True)
    )
    how = Counter(joined["runs"]["join"].to_pylist())
    assert counted.get("join_ambiguous", 0) == how["ambiguous"]
    assert counted.get("join_none", 0) == how["none"]
    held = [run for lane in case.lanes for run in lane.runs if any(op.end_ps is not None for op in all_ops(run.ops))]
    assert sum(how.values()) == len(held)

    executed = sum(op.end_ps is not None for run in held for op in all_ops(run.ops))
    assert pc.sum(pc.is_valid(joined["ops"]["run"])).as_py() == executed

    steps = sorted((s.name, s.number) for t in case.threads for s in walk(t.spans) if s.kind == "step")
    assert sorted(zip(joined["steps"]["name"].to_pylist(), joined["steps"]["number"].to_pylist(), strict=True)) == steps

    summary = reduce_partials([partials(profile)], []).summary
    assert sum(summary["steps"]["phases"].values()) == summary["steps"]["count"]
    missing = {(row["name"], row["step"]) for row in summary["steps"]["missing"]}
    assert len(missing) == summary["steps"]["phases"]["unmeasured"]
    assert all(row["why"] for row in summary["steps"]["missing"])


def as_bytes(found: Analysis) -> bytes:
    """Everything that an analysis is written from."""
    tables = {name: table.to_pylist() for name, table in found.tables.items()}
    return orjson.dumps([found.summary, tables], default=str)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Six hosts, one of which is cut off in its middle, one is no XSpace, one is empty."""
    folder = tmp_path_factory.mktemp("job")
    for rank, name in enumerate(
        ("late_launch", "scan_psum", "two_lanes", "outlier_unknown", "hidden_copy", "no_device")
    ):
        content = xspace_of(read_case(CASES / f"{name}.case"))
        (folder / f"{rank}.xplane.pb").write_bytes(content if rank != 3 else content[: len(content) // 2])
    (folder / "6.xplane.pb").write_bytes(b"\x0a\xff\x01")
    (folder / "7.xplane.pb").write_bytes(b"")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def first(job: list[Path]) -> bytes:
    return as_bytes(analyse(job))


@settings(CAREFUL, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=st.randoms(use_true_random=False))
def test_hosts_in_any_order_are_the_same_bytes(random: Random, job: list[Path], first: bytes) -> None:
    shuffled = [*job]
    random.shuffle(shuffled)
    assert as_bytes(analyse(shuffled)) == first


def test_every_host_is_analysed_or_named_with_its_reason(job: list[Path]) -> None:
    summary = analyse(job).summary
    read = {path for host in summary["hosts"] for path in host["source"]}
    lost = {row["file"]: row["message"] for row in summary["diagnostics"] if row["code"] == "unreadable"}
    assert read | lost.keys() == {str(file) for file in job}
    assert read & lost.keys() == set()
    assert {Path(file).name[0] for file in lost} == {"3", "6", "7"}
    assert all(lost.values())


# --- memory: columns, never one object per event ----------------------------------------------------------------------


def many_steps(steps: int) -> Case:
    """A loop of ``steps`` steps with twenty ops each."""
    host, device = [], []
    for step in range(steps):
        at = step * 100
        host += [f"  step {step} {at}..{at + 90}", f"    launch f {at + 2}..{at + 8}", f"    wait {at + 8}..{at + 90}"]
        device += [f"  run f {step + 1}", *(f"    dot.{i} {at + 10 + i * 3}..{at + 12 + i * 3}" for i in range(20))]
    head = ["title: many", "unit us", f"capture 0..{steps * 100 + 100}"]
    return parse_case("\n".join([*head, "thread main", *host, "lane 0", *device]) + "\n", "many")


def objects_grow_with(small: Callable[[], Any], large: Callable[[], Any], steps: int = 0) -> None:
    """``large`` has ten times the events of ``small``, some 9,000 more: one object for each would be as many.

    A few hundred come and go in the interpreter itself, and reading makes some dozens in all. Every one of the
    ``steps`` more may have a few of its own: its name, its phase, the reason.
    """
    few, many = peak_objects(small), peak_objects(large)
    assert many <= 1.2 * few + 400 + 4 * steps, f"{few} objects became {many}"


def test_reading_an_xspace_makes_no_object_per_event(tmp_path: Path) -> None:
    files = []
    for steps in (20, 200):
        files.append(tmp_path / f"{steps}.xplane.pb")
        files[-1].write_bytes(xspace_of(many_steps(steps)))
    assert read_xspace(files[1])["events"].num_rows > 9000
    objects_grow_with(lambda: read_xspace(files[0]), lambda: read_xspace(files[1]))


def test_reading_a_shard_makes_no_object_per_event(tmp_path: Path) -> None:
    shards = []
    for count in (1_000, 10_000):
        with xprof_py.capture(tmp_path / str(count), xla=False):
            for number in range(count):
                with xprof_py.trace("work", number=number):
                    pass
        shards.append(next((tmp_path / str(count) / "shards").iterdir()))
    assert read_shard(shards[1])["events"].num_rows >= 10_000
    objects_grow_with(lambda: read_shard(shards[0]), lambda: read_shard(shards[1]))


def test_joining_makes_no_object_per_event() -> None:
    few, many = (profile_of(many_steps(steps), "shard") for steps in (20, 200))
    objects_grow_with(lambda: join_profile(few), lambda: join_profile(many), steps=180)
