"""The stages of a pipeline: which hosts run which programs, where they do not all run the same."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

MOST_PROGRAMS = 4


def stage_rows(programs: pa.Table | None) -> list[dict[str, Any]] | None:
    """summary.json's `stages`, in order; None where all hosts run the same programs, or where they are not known.

    ``programs``: the table rank_programs, None for a job of one rank. The programs are those of a stage's first host.
    """
    found: dict[int, dict[str, Any]] = {}
    for row in programs.to_pylist() if programs is not None else []:
        stage = found.setdefault(row["stage"], {"stage": row["stage"], "hosts": [], "programs": []})
        if row["host"] not in stage["hosts"]:
            stage["hosts"].append(row["host"])
        if stage["hosts"] == [row["host"]] and len(stage["programs"]) < MOST_PROGRAMS:
            stage["programs"].append(row["name"])
    return [found[number] for number in sorted(found)] if len(found) > 1 else None
