"""Chrome trace JSON as Kineto, the profiler of PyTorch, writes it, to a Profile with the layout of GPU planes.

A file is a list of events with category, process and thread. What they become:

- Kernels, copies and fills (`kernel`, `gpu_memcpy`, `gpu_memset`; once `Kernel`, `Memcpy`, `Memset`) lie on lines
  `Stream #N` of the plane `/device:GPU:P`, P being the process id that Kineto gives to a device: its ordinal.
- All else that happened on a host thread lies on a line of `/host:CPU`. Calls of the driver carry `correlation_id`, as
  the work that they started does: the join goes by that (join/device_launches.py). Ids count within one process only:
  where a file holds several, each has a range of its own.
- `ProfilerStep#N` on the host is a step. Its copy on the device (`gpu_user_annotation`) is no work and no step: what
  runs in it is often that of another one.

Times are microseconds in decimals, since `baseTimeNanoseconds` where the file has it, else since 1970. They are added
as integers: profiles with different bases lie on one axis.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py import _native
from xprof_py.errors import BadInputError
from xprof_py.postprocess import schema
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.chrome_repair import overlong
from xprof_py.postprocess.readers.chrome_stretches import scan
from xprof_py.postprocess.readers.chrome_text import Pieces
from xprof_py.postprocess.readers.workers import ALONE, Workers
from xprof_py.postprocess.readers.xspace import strings
from xprof_py.postprocess.schema import ArgKind, Kind

_I64 = npt.NDArray[np.int64]
_Bool = npt.NDArray[np.bool_]

_WORK = frozenset({"kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "mtia_runtime"})
_HOST_OPS = frozenset({"cpu_op", "operator"})
_DERIVED = frozenset({"gpu_user_annotation", "cuda_sync", "cuda_event", "cuda_profiler_range"})
"""Rows of devices that are no work."""
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d+)|^(\d+)(?=[-_.])", re.I)
_FAR_US = 2_200_000_000_000
"""25 days: what lies further than this from the middle of a trace is not believed, and 64 bits hold the rest in ps."""
_ABSOLUTE_US = 10**14
_SESSION_SHIFT = 40
"""Correlation ids have 32 bits; above them the number of the process."""
_TICKS_PER_US = 1_000_000


def read_chrome_json(path: str | Path, member: str = "", workers: Workers = ALONE) -> Profile:
    """Read one trace, plain or gzip, or ``member`` of an archive; ``workers`` share a large one.

    Returns a Profile with the tables lines, events, args, texts and diagnostics. ``metadata["run"]`` has the
    `process_index`, where the file or its name says the rank, and `process_count`; ``metadata["process_groups"]`` what
    distributedInfo says of them, as it is there.

    Raises BadInputError where the file cannot be read, is no JSON or holds no events.
    """
    pieces = Pieces(path, member)
    file = f"{path}:{member}" if member else str(path)
    try:
        columns = scan(pieces, workers)
    except _native.DecodeError as error:
        raise BadInputError(file, f"byte {error.offset}", f"is no trace in JSON: {error.reason}") from error
    return _Reader(file, member or Path(path).name, columns, pieces.broken).profile()


class _Reader:
    def __init__(self, file: str, name: str, columns: dict[str, Any], broken: str) -> None:
        self.file, self.name, self.columns, self.broken = file, name, columns, broken
        self.diagnostics: list[dict[str, Any]] = []
        self.names = strings(columns["names"])
        self.labels: list[str] = strings(columns["labels"]).to_pylist()
        self.categories: list[str] = [c.lower() for c in strings(columns["categories"]).to_pylist()]
        self.top = self._top()

    def column(self, table: str, name: str) -> npt.NDArray[Any]:
        return np.asarray(self.columns[table][name])

    def say(self, severity: str, code: str, message: str, *, count: int = 1, place: str = "") -> None:
        row = {"severity": severity, "code": code, "file": self.file, "place": place, "count": count}
        self.diagnostics.append({**row, "message": message})

    def _top(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, text in zip(
            strings(self.columns["top_keys"]).to_pylist(), strings(self.columns["top_values"]).to_pylist(), strict=True
        ):
            try:
                found[key] = orjson.loads(text)
            except orjson.JSONDecodeError:
                # Written as text with odd characters, or a number that JSON does not have: nothing needs it.
                found[key] = None
        return found

    def profile(self) -> Profile:
        self.phase = self.column("events", "phase")
        if not len(self.phase):
            raise BadInputError(self.file, "", "holds no events")
        self._say_what_was_lost()
        spans = (self.phase == ord("X")) | (self.phase == ord("i")) | (self.phase == ord("I"))
        category = self.column("events", "category")
        self.is_work = self._of(_WORK)[category] & (self.phase == ord("X"))
        self.is_call = self._of(_CALLS)[category]
        kept, origin_ns, start_ps, duration_ps = self._times(np.flatnonzero(spans))
        line_of, lines = self._lines(kept)
        order = _in_order(line_of, start_ps, duration_ps)
        kept, line_of = kept[order], line_of[order]
        start_ps, duration_ps = start_ps[order], duration_ps[order]
        self._shorten(kept, line_of, start_ps, duration_ps)
        kind = np.where(self._of(_HOST_OPS)[category[kept]], int(Kind.HOST_OP), int(Kind.PLAIN)).astype(np.uint8)
        kind[self.phase[kept] != ord("X")] = Kind.MARK
        names, codes, step_num = self._step_names(kept)
        kind[step_num >= 0] = Kind.STEP
        texts = strings(self.columns["texts"])
        tables = {
            "lines": lines,
            "events": schema.table(
                "events",
                {
                    "line": line_of.astype(np.int32),
                    "name": pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), names),
                    "kind": kind,
                    "start_ps": start_ps,
                    "duration_ps": duration_ps,
                },
            ),
            "args": self._args(kept, step_num),
            "texts": schema.table("texts", {"text": texts.cast(pa.large_string())}),
        }
        rank, metadata = self._metadata()
        tables["diagnostics"] = pa.Table.from_pylist(self.diagnostics, schema=schema.TABLES["diagnostics"])
        return Profile(
            host=f"rank{rank}" if rank is not None else self.name.split(".")[0] or self.file,
            origin_ns=origin_ns,
            capture_start_ps=0,
            capture_end_ps=int((start_ps + duration_ps).max(initial=0)),
            tables=tables,
            metadata=metadata,
        )

    def _of(self, wanted: frozenset[str]) -> _Bool:
        """Per category whether it is one of these."""
        return np.array([c in wanted for c in self.categories] or [False], np.bool_)

    # --- what the file says about itself -------------------------------------------------------------------------

    def _say_what_was_lost(self) -> None:
        columns = self.columns
        at, end = self.column("damages", "at").tolist(), self.column("damages", "end").tolist()
        if columns["truncated"] or self.broken:
            whole = columns["truncated_at"]
            why = f" ({self.broken})" if self.broken else ""
            if end and end[-1] == columns["length"]:
                at, end = at[:-1], end[:-1]
            message = f"the file breaks off{why}: read up to its last whole event, {len(self.phase)} of them"
            self.say("warning", "truncated", message, place=f"byte {whole}")
        if at:
            lost = sum(e - a for a, e in zip(at, end, strict=True))
            message = f"places that are no JSON: {lost} bytes are left out, reading goes on behind them"
            self.say("error", "damaged", message, count=len(at), place=", ".join(f"byte {a}" for a in at[:5]))
        if columns["odd_strings"]:
            message = "strings with raw control characters or lone backslashes, kept as they are"
            self.say("warning", "odd_strings", message, count=columns["odd_strings"], place=f"byte {columns['odd_at']}")
        if columns["repaired_strings"]:
            message = "strings that are not UTF-8; the bad bytes are replaced"
            self.say("warning", "not_utf8", message, count=columns["repaired_strings"])
        if columns["large_numbers"]:
            message = "numbers beyond 64 bits in arguments: kept as doubles"
            self.say("note", "large_numbers", message, count=columns["large_numbers"])
        if columns["without_phase"]:
            message = "objects among the events that say no phase are left out"
            self.say("warning", "event_without_phase", message, count=columns["without_phase"])
        count = np.bincount(self.phase, minlength=256)
        for phase in np.flatnonzero(count).tolist():
            if phase not in b"XiIMsftC":
                message = f"events of phase {chr(phase)!r} are not read: Kineto writes none"
                self.say("warning", "phase_not_read", message, count=int(count[phase]))
        counters = int(count[ord("C")])
        if counters:
            self.say("note", "counters_not_read", "counters are not read", count=counters)

    def _metadata(self) -> tuple[int | None, dict[str, Any]]:
        stated = self.top.get("distributedInfo")
        info = stated if isinstance(stated, dict) else {}
        rank, count = (info.get(key) for key in ("rank", "world_size"))
        in_name = _RANK_IN_NAME.search(self.name)
        if not _whole(rank):
            rank = int(in_name[1] or in_name[2]) if in_name else None
        elif in_name and int(in_name[1] or in_name[2]) != rank:
            message = f"is of rank {rank} by its distributedInfo, which counts, and of another by its name"
            self.say("note", "rank_by_name_differs", message)
        if self.sessions > 1:
            message = (
                f"the file holds {self.sessions} processes: their steps are those of one, and its rank is not known"
            )
            self.say("warning", "several_processes", message, count=self.sessions)
            rank = None
        versions = {
            key: self.top[key]
            for key in ("cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "pytorch_version")
            if isinstance(self.top.get(key), str | int)
        }
        run = {"process_index": rank, "process_count": count if _whole(count) else None, "versions": versions}
        return rank, {
            "format": "chrome_json",
            "file": self.file,
            "run": run,
            "process_groups": info.get("pg_config"),
        }

    # --- time ----------------------------------------------------------------------------------------------------

    def _times(self, rows: _I64) -> tuple[_I64, int, _I64, _I64]:
        """(rows whose time can be believed, origin in ns, their starts in ps since it, their durations in ps)."""
        us, ps = self.column("events", "us")[rows], self.column("events", "ps")[rows].astype(np.int64)
        duration_ps: _I64 = self.column("events", "duration_ps")[rows].copy()
        complete = self.phase[rows] == ord("X")
        timeless = ps < 0
        # The profiler writes device work of which it has no time at 0 (kineto#109).
        empty = self.is_work[rows] & (us == 0) & (ps == 0) & (duration_ps <= 0)
        known = ~timeless & ~empty
        middle = int(np.median(us[known])) if known.any() else 0
        far = known & ((us > middle + _FAR_US) | (us < middle - _FAR_US))
        far |= known & (np.abs(duration_ps) >= _FAR_US * _TICKS_PER_US)
        for wrong, severity, code, message in (
            (timeless, "error", "event_without_time", "events that state no time are left out"),
            (empty, "error", "work_without_time", "kernels and copies of time 0 and no duration are left out"),
            (far, "error", "time_out_of_range", "events more than 25 days from the others are left out"),
            (
                known & complete & (duration_ps < 0),
                "warning",
                "negative_duration",
                "events that end before they start, or state no end, taken as instants",
            ),
        ):
            if wrong.any():
                place = f"byte {int(self.column('events', 'at')[rows[np.argmax(wrong)]])}"
                self.say(severity, code, message, count=int(wrong.sum()), place=place)
        good = known & ~far
        rows, us, ps = rows[good], us[good], ps[good]
        if not len(rows):
            raise BadInputError(self.file, "", "holds no event with a time")
        duration_ps = np.maximum(duration_ps[good], 0)
        base_ns = self.top.get("baseTimeNanoseconds")
        first_us = int(us.min())
        if _whole(base_ns):
            origin_ns = int(base_ns) + first_us * 1000
        elif first_us >= _ABSOLUTE_US:
            origin_ns = first_us * 1000
        else:
            origin_ns = 0
            message = "the file does not say since when its times count: they cannot be set against other hosts"
            self.say("warning", "no_absolute_time", message)
        return rows, origin_ns, (us - first_us) * _TICKS_PER_US + ps, duration_ps

    def _shorten(self, kept: _I64, line_of: _I64, start_ps: _I64, duration_ps: _I64) -> None:
        """Cut durations that cannot be at the start of what follows; in place."""
        work = np.flatnonzero(self.is_work[kept] & ~self._argument("graph id", kept)[0])
        name = self.column("events", "name")[kept]
        found = work[overlong(line_of[work], name[work], start_ps[work], duration_ps[work])]
        if not len(found):
            return
        following = work[np.searchsorted(work, found) + 1]
        duration_ps[found] = start_ps[following] - start_ps[found]
        place = f"byte {int(self.column('events', 'at')[kept[found[0]]])}"
        message = "durations that reach over the kernels after them on their stream, cut at the start of the next one"
        self.say("warning", "suspect_durations", message, count=len(found), place=place)

    # --- lines ---------------------------------------------------------------------------------------------------

    def _lines(self, rows: _I64) -> tuple[_I64, pa.Table]:
        """(line per row, the table lines)."""
        process, thread = (self.column("events", name)[rows].astype(np.int64) for name in ("process", "thread"))
        derived = self._of(_DERIVED)[self.column("events", "category")[rows]]
        role = np.where(self.is_work[rows], 2, np.where(derived, 1, 0))
        width = len(self.labels)
        key, place = np.unique((role * width + process) * width + thread, return_inverse=True)
        thread_names = self._thread_names()
        found = []
        for one in key.tolist():
            rest, thread_label = divmod(one, width)
            what, process_label = divmod(rest, width)
            pid, tid = self.labels[process_label], self.labels[thread_label]
            number = _number(tid)
            if what == 0:
                plane, name = "/host:CPU", thread_names.get((pid, tid), tid)
                plane = plane if _number(pid) >= 0 else f"/profiler:{pid}"
            else:
                plane = f"/device:GPU:{_number(pid)}" if _number(pid) >= 0 else f"/device:{pid}"
                name = f"Stream #{tid.removeprefix('stream ')}" if what == 2 else f"not work, {tid}"
            found.append((plane, _number(pid), number, name, tid))
        order = sorted(range(len(found)), key=lambda i: found[i])
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        table = schema.table(
            "lines",
            {
                "plane": [found[i][0] for i in order],
                "name": [found[i][3] for i in order],
                "line_id": [found[i][2] for i in order],
                "thread_id": pa.nulls(len(order), pa.int64()),
                "source": ["chrome_json"] * len(order),
                "clock_domain": [f"{self.name}/realtime"] * len(order),
            },
        )
        return rank[place.reshape(-1)], table

    def _thread_names(self) -> dict[tuple[str, str], str]:
        names = self.names.to_pylist()
        rows = np.flatnonzero(self.phase == ord("M"))
        process, thread, name = (self.column("events", c)[rows].tolist() for c in ("process", "thread", "name"))
        has, text = self._argument("name", rows)
        texts = strings(self.columns["texts"])
        return {
            (self.labels[p], self.labels[t]): texts[int(text[i])].as_py()
            for i, (p, t, n) in enumerate(zip(process, thread, name, strict=True))
            if names[n] == "thread_name" and has[i]
        }

    # --- arguments -----------------------------------------------------------------------------------------------

    def _argument(self, name: str, rows: _I64) -> tuple[_Bool, _I64]:
        """(present, value) of an argument of these rows of the file."""
        mine = self.column("args", "key") == self.columns["arg_names"].index(name)
        owner, value = self.column("args", "event")[mine], self.column("args", "value")[mine]
        if not len(owner):
            return np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.int64)
        place = np.minimum(np.searchsorted(owner, rows), len(owner) - 1)
        present = owner[place] == rows
        return present, np.where(present, value[place], 0)

    def _step_names(self, kept: _I64) -> tuple[pa.Array, _I64, _I64]:
        """(names, code of each row's name, number of the step that a row is, -1 without)."""
        code = self.column("events", "name")[kept].astype(np.int64)
        names = self.names
        numbers = np.full(len(names), -1, np.int64)
        for i in np.flatnonzero(np.asarray(pc.starts_with(names, "ProfilerStep#"))).tolist():
            found = _STEP.match(names[i].as_py())
            if found and len(found[1]) < 19:
                numbers[i] = int(found[1])
        derived = self._of(_DERIVED)[self.column("events", "category")[kept]]
        step_num = np.where(derived | (self.phase[kept] != ord("X")), -1, numbers[code])
        names = pa.concat_arrays([names, pa.array(["ProfilerStep"], names.type)])
        return names, np.where(step_num >= 0, len(names) - 1, code), step_num

    def _args(self, kept: _I64, step_num: _I64) -> pa.Table:
        event, value = self.column("args", "event"), self.column("args", "value").copy()
        key, kind = self.column("args", "key").astype(np.int32), self.column("args", "kind")
        keys = list(self.columns["arg_names"])
        names = [{"correlation": "correlation_id", "external id": "External id"}.get(k, k) for k in keys]
        correlated = np.flatnonzero((key == keys.index("correlation")) & (kind == ArgKind.INT))
        linked = correlated[(self.is_work | self.is_call)[event[correlated]]]
        session = self._sessions(event[linked], value[linked])
        # 0 is no id.
        value[linked] += np.where(value[linked] > 0, session << _SESSION_SHIFT, 0)
        row = np.full(len(self.phase), -1, np.int64)
        row[kept] = np.arange(len(kept))
        owner = row[event]
        # What is no launch and no work has an id of something else.
        wanted = key != keys.index("correlation")
        wanted[linked[session >= 0]] = True
        wanted &= owner >= 0
        steps = np.flatnonzero(step_num >= 0)
        owner = np.concatenate((owner[wanted], steps))
        both = [
            np.concatenate((column[wanted], added))
            for column, added in (
                (key, np.full(len(steps), len(names), np.int32)),
                (kind, np.full(len(steps), int(ArgKind.INT), np.uint8)),
                (value, step_num[steps]),
            )
        ]
        order = np.argsort(owner, kind="stable")
        # Two spellings of one name are one name.
        unique = list(dict.fromkeys([*names, "step_num"]))
        code = np.array([unique.index(n) for n in [*names, "step_num"]], np.int32)[both[0][order]]
        columns = {
            "event": owner[order],
            "key": pa.DictionaryArray.from_arrays(pa.array(code), pa.array(unique, pa.string())),
            "kind": both[1][order].astype(np.uint8),
            "value": both[2][order],
        }
        return schema.table("args", columns)

    def _sessions(self, event: _I64, correlation: _I64) -> _I64:
        """The number of the process that each of these calls and kernels is of; -1: which one cannot be told.

        A device is of the process of whose calls most ids are those of its work, and began before it; of two of which
        as many are, that which has fewest other calls. Where that is the same too, nothing tells.
        """
        process = self.column("events", "process")[event].astype(np.int64)
        call = self.is_call[event]
        hosts = np.flatnonzero(np.bincount(process[call], minlength=1))
        self.sessions = max(len(hosts), 1)
        if len(hosts) <= 1:
            return np.zeros(len(event), np.int64)
        # In the order of process ids: the numbers do not depend on that of the events.
        hosts = np.array(sorted(hosts.tolist(), key=lambda p: (_number(self.labels[p]), self.labels[p])))
        number = np.full(len(self.labels), -1, np.int64)
        us, ps = self.column("events", "us")[event], self.column("events", "ps")[event]
        begun = (us - int(us.min())) * _TICKS_PER_US + ps
        out = np.full(len(event), -1, np.int64)
        ids = [np.flatnonzero(call & (process == host)) for host in hosts.tolist()]
        ids = [rows[np.argsort(correlation[rows], kind="stable")] for rows in ids]
        number[hosts] = np.arange(len(hosts))
        out[call] = number[process[call]]
        unclear = 0
        for device in np.unique(process[~call]).tolist():
            mine = np.flatnonzero(~call & (process == device))
            scores = []
            for rows in ids:
                place = np.minimum(np.searchsorted(correlation[rows], correlation[mine]), len(rows) - 1)
                same = correlation[rows[place]] == correlation[mine]
                delay = begun[mine] - begun[rows[place]]
                early = int((same & (delay < 0)).sum())
                scores.append((int((same & (delay >= 0)).sum()), -early, -len(rows)))
            best = max(scores)
            if best[0] == 0 or scores.count(best) > 1:
                unclear += len(mine)
            else:
                out[mine] = scores.index(best)
        if unclear:
            message = "kernels and copies of which it cannot be told which of the file's processes launched them"
            self.say("warning", "launching_process_unclear", message, count=unclear)
        return out


def _in_order(line: _I64, start_ps: _I64, duration_ps: _I64) -> _I64:
    """Rows by line, then start, of equal ones the longest first. Most files have each line's events in that order."""
    # Of 16 bits numpy sorts in one pass.
    order = np.argsort(line.astype(np.uint16) if line.max(initial=0) < 1 << 16 else line, kind="stable")
    lines, starts, lengths = line[order], start_ps[order], duration_ps[order]
    apart = (lines[1:] != lines[:-1]) | (starts[1:] > starts[:-1])
    apart |= (starts[1:] == starts[:-1]) & (lengths[1:] <= lengths[:-1])
    return order if apart.all() else np.lexsort((-duration_ps, start_ps, line))


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(label: str) -> int:
    """The number of a process or thread, -1 where its label is no number."""
    digits = label.removeprefix("stream ")
    return int(digits) if digits.isdigit() and len(digits) < 19 else -1
