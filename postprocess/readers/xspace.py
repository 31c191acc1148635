"""XSpace (.xplane.pb of the XLA profiler) to a Profile.

Times of an XSpace: an event is at its line's ``timestamp_ns`` plus its own ``offset_ps``. Profilers of today count
``timestamp_ns`` from the start of the session, whose UTC is a stat of the plane "Task Environment"; older ones wrote
UTC nanoseconds into the line. Both become picoseconds since ``origin_ns``.

TPU ops also carry ``device_offset_ps`` and ``device_duration_ps``, counted by the device itself. They are the true
durations: the plain times have been through a clock correction that stretches or squeezes single ops by up to 0.2 s.
Where ops have them they are used, and the plane's other lines (modules, steps) are carried over to the same clock by
the map that the ops define, so that a module still encloses its ops. Then the plane is moved to the host's time, run by
run and without a change of any duration (device_clock.py).

Nothing here makes a Python object per event.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from xprof_py import _native
from xprof_py.errors import BadInputError
from xprof_py.postprocess import schema
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.column_memory import Content
from xprof_py.postprocess.readers.device_clock import HostTime, offset_line
from xprof_py.postprocess.readers.sniff import read_bytes, sniff_bytes
from xprof_py.postprocess.readers.workers import ALONE, WORTH_A_WORKER_BYTES, Workers, slice_count
from xprof_py.postprocess.schema import ArgKind

_I64 = npt.NDArray[np.int64]
_I32 = npt.NDArray[np.int32]
_U8 = npt.NDArray[np.uint8]

_LIVE = 1
_ABSOLUTE_NS = 10**17
"""A line's timestamp above this is UTC (1973 and later), below it counts from the session's start (three years)."""
_LIMIT_PS = 2**61
"""Times beyond this, 26 days, are not believed: a line's time, an offset and a duration must together fit 64 bits."""
_NO_PROFILE = "is not an XSpace (.xplane.pb), nor another profile that is read"
_EMPTY = (
    "is empty: jaxlib writes no byte, and reports success, where a profile is larger than 2 GB; record fewer steps, or "
    "without Python's calls (python_tracer_level=0)"
)
_BESIDE_HOST = ("/host:CUPTI", "/host:ROCTRACER", "/host:python-tracer", "/host:TPU-runtime")
"""Planes whose lines are threads of the process, by their ids: XLA usually merges them into "/host:CPU"."""
_PROGRAM_ID = re.compile(r"\((\d+)\)$")


def read_programs_file(path: str | Path) -> pa.Table:
    """The table programs of an XSpace, which need hold nothing else (a capture's `programs/`). Raises BadInputError."""
    content = read_bytes(path, empty="is empty")
    try:
        columns = _native.decode_xspace(content)
    except _native.DecodeError as error:
        raise BadInputError(str(path), f"byte {error.offset}", error.reason) from error
    return _XSpaceReader(str(path), columns, ALONE).programs(content)


def read_xspace(path: str | Path, workers: Workers = ALONE) -> Profile:
    """Read one XSpace file, plain or gzip. ``workers`` share the decoding, and may have begun with it.

    Returns a Profile with the tables lines, events, args, texts, plane_args, programs, event_metadata,
    event_metadata_of, metadata_args and diagnostics of schema.TABLES. ``capture_start_ps`` is 0, the session's start;
    ``capture_end_ps`` its stop, or the end of the last event where the file does not say.

    Raises BadInputError where the file cannot be read or is not an XSpace: with the place in the message structure and
    in the file.
    """
    file = str(path)
    content, slices = _content(path, workers)
    try:
        columns = slices.join() if slices is not None else _decode(content, workers)
    except _native.DecodeError as error:
        if sniff_bytes(bytes(memoryview(content)[:4096])) != "xspace":
            raise BadInputError(file, "", _NO_PROFILE) from error
        place = f"{error.place}, byte {error.offset}" if error.place else f"byte {error.offset}"
        raise BadInputError(file, place, error.reason) from error
    if not any(len(columns[name][0]) > 1 for name in ("plane_names", "hostnames", "errors", "warnings")):
        raise BadInputError(file, "", "is not an XSpace (.xplane.pb): none of its fields is in it")
    reader = _XSpaceReader(file, columns, workers)
    programs = reader.programs(content)
    # The file's bytes are a third of the memory, and what follows needs as much again.
    del content
    return reader.profile(programs)


def _content(path: str | Path, workers: Workers) -> tuple[Content, _native.XSpaceSlices | None]:
    """What the file holds; and its slices, all of them read, where the workers have begun with it."""
    begun = workers.begun.take(Path(path)) if workers.begun is not None else None
    return begun or (read_bytes(path, empty=_EMPTY if str(path).endswith(".pb") else "is empty"), None)


def _decode(content: Content, workers: Workers) -> dict[str, Any]:
    if workers.count == 1 or len(content) < WORTH_A_WORKER_BYTES:
        return _native.decode_xspace(content)
    slices = _native.XSpaceSlices(content, slice_count(len(content), workers.count))
    workers.run([partial(slices.read, index) for index in range(len(slices))])
    return slices.join()


def strings(pair: tuple[Any, Any]) -> pa.StringArray | pa.LargeStringArray:
    """A string column of the decoder (offsets, bytes) as an Arrow array; a large one beyond 2 GB."""
    offsets, text = pair
    large = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(text))
    return large if len(memoryview(text)) >= 1 << 31 else large.cast(pa.string())


class _XSpaceReader:
    """One file's columns on their way to tables; ``diagnostics`` gathers what must be said about them."""

    def __init__(self, file: str, columns: dict[str, Any], workers: Workers) -> None:
        self.file = file
        self.columns = columns
        self.workers = workers
        self.diagnostics: list[dict[str, Any]] = []
        self.plane_names: list[str] = strings(columns["plane_names"]).to_pylist()
        self.event_names = strings(columns["event_names"])
        self.stat_names = strings(columns["stat_names"])
        self.texts = strings(columns["texts"])
        hostnames = strings(columns["hostnames"]).to_pylist()
        self.hostnames: list[str] = hostnames
        self.host: str = next((name for name in hostnames if name), Path(file).name.split(".")[0] or file)

    def column(self, table: str, name: str) -> npt.NDArray[Any]:
        return np.asarray(self.columns[table][name])

    def say(self, severity: str, code: str, message: str, *, count: int = 1, place: str = "") -> None:
        self.diagnostics.append(
            {
                "severity": severity,
                "code": code,
                "file": self.file,
                "place": place,
                "count": count,
                "message": message,
            }
        )

    def profile(self, programs: pa.Table) -> Profile:
        self.say_what_the_file_says()
        start_ns, stop_ns = self.session_edges_ns()
        plane_args = self.plane_args()
        origin_ns, line_base_ps, sound_lines = self.line_bases(start_ns)
        events, keep = self.events(line_base_ps, sound_lines)
        tables = {
            "lines": self.lines(),
            "events": events["table"],
            "args": self.args(keep),
            "texts": schema.table("texts", {"text": self.texts.cast(pa.large_string())}),
            "plane_args": plane_args,
            "programs": programs,
            **self.event_metadata_tables(events["metadata"]),
        }
        if start_ns is not None and stop_ns is not None and stop_ns >= start_ns:
            end_ps = (stop_ns - start_ns) * 1000
        else:
            end_ps = events["end_ps"]
        tables["diagnostics"] = pa.Table.from_pylist(self.diagnostics, schema=schema.TABLES["diagnostics"])
        return Profile(
            host=self.host,
            origin_ns=origin_ns,
            capture_start_ps=0,
            capture_end_ps=end_ps,
            tables=tables,
            metadata={
                "format": "xspace",
                "file": self.file,
                "hostnames": self.hostnames,
                "profile_start_time_ns": start_ns,
                "profile_stop_time_ns": stop_ns,
            },
        )

    def say_what_the_file_says(self) -> None:
        for severity, name in (("error", "errors"), ("warning", "warnings")):
            for text in strings(self.columns[name]).to_pylist():
                self.say(severity, f"xspace_{name[:-1]}", text, place="XSpace")
        for code, name, message in (
            ("event_without_metadata", "events_without_metadata", 'events without a name in the file, named "#<id>"'),
            ("stat_without_metadata", "stats_without_metadata", 'stats without a key in the file, named "#<id>"'),
            ("not_utf8", "repaired_strings", "strings that are not UTF-8; the bad bytes are replaced"),
        ):
            count = self.columns[name]
            if count:
                self.say("warning", code, message, count=count)
        if not self.plane_names:
            self.say("warning", "no_planes", "the profiler wrote no planes")

    # --- planes and lines ---------------------------------------------------------------------------------------

    def session_edges_ns(self) -> tuple[int | None, int | None]:
        """UTC nanoseconds of the session's start and stop, where the plane Task Environment has them."""
        owners = self.column("plane_stats", "owner")
        keys = self.column("plane_stats", "key")
        kinds = self.column("plane_stats", "kind")
        values = self.column("plane_stats", "value")
        edges: dict[str, int] = {}
        for row in np.flatnonzero(np.isin(kinds, (ArgKind.INT, ArgKind.UINT))):
            if self.plane_names[owners[row]] == "Task Environment":
                edges[self.stat_names[keys[row]].as_py()] = int(values[row])
        start_ns = edges.get("profile_start_time")
        return start_ns if start_ns and start_ns > 0 else None, edges.get("profile_stop_time")

    def line_bases(self, start_ns: int | None) -> tuple[int, _I64, npt.NDArray[np.bool_]]:
        """``origin_ns``, every line's timestamp in ps since then, and which lines' timestamps can be believed."""
        timestamps_ns = self.column("lines", "timestamp_ns")
        used = self.column("lines", "event_count") > 0
        absolute = timestamps_ns > _ABSOLUTE_NS
        origin_ns = start_ns or 0
        if start_ns is None and bool(np.any(absolute & used)):
            origin_ns = int(timestamps_ns[absolute & used].min())
        elif start_ns is None:
            self.say(
                "warning",
                "no_absolute_time",
                "the file does not say when the session started: its times cannot be set against other hosts",
            )
        relative_ns = np.where(absolute, timestamps_ns - origin_ns, timestamps_ns)
        sound = np.abs(relative_ns) < _LIMIT_PS // 1000
        return origin_ns, np.where(sound, relative_ns, 0) * 1000, sound

    def lines(self) -> pa.Table:
        planes = self.column("lines", "plane")
        names = strings(self.columns["line_names"]).to_pylist()
        display_names = strings(self.columns["line_display_names"]).to_pylist()
        plane_of_line = [self.plane_names[plane] for plane in planes]
        own_clock = self.planes_with_device_times()
        return schema.table(
            "lines",
            {
                "plane": plane_of_line,
                "name": [name or shown for name, shown in zip(names, display_names, strict=True)],
                "line_id": self.column("lines", "id"),
                "thread_id": pa.nulls(len(names), pa.int64()),
                "source": ["xspace"] * len(names),
                "clock_domain": [
                    f"{self.host}/{self.plane_names[plane]}" if plane in own_clock else f"{self.host}/realtime"
                    for plane in planes
                ],
            },
        )

    def plane_args(self) -> pa.Table:
        owners = self.column("plane_stats", "owner")
        kinds = self.column("plane_stats", "kind")
        values = self.column("plane_stats", "value")
        text = [
            self.texts[value].as_py() if kind == ArgKind.TEXT else None
            for kind, value in zip(kinds, values, strict=True)
        ]
        table = schema.table(
            "plane_args",
            {
                "plane": [self.plane_names[owner] for owner in owners],
                "key": self.stat_names.take(pa.array(self.column("plane_stats", "key"))),
                "kind": kinds,
                "value": values,
                "text": pa.array(text, pa.large_string()),
            },
        )
        return table.filter(pa.array(kinds != 0))

    # --- events -------------------------------------------------------------------------------------------------

    def key_number(self, name: str) -> int:
        """The number of a stat's name, -1 where the file does not have it."""
        return cast(int, self.stat_names.index(name).as_py())

    def device_times(self, name: str) -> tuple[_I64, _I64]:
        """Events (rows of the file's events) and values of a device time stat."""
        key = self.key_number(name)
        if key < 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        kinds = self.column("event_stats", "kind")
        rows = np.flatnonzero(self.column("event_stats", "key") == key)
        rows = rows[np.isin(kinds[rows], (ArgKind.INT, ArgKind.UINT))]
        values = self.column("event_stats", "value")[rows]
        sound = (values >= 0) & (values < _LIMIT_PS)
        return self.column("event_stats", "owner")[rows[sound]], values[sound]

    def planes_with_device_times(self) -> set[int]:
        """Planes of which some events carry the device's own times."""
        lines = self.column("events", "line")[self.device_times("device_offset_ps")[0]]
        return set(np.unique(self.column("lines", "plane")[np.unique(lines)]).tolist())

    def place_on_device_clock(self, start_ps: _I64, duration_ps: _I64) -> None:
        """Put the planes whose ops carry device times on the device's clock, moved to the host's time; in place."""
        events, device_start_ps = self.device_times("device_offset_ps")
        if not events.size:
            return
        device_duration_ps = duration_ps.copy()
        with_duration, values = self.device_times("device_duration_ps")
        device_duration_ps[with_duration] = values
        plane_of_event = self.column("lines", "plane")[self.column("events", "line")]
        has_device_time = np.zeros(start_ps.size, np.bool_)
        has_device_time[events] = True
        new_start_ps = start_ps.copy()
        new_start_ps[events] = device_start_ps
        names = strings(self.columns["line_names"]).to_pylist()
        module_lines = [row for row, name in enumerate(names) if name in ("XLA Modules", "Sparse Core Modules")]
        for plane in np.unique(plane_of_event[events]):
            ops = np.flatnonzero(has_device_time & (plane_of_event == plane))
            rest = np.flatnonzero(~has_device_time & (plane_of_event == plane))
            clock = _PiecewiseClock(
                np.concatenate([start_ps[ops], start_ps[ops] + duration_ps[ops]]),
                np.concatenate([new_start_ps[ops], new_start_ps[ops] + device_duration_ps[ops]]),
            )
            end_ps = clock.carried(start_ps[rest] + duration_ps[rest])
            new_start_ps[rest] = clock.carried(start_ps[rest])
            device_duration_ps[rest] = end_ps - new_start_ps[rest]
            line = offset_line(new_start_ps[ops], start_ps[ops])
            if line is None:
                self.say(
                    "warning",
                    "device_clock_unaligned",
                    "the device's clock could not be set against the host's: causes of its gaps are weak",
                    place=self.plane_names[plane],
                )
                continue
            runs = rest[np.isin(self.column("events", "line")[rest], module_lines)]
            host = HostTime(line, new_start_ps[runs], new_start_ps[runs] + device_duration_ps[runs])
            ends_ps = host.ends(new_start_ps[rest] + device_duration_ps[rest])
            new_start_ps[ops] = host.starts(new_start_ps[ops])
            new_start_ps[rest] = host.starts(new_start_ps[rest])
            device_duration_ps[rest] = np.maximum(ends_ps - new_start_ps[rest], 0)
        start_ps[:] = new_start_ps
        duration_ps[:] = device_duration_ps

    def one_line_per_thread(self) -> _I32:
        """Per line the line of its thread: that of "/host:CPU" where another plane of the host has the thread's id."""
        out = np.arange(len(self.column("lines", "plane")), dtype=np.int32)
        planes = [self.plane_names[plane] for plane in self.column("lines", "plane")]
        ids = self.column("lines", "id").tolist()
        threads = {number: row for row, number in enumerate(ids) if number and planes[row] == "/host:CPU"}
        for row, plane in enumerate(planes):
            if plane in _BESIDE_HOST:
                out[row] = threads.get(ids[row], row)
        return out

    def events(self, line_base_ps: _I64, sound_lines: npt.NDArray[np.bool_]) -> tuple[dict[str, Any], _I64 | None]:
        """The table events, its metadata rows and last end; and its rows in the file, None for all in order."""
        counts = self.column("lines", "event_count")
        line: _I32 = self.column("events", "line")
        line_of_thread = self.one_line_per_thread()
        if (line_of_thread != np.arange(len(line_of_thread))).any():
            line = line_of_thread[line]
        metadata: _I32 = self.column("events", "metadata")
        start_ps: _I64 = self.column("events", "offset_ps")
        duration_ps: _I64 = self.column("events", "duration_ps")
        lost = self.lost_events(start_ps, duration_ps, sound_lines, counts)
        if self.key_number("device_offset_ps") >= 0:
            start_ps += np.repeat(line_base_ps, counts)
            self.place_on_device_clock(start_ps, duration_ps)
            line_base_ps = np.zeros_like(line_base_ps)
        name_of_metadata: _I32 = self.column("event_metadata", "name")
        name: _I32 = np.empty(line.size, np.int32)
        in_order, negative, end_ps = self.place(
            (line, metadata, start_ps, duration_ps, name), line_base_ps, name_of_metadata
        )
        if negative:
            message = "events that end before they start, taken as instants"
            self.say("warning", "negative_duration", message, count=negative)
        rows: _I64 | None = None
        if not in_order:
            rows = np.lexsort((-duration_ps, start_ps, line))
        if lost is not None:
            rows = np.flatnonzero(~lost) if rows is None else rows[~lost[rows]]
        if rows is not None:
            line, metadata, name = line[rows], metadata[rows], name[rows]
            start_ps, duration_ps = start_ps[rows], duration_ps[rows]
            end_ps = int((start_ps + duration_ps).max()) if line.size else 0
        table = schema.table(
            "events",
            {
                "line": line,
                # Not safe: place_events took every name from the dictionary.
                "name": pa.DictionaryArray.from_arrays(pa.array(name), self.event_names, safe=False),
                # PLAIN. Zeros that nobody writes take no memory.
                "kind": np.zeros(line.size, np.uint8),
                "start_ps": start_ps,
                "duration_ps": duration_ps,
            },
        )
        return {"table": table, "metadata": metadata, "end_ps": max(end_ps, 0)}, rows

    def place(
        self, columns: tuple[_I32, _I32, _I64, _I64, _I32], line_base_ps: _I64, name_of_metadata: _I32
    ) -> tuple[bool, int, int]:
        """place_events of all events, of which each worker places a stretch."""
        line, metadata, start_ps, duration_ps, name = columns
        stretches = self.workers.count if start_ps.nbytes >= WORTH_A_WORKER_BYTES else 1
        cuts = [line.size * number // stretches for number in range(stretches + 1)]

        def placed(low: int, high: int) -> tuple[bool, int, int]:
            rows = slice(low, high)
            times = start_ps[rows], duration_ps[rows]
            return _native.place_events(line[rows], metadata[rows], *times, name[rows], line_base_ps, name_of_metadata)

        parts = self.workers.run([partial(placed, low, high) for low, high in pairwise(cuts)])
        ordered, negative, ends_ps = zip(*parts, strict=True)
        # Where two stretches meet: as within one.
        first = np.array(cuts[1:-1], np.int64)
        before = first - 1
        meet = (line[before] != line[first]) | (start_ps[before] < start_ps[first])
        meet |= (start_ps[before] == start_ps[first]) & (duration_ps[before] >= duration_ps[first])
        return all(ordered) and bool(meet.all()), sum(negative), max(ends_ps)

    def lost_events(
        self, offset_ps: _I64, duration_ps: _I64, sound_lines: npt.NDArray[np.bool_], counts: _I64
    ) -> npt.NDArray[np.bool_] | None:
        """Which events cannot be kept, None for none of them; every one is counted in the diagnostics."""
        lost: npt.NDArray[np.bool_] | None = None
        aggregated = self.column("aggregated", "event")
        if aggregated.size:
            lost = np.zeros(offset_ps.size, np.bool_)
            lost[aggregated] = True
            self.say(
                "warning",
                "aggregated_event",
                "events that stand for several occurrences and have no time of their own are left out",
                count=int(aggregated.size),
            )
        sound = bool(np.all(sound_lines | (counts == 0)))
        within = [partial(_native.all_within, times, _LIMIT_PS) for times in (offset_ps, duration_ps)]
        if not (sound and all(self.workers.run(within))):
            unsound = np.repeat(~sound_lines, counts)
            unsound |= (np.abs(offset_ps) >= _LIMIT_PS) | (np.abs(duration_ps) >= _LIMIT_PS)
            # abs() of the least int64 is negative.
            unsound |= (offset_ps == np.iinfo(np.int64).min) | (duration_ps == np.iinfo(np.int64).min)
            offset_ps[unsound] = 0
            duration_ps[unsound] = 0
            self.say(
                "error",
                "time_out_of_range",
                "events whose time is more than 26 days from the session's start are left out",
                count=int(np.count_nonzero(unsound)),
            )
            lost = unsound if lost is None else lost | unsound
        return lost

    # --- stats --------------------------------------------------------------------------------------------------

    def args(self, rows: _I64 | None) -> pa.Table:
        """The stats of the events that are kept, ``rows`` of the file in the order of the table events."""
        event: _I64 = self.column("event_stats", "owner")
        key: _I32 = self.column("event_stats", "key")
        kind: _U8 = self.column("event_stats", "kind")
        value: _I64 = self.column("event_stats", "value")
        wanted: _I64 | None = None
        empty = int(np.count_nonzero(kind == 0))
        if empty:
            self.say("note", "stat_without_value", "stats that hold no value are left out", count=empty)
            wanted = np.flatnonzero(kind)
        if rows is not None:
            new_row = np.full(len(self.columns["events"]["line"]), -1, np.int64)
            new_row[rows] = np.arange(rows.size)
            event = new_row[event]
            kept = np.flatnonzero((event >= 0) & (kind != 0))
            wanted = kept[np.argsort(event[kept], kind="stable")]
        if wanted is not None:
            event, key, kind, value = event[wanted], key[wanted], kind[wanted], value[wanted]
        return self.arg_table("args", "event", event, key, kind, value)

    def arg_table(self, name: str, owner_name: str, owner: Any, key: _I32, kind: _U8, value: _I64) -> pa.Table:
        keys = pa.DictionaryArray.from_arrays(pa.array(key), self.stat_names)
        return schema.table(name, {owner_name: owner, "key": keys, "kind": kind, "value": value})

    def event_metadata_tables(self, metadata_of_event: _I32) -> dict[str, pa.Table]:
        """What the file says once per kind of event."""
        live = self.column("event_metadata", "live") == _LIVE
        shown_offsets = np.asarray(self.columns["metadata_display_names"][0])
        owner: _I64 = self.column("metadata_stats", "owner")
        key: _I32 = self.column("metadata_stats", "key")
        kind: _U8 = self.column("metadata_stats", "kind")
        says_something = live & (np.diff(shown_offsets) > 0)
        says_something[owner[kind != 0]] = True
        says_something &= live
        says_something[owner[key == self.key_number("Hlo Proto")]] = False  # those are programs
        described = np.flatnonzero(says_something)
        row_of_metadata = np.full(live.size, -1, np.int32)
        row_of_metadata[described] = np.arange(described.size, dtype=np.int32)
        described_rows = pa.array(described)
        planes = self.column("event_metadata", "plane")[described]
        stats = np.flatnonzero(says_something[owner] & (kind != 0))
        stats = stats[np.argsort(owner[stats], kind="stable")]
        row_of_event = row_of_metadata[metadata_of_event] if described.size else np.empty(0, np.int32)
        events = np.flatnonzero(row_of_event >= 0)
        names = self.event_names.take(pa.array(self.column("event_metadata", "name")[described]))
        return {
            "event_metadata": schema.table(
                "event_metadata",
                {
                    "plane": [self.plane_names[plane] for plane in planes],
                    "name": names,
                    "display_name": strings(self.columns["metadata_display_names"]).take(described_rows),
                },
            ),
            "event_metadata_of": schema.table(
                "event_metadata_of", {"event": events, "event_metadata": row_of_event[events]}
            ),
            "metadata_args": self.arg_table(
                "metadata_args",
                "event_metadata",
                row_of_metadata[owner[stats]],
                key[stats],
                kind[stats],
                self.column("metadata_stats", "value")[stats],
            ),
        }

    def programs(self, content: Content) -> pa.Table:
        """Every event metadata that carries an HloProto, by program id; ``content``: of the file."""
        owner: _I64 = self.column("metadata_stats", "owner")
        key: _I32 = self.column("metadata_stats", "key")
        kind: _U8 = self.column("metadata_stats", "kind")
        value: _I64 = self.column("metadata_stats", "value")
        at: _I64 = self.column("metadata_stats", "at")
        live = self.column("event_metadata", "live")[owner] == _LIVE
        is_hlo = live & (key == self.key_number("Hlo Proto")) & (kind == ArgKind.BYTES)
        is_id = live & (key == self.key_number("program_id")) & np.isin(kind, (ArgKind.INT, ArgKind.UINT))
        stated_ids = dict(zip(owner[is_id].tolist(), value[is_id].tolist(), strict=True))
        names = self.column("event_metadata", "name")
        ids = self.column("event_metadata", "id")
        found: list[tuple[int, str, bytes]] = []
        for row in np.flatnonzero(is_hlo):
            metadata = int(owner[row])
            name = self.event_names[names[metadata]].as_py()
            in_name = _PROGRAM_ID.search(name)
            if metadata in stated_ids:
                program_id = stated_ids[metadata]
            elif in_name and int(in_name[1]) < 2**64:
                program_id = int(np.uint64(in_name[1]).astype(np.int64))
            else:
                program_id = int(ids[metadata])
            hlo = bytes(memoryview(content)[at[row] : at[row] + value[row]])
            found.append((program_id, name[: in_name.start()] if in_name else name, hlo))
        found.sort(key=lambda program: (program[0], program[1]))
        return schema.table(
            "programs",
            {
                "program_id": [program_id for program_id, _, _ in found],
                "name": [name for _, name, _ in found],
                "hlo": pa.array([hlo for _, _, hlo in found], pa.large_binary()),
            },
        )


class _PiecewiseClock:
    """The monotone map through pairs (plain time, device time) in ps; outside of them it keeps the nearest shift."""

    def __init__(self, plain_ps: _I64, device_ps: _I64) -> None:
        order = np.lexsort((device_ps, plain_ps))
        self.plain_ps = plain_ps[order]
        self.device_ps = np.maximum.accumulate(device_ps[order])

    def carried(self, plain_ps: _I64) -> _I64:
        """Device times of plain times, both in ps."""
        last = self.plain_ps.size - 1
        before = np.searchsorted(self.plain_ps, plain_ps, side="right") - 1
        low, high = np.clip(before, 0, last), np.clip(before + 1, 0, last)
        into_ps = plain_ps - self.plain_ps[low]
        span_ps = self.plain_ps[high] - self.plain_ps[low]
        device_span_ps = self.device_ps[high] - self.device_ps[low]
        inside = (before >= 0) & (span_ps > 0)
        # Only differences become doubles, never times.
        share = np.where(inside, into_ps / np.maximum(span_ps, 1), 0.0)
        stretched = np.rint(share * device_span_ps).astype(np.int64)
        return cast(_I64, self.device_ps[low] + np.where(inside, stretched, into_ps))
