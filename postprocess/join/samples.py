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

import itertools
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from xprof_py.postprocess.join.columns import Bool, Int64, dictionary, integers
from xprof_py.postprocess.join.host_names import Evidence, frame_cause
from xprof_py.postprocess.profile import Profile

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
        self._times: dict[int, list[int]] = {}
        self._says: dict[int, list[tuple[Evidence, int]]] = {}
        for one in np.unique(thread).tolist():
            rows = order[thread[order] == one]
            at_work = on_cpu[rows] & ~_hardly_ran(interval_ps[rows], cpu_ps[rows])
            self._times[one] = time_ps[rows].tolist()
            self._says[one] = [self._evidence(int(s), bool(on)) for s, on in zip(stack[rows], at_work, strict=True)]

    def _evidence(self, stack: int, on_cpu: bool) -> tuple[Evidence, int]:
        if stack < 0:
            return Evidence.NOTHING, -1
        named = self.stacks.cause(stack)
        return named or (Evidence.HOST if on_cpu else Evidence.NOTHING), stack

    def of_thread(self, thread: int) -> bool:
        """Whether the thread was sampled at all."""
        return thread in self._times

    def divide(self, thread: int, start_ps: int, end_ps: int) -> Sequence[tuple[int, int, Evidence, int]]:
        """(start, end, evidence, stack) for [start, end) of the thread, in order, tiling it; empty without a sample."""
        times = self._times.get(thread, [])
        low, high = bisect_left(times, start_ps), bisect_left(times, end_ps)
        if low == high:
            return []
        inside = times[low:high]
        edges = [start_ps, *((a + b) // 2 for a, b in itertools.pairwise(inside)), end_ps]
        out: list[tuple[int, int, Evidence, int]] = []
        for index, (evidence, stack) in enumerate(self._says[thread][low:high]):
            begin, end = edges[index], edges[index + 1]
            if end <= begin:
                continue
            if out and out[-1][2:] == (evidence, stack):
                out[-1] = (out[-1][0], end, evidence, stack)
            else:
                out.append((begin, end, evidence, stack))
        return out
