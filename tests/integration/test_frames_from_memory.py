"""Frames read from memory while the thread runs: thousands of stacks, none of which cannot be.

The program (tests/workloads/restless.py) calls, yields, throws, awaits, recurses, makes code and throws it away as fast
as it can; who may call whom is written down here, from its source.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from xprof_py.collectors.stacks import takes_gil
from xprof_py.postprocess.readers.shard import read_shard

RESTLESS = Path(__file__).resolve().parents[1] / "workloads" / "restless.py"

CALLERS: dict[str, set[str]] = {
    "left": {"pairs", "coroutine", "brief"},
    "right": {"pairs"},
    "left_leaf": {"left"},
    "right_leaf": {"right"},
    "number_leaf": {"numbers"},
    "numbers": {"more_numbers"},
    "more_numbers": {"generators"},
    "by_key": {"through_c"},
    "key_leaf": {"by_key"},
    "fall": {"fall", "restless"},
    "bottom": {"fall"},
    "throws": {"exceptions"},
    "Dying.__init__": {"finalizers"},
    "final_leaf": {"Dying.__del__"},
    "awaited": {"ticks"},
    "ticks": {"coroutine"},
    "restless": {"Thread.run"},
    "brief": {"Thread.run"},
    **{
        one: {"restless"}
        for one in ("pairs", "generators", "through_c", "exceptions", "finalizers", "coroutines", "made_code")
    },
}
"""Who may call a function of restless.py. A finalizer may be called by anything."""


class Frame(NamedTuple):
    file: str
    function: str
    line: int | None


def stacks_of(run: Path) -> Counter[tuple[Frame, ...]]:
    """Every stack, innermost frame first, with how often it was seen."""
    document = json.loads(next((run / "run").glob("*.json")).read_text())
    profile = read_shard(run / document["files"]["shard"])
    frames = [Frame(row["file"], row["function"], row["source_line"]) for row in profile["frames"].to_pylist()]
    members: dict[int, list[Frame]] = {}
    for row in profile["stacks"].to_pylist():
        if row["frame"] is not None:
            members.setdefault(row["stack"], []).append(frames[row["frame"]])
    seen = Counter(profile["stack_samples"]["stack"].to_pylist())
    return Counter({tuple(members[stack]): count for stack, count in seen.items() if stack is not None})


def impossible(stack: tuple[Frame, ...]) -> str | None:
    """What is wrong with a stack, None if it can be."""
    for callee, caller in pairwise(stack):
        number = callee.function.removeprefix("made_")
        if number.isdigit():
            first = int(number) % 50 + 1
            if callee.file != f"made_{number}.py" or callee.line not in (first, first + 1):
                return f"{callee} mixes several"
            if caller.function != "made_code" and caller != callee._replace(function="<module>", line=first):
                return f"{callee} called by {caller}"
        elif callee.function == "right_leaf" and caller.function.startswith("made_"):
            continue
        elif (
            callee.function in CALLERS
            and callee.file == str(RESTLESS)
            and caller.function not in CALLERS[callee.function]
        ):
            return f"{callee} called by {caller}"
    return None


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Counter[tuple[Frame, ...]]]:
    if (reason := takes_gil()) is not None:
        pytest.skip(f"frames are not read from memory here: {reason}")
    run = tmp_path_factory.mktemp("restless") / "run"
    ran = subprocess.run(
        [sys.executable, str(RESTLESS), str(run), "500"], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout), stacks_of(run)


def test_no_stack_is_impossible(seen: tuple[dict[str, Any], Counter[tuple[Frame, ...]]]) -> None:
    totals, stacks = seen
    wrong = {why for why in map(impossible, stacks) if why}
    assert wrong == set()
    assert sum(stacks.values()) > 100
    assert totals["threads"] == 500


def test_most_looks_are_read_and_see_everything(seen: tuple[dict[str, Any], Counter[tuple[Frame, ...]]]) -> None:
    totals, stacks = seen
    assert totals["torn"] < totals["read"] / 10
    functions = {frame.function for stack in stacks for frame in stack}
    assert {"pairs", "numbers", "more_numbers", "number_leaf", "exceptions", "made_code"} <= functions


def test_lines_are_those_of_the_source(seen: tuple[dict[str, Any], Counter[tuple[Frame, ...]]]) -> None:
    _, stacks = seen
    source = RESTLESS.read_text().splitlines()
    calls = {"pairs": ("left()", "right()", "for _"), "more_numbers": ("yield from numbers()",)}
    for stack in stacks:
        for callee, frame in zip((None, *stack), stack, strict=False):
            if callee is None or frame.function not in calls or frame.file != str(RESTLESS):
                continue
            assert frame.line is not None
            text = source[frame.line - 1]
            if callee.function in ("left", "right", "numbers"):
                assert f"{callee.function}()" in text
