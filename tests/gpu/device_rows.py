"""What is known of each kernel of a joined profile, as columns that the checks count in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import Kind

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Kernels:
    """Columns of one length. ``launch``: row of `launches`, -1 where none is joined.

    ``step``: the number of the run's step; ``span``: the innermost annotated span around the launch on its thread;
    ``stated_op``: of the range around the launch, ``node_op``: around the making of the graph's node; ``hlo_op``: the
    instruction that was found, in the way ``join``. Each None where there is none. Times in ps since the profile's
    beginning; the launch's is that of its call.
    """

    name: list[str]
    stream: list[str]
    start_ps: Int64
    duration_ps: Int64
    launch: Int64
    launch_start_ps: Int64
    span: list[str | None]
    step: list[int | None]
    stated_op: list[str | None]
    node_op: list[str | None]
    join: list[str]
    hlo_op: list[str | None]

    def __len__(self) -> int:
        return len(self.name)


def kernels_of(profile: Profile) -> Kernels:
    """The kernels of ``profile``: what runs on lines of GPUs and is no copy, memset or whole graph."""
    ops, events, lines, runs, launches = (profile[name] for name in ("ops", "events", "lines", "runs", "launches"))
    event = ops["event"].to_numpy()
    line = events["line"].to_numpy()[event]
    plane = np.array(lines["plane"].to_pylist(), object)[line] if len(event) else np.empty(0, object)
    names = np.array(events["name"].cast(pa.string()).to_pylist(), object)[event]
    is_kernel = np.array(
        [
            str(p).startswith("/device:GPU:") and not str(n).startswith(("Memcpy", "Memset", "CUDA graph"))
            for p, n in zip(plane, names, strict=True)
        ],
        bool,
    )
    rows = np.flatnonzero(is_kernel)
    run = ops["run"].fill_null(-1).to_numpy()[rows]
    launch = _at(runs["launch"], run)
    launch_start = _at(launches["start_ps"], launch)
    step_row = _at(runs["step"], run)
    numbers = profile["steps"]["number"].to_pylist()
    instruction = ops["hlo_op"].fill_null(-1).to_numpy()[rows]
    instructions = profile["hlo_ops"]["name"].cast(pa.string()).to_pylist()
    stream = lines["name"].to_pylist()
    return Kernels(
        name=[str(name) for name in names[rows]],
        stream=[stream[at] for at in line[rows]],
        start_ps=ops["start_ps"].to_numpy()[rows],
        duration_ps=ops["duration_ps"].to_numpy()[rows],
        launch=launch,
        launch_start_ps=launch_start,
        span=_spans(profile, _at(launches["line"], launch), launch_start),
        step=[numbers[row] if row >= 0 else None for row in step_row],
        stated_op=_text(profile, event[rows], "hlo_op"),
        node_op=_text(profile, event[rows], "graph_node_op"),
        join=[str(ops["join"][int(row)]) for row in rows],
        hlo_op=[instructions[row] if row >= 0 else None for row in instruction],
    )


def _at(column: Any, rows: Int64) -> Int64:
    """``column`` at ``rows``, -1 where the row is -1 or the value null."""
    values = column.fill_null(-1).to_numpy().astype(np.int64)
    if not len(values):
        return np.full(len(rows), -1, np.int64)
    return np.where(rows >= 0, values[rows], -1)


def _text(profile: Profile, events: Int64, key: str) -> list[str | None]:
    """An argument that is a text, of these events."""
    args = profile["args"].filter(pc.equal(profile["args"]["key"].cast(pa.string()), key))
    texts = profile["texts"]["text"]
    told = dict(zip(args["event"].to_pylist(), args["value"].to_pylist(), strict=True))
    return [str(texts[told[event]]) if event in told else None for event in events.tolist()]


def _spans(profile: Profile, line: Int64, at_ps: Int64) -> list[str | None]:
    """The innermost span or step of the line around each moment, XLA's own ranges left out."""
    events = profile["events"]
    is_span = pc.is_in(events["kind"].cast(pa.int64()), pa.array([int(Kind.SPAN), int(Kind.STEP)]))
    of_xla = pc.match_substring_regex(events["name"].cast(pa.string()), "^(XlaModule|Thunk):#")
    chosen = events.filter(pc.and_not(is_span, of_xla))
    names = chosen["name"].cast(pa.string()).to_pylist()
    of_line = chosen["line"].to_numpy().astype(np.int64)
    start = chosen["start_ps"].to_numpy()
    end = start + chosen["duration_ps"].fill_null(2**62).to_numpy()
    found: list[str | None] = []
    for a_line, moment in zip(line.tolist(), at_ps.tolist(), strict=True):
        around = np.flatnonzero((of_line == a_line) & (start <= moment) & (moment < end))
        found.append(names[around[np.argmax(start[around])]] if len(around) else None)
    return found
