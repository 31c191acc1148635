"""What a reader must know of a run beside its verdict, a sentence each: who was late, how much it got done, the energy
that took, how far its host was ahead, whose steps these are, what recording cost them. The terminal and the report say
the same."""

from __future__ import annotations

from xprof_py.viewers import quantities
from xprof_py.viewers.class_words import label
from xprof_py.viewers.fields import Fields, mapping, number, text

_SHOWN_RATIO = 0.005


def run_words(summary: Fields) -> list[str]:
    """The sentences, those that the summary gives reason for."""
    words = (_straggler, _throughput, _power, _throttling, _run_ahead, _inferred, _observer)
    return [line for line in (of(summary) for of in words) if line]


def _straggler(summary: Fields) -> str:
    found = mapping(summary, "straggler")
    host, of_steps = text(found, "host"), number(found, "of_steps")
    if not host or not of_steps:
        return ""
    often = f"{quantities.whole(number(found, 'steps'))} of {quantities.whole(of_steps)} steps"
    lost = quantities.milliseconds(number(found, "lost_ms_per_step"))
    line = f"{host} kept the others waiting most in {often}, {lost} a step"
    reason, source = text(found, "reason"), text(found, "source").rsplit("/", 1)[-1]
    # A sampled place says its line itself.
    place = "" if not source or source.split(" ")[0] in reason else f" at {source}"
    return f"{line}: {label(text(found, 'cause'))}{f', `{reason}`{place}' if reason else ''}."


def _inferred(summary: Fields) -> str:
    if "inferred" not in text(mapping(summary, "steps"), "source"):
        return ""
    return (
        "Steps are inferred: none are annotated, each repetition in the order of launches is taken for one. "
        "Put `with step(i):` around the body of the loop to say what a step is."
    )


def _throughput(summary: Fields) -> str:
    found = mapping(summary, "throughput")
    parts = []
    tokens_per_s = number(found, "tokens_per_s")
    if tokens_per_s is not None:
        parts.append(f"{quantities.whole(tokens_per_s)} tokens a second")
    for key, meaning in (("mfu", "MFU"), ("hfu", "HFU, flops of the HLO")):
        value = number(found, key)
        # Where the model's flops are known, what the hardware did beside them is for the tables.
        if value is not None and not (key == "hfu" and number(found, "mfu") is not None):
            parts.append(f"{quantities.percent(value)} {meaning}")
    return " · ".join(parts)


def _power(summary: Fields) -> str:
    found = mapping(summary, "power")
    joules, devices = number(found, "joules_per_step"), number(found, "devices")
    if joules is None or devices is None:
        return ""
    error, per_token, watts = (number(found, name) for name in ("joules_per_step_error", "joules_per_token", "mean_w"))
    line = f"{joules:,.4g} J a step"
    line += "" if error is None else f" (± {error:,.2g})"
    line += "" if per_token is None else f" · {per_token:,.3g} J a token"
    count = f"{quantities.whole(devices)} GPU{'' if devices == 1 else 's'}"
    return line + ("" if watts is None else f" · {watts:,.0f} W on average, {count}")


def _throttling(summary: Fields) -> str:
    found = mapping(mapping(summary, "power"), "throttling")
    lost, share = number(found, "lost_ms_per_step"), number(found, "lost_share")
    if not lost or share is None or share < _SHOWN_RATIO:
        return ""
    reasons = mapping(found, "by_reason")
    parts = [(number(reasons, name) or 0.0, name) for name in sorted(reasons)]
    why = " and ".join(name for part, name in sorted(parts, reverse=True) if part >= _SHOWN_RATIO)
    cost = f"{quantities.milliseconds(lost)} a step ({quantities.percent(share)})"
    return f"Clocks that were held down{f' ({why})' if why else ''} cost {cost}."


def _run_ahead(summary: Fields) -> str:
    found = mapping(summary, "run_ahead")
    ahead, steps = number(found, "median_steps"), number(found, "steps")
    if ahead is None or steps is None:
        return ""
    words = "was not a step" if ahead == 0 else f"was {ahead:g} step{'' if ahead == 1 else 's'}"
    waited = number(found, "median_ms")
    much = "" if not waited else f", its launches {quantities.milliseconds(waited)}"
    line = f"The host {words} ahead of the device{much} (median)"
    blocked = number(found, "steps_that_blocked")
    if blocked:
        cost = quantities.milliseconds(number(found, "blocked_ms"))
        of = f"{quantities.whole(blocked)} of {quantities.whole(steps)} steps"
        line += f"; it waited for the device in {of}, {cost} a step"
    return f"{line}."


def _observer(summary: Fields) -> str:
    found = mapping(summary, "observer")
    inside, ratio = number(found, "step_ms_inside"), number(found, "ratio")
    if inside is None or ratio is None:
        return ""
    outside = []
    for stage in ("before", "after"):
        value = number(found, f"step_ms_{stage}")
        if value is not None:
            outside.append(f"{quantities.milliseconds(value)} {stage}")
    change = "" if abs(ratio - 1) < _SHOWN_RATIO else f" ({ratio:.2f} times)"
    sure = "" if found.get("slower") or not change else ", which may be chance"
    return f"A step took {quantities.milliseconds(inside)} while recorded, {' and '.join(outside)}{change}{sure}."
