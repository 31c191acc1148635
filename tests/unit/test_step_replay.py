"""Replays of small hand-made steps: with nothing removed as measured, without a class as worked out here."""

from __future__ import annotations

from dataclasses import replace

from conformance.case_text import parse_case
from conformance.profile_tables import profile_of
from xprof_py.postprocess.analyses import breakdown
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.replay import step_replay

MS = 10**9


def replayed(text: str) -> dict[str, list[float]]:
    """removed -> the steps' windows in ms."""
    joined = join_profile(profile_of(parse_case(text, "replay.case"), "shard"))
    out: dict[str, list[float]] = {}
    for row in step_replay.partial(joined).to_pylist():
        out.setdefault(row["removed"], []).append(row["step_ps"] / MS)
        if row["removed"] == "nothing":
            assert row["step_ps"] == row["measured_ps"]
    return out


BLOCKING = """title: The host waits for a batch, launches, and waits for the device
unit ms
capture 0..60
thread main
  step 0 0..20
    input 0..10
    launch f 10..12
    wait 12..20
  step 1 20..40
    input 20..30
    launch f 30..32
    wait 32..40
  step 2 40..60
    input 40..50
    launch f 50..52
    wait 52..60
lane 0
  run f 1
    dot.1 12..20
  run f 2
    dot.1 32..40
  run f 3
    dot.1 52..60
"""


def test_a_blocking_loop_loses_what_is_taken_away() -> None:
    windows = replayed(BLOCKING)
    assert windows["nothing"] == [20, 20, 20]
    assert windows["input"] == [10, 10, 10]  # launch 2, device 8
    assert windows["compute"] == [12, 12, 12]  # input 10, launch 2
    assert windows["host"] == [18, 18, 18]


RUN_AHEAD = """title: The host runs ahead of a device that is never idle
unit ms
capture 0..50
thread main
  step 0 0..4
    input 0..2
    launch f 2..4
  step 1 4..8
    input 4..6
    launch f 6..8
  step 2 8..12
    input 8..10
    launch f 10..12
lane 0
  run f 1
    dot.1 4..18
  run f 2
    dot.1 18..32
  run f 3
    dot.1 32..46
"""


def test_what_the_device_hides_saves_only_what_it_shows() -> None:
    windows = replayed(RUN_AHEAD)
    assert windows["nothing"] == [18, 14, 14]
    assert windows["input"] == [16, 14, 14]  # only the first batch was waited for
    # Without compute the host is what is left: input 2, launch 2 a step.
    assert windows["compute"] == [4, 4, 4]


COPY = """title: A copy that the launch waits for
unit ms
capture 0..40
thread main
  step 0 0..20
    put 0..1
    wait 1..10
    launch f 10..12
    wait 12..20
  step 1 20..40
    put 20..21
    wait 21..30
    launch f 30..32
    wait 32..40
lane 0
  copy 1..10
  run f 1
    dot.1 12..20
  copy 21..30
  run f 2
    dot.1 32..40
"""


def test_without_a_copy_its_wait_is_gone() -> None:
    windows = replayed(COPY)
    assert windows["nothing"] == [20, 20]
    assert windows["host_device"] == [11, 11]  # put 1, launch 2, device 8


WAITING_DEVICE = """title: The device starts late and stops in between
unit ms
capture 0..20
thread main
  step 0 0..20
    launch f 0..2
    wait 2..20
lane 0
  run f 1
    dot.1 5..10
    dot.2 14..20
"""


def test_device_wait_is_the_late_start_and_the_gap_inside() -> None:
    windows = replayed(WAITING_DEVICE)
    assert windows["nothing"] == [20]
    assert windows["device_wait"] == [13]  # 20 less 3 before the run and 4 inside it


IDLE_LANE = """title: Device 1 works in step 1 alone
unit ms
capture 0..50
thread main
  step 0 0..10
    launch f 0..1 id 1
    wait 1..10
  step 1 10..25
    launch f 10..11 id 2
    launch g 11..12 id 1
    wait 12..25
  step 2 25..35
    launch f 25..26 id 3
    wait 26..35
  step 3 35..45
    launch f 35..36 id 4
    wait 36..45
lane 0
  run f 1
    dot.1 1..10
  run f 2
    dot.1 11..20
  run f 3
    dot.1 26..35
  run f 4
    dot.1 36..45
lane 1
  run g 1
    add.1 12..25
"""


TWO_DEVICES = """title: The host waits for two devices, and nothing notes that it does
unit ms
capture 0..60
thread main
  step 0 0..30
    launch f 0..2 id 1
    span rest 2..30
  step 1 30..60
    launch f 30..32 id 2
    span rest 32..60
lane 0
  run f 1
    all-reduce.1 2..22
    dot.1 22..30
  run f 2
    all-reduce.1 32..52
    dot.1 52..60
lane 1
  run f 1
    dot.1 2..14
    all-reduce.1 14..22
    dot.2 22..28
  run f 2
    dot.1 32..44
    all-reduce.1 44..52
    dot.2 52..58
"""


ASLEEP = """title: The host sleeps for longer than its two devices work
unit ms
capture 0..60
thread main
  step 0 0..30
    launch f 0..2 id 1
    span rest 2..30
  step 1 30..60
    launch f 30..32 id 2
    span rest 32..60
lane 0
  run f 1
    all-reduce.1 2..12
    dot.1 12..20
  run f 2
    all-reduce.1 32..42
    dot.1 42..50
lane 1
  run f 1
    dot.1 2..8
    all-reduce.1 8..12
    dot.2 12..18
  run f 2
    dot.1 32..38
    all-reduce.1 38..42
    dot.2 42..48
"""


def test_a_wait_for_several_devices_needs_no_note() -> None:
    windows = replayed(TWO_DEVICES)
    assert windows["nothing"] == [30, 30]
    # Lane 0 is the last to end with the collective, lane 1 (12 + 6 of its own) without it: the wait is for both.
    assert windows["collective"] == [20, 20]
    assert windows["unknown"] == [30, 30]


def test_a_silence_that_outlasts_the_devices_is_no_wait() -> None:
    """30 ms of nothing known of which the devices worked 18: the host did, or slept for, something else."""
    windows = replayed(ASLEEP)
    assert windows["nothing"] == [20, 30]
    # Lane 1 is the last with its 12 ms of dots; the next launch comes when the host gets to it.
    assert windows["collective"] == [14, 30]
    # Launched at 4, lane 0 is busy until 20.
    assert windows["unknown"] == [20, 18]


def test_a_step_lasts_as_long_as_its_latest_lane_not_the_mean_of_lanes() -> None:
    assert replayed(IDLE_LANE)["nothing"] == [10, 15, 10, 10]
    table = breakdown.finish(breakdown.partial(join_profile(profile_of(parse_case(IDLE_LANE, "a.case"), "shard"))))
    assert breakdown.step_times_ps(table, ("steady",)) == [10 * MS, 15 * MS, 10 * MS, 10 * MS]


def test_a_host_without_the_class_counts_as_it_is() -> None:
    tables = []
    for host, text in (("a", BLOCKING), ("b", BLOCKING.replace("input", "span work"))):
        joined = join_profile(profile_of(parse_case(text, "replay.case"), "shard"))
        tables.append(step_replay.partial(replace(joined, host=host)))
    finished = {row["removed"]: row for row in step_replay.finish(step_replay.merge(*tables), ("steady",)).to_pylist()}
    assert finished["nothing"]["replayed_ps"] == 20 * MS
    assert finished["input"]["steps"] == 6
    assert finished["input"]["replayed_ps"] == 15 * MS  # 10 on host a, 20 on host b
