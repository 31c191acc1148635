"""Which ranges are steps where nobody marked any, from shards written by the recorder itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from xprof_py import _native, mark, step, trace
from xprof_py.postprocess.join.joined import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.range_steps import mark_step_ranges
from xprof_py.postprocess.readers.shard import read_shard


def recorded(folder: Path, program: Callable[[], None]) -> Profile:
    _native.recorder_start(folder / "x.xpr")
    program()
    _native.recorder_stop()
    return read_shard(folder / "x.xpr")


def steps(profile: Profile) -> list[tuple[str, int]]:
    table = join_profile(profile)["steps"]
    return list(zip(table["name"].to_pylist(), table["number"].to_pylist(), strict=True))


def codes(profile: Profile) -> list[str]:
    return list(profile["diagnostics"]["code"].to_pylist())


def told(profile: Profile, pattern: str | None) -> Profile:
    return mark_step_ranges(profile, pattern, "run/0-1.json")


def nvtx_like(name: str, **args: Any) -> Any:
    return trace(name, domain="train", **args)


def test_nvtx_ranges_called_steps_are_steps_with_their_numbers(tmp_path: Path) -> None:
    def program() -> None:
        for i in (7, 8, 10):
            with nvtx_like(f"train_step {i}"), trace("inner"):
                pass

    profile = told(recorded(tmp_path, program), None)
    assert steps(profile) == [("train_step", 7), ("train_step", 8), ("train_step", 10)]
    assert codes(profile) == ["steps_from_ranges"]


def test_spans_of_the_program_s_own_are_no_steps_by_their_name_alone(tmp_path: Path) -> None:
    def program() -> None:
        for i in range(3):
            with trace(f"step {i}"):
                pass

    profile = recorded(tmp_path, program)
    assert told(profile, None) is profile


def test_a_program_that_marks_steps_keeps_them(tmp_path: Path) -> None:
    def program() -> None:
        for i in range(3):
            with step(i), nvtx_like(f"iteration {i + 50}"):
                pass

    profile = recorded(tmp_path, program)
    assert told(profile, None) is profile
    chosen = told(profile, r"iteration (\d+)")
    assert steps(chosen) == [("iteration", 50), ("iteration", 51), ("iteration", 52)]


def test_a_payload_numbers_ranges_without_a_number(tmp_path: Path) -> None:
    def program() -> None:
        for i in (4, 6):
            with nvtx_like("step", payload=i):
                pass

    assert steps(told(recorded(tmp_path, program), None)) == [("step", 4), ("step", 6)]


def test_what_the_pattern_says_counts_whatever_the_ranges_are(tmp_path: Path) -> None:
    def program() -> None:
        for i in range(3):
            with trace("batch", size=8), trace(f"part {i}"):
                pass
        mark("batch")

    profile = recorded(tmp_path, program)
    assert steps(told(profile, "batch")) == [("batch", 0), ("batch", 1), ("batch", 2)]
    args = told(profile, "batch")["args"]
    assert args["event"].to_pylist() == sorted(args["event"].to_pylist())
    assert sorted(args["key"].to_pylist()).count("size") == 3


@pytest.mark.parametrize("pattern", ["batch", "nothing"])
def test_nothing_found_is_said_and_changes_nothing(tmp_path: Path, pattern: str) -> None:
    def program() -> None:
        with trace("a batch"):
            pass

    profile = recorded(tmp_path, program)
    out = told(profile, pattern)
    assert out["events"].equals(profile["events"])
    assert codes(out) == ["step_pattern_unmatched"]


def test_a_pattern_that_is_none_costs_itself_alone(tmp_path: Path) -> None:
    """The run file is a file like any other: somebody may have edited it."""

    def program() -> None:
        with trace("a"):
            pass

    profile = recorded(tmp_path, program)
    assert codes(told(profile, "(")) == ["step_pattern_unmatched"]
    assert told(profile, "a")["events"]["kind"].to_pylist() == [2]


def test_an_empty_profile(tmp_path: Path) -> None:
    profile = recorded(tmp_path, lambda: None)
    assert isinstance(told(profile, None)["events"], pa.Table)
    assert codes(told(profile, "a")) == ["step_pattern_unmatched"]


def test_ranges_that_repeat_themselves_are_steps_where_nothing_was_launched(tmp_path: Path) -> None:
    def program() -> None:
        with trace("begin"):
            pass
        for i in range(8):
            with trace("load"):
                pass
            with trace("train"), trace("forward"):
                sum(range(2000))
            if i == 5:
                with trace("evaluate"):
                    pass

    found = join_profile(recorded(tmp_path, program))
    assert set(found["steps"]["source"].to_pylist()) == {"inferred"}
    assert found["steps"].num_rows in (7, 8)  # where the loop begins anew is decided by its pauses
    (row,) = [d for d in found["diagnostics"].to_pylist() if d["code"] == "steps_inferred"]
    assert "nothing was launched" in row["message"]


def test_ranges_that_do_not_repeat_themselves_are_none(tmp_path: Path) -> None:
    def program() -> None:
        for name in ("a", "b", "a", "c", "c", "b", "d", "a"):
            with trace(name):
                pass

    assert join_profile(recorded(tmp_path, program))["steps"].num_rows == 0
