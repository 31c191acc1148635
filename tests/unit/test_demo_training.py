"""The demo's input pipeline really does what it says, and the program says how to get JAX."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xprof_py import demo_training as demo

TEXT = demo.read_text()
VOCABULARY = demo.build_vocabulary(TEXT)


def test_vocabulary_covers_the_text_and_compresses_it() -> None:
    assert set(TEXT) <= set(VOCABULARY)
    assert sorted(VOCABULARY.values()) == list(range(demo.VOCABULARY))
    assert len(demo.tokenise(TEXT[:10_000], VOCABULARY)) < 7_000


@given(st.integers(0, len(TEXT) - 200), st.integers(0, 200))
def test_tokens_spell_the_text(start: int, length: int) -> None:
    spelling = {number: token for token, number in VOCABULARY.items()}
    passage = TEXT[start : start + length]
    assert "".join(spelling[number] for number in demo.tokenise(passage, VOCABULARY)) == passage


def test_unknown_characters_are_left_out() -> None:
    assert demo.tokenise("\u2603", VOCABULARY) == []


def test_augmenting_is_repeatable_and_changes_the_text() -> None:
    passage = TEXT[:2_000]
    assert demo.augment(passage, random.Random(1)) == demo.augment(passage, random.Random(1))
    assert demo.augment(passage, random.Random(1)) != passage
    assert 0.9 < len(demo.augment(passage, random.Random(1))) / len(passage) < 1.0


@pytest.mark.parametrize("loader", [demo.TokenisedOnDemand, demo.TokenisedBefore])
def test_both_loaders_make_the_same_kind_of_batch(loader: type) -> None:
    batches = list(loader(TEXT, VOCABULARY, 2))
    assert len(loader(TEXT, VOCABULARY, 2)) == len(batches) == 2
    for batch in batches:
        assert batch.shape == (demo.BATCH, demo.SEQUENCE + 1)
        assert batch.dtype == np.int32
        assert batch.min() >= 0
        assert batch.max() < demo.VOCABULARY
    assert (batches[0] != batches[1]).any()


def test_without_jax_the_program_says_how_to_install_it(tmp_path: Path) -> None:
    program = "import sys; sys.modules['jax'] = None\nfrom xprof_py import demo_training\n"
    program += "sys.exit(demo_training.main(['--run-dir', 'run']))"
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "pip install jax" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert list(tmp_path.iterdir()) == []
