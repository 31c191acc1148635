"""Profile of one process -> the same with lanes, ops, launches, runs, steps, windows, gaps, compiles and breakdown.

Pure: tables in, tables out. Each part is a file of its own; this one holds the order, and writes the tables.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from xprof_py.postprocess import schema
from xprof_py.postprocess.hlo.module import read_programs
from xprof_py.postprocess.join import host_names, intervals, sampler_holes, tables
from xprof_py.postprocess.join.columns import Bool, Events, Int64, Integers
from xprof_py.postprocess.join.compiles import Compiles, read_compiles
from xprof_py.postprocess.join.copies import Copies, add_copies, no_copies, read_copies
from xprof_py.postprocess.join.copy_rows import copies_table
from xprof_py.postprocess.join.device_launches import DeviceLaunches, join_device_launches
from xprof_py.postprocess.join.device_notes import device_notes, why_no_device
from xprof_py.postprocess.join.device_ops import DeviceOps, lanes_table_columns, read_ops
from xprof_py.postprocess.join.device_planes import DevicePlanes, read_device_planes
from xprof_py.postprocess.join.device_power import lanes_without_power
from xprof_py.postprocess.join.gaps import METHODS, Ends, GapCauses, Gaps
from xprof_py.postprocess.join.host_activity import HostActivity
from xprof_py.postprocess.join.inferred_steps import Inferred, infer_from_ranges, infer_steps
from xprof_py.postprocess.join.launches import Launches, RunJoin, join_runs, read_launches
from xprof_py.postprocess.join.lost_events import LostEvents
from xprof_py.postprocess.join.memory_bound import MemoryBound, classify_memory_bound
from xprof_py.postprocess.join.phases import outliers, partial_steps, warmup_steps
from xprof_py.postprocess.join.samples import Samples
from xprof_py.postprocess.join.steps import Steps, read_steps
from xprof_py.postprocess.join.steps_line import read_steps_line
from xprof_py.postprocess.join.threads import thread_of_line
from xprof_py.postprocess.join.windows import (
    NESTED,
    STEP,
    Breakdown,
    LaneCover,
    Windows,
    cover_lane,
    foreign_cover,
    make_windows,
)
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.workers import ALONE, Workers
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES


def join_profile(profile: Profile, workers: Workers = ALONE) -> Profile:
    """Join one process's profile (BREAKDOWN.md 1 to 5).

    ``profile`` holds the readers' tables; the HLO tables are read from `programs` unless they are there already.
    Returns a Profile with the tables named above added and `diagnostics` extended. Raises nothing for odd traces: what
    cannot be joined has `join` none or ambiguous, an `unknown` cause and a diagnostics row.
    """
    if "hlo_ops" not in profile:
        reading = partial(read_programs, profile["programs"], file=profile.host)
        # The columns of the events stay with the profile, for whoever asks for them next.
        read: list[Any] = workers.run([reading, lambda: Events.of(profile).index()])
        programs: dict[str, pa.Table] = read[0]
        found = pa.concat_tables([profile["diagnostics"], programs.pop("diagnostics")])
        profile = profile.with_tables(diagnostics=found, **programs)
    return _Join(profile).run()


class _Join:
    """The state that the parts of one join share."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.events = Events.of(profile)
        self.thread_of_line = thread_of_line(profile, self.events)
        self.host_line = self._host_lines()
        self.lost = LostEvents(profile, self.thread_of_line) if profile["lost_events"].num_rows else None
        self.steps: Steps = read_steps(
            self.events, self.thread_of_line, self.lost.marked_again if self.lost is not None else None
        )
        self.samples = Samples(profile, self.thread_of_line)
        self.activity = HostActivity(
            self.events, self.thread_of_line, self.host_line, profile.capture_start_ps, self.samples
        )
        self.program_name = self._program_names()
        self.program_key = [host_names.module_key(name) for name in profile["programs"]["name"].to_pylist()]
        self.diagnostics: list[dict[str, object]] = []
        self.planes: DevicePlanes = read_device_planes(profile, self.events)
        self.device_launches: DeviceLaunches | None = None
        cpu_ops = read_ops(profile, self.events)
        # What a process with a GPU or TPU computes on its CPU is work of its host.
        self.ops: DeviceOps = self.planes.ops if self.planes.ops.lanes else cpu_ops
        self.cpu_ops_beside = len(cpu_ops.event) if self.planes.ops.lanes else 0
        self.launches: Launches = self._read_launches(self.program_key)
        if not len(self.steps.event) and len(cpu_ops.run_id) and not self.planes.ops.lanes:
            self._infer_steps()
        elif not len(self.steps.event) and not len(self.launches.event) and not self.planes.ops.lanes:
            self._take_inferred(infer_from_ranges(self.events, self.thread_of_line, self.host_line))
        self.not_whole: dict[int, str] = {}
        if self.lost is not None:
            self.steps, self.not_whole = self.lost.fill_in(self.steps)
        self.memory_bound: MemoryBound = classify_memory_bound(profile, self.ops)
        ends = [profile.capture_end_ps, *(int(x.max()) for x in (self.ops.open_end_ps, self.ops.run_end_ps) if len(x))]
        starts = [profile.capture_start_ps, *(int(x.min()) for x in (self.ops.start_ps,) if len(x))]
        starts += [int(self.steps.start_ps[0])] if self.steps.outer else []
        self.start, self.end = min(starts), max(ends)
        self.copies: Copies = (
            no_copies()
            if self.planes.ops.lanes
            else read_copies(self.events, self.thread_of_line, self.host_line, self.launches, self.activity, self.end)
        )
        add_copies(self.ops, self.copies)
        self.compiles: Compiles = read_compiles(profile, self.events, self.thread_of_line, self.steps)
        self.launch_step = self._step_of(self.launches.start_ps, self.launches.line)
        self.joined: RunJoin = (
            self.device_launches.joined
            if self.device_launches is not None
            else join_runs(
                self.ops,
                self.launches,
                self.launch_step,
                self.program_key,
                drained_end=profile.metadata.get("drained"),
                drained_start=self._first_compiled_here(self.program_key),
            )
        )
        # What follows asks for few arguments; those of all ops take as much memory as the ops.
        self.events.forget()
        self.run_step, self.run_nested = self._run_steps()
        if self.planes.ops.lanes and not (self.run_step >= 0).any():
            self._take_steps_line()
        # Without its device a step must not pass for one of a program that has none.
        self.no_device = why_no_device(self.planes, bool(self.ops.lanes)) or str(
            profile.metadata.get("no_device") or ""
        )

    def _read_launches(self, program_key: list[str]) -> Launches:
        """Those of GPUs and TPUs by their ids; where no run has any, as on the CPU by name and order."""
        if self.planes.ops.lanes:
            step_lines = np.isin(self.thread_of_line, self.steps.thread)
            found = join_device_launches(self.profile, self.events, self.planes, step_lines, program_key)
            if (found.joined.launch >= 0).any() or not (self.ops.run_program >= 0).any():
                self.device_launches = found
                return found.launches
        launches = read_launches(self.events, self.host_line)
        if (self.planes.run_event < 0).any():
            launches.has_run_id[:] = False  # of GPUs: their runs are numbered by correlation ids
        return launches

    def _take_steps_line(self) -> None:
        """No step of the host holds a launch of the device's runs: its own line `Steps` says which step they are of."""
        found = read_steps_line(self.profile, self.events, self.ops)
        if found is None:
            return
        self.steps, self.run_step, self.run_nested = found.steps, found.run_step, found.run_step
        self.not_whole = {}
        self.launch_step[:] = -1
        for run in np.flatnonzero(found.run_step >= 0).tolist():
            self.joined.how[run] = "steps_line"

    def _infer_steps(self) -> None:
        found = infer_steps(
            self.profile,
            self.ops,
            self.launches,
            self.thread_of_line,
            self.activity,
            self.program_key,
            self.program_name,
        )
        self._take_inferred(found)

    def _take_inferred(self, found: Inferred | None) -> None:
        if found is None:
            return
        if found.steps is None:
            self._note("note", "steps_not_inferred", 1, found.words)
        else:
            self.steps = found.steps
            self._note("note", "steps_inferred", len(self.steps.event), found.words)

    def _host_lines(self) -> Bool:
        """Lines of threads that run the user's program. XLA's own pools are lines of other names."""
        lines = self.profile["lines"]
        names, planes = lines["name"].to_pylist(), lines["plane"].to_pylist()
        sources = lines["source"].to_pylist()
        pools = ("tf_", "Task Environment")
        launching = set(self.events.line[self.events.rows_named(host_names.LAUNCH)].tolist())
        return np.array(
            [
                (source == "shard" and not plane.startswith(("/device:", "/profiler:")))
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

    def _step_of(self, start_ps: Int64, line: Integers) -> Int64:
        return self.steps.step_of(start_ps, self.thread_of_line[line])

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
        causes = GapCauses(self.events, self.steps, self.activity, self.samples.stacks, self.start)
        gaps, sums = [], []
        for lane in range(max(len(self.ops.lanes), 1)):
            rows = windows.of_lane(lane)
            cover = cover_lane(self.ops, lane) if self.ops.lanes else None
            found = self._host_gaps(causes, windows) if cover is None else self._lane_gaps(causes, lane, cover, windows)
            gaps.append(found)
            sums.append(self._sum_lane(lane, cover, windows, rows, found))
        self.breakdown = Breakdown(*(np.concatenate(part) for part in zip(*sums, strict=True)))
        phase, reason = self._phases(windows)
        self._note_problems()
        self.diagnostics += sampler_holes.diagnostics(self.profile, self.thread_of_line, causes.unseen())
        return self._write(windows, Gaps.together(gaps), causes.texts, phase, reason)

    def _lane_gaps(self, causes: GapCauses, lane: int, cover: LaneCover, windows: Windows) -> Gaps:
        """The gaps of a lane in order of time, each with its window."""
        ops = self.ops
        mine = np.flatnonzero((ops.lane == lane) & ops.leaf)
        rows = windows.of_lane(lane)
        tiles = rows[windows.kind[rows] != NESTED]
        cuts = np.unique(windows.end_ps[tiles])
        low, high = intervals.complement(cover.busy, self.start, self.end)
        # The first row of a lane is its head, which ends where the first window begins.
        found = causes.of_lane(
            self._gap_ends(lane, mine, low, high), ops.open_end_ps[mine], cuts, int(windows.end_ps[tiles[0]])
        )
        filled = tiles[windows.end_ps[tiles] > windows.start_ps[tiles]]
        return found.in_windows(filled, windows.end_ps[filled])

    def _gap_ends(self, lane: int, mine: Int64, low: Int64, high: Int64) -> Ends:
        """What ends each gap [low, high) of a lane; ``mine``: the lane's leaves, in order of start."""
        ops, launches, count = self.ops, self.launches, len(low)
        starts = ops.start_ps[mine]
        place = np.searchsorted(starts, high, side="left")
        ended = place < len(mine)
        ended[ended] = starts[place[ended]] == high[ended]
        # Nothing ends the lane's last gap: it counts as launched when the capture ended, by the last to launch.
        thread = np.full(count, self._last_to_launch(lane), np.int64)
        launch, launch_end, method = np.full(count, -1, np.int64), np.full(count, self.end, np.int64), np.zeros(count)
        thread[ended] = launch_end[ended] = -1
        at, op = np.flatnonzero(ended), mine[place[ended]]
        # A GPU's kernel has a launch of its own, other ops have that of their run, and a copy is handed over by a put.
        launched, run = ops.launch[op].copy(), ops.run[op]
        alone, in_run = launched >= 0, (launched < 0) & (run >= 0)
        launched[in_run] = self.joined.launch[run[in_run]]
        method[at[alone]] = METHODS.index("id")
        method[at[in_run]] = self._join_method[run[in_run]]
        launch[at] = launched
        known = launched >= 0
        thread[at[known]] = self.thread_of_line[launches.line[launched[known]]]
        launch_end[at[known]] = launches.end_ps[launched[known]]
        within = np.zeros(count, np.bool_)
        within[at[in_run]] = ops.run_start_ps[run[in_run]] < low[at[in_run]]
        if len(self.copies.event):
            put = ~alone & (run < 0)
            copy = np.argsort(self.copies.event, kind="stable")
            copy = copy[np.searchsorted(self.copies.event[copy], ops.event[op[put]], side="right") - 1]
            thread[at[put]] = self.copies.thread[copy]
            launch_end[at[put]] = high[at[put]]
            method[at[put]] = METHODS.index("put")
        return Ends(low, high, thread, launch, launch_end, method.astype(np.int64), within)

    @cached_property
    def _join_method(self) -> Int64:
        number = {how: at for at, how in enumerate(METHODS)}
        return np.array([number[how] for how in self.joined.how], np.int64)

    def _last_to_launch(self, lane: int) -> int:
        """The thread that launched the last of the lane's runs, -1 where none has a launch."""
        runs = np.flatnonzero((self.ops.run_lane == lane) & (self.joined.launch >= 0))
        if not len(runs):
            return -1
        launch = self.joined.launch[runs[np.argmax(self.launches.start_ps[self.joined.launch[runs]])]]
        return int(self.thread_of_line[self.launches.line[launch]])

    def _host_gaps(self, causes: GapCauses, windows: Windows) -> Gaps:
        """A process without a device: every window is gap on its step's thread."""
        filled = np.flatnonzero(windows.end_ps > windows.start_ps)
        low, high, step = windows.start_ps[filled], windows.end_ps[filled], windows.step[filled]
        inside = step >= 0
        by_thread = causes.on_threads(low[inside], high[inside], self.steps.thread[step[inside]])
        found = Gaps.together([by_thread, causes.outside(low[~inside], high[~inside])])
        return found.take(np.argsort(found.start_ps, kind="stable")).in_windows(filled, high)

    def _sum_lane(
        self, lane: int, cover: LaneCover | None, windows: Windows, rows: Int64, gaps: Gaps
    ) -> tuple[Int64, Int64, Int64]:
        """exclusive, total and foreign of every window and class of a lane, each of shape (windows, classes)."""
        low, high, kind = windows.start_ps[rows], windows.end_ps[rows], windows.kind[rows]
        exclusive = np.zeros((len(rows), len(CLASSES)), np.int64)
        total = np.zeros_like(exclusive)
        foreign = np.zeros_like(exclusive)
        if cover is not None:
            for code in range(len(BUSY_CLASSES)):
                exclusive[:, code] = intervals.cover(cover.exclusive[code], low, high)
                total[:, code] = intervals.cover(cover.total[code], low, high)
            tiles = np.flatnonzero(kind != NESTED)
            op_step = np.full(len(self.ops.run), -1, np.int64)
            of_run = self.ops.run >= 0
            op_step[of_run] = self.run_step[self.ops.run[of_run]]
            step = windows.step[rows[tiles]]
            foreign[tiles, : len(BUSY_CLASSES)] = foreign_cover(self.ops, lane, op_step, step, low[tiles], high[tiles])
        np.add.at(exclusive, (gaps.window - rows[0], gaps.cause), gaps.length_ps)
        # The pieces of gaps are in order of time and disjoint: those inside a nested window follow one another.
        nested = np.flatnonzero(kind == NESTED)
        begin = np.searchsorted(gaps.start_ps, low[nested], side="left")
        behind = np.maximum(np.searchsorted(gaps.end_ps, high[nested], side="right"), begin)
        for index in np.unique(gaps.cause).tolist() if len(nested) else ():
            before = np.concatenate(([0], np.cumsum(np.where(gaps.cause == index, gaps.length_ps, 0))))
            exclusive[nested, index] += before[behind] - before[begin]
        total[:, len(BUSY_CLASSES) :] = exclusive[:, len(BUSY_CLASSES) :]
        return exclusive, total, foreign

    def _with_lost_kernels(self) -> dict[int, str]:
        """Step -> reason, for steps with a launched graph of which most kernels are not in the trace."""
        if self.device_launches is None:
            return {}
        short = self.device_launches.short
        out: dict[int, str] = {}
        for launch, shown, whole in zip(short.launch.tolist(), short.shown.tolist(), short.whole.tolist(), strict=True):
            step = int(self.launch_step[launch])
            if 0 <= step < self.steps.outer:
                why = f"{shown} of the {whole} kernels of a graph are in the trace: what looks idle may be lost work"
                out.setdefault(step, why)
        return out

    def _phases(self, windows: Windows) -> tuple[list[str], list[str]]:
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
        if steps.source == "inferred":
            partial.setdefault(0, "where it began is not known: no step was found before it")
        for step in self._begun_before(windows):
            partial.setdefault(step, "work launched before the capture was in flight")
        for found, name in ((warm, "warmup"), (partial, "partial")):
            for step, why in found.items():
                if not self.no_device:
                    phase[step], reason[step] = name, why
        for step, why in (*self._with_lost_kernels().items(), *self.not_whole.items()):
            phase[step], reason[step] = "unmeasured", why
        for step in range(steps.outer, len(steps.event)):
            phase[step], reason[step] = phase[steps.parent[step]], reason[steps.parent[step]]
        self._mark_outliers(windows, phase, reason)
        return phase, reason

    def _step_or_window(self, windows: Windows) -> Int64:
        """Per run its step; for a run launched outside steps the step whose window it starts in, -1 without."""
        out = self.run_step.copy()
        filled = np.flatnonzero((windows.kind == STEP) & (windows.end_ps > windows.start_ps))
        for lane in range(len(self.ops.lanes)):
            mine = filled[windows.lane[filled] == lane]
            runs = np.flatnonzero((out < 0) & (self.ops.run_lane == lane))
            place = np.searchsorted(windows.end_ps[mine], self.ops.run_start_ps[runs], side="right")
            runs, place = runs[place < len(mine)], place[place < len(mine)]
            inside = windows.start_ps[mine[place]] <= self.ops.run_start_ps[runs]
            out[runs[inside]] = windows.step[mine[place[inside]]]
        return out

    def _begun_before(self, windows: Windows) -> list[int]:
        """First steps of lanes whose window holds runs that were launched before the capture."""
        out = []
        for lane in range(len(self.ops.lanes)):
            mine = np.flatnonzero(self.ops.run_lane == lane)
            joined = (self.joined.launch[mine] >= 0) | (self.run_step[mine] >= 0)
            before = mine[: int(np.argmax(joined)) if joined.any() else len(mine)]
            rows = windows.of_lane(lane)
            filled = rows[(windows.kind[rows] == STEP) & (windows.end_ps[rows] > windows.start_ps[rows])]
            if len(filled) and len(before) and self.ops.run_end_ps[before].max() > windows.start_ps[filled[0]]:
                out.append(int(windows.step[filled[0]]))
        return out

    def _mark_outliers(self, windows: Windows, phase: list[str], reason: list[str]) -> None:
        window_ps = np.zeros(self.steps.outer, np.int64)
        unknown_ps = np.zeros(self.steps.outer, np.int64)
        rows = np.flatnonzero(windows.kind == STEP)
        exclusive = self.breakdown.exclusive_ps[rows]
        np.add.at(window_ps, windows.step[rows], exclusive.sum(axis=1))
        np.add.at(unknown_ps, windows.step[rows], exclusive[:, CLASSES.index("unknown")])
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
        if self.planes.ops.lanes:
            return []
        waited, run_id = self.events.argument_of("run_id", self.events.rows_named(host_names.RUN_WAIT))
        noted = set(run_id[waited].tolist())
        still_open = {int(r) for r in self.ops.run[self.events.duration_ps[self.ops.event] < 0] if r >= 0}
        last_by_lane = {lane: run for run, lane in enumerate(self.ops.run_lane.tolist())}
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
        if unknown_ops and not self.planes.ops.lanes:
            self._note(
                "warning", "op_without_hlo", unknown_ops, "ops whose HLO is not in the profile: counted as compute"
            )
        for note in device_notes(self.planes, self.device_launches, self.cpu_ops_beside):
            self._note(*note)
        powerless, message = lanes_without_power(self.profile, list(self.planes.ops.devices))
        if powerless:
            self._note("warning", "lane_without_power", powerless, message)
        self._note_memory_bound()

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
        gaps: Gaps,
        texts: list[str],
        phase: list[str],
        reason: list[str],
    ) -> Profile:
        diagnostics = pa.concat_tables(
            [
                self.profile["diagnostics"],
                pa.Table.from_pylist(self.diagnostics, schema=schema.TABLES["diagnostics"]),
            ]
        )
        return self.profile.with_tables(
            diagnostics=diagnostics,
            **self.memory_bound.tables,
            lanes=schema.table("lanes", lanes_table_columns(self.ops)),
            ops=tables.ops_table(self.ops, self.profile["texts"]["text"]),
            launches=tables.launches_table(self.launches, self.launch_step),
            runs=tables.runs_table(self.ops, self.joined, self.run_step),
            device_waits=self._device_waits(),
            copies=copies_table(self.profile, self.events, self.copies, self.ops.lanes, self._step_of),
            steps=tables.steps_table(self.steps, self.events, phase, reason),
            windows=tables.windows_table(windows),
            gaps=tables.gaps_table(gaps, windows, texts),
            compiles=self.compiles.table(),
            breakdown=tables.breakdown_table(self.profile.host, self.steps, windows, self.breakdown, phase, reason),
        )
