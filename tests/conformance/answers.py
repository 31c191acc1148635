"""What an analysis answered for a case, in a form that does not depend on row numbers, and how it differs from the
answers that the case states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from conformance.case_text import Case, ExpectedWindow, StepRef
from conformance.trace_events import module_of
from xprof_py.postprocess.profile import Profile


@dataclass(frozen=True)
class Window:
    """One window of a lane. ``amounts``: class -> (exclusive, total, foreign); ``causes``: (cause, step) -> length."""

    kind: str
    step: StepRef | None
    start_ps: int
    end_ps: int
    amounts: tuple[tuple[str, tuple[int, int, int]], ...]
    causes: tuple[tuple[tuple[str, StepRef | None], int], ...]


@dataclass(frozen=True)
class Answer:
    """The answer to a whole case. Lanes are named by device ordinal; every collection is sorted."""

    windows: tuple[tuple[int, tuple[Window, ...]], ...]
    runs: tuple[tuple[tuple[str, int, int], tuple[StepRef | None, str]], ...]
    phases: tuple[tuple[StepRef, str], ...]


def answer_of(joined: Profile, partial: pa.Table) -> Answer:
    """The answer in a joined Profile and the ``breakdown`` table of it.

    A host without a device has one lane, number 0, which may have no row in ``lanes``.
    """
    steps = joined["steps"].to_pylist()
    refs = [StepRef(s["name"], s["number"], s["occurrence"]) for s in steps]
    outermost = [_outermost(steps, row) for row in range(len(steps))]

    def ref(row: int | None) -> StepRef | None:
        return None if row is None else refs[outermost[row]]

    ordinals = [lane["ordinal"] for lane in joined["lanes"].to_pylist()] or [0]
    amounts: dict[int, Counter[tuple[str, str]]] = {}
    for row in partial.to_pylist():
        into = amounts.setdefault(row["window"], Counter())
        for column in ("exclusive_ps", "total_ps", "foreign_ps"):
            into[row["class"], column] += row[column]
    causes: dict[int, Counter[tuple[str, StepRef | None]]] = {}
    for gap in joined["gaps"].to_pylist():
        causes.setdefault(gap["window"], Counter())[gap["cause"], ref(gap["cause_step"])] += gap["length_ps"]
    windows: dict[int, list[Window]] = {ordinal: [] for ordinal in ordinals}
    for row, window in enumerate(joined["windows"].to_pylist()):
        found = amounts.get(row, Counter())
        classes = sorted({name for (name, _), ps in found.items() if ps})
        triples = [(c, (found[c, "exclusive_ps"], found[c, "total_ps"], found[c, "foreign_ps"])) for c in classes]
        shares = sorted((item for item in causes.get(row, Counter()).items() if item[1]), key=str)
        windows[ordinals[window["lane"]]].append(
            Window(
                window["kind"],
                None if window["step"] is None else refs[window["step"]],
                window["start_ps"],
                window["end_ps"],
                tuple(triples),
                tuple(shares),
            )
        )
    programs = joined["programs"].to_pylist()
    runs = {}
    for run in joined["runs"].to_pylist():
        module = "" if run["program"] is None else programs[run["program"]]["name"]
        runs[module, run["run_id"], ordinals[run["lane"]]] = (ref(run["step"]), run["join"])
    phases = [(refs[row], step["phase"]) for row, step in enumerate(steps) if step["parent"] is None]
    return Answer(
        tuple((lane, tuple(sorted(windows[lane], key=_window_order))) for lane in sorted(windows)),
        tuple(sorted(runs.items())),
        tuple(sorted(phases, key=str)),
    )


def _outermost(steps: list[dict[str, Any]], row: int) -> int:
    while steps[row]["parent"] is not None:
        row = steps[row]["parent"]
    return row


def _window_order(window: Window) -> tuple[int, int, str]:
    return window.start_ps, window.end_ps, str((window.kind, window.step))


def differences(case: Case, answer: Answer) -> list[str]:
    """One sentence for everything in ``answer`` that is not what the case states; empty where they agree."""
    return [*_window_differences(case, answer), *_run_differences(case, answer), *_phase_differences(case, answer)]


def _window_differences(case: Case, answer: Answer) -> Iterable[str]:
    found_lanes = dict(answer.windows)
    for ordinal, expected in case.windows.items():
        if ordinal is None and len(found_lanes) != 1:
            yield f"expected one lane for the host without a device, found {sorted(found_lanes)}"
            continue
        lane = next(iter(found_lanes)) if ordinal is None else ordinal
        if lane not in found_lanes:
            yield f"lane {ordinal} is not in the answer (lanes {sorted(found_lanes)})"
            continue
        found = {(w.kind, w.step): w for w in found_lanes[lane]}
        if len(found) != len(found_lanes[lane]):
            yield f"lane {ordinal}: two windows for one step: {found_lanes[lane]}"
        for window in expected:
            yield from _one_window(window, found.pop((window.kind, window.step), None))
        left = [w for w in found.values() if w.start_ps != w.end_ps and w.kind != "nested"]
        yield from (f"lane {ordinal}: unexpected window {w}" for w in left)


def _one_window(expected: ExpectedWindow, found: Window | None) -> Iterable[str]:
    place = expected.place
    if expected.start_ps == expected.end_ps:  # where an empty window lies says nothing
        if found is not None and found.start_ps != found.end_ps:
            yield f"{place}: should be empty, is {found.start_ps}..{found.end_ps} ps"
        return
    if found is None:
        yield f"{place}: no such window"
        return
    if (found.start_ps, found.end_ps) != (expected.start_ps, expected.end_ps):
        yield f"{place}: is {found.start_ps}..{found.end_ps} ps, not {expected.start_ps}..{expected.end_ps}"
    if expected.amounts is None:
        return
    wanted: Counter[str] = Counter()
    for amount in expected.amounts:
        wanted[amount.name] += amount.exclusive_ps
    got = dict(found.amounts)
    for name in sorted(wanted.keys() | got.keys()):
        exclusive_ps = got.get(name, (0, 0, 0))[0]
        if exclusive_ps != wanted[name]:
            yield f"{place}: {name} is {exclusive_ps} ps, not {wanted[name]}"
    for amount in expected.amounts:
        _, total_ps, foreign_ps = got.get(amount.name, (0, 0, 0))
        if amount.total_ps not in (None, total_ps):
            yield f"{place}: total of {amount.name} is {total_ps} ps, not {amount.total_ps}"
        if amount.foreign_ps not in (None, foreign_ps):
            yield f"{place}: foreign {amount.name} is {foreign_ps} ps, not {amount.foreign_ps}"
    yield from _cause_steps(expected, found)


def _cause_steps(expected: ExpectedWindow, found: Window) -> Iterable[str]:
    stated: dict[str, Counter[StepRef | None]] = {}
    silent = set()
    for amount in expected.amounts or []:
        if amount.by is None:
            silent.add(amount.name)
        else:
            step = None if isinstance(amount.by, str) else amount.by
            stated.setdefault(amount.name, Counter())[step] += amount.exclusive_ps
    for cause in sorted(stated.keys() - silent):
        got = {step: ps for (name, step), ps in found.causes if name == cause}
        if got != dict(stated[cause]):
            yield f"{expected.place}: {cause} is by {got}, not {dict(stated[cause])}"


def _run_differences(case: Case, answer: Answer) -> Iterable[str]:
    if not case.runs:
        return
    found = dict(answer.runs)
    for run in case.runs:
        lane = case.lanes[0].ordinal if run.lane is None else run.lane
        got = found.pop((module_of(run.function), run.run_id, lane), None)
        if got != (run.step, run.join):
            yield f"run {run.function} {run.run_id} on lane {lane} is {got}, not {(run.step, run.join)}"
    yield from (f"unexpected run {run}" for run in found)


def _phase_differences(case: Case, answer: Answer) -> Iterable[str]:
    found = dict(answer.phases)
    for step, phase in case.phases:
        if found.get(step) != phase:
            yield f"step {step} is {found.get(step)}, not {phase}"
