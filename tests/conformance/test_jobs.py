"""Every case of several hosts through both passes, compared with the answer worked out by hand."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from conformance.job_text import Job, read_job
from xprof_py.postprocess.fleet.analysis import Analysis, partials, reduce_partials
from xprof_py.postprocess.schema import CLASSES

JOBS = {path.stem: path for path in sorted((Path(__file__).parent / "jobs").glob("*.job"))}


def analysed(job: Job) -> Analysis:
    return reduce_partials([partials(profile) for profile in job.profiles()], [], job.clocks())


@pytest.fixture(params=JOBS, scope="module")
def case(request: pytest.FixtureRequest) -> tuple[Job, Analysis]:
    job = read_job(JOBS[request.param])
    return job, analysed(job)


def test_the_jobs_are_found() -> None:
    assert len(JOBS) >= 5


def test_stated_lanes_add_up_to_their_windows(case: tuple[Job, Analysis]) -> None:
    job, analysis = case
    for host, amounts in job.lanes.items():
        rows = analysis.tables["step_classes"]
        rows = rows.filter(pc.and_(pc.equal(rows["host"], host), pc.equal(rows["kind"], "step")))
        assert sum(amounts.values()) == pc.sum(rows["window_ps"]).as_py()


def test_the_job_view_is_the_one_worked_out_by_hand(case: tuple[Job, Analysis]) -> None:
    job, analysis = case
    if None in job.clocks():
        assert "job_breakdown" not in analysis.tables
        return
    table = analysis.tables["job_breakdown"].filter(pc.equal(analysis.tables["job_breakdown"]["kind"], "step"))
    for host, amounts in job.lanes.items():
        mine = table.filter(pc.equal(table["host"], host)).group_by("class").aggregate([("exclusive_ps", "sum")])
        found = dict(zip(mine["class"].to_pylist(), mine["exclusive_ps_sum"].to_pylist(), strict=True))
        assert {name: ps for name, ps in found.items() if ps} == amounts, host


def test_windows_of_the_job_are_the_sums_of_their_classes(case: tuple[Job, Analysis]) -> None:
    _, analysis = case
    if "job_breakdown" not in analysis.tables:
        return
    table = analysis.tables["job_breakdown"]
    exclusive = np.asarray(table["exclusive_ps"]).reshape(-1, len(CLASSES)).sum(axis=1)
    assert (exclusive == np.asarray(table["window_ps"])[:: len(CLASSES)]).all()
    assert (np.asarray(table["total_ps"]) >= np.asarray(table["exclusive_ps"])).all()


def test_collectives_name_the_last(case: tuple[Job, Analysis]) -> None:
    job, analysis = case
    if job.collectives is None:
        return
    rows = analysis.tables["collectives"].to_pylist()
    found = [(r["kind"], r["last_host"], _ps(r["late_by_ns"]), _ps(r["transfer_ns"])) for r in rows]
    assert found == job.collectives


def test_stragglers_lose_what_was_worked_out(case: tuple[Job, Analysis]) -> None:
    job, analysis = case
    if job.stragglers is None:
        return
    rows = analysis.tables["stragglers"].to_pylist()
    assert {row["host"]: (row["lost_ns"] * 1000, row["cause"]) for row in rows} == job.stragglers


def test_reasons_of_lateness_are_those_worked_out(case: tuple[Job, Analysis]) -> None:
    job, analysis = case
    if job.reasons is None:
        return
    rows = analysis.tables["straggler_reasons"].to_pylist()
    assert {(r["host"], r["class"], r["reason"] or ""): r["length_ps"] for r in rows} == job.reasons


def test_reasons_add_up_to_what_the_late_one_did(case: tuple[Job, Analysis]) -> None:
    _, analysis = case
    if "stragglers" not in analysis.tables:
        return
    reasons = analysis.tables["straggler_reasons"].to_pylist()
    for rank in analysis.tables["stragglers"].to_pylist():
        mine = [row for row in reasons if (row["host"], row["lane"]) == (rank["host"], rank["lane"])]
        told = {name: sum(row["length_ps"] for row in mine if row["class"] == name) for name in CLASSES}
        assert told == {name: rank[f"{name}_ps"] for name in CLASSES}
        assert sum(told.values()) == rank["lost_ns"] * 1000


def test_steps_of_the_job_take_what_was_worked_out(case: tuple[Job, Analysis]) -> None:
    job, analysis = case
    if not job.steps:
        return
    rows = analysis.tables["job_steps"].to_pylist()
    assert {(r["name"], r["number"], r["occurrence"]): r["step_ps"] for r in rows} == job.steps


def test_replays_take_what_was_worked_out(case: tuple[Job, Analysis]) -> None:
    job, analysis = case
    if not job.without:
        return
    rows = analysis.tables["job_replay"].to_pylist()
    found = {row["removed"]: row["replayed_ps"] for row in rows}
    assert {name: found[name] for name in job.without} == job.without


def test_hosts_that_run_other_programs_are_stages() -> None:
    """a runs g, c runs h, and b both."""
    found = analysed(read_job(JOBS["culprit_behind_the_culprit"]))
    assert [(row["hosts"], row["programs"]) for row in found.summary["stages"]] == [
        (["a"], ["jit_g"]),
        (["b"], ["jit_h", "jit_g"]),
        (["c"], ["jit_h"]),
    ]
    assert [(r["host"], r["stage"], r["device_ps"]) for r in found.tables["rank_programs"].to_pylist()] == [
        ("a", 0, 54 * 10**9),
        ("b", 1, 40 * 10**9),
        ("b", 1, 19 * 10**9),
        ("c", 2, 35 * 10**9),
    ]
    assert analysed(read_job(JOBS["late_input"])).summary["stages"] is None


def test_the_raw_lanes_stay_beside_the_job(case: tuple[Job, Analysis]) -> None:
    job, analysis = case
    assert list(dict.fromkeys(lane["host"] for lane in analysis.summary["lanes"])) == list(job.hosts)
    if None not in job.clocks():
        used = analysis.summary["breakdown"]
        assert sum(line["share"] for line in used.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", JOBS)
def test_files_in_another_order_give_the_same_answer(name: str) -> None:
    job = read_job(JOBS[name])
    parts = [partials(profile) for profile in job.profiles()]
    answers = [reduce_partials(list(order), [], job.clocks()) for order in permutations(parts)]
    for answer in answers[1:]:
        assert answer.summary == answers[0].summary
        assert all(answer.tables[key].equals(answers[0].tables[key]) for key in answers[0].tables)


def _ps(ns: int | None) -> int | None:
    return None if ns is None else ns * 1000
