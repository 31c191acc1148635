"""Recompiles in sentences, and as rows of summary.json."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from xprof_py.postprocess.analyses import compile_times, recompiles
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.rules.evidence_rows import rows_by_class
from xprof_py.postprocess.rules.recompile_words import cause_text, step_list, summary_rows

NOTHING = Profile("host0", 0, 0, 0)
X = ("x", "f32[100,256]", "f32[108,256]")


def row(*changes: tuple[str, str | None, str | None], **given: Any) -> dict[str, Any]:
    return {
        "host": "host0",
        "function": "mlp_step",
        "source": "train.py:31",
        "step_name": "train",
        "step_number": 1,
        "phase": "steady",
        "start_ps": 0,
        "total_ps": 30 * 10**9,
        "compile_ps": 20 * 10**9,
        "kind": "arguments" if changes else "same_arguments",
        "cause": [dict(zip(("argument", "was", "is"), change, strict=True)) for change in changes],
        "result_was": "f32[]",
        "result_is": "f32[]",
        "program_id": 12,
        "compared_with": 10,
        "match": "launch",
        **given,
    }


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=recompiles.partial(NOTHING).schema)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (row(X), "`x` changed from f32[100,256] to f32[108,256]"),
        (row(("n", None, "i32[]")), "`n` came in as i32[]"),
        (row(("n", "i32[]", None)), "`n` (i32[]) went away"),
        (
            row(X, ("p[0]", "f32[4]", "bf16[4]")),
            "`x` changed from f32[100,256] to f32[108,256] and `p[0]` changed from f32[4] to bf16[4]",
        ),
        (
            row(*((f"p[{i}]", "f32[4]", "bf16[4]") for i in range(9))),
            "`p[0]` changed from f32[4] to bf16[4], `p[1]` changed from f32[4] to bf16[4], `p[2]` changed from f32[4] "
            "to bf16[4] and 6 more arguments changed",
        ),
        (row(), "same argument shapes and dtypes: a static argument, a closure or a weak type changed"),
        (
            row(result_was="f32[32,64]", result_is="f32[48,64]"),
            "same argument shapes and dtypes: a static argument, a closure or a weak type changed; its result changed "
            "from f32[32,64] to f32[48,64]",
        ),
        (
            row(kind="same_program"),
            "same argument shapes and dtypes and the same program: a weak type or an unused argument changed, or jit "
            "got a new function object",
        ),
        (row(kind="unknown"), "something changed that the profile does not tell: it does not hold both programs"),
    ],
)
def test_a_cause_in_words(told: dict[str, Any], text: str) -> None:
    assert cause_text(told) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([5], "step 5"),
        ([5, 8], "steps 5 and 8"),
        (range(8), "steps 0-7"),
        ([9, 1, 4, 6, 7, 8, 8], "steps 1, 4 and 6-9"),
        (range(0, 20, 2), "steps 0, 2, 4, 6, 8, 10 and 4 more"),
    ],
)
def test_steps_in_words(numbers: Any, text: str) -> None:
    assert step_list(list(numbers)) == text


def evidence(*again: dict[str, Any], compiles: dict[int, int]) -> list[str]:
    """The compiler's evidence for ``mlp_step``, compiled as often as said in each step, 20 ms each."""
    times = [
        {
            "host": "host0",
            "function": "mlp_step",
            "stage": "compile",
            "step_name": "train",
            "step_number": step,
            "phase": "steady",
            "source": "xspace",
            "count": count,
            "total_ps": count * 20 * 10**9,
        }
        for step, count in compiles.items()
    ]
    nothing: pa.Table = pa.table({"kind": [], "class": [], "cause": []})
    rows = rows_by_class(
        gaps=nothing,
        ops=nothing,
        spans=nothing,
        compiles=pa.Table.from_pylist(times, schema=compile_times.partial(NOTHING).schema),
        recompiles=table(*again),
        phases=("steady",),
        steps=8,
        lanes=1,
        whole_s=1.0,
        first={},
    )
    return [found["text"] for found in rows["compiler"]]


def test_the_evidence_of_one_recompile() -> None:
    assert evidence(row(X), compiles={1: 1}) == [
        "`mlp_step` was compiled once in step 1 because `x` changed from f32[100,256] to f32[108,256]; 20 ms in the "
        "compiler, 20 ms with tracing and lowering"
    ]


def test_the_evidence_of_many_recompiles_gives_the_first_as_the_example() -> None:
    again = [row(("x", f"f32[{100 + 8 * i},256]", f"f32[{108 + 8 * i},256]"), step_number=i) for i in range(8)]
    (text,) = evidence(*again, compiles=dict.fromkeys(range(8), 1))
    assert text.startswith(
        "`mlp_step` was compiled 8 times in steps 0-7 because `x` changed from f32[100,256] to f32[108,256] (step 0, "
        "and 7 more like it); "
    )


def test_other_reasons_are_counted() -> None:
    again = [row(X), row(X, step_number=2), row(step_number=3)]
    (text,) = evidence(*again, compiles={1: 1, 2: 1, 3: 1})
    assert "(step 1, and 1 more like it), and once for other reasons; " in text


def test_recompiles_of_other_phases_explain_nothing_here() -> None:
    (text,) = evidence(row(X, phase="warmup"), compiles={1: 1})
    assert text == "`mlp_step` was compiled once in step 1: 20 ms in the compiler, 20 ms with tracing and lowering"


def test_a_static_argument_in_the_evidence() -> None:
    (text,) = evidence(row(), compiles={1: 1})
    assert "was compiled once in step 1 with the same argument shapes and dtypes: a static argument, a closure" in text


def test_summary_rows_say_what_the_table_says() -> None:
    (found,), left_out = summary_rows(table(row(X)), 10)
    assert left_out == 0
    assert found == {
        "function": "mlp_step",
        "source": "train.py:31",
        "step": 1,
        "name": "train",
        "phase": "steady",
        "seconds": 0.03,
        "count": 1,
        "hosts": 1,
        "kind": "arguments",
        "cause": [{"argument": "x", "was": "f32[100,256]", "is": "f32[108,256]"}],
        "more_arguments": 0,
        "text": "`x` changed from f32[100,256] to f32[108,256]",
    }


def test_hosts_that_did_the_same_are_one_row_with_the_slowest_hosts_time() -> None:
    again = table(row(X, host="a", total_ps=10**10), row(X, host="b", total_ps=3 * 10**10), row(X, host="b"))
    (found,), _ = summary_rows(again, 10)
    assert (found["hosts"], found["count"], found["seconds"]) == (2, 2, 0.06)


def test_the_longest_are_kept_in_order_of_step_and_the_others_counted() -> None:
    again = table(*(row(X, step_number=step, total_ps=step * 10**9) for step in (3, 9, 1, 7)))
    found, left_out = summary_rows(again, 2)
    assert ([line["step"] for line in found], left_out) == ([7, 9], 2)


def test_recompiles_outside_steps_are_in_the_table_alone() -> None:
    assert summary_rows(table(row(X, step_number=None)), 10) == ([], 0)


def test_a_row_lists_so_many_arguments_and_counts_the_rest() -> None:
    (found,), _ = summary_rows(table(row(*((f"p[{i}]", "f32[4]", "bf16[4]") for i in range(40)))), 10)
    assert (len(found["cause"]), found["more_arguments"]) == (32, 8)
