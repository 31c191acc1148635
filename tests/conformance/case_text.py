"""The text form of a conformance case (README.md says how to write one) and its parser.

A case is a tree of indented lines. Times are numbers in the case's unit and become integer picoseconds here; a time
that is no whole number of picoseconds is an error, so nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path

UNIT_PS = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9}

ELEMENT_BYTES = {"f32": 4, "f64": 8}
CONTAINERS = ("while", "conditional", "call")
HOST_SPANS = (
    *("step", "input", "checkpoint", "span", "gc"),
    *("dispatch", "launch", "lower", "compile", "trace"),
    *("wait", "read", "put", "linearize"),
)


class CaseError(ValueError):
    """A case that cannot be read: names the line and what is wrong with it."""


@dataclass(frozen=True)
class StepRef:
    """A step as cases name it: ``4`` is train/4; ``train/4#1`` is the second step of that name and number."""

    name: str
    number: int
    occurrence: int = 0


@dataclass
class Span:
    """One interval of a host thread. ``end_ps`` is None where it was still open at the end of the capture;
    ``begun_before``: it began before the capture (a wait alone, whose end is an event of its own)."""

    kind: str
    name: str
    start_ps: int
    end_ps: int | None
    number: int = 0
    run_id: int | None = None
    begun_before: bool = False
    children: list[Span] = field(default_factory=list)


@dataclass(frozen=True)
class StackSample:
    """A sampled stack: where a thread was at one moment, innermost frame first, and whether it was at work."""

    time_ps: int
    on_cpu: bool
    frames: tuple[tuple[str, int, str], ...]
    """(file, line, function)"""


@dataclass
class Thread:
    """One host thread that runs Python."""

    name: str
    spans: list[Span]
    samples: list[StackSample] = field(default_factory=list)


@dataclass(frozen=True)
class Instruction:
    """One HLO instruction: ``name = opcode(operands)``. ``parent`` is the container whose body holds it, or empty.
    ``shape``: its array, as (element type, sizes), where the case says so."""

    name: str
    opcode: str
    operands: tuple[str, ...] = ()
    parent: str = ""
    shape: tuple[str, tuple[int, ...]] | None = None


@dataclass
class Program:
    """One compiled program: the module ``jit_<function>``; ``file`` and ``source_line`` say where the function is."""

    function: str
    program_id: int
    file: str
    source_line: int
    instructions: dict[str, Instruction]


@dataclass
class Op:
    """One executed instruction. ``marker_ps`` is its ``end:`` marker where the case gives one (an asynchronous op);
    ``unfinished``: the capture ended before the marker was written."""

    name: str
    start_ps: int
    end_ps: int | None
    marker_ps: int | None
    unfinished: bool
    children: list[Op] = field(default_factory=list)


@dataclass
class Run:
    """One execution of a program on a lane. ``wait_ps`` is when the runtime's wait for the run ended, if the case says
    so; ``inline`` is the thread that ran the ops itself, inside its launch."""

    function: str
    program_id: int
    run_id: int
    inline: str
    ops: list[Op]
    wait_ps: int | None = None


@dataclass
class Lane:
    """One device ordinal: its runs, and the host-to-device copies that the trace shows beside it (no end: the copy was
    open when the capture ended)."""

    ordinal: int
    runs: list[Run] = field(default_factory=list)
    copies: list[tuple[int, int | None]] = field(default_factory=list)


@dataclass(frozen=True)
class Amount:
    """The expected picoseconds of one class in one window. ``by``: the step (or "-" for none) whose host work it was,
    None where the case does not say; ``total_ps`` and ``foreign_ps`` None likewise."""

    name: str
    exclusive_ps: int
    by: StepRef | str | None
    total_ps: int | None
    foreign_ps: int | None


@dataclass
class ExpectedWindow:
    """``kind``: head, step, nested or tail; ``amounts``: every class that is not zero, None where none is stated."""

    kind: str
    step: StepRef | None
    start_ps: int
    end_ps: int
    amounts: list[Amount] | None
    place: str


@dataclass(frozen=True)
class ExpectedRun:
    """The step that a run belongs to (None: no step) and how it was joined."""

    function: str
    run_id: int
    lane: int | None
    step: StepRef | None
    join: str


@dataclass(frozen=True)
class ExpectedVerdict:
    """The class or cause that the verdict names, None for no verdict; ``without_ps``: the mean step without it, None
    where none is promised."""

    bottleneck: str | None
    without_ps: int | None


@dataclass
class Case:
    """A whole case. ``drained`` is the set of edges ("start", "end") at which no work was in flight.

    ``peaks``: rates of every device, per second, by the names of hlo/peaks.py.
    """

    title: str = ""
    unit_ps: int = UNIT_PS["ms"]
    start_ps: int = 0
    end_ps: int = 0
    drained: frozenset[str] = frozenset({"end"})
    peaks: dict[str, int] = field(default_factory=dict)
    needs_shard: bool = False
    programs: list[Program] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    windows: dict[int | None, list[ExpectedWindow]] = field(default_factory=dict)
    runs: list[ExpectedRun] = field(default_factory=list)
    phases: list[tuple[StepRef, str]] = field(default_factory=list)
    communication: list[tuple[str, dict[str, int]]] = field(default_factory=list)
    """Kind and its picoseconds (`count`: how often) over all steps, of analyses.communication."""
    launch_bound: list[tuple[StepRef, bool]] = field(default_factory=list)
    verdict: ExpectedVerdict | None = None

    def program(self, function: str, program_id: int | None, place: str) -> Program:
        """The program of that function: by id, the only one of the name, or a new one with the next free id."""
        named = [p for p in self.programs if p.function == function and program_id in (None, p.program_id)]
        if len(named) > 1:
            raise CaseError(f"{place}: several programs are called {function}; write {function}@ID")
        if named:
            return named[0]
        taken = {p.program_id for p in self.programs}
        new_id = program_id if program_id is not None else max(taken, default=0) + 1
        if new_id in taken:
            raise CaseError(f"{place}: program {new_id} is declared under another name")
        program = Program(function, new_id, "train.py", 10, {})
        self.programs.append(program)
        return program


@dataclass
class _Node:
    place: str
    words: list[str]
    rest: str
    children: list[_Node]


def read_case(path: Path) -> Case:
    """The case in the file ``path``. Raises CaseError naming the line."""
    return parse_case(path.read_text(encoding="utf-8"), path.name)


def parse_case(text: str, source: str) -> Case:
    """The case written in ``text``; ``source`` names it in messages. Raises CaseError naming the line."""
    nodes = _tree(text, source)
    case = Case()
    for node in nodes:  # the unit first: every other line needs it
        if node.words[0] == "unit":
            case.unit_ps = UNIT_PS[node.words[1]]
    handlers: dict[str, Callable[[Case, _Node], None]] = {
        "title:": lambda c, n: setattr(c, "title", n.rest),
        "unit": lambda c, n: None,
        "capture": _read_capture,
        "drained": _read_drained,
        "needs": _read_needs,
        "peaks": _read_peaks,
        "program": _read_program,
        "thread": _read_thread,
        "lane": _read_lane,
        "expect": _read_expect,
    }
    for node in nodes:
        if node.words[0] not in handlers:
            raise CaseError(f"{node.place}: unknown line {node.words[0]!r}")
        handlers[node.words[0]](case, node)
    if not case.title:
        raise CaseError(f"{source}: no title")
    if case.end_ps <= case.start_ps:
        raise CaseError(f"{source}: no capture, or an empty one")
    _check_inside(case, source)
    return case


def _check_inside(case: Case, source: str) -> None:
    """What ends after the capture is not in a trace: it is open (``START..``), or its marker comes ``never``."""
    times: list[tuple[str, int | None]] = []
    for thread in case.threads:
        times += [(f"{span.kind} {span.name}", span.end_ps or span.start_ps) for span in walk(thread.spans)]
        times += [("a sample", sample.time_ps) for sample in thread.samples]
    for lane in case.lanes:
        times += [("copy", end_ps) for _, end_ps in lane.copies]
        for run in lane.runs:
            times.append((f"the wait for {run.function} {run.run_id}", run.wait_ps))
            times += [(op.name, t) for op in all_ops(run.ops) for t in (op.end_ps, op.marker_ps)]
    for what, time_ps in times:
        if time_ps is not None and not case.start_ps <= time_ps <= case.end_ps:
            raise CaseError(f"{source}: {what} at {time_ps} ps lies outside the capture")


def _tree(text: str, source: str) -> list[_Node]:
    top: list[_Node] = []
    levels = [top]
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#")[0] if raw.lstrip().startswith("#") else raw.split(" #")[0]
        if not line.strip():
            continue
        depth, odd = divmod(len(line) - len(line.lstrip(" ")), 2)
        place = f"{source}:{number}"
        if odd or depth >= len(levels):
            raise CaseError(f"{place}: indent by two spaces, one level at a time")
        words = line.split()
        node = _Node(place, words, line.strip()[len(words[0]) :].strip(), [])
        levels[depth].append(node)
        levels[depth + 1 :] = [node.children]
    return top


def _time(text: str, case: Case, place: str) -> int:
    unit_ps, digits = case.unit_ps, text
    for suffix in UNIT_PS:
        if text.endswith(suffix):
            unit_ps, digits = UNIT_PS[suffix], text[: -len(suffix)]
    try:
        value = Decimal(digits) * unit_ps
    except InvalidOperation:
        raise CaseError(f"{place}: {text!r} is not a time") from None
    if value != int(value):
        raise CaseError(f"{place}: {text!r} is no whole number of picoseconds")
    return int(value)


def _interval(text: str, case: Case, place: str) -> tuple[int, int | None]:
    if text.count("..") != 1:
        raise CaseError(f"{place}: expected START..END or START.., not {text!r}")
    first, last = text.split("..")
    start_ps, end_ps = _time(first, case, place), _time(last, case, place) if last else None
    if end_ps is not None and end_ps < start_ps:
        raise CaseError(f"{place}: {text} ends before it starts")
    return start_ps, end_ps


def _closed(text: str, case: Case, place: str) -> tuple[int, int]:
    start_ps, end_ps = _interval(text, case, place)
    if end_ps is None:
        raise CaseError(f"{place}: {text} needs an end")
    return start_ps, end_ps


def _options(words: list[str], allowed: tuple[str, ...], place: str) -> dict[str, str]:
    if len(words) % 2 or any(key not in allowed for key in words[::2]):
        raise CaseError(f"{place}: expected pairs of {', '.join(allowed)} and a value, not {' '.join(words)!r}")
    return dict(zip(words[::2], words[1::2], strict=True))


def step_ref(text: str, place: str) -> StepRef:
    name, slash, number = text.rpartition("/")
    number, _, occurrence = number.partition("#")
    try:
        return StepRef(name if slash else "train", int(number), int(occurrence or 0))
    except ValueError:
        raise CaseError(f"{place}: {text!r} is not a step (NUMBER or NAME/NUMBER)") from None


def _read_capture(case: Case, node: _Node) -> None:
    case.start_ps, case.end_ps = _closed(node.words[1], case, node.place)


def _read_drained(case: Case, node: _Node) -> None:
    edges = {"none": (), "start": ("start",), "end": ("end",), "both": ("start", "end")}
    case.drained = frozenset(edges[node.words[1]])


def _read_needs(case: Case, node: _Node) -> None:
    if node.words[1:] != ["shard"]:
        raise CaseError(f"{node.place}: expected `needs shard`")
    case.needs_shard = True


def _read_peaks(case: Case, node: _Node) -> None:
    rates = _options(node.words[1:], ("vector_flops_per_s", "memory_bytes_per_s"), node.place)
    case.peaks = {name: int(rate) for name, rate in rates.items()}


def _function(text: str) -> tuple[str, int | None]:
    name, at, number = text.partition("@")
    return name, int(number) if at else None


def _read_program(case: Case, node: _Node) -> None:
    function, program_id = _function(node.words[1])
    program = case.program(function, program_id, node.place)
    where = _options(node.words[2:], ("at",), node.place).get("at")
    if where:
        program.file, _, line = where.partition(":")
        program.source_line = int(line)
    for child in node.children:
        name, equals, rest = " ".join(child.words).partition(" = ")
        opcode, bracket, rest = rest.partition("(")
        operands, closed, array = rest.partition(")")
        if not equals or not bracket or not closed:
            raise CaseError(f"{child.place}: expected NAME = OPCODE(OPERAND, ...)")
        reads = tuple(o.strip() for o in operands.split(",") if o.strip())
        program.instructions[name] = Instruction(name, opcode, reads, shape=_shape(array.strip(), child.place))


def _shape(text: str, place: str) -> tuple[str, tuple[int, ...]] | None:
    """``f32[2,3]`` as ("f32", (2, 3)); None for nothing."""
    element, bracket, sizes = text.partition("[")
    if not text:
        return None
    if element not in ELEMENT_BYTES or not bracket or not sizes.endswith("]"):
        raise CaseError(f"{place}: expected an array of {', '.join(ELEMENT_BYTES)} like f32[2,3], not {text!r}")
    return element, tuple(int(size) for size in sizes[:-1].split(","))


def _read_thread(case: Case, node: _Node) -> None:
    spans = [_span(case, child) for child in node.children if child.words[0] != "sample"]
    samples = [_sample(case, child) for child in node.children if child.words[0] == "sample"]
    case.threads.append(Thread(node.rest, spans, samples))


def _sample(case: Case, node: _Node) -> StackSample:
    if len(node.words) < 3 or node.words[2] not in ("on", "off"):
        raise CaseError(f"{node.place}: expected sample TIME on|off FILE:LINE:FUNCTION...")
    frames = []
    for word in node.words[3:]:
        file, line, function = (*word.split(":"), "", "")[:3]
        if not (file and line.isdigit() and function):
            raise CaseError(f"{node.place}: {word!r} is not FILE:LINE:FUNCTION")
        frames.append((file, int(line), function))
    return StackSample(_time(node.words[1], case, node.place), node.words[2] == "on", tuple(frames))


def _span(case: Case, node: _Node) -> Span:
    kind, words = node.words[0], node.words[1:]
    if kind not in HOST_SPANS:
        raise CaseError(f"{node.place}: unknown host span {kind!r}")
    at = next((i for i, word in enumerate(words) if ".." in word), None)
    if at is None:
        raise CaseError(f"{node.place}: {kind} has no START..END")
    begun_before = kind == "wait" and words[at].startswith("..")
    start_ps, end_ps = _interval(f"0{words[at]}" if begun_before else words[at], case, node.place)
    options = _options(words[at + 1 :], ("id",), node.place)
    span = Span(kind, words[0] if at else kind, start_ps, end_ps, begun_before=begun_before)
    if kind == "step":
        ref = step_ref(words[0], node.place)
        span.name, span.number = ref.name, ref.number
    if kind == "launch" and at:  # a launch with a program's name is a dispatch that launches all the way
        span.kind = "dispatch"
        span.children = [Span("launch", "launch", start_ps, end_ps)]
    span.children += [_span(case, child) for child in node.children]
    if "id" in options:
        (launch,) = [c for c in ([span] if span.kind == "launch" else span.children) if c.kind == "launch"]
        launch.run_id = int(options["id"])
    for child in span.children:
        if child.start_ps < start_ps or (end_ps is not None and (child.end_ps is None or child.end_ps > end_ps)):
            raise CaseError(f"{node.place}: {child.kind} {child.name} does not lie inside {kind} {span.name}")
    return span


def _read_lane(case: Case, node: _Node) -> None:
    lane = Lane(int(node.words[1]))
    for child in node.children:
        if child.words[0] == "copy":
            lane.copies.append(_interval(child.words[1], case, child.place))
        elif child.words[0] == "run":
            lane.runs.append(_run(case, child))
        else:
            raise CaseError(f"{child.place}: a lane holds `run` and `copy`, not {child.words[0]!r}")
    case.lanes.append(lane)


def _run(case: Case, node: _Node) -> Run:
    function, program_id = _function(node.words[1])
    program = case.program(function, program_id, node.place)
    inline = _options(node.words[3:], ("inline",), node.place).get("inline", "")
    run = Run(function, program.program_id, int(node.words[2]), inline, [])
    for child in node.children:
        if child.words[0] == "wait":
            run.wait_ps = _time(child.words[1], case, child.place)
        else:
            run.ops.append(_op(case, program, child, ""))
    return run


def _op(case: Case, program: Program, node: _Node, parent: str) -> Op:
    name = node.words[0]
    if name not in program.instructions:
        program.instructions[name] = Instruction(name, opcode_of(name), parent=parent)
    elif parent:
        known = program.instructions[name]
        program.instructions[name] = replace(known, parent=parent)
    start_ps, end_ps = _interval(node.words[1], case, node.place)
    marker = _options(node.words[2:], ("end",), node.place).get("end")
    children = [_op(case, program, child, name) for child in node.children]
    if children and program.instructions[name].opcode not in CONTAINERS:
        raise CaseError(f"{node.place}: only {', '.join(CONTAINERS)} hold ops")
    unfinished = marker == "never"
    marker_ps = None if marker is None or unfinished else _time(marker, case, node.place)
    return Op(name, start_ps, end_ps, marker_ps, unfinished, children)


def opcode_of(name: str) -> str:
    """The opcode that an instruction has where the case declares none: its name without the number."""
    stem, dot, number = name.rpartition(".")
    return stem if dot and number.isdigit() else name


def _read_expect(case: Case, node: _Node) -> None:
    what = node.words[1]
    if what == "lane":
        key = None if node.words[2] == "host" else int(node.words[2])
        case.windows[key] = [_expected_window(case, child) for child in node.children]
    elif what == "runs":
        case.runs += [_expected_run(child) for child in node.children]
    elif what == "phases":
        case.phases += [(step_ref(child.words[0], child.place), child.words[1]) for child in node.children]
    elif what == "communication":
        case.communication += [_expected_transfer(case, child) for child in node.children]
    elif what == "launch-bound":
        case.launch_bound += [
            (step_ref(child.words[0], child.place), child.words[1] == "yes") for child in node.children
        ]
    elif what == "verdict":
        case.verdict = _expected_verdict(case, node)
    else:
        raise CaseError(
            f"{node.place}: expect lane, runs, phases, communication, launch-bound or verdict, not {what!r}"
        )


def _expected_transfer(case: Case, node: _Node) -> tuple[str, dict[str, int]]:
    kind, colon, amounts = " ".join(node.words).partition(" : ")
    if not colon:
        raise CaseError(f"{node.place}: expected KIND : NAME AMOUNT, ...")
    pairs = [part.split() for part in amounts.split(",")]
    return kind, {n: int(v) if n == "count" else _time(v, case, node.place) for n, v in pairs}


def _expected_verdict(case: Case, node: _Node) -> ExpectedVerdict:
    words = [child.words for child in node.children]
    if words == [["none"]]:
        return ExpectedVerdict(None, None)
    if len(words) != 1 or len(words[0]) != 3 or words[0][1] != "without":
        raise CaseError(f"{node.place}: expected `CLASS without TIME|-`, or `none`")
    name, _, time = words[0]
    return ExpectedVerdict(name, None if time == "-" else _time(time, case, node.place))


def _expected_window(case: Case, node: _Node) -> ExpectedWindow:
    head, _, amounts = " ".join(node.words).partition(" : ")
    words = head.split()
    step = step_ref(words[1], node.place) if words[0] in ("step", "nested") else None
    if words[0] not in ("head", "step", "nested", "tail"):
        raise CaseError(f"{node.place}: a window is head, step, nested or tail, not {words[0]!r}")
    start_ps, end_ps = _closed(words[-1], case, node.place)
    if amounts.strip() == "?":
        return ExpectedWindow(words[0], step, start_ps, end_ps, None, node.place)
    parts = [_amount(case, part.split(), node.place) for part in amounts.split(",") if part.strip()]
    return ExpectedWindow(words[0], step, start_ps, end_ps, parts, node.place)


def _amount(case: Case, words: list[str], place: str) -> Amount:
    options = _options(words[2:], ("by", "of", "foreign"), place)
    by = options.get("by")
    return Amount(
        words[0],
        _time(words[1], case, place),
        by if by in (None, "-") else step_ref(by, place),
        _time(options["of"], case, place) if "of" in options else None,
        _time(options["foreign"], case, place) if "foreign" in options else None,
    )


def _expected_run(node: _Node) -> ExpectedRun:
    left, arrow, right = " ".join(node.words).partition(" -> ")
    names, joined = left.split(), right.split()
    if not arrow or len(joined) != 2:
        raise CaseError(f"{node.place}: expected FUNCTION RUN_ID [lane N] -> STEP|- JOIN")
    lane = int(names[3]) if len(names) == 4 and names[2] == "lane" else None
    step = None if joined[0] == "-" else step_ref(joined[0], node.place)
    return ExpectedRun(names[0], int(names[1]), lane, step, joined[1])


def all_ops(ops: list[Op]) -> list[Op]:
    """Every op, a container before what it holds."""
    return [found for op in ops for found in (op, *all_ops(op.children))]


def walk(spans: list[Span]) -> Iterator[Span]:
    """Every span, a parent before its children."""
    for span in spans:
        yield span
        yield from walk(span.children)
