"""recompiles: which compile was a compile again, what had changed, and what it cost.

Each case is a small profile of one thread: a compile ends, the program that it made is launched, a run of it follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from hlo_bytes import BF16, F32, Parameter, program, shape
from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import recompiles
from xprof_py.postprocess.profile import Profile

MS = 10**9
X100, X108, X116 = (program(Parameter("x", shape(F32, rows, 256))) for rows in (100, 108, 116))


@dataclass
class Loop:
    """A profile under construction. Steps last 100 ms each: step k is [100 k, 100 k + 100) ms."""

    host: str = "host0"
    steps: int = 4
    programs: list[tuple[int, str, bytes | None]] = field(default_factory=list)
    places: dict[int, tuple[str, int]] = field(default_factory=dict)
    stages: list[tuple[str, str, int, int]] = field(default_factory=list)
    runs: list[tuple[int, str, int]] = field(default_factory=list)

    def program(self, hlo: bytes | None, name: str = "jit_f", place: tuple[str, int] = ("train.py", 3)) -> int:
        """One more program in the profile; its row."""
        self.programs.append((10 + 2 * len(self.programs), name, hlo))
        self.places[len(self.programs) - 1] = place
        return len(self.programs) - 1

    def stage(self, stage: str, start_ms: int, end_ms: int, function: str = "f") -> None:
        self.stages.append((function, stage, start_ms * MS, end_ms * MS))

    def run(self, program: int, at_ms: int, function: str = "f") -> None:
        self.runs.append((program, function, at_ms * MS))

    def compiled(self, hlo: bytes, start_ms: int, end_ms: int) -> None:
        """A compile, and the run of what it made 1 ms later."""
        self.stage("compile", start_ms, end_ms)
        self.run(self.program(hlo), end_ms + 1)

    def profile(self) -> Profile:
        tables: dict[str, Any] = {
            "programs": {
                "program_id": [p[0] for p in self.programs],
                "name": [p[1] for p in self.programs],
                "hlo": pa.array([p[2] for p in self.programs], pa.large_binary()),
            },
            "program_functions": {
                "program": list(self.places),
                "function": [self.programs[row][1].removeprefix("jit_") for row in self.places],
                "file": [place[0] for place in self.places.values()],
                "source_line": [place[1] for place in self.places.values()],
            },
            "steps": {
                "name": ["train"] * self.steps,
                "number": range(self.steps),
                "occurrence": [0] * self.steps,
                "parent": [None] * self.steps,
                "line": [0] * self.steps,
                "start_ps": [100 * k * MS for k in range(self.steps)],
                "end_ps": [100 * (k + 1) * MS for k in range(self.steps)],
                "phase": ["steady"] * self.steps,
                "reason": [""] * self.steps,
                "source": ["annotated"] * self.steps,
                "tokens": [None] * self.steps,
                "model_flops": [None] * self.steps,
            },
            "compiles": {
                "function": [s[0] for s in self.stages],
                "stage": [s[1] for s in self.stages],
                "line": [0] * len(self.stages),
                "step": [s[2] // (100 * MS) if s[2] < 100 * MS * self.steps else None for s in self.stages],
                "start_ps": [s[2] for s in self.stages],
                "duration_ps": [s[3] - s[2] for s in self.stages],
                "source": ["jax.monitoring"] * len(self.stages),
            },
            "launches": {
                "event": range(len(self.runs)),
                "line": [0] * len(self.runs),
                "name": [r[1] for r in self.runs],
                "run_id": [None] * len(self.runs),
                "device": [None] * len(self.runs),
                "step": [None] * len(self.runs),
                "start_ps": [r[2] for r in self.runs],
                "end_ps": [r[2] + MS for r in self.runs],
            },
            "runs": {
                "lane": [0] * len(self.runs),
                "program": [r[0] if r[0] >= 0 else None for r in self.runs],
                "run_id": range(len(self.runs)),
                "launch": range(len(self.runs)),
                "step": [None] * len(self.runs),
                "start_ps": [r[2] + MS for r in self.runs],
                "end_ps": [r[2] + 2 * MS for r in self.runs],
                "join": ["order"] * len(self.runs),
            },
        }
        bare = Profile(self.host, 0, 0, 100 * self.steps * MS)
        return bare.with_tables(**{name: schema.table(name, columns) for name, columns in tables.items()})

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = recompiles.finish(recompiles.partial(self.profile())).to_pylist()
        return rows


def told(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """(step, kind, [(argument, was, is)]) of each row."""
    return [
        (row["step_number"], row["kind"], [(c["argument"], c["was"], c["is"]) for c in row["cause"]]) for row in rows
    ]


def test_a_first_compile_is_no_recompile() -> None:
    loop = Loop()
    loop.compiled(X100, 10, 60)
    assert loop.rows() == []


def test_a_profile_without_compiles_has_no_recompile() -> None:
    loop = Loop()
    loop.run(loop.program(X100), 10)
    assert loop.rows() == []


def test_the_argument_whose_shape_changed_is_named_with_both_shapes() -> None:
    loop = Loop()
    loop.compiled(X100, 10, 60)
    loop.compiled(X108, 110, 160)
    (row,) = loop.rows()
    assert told([row]) == [(1, "arguments", [("x", "f32[100,256]", "f32[108,256]")])]
    assert (row["function"], row["source"], row["phase"], row["match"]) == ("f", "train.py:3", "steady", "launch")
    assert (row["program_id"], row["compared_with"]) == (12, 10)


def test_a_program_from_before_the_capture_makes_the_first_compile_a_recompile() -> None:
    loop = Loop()
    loop.program(X100)
    loop.compiled(X108, 10, 60)
    assert told(loop.rows()) == [(0, "arguments", [("x", "f32[100,256]", "f32[108,256]")])]


def test_of_a_pytree_only_the_leaf_that_changed_is_named() -> None:
    def tree(element: int) -> bytes:
        return program(
            Parameter("p[0]", shape(element, 4)), Parameter("p[1]", shape(F32, 4)), Parameter("x", shape(F32))
        )

    loop = Loop()
    loop.compiled(tree(F32), 10, 60)
    loop.compiled(tree(BF16), 110, 160)
    assert told(loop.rows()) == [(1, "arguments", [("p[0]", "f32[4]", "bf16[4]")])]


def test_arguments_that_came_and_went_are_told_by_name_not_by_place() -> None:
    loop = Loop()
    loop.compiled(program(Parameter("mask", shape(F32, 3)), Parameter("x", shape(F32, 8))), 10, 60)
    loop.compiled(program(Parameter("x", shape(F32, 8)), Parameter("bias", shape(F32, 2))), 110, 160)
    assert told(loop.rows()) == [(1, "arguments", [("bias", None, "f32[2]"), ("mask", "f32[3]", None)])]


def test_the_same_arguments_and_another_program_is_no_argument() -> None:
    loop = Loop()
    loop.compiled(program(Parameter("x", shape(F32, 8)), body="add"), 10, 60)
    loop.compiled(program(Parameter("x", shape(F32, 8)), body="multiply"), 110, 160)
    assert told(loop.rows()) == [(1, "same_arguments", [])]


def test_the_same_program_again_is_said_to_be_the_same() -> None:
    loop = Loop()
    loop.compiled(program(Parameter("x", shape(F32, 8)), program_id=10), 10, 60)
    loop.compiled(program(Parameter("x", shape(F32, 8)), program_id=12), 110, 160)
    assert told(loop.rows()) == [(1, "same_program", [])]


def test_a_program_is_compared_with_the_one_it_is_closest_to() -> None:
    """Shapes alternate and are cached; then a static argument changes. The last program differs in x, the one before in
    nothing: an argument is not why it was compiled."""
    loop = Loop()
    loop.compiled(X100, 10, 20)
    loop.compiled(X108, 110, 120)
    static = program(Parameter("x", shape(F32, 100, 256)), body="multiply")
    loop.compiled(static, 210, 220)
    assert told(loop.rows())[1] == (2, "same_arguments", [])


def test_of_equally_close_programs_the_latest_counts() -> None:
    loop = Loop()
    for at, hlo in ((10, X100), (110, X108), (210, X116)):
        loop.compiled(hlo, at, at + 20)
    assert told(loop.rows())[1] == (2, "arguments", [("x", "f32[108,256]", "f32[116,256]")])


def test_two_functions_of_one_name_are_not_each_others_recompile() -> None:
    loop = Loop()
    for at, line in ((10, 7), (110, 9)):
        loop.stage("compile", at, at + 20, "<lambda>")
        loop.run(loop.program(X100, "jit__lambda", ("train.py", line)), at + 21, "<lambda>")
    assert loop.rows() == []


def test_a_program_that_ran_before_is_not_taken_for_the_new_one() -> None:
    """After the compile of X108 the old program runs first, from its cache; order tells which one is new."""
    loop = Loop()
    old, new = loop.program(X100), loop.program(X108)
    loop.run(old, 5)
    loop.stage("compile", 110, 160)
    loop.run(old, 161)
    (row,) = loop.rows()
    assert (row["program_id"], row["match"]) == (loop.programs[new][0], "order")


def test_without_runs_the_last_programs_are_those_of_the_compiles() -> None:
    loop = Loop()
    for hlo in (X100, X108, X116):
        loop.program(hlo)
    loop.stage("compile", 10, 20)
    loop.stage("compile", 110, 120)
    rows = loop.rows()
    assert [row["match"] for row in rows] == ["order", "order"]
    assert told(rows) == [
        (0, "arguments", [("x", "f32[100,256]", "f32[108,256]")]),
        (1, "arguments", [("x", "f32[108,256]", "f32[116,256]")]),
    ]


def test_without_its_program_a_recompile_is_told_without_a_cause() -> None:
    """The programs were dropped before the capture ended: compiled three times, one program left, which one is open."""
    loop = Loop()
    for at in (10, 110, 210):
        loop.stage("compile", at, at + 20)
    loop.program(X100)
    rows = loop.rows()
    assert told(rows) == [(1, "unknown", []), (2, "unknown", [])]
    assert {(row["match"], row["program_id"], row["compared_with"]) for row in rows} == {("none", None, None)}


def test_a_program_whose_hlo_cannot_be_read_has_no_cause() -> None:
    for broken in (None, b"\x0a\xff"):
        loop = Loop()
        loop.compiled(X100, 10, 60)
        loop.stage("compile", 110, 160)
        loop.run(loop.program(broken), 161)
        assert told(loop.rows()) == [(1, "unknown", [])]


def test_the_bill_is_tracing_lowering_and_compiling_without_what_came_before() -> None:
    loop = Loop()
    loop.compiled(X100, 10, 60)
    loop.run(0, 101)
    loop.stage("trace", 110, 120)
    loop.stage("trace", 112, 115)  # inside the other: not to be counted twice
    loop.stage("lower", 120, 125)
    loop.compiled(X108, 130, 160)
    (row,) = loop.rows()
    assert row["compile_ps"] == 30 * MS
    assert row["total_ps"] == (10 + 5 + 30) * MS


def test_a_compile_outside_the_steps_has_no_step() -> None:
    loop = Loop(steps=1)
    loop.compiled(X100, 10, 60)
    loop.compiled(X108, 110, 160)
    (row,) = loop.rows()
    assert (row["step_number"], row["step_name"], row["phase"]) == (None, None, None)
    assert row["kind"] == "arguments"


def test_hosts_are_merged_in_any_order() -> None:
    parts = []
    for host in ("b", "a"):
        loop = Loop(host=host)
        loop.compiled(X100, 10, 60)
        loop.compiled(X108, 110, 160)
        parts.append(recompiles.partial(loop.profile()))
    forth = recompiles.finish(recompiles.merge(*parts))
    assert forth.equals(recompiles.finish(recompiles.merge(*parts[::-1])))
    assert forth["host"].to_pylist() == ["a", "b"]
