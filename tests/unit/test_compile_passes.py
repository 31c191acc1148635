"""compile_passes: self times of nested passes, and whose compile they belong to."""

from __future__ import annotations

from typing import Any

from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import compile_passes
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import ArgKind

Event = tuple[int, str, int, int | None, str]
COMPILER, CODEGEN, PYTHON = 0, 1, 2


def profile(events: list[Event], compiles: list[tuple[str, int, int]]) -> Profile:
    """Events are (line, name, start, end or None, its `module` or ""); compiles (function, start, end). All in ps."""
    events = sorted(events, key=lambda e: (e[0], e[2], -(e[3] or 10**6)))
    modules = sorted({event[4] for event in events if event[4]})
    saying = [row for row, event in enumerate(events) if event[4]]
    names = ("tf_PjRtCompilerThreadPool/-12", "tf_xla-cpu-codegen/34", "python")
    tables: dict[str, Any] = {
        "lines": {
            "plane": ["/host:CPU"] * 3,
            "name": names,
            "line_id": range(3),
            "thread_id": [None] * 3,
            "source": ["xspace"] * 3,
            "clock_domain": ["boot"] * 3,
        },
        "events": {
            "line": [event[0] for event in events],
            "name": [event[1] for event in events],
            "kind": [0] * len(events),
            "start_ps": [event[2] for event in events],
            "duration_ps": [None if event[3] is None else event[3] - event[2] for event in events],
        },
        "args": {
            "event": saying,
            "key": ["module"] * len(saying),
            "kind": [int(ArgKind.TEXT)] * len(saying),
            "value": [modules.index(events[row][4]) for row in saying],
        },
        "texts": {"text": modules},
        "compiles": {
            "function": [c[0] for c in compiles],
            "stage": ["compile"] * len(compiles),
            "line": [PYTHON] * len(compiles),
            "step": [None] * len(compiles),
            "start_ps": [c[1] for c in compiles],
            "duration_ps": [c[2] - c[1] for c in compiles],
            "source": ["xspace"] * len(compiles),
        },
    }
    bare = Profile("host0", 0, 0, 1000)
    return bare.with_tables(**{name: schema.table(name, columns) for name, columns in tables.items()})


def rows(events: list[Event], compiles: list[tuple[str, int, int]] = ()) -> list[tuple[Any, ...]]:  # type: ignore[assignment]
    finished = compile_passes.finish(compile_passes.partial(profile(events, list(compiles))))
    return [tuple(row.values()) for row in finished.to_pylist()]


def test_a_pass_counts_without_the_passes_inside_it() -> None:
    found = rows(
        [
            (COMPILER, "PjRtCpuClient::Compile", 0, 100, ""),
            (COMPILER, "simplification (jit_f)", 10, 60, "jit_f"),
            (COMPILER, "dce", 20, 50, ""),
            (COMPILER, "dce", 55, 56, ""),
            (CODEGEN, "FusionCompiler::Compile", 30, 90, "fusion_kernel"),
            (CODEGEN, "CSEPass", 40, 45, ""),
            (PYTHON, "backend_compile_and_load", 0, 110, ""),
        ],
        [("f", 0, 110)],
    )
    assert found == [
        ("f", "fusion_kernel", "FusionCompiler::Compile", 55, 1, 55),
        ("f", "", "PjRtCpuClient::Compile", 50, 1, 50),
        ("f", "jit_f", "dce", 31, 2, 30),
        ("f", "jit_f", "simplification", 19, 1, 19),
        ("f", "fusion_kernel", "CSEPass", 5, 1, 5),
    ]
    # The sum of self times is what the threads were busy: nothing is lost, nothing counted twice.
    assert sum(row[3] for row in found) == 100 + 60


def test_a_pass_belongs_to_the_function_that_alone_was_being_compiled() -> None:
    events = [(COMPILER, "dce", start, start + 1, "") for start in (5, 15, 25, 35, 45)]
    found = rows(events, [("f", 0, 20), ("g", 10, 30), ("h", 40, 50)])
    # At 5 f, at 15 both, at 25 g, at 35 none, at 45 h.
    assert sorted((row[0], row[4]) for row in found) == [("", 2), ("f", 1), ("g", 1), ("h", 1)]


def test_passes_inside_the_call_that_waits_for_its_compile_count_too() -> None:
    """Later JAX has no thread of its own for the passes. The call itself is no pass, nor is a Python frame."""
    found = rows(
        [
            (PYTHON, "PjitFunction(f)", 0, 100, ""),
            (PYTHON, "backend_compile_and_load", 10, 60, ""),
            (PYTHON, "$compiler.py:12 compile", 11, 59, ""),
            (PYTHON, "simplification (jit_f)", 20, 50, "jit_f"),
            (PYTHON, "dce", 30, 35, ""),
            (PYTHON, "launch", 70, 80, ""),
        ],
        [("f", 10, 60)],
    )
    assert found == [("f", "jit_f", "simplification", 25, 1, 25), ("f", "jit_f", "dce", 5, 1, 5)]


def test_hand_overs_and_passes_cut_off_by_the_end_are_left_out() -> None:
    events: list[Event] = [
        (COMPILER, "ThreadpoolListener::Record", 3, 3, ""),
        (COMPILER, "dce", 10, 20, ""),
        (COMPILER, "algsimp", 30, None, ""),
    ]
    assert rows(events, [("f", 0, 50)]) == [("f", "", "dce", 10, 1, 10)]


def test_merging_sums_and_keeps_the_longest() -> None:
    one = compile_passes.partial(profile([(COMPILER, "dce", 0, 10, "")], [("f", 0, 20)]))
    two = compile_passes.partial(profile([(COMPILER, "dce", 0, 15, "")], [("f", 0, 20)]))
    assert compile_passes.merge(one, two).to_pylist() == compile_passes.merge(two, one).to_pylist()
    (row,) = compile_passes.merge(one, two).to_pylist()
    assert (row["self_ps"], row["count"], row["longest_ps"]) == (25, 2, 15)


def test_a_trace_without_compiler_threads_has_no_passes() -> None:
    assert compile_passes.partial(Profile("host0", 0, 0, 1000)).num_rows == 0
    assert rows([(PYTHON, "dce", 0, 10, "")]) == []
