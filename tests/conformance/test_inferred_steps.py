"""A loop with its steps marked and the same loop without: windows, classes and joins of its steps are the same."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.answers import answer_of
from conformance.case_text import parse_case
from conformance.invariants import broken
from conformance.profile_tables import profile_of
from xprof_py.postprocess.analyses import breakdown
from xprof_py.postprocess.join import join_profile


@dataclass
class Step:
    """Times in us: the wait for the batch, each launch, each run; and whether the host waits at the end."""

    input_us: int
    launch_us: list[int]
    run_us: list[int]
    blocks: bool


@st.composite
def loops(draw: st.DrawFn) -> tuple[str, list[Step]]:
    pattern = draw(st.sampled_from(["a", "ab", "abc", "aab", "aaab", "aabc"]))
    blocks = draw(st.booleans())
    times = st.lists(st.integers(4, 30), min_size=len(pattern), max_size=len(pattern))
    step = st.builds(Step, st.integers(60, 90), times, times, st.just(blocks))
    return pattern, draw(st.lists(step, min_size=5, max_size=9))


def written(pattern: str, steps: list[Step], *, marked: bool) -> str:
    host, lane, now, free = [], [], 10, 0
    runs = dict.fromkeys(pattern, 0)
    for number, step in enumerate(steps):
        spans = [f"input {now}..{now + step.input_us}"]
        began, now = now, now + step.input_us
        for index, function in enumerate(pattern):
            runs[function] += 1
            end = now + step.launch_us[index]
            spans.append(f"launch {function} {now}..{end}")
            start = max(free, end + 1)
            free = start + step.run_us[index]
            lane += [f"  run {function} {1000 * ord(function) + runs[function]}", f"    dot.1 {start}..{free}"]
            now = end
        if step.blocks:
            spans.append(f"wait {now}..{max(now, free) + 1}")
            now = max(now, free) + 1
        if marked:
            host.append(f"  step {number} {began}..{now}")
        host += [f"{'    ' if marked else '  '}{span}" for span in spans]
    end = max(now, free) + 5
    return "\n".join(["title: a loop", "unit us", f"capture 0..{end}", "thread main", *host, "lane 0", *lane]) + "\n"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(loops())
def test_steps_that_nobody_marked_are_those_that_somebody_would_have(loop: tuple[str, list[Step]]) -> None:
    pattern, steps = loop
    answers = []
    for marked in (True, False):
        joined = join_profile(profile_of(parse_case(written(pattern, steps, marked=marked), "random"), "shard"))
        partial = breakdown.partial(joined)
        assert broken(joined, partial) == []
        assert joined["steps"]["source"].unique().to_pylist() == ["annotated" if marked else "inferred"]
        answers.append(answer_of(joined, partial))
    found = [[w for w in answer.windows[0][1] if w.kind == "step"] for answer in answers]
    assert len(found[1]) == len(found[0]) == len(steps)
    for number, (marked_one, inferred_one) in enumerate(zip(*found, strict=True)):
        assert inferred_one.end_ps == marked_one.end_ps
        # The first one begins where its first launch does, and so do the causes of a gap that reaches back to it.
        if number > 1:
            assert (inferred_one.start_ps, inferred_one.amounts) == (marked_one.start_ps, marked_one.amounts)
    joins = [[(run, step.number if step else None, how) for run, (step, how) in answer.runs] for answer in answers]
    assert joins[0] == joins[1]
