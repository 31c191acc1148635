"""Sampled stacks as evidence for host time that no span explains (BREAKDOWN.md 5).

A stretch of a thread's time that names no cause is divided among the samples that lie in it: each stands for the time
from half way to the one before it to half way to the one after it, the first and the last up to the stretch's edges.
What a sample says:

- a frame that names a cause (a known loader or checkpoint library, or a function whose name says so) decides, at work
  or waiting: the thread was inside it. Where several do, the outermost: what is done for a batch is input.
- else the thread at work, on a CPU or ready for one, is `host`, unless it then ran for less than a tenth of the time to
  its next look: what it was seen at work on is not what the time went to;
- else it waited, and nothing says for what: unknown, with the frame that waited as what is shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from xprof_py.postprocess.join.columns import Bool, Int64, dictionary, integers
from xprof_py.postprocess.join.host_names import Evidence, frame_cause
from xprof_py.postprocess.profile import Profile

Int8 = npt.NDArray[np.int8]

# Files of the interpreter, of installed packages and of this one: not where a user looks for a line to change.
_NOT_THE_USERS = re.compile(
    r"^<|(^|/)(site-packages|dist-packages)/|/lib/python3\.\d+/|(^|/)(jax|jaxlib)/_src/|"
    r"/xprof_py/(collectors/\w+|annotations|decorated|inputs|recording|run_file|run_folder|session|window)\.py$"
)


@dataclass(frozen=True)
class Place:
    """Where a stack was: the user's innermost frame, of all frames the innermost where none is the user's."""

    file: str
    function: str
    source_line: int

    @property
    def in_function(self) -> str:
        """``file.py function``: the same for every line of it."""
        return f"{self._base} {self.function}"

    @property
    def text(self) -> str:
        """``file.py:line function``."""
        return f"{self._base}:{self.source_line} {self.function}"

    @property
    def source(self) -> str:
        """``path/file.py:line``."""
        return f"{self.file}:{self.source_line}"

    @property
    def _base(self) -> str:
        return self.file.rsplit("/", 1)[-1]


def is_users(file: str) -> bool:
    """Whether a frame's file is the program's own, as far as its path tells."""
    return _NOT_THE_USERS.search(file) is None


class Stacks:
    """The distinct stacks of a profile: what each is evidence of, and where it was."""

    def __init__(self, profile: Profile) -> None:
        stacks, frames = profile["stacks"], profile["frames"]
        self._stack = integers(stacks, "stack")
        self._frame = integers(stacks, "frame")
        file, self._files = dictionary(frames, "file")
        function, self._functions = dictionary(frames, "function")
        self._file, self._function, self._line = file, function, integers(frames, "source_line")
        self.count = int(self._stack.max(initial=-1)) + 1
        """Stacks are numbered from 0 to this."""
        self._cause: dict[int, Evidence] = {}
        self._place: dict[int, Place | None] = {}

    def _frames_of(self, stack: int) -> list[int]:
        low, high = np.searchsorted(self._stack, [stack, stack + 1])
        rows: list[int] = self._frame[low:high].tolist()
        return [row for row in rows if row >= 0]

    @cached_property
    def _frame_cause(self) -> list[Evidence]:
        return [
            frame_cause(self._files[file], self._functions[function])
            for file, function in zip(self._file.tolist(), self._function.tolist(), strict=True)
        ]

    def cause(self, stack: int) -> Evidence:
        """INPUT or CHECKPOINT where a frame names it, the outermost of several; else NOTHING."""
        if stack not in self._cause:
            causes = [self._frame_cause[frame] for frame in reversed(self._frames_of(stack))]
            self._cause[stack] = next((cause for cause in causes if cause), Evidence.NOTHING)
        return self._cause[stack]

    def place(self, stack: int) -> Place | None:
        """Where the stack was; None for one without frames."""
        if stack not in self._place:
            frames = self._frames_of(stack)
            mine = [frame for frame in frames if is_users(self._files[self._file[frame]])]
            self._place[stack] = self._place_of((mine or frames)[0]) if frames else None
        return self._place[stack]

    def _place_of(self, frame: int) -> Place:
        function = self._functions[self._function[frame]].rsplit("<locals>.", 1)[-1]
        return Place(self._files[self._file[frame]], function, int(self._line[frame]))


def _hardly_ran(interval_ps: Int64, cpu_ps: Int64) -> Bool:
    """Per look of one thread, in order: whether the thread ran for less than a tenth of the time to the next look.

    A look can see a thread at work in the moment before it goes to sleep. Where the next look states no interval, or
    there is none, nothing is known.
    """
    out = np.zeros(len(interval_ps), np.bool_)
    out[:-1] = (interval_ps[1:] > 0) & (10 * cpu_ps[1:] < interval_ps[1:])
    return out


class Samples:
    """The samples of every thread of a profile."""

    def __init__(self, profile: Profile, thread_of_line: Int64) -> None:
        table = profile["stack_samples"]
        self.stacks = Stacks(profile)
        line = integers(table, "line")
        time_ps = integers(table, "time_ps")
        stack = integers(table, "stack")
        interval_ps, cpu_ps = integers(table, "interval_ps"), integers(table, "cpu_ps")
        on_cpu = np.asarray(table["on_cpu"].to_numpy(), np.bool_)
        thread = thread_of_line[line] if len(line) else line
        order = np.lexsort((line, time_ps, thread))
        self._times: dict[int, Int64] = {}
        self._says: dict[int, tuple[Int8, Int64]] = {}
        for one in np.unique(thread).tolist():
            rows = order[thread[order] == one]
            at_work = on_cpu[rows] & ~_hardly_ran(interval_ps[rows], cpu_ps[rows])
            self._times[one] = time_ps[rows]
            self._says[one] = self._evidence(stack[rows], at_work)

    def _evidence(self, stack: Int64, at_work: Bool) -> tuple[Int8, Int64]:
        """(evidence, stack or -1) per look."""
        distinct, place = np.unique(stack, return_inverse=True)
        named = np.array([self.stacks.cause(one) if one >= 0 else 0 for one in distinct.tolist()] or [0], np.int8)
        unnamed = np.where(at_work & (stack >= 0), Evidence.HOST, Evidence.NOTHING)
        named = named[place.reshape(-1)] if len(stack) else named[:0]
        return np.where(named > 0, named, unnamed).astype(np.int8), np.maximum(stack, -1)

    def of_thread(self, thread: int) -> bool:
        """Whether the thread was sampled at all."""
        return thread in self._times

    def divide(self, thread: int, start_ps: int, end_ps: int) -> Sequence[tuple[int, int, Evidence, int]]:
        """(start, end, evidence, stack) for [start, end) of the thread, in order, tiling it; empty without a sample."""
        asked = np.array([start_ps], np.int64), np.array([end_ps], np.int64)
        _, low, high, says, looks = self.divide_all(thread, *asked)
        rows = zip(low.tolist(), high.tolist(), says.tolist(), looks.tolist(), strict=True)
        return [(start, end, Evidence(evidence), stack) for start, end, evidence, stack in rows]

    def divide_all(self, thread: int, start_ps: Int64, end_ps: Int64) -> tuple[Int64, Int64, Int64, Int8, Int64]:
        """(which stretch, start, end, evidence, stack): all stretches [start, end) of the thread that hold a sample.

        The parts of a stretch tile it, in order; those of a stretch without a sample are none.
        """
        nothing = np.empty(0, np.int64)
        times = self._times.get(thread, nothing)
        says, stacks = self._says.get(thread, (np.empty(0, np.int8), nothing))
        low = np.searchsorted(times, start_ps, side="left")
        count = np.maximum(np.searchsorted(times, end_ps, side="left") - low, 0)
        stretch = np.repeat(np.arange(len(start_ps)), count)
        look = low[stretch] + np.arange(len(stretch)) - np.repeat(np.cumsum(count) - count, count)
        if not len(look):
            return stretch, nothing, nothing, np.empty(0, np.int8), nothing
        # What lies between two looks of one stretch is cut half way.
        cut = (times[look[:-1]] + times[look[1:]]) // 2
        new = np.concatenate(([True], stretch[1:] != stretch[:-1]))
        begin = np.where(new, start_ps[stretch], np.concatenate(([0], cut)))
        end = np.where(np.concatenate((new[1:], [True])), end_ps[stretch], np.concatenate((cut, [0])))
        filled = end > begin
        stretch, look, begin, end = stretch[filled], look[filled], begin[filled], end[filled]
        evidence, stack = says[look], stacks[look]
        same = (stretch[1:] == stretch[:-1]) & (evidence[1:] == evidence[:-1]) & (stack[1:] == stack[:-1])
        first = np.flatnonzero(np.concatenate(([True], ~same)))
        last = np.concatenate((first[1:] - 1, [len(look) - 1]))
        return stretch[first], begin[first], end[last], evidence[first], stack[first]
