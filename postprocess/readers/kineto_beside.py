"""Traces that PyTorch's profiler exported during a capture, beside the capture's own records of the same process.

Both stamp with CLOCK_REALTIME: a trace is moved onto the profile's axis by the distance of the two origins. What each
is for: the capture has the steps, spans and waits, Kineto the operators and, while it had CUPTI, the GPUs.

- A host thread of Kineto's is the capture's thread of the same kernel id: its events are among those spans.
- Where the capture marks steps, `ProfilerStep#N` is an event like any other; else it is a step.
- A call, or work of a GPU, that both recorded is one: the capture's own stays. The two agree on its correlation id, and
  it lies at the same time.
- Where Kineto alone recorded the GPUs, a step of ours that it did not see is none, and counted: nothing is known of the
  device then. It saw a step that begins among the `ProfilerStep#N` of a trace and lies there for half of its time or
  more; of a trace without those, one in which anything of it lies.
- Two traces of one process cannot be of one time, since it has one such profiler: one that begins inside an earlier
  one is the same again, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.errors import BadInputError
from xprof_py.postprocess import schema
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.chrome_json import read_chrome_json
from xprof_py.postprocess.readers.workers import ALONE, Workers
from xprof_py.postprocess.schema import ArgKind, Kind

_I64 = npt.NDArray[np.int64]
_Bool = npt.NDArray[np.bool_]

SLACK_PS = 10_000_000
"""10 us: how far two records of one call lie apart at most. Both are CUPTI's own stamps, converted twice."""


def traces_named(run: Mapping[str, Any], copied: Sequence[Path]) -> tuple[list[Path], list[dict[str, Any]]]:
    """The traces of a run: its copies, and those not copied where they still lie; diagnostics for the rest."""
    told = (run.get("collectors") or {}).get("torch")
    entries = told.get("traces") if isinstance(told, dict) else None
    found = list(copied)
    rows: list[dict[str, Any]] = []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or entry.get("copied"):
            continue
        path = Path(str(entry.get("path")))
        if entry.get("bytes") is not None and path.is_file() and path.stat().st_size == entry["bytes"]:
            found.append(path)
        else:
            why = f"a trace of PyTorch's profiler is not there: {entry.get('why')}"
            rows.append(_row("warning", "torch_trace_missing", str(path), why))
    return found, rows


def with_kineto(profile: Profile, traces: Sequence[Path], workers: Workers = ALONE) -> Profile:
    """``profile`` with what these traces of the same process say. A bad trace costs itself alone."""
    rows: list[dict[str, Any]] = []
    read: list[tuple[int, str, Profile]] = []
    for path in traces:
        try:
            found = read_chrome_json(path, workers=workers)
            if found.origin_ns == 0:
                raise BadInputError(str(path), "", "does not say since when its times count: it cannot be placed")
        except BadInputError as error:
            rows.append(_row("error", "unreadable", error.file, error.reason, error.place))
            continue
        read.append((found.origin_ns, str(path), found))
    until_ns = 0
    alone = not _has_device(profile)
    seen: list[tuple[int, int, bool]] = []
    for origin_ns, file, found in sorted(read, key=lambda one: one[:2]):
        begin_ps, end_ps = _host_extent(found) or (0, found.capture_end_ps)
        if until_ns and origin_ns + begin_ps // 1000 < until_ns:
            message = "a trace of PyTorch's profiler that begins inside an earlier one is left out: the same again"
            rows.append(_row("warning", "torch_trace_again", file, message))
            continue
        until_ns = origin_ns + end_ps // 1000
        shift_ps = (origin_ns - profile.origin_ns) * 1000
        if _has_device(found):
            steps = _host_extent(found, Kind.STEP)
            begin_ps, end_ps = steps or (begin_ps, end_ps)
            seen.append((begin_ps + shift_ps, end_ps + shift_ps, steps is not None))
        profile = _together(profile, found, file, rows)
    if alone and seen:
        profile = _steps_seen(profile, seen, rows)
    if rows:
        added = pa.Table.from_pylist(rows, schema=schema.TABLES["diagnostics"])
        profile = profile.with_tables(diagnostics=pa.concat_tables([profile["diagnostics"], added]))
    return profile


def _row(severity: str, code: str, file: str, message: str, place: str = "", count: int = 1) -> dict[str, Any]:
    where = {"file": file, "place": place, "count": count}
    return {"severity": severity, "code": code, **where, "message": message}


def _has_device(profile: Profile) -> bool:
    planes = profile["lines"]["plane"].to_pylist()
    devices = {row for row, plane in enumerate(planes) if plane.startswith("/device:GPU")}
    return bool(devices) and not devices.isdisjoint(pc.unique(profile["events"]["line"]).to_pylist())


def _steps_seen(profile: Profile, seen: list[tuple[int, int, bool]], rows: list[dict[str, Any]]) -> Profile:
    """The profile with the steps outside of ``seen`` as spans; seen: begin and end in ps, and whether of steps."""
    events = profile["events"]
    kind = np.asarray(events["kind"].to_numpy()).copy()
    at = np.flatnonzero(kind == Kind.STEP)
    start = np.asarray(events["start_ps"].to_numpy())[at]
    duration = np.asarray(events["duration_ps"].fill_null(0).to_numpy())[at]
    known = np.zeros(len(at), np.bool_)
    for begin, end, of_steps in seen:
        inside = (start < end) & (start + duration > begin)
        if of_steps:
            inside &= (start >= begin) & (2 * (np.minimum(start + duration, end) - start) >= duration)
        known |= inside
    if known.all() or not known.any():
        return profile
    kind[at[~known]] = Kind.SPAN
    count = int((~known).sum())
    message = f"steps in which nothing recorded the GPUs are none: PyTorch's profiler had them, and saw {known.sum()}"
    rows.append(_row("note", "steps_not_profiled", profile.host, message, count=count))
    return profile.with_tables(events=_with(events, "kind", kind))


def _host_extent(trace: Profile, kind: Kind | None = None) -> tuple[int, int] | None:
    """First start and last end, in ps, of what it recorded on the host, all or of one kind; None without."""
    events = trace["events"]
    start, duration = (np.asarray(events[name].to_numpy()) for name in ("start_ps", "duration_ps"))
    planes = trace["lines"]["plane"].to_pylist()
    on_host = np.array([plane.startswith("/host:") for plane in planes], np.bool_)
    mine = on_host[np.asarray(events["line"].to_numpy())] & (duration > 0)
    if kind is not None:
        mine &= np.asarray(events["kind"].to_numpy()) == kind
    return (int(start[mine].min()), int((start + duration)[mine].max())) if mine.any() else None


def _together(profile: Profile, trace: Profile, file: str, rows: list[dict[str, Any]]) -> Profile:
    shift_ps = (trace.origin_ns - profile.origin_ns) * 1000
    doubles = _doubles(profile, trace, shift_ps)
    if doubles.any():
        message = "calls and work of GPUs that the capture recorded itself: its own records of them count"
        rows.append(_row("note", "torch_doubles", file, message, count=int(doubles.sum())))
        trace = _without(trace, doubles)
    events = trace["events"]
    kind = np.asarray(events["kind"].to_numpy()).copy()
    own_steps = bool(pc.any(pc.equal(profile["events"]["kind"], int(Kind.STEP))).as_py())
    if own_steps:
        kind[kind == Kind.STEP] = Kind.PLAIN
    lines, texts, count = (profile[name].num_rows for name in ("lines", "texts", "events"))
    args = trace["args"]
    is_text = np.asarray(args["kind"].to_numpy()) == int(ArgKind.TEXT)
    value = np.asarray(args["value"].to_numpy()) + np.where(is_text, texts, 0)
    moved = {
        "lines": _lines(profile, trace),
        "events": _with(_with(events, "kind", kind), "start_ps", np.asarray(events["start_ps"].to_numpy()) + shift_ps),
        "args": _with(_with(args, "value", value), "event", np.asarray(args["event"].to_numpy()) + count),
        "texts": trace["texts"],
        "diagnostics": trace["diagnostics"],
    }
    moved["events"] = _with(moved["events"], "line", np.asarray(events["line"].to_numpy()) + lines)
    tables = dict(profile.tables)
    for name, table in moved.items():
        both = pa.concat_tables([profile[name], table]).unify_dictionaries().combine_chunks()
        tables[name] = both.cast(schema.TABLES[name])
    groups = trace.metadata.get("process_groups")
    traces = [*profile.metadata.get("torch_traces", []), file]
    metadata = {**profile.metadata, "torch_traces": traces, **({"process_groups": groups} if groups else {})}
    end_ps = max(profile.capture_end_ps, trace.capture_end_ps + shift_ps)
    return replace(profile, tables=tables, metadata=metadata, capture_end_ps=end_ps)


def _lines(profile: Profile, trace: Profile) -> pa.Table:
    """The trace's lines: threads by the kernel's id, on the clock of the capture."""
    domains = profile["lines"]["clock_domain"].to_pylist()
    lines = trace["lines"]
    on_host = np.array([plane.startswith("/host:") for plane in lines["plane"].to_pylist()], np.bool_)
    tid = np.asarray(lines["line_id"].to_numpy())
    lines = _with(lines, "thread_id", pa.array(tid, mask=~(on_host & (tid > 0))))
    return _with(lines, "clock_domain", [domains[0] if domains else "unknown"] * lines.num_rows)


def _with(table: pa.Table, column: str, values: Any) -> pa.Table:
    index = table.schema.get_field_index(column)
    field = table.schema.field(index)
    array = values if isinstance(values, pa.Array) else pa.array(values, field.type)
    return table.set_column(index, field, array)


def _ids(profile: Profile) -> tuple[_I64, _I64]:
    """(events with a correlation id, their ids)."""
    args = profile["args"]
    mine = pc.and_(pc.equal(args["key"].cast(pa.string()), "correlation_id"), pc.not_equal(args["value"], 0))
    found = args.filter(mine)
    event, value = (np.asarray(found[name].to_numpy()).astype(np.int64) for name in ("event", "value"))
    return event, value


def _doubles(profile: Profile, trace: Profile, shift_ps: int) -> _Bool:
    """Per event of the trace whether the profile has the same call, or the same work, itself."""
    out = np.zeros(trace["events"].num_rows, np.bool_)
    (own, own_id), (theirs, their_id) = _ids(profile), _ids(trace)
    if not len(own) or not len(theirs):
        return out

    def placed(of: Profile, rows: _I64) -> tuple[_I64, _Bool]:
        line = np.asarray(of["events"]["line"].to_numpy())[rows]
        device = np.array([plane.startswith("/device:") for plane in of["lines"]["plane"].to_pylist()], np.bool_)
        return np.asarray(of["events"]["start_ps"].to_numpy())[rows], device[line]

    (own_start, own_device), (start, device) = placed(profile, own), placed(trace, theirs)
    # By (id, role, start): the neighbours of one are the nearest of its id and role.
    order = np.lexsort((own_start, own_device, own_id))
    own_id, own_device, own_start = own_id[order], own_device[order], own_start[order]
    rank = np.unique(np.concatenate((own_start, start + shift_ps)), return_inverse=True)[1].reshape(-1)
    same = np.unique(
        np.stack((np.concatenate((own_id, their_id)), np.concatenate((own_device, device)))),
        axis=1,
        return_inverse=True,
    )[1].reshape(-1)
    width = len(rank) + 1
    key, wanted = same[: len(own)] * width + rank[: len(own)], same[len(own) :] * width + rank[len(own) :]
    place = np.searchsorted(key, wanted)
    for near in (np.minimum(place, len(key) - 1), np.maximum(place - 1, 0)):
        match = same[: len(own)][near] == same[len(own) :]
        match &= np.abs(own_start[near] - (start + shift_ps)) <= SLACK_PS
        out[theirs[match]] = True
    return out


def _without(trace: Profile, left_out: _Bool) -> Profile:
    keep = ~left_out
    row = np.cumsum(keep) - 1
    event = np.asarray(trace["args"]["event"].to_numpy())
    args = trace["args"].filter(pa.array(keep[event]))
    args = _with(args, "event", row[event[keep[event]]])
    return trace.with_tables(events=trace["events"].filter(pa.array(keep)), args=args)
