"""The table of the checks on a GPU, from pytest's reports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = {"passed": "holds", "failed": "does not hold", "skipped": "not run"}


def rows_of(reports: Iterable[Any]) -> list[dict[str, Any]]:
    """One row per test, in the tests' order: ``check``, ``result``, ``why``, ``figures``, ``versions``."""
    found: dict[str, dict[str, Any]] = {}
    for report in reports:
        # A test has three reports; that of the call says it, unless setup or teardown went wrong.
        if report.when != "call" and report.outcome == "passed":
            continue
        told = dict(report.user_properties)
        name = report.nodeid.rpartition("::")[2].removeprefix("test_")
        found[name] = {
            "check": name,
            "result": RESULTS[report.outcome],
            "why": "" if report.outcome == "passed" else _why(report),
            "figures": told.get("figures", {}),
            "versions": told.get("versions", {}),
        }
    return sorted(found.values(), key=lambda row: str(row["check"]))


def _why(report: Any) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return str(text).removeprefix("AssertionError: ").splitlines()[0]


def write_table(rows: Sequence[dict[str, Any]], folder: Path) -> str:
    """Write ``rows`` to ``folder`` as checks.json and checks.md; returns the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checks.json").write_text(json.dumps(list(rows), indent=1) + "\n", encoding="utf-8")
    lines = ["| check | result | figures | versions |", "| --- | --- | --- | --- |"]
    for row in rows:
        result = f"{row['result']}: {row['why']}" if row["why"] else row["result"]
        cells = [row["check"].replace("_", " "), result, _words(row["figures"]), _words(row["versions"])]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    text = "\n".join(lines) + "\n"
    (folder / "checks.md").write_text(text, encoding="utf-8")
    return text


def _words(told: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in told.items())
