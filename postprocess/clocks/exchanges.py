"""Exchanges of time stamps of all processes of a job: whose prober asked whose.

A prober knows those that answered it by a random number, its `session`. That number stands in the other process's shard
too, which gives it a host's name once both were read.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess import schema
from xprof_py.postprocess.profile import Profile

SELF = "self"
"""The outcome of the row that says only which session is a host's; no exchange has it."""
_JOB = schema.TABLES["job_clock_samples"]
_ROWS = pa.schema([field.with_nullable(True) for field in _JOB if field.name != "peer"])
_ORDER = [(name, "ascending") for name in ("host", "m1_ns", "address")]


def of_profile(profile: Profile) -> pa.Table:
    """The exchanges that one process began, with its ``host``, and a row that names its session. Concatenate freely."""
    samples = profile["clock_samples"]
    session = (profile.metadata.get("probe") or {}).get("session")
    named = samples.add_column(0, "host", pa.repeat(pa.scalar(profile.host), samples.num_rows)).cast(_ROWS)
    if session is None:
        return named
    own = pa.Table.from_pylist([{"host": profile.host, "session": session, "outcome": SELF}], schema=_ROWS)
    return merge(named, own)


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Rows of both."""
    return pa.concat_tables([a, b])


def resolved(rows: pa.Table) -> pa.Table:
    """Rows of ``of_profile`` of all processes, the naming ones used up: schema.TABLES["job_clock_samples"].

    ``peer`` is the host that answered; of an exchange without an answer the host that answered at the same address, if
    there was one and only one. It is null where that is not known: its shard was not read, or it never answered.
    Sorted by host and time; the order of ``rows`` does not matter.
    """
    is_self = pc.equal(rows["outcome"], SELF)
    own = rows.filter(is_self)
    host_of = dict(zip(own["session"].to_pylist(), own["host"].to_pylist(), strict=True))
    rows = rows.filter(pc.invert(is_self)).sort_by(_ORDER)
    return rows.add_column(1, "peer", _peers(rows, host_of)).cast(_JOB)


def exchanges(profiles: Iterable[Profile]) -> pa.Table:
    """``resolved`` of these processes."""
    parts = [of_profile(profile) for profile in profiles]
    return resolved(pa.concat_tables(parts) if parts else _ROWS.empty_table())


def _peers(rows: pa.Table, host_of: dict[int, str]) -> pa.Array:
    """The peer of each row: distinct (host, address, session of the answer) are few, rows may be many."""
    keys = rows.select(["host", "address", "peer_session"]).combine_chunks()
    grouped = (
        keys.append_column("row", pa.array(np.arange(keys.num_rows)))
        .group_by(keys.column_names)
        .aggregate([("row", "list")])
    )
    answered: dict[tuple[str, str], set[str | None]] = {}
    groups = grouped.to_pylist()
    for group in groups:
        if group["peer_session"] is not None:
            at = answered.setdefault((group["host"], group["address"]), set())
            at.add(host_of.get(group["peer_session"]))
    names: list[str] = sorted(set(host_of.values()))
    number = {name: i for i, name in enumerate(names)}
    peer = np.full(rows.num_rows, -1, np.int32)
    for group in groups:
        if group["peer_session"] is not None:
            name = host_of.get(group["peer_session"])
        else:
            at = answered.get((group["host"], group["address"]), set())
            name = next(iter(at)) if len(at) == 1 else None
        if name is not None:
            peer[group["row_list"]] = number[name]
    return pa.DictionaryArray.from_arrays(pa.array(peer, mask=peer < 0), pa.array(names, pa.string())).cast(pa.string())
