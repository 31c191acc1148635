"""Profile of one process -> the same with lanes, ops, launches, runs, steps, windows, gaps, compiles and breakdown.

Pure: tables in, tables out. Each part is a file of its own; this one holds the order, and writes the tables.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa

from xprof_py.postprocess import schema
from xprof_py.postprocess.hlo.module import read_programs
from xprof_py.postprocess.join import host_names, intervals, sampler_holes, tables
from xprof_py.postprocess.join.columns import Bool, Events, Int64
from xprof_py.postprocess.join.compiles import Compiles, read_compiles
from xprof_py.postprocess.join.copies import Copies, add_copies, read_copies
from xprof_py.postprocess.join.copy_rows import copies_table
from xprof_py.postprocess.join.device_ops import DeviceOps, lanes_table_columns, read_ops
from xprof_py.postprocess.join.gaps import GapCauses, GapEnd, GapRow
from xprof_py.postprocess.join.host_activity import HostActivity
from xprof_py.postprocess.join.launches import Launches, RunJoin, join_runs, read_launches
from xprof_py.postprocess.join.memory_bound import MemoryBound, classify_memory_bound
from xprof_py.postprocess.join.phases import outliers, partial_steps, warmup_steps
from xprof_py.postprocess.join.samples import Samples
from xprof_py.postprocess.join.steps import Steps, read_steps
from xprof_py.postprocess.join.threads import thread_of_line
from xprof_py.postprocess.join.windows import Windows, cover_lane, foreign_cover, make_windows
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES


def join_profile(profile: Profile) -> Profile:
    """Join one process's profile (BREAKDOWN.md 1 to 5).

    ``profile`` holds the readers' tables; the HLO tables are read from `programs` unless they are there already.
    Returns a Profile with the tables named above added and `diagnostics` extended. Raises nothing for odd traces: what
    cannot be joined has `join` none or ambiguous, an `unknown` cause and a diagnostics row.
    """
    if "hlo_ops" not in profile:
        programs = read_programs(profile["programs"], file=profile.host)
        found = pa.concat_tables([profile["diagnostics"], programs.pop("diagnostics")])
        profile = profile.with_tables(diagnostics=found, **programs)
    return _Join(profile).run()


class _Join:
    """The state that the parts of one join share."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.events = Events(profile)
        self.thread_of_line = thread_of_line(profile, self.events)
        self.host_line = self._host_lines()
        self.steps: Steps = read_steps(self.events, self.thread_of_line)
        self.samples = Samples(profile, self.thread_of_line)
        self.activity = HostActivity(
            self.events, self.thread_of_line, self.host_line, self.steps, profile.capture_start_ps, self.samples
        )
        self.launches: Launches = read_launches(self.events, self.host_line)
        self.ops: DeviceOps = read_ops(profile, self.events)
        self.memory_bound: MemoryBound = classify_memory_bound(profile, self.ops)
        ends = [profile.capture_end_ps, *(int(x.max()) for x in (self.ops.open_end_ps, self.ops.run_end_ps) if len(x))]
        starts = [profile.capture_start_ps, *(int(x.min()) for x in (self.ops.start_ps,) if len(x))]
        starts += [int(self.steps.start_ps[0])] if self.steps.outer else []
        self.start, self.end = min(starts), max(ends)
        self.copies: Copies = read_copies(
            self.events, self.thread_of_line, self.host_line, self.launches, self.activity, self.end
        )
        add_copies(self.ops, self.copies)
        self.program_name = self._program_names()
        self.compiles: Compiles = read_compiles(profile, self.events, self.thread_of_line, self.steps)
        program_key = [host_names.module_key(name) for name in profile["programs"]["name"].to_pylist()]
        self.launch_step = self._step_of(self.launches.start_ps, self.launches.line)
        self.joined: RunJoin = join_runs(
            self.ops,
            self.launches,
            self.launch_step,
            program_key,
            drained_end=profile.metadata.get("drained"),
            drained_start=self._first_compiled_here(program_key),
        )
        self.run_step, self.run_nested = self._run_steps()
        self.diagnostics: list[dict[str, object]] = []
        self.unseen: set[sampler_holes.Stretch] = set()
        planes = set(profile["lines"]["plane"].to_pylist())
        self.unread_planes = len([p for p in planes if p.startswith("/device:") and not p.startswith("/device:CUSTOM")])
        # Without its device a step must not pass for one of a program that has none.
        self.no_device = str(profile.metadata.get("no_device") or "")
        if self.unread_planes:
            self.no_device = "the work of its GPU or TPU is not joined in this version"

    def _host_lines(self) -> Bool:
        """Lines of threads that run the user's program. XLA's own pools are lines of other names."""
        lines = self.profile["lines"]
        names, planes = lines["name"].to_pylist(), lines["plane"].to_pylist()
        sources = lines["source"].to_pylist()
        pools = ("tf_", "Task Environment")
        launching = {int(x) for x in self.events.line[self.events.named(host_names.LAUNCH)]}
        return np.array(
            [
                source == "shard"
                or (plane.startswith("/host:") and not name.startswith(pools))
                or (row in launching and not name.startswith(pools))
                for row, (name, plane, source) in enumerate(zip(names, planes, sources, strict=True))
            ]
            or np.zeros(0),
            dtype=np.bool_,
        )

    def _first_compiled_here(self, program_key: list[str]) -> frozenset[str]:
        """Keys whose every program was compiled in the capture: no run of theirs was in flight at its start."""
        compiled, programs = self.compiles.count_by_key(), Counter(program_key)
        return frozenset(key for key, count in compiled.items() if key and count >= programs[key])

    def _program_names(self) -> list[str]:
        """Module name and source location: two lambdas are two names."""
        names = self.profile["programs"]["name"].to_pylist()
        places: dict[int, str] = {
            row["program"]: f" {row['file']}:{row['source_line']}"
            for row in self.profile["program_functions"].to_pylist()
            if row["file"] is not None
        }
        return [name + places.get(row, "") for row, name in enumerate(names)]

    def _step_of(self, start_ps: Int64, line: Int64) -> Int64:
        thread = self.thread_of_line[line] if len(line) else line
        return np.array(
            [self.steps.enclosing(int(s), int(t)) for s, t in zip(start_ps, thread, strict=True)], dtype=np.int64
        )

    def _run_steps(self) -> tuple[Int64, Int64]:
        launch = self.joined.launch
        known = launch >= 0
        step = np.full(len(launch), -1, np.int64)
        step[known] = self.launch_step[launch[known]]
        nested = step.copy()
        if len(self.steps.event) > self.steps.outer:
            for run in np.flatnonzero(step >= 0).tolist():
                at, line = (int(column[launch[run]]) for column in (self.launches.start_ps, self.launches.line))
                if self.thread_of_line[line] == self.steps.thread[step[run]]:
                    nested[run] = self.steps.innermost(int(step[run]), at)
        return step, nested

    def run(self) -> Profile:
        windows = make_windows(
            self.steps,
            len(self.ops.lanes),
            self.ops.run_lane,
            self.run_step,
            self.run_nested,
            self.ops.run_end_ps,
            self.start,
            self.end,
        )
        gap_rows, breakdown = [], []
        for lane in range(max(len(self.ops.lanes), 1)):
            rows = [i for i in range(len(windows.lane)) if windows.lane[i] == lane]
            found = self._lane_gaps(lane, windows, rows) if self.ops.lanes else self._host_gaps(windows, rows)
            gap_rows += [(lane, *row) for row in found]
            breakdown += self._sum_lane(lane, windows, rows, found)
        phase, reason = self._phases(windows, breakdown)
        self._note_problems()
        return self._write(windows, gap_rows, breakdown, phase, reason)

    def _lane_gaps(self, lane: int, windows: Windows, rows: list[int]) -> list[tuple[int, GapRow]]:
        """(window, gap piece) of a lane, in order of time."""
        ops = self.ops
        cover = cover_lane(ops, lane)
        mine = np.flatnonzero((ops.lane == lane) & ops.leaf)
        starts, ends = ops.start_ps[mine], ops.open_end_ps[mine]
        tiles = [i for i in rows if windows.kind[i] != "nested"]
        # The first row of a lane is its head, which ends where the first window begins.
        causes = GapCauses(
            self.events, self.steps, self.activity, self.samples.stacks, ends, self.start, windows.end_ps[tiles[0]]
        )
        cuts = sorted({windows.end_ps[i] for i in tiles})
        out: list[GapRow] = []
        last_launch = self._last_launch(lane)
        lows, highs = intervals.complement(cover.busy, self.start, self.end)
        places = np.searchsorted(starts, highs, side="left")
        copy_of = {int(event): copy for copy, event in enumerate(self.copies.event)}
        for low, high, place in zip(lows.tolist(), highs.tolist(), places.tolist(), strict=True):
            if place == len(mine) or starts[place] != high:
                out += causes.attribute(low, high, last_launch, cuts)
                continue
            op = int(mine[place])
            run = int(ops.run[op])
            if run < 0:
                copy = copy_of[int(ops.event[op])]
                out += causes.attribute(low, high, GapEnd(int(self.copies.thread[copy]), -1, high, "put"), cuts)
            elif ops.run_start_ps[run] < low:
                out += causes.within_run(low, high, self._launch_of(run), cuts)
            else:
                out += causes.attribute(low, high, self._launch_of(run), cuts)
        self.unseen |= causes.unseen
        return self._in_windows(out, windows, tiles)

    def _in_windows(self, gaps: list[GapRow], windows: Windows, tiles: list[int]) -> list[tuple[int, GapRow]]:
        filled = [i for i in tiles if windows.end_ps[i] > windows.start_ps[i]]
        ends = np.array([windows.end_ps[i] for i in filled], np.int64)
        places = np.searchsorted(ends, np.array([gap.start_ps for gap in gaps], np.int64), side="right")
        return [(filled[place], gap) for place, gap in zip(places.tolist(), gaps, strict=True)]

    def _launch_of(self, run: int) -> GapEnd:
        launch = int(self.joined.launch[run])
        if launch < 0:
            return GapEnd(-1, -1, 0, self.joined.how[run])
        thread = int(self.thread_of_line[self.launches.line[launch]])
        return GapEnd(thread, launch, int(self.launches.end_ps[launch]), self.joined.how[run])

    def _last_launch(self, lane: int) -> GapEnd:
        """Nothing ends the lane's last gap: it counts as launched when the capture ended, by the last to launch."""
        runs = np.flatnonzero((self.ops.run_lane == lane) & (self.joined.launch >= 0))
        if not len(runs):
            return GapEnd(-1, -1, self.end, "none")
        launch = int(self.joined.launch[runs[np.argmax(self.launches.start_ps[self.joined.launch[runs]])]])
        return GapEnd(int(self.thread_of_line[self.launches.line[launch]]), -1, self.end, "none")

    def _host_gaps(self, windows: Windows, rows: list[int]) -> list[tuple[int, GapRow]]:
        """A process without a device: every window is gap on its step's thread."""
        causes = GapCauses(
            self.events, self.steps, self.activity, self.samples.stacks, np.empty(0, np.int64), self.start, self.start
        )
        out = []
        for i in rows:
            low, high, step = windows.start_ps[i], windows.end_ps[i], windows.step[i]
            if step >= 0:
                out += [(i, row) for row in causes.on_thread(low, high, int(self.steps.thread[step]), low)]
            elif high > low:
                row = GapRow(low, high, "unknown", -1, high - low, -1, "none", -1, "outside the steps, and no device")
                out.append((i, row))
        self.unseen |= causes.unseen
        return out

    def _sum_lane(
        self, lane: int, windows: Windows, rows: list[int], gaps: list[tuple[int, GapRow]]
    ) -> list[tuple[int, int, int, int, int]]:
        """(window, class, exclusive, total, foreign) for every window and class of a lane."""
        low = np.array([windows.start_ps[i] for i in rows], np.int64)
        high = np.array([windows.end_ps[i] for i in rows], np.int64)
        exclusive = np.zeros((len(rows), len(CLASSES)), np.int64)
        total = np.zeros_like(exclusive)
        foreign = np.zeros_like(exclusive)
        if self.ops.lanes:
            cover = cover_lane(self.ops, lane)
            for code in range(len(BUSY_CLASSES)):
                exclusive[:, code] = intervals.cover(cover.exclusive[code], low, high)
                total[:, code] = intervals.cover(cover.total[code], low, high)
            tiles = np.array([j for j, i in enumerate(rows) if windows.kind[i] != "nested"])
            step = np.array([windows.step[i] for i in rows], np.int64)
            op_step = np.where(self.ops.run >= 0, self.run_step[np.maximum(self.ops.run, 0)], -1)
            counted = foreign_cover(self.ops, lane, op_step, step[tiles], low[tiles], high[tiles])
            for (tile, code), length in counted.items():
                foreign[tiles[tile], code] = length
        gap_start = np.array([gap.start_ps for _, gap in gaps], np.int64)
        gap_end = np.array([gap.end_ps for _, gap in gaps], np.int64)
        gap_length = np.array([gap.length_ps for _, gap in gaps], np.int64)
        cause = np.array([CLASSES.index(gap.cause) for _, gap in gaps], np.int64)
        place = {i: j for j, i in enumerate(rows)}
        np.add.at(exclusive, (np.array([place[window] for window, _ in gaps], np.int64), cause), gap_length)
        # The pieces of gaps are in order of time and disjoint: those inside a nested window follow one another.
        nested = np.array([j for j, i in enumerate(rows) if windows.kind[i] == "nested"], np.int64)
        begin = np.searchsorted(gap_start, low[nested], side="left")
        behind = np.maximum(np.searchsorted(gap_end, high[nested], side="right"), begin)
        for index in np.unique(cause).tolist():
            before = np.concatenate(([0], np.cumsum(np.where(cause == index, gap_length, 0))))
            exclusive[nested, index] += before[behind] - before[begin]
        total[:, len(BUSY_CLASSES) :] = exclusive[:, len(BUSY_CLASSES) :]
        return [
            (i, code, int(exclusive[j, code]), int(total[j, code]), int(foreign[j, code]))
            for j, i in enumerate(rows)
            for code in range(len(CLASSES))
        ]

    def _phases(self, windows: Windows, breakdown: list[tuple[int, int, int, int, int]]) -> tuple[list[str], list[str]]:
        steps = self.steps
        phase, reason = ["steady"] * len(steps.event), [""] * len(steps.event)
        ran = set(self.run_step.tolist()) | set(self.run_nested.tolist())
        launched = set(self.launch_step.tolist())
        for step in range(steps.outer):
            if self.no_device:
                phase[step], reason[step] = "unmeasured", self.no_device
            elif self.ops.lanes and step not in ran:
                phase[step] = "unmeasured"
                reason[step] = "its runs could not be joined" if step in launched else "no program ran in it"
        warm = warmup_steps(
            self.ops,
            self.launches,
            self.joined.launch,
            self._step_or_window(windows),
            self.program_name,
            self.compiles.count_by_key(),
        )
        cut_off_puts = [
            int(self._step_of(self.events.start_ps[[put]], self.events.line[[put]])[0])
            for put, cut in zip(self.copies.put, self.copies.cut_off, strict=True)
            if cut and put >= 0
        ]
        partial = partial_steps(
            steps,
            self.profile.capture_start_ps,
            [int(self.launch_step[i]) for i in self.joined.in_flight],
            cut_off_puts,
            [int(self.run_step[run]) for run in self._unfinished_runs()],
        )
        for step in self._begun_before(windows):
            partial.setdefault(step, "work launched before the capture was in flight")
        for found, name in ((warm, "warmup"), (partial, "partial")):
            for step, why in found.items():
                if not self.no_device:
                    phase[step], reason[step] = name, why
        for step in range(steps.outer, len(steps.event)):
            phase[step], reason[step] = phase[steps.parent[step]], reason[steps.parent[step]]
        self._mark_outliers(windows, breakdown, phase, reason)
        return phase, reason

    def _step_or_window(self, windows: Windows) -> Int64:
        """Per run its step; for a run launched outside steps the step whose window it starts in, -1 without."""
        out = self.run_step.copy()
        for i, step in enumerate(windows.step):
            if windows.kind[i] == "step":
                inside = (self.ops.run_start_ps >= windows.start_ps[i]) & (self.ops.run_start_ps < windows.end_ps[i])
                out[(out < 0) & inside & (self.ops.run_lane == windows.lane[i])] = step
        return out

    def _begun_before(self, windows: Windows) -> list[int]:
        """First steps of lanes whose window holds runs that were launched before the capture."""
        out = []
        for lane in range(len(self.ops.lanes)):
            mine = np.flatnonzero(self.ops.run_lane == lane)
            joined = self.joined.launch[mine] >= 0
            first = int(np.argmax(joined)) if joined.any() else len(mine)
            before = mine[:first]
            filled = [
                i
                for i, kind in enumerate(windows.kind)
                if kind == "step" and windows.lane[i] == lane and windows.end_ps[i] > windows.start_ps[i]
            ]
            if filled and len(before) and self.ops.run_end_ps[before].max() > windows.start_ps[filled[0]]:
                out.append(windows.step[filled[0]])
        return out

    def _mark_outliers(
        self,
        windows: Windows,
        breakdown: list[tuple[int, int, int, int, int]],
        phase: list[str],
        reason: list[str],
    ) -> None:
        unknown = CLASSES.index("unknown")
        window_ps = np.zeros(self.steps.outer, np.int64)
        unknown_ps = np.zeros(self.steps.outer, np.int64)
        for window, code, exclusive, _, _ in breakdown:
            if windows.kind[window] == "step":
                window_ps[windows.step[window]] += exclusive
                unknown_ps[windows.step[window]] += exclusive if code == unknown else 0
        # An evaluation is not a slow training step: steps are compared with those of their name.
        by_name: dict[str, list[int]] = defaultdict(list)
        for i in range(self.steps.outer):
            if phase[i] == "steady":
                by_name[self.steps.name[i]].append(i)
        for steady in by_name.values():
            for i in outliers(window_ps[steady], unknown_ps[steady]):
                phase[steady[i]] = "outlier"
                reason[steady[i]] = "much longer than the median step, and most of the excess is unknown"

    def _unfinished_runs(self) -> list[int]:
        """Runs with an op that was still open, or without the completion note that the other runs have."""
        waited, run_id = self.events.argument("run_id")
        waited = waited & self.events.named(host_names.RUN_WAIT)
        noted = set(run_id[waited].tolist())
        still_open = {int(r) for r in self.ops.run[self.events.duration_ps[self.ops.event] < 0] if r >= 0}
        last_by_lane = {int(lane): run for run, lane in enumerate(self.ops.run_lane)}
        unnoted = {run for run in last_by_lane.values() if noted and int(self.ops.run_id[run]) not in noted}
        return sorted(still_open | unnoted)

    def _note_problems(self) -> None:
        how = Counter(self.joined.how)
        ambiguous, unjoined = how["ambiguous"], how["none"]
        if ambiguous:
            self._note(
                "warning", "join_ambiguous", ambiguous, "runs whose launch could not be told: their work is unknown"
            )
        if unjoined:
            self._note("note", "join_none", unjoined, "runs without a launch in the capture: they belong to no step")
        if self.ops.unplaced_copies:
            self._note(
                "warning",
                "copies_without_lane",
                self.ops.unplaced_copies,
                "copies that name no device, and no one lane is theirs: they are in no breakdown",
            )
        unknown_ops = int((self.ops.hlo_op[self.ops.run >= 0] < 0).sum())
        if unknown_ops:
            self._note(
                "warning", "op_without_hlo", unknown_ops, "ops whose HLO is not in the profile: counted as compute"
            )
        if self.unread_planes:
            self._note(
                "error",
                "device_planes_not_read",
                self.unread_planes,
                "GPU and TPU planes are decoded but not yet joined to steps: the breakdown does not hold their work",
            )
        self._note_memory_bound()
        self.diagnostics += sampler_holes.diagnostics(self.profile, self.thread_of_line, self.unseen)

    def _note_memory_bound(self) -> None:
        found = self.memory_bound
        undecided = found.without_peaks + found.unknown
        if undecided and not found.decided:
            missing = "peaks of the device" if found.without_peaks else "operations and bytes of the ops"
            message = f"without {missing}, memory-bound ops count as compute"
            self._note("note", "memory_unavailable", 1, message)
        elif undecided:
            message = "ops whose operations, bytes or peak rate are not known: they count as compute"
            self._note("note", "op_cost_unknown", undecided, message)

    def _note(self, severity: str, code: str, count: int, message: str) -> None:
        self.diagnostics.append(
            {
                "severity": severity,
                "code": code,
                "file": self.profile.host,
                "place": "",
                "count": count,
                "message": message,
            }
        )

    def _device_waits(self) -> pa.Table:
        threads = np.unique(self.thread_of_line[self.launches.line]).tolist() if len(self.launches.line) else []
        ended = np.sort(self.ops.open_end_ps[self.ops.leaf])
        return tables.waits_table(self.activity, self.events, threads, self._step_of, ended)

    def _write(
        self,
        windows: Windows,
        gap_rows: list[tuple[int, int, GapRow]],
        breakdown: list[tuple[int, int, int, int, int]],
        phase: list[str],
        reason: list[str],
    ) -> Profile:
        diagnostics = pa.concat_tables(
            [
                self.profile["diagnostics"],
                pa.Table.from_pylist(self.diagnostics, schema=schema.TABLES["diagnostics"]),
            ]
        )
        step_line = self.events.line[self.steps.event] if len(self.steps.event) else np.empty(0, np.int64)
        return self.profile.with_tables(
            diagnostics=diagnostics,
            **self.memory_bound.tables,
            lanes=schema.table("lanes", lanes_table_columns(self.ops)),
            ops=tables.ops_table(self.ops),
            launches=tables.launches_table(self.launches, self.launch_step),
            runs=tables.runs_table(self.ops, self.joined, self.run_step),
            device_waits=self._device_waits(),
            copies=copies_table(self.profile, self.events, self.copies, self.ops.lanes, self._step_of),
            steps=tables.steps_table(self.steps, step_line, phase, reason),
            windows=tables.windows_table(windows),
            gaps=tables.gaps_table(gap_rows),
            compiles=self.compiles.table(),
            breakdown=tables.breakdown_table(self.profile.host, self.steps, windows, breakdown, phase, reason),
        )
