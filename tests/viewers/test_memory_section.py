"""Device memory in the report and in the terminal: the peak, what is alive at it, what would lower it."""

from __future__ import annotations

from typing import Any

from xprof_py.viewers import html_memory
from xprof_py.viewers.terminal import render_summary

MiB = 2**20
MEMORY: dict[str, Any] = {
    "peak_bytes": 12 * MiB,
    "basis": "program",
    "device": None,
    "program": "jit_train_step",
    "at": {"op": "fusion.4", "op_name": "jit(train_step)/mlp/add", "source": "/home/u/train.py:30"},
    "parts": {"held": 12 * MiB, "argument": 6 * MiB, "output": 3 * MiB, "temporary": 3 * MiB, "constant": 0, "host": 0},
    "alive": [
        {
            "kind": "temporary",
            "bytes": MiB,
            "shape": "f32[512,512]",
            "op": "<tanh>",
            "op_name": "jit(train_step)/mlp/tanh",
            "source": "/home/u/train.py:28",
            "idle_after": "dot.1",
            "idle_until": "dot.7",
        }
    ],
    "alive_left_out": 7,
    "advice": [{"kind": "donate", "saves_bytes": 3 * MiB, "text": "donate params (donate_argnums)", "source": None}],
    "allocators": [],
}


def shown(memory: dict[str, Any] | None) -> str:
    return render_summary({"memory": memory}, color=False, width=100)


def test_the_section_has_parts_advice_and_what_is_alive(parse: Any) -> None:
    section = parse(html_memory.memory({"memory": MEMORY})).one("section")
    rows = section.body_rows()
    assert ["argumentheld by the caller before, during and after the run", "6.00 MiB", "50.0%"] in rows
    assert ["donate params (donate_argnums)", "–", "3.00 MiB"] in rows
    alive = [row for row in rows if row[0].startswith("<tanh>")]
    assert [row[1:] for row in alive] == [["temporary", "u/train.py:28", "dot.1 to dot.7", "1.00 MiB"]]
    assert not any(row[0].startswith("constant") for row in rows)


def test_without_memory_there_is_no_section() -> None:
    assert html_memory.memory({}) == html_memory.memory({"memory": None}) == ""
    assert "memory" not in shown(None)


def test_the_terminal_says_the_peak_where_it_is_and_what_lowers_it() -> None:
    text = " ".join(shown(MEMORY).split())
    assert "12.0 MiB at the peak: what the largest program, jit_train_step, holds while it runs" in text
    assert "Most is in use at jit(train_step)/mlp/add (train.py:30)." in text
    assert "saves up to 3.00 MiB: donate params (donate_argnums)" in text


def test_an_allocators_peak_says_whose_it_is() -> None:
    text = " ".join(shown({**MEMORY, "basis": "allocator", "device": "GPU_0_bfc", "peak_bytes": 90 * MiB}).split())
    assert "90.0 MiB at the peak, as the allocator GPU_0_bfc reported it." in text
    assert "The largest program, jit_train_step, holds 12.0 MiB while it runs" in text


def test_an_allocator_alone_is_shown(parse: Any) -> None:
    allocator = {"host": "h", "allocator": "GPU_0_bfc", "peak_bytes": MiB, "ever_peak_bytes": 2 * MiB, "events": 9}
    memory = {
        "peak_bytes": MiB,
        "basis": "allocator",
        "device": "GPU_0_bfc",
        "program": None,
        "allocators": [allocator],
    }
    rows = parse(html_memory.memory({"memory": memory})).one("section").body_rows()
    assert rows == [["GPU_0_bfch", "1.00 MiB", "2.00 MiB", "9"]]
    assert "1.00 MiB at the peak, as the allocator GPU_0_bfc reported it." in " ".join(shown(memory).split())


def test_a_peak_of_a_few_temporary_bytes_names_no_op() -> None:
    few = {**MEMORY, "parts": {**MEMORY["parts"], "temporary": 68}}
    assert "Most is in use" not in shown(few)
