"""``python -m tests.conformance OUT``: the cases as files that any tool can read, with the answers worked out by hand.

Writes host0.xplane.pb, expected.json and the text of every case into OUT/<case>, and OUT/index.json.
README.md says what expected.json holds. A case whose spans must come from a shard has no XSpace: index.json says so.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # The tests import one another from the folder `tests`.
    sys.path.insert(0, str(Path(__file__).parent.parent))

from conformance.case_text import Case, ExpectedWindow, StepRef, read_case
from conformance.xspace_bytes import xspace_of

CASES = Path(__file__).parent / "cases"


def write_cases(out: Path) -> list[dict[str, Any]]:
    """Write every case below ``out``; returns the rows of index.json."""
    index = []
    for file in sorted(CASES.glob("*.case")):
        case = read_case(file)
        folder = out / file.stem
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
        (folder / "expected.json").write_text(json.dumps(expected(case), indent=1) + "\n", encoding="utf-8")
        if not case.needs_shard:
            (folder / "host0.xplane.pb").write_bytes(xspace_of(case))
        why = "its spans must come from a shard" if case.needs_shard else None
        index.append({"case": file.stem, "title": case.title, "xspace": not case.needs_shard, "why_not": why})
    (out / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return index


def expected(case: Case) -> dict[str, Any]:
    """The answers that ``case`` states, as JSON values; what it does not state is not there, or null."""
    found: dict[str, Any] = {
        "title": case.title,
        "given": {"drained_end": "end" in case.drained, "peaks": case.peaks or None},
        "lanes": [
            {"ordinal": ordinal, "windows": [_window(window) for window in windows]}
            for ordinal, windows in case.windows.items()
        ],
        "runs": [
            {
                "function": run.function,
                "run_id": run.run_id,
                "lane": run.lane if run.lane is not None else case.lanes[0].ordinal,
                "step": _step(run.step),
                "join": run.join,
            }
            for run in case.runs
        ],
        "phases": [{"step": _step(step), "phase": phase} for step, phase in case.phases],
    }
    if case.verdict is not None:
        found["verdict"] = {"bottleneck": case.verdict.bottleneck, "step_without_ps": case.verdict.without_ps}
    return found


def _step(step: StepRef | None) -> dict[str, Any] | None:
    return None if step is None else {"name": step.name, "number": step.number, "occurrence": step.occurrence}


def _window(window: ExpectedWindow) -> dict[str, Any]:
    amounts = window.amounts
    exclusive: Counter[str] = Counter()
    for amount in amounts or ():
        exclusive[amount.name] += amount.exclusive_ps
    return {
        "kind": window.kind,
        "step": _step(window.step),
        "start_ps": window.start_ps,
        "end_ps": window.end_ps,
        "exclusive_ps": None if amounts is None else {name: ps for name, ps in exclusive.items() if ps},
        "total_ps": {a.name: a.total_ps for a in amounts or () if a.total_ps is not None},
        "foreign_ps": {a.name: a.foreign_ps for a in amounts or () if a.foreign_ps is not None},
        "causes": [
            {"cause": a.name, "step": None if isinstance(a.by, str) else _step(a.by), "ps": a.exclusive_ps}
            for a in amounts or ()
            if a.by is not None
        ],
    }


def main() -> int:
    """The command; returns its exit code."""
    if len(sys.argv) != 2:
        print("usage: python -m tests.conformance OUT", file=sys.stderr)
        return 2
    out = Path(sys.argv[1])
    index = write_cases(out)
    print(f"{len(index)} cases, {sum(row['xspace'] for row in index)} with an XSpace: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
