"""Profile: one process's named Arrow tables and its metadata. A plain bundle; it computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from xprof_py.postprocess import schema


@dataclass(frozen=True)
class Profile:
    """One process's part of a capture.

    ``tables``: name -> Arrow table (schema.TABLES); ``profile["steps"]`` is one of them, empty where nothing was
    delivered. ``origin_ns``: UTC nanoseconds that ``start_ps`` counts from. ``capture_start_ps``/``capture_end_ps``:
    the edges of the capture on the same axis. ``host``: the name that reports show, unique within a job.
    ``metadata``: what the run file and the planes said (JSON values).
    """

    host: str
    origin_ns: int
    capture_start_ps: int
    capture_end_ps: int
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    derived: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What a room made of the tables and later rooms would make again, by name. Whoever uses it checks that it is of
    these tables; nothing depends on its being there."""

    def __getitem__(self, name: str) -> pa.Table:
        if name in self.tables:
            return self.tables[name]
        return schema.empty(name)

    def __contains__(self, name: str) -> bool:
        return name in self.tables

    def with_tables(self, **tables: pa.Table) -> Profile:
        """A copy with these tables added or replaced; every table is checked against its schema."""
        for name, value in tables.items():
            if value.schema != schema.TABLES[name]:
                raise ValueError(
                    f"table {name} does not have its schema:\n{value.schema}\nwanted\n{schema.TABLES[name]}"
                )
        return replace(self, tables={**self.tables, **tables})
