"""The leaves of a profile's ops and their steps: made once, and anew for other tables."""

from __future__ import annotations

from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses.leaves import leaves, step_of_leaves
from xprof_py.postprocess.profile import Profile


def ops(leaf: list[bool], run: list[int | None]) -> dict[str, object]:
    count = len(leaf)
    return {
        "event": [0] * count,
        "lane": [0] * count,
        "run": run,
        "hlo_op": [None] * count,
        "join": ["none"] * count,
        "class": ["compute"] * count,
        "leaf": leaf,
        "start_ps": [10 * at for at in range(count)],
        "duration_ps": [5] * count,
        "open_ps": [0] * count,
        "stated_op": [None] * count,
    }


def joined(leaf: list[bool], run: list[int | None], steps_of_runs: list[int | None]) -> Profile:
    runs = {
        "lane": [0] * len(steps_of_runs),
        "program": [None] * len(steps_of_runs),
        "run_id": [1] * len(steps_of_runs),
        "launch": [None] * len(steps_of_runs),
        "step": steps_of_runs,
        "start_ps": [0] * len(steps_of_runs),
        "end_ps": [100] * len(steps_of_runs),
        "join": ["none"] * len(steps_of_runs),
    }
    windows = {"lane": [0, 0], "kind": ["head", "step"], "step": [None, 7], "start_ps": [0, 15], "end_ps": [15, 25]}
    tables = {"ops": ops(leaf, run), "runs": runs, "windows": windows}
    return Profile("h", 0, 0, 100, {name: schema.table(name, columns) for name, columns in tables.items()})


def test_a_leaf_is_of_its_runs_step_and_a_copy_of_the_window_it_starts_in() -> None:
    # op 0 holds the others; 1 is of run 0 (no step), 2 a copy at 20 in [15, 25), 3 of run 1 (step 4), 4 a copy at 40
    profile = joined([False, True, True, True, True], [0, 0, None, 1, None], [None, 4])
    assert leaves(profile)["start_ps"].to_pylist() == [10, 20, 30, 40]
    assert step_of_leaves(profile).tolist() == [-1, 7, 4, -1]


def test_where_all_are_leaves_nothing_is_copied() -> None:
    profile = joined([True, True], [0, 0], [3])
    assert leaves(profile) is profile["ops"]


def test_other_tables_have_other_leaves_and_steps() -> None:
    profile = joined([True, False], [0, 0], [3])
    assert leaves(profile) is leaves(profile)
    assert step_of_leaves(profile) is step_of_leaves(profile)
    assert step_of_leaves(profile).tolist() == [3]
    other = joined([False, True], [0, 0], [5])
    assert step_of_leaves(profile.with_tables(runs=other["runs"])).tolist() == [5]
    assert leaves(profile.with_tables(ops=other["ops"]))["start_ps"].to_pylist() == [10]
