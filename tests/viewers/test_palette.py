"""The eleven colours can be told apart, in both themes and with each kind of colour blindness.

Distances are Euclidean in OKLab (https://bottosson.github.io/posts/oklab/); dichromacy is simulated in linear RGB with
the matrices of Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
Deficiency", 2009, severity 1. `unknown` and `device_wait` also carry a pattern.
"""

from __future__ import annotations

import re
from importlib import resources
from itertools import combinations

import numpy as np
import pytest

from xprof_py.postprocess.schema import CLASSES

SEEN_BY = {
    "everyone": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
PATTERNED = {"unknown", "device_wait"}
SOLID_APART = 0.11
PATTERNED_APART = 0.06


def themes() -> dict[str, dict[str, str]]:
    css = resources.files("xprof_py.viewers").joinpath("assets", "report.css").read_text()
    light, dark, printed = re.findall(r":root \{(.*?)\}", css, re.S)
    return {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for name, block in (("light", light), ("dark", dark), ("print", printed))
    }


def linear(colour: str) -> np.ndarray:
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    lms = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    ) @ np.clip(rgb, 0, 1)
    return np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    ) @ np.cbrt(lms)


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted(
        (float(linear(c) @ np.array([0.2126, 0.7152, 0.0722])) for c in (one, other)), reverse=True
    )
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
@pytest.mark.parametrize("eyes", SEEN_BY)
def test_any_two_classes_can_be_told_apart(theme: str, eyes: str) -> None:
    colours = themes()[theme]
    seen = {name: oklab(SEEN_BY[eyes] @ linear(colours[f"c-{name}"])) for name in CLASSES}
    for one, other in combinations(CLASSES, 2):
        needed = PATTERNED_APART if (one in PATTERNED) != (other in PATTERNED) else SOLID_APART
        assert np.linalg.norm(seen[one] - seen[other]) >= needed, (one, other)


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_text_has_the_contrast_of_wcag_aa(theme: str) -> None:
    colours = themes()[theme]
    for ink, ground in (
        ("ink", "page"),
        ("soft", "page"),
        ("soft", "panel"),
        ("warn", "warn-panel"),
        ("error", "page"),
    ):
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def test_print_looks_like_the_light_theme() -> None:
    light, printed = themes()["light"], themes()["print"]
    assert {k: v for k, v in light.items() if k.startswith("c-")} == {
        k: v for k, v in printed.items() if k.startswith("c-")
    }
