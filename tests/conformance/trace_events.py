"""A case as the events of a JAX CPU capture of that program: the event names, arguments and nesting of jax 0.10.

XLA's own events lie on XSpace lines; the user's spans lie on a shard line of the same thread (``spans_in="shard"``),
or, where only XLA's profiler ran, on the XSpace line as TraceMe events named after what they are (``"xspace"``).

Events that real traces nest are nested here too. Where a case gives parent and child one start, the child starts
1 ps later (a real clock never ticks that finely, so no amount in a case depends on it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from conformance.case_text import Case, CaseError, Lane, Op, Program, Run, Span, Thread, all_ops, walk
from xprof_py.postprocess.schema import Kind

Where = Literal["shard", "xspace"]

SHARD_KIND = {"step": Kind.STEP, "input": Kind.INPUT, "checkpoint": Kind.CHECKPOINT, "span": Kind.SPAN, "gc": Kind.GC}
MONITORED = {
    "trace": "jaxpr_trace_duration",
    "lower": "jaxpr_to_mlir_module_duration",
    "compile": "backend_compile_duration",
}
XLA_SPANS = ("put", "dispatch", "lower", "compile")
XLA_COMPILE = {"lower": "lower_sharding_computation", "compile": "backend_compile_and_load"}


@dataclass
class TraceEvent:
    """One event; ``args`` in the order in which the source wrote them."""

    name: str
    start_ps: int
    duration_ps: int | None
    args: list[tuple[str, int | str]] = field(default_factory=list)
    kind: Kind = Kind.PLAIN


@dataclass
class TraceLine:
    """One line of a trace; ``thread_id`` is known for shard lines only."""

    plane: str
    name: str
    line_id: int
    thread_id: int | None
    source: Where
    events: list[TraceEvent] = field(default_factory=list)


def module_of(function: str) -> str:
    """The name of the HLO module of a jitted function: every character that is no identifier's becomes ``_``."""
    return "jit_" + "".join(c if c.isalnum() or c == "_" else "_" for c in function).rstrip("_")


def build_lines(case: Case, spans_in: Where) -> list[TraceLine]:
    """Every line of the capture that the case describes, events in the order of their starts."""
    return _Builder(case, spans_in).lines()


class _Builder:
    def __init__(self, case: Case, spans_in: Where) -> None:
        self.case = case
        self.spans_in = spans_in
        self.flow = 1 << 32
        self.pools: dict[str, TraceLine] = {}
        self.programs = {p.program_id: p for p in case.programs}
        self.inline: dict[str, list[TraceEvent]] = {}
        self.handed_over: dict[int, list[int]] = {}

    def lines(self) -> list[TraceLine]:
        for lane in self.case.lanes:
            self.lane(lane)
        lines = []
        for index, thread in enumerate(self.case.threads):
            lines += self.thread(index, thread)
        unknown = set(self.inline) - {thread.name for thread in self.case.threads}
        if unknown:
            raise CaseError(f"runs inline on threads that do not exist: {sorted(unknown)}")
        lines += self.pools.values()
        for line in lines:
            line.events.sort(key=lambda e: (e.start_ps, -(e.duration_ps if e.duration_ps is not None else 1 << 62)))
        return lines

    def pool(self, name: str, line_key: str) -> TraceLine:
        if line_key not in self.pools:
            line_id = (-1) ** len(self.pools) * (7_000_000_000_000_000_000 + len(self.pools))
            self.pools[line_key] = TraceLine("/host:CPU", f"{name}/{line_id}", line_id, None, "xspace")
        return self.pools[line_key]

    def next_flow(self) -> int:
        self.flow += 1
        return self.flow

    # --- host threads -------------------------------------------------------------------------------------------
    def thread(self, index: int, thread: Thread) -> list[TraceLine]:
        os_tid = 4200 + index
        python = TraceLine("/host:CPU", "python", -5_000_000_000_000_000_000 - index, None, "xspace")
        shard = TraceLine("xprof_py", thread.name, os_tid, os_tid, "shard")
        for span in thread.spans:
            self.span(span, None, os_tid, python, shard)
        python.events += self.inline.get(thread.name, [])
        if self.spans_in == "xspace" or not thread.spans:
            return [python]
        first_ps = min(span.start_ps for span in thread.spans)
        python.events.append(TraceEvent("xprof_py.thread", first_ps, 0, [("tid", os_tid)]))
        return [python, shard] if shard.events else [python]

    def span(self, span: Span, within: Span | None, os_tid: int, python: TraceLine, shard: TraceLine) -> None:
        start_ps = span.start_ps
        open_end = span.end_ps is None
        end_ps = self.case.end_ps if span.end_ps is None else span.end_ps
        length_ps = None if open_end else end_ps - start_ps
        if span.kind in XLA_SPANS and length_ps is not None and length_ps < 4:
            raise CaseError(f"{span.kind} at {start_ps} ps is too short for the events that nest in it: 4 ps at least")
        if span.kind in SHARD_KIND:
            self.user_span(span, length_ps, os_tid, python, shard)
        elif span.kind == "wait":
            flow = self.next_flow()
            if not span.begun_before:
                python.events.append(TraceEvent("CommonPjRtBuffer::Await", start_ps, 0, [("_pt", 0), ("_p", flow)]))
            if not open_end:
                python.events.append(TraceEvent("CommonPjRtBuffer::Await", end_ps, 0, [("_ct", 0), ("_c", flow)]))
        elif span.kind in MONITORED:
            self.compile(span, within, python, shard)
        elif open_end:
            pass  # XLA's profiler drops an event that is still open when it stops
        elif span.kind == "put":
            python.events.append(TraceEvent("shard_args", start_ps, length_ps))
            python.events.append(TraceEvent("DevicePutWithSharding", start_ps + 1, end_ps - start_ps - 1))
            for flow in self.handed_over.get(id(span), []):
                handed: list[tuple[str, int | str]] = [("_pt", 15), ("_p", flow)]
                python.events.append(TraceEvent("ThreadpoolListener::Record", end_ps - 1, 0, handed))
        elif span.kind == "read":
            python.events.append(TraceEvent("np.asarray(jax.Array)", start_ps, length_ps))
        elif span.kind == "linearize":
            sent: list[tuple[str, int | str]] = [("_pt", 5), ("_p", self.next_flow())]
            python.events.append(TraceEvent("CommonPjRtClient::LinearizeIntoImpl", start_ps, length_ps, sent))
        elif span.kind == "dispatch":
            python.events.append(TraceEvent(f"PjitFunction({span.name})", start_ps, length_ps))
            python.events.append(TraceEvent(f"PjitFunction({span.name})", start_ps + 1, end_ps - start_ps - 1))
        elif span.kind == "launch":
            raise CaseError(f"launch at {start_ps} ps lies in no dispatch")
        compiles = any(s.kind in XLA_COMPILE for s in walk(span.children))
        for child in span.children:
            if child.kind == "launch":
                self.launch(child, span, compiles, python)
            else:
                self.span(child, span if span.kind == "dispatch" else None, os_tid, python, shard)

    def user_span(self, span: Span, length_ps: int | None, os_tid: int, python: TraceLine, shard: TraceLine) -> None:
        number: list[tuple[str, int | str]] = [("step_num", span.number)] if span.kind == "step" else []
        if self.spans_in == "shard":
            shard.events.append(TraceEvent(span.name, span.start_ps, length_ps, number, SHARD_KIND[span.kind]))
            if span.kind == "step" and length_ps is not None:  # the marker that XProf reads
                marker = [("_r", 1), *number, ("xprof_tid", os_tid)]
                python.events.append(TraceEvent(span.name, span.start_ps, length_ps, marker))
        elif length_ps is not None:
            python.events.append(
                TraceEvent(span.name, span.start_ps, length_ps, [("_r", 1), *number] if number else [])
            )

    def compile(self, span: Span, within: Span | None, python: TraceLine, shard: TraceLine) -> None:
        if span.end_ps is None:
            return
        start_ps, length_ps = span.start_ps, span.end_ps - span.start_ps
        named = within.name if within is not None and span.name in MONITORED else span.name
        if self.spans_in == "shard":
            shard.events.append(
                TraceEvent(MONITORED[span.kind], start_ps, length_ps, [("fun_name", named)], Kind.COMPILE)
            )
        if span.kind in XLA_COMPILE:
            inset_ps = 2 if within is not None and within.start_ps == start_ps else 0  # inside both PjitFunction events
            python.events.append(TraceEvent(XLA_COMPILE[span.kind], start_ps + inset_ps, length_ps - inset_ps))
        if span.kind == "compile":
            pool = self.pool("tf_PjRtCompilerThreadPool", "compiler")
            pool.events.append(TraceEvent("PjRtCpuClient::Compile", start_ps + 3, length_ps - 4))

    def launch(self, launch: Span, dispatch: Span, compiles: bool, python: TraceLine) -> None:
        if launch.end_ps is None:
            return
        start_ps = max(launch.start_ps, dispatch.start_ps + 2)
        if compiles:
            python.events.append(TraceEvent("ExecuteReplicated.__call__", start_ps, launch.end_ps - start_ps))
            start_ps += 1
        length_ps = launch.end_ps - start_ps
        if launch.run_id is None:
            name = "CommonPjRtLoadedExecutable::ExecuteHelperOnSingleDevice"
            python.events.append(TraceEvent(name, start_ps, length_ps))
            return
        module = module_of(dispatch.name)
        flow = self.next_flow()
        python.events.append(
            TraceEvent(
                f"CommonPjRtLoadedExecutable::Execute ({module})",
                start_ps,
                length_ps,
                [
                    ("run_id", launch.run_id),
                    ("execution_mode", "default"),
                    ("name", module),
                    ("num_replicas", 1),
                    ("num_partitions", len(self.case.lanes)),
                    ("num_addressable_devices", len(self.case.lanes)),
                    ("_pt", 5),
                    ("_p", flow),
                ],
            )
        )
        for lane in self.case.lanes:
            pool = self.pool("tf_XLAPjRtCpuClient", f"handover {lane.ordinal}")
            name = f"[{lane.ordinal}] CommonPjRtLoadedExecutable::Execute ({module})"
            args: list[tuple[str, int | str]] = [("name", module), ("replica", 0), ("partition", lane.ordinal)]
            args += [("global_device_id", lane.ordinal), ("_ct", 5), ("_c", flow)]
            pool.events.append(TraceEvent(name, start_ps + 1, 1, args))

    # --- lanes --------------------------------------------------------------------------------------------------
    def lane(self, lane: Lane) -> None:
        for start_ps, end_ps in lane.copies:
            self.copy(start_ps, end_ps, self.pool("tf_XLAPjRtCpuClient", f"copies {lane.ordinal}").events)
        workers: list[list[tuple[int, int]]] = []
        for run in lane.runs:
            for op in run.ops:
                self.op(op, run, lane, self.worker(op, workers))
            self.run_wait(run, lane)

    def copy(self, start_ps: int, end_ps: int | None, events: list[TraceEvent]) -> None:
        """The copy itself on a thread of the client, and how the latest put handed it over to that thread."""
        puts = [s for t in self.case.threads for s in walk(t.spans) if s.kind == "put" and s.start_ps <= start_ps]
        flow = self.next_flow()
        if puts:
            self.handed_over.setdefault(id(max(puts, key=lambda s: s.start_ps)), []).append(flow)
        began: list[tuple[str, int | str]] = [("_ct", 15), ("_c", flow)]
        events.append(TraceEvent("ThreadpoolListener::StartRegion", start_ps, 0, began))
        if end_ps is not None:  # the profiler drops what is open at the end, but the start of the region is there
            events.append(TraceEvent("H2D Dispatch", start_ps, end_ps - start_ps))
            events.append(TraceEvent("ThreadpoolListener::StopRegion", min(end_ps + 1, self.case.end_ps), 0))

    def worker(self, op: Op, workers: list[list[tuple[int, int]]]) -> int:
        """The first worker thread that is free while ``op`` runs: two ops at once are on two threads."""
        end_ps = self.case.end_ps if op.end_ps is None else op.end_ps
        free = [all(end_ps <= a or op.start_ps >= b for a, b in busy) for busy in workers]
        if True not in free:
            workers.append([])
            free.append(True)
        workers[free.index(True)].append((op.start_ps, end_ps))
        return free.index(True)

    def op(self, op: Op, run: Run, lane: Lane, worker: int) -> None:
        if run.inline:
            events = self.inline.setdefault(run.inline, [])
        else:
            name = "tf_XLAEigen" if worker else "tf_XLAPjRtCpuClient"
            events = self.pool(name, f"ops {lane.ordinal} {worker}").events
        for child in op.children:
            self.op(child, run, lane, worker)
        if op.end_ps is None:
            return
        program: Program = self.programs[run.program_id]
        flow = self.next_flow()
        args: list[tuple[str, int | str]] = [("hlo_op", op.name), ("hlo_module", module_of(program.function))]
        args += [("program_id", program.program_id), ("run_id", run.run_id), ("device_ordinal", lane.ordinal)]
        args += [("_pt", 0), ("_p", flow)]
        events.append(TraceEvent(op.name, op.start_ps, op.end_ps - op.start_ps, args))
        closing: list[tuple[str, int | str]] = [("_ct", 0), ("_c", flow)]
        if op.unfinished:
            return
        if op.marker_ps is None:  # a synchronous op: its note lies inside it
            note_ps = max(op.start_ps, op.end_ps - 1)
            events.append(TraceEvent(f"end: {op.name}", note_ps, op.end_ps - note_ps, closing))
        else:
            pool = self.pool("tf_XLAEigen", f"notes {lane.ordinal}")
            pool.events.append(TraceEvent(f"end: {op.name}", op.marker_ps, 0, closing))

    def run_wait(self, run: Run, lane: Lane) -> None:
        ops = all_ops(run.ops)
        if not ops or any(op.end_ps is None or op.unfinished for op in ops):
            return
        own_end_ps = max(op.end_ps or 0 for op in ops)
        last_ps = max(own_end_ps, *(op.marker_ps or 0 for op in ops)) if run.wait_ps is None else run.wait_ps
        args: list[tuple[str, int | str]] = [("run_id", run.run_id), ("device_ordinal", lane.ordinal)]
        event = TraceEvent("ThunkExecutor::Execute (wait for completion)", own_end_ps, last_ps - own_end_ps, args)
        if run.inline:
            self.inline[run.inline].append(event)
        else:
            self.pool("tf_XLAPjRtCpuClient", f"waits {lane.ordinal}").events.append(event)
