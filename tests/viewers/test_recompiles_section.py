"""The report's table of recompiles: step, function with its line, what changed, and the time."""

from __future__ import annotations

from typing import Any

import pytest

from xprof_py.viewers import html_sections

RECOMPILE: dict[str, Any] = {
    "function": "mlp_step",
    "source": "train.py:31",
    "step": 5,
    "name": "train",
    "phase": "steady",
    "seconds": 0.3638,
    "cause": [{"argument": "x", "was": "f32[100,256]", "is": "f32[108,256]"}],
    "text": "`x` changed from f32[100,256] to f32[108,256]",
}


@pytest.fixture
def compiled_rows(parse: Any) -> Any:
    def rows(*recompiles: dict[str, Any]) -> list[list[str]]:
        compiles = {
            "count": 2,
            "total_s": 0.7,
            "by_function": [],
            "during_steps": [],
            "recompiles": list(recompiles),
        }
        found: list[list[str]] = parse(html_sections.compiles({"compiles": compiles})).one("section").body_rows()
        return found

    return rows


def test_a_recompile_says_what_changed(compiled_rows: Any) -> None:
    assert compiled_rows(RECOMPILE) == [
        ["step 5", "mlp_steptrain.py:31", "x changed from f32[100,256] to f32[108,256]", "364 ms"]
    ]


def test_names_of_the_program_are_text_not_markup(compiled_rows: Any) -> None:
    ((_, function, what, _),) = compiled_rows(
        {**RECOMPILE, "function": "<lambda>", "text": "`x['<b>']` changed from f32[1] to f32[2]"}
    )
    assert function.startswith("<lambda>")
    assert what == "x['<b>'] changed from f32[1] to f32[2]"
