"""How much device memory was in use, over time?

Two kinds of rows, told apart by `basis`:
  allocator  what the device's allocator reported in the trace: `bytes` in use from `start_ps` until its next event at
             `end_ps`. Everything that it handed out is in it, from before the capture too. `peak_bytes` is the most
             since the process started, of CuPy's pools since the capture did. `changed_bytes`: what this event
             allocated (above 0) or gave back. `pool_bytes`: what the pool held of the device, in use or not, if told.
  program    one run of a program: the bytes that the program holds while it runs (hlo/peak.py), its arguments included.
             What lives outside programs (other arrays, programs that wait) is not in it.
An allocator of host memory has `host_memory` true. A trace of a CPU has no allocator events.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.hlo.shapes import DEVICE_MEMORY
from xprof_py.postprocess.join.columns import Events, Int64, dictionary, integers
from xprof_py.postprocess.profile import Profile

ALLOCATED, FREED = "MemoryAllocation", "MemoryDeallocation"

_HOST_ALLOCATOR = re.compile(r"(?:^|_)(?:host|cpu)(?:_|$)", re.IGNORECASE)
_SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("device", pa.string()),
        ("host_memory", pa.bool_()),
        ("basis", pa.string()),
        ("program", pa.string()),
        ("start_ps", pa.int64()),
        ("end_ps", pa.int64()),
        ("bytes", pa.int64()),
        ("changed_bytes", pa.int64()),
        ("peak_bytes", pa.int64()),
        ("pool_bytes", pa.int64()),
    ]
)
_ORDER = [(name, "ascending") for name in ("host", "basis", "device", "start_ps", "end_ps", "program", "bytes")]


def partial(profile: Profile) -> pa.Table:
    """The rows of one joined profile; `device` is the allocator's name, or that of the lane."""
    return pa.concat_tables([_allocators(profile), _runs(profile)])


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Rows of both: a device is its host's own."""
    return pa.concat_tables([a, b])


def finish(merged: pa.Table) -> dict[str, pa.Table]:
    """memory_timeline: the rows by host, basis, device and time.

    memory_allocators, one row per host and allocator: `peak_bytes` in the capture, `at_ps` when it was reached first,
    `ever_peak_bytes` since the process started, `start_bytes` after the first event, events.
    """
    ordered = merged.sort_by(_ORDER)
    return {"memory_timeline": ordered, "memory_allocators": _peaks(ordered)}


def has_allocators(profile: Profile) -> bool:
    """Whether the trace may hold events of an allocator; cheap."""
    wanted = pa.array([ALLOCATED, FREED])
    return any(pc.any(pc.is_in(part.dictionary, wanted)).as_py() for part in profile["events"]["name"].chunks)


def _allocators(profile: Profile) -> pa.Table:
    if not has_allocators(profile):
        return _SCHEMA.empty_table()
    events = Events.of(profile)
    rows = events.rows_named(ALLOCATED, FREED)
    named, told = (events.argument_of(key, rows)[0] for key in ("allocator_name", "bytes_allocated"))
    rows = rows[named & told]
    rows = rows[np.lexsort((rows, events.start_ps[rows], events.argument_of("allocator_name", rows)[1]))]
    of, in_use, most, size = (
        events.argument_of(key, rows)[1]
        for key in ("allocator_name", "bytes_allocated", "peak_bytes_in_use", "allocation_bytes")
    )
    pooled, held = events.argument_of("pool_bytes", rows)
    start_ps = events.start_ps[rows]
    last = np.append(of[1:] != of[:-1], True) if len(rows) else np.zeros(0, np.bool_)
    end_ps = np.where(last, max(profile.capture_end_ps, int(start_ps.max(initial=0))), np.append(start_ps[1:], 0))
    freed = events.verdicts(lambda name: name == FREED)[events.name[rows]]
    texts = {code: events.text_of(code) for code in np.unique(of).tolist()}
    return _table(
        profile,
        [texts[code] for code in of.tolist()],
        "allocator",
        host_memory=[bool(_HOST_ALLOCATOR.search(texts[code])) for code in of.tolist()],
        start_ps=start_ps,
        end_ps=end_ps,
        bytes=in_use,
        changed_bytes=np.where(freed, -size, size),
        peak_bytes=most,
        pool_bytes=pa.array(held, mask=~pooled),
    )


def _runs(profile: Profile) -> pa.Table:
    held = held_by_program(profile)
    runs = profile["runs"]
    program = integers(runs, "program")
    kept = np.flatnonzero(program >= 0)
    kept = kept[held[program[kept]] >= 0]
    lane = integers(runs, "lane")[kept]
    devices, names = profile["lanes"]["device"].to_pylist(), profile["programs"]["name"].to_pylist()
    return _table(
        profile,
        [devices[row] for row in lane.tolist()],
        "program",
        program=[names[row] for row in program[kept].tolist()],
        start_ps=integers(runs, "start_ps")[kept],
        end_ps=integers(runs, "end_ps")[kept],
        bytes=held[program[kept]],
    )


def held_by_program(profile: Profile) -> Int64:
    """Per row of programs the bytes of the device's memory that it holds while it runs; -1 where not known."""
    allocations = profile["hlo_allocations"]
    kind, kinds = dictionary(allocations, "kind")
    here = integers(allocations, "space") == DEVICE_MEMORY
    if "thread_local" in kinds:
        here &= kind != kinds.index("thread_local")
    held = np.full(profile["programs"].num_rows, -1, np.int64)
    program = integers(allocations, "program")
    held[program] = 0
    np.add.at(held, program[here], integers(allocations, "bytes")[here])
    return held


def _table(profile: Profile, device: list[str], basis: str, **columns: object) -> pa.Table:
    count = len(device)
    whole = {
        **{name: pa.nulls(count, _SCHEMA.field(name).type) for name in _SCHEMA.names},
        "host": [profile.host] * count,
        "device": device,
        "host_memory": [False] * count,
        "basis": [basis] * count,
        **columns,
    }
    return pa.Table.from_pydict(whole, schema=_SCHEMA)


def _peaks(ordered: pa.Table) -> pa.Table:
    told = ordered.filter(pc.equal(ordered["basis"], "allocator"))
    rows = []
    keys = ["host", "device", "host_memory"]
    for key in told.group_by(keys).aggregate([]).sort_by([(k, "ascending") for k in keys]).to_pylist():
        own = told.filter(pc.and_(pc.equal(told["host"], key["host"]), pc.equal(told["device"], key["device"])))
        in_use = integers(own, "bytes")
        at = int(in_use.argmax())
        rows.append(
            {
                "host": key["host"],
                "allocator": key["device"],
                "host_memory": key["host_memory"],
                "peak_bytes": int(in_use[at]),
                "at_ps": own["start_ps"][at].as_py(),
                "ever_peak_bytes": int(integers(own, "peak_bytes").max()),
                "start_bytes": int(in_use[0]),
                "events": own.num_rows,
            }
        )
    columns = [("host", pa.string()), ("allocator", pa.string()), ("host_memory", pa.bool_())]
    numbers = ("peak_bytes", "at_ps", "ever_peak_bytes", "start_bytes", "events")
    return pa.Table.from_pylist(rows, schema=pa.schema([*columns, *((name, pa.int64()) for name in numbers)]))
