"""How was the network between each pair of hosts, second by second? From the clock prober's exchanges.

Per host, address that it asks and second of its clock:

- sent = answered + lost (no answer in 1 s) + refused (nobody listened) + not_sent (no route, for example);
- rtt = (m4 - m1) - (m3 - m2) - wait2 - wait4: the way there and back alone, without the time that a packet lay in
  either kernel until the prober ran. Only of exchanges whose waits both kernels stated; null where none did;
- responder delay = (m3 - m2) + wait2 and prober delay = wait4: what the other's and the own host added. A long rtt or a
  loss with short delays is the network's, long delays are a host's;
- round trip = m4 - m1, all of them together.

All on CLOCK_MONOTONIC, each difference on one host's, so that neither a clock's error nor its steps enter. An rtt below
0 (clocks read a few hundred ns after a packet's stamp) counts as 0. Medians and p99 come from bins of 1/16 octave
(3 %), clipped to the exact least and most.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess import schema
from xprof_py.postprocess.clocks.exchanges import SELF
from xprof_py.postprocess.profile import Profile

MEASURES = ("rtt", "responder_delay", "prober_delay", "round_trip")
OUTCOMES = ("answered", "lost", "refused", "not_sent")
KEYS = ["host", "address", "start_ns", "measure", "peer_session", "bin"]
_SECOND_NS = 1_000_000_000
_SUB = 16
"""Bins of an octave; below _SUB every integer has its own."""
_SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("address", pa.string()),
        ("start_ns", pa.int64()),
        ("measure", pa.string()),
        ("peer_session", pa.uint64()),
        ("bin", pa.int64()),
        ("count", pa.int64()),
        ("least", pa.int64()),
        ("most", pa.int64()),
    ]
)

Int64 = np.ndarray[tuple[int], np.dtype[np.int64]]
Array = np.ndarray[tuple[int], np.dtype[np.generic]]
_Cell = tuple[int, int, int, int]
"""bin, count, least, most."""


def bins(values: Int64) -> Int64:
    """The bin of each value >= 0: the value itself below 16, then 16 bins an octave."""
    exponent = np.frexp(np.maximum(values, 1).astype(np.float64))[1].astype(np.int64) - 1
    shift = np.maximum(exponent - 4, 0)
    return np.where(values < _SUB, values, (exponent - 3) * _SUB + (values >> shift) - _SUB)


def middle(index: int) -> int:
    """The value in the middle of a bin."""
    if index < _SUB:
        return index
    shift = index // _SUB - 1
    return ((_SUB + index % _SUB) << shift) + ((1 << shift) >> 1)


def partial(profile: Profile) -> pa.Table:
    """One row per host, address, second, measure (an outcome is one), peer and bin; one that names the own session."""
    samples = profile["clock_samples"]
    numbers = {name: samples[name].fill_null(0).to_numpy() for name in samples.column_names if name.endswith("_ns")}
    outcome = np.asarray(samples["outcome"].cast(pa.string()).to_numpy(zero_copy_only=False), str)
    answered = outcome == "answered"
    has_wait2, has_wait4 = (np.asarray(samples[f"wait{i}_ns"].is_valid()) for i in (2, 4))
    served = numbers["m3_ns"] - numbers["m2_ns"]
    round_trip = numbers["m4_ns"] - numbers["m1_ns"]
    measured: dict[str, tuple[Int64, Array]] = {
        "rtt": (round_trip - served - numbers["wait2_ns"] - numbers["wait4_ns"], answered & has_wait2 & has_wait4),
        "responder_delay": (served + numbers["wait2_ns"], answered & has_wait2),
        "prober_delay": (numbers["wait4_ns"], answered & has_wait4),
        "round_trip": (round_trip, answered),
        **{name: (np.zeros(len(outcome), np.int64), outcome == name) for name in OUTCOMES},
    }
    known = pa.table(
        {
            "host": pa.repeat(pa.scalar(profile.host), len(outcome)),
            "address": samples["address"].cast(pa.string()),
            "start_ns": numbers["t1_ns"] // _SECOND_NS * _SECOND_NS,
            "peer_session": samples["peer_session"],
        }
    )
    parts = [_cells(known, name, np.maximum(value, 0), keep) for name, (value, keep) in measured.items()]
    session = (profile.metadata.get("probe") or {}).get("session")
    if session is not None:
        own = {"host": profile.host, "measure": SELF, "peer_session": session, "count": 1}
        parts.append(pa.Table.from_pylist([own], schema=_SCHEMA))
    return merge(pa.concat_tables(parts), None)


def _cells(known: pa.Table, measure: str, value: Int64, keep: Array) -> pa.Table:
    kept = known.filter(pa.array(keep))
    value = value[keep]
    columns = {
        **{name: kept[name] for name in kept.column_names},
        "measure": pa.repeat(pa.scalar(measure), len(value)),
        "bin": bins(value),
        "count": np.ones(len(value), np.int64),
        "least": value,
        "most": value,
    }
    return pa.table({name: columns[name] for name in _SCHEMA.names}, schema=_SCHEMA)


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Counts summed, extremes kept, per key."""
    both = a if b is None else pa.concat_tables([a, b])
    grouped = both.group_by(KEYS).aggregate([("count", "sum"), ("least", "min"), ("most", "max")])
    names = {"count_sum": "count", "least_min": "least", "most_max": "most"}
    return grouped.rename_columns([names.get(name, name) for name in grouped.column_names]).select(_SCHEMA.names)


def finish(merged: pa.Table) -> pa.Table:
    """The table network, sorted by host, address and second."""
    merged = merged.sort_by([(key, "ascending") for key in KEYS])
    is_self = pc.equal(merged["measure"], SELF)
    own = merged.filter(is_self)
    host_of = dict(zip(own["peer_session"].to_pylist(), own["host"].to_pylist(), strict=True))
    cells: dict[tuple[str, str, int], dict[str, list[_Cell]]] = {}
    peers: dict[tuple[str, str], set[str | None]] = {}
    columns = merged.filter(pc.invert(is_self)).to_pydict()
    for host, address, start_ns, measure, session, *cell in zip(*(columns[n] for n in _SCHEMA.names), strict=True):
        cells.setdefault((host, address, start_ns), {}).setdefault(measure, []).append(tuple(cell))
        if session is not None:
            peers.setdefault((host, address), set()).add(host_of.get(session))
    # An address that several hosts answered at, one after the other, is nobody's.
    peer = {at: next(iter(hosts)) for at, hosts in peers.items() if len(hosts) == 1}
    rows = [
        {"host": host, "peer": peer.get((host, address)), "address": address, "start_ns": start_ns, **_row(found)}
        for (host, address, start_ns), found in cells.items()
    ]
    return pa.Table.from_pylist(rows, schema=schema.TABLES["network"])


def _row(found: dict[str, list[_Cell]]) -> dict[str, int | None]:
    counts = {name: sum(count for _, count, _, _ in found.get(name, ())) for name in OUTCOMES}
    rtt, responder, prober, whole = (sorted(found.get(name, ())) for name in MEASURES)
    return {
        "sent": sum(counts.values()),
        **counts,
        "rtt_min_ns": quantile(rtt, 0, 1),
        "rtt_median_ns": quantile(rtt, 1, 2),
        "rtt_p99_ns": quantile(rtt, 99, 100),
        "responder_delay_median_ns": quantile(responder, 1, 2),
        "responder_delay_max_ns": quantile(responder, 1, 1),
        "prober_delay_median_ns": quantile(prober, 1, 2),
        "prober_delay_max_ns": quantile(prober, 1, 1),
        "round_trip_median_ns": quantile(whole, 1, 2),
    }


def quantile(cells: list[_Cell], part: int, of: int) -> int | None:
    """The value at rank ceil(n * part / of), at least 1, of the values in sorted cells; None where there are none."""
    total = sum(count for _, count, _, _ in cells)
    if not total:
        return None
    least, most = min(cell[2] for cell in cells), max(cell[3] for cell in cells)
    rank = max(-(-total * part // of), 1)
    if rank in (1, total):
        return least if rank == 1 else most
    for index, count, _, _ in cells:
        rank -= count
        if rank <= 0:
            return min(max(middle(index), least), most)
    raise AssertionError(total)
