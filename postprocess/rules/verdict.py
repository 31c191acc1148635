"""The verdict: the class or cause whose removal saves most, found by replaying the steps without it.

Never by subtraction. Where the replay of the unchanged steps misses the measured ones by more than REPLAY_TOLERANCE its
predictions are not believed: then the largest share is named, and no step time without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xprof_py.postprocess.rules.wording import duration

REPLAY_TOLERANCE = 0.02
"""Part of the measured step time; what a replay with nothing removed must keep to be believed."""

SENTENCE = {
    "compute": "the device computes",
    "memory": "the device is bound by memory bandwidth",
    "collective": "the devices exchange data",
    "host_device": "data is copied between host and device",
    "compiler": "the program is traced and compiled",
    "input": "the device waits for the next batch",
    "checkpoint": "the device waits for a checkpoint",
    "host": "the device waits for the host to dispatch work",
    "device_wait": "launched work waits for the device itself, another stream or a peer",
    "no_work": "there is no work to do",
    "unknown": "the device waits, and nothing recorded says why,",
}

ADVICE = {
    "compute": "Start with the op at the top of the list: its source line is where a smaller dtype, a better shape or "
    "a fused kernel pays.",
    "memory": "Fuse the ops at the top of the list or keep their data in a smaller dtype: they move more bytes than "
    "they compute on.",
    "collective": "Overlap the collectives with compute, or send less: larger batches per exchange, a smaller dtype.",
    "host_device": "Copy the next batch while this one computes (device_put ahead of use), or keep the data on the "
    "device.",
    "compiler": "Make the shapes and static arguments of the named function the same in every step: pad or bucket "
    "them.",
    "input": "Prepare batches ahead of the loop, in a worker thread or process, or make the named loader cheaper.",
    "checkpoint": "Save in the background: copy to the host, then write in another thread.",
    "host": "Make the named function cheaper or move it out of the loop; where it is dispatch, launch less often: put "
    "more of the step into one jitted function.",
    "device_wait": "Look at what the device waits for between the named ops: short ops, dependences, busy cores.",
    "no_work": "Nothing to do: the program had no work for the device.",
    "unknown": "Put wrap_input around the data loader, `with checkpoint():` around saving and `with trace(...)` around "
    "the rest of the loop body, and record again: then this time has a name.",
}


WORK_ITSELF = frozenset({"compute", "memory"})
"""Nobody can do without these: no step time without them is promised (`predictions` in the summary has the figures)."""
THE_DEVICES_OWN = WORK_ITSELF | {"device_wait"}
"""What the device does by itself, waits between its own ops included: it is the verdict only where nothing that keeps
the device from it saves WORTH_NAMING."""
WORTH_NAMING = 0.1
"""Part of the step time that taking a class away must save to be named before the computing: below a tenth the device's
own work is what there is to work on."""


@dataclass(frozen=True)
class Prediction:
    """Mean step time as measured, as replayed unchanged, and as replayed without each class. Picoseconds."""

    steps: int
    measured_ps: int
    unchanged_ps: int
    without_ps: Mapping[str, int] = field(default_factory=dict)
    of_job_ps: Mapping[str, int] = field(default_factory=dict)
    """As replayed without what is no class: waiting, straggler (replay/job_replay.py)."""

    def believed(self) -> bool:
        """Whether the unchanged replay keeps REPLAY_TOLERANCE."""
        return abs(self.unchanged_ps - self.measured_ps) <= REPLAY_TOLERANCE * max(self.measured_ps, 1)


def prediction(finished: Any) -> Prediction | None:
    """From the finished table of replay.step_replay; None where there was nothing to replay."""
    rows = {row["removed"]: row for row in finished.to_pylist()}
    if "nothing" not in rows:
        return None
    unchanged = rows.pop("nothing")
    return Prediction(
        unchanged["steps"],
        unchanged["measured_ps"],
        unchanged["replayed_ps"],
        {name: row["replayed_ps"] for name, row in rows.items() if name in SENTENCE},
        {name: row["replayed_ps"] for name, row in rows.items() if name not in SENTENCE},
    )


def choose(shares: Mapping[str, Mapping[str, float]], predicted: Prediction | None) -> tuple[str, int | None, str]:
    """(bottleneck, mean step ps without it or None, why there is none).

    The class whose removal saves most; ties go to the larger share. The device's own time is named where no
    other class saves WORTH_NAMING. Without a prediction to be believed, the largest share.
    """
    present = [name for name in shares if shares[name]["share"] > 0]
    if predicted is None or not predicted.believed():
        largest = max(present, key=lambda name: shares[name]["share"])
        missed = 0.0 if predicted is None else predicted.unchanged_ps / max(predicted.measured_ps, 1) - 1
        why = (
            "no steps to replay"
            if predicted is None
            else f"the unchanged replay misses the measured step by {missed:+.1%}"
        )
        return largest, None, why
    without = {name: ps for name, ps in predicted.without_ps.items() if name in present}

    def order(name: str) -> tuple[int, float]:
        return without[name], -shares[name]["share"]

    best = min(without, key=order)
    if best in THE_DEVICES_OWN:
        limit = (1 - WORTH_NAMING) * predicted.measured_ps
        others = [name for name in without if name not in THE_DEVICES_OWN and without[name] <= limit]
        best = min(others, key=order) if others else best
    if best in WORK_ITSELF:
        return best, None, "this is the work itself: how much of it could go is not known"
    return best, without[best], ""


def verdict(
    shares: Mapping[str, Mapping[str, float]],
    predicted: Prediction | None,
    evidence: Mapping[str, list[dict[str, Any]]],
    *,
    has_device: bool = True,
    advice: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """summary.json's `verdict`.

    ``evidence``: rows per class, the strongest first. ``has_device``: whether any lane is a device's; the steps of a
    program without one wait themselves. ``advice``: what goes before ADVICE, by class.
    """
    name, without_ps, why = choose(shares, predicted)
    share = shares[name]["share"]
    step_ms = predicted.measured_ps / 1e9 if predicted is not None else None
    words = SENTENCE[name] if has_device else SENTENCE[name].replace("the device waits", "the program waits")
    sentence = f"{_capital(words)} for {share:.0%} of the step time"
    if step_ms is not None:
        step_s = step_ms / 1000
        sentence += f" ({duration(share * step_s)} of {duration(step_s)} a step)"
    if without_ps and step_ms:
        sentence += f"; without it a step would take {duration(without_ps / 1e12)}"
    return {
        "bottleneck": name,
        "sentence": sentence + ".",
        "share": share,
        "step_ms": step_ms,
        "step_ms_without": None if without_ps is None else without_ps / 1e9,
        "step_ms_without_why": why,
        "replay_error": None if predicted is None else predicted.unchanged_ps / max(predicted.measured_ps, 1) - 1,
        "evidence": evidence.get(name, []),
        "advice": {**ADVICE, **(advice or {})}[name],
    }


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
