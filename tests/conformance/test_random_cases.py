"""The invariants on random cases, and the one answer that a random case knows: which step launched which run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.answers import answer_of, differences
from conformance.case_text import StackSample, parse_case
from conformance.invariants import broken, communication_differences
from conformance.profile_tables import profile_of
from conformance.random_cases import case_texts
from conformance.slow_reference import windows_of
from conformance.trace_events import build_lines
from conformance.xspace_bytes import xspace_of
from xprof_py.postprocess.analyses import breakdown
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.readers.xspace import read_xspace
from xprof_py.postprocess.schema import BUSY_CLASSES

CAREFUL = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@CAREFUL
@given(case_texts() | case_texts(lanes=2))
def test_a_whole_capture_keeps_the_invariants_and_joins_every_run(text: str) -> None:
    case = parse_case(text, "random")
    for spans_in in ("shard", "xspace"):
        joined = join_profile(profile_of(case, spans_in))
        partial = breakdown.partial(joined)
        assert broken(joined, partial) == []
        assert communication_differences(joined) == []
        assert differences(case, answer_of(joined, partial)) == []


@CAREFUL
@given(case_texts(cut=True) | case_texts(cut=True, lanes=2))
def test_a_capture_cut_in_the_middle_keeps_the_invariants(text: str) -> None:
    joined = join_profile(profile_of(parse_case(text, "random"), "shard"))
    assert broken(joined, breakdown.partial(joined)) == []
    assert communication_differences(joined) == []


@CAREFUL
@given(case_texts(copies=False) | case_texts(lanes=2))
def test_a_slow_reading_of_the_rules_agrees_to_the_picosecond(text: str) -> None:
    case = parse_case(text, "random")
    joined = join_profile(profile_of(case, "shard"))
    for lane, (_, windows) in zip(case.lanes, answer_of(joined, breakdown.partial(joined)).windows, strict=True):
        found = {(window.kind, window.step): window for window in windows}
        for expected in windows_of(case, lane):
            window = found[expected.kind, expected.step]
            assert window.end_ps - window.start_ps == expected.end_ps - expected.start_ps
            if expected.start_ps == expected.end_ps:
                continue
            assert (window.start_ps, window.end_ps) == (expected.start_ps, expected.end_ps)
            assert {name: amounts[0] for name, amounts in window.amounts if amounts[0]} == expected.exclusive_ps
            busy = {name: amounts for name, amounts in window.amounts if name in BUSY_CLASSES}
            assert {name: amounts[1] for name, amounts in busy.items()} == expected.total_ps
            if expected.kind == "step":
                assert {name: amounts[2] for name, amounts in busy.items() if amounts[2]} == expected.foreign_ps
            # whose wait for the device it was says nothing, so no step is stated for it
            causes = {share: length_ps for share, length_ps in window.causes if share[0] != "device_wait"}
            assert causes == {share: ps for share, ps in expected.causes_ps.items() if share[0] != "device_wait"}


SAMPLES = st.lists(st.tuples(st.integers(0, 400), st.booleans(), st.sampled_from(["load_batch", "f", "save_state"])))


@CAREFUL
@given(case_texts() | case_texts(lanes=2) | case_texts(cut=True), SAMPLES)
def test_sampled_stacks_keep_every_picosecond(text: str, samples: list[tuple[int, bool, str]]) -> None:
    """They say what unexplained time was, and nothing about leaves, windows and joins."""
    case = parse_case(text, "random")
    plain = join_profile(profile_of(case, "shard"))
    for thread in case.threads:
        thread.samples += [
            StackSample(time_us * 1_000_000, on, ((f"{function}.py", 1, function),))
            for time_us, on, function in samples
            if time_us * 1_000_000 <= case.end_ps
        ]
    sampled = join_profile(profile_of(case, "shard"))
    assert broken(sampled, breakdown.partial(sampled)) == []
    for table in ("runs", "windows", "ops"):
        assert sampled[table].equals(plain[table])


@settings(CAREFUL, max_examples=30)
@given(case_texts() | case_texts(lanes=2), st.lists(st.integers(0, 99), min_size=7, max_size=7))
def test_the_order_of_events_in_a_file_does_not_matter(text: str, order: list[int]) -> None:
    case = parse_case(text, "random")
    answers = []
    with TemporaryDirectory() as folder:
        for permuted in (None, order):
            path = Path(folder) / "rank0.xplane.pb"
            path.write_bytes(xspace_of(case, permuted))
            joined = join_profile(read_xspace(path))
            answers.append(answer_of(joined, breakdown.partial(joined)))
    assert answers[0] == answers[1]


@CAREFUL
@given(case_texts(), st.randoms(use_true_random=False))
def test_the_order_of_lines_does_not_matter(text: str, random: Random) -> None:
    case = parse_case(text, "random")
    order = list(range(len(build_lines(case, "shard"))))
    random.shuffle(order)
    answers = []
    for rows in (None, order):
        joined = join_profile(profile_of(case, "shard", rows))
        answers.append(answer_of(joined, breakdown.partial(joined)))
    assert answers[0] == answers[1]


@CAREFUL
@given(case_texts())
def test_shard_and_annotations_give_one_answer(text: str) -> None:
    """Where the spans were written, beside XLA's trace or into it, is no difference to the program."""
    case = parse_case(text, "random")
    answers = []
    for spans_in in ("shard", "xspace"):
        joined = join_profile(profile_of(case, spans_in))
        answers.append(answer_of(joined, breakdown.partial(joined)))
    assert answers[0] == answers[1]


@CAREFUL
@given(case_texts())
def test_the_unit_of_time_does_not_matter(text: str) -> None:
    """A program a thousand times slower has the same windows and joins, and classes of leaves scaled exactly."""
    case = parse_case(text, "random")
    slow = parse_case(text.replace("unit us", "unit ms"), "random")
    fast_answer, slow_answer = (
        answer_of(joined, breakdown.partial(joined))
        for joined in (join_profile(replace(profile_of(one, "shard"), host="h")) for one in (case, slow))
    )
    assert fast_answer.runs == slow_answer.runs
    assert fast_answer.phases == slow_answer.phases
    for (_, fast), (_, slower) in zip(fast_answer.windows, slow_answer.windows, strict=True):
        scaled = [(w.kind, w.step, w.start_ps * 1000, w.end_ps * 1000) for w in fast]
        assert scaled == [(w.kind, w.step, w.start_ps, w.end_ps) for w in slower]
