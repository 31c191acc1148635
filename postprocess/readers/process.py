"""The files of one process -> one Profile: XLA's trace, our shard and PyTorch's traces on one time axis."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.errors import BadInputError
from xprof_py.postprocess import schema
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.kineto_beside import traces_named, with_kineto
from xprof_py.postprocess.readers.nsys_steps import VARIABLE
from xprof_py.postprocess.readers.range_steps import mark_step_ranges
from xprof_py.postprocess.readers.run_file import losses, no_device_reason, read_run_file
from xprof_py.postprocess.readers.shard import read_shard
from xprof_py.postprocess.readers.sniff import sniff
from xprof_py.postprocess.readers.sources import Source
from xprof_py.postprocess.readers.workers import ALONE, Workers
from xprof_py.postprocess.readers.xspace import read_programs_file, read_xspace
from xprof_py.postprocess.schema import ArgKind, Kind


def read_process(source: Source, workers: Workers = ALONE) -> Profile:
    """Read what can be read of one process; ``workers`` share a large XSpace or trace of PyTorch.

    A file that cannot be read costs itself alone: it has a row in `diagnostics`. Raises BadInputError where none can.
    ``metadata["run"]`` is the run file; ``metadata["drained"]`` says whether no work was in flight at the end;
    ``metadata["no_device"]`` why nothing is known of the devices ("" where something is, or none was used).
    """
    if source.saved is not None:
        return Profile.load(source.saved.parent)
    if source.trace is not None:
        if sniff(source.trace) == "sqlite":
            from xprof_py.postprocess.readers.nsys import read_nsys

            return read_nsys(source.trace, source.member, step_range=os.environ.get(VARIABLE, ""))
        from xprof_py.postprocess.readers.chrome_json import read_chrome_json

        return read_chrome_json(source.trace, source.member, workers)
    failures: list[BadInputError] = []
    run: dict[str, Any] = {}
    if source.run_file is not None:
        try:
            run = read_run_file(source.run_file)
        except BadInputError as error:
            failures.append(error)
    parts: list[Profile] = []
    shard_events: int | None = None
    space: Callable[[Path], Profile] = partial(read_xspace, workers=workers)
    for path, read in ((source.xspace, space), (source.shard, read_shard)):
        if path is None:
            continue
        try:
            parts.append(read(path))
            if path == source.shard:
                shard_events = parts[-1]["events"].num_rows
        except BadInputError as error:
            failures.append(error)
    if not parts:
        raise failures[-1]
    profile = parts[0] if len(parts) == 1 else together(parts[0], parts[1])
    if source.programs is not None:
        try:
            profile = with_programs(profile, read_programs_file(source.programs))
        except BadInputError as error:
            failures.append(error)
    traces, not_there = traces_named(run, source.torch)
    profile = with_kineto(profile, traces, workers)
    rows = not_there + [
        {"severity": "error", "code": "unreadable", "file": e.file, "place": e.place, "count": 1, "message": e.reason}
        for e in failures
    ]
    has_xspace = any("programs" in part.tables for part in parts)
    # Only a shard says of events what they are; and without a mask of all of them.
    compiled = shard_events is not None and pc.index(parts[-1]["events"]["kind"], int(Kind.COMPILE)).as_py() >= 0
    if source.run_file is not None:
        there = {name for name, path in (("xplane", source.xspace), ("shard", source.shard)) if path is not None}
        about = {"has_xspace": has_xspace, "compiled": compiled}
        rows += losses(run, str(source.run_file), there=there, shard_events=shard_events, **about)
    if rows:
        added = pa.Table.from_pylist(rows, schema=schema.TABLES["diagnostics"])
        profile = profile.with_tables(diagnostics=pa.concat_tables([profile["diagnostics"], added]))
    no_device = no_device_reason(run, has_xspace=has_xspace, compiled=compiled)
    metadata = {**profile.metadata, "run": run, "no_device": no_device}
    if "drained" in run and run["drained"] is not None:
        metadata["drained"] = bool(run["drained"])
    host = str(run.get("hostname") or profile.host)
    told = (run.get("capture") or {}).get("step_pattern")
    profile = mark_step_ranges(profile, told, str(source.run_file or source.shard or source.xspace))
    return replace(profile, host=host, metadata=metadata)


def with_programs(profile: Profile, stored: pa.Table) -> Profile:
    """The programs that the capture itself stored, beside those that XLA's trace holds: its own are the richer ones."""
    known = pc.is_in(stored["program_id"], profile["programs"]["program_id"].combine_chunks())
    both = pa.concat_tables([profile["programs"], stored.filter(pc.invert(known))]).combine_chunks()
    return profile.with_tables(programs=both.sort_by([("program_id", "ascending"), ("name", "ascending")]))


def together(xspace: Profile, shard: Profile) -> Profile:
    """XLA's trace and the shard of the same process as one Profile on the XSpace's axis.

    Both stamp with CLOCK_REALTIME of one machine. The capture is what XLA's session saw: outside it nothing is known of
    the device. An XSpace without absolute time cannot be put beside a shard: the shard is left out, and said so.
    """
    if xspace.origin_ns == 0:
        row = {
            "severity": "error",
            "code": "no_common_time",
            "file": xspace.host,
            "place": "",
            "count": 1,
            "message": "the XSpace does not say when it began: the shard's annotations cannot be placed on its axis",
        }
        added = pa.Table.from_pylist([row], schema=schema.TABLES["diagnostics"])
        return xspace.with_tables(diagnostics=pa.concat_tables([xspace["diagnostics"], added]))
    shift_ps = (shard.origin_ns - xspace.origin_ns) * 1000
    lines, events, texts = (xspace[name].num_rows for name in ("lines", "events", "texts"))
    moved = {
        "events": _added(_added(shard["events"], "line", lines), "start_ps", shift_ps),
        "args": _texts_moved(_added(shard["args"], "event", events), texts),
        "lines": shard["lines"],
        "texts": shard["texts"],
        "stack_samples": _added(_added(shard["stack_samples"], "line", lines), "time_ps", shift_ps),
        "stacks": shard["stacks"],
        "frames": shard["frames"],
        "clock_samples": shard["clock_samples"],
        "power": _added(shard["power"], "time_ps", shift_ps),
        "plane_args": shard["plane_args"],
        "lost_events": _added(
            _added(_added(shard["lost_events"], "line", lines), "start_ps", shift_ps), "end_ps", shift_ps
        ),
        "diagnostics": shard["diagnostics"],
    }
    tables = dict(xspace.tables)
    for name, table in moved.items():
        both = pa.concat_tables([xspace[name], table]).unify_dictionaries().combine_chunks()
        tables[name] = both.cast(schema.TABLES[name])
    return replace(xspace, tables=tables, metadata={**shard.metadata, **xspace.metadata})


def _added(table: pa.Table, column: str, amount: int) -> pa.Table:
    index = table.schema.get_field_index(column)
    field = table.schema.field(index)
    return table.set_column(index, field, pc.add(table[column], pa.scalar(amount, field.type)))


def _texts_moved(args: pa.Table, texts: int) -> pa.Table:
    value = np.asarray(args["value"].to_numpy()) + np.where(
        np.asarray(args["kind"].to_numpy()) == int(ArgKind.TEXT), texts, 0
    )
    index = args.schema.get_field_index("value")
    return args.set_column(index, args.schema.field(index), pa.array(value.astype(np.int64)))
