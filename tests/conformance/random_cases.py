"""Random small programs, written as cases: what their threads do, and a device that executes what they launch in order.

The generator knows which step launched which run, so a whole capture states its runs; how the time is to be divided it
does not know. A cut capture ends in the middle: spans stay open, ops are lost, and nothing is stated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

Draw = st.DrawFn


@dataclass
class _Line:
    """One line of a case, its interval (None: it has none) and what lies below it."""

    text: str
    start: int | None = None
    end: int = 0
    marker: int | None = None
    after: str = ""
    below: list[_Line] = field(default_factory=list)

    def write(self, indent: int, cut: int) -> list[str]:
        if self.start is not None and self.start >= cut:
            return []
        interval = "" if self.start is None else f" {self.start}..{self.end if self.end <= cut else ''}"
        marker = "" if self.marker is None else f" end {self.marker if self.marker <= cut else 'never'}"
        lines = [f"{'  ' * indent}{self.text}{interval}{marker}{self.after}"]
        for line in self.below:
            lines += line.write(indent + 1, cut)
        return lines


@dataclass(frozen=True)
class _Launch:
    function: str
    start: int
    end: int
    step: str
    line: _Line


@dataclass
class _Program:
    threads: list[_Line] = field(default_factory=list)
    launches: list[_Launch] = field(default_factory=list)
    lanes: list[_Line] = field(default_factory=list)
    run_ids: list[int] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    step_starts: set[int] = field(default_factory=set)
    end: int = 0


@st.composite
def case_texts(draw: Draw, *, cut: bool = False, copies: bool = True, lanes: int = 1) -> str:
    """A random case in microseconds; at least one op runs. ``cut``: it ends at a random time, with work in flight.
    ``copies``: some runs are followed by a host-to-device copy. ``lanes``: every launch runs on each of them; with
    several, launches carry the run_id.
    """
    program = _Program()
    threads = draw(st.integers(1, 2), label="threads")
    for index in range(threads):
        _thread(draw, program, index, alone=threads == 1)
    _number_runs(draw, program, lanes)
    for lane in range(lanes):
        _lane(draw, program, lane, copies and lanes == 1)
    end = program.end + draw(st.integers(1, 20))
    if cut:
        first_op = program.lanes[0].below[0].below[0]  # a host with a device has an op
        end = draw(st.integers(min(first_op.end, end), end), label="cut")
    lines = ["title: random", "unit us", f"capture 0..{end}"]
    if cut:
        lines.append("drained none")
    for line in (*program.threads, *program.lanes):
        lines += line.write(0, end)
    if program.runs and not cut:
        lines += ["expect runs", *program.runs]
    return "\n".join(lines) + "\n"


def _thread(draw: Draw, program: _Program, index: int, *, alone: bool) -> None:
    # a launch outside the thread's steps while another thread's step is open is a question of its own
    # (worker_launch, launch_between_own_steps)
    thread = _Line(f"thread t{index}")
    name = ("train", "eval")[index]
    now = draw(st.integers(0, 9))
    for number in range(draw(st.integers(1, 4), label="steps")):
        if alone and draw(st.booleans()):
            now = _spans(draw, program, index, "-", thread, now)
        while now in program.step_starts:  # steps are counted in order of their starts: no two at one picosecond
            now += 1
        program.step_starts.add(now)
        step = _Line(f"step {name}/{number}", now)
        if not program.launches:
            step.below.append(_Line("launch f0a", now, now + 1))
            program.launches.append(_Launch("f0a", now, now + 1, f"{name}/{number}", step.below[0]))
            now += 1
        now = _spans(draw, program, index, f"{name}/{number}", step, now)
        step.end = now = now + draw(st.integers(1, 9))
        thread.below.append(step)
        now += draw(st.integers(0, 5))
    program.threads.append(thread)
    program.end = max(program.end, now)


def _spans(draw: Draw, program: _Program, index: int, step: str, parent: _Line, now: int) -> int:
    kinds = ["input", "checkpoint", "span work", "span load_data", "wait", "put", "launch", "launch", "dispatch"]
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=4)):
        now += draw(st.integers(0, 4))
        length = draw(st.integers(1, 20))
        function = f"f{index}{draw(st.sampled_from('ab'))}"  # one function is launched by one thread
        span = _Line(kind, now, now + length)
        if kind == "launch":
            span.text = f"launch {function}"
            program.launches.append(_Launch(function, now, now + length, step, span))
        elif kind == "dispatch":
            span.text = f"dispatch {function}"
            if length > 6:
                span.below += [_Line("lower", now + 1, now + 2), _Line("compile", now + 2, now + length - 3)]
            span.below.append(_Line("launch", now + length - 1, now + length))
            program.launches.append(_Launch(function, now + length - 1, now + length, step, span.below[-1]))
        elif kind == "input" and length > 1 and draw(st.booleans()):
            span.below.append(_Line("put", now, now + length // 2))
        elif kind == "span work":
            span.end = now = _spans(draw, program, index, step, span, now) + 1
            length = 0
        parent.below.append(span)
        now += length
    return now


def _number_runs(draw: Draw, program: _Program, lanes: int) -> None:
    bases: dict[str, int] = {}
    program.launches.sort(key=lambda one: one.start)
    for launch in program.launches:
        run_id = bases.setdefault(launch.function, draw(st.integers(-(2**31), 2**31 - 100)))
        bases[launch.function] += 1
        program.run_ids.append(run_id)
        if lanes > 1:
            launch.line.after = f" id {run_id}"


def _lane(draw: Draw, program: _Program, ordinal: int, copies: bool) -> None:
    lane = _Line(f"lane {ordinal}")
    free = 0
    for launch, run_id in zip(program.launches, program.run_ids, strict=True):
        # an op may start before its launch has returned
        start = max(free, launch.start + 1, launch.end + draw(st.integers(-6, 6)))
        run = _Line(f"run {launch.function} {run_id}")
        free = _ops(draw, run, start)
        lane.below.append(run)
        join = "id" if launch.line.after else "order"
        program.runs.append(f"  {launch.function} {run_id} lane {ordinal} -> {launch.step} {join}")
        if copies and draw(st.integers(0, 4)) == 0:
            end = free + draw(st.integers(1, 9))
            lane.below.append(_Line("copy", free, end))
            program.end = max(program.end, end)
    program.lanes.append(lane)
    program.end = max(program.end, free)


def _ops(draw: Draw, run: _Line, now: int) -> int:
    for number in range(draw(st.integers(1, 3))):
        length = draw(st.integers(1, 15))
        opcode = draw(st.sampled_from(["dot", "add", "all-reduce", "while"]))
        op = _Line(f"{opcode}.{number}", now, now + length)
        if opcode == "while" and length > 3:
            op.below = [
                _Line(f"dot.9{number}", now + 1, now + 2),
                _Line(f"all-reduce.9{number}", now + 2, now + length),
            ]
        elif opcode == "while":
            op.text = f"multiply.{number}"
        elif draw(st.booleans()):
            late = draw(st.integers(0, 8))
            op.marker = now + length + late
            length += late // 2  # another op may start while this one is still open
        run.below.append(op)
        now += max(1, length + draw(st.integers(-2, 3)))  # two threads of the pool may run two ops at once
    return max(now, *(op.marker or op.end for op in run.below))
