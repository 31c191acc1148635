"""A fleet in a terminal: what `fleet report` prints."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from xprof_py.viewers import quantities
from xprof_py.viewers.class_words import label
from xprof_py.viewers.fields import Fields, mapping, number, rows, text
from xprof_py.viewers.terminal_page import MARGIN, Page

_RUNS_SHOWN: Final = 12
_CAUSES_SHOWN: Final = 6
_LEAST_SHOWN: Final = 0.005
_FAILED_SHOWN: Final = 10


def render_fleet(found: Fields, *, color: bool, width: int, encoding: str = "utf-8") -> str:
    """The report of a store as lines for a terminal.

    ``found``: what rules.fleet_report returned. The rest is as Page takes it. The text ends with a newline.
    """
    page = Page(color=color, width=width, encoding=encoding)
    page.add(_changes(page, found))
    page.add(_causes(page, found))
    page.add(_stragglers(page, found))
    for job in rows(found, "jobs"):
        page.add(_trend(page, job))
    page.add(_failed(page, found))
    return page.finished()


def _changes(page: Page, found: Fields) -> Iterator[str]:
    jobs = rows(found, "jobs")
    changes = [(job, change) for job in jobs for change in rows(job, "changes")]
    regressions = sum(change["kind"] == "regression" for _, change in changes)
    runs = sum(len(rows(job, "runs")) for job in jobs)
    head = [quantities.plural(len(jobs), "job"), quantities.plural(runs, "run")]
    yield page.bold(" · ".join([*head, quantities.plural(regressions, "regression")]))
    for job, change in sorted(
        changes, key=lambda pair: (pair[1]["kind"] != "regression", -abs(pair[1]["change"] or 0))
    ):
        moved = ", ".join(_moved(row) for row in rows(change, "classes"))
        told = (
            f"{text(change, 'kind')} of {text(job, 'job')} at {text(change, 'run')} ({_day(change)}): "
            f"{quantities.milliseconds(number(change, 'before_ms'))} to "
            f"{quantities.milliseconds(number(change, 'after_ms'))} a step, "
            f"{_signed_percent(number(change, 'change'))} (p {number(change, 'p'):.3f}): {moved}"
        )
        yield from page.wrap(told, indent=MARGIN * 2, first=MARGIN)


def _causes(page: Page, found: Fields) -> Iterator[str]:
    causes = [row for row in rows(found, "causes") if (number(row, "share") or 0) >= _LEAST_SHOWN]
    if not causes:
        return
    yield page.bold("device time of the fleet")
    lines = [
        [
            label(text(row, "class")),
            quantities.percent(number(row, "share")),
            quantities.duration(number(row, "device_s")),
            "most in " + ", ".join(text(job, "job") for job in rows(row, "jobs")),
        ]
        for row in causes[:_CAUSES_SHOWN]
    ]
    yield from page.aligned(lines)


def _stragglers(page: Page, found: Fields) -> Iterator[str]:
    stragglers = rows(found, "stragglers")
    if not stragglers:
        return
    yield page.bold("stragglers (own time beyond the median host's, estimated without a common clock)")
    yield from page.aligned(
        [
            [
                f"{text(row, 'host')} in {text(row, 'job')}, {text(row, 'run')}",
                f"{quantities.milliseconds(number(row, 'lost_ms_per_step'))} a step",
                quantities.percent(number(row, "share")),
            ]
            for row in stragglers
        ]
    )


def _trend(page: Page, job: Fields) -> Iterator[str]:
    runs = rows(job, "runs")
    yield page.bold(page.plain(text(job, "job")))
    left_out = len(runs) - _RUNS_SHOWN
    if left_out > 0:
        yield page.faint(f"{MARGIN}{quantities.plural(left_out, 'earlier run')}: --json has all of them")
    yield from page.aligned([["run", "day", "step", "bottleneck", "hosts"], *map(_run, runs[-_RUNS_SHOWN:])])
    if job.get("note"):
        yield from page.wrap(f"note: {text(job, 'note')}", indent=MARGIN, first=MARGIN)


def _run(run: Fields) -> list[str]:
    bottleneck = text(run, "bottleneck")
    share = number(mapping(run, "shares"), bottleneck)
    largest = f"{label(bottleneck)} {quantities.percent(share)}" if bottleneck else "no steps"
    step = quantities.milliseconds(number(run, "step_ms"))
    return [text(run, "run"), _day(run), step, largest, quantities.whole(number(run, "hosts"))]


def _failed(page: Page, found: Fields) -> Iterator[str]:
    failed = rows(found, "failed")
    if not failed:
        return
    yield page.bold(f"{quantities.plural(len(failed), 'run')} could not be analysed")
    for row in failed[:_FAILED_SHOWN]:
        place = f": {text(row, 'place')}" if text(row, "place") else ""
        told = f"{text(row, 'job')}, {text(row, 'run')}: {text(row, 'file')}{place}: {text(row, 'reason')}"
        yield from page.wrap(told, indent=MARGIN * 2, first=MARGIN)
    if len(failed) > _FAILED_SHOWN:
        yield f"{MARGIN}and {len(failed) - _FAILED_SHOWN} more: --json has all of them"


def _day(run: Fields) -> str:
    started_ns: Any = run.get("started_ns")
    return "unknown" if started_ns is None else datetime.fromtimestamp(started_ns / 1e9, UTC).date().isoformat()


def _signed_percent(share: float | None) -> str:
    if share is None:
        return ""
    return ("+" if share >= 0 else "−") + quantities.percent(abs(share))


def _moved(row: Fields) -> str:
    change = number(row, "change_ms") or 0.0
    return f"{label(text(row, 'class'))} {'+' if change > 0 else '−'}{quantities.milliseconds(abs(change))}"
