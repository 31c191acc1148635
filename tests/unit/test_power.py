"""Energy and throttling of steps whose answer is worked out by hand: one or two GPUs, samples every 100 ms."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from gpu_shards import GpuShard

from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import energy, throttling
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.rules.power_words import energy_difference, power_summary, throttling_advice

MS = 10**9
POWER_CAP, HW_THERMAL, HW_SLOWDOWN, IDLE = 0x4, 0x40, 0x8, 0x1
UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def table(name: str, rows: list[tuple[Any, ...]]) -> pa.Table:
    return schema.table(name, {key: [row[i] for row in rows] for i, key in enumerate(schema.TABLES[name].names)})


def sample(ms: float, *, mj: int | None = None, mw: int | None = None, mhz: int | None = 1000, why: int | None = 0,
           device: int = 0, uuid: str = UUID) -> tuple[Any, ...]:  # fmt: skip
    return (device, uuid, round(ms * MS), mw, mj, 60, 90, 2**30, 40, mhz, 2000, why)


def profile_of(
    samples: list[tuple[Any, ...]],
    windows: list[tuple[float, float]],
    kernels: list[tuple[str, float, float]] = (),
    *,
    tokens: int | None = 100,
    lanes: tuple[str, ...] = ("/device:GPU:0",),
    plane_uuid: str | None = None,
    run: dict[str, Any] | None = None,
) -> Profile:
    """Windows in ms, the same on every lane; kernels (name, start, end) in ms on lane 0, by name."""
    names = sorted({name for name, _, _ in kernels})
    spots = [(lane, step) for lane in range(len(lanes)) for step in range(len(windows))]
    return Profile("h", 0, 0, 10**15, metadata={"run": run or {}}).with_tables(
        power=table("power", samples),
        lanes=table("lanes", [(name, at) for at, name in enumerate(lanes)]),
        steps=table(
            "steps",
            [
                ("train", i, 0, None, 0, round(a * MS), round(b * MS), "steady", "", "annotated", tokens, None)
                for i, (a, b) in enumerate(windows)
            ],
        ),
        windows=table(
            "windows",
            [(lane, "step", step, *(round(ms * MS) for ms in windows[step])) for lane, step in spots],
        ),
        events=table("events", [(0, name, 0, 0, 1) for name in names]),
        ops=table(
            "ops",
            [
                (names.index(n), 0, None, None, "none", "compute", True, round(a * MS), round((b - a) * MS), 0, None)
                for n, a, b in kernels
            ],
        ),
        plane_args=table("plane_args", [] if plane_uuid is None else [("/device:GPU:0", "uuid", 4, -1, plane_uuid)]),
    )


def energies(profile: Profile) -> list[dict[str, Any]]:
    return energy.finish(energy.partial(profile)).to_pylist()


def throttled(profile: Profile) -> list[dict[str, Any]]:
    return throttling.finish(throttling.partial(profile)).to_pylist()


def summary_of(*profiles: Profile, lanes: int = 1) -> dict[str, Any]:
    used, held = energy.partial(profiles[0]), throttling.partial(profiles[0])
    for profile in profiles[1:]:
        used = energy.merge(used, energy.partial(profile))
        held = throttling.merge(held, throttling.partial(profile))
    found = power_summary(energy.finish(used), throttling.finish(held), "train", ("steady",), lanes)
    assert found is not None
    return found


def steady(watts: int, until_ms: int, every_ms: int = 100) -> list[tuple[Any, ...]]:
    """A device that draws so much all the time; its counter stood at 7 J."""
    return [sample(ms, mj=7000 + watts * ms) for ms in range(0, until_ms + 1, every_ms)]


# --- energy --------------------------------------------------------------------------------------------------------


def test_a_device_of_300_w_takes_45_j_in_150_ms() -> None:
    """Borders at 130, 280 and 430 ms, between samples; every 100 ms the counter rises by 30 J. At 130 the truth lies
    between 37 J (read at 100) and 97 J (the next rise after 200, read at 300); 46 was said: 51 off at most."""
    first, second = energies(profile_of(steady(300, 600), [(130, 280), (280, 430)]))
    assert (first["energy_uj"], first["method"]) == (45_000_000, "counter")
    assert (first["start_error_uj"], first["end_error_uj"]) == (51_000_000, max(24, 97 + 30 - 91) * 1_000_000)
    assert (second["energy_uj"], second["start_error_uj"]) == (45_000_000, first["end_error_uj"])


def test_borders_between_steps_cancel_in_the_sum() -> None:
    """Two steps of 150 ms: 45 J each. Only 130 ms and 430 ms count: (51 + 51) / 2 steps."""
    found = summary_of(profile_of(steady(300, 900), [(130, 280), (280, 430)]))
    assert (found["joules_per_step"], found["joules_per_step_error"]) == (pytest.approx(45), pytest.approx(51))
    assert (found["mean_w"], found["joules_per_token"]) == (pytest.approx(300), pytest.approx(0.45))
    assert (found["steps"], found["devices"], found["method"], found["why"]) == (2, 1, "counter", {})


@pytest.mark.parametrize("seed", range(20))
def test_the_truth_is_within_the_error(seed: int) -> None:
    """Power that changes every ms, a counter that is brought up to date now and then, samples at odd times."""
    draw = random.Random(seed)
    watts = [draw.choice((80, 80, 700, 350)) for _ in range(3000)]
    for at in range(0, 3000, draw.choice((1, 50, 400))):
        watts[at : at + 50] = [watts[at]] * len(watts[at : at + 50])
    truth_mj = [0]
    for power in watts:
        truth_mj.append(truth_mj[-1] + power)
    update = draw.choice((1, 20, 100, 130))
    times = sorted({0, 2999, *(min(2999, at + draw.randrange(30)) for at in range(0, 3000, 100))})
    samples = [sample(ms, mj=truth_mj[ms // update * update]) for ms in times]
    borders = sorted(draw.sample(range(150, 2400), 6))
    rows = energies(profile_of(samples, list(pairwise(borders))))
    for row, a, b in zip(rows, borders[:-1], borders[1:], strict=True):
        error = row["start_error_uj"] + row["end_error_uj"]
        assert abs(row["energy_uj"] - (truth_mj[b] - truth_mj[a]) * 1000) <= error
    whole = sum(row["energy_uj"] for row in rows)
    outer = rows[0]["start_error_uj"] + rows[-1]["end_error_uj"]
    assert abs(whole - (truth_mj[borders[-1]] - truth_mj[borders[0]]) * 1000) <= outer


def test_without_a_counter_power_is_integrated_and_no_error_is_stated() -> None:
    """200 W rising to 400 W in 100 ms is 30 J; half of that stretch counts as half of it."""
    samples = [sample(0, mw=200_000), sample(100, mw=400_000), sample(200, mw=400_000)]
    (row,) = energies(profile_of(samples, [(50, 150)]))
    assert (row["energy_uj"], row["method"]) == (15_000_000 + 20_000_000, "power")
    assert (row["start_error_uj"], row["end_error_uj"]) == (None, None)
    found = summary_of(profile_of(samples, [(50, 150)]))
    assert found["joules_per_step"] == pytest.approx(35)
    assert found["joules_per_step_error"] is None
    assert "no bound" in found["why"]["joules_per_step_error"]


def test_a_step_that_is_not_sampled_whole_has_no_energy() -> None:
    profile = profile_of(steady(300, 400), [(-50, 100), (100, 300), (300, 450)])
    assert [row["energy_uj"] for row in energies(profile)] == [None, 60_000_000, None]
    assert (summary_of(profile)["steps"], summary_of(profile)["joules_per_step"]) == (1, pytest.approx(60))
    nothing = summary_of(profile_of(steady(300, 400), [(500, 600)]))
    assert nothing["joules_per_step"] is None
    assert "no step of 1" in nothing["why"]["joules_per_step"]


def test_a_counter_that_begins_anew_costs_the_steps_around_it() -> None:
    """The driver was loaded again between 200 and 300 ms."""
    samples = [sample(ms, mj=ms * 300 if ms <= 200 else (ms - 250) * 300) for ms in range(0, 601, 100)]
    rows = energies(profile_of(samples, [(0, 150), (150, 250), (250, 350), (350, 450), (100, 500)]))
    assert [row["energy_uj"] for row in sorted(rows, key=lambda row: row["number"])] == [
        45_000_000,
        None,
        None,
        30_000_000,
        None,
    ]


def test_tokens_of_a_step_count_once_however_many_devices() -> None:
    """Two GPUs of 300 W and 100 W: 40 J in 100 ms for 100 tokens; by the ordinals that the run file gives them."""
    other = [sample(ms, mj=100 * ms, device=5, uuid="GPU-b") for ms in range(0, 601, 100)]
    run = {"collectors": {"power": {"devices": [
        {"index": 5, "ordinal": 0, "uuid": "GPU-b"}, {"index": 0, "ordinal": 1, "uuid": UUID}]}}}  # fmt: skip
    profile = profile_of(
        steady(300, 600) + other, [(100, 200), (200, 300)], lanes=("/device:GPU:0", "/device:GPU:1"), run=run
    )
    assert [(row["lane"], row["device"], row["energy_uj"]) for row in energies(profile)[::2]] == [
        (0, 5, 10_000_000),
        (1, 0, 30_000_000),
    ]
    found = summary_of(profile, lanes=2)
    assert (found["joules_per_step"], found["joules_per_token"]) == (pytest.approx(40), pytest.approx(0.4))
    partly = summary_of(profile, lanes=3)
    assert (partly["joules_per_token"], partly["why"]["joules_per_token"]) == (None, "2 of 3 devices were sampled")
    silent = summary_of(profile_of(steady(300, 600), [(100, 200)], tokens=None))
    assert "do not say their tokens" in silent["why"]["joules_per_token"]


def test_a_lane_and_a_device_of_one_uuid_are_one() -> None:
    """NVML's device 3 is CUDA's 0: the UUID says so, and a UUID that is not there leaves it unknown."""
    samples = [(3, *row[1:]) for row in steady(300, 600)] + [
        sample(ms, mj=0, device=1, uuid="GPU-x") for ms in range(0, 601, 100)
    ]
    (row,) = energies(profile_of(samples, [(100, 200)], plane_uuid="000102030405060708090a0b0c0d0e0f"))
    assert (row["device"], row["uuid"], row["energy_uj"]) == (3, UUID, 30_000_000)
    assert energies(profile_of(samples, [(100, 200)], plane_uuid="ff" * 16)) == []
    assert energies(profile_of(samples, [(100, 200)])) == []  # two devices: which one is not known
    assert energies(profile_of(steady(300, 600), [(100, 200)], lanes=("cpu:0",))) == []


@pytest.mark.parametrize(
    ("sampled", "seen_as"),
    [
        ([(0, UUID)], None),
        ([(0, "MIG-9d2c")], "0 (MIG-9d2c)"),
        ([(1, ""), (0, "GPU-ff")], "0 (GPU-ff), 1 (no UUID)"),
    ],
)
def test_a_lane_that_is_none_of_the_sampled_devices_is_said(
    tmp_path: Path, sampled: list[tuple[int, str]], seen_as: str | None
) -> None:
    """CUPTI's device 0 has the UUID 00010203-...: NVML samples that one, an instance of MIG, two others."""
    shard = GpuShard(1_000_000)
    shard.device()
    shard.span(900, "train", 0, 500_000, number=0)
    shard.launch("gemm", (1000, 2000), (3000, 400_000))
    samples = [sample(ms, mj=7, device=device, uuid=uuid) for device, uuid in sampled for ms in (0, 100)]
    joined = join_profile(shard.read(tmp_path).with_tables(power=table("power", samples)))
    said = [row for row in joined["diagnostics"].to_pylist() if row["code"] == "lane_without_power"]
    assert len(energies(joined)) == (seen_as is None)
    assert [row["count"] for row in said] == [1] * (seen_as is not None)
    for row in said:
        assert (
            f"no energy and no clocks are known of /device:GPU:0 ({UUID}): NVML sampled {seen_as}, " in row["message"]
        )


def test_two_processes_on_one_device_do_not_add_it_twice() -> None:
    one = profile_of(steady(300, 600), [(100, 200)])
    found = summary_of(one, replace(one, host="b"), lanes=2)
    assert found["joules_per_step"] is None
    assert UUID in found["why"]["joules_per_step"]


def run_at(watts: int, name: str = "train") -> dict[str, Any]:
    """A summary of 100 steps of 200 ms, that lie together within the samples."""
    windows = [(1000 + 200 * at, 1200 + 200 * at) for at in range(100)]
    return {"power": {**summary_of(profile_of(steady(watts, 22_000), windows)), "name": name}}


@pytest.mark.parametrize(("watts", "beyond"), [(270, True), (299, False)])
def test_a_difference_of_energy_counts_beyond_both_errors(watts: int, beyond: bool) -> None:
    """200 ms at 300 W are 60 J. The first border, at a sample, can be off by two rises of 30 J, and so can the last:
    60 + 60 over 100 steps are 1.2 J, and less where less is drawn."""
    found = energy_difference(run_at(300), run_at(watts), "train")
    assert found is not None
    assert (found["a_j"], found["b_j"]) == (pytest.approx(60), pytest.approx(watts / 5))
    assert (found["difference_j"], found["relative"]) == (pytest.approx(watts / 5 - 60), pytest.approx(watts / 300 - 1))
    assert (found["a_error_j"], found["b_error_j"]) == (pytest.approx(1.2), pytest.approx(watts / 250))
    assert (found["beyond_error"], found["why"]) == (beyond, None)


def test_energies_that_cannot_be_compared_say_why() -> None:
    one, none = run_at(300), {"power": None}
    assert energy_difference(none, none, "train") is None
    for a, b, name, why in (
        (one, none, "train", "B: no device was sampled"),
        (run_at(300, "eval"), one, "train", "A: it is known of the steps 'eval' alone"),
        (one, {"power": {**one["power"], "devices": 4}}, "train", "1 devices were sampled in A, 4 in B"),
        (one, {"power": {**one["power"], "joules_per_step": None, "why": {"joules_per_step": "it rained"}}}, "train",
         "B: it rained"),
    ):  # fmt: skip
        found = energy_difference(a, b, name)
        assert found is not None
        assert (found["why"], found["difference_j"], found["beyond_error"]) == (why, None, None)


# --- throttling ----------------------------------------------------------------------------------------------------


def planted(
    slow_mhz: int = 500, why: int = POWER_CAP, slow_ms: int = 80, window_ends: tuple[float, ...] = (400, 800)
) -> Profile:
    """Samples every 100 ms at 50, 150, ... ms: 1000 MHz, from 400 to 600 ms `slow_mhz`. A kernel every 100 ms: 40 ms,
    in the slow time of `slow_ms`."""
    slow = (450, 550)
    samples = [
        sample(ms, mj=ms, mhz=slow_mhz if ms in slow else 1000, why=why if ms in slow else 0)
        for ms in range(50, 800, 100)
    ]
    kernels = [("gemm", ms, ms + (slow_ms if ms in (400, 500) else 40)) for ms in range(0, 800, 100)]
    return profile_of(samples, list(zip((0, *window_ends), window_ends, strict=False)), kernels)


def test_half_the_clock_costs_half_of_the_slow_kernels() -> None:
    """Two kernels of 80 ms at 500 of 1000 MHz: 2 x 80 x (1 - 0.5) = 80 ms of the second step, which takes 400."""
    first, second = throttled(planted())
    assert (first["lost_ps"], first["throttled_ps"], first["reference_mhz"]) == (0, 0, 1000)
    assert (second["lost_ps"], second["throttled_ps"]) == (80 * MS, 160 * MS)
    assert (second["power_lost_ps"], second["thermal_lost_ps"], second["hardware_lost_ps"]) == (80 * MS, 0, 0)
    assert (second["kernel_ps"], second["limited_ps"], second["unjudged_ps"]) == (240 * MS, 160 * MS, 0)
    found = summary_of(planted())
    assert (found["throttling"]["lost_ms_per_step"], found["throttling"]["lost_share"]) == (40, pytest.approx(0.1))
    assert found["throttling"]["by_reason"] == {"thermal": 0, "power": pytest.approx(0.1), "hardware": 0}
    assert "below 1000 MHz, which cost 10.0% of the step" in throttling_advice(found)
    assert "nvidia-smi -pl" in throttling_advice(found)


def test_windows_divide_the_loss_exactly() -> None:
    """A border at 450 ms cuts the first slow kernel (400 to 480): 25 ms of loss before it, 15 + 40 after."""
    rows = throttled(planted(window_ends=(450, 800)))
    assert [row["lost_ps"] for row in rows] == [25 * MS, 55 * MS]


@pytest.mark.parametrize(
    ("mhz", "lost_ms"),
    [(949, 2 * 80 * 51 / 1000), (950, 0), (1000, 0)],
)
def test_a_clock_of_95_percent_is_not_throttled(mhz: int, lost_ms: float) -> None:
    assert throttled(planted(slow_mhz=mhz))[1]["lost_ps"] == round(lost_ms * MS)


@pytest.mark.parametrize(
    ("why", "group"),
    [
        (0x20, "thermal"),
        (HW_THERMAL, "thermal"),
        (HW_THERMAL | HW_SLOWDOWN | POWER_CAP, "thermal"),
        (0x80 | HW_SLOWDOWN, "power"),
        (HW_SLOWDOWN, "hardware"),
    ],
)
def test_the_reason_is_what_nvml_says(why: int, group: str) -> None:
    row = throttled(planted(why=why))[1]
    assert {name: row[f"{name}_lost_ps"] for name in throttling.LIMITS if row[f"{name}_lost_ps"]} == {group: 80 * MS}


@pytest.mark.parametrize("why", [0, IDLE, 0x2, 0x10, 0x100])
def test_a_low_clock_for_another_reason_is_no_throttling(why: int) -> None:
    """Idle, application clocks, sync boost, display: what the user or the load chose."""
    assert throttled(planted(why=why))[1]["lost_ps"] == 0


def test_a_kernel_that_is_not_slower_than_usual_lost_nothing() -> None:
    assert throttled(planted(slow_ms=40))[1]["lost_ps"] == 0
    assert throttled(planted(slow_ms=41))[1]["lost_ps"] == 2 * 41 * MS // 2


def test_a_kernel_that_never_ran_at_full_clock_is_not_judged() -> None:
    profile = planted()
    kernels = profile["ops"].to_pylist()
    kernels[4]["event"] = kernels[5]["event"] = 1
    profile = profile.with_tables(
        ops=pa.Table.from_pylist(kernels, schema=schema.TABLES["ops"]),
        events=table("events", [(0, "gemm", 0, 0, 1), (0, "other", 0, 0, 1)]),
    )
    row = throttled(profile)[1]
    assert (row["lost_ps"], row["unjudged_ps"]) == (0, 160 * MS)


def test_without_three_samples_at_full_clock_nothing_is_known() -> None:
    """All eight samples are limited: what the clock would be is not known. Two that are not do not make a reference."""
    for free, known in ((0, False), (2, False), (3, True)):
        rows = planted()["power"].to_pylist()
        for at, row in enumerate(rows):
            row["clock_reasons"] = 0 if at < free else POWER_CAP
        power = pa.Table.from_pylist(rows, schema=schema.TABLES["power"])
        profile = planted().with_tables(power=power)
        assert [row["lost_ps"] is not None for row in throttled(profile)] == [known] * 2
        found = summary_of(profile)["throttling"]
        assert (found["lost_share"] is not None, found["why"] is None) == (known, known)
        assert found["limited_share"] is not None


def test_kernels_side_by_side_lose_their_time_once() -> None:
    profile = planted()
    both = pa.concat_tables([profile["ops"], profile["ops"]]).sort_by("start_ps").combine_chunks()
    assert throttled(profile.with_tables(ops=both))[1]["lost_ps"] == 80 * MS


def test_where_nobody_looked_nothing_is_throttled() -> None:
    """Without the samples at 450 and 550 ms: those at 350 and 650 stand for 100 ms around them, at full clock."""
    rows = [row for row in planted()["power"].to_pylist() if row["time_ps"] not in (450 * MS, 550 * MS)]
    profile = planted().with_tables(power=pa.Table.from_pylist(rows, schema=schema.TABLES["power"]))
    assert [(row["lost_ps"], row["limited_ps"]) for row in throttled(profile)] == [(0, 0), (0, 0)]


def test_the_order_of_processes_changes_nothing() -> None:
    a, b = planted(), replace(planted(slow_mhz=700), host="a")
    for question in (energy, throttling):
        one = question.finish(question.merge(question.partial(a), question.partial(b)))
        assert one.equals(question.finish(question.merge(question.partial(b), question.partial(a))))


def test_a_device_that_tells_neither_clock_nor_reasons_has_no_loss() -> None:
    rows = [{**row, "sm_clock_mhz": None} for row in planted()["power"].to_pylist()]
    profile = planted().with_tables(power=pa.Table.from_pylist(rows, schema=schema.TABLES["power"]))
    assert [row["lost_ps"] for row in throttled(profile)] == [None, None]
