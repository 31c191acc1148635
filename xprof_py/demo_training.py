"""The training that ``xprof-py demo`` records: a small transformer that learns to continue English text.

    python -m xprof_py.demo_training --run-dir runs/demo [--steps 40] [--fast-input]

It has a planted bottleneck: every batch is augmented and tokenised in pure Python while the training waits for it.
``--fast-input`` is the usual cure, tokens made once before the training. Nothing else differs between the two.

The lines that a training needs for xprof_py are in ``train`` at the bottom: capture, wrap_input, step, trace.
JAX is imported inside the functions that use it because no module of the package needs it to be imported.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xprof_py import capture, step, trace, wrap_input
from xprof_py.errors import XprofPyError

VOCABULARY = 512
LONGEST_TOKEN = 6
"""Tokens are strings of 1 to 6 characters, the most frequent ones of the text."""

DOCUMENT = 5_500
"""Characters that are augmented and tokenised to cut one row of a batch out of them."""

BATCH = 12
SEQUENCE = 64
WIDTH = 64
HEADS = 4
BLOCKS = 2
LEARNING_RATE = 3e-3

Parameters = dict[str, Any]
"""Name -> array, or name -> Parameters."""


# --- text and tokens ------------------------------------------------------------------------------------------------


def read_text() -> str:
    """English text that every Python carries: the language reference behind ``help()``, about 500,000 characters."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def build_vocabulary(text: str) -> dict[str, int]:
    """Token -> number: all single characters of ``text``, then its most frequent longer strings, VOCABULARY at most."""
    characters = sorted(set(text))
    sample = text[:60_000]
    counts: Counter[str] = Counter()
    for length in range(2, LONGEST_TOKEN + 1):
        counts.update(sample[at : at + length] for at in range(len(sample) - length + 1))
    longer = sorted(counts, key=lambda token: (-counts[token] * (len(token) - 1), token))
    return {token: number for number, token in enumerate((characters + longer)[:VOCABULARY])}


def tokenise(text: str, vocabulary: dict[str, int]) -> list[int]:
    """The numbers of the longest tokens that ``text`` starts with, one after the other."""
    tokens = []
    at = 0
    while at < len(text):
        for length in range(LONGEST_TOKEN, 0, -1):
            token = vocabulary.get(text[at : at + length])
            if token is not None:
                tokens.append(token)
                at += length
                break
        else:
            at += 1  # a character that augment made and the text does not have
    return tokens


def augment(text: str, dice: random.Random) -> str:
    """``text`` with some words in capitals and some characters lost, like text from scanned pages."""
    words = []
    for word in text.split(" "):
        if dice.random() < 0.05:
            word = word.upper()
        words.append("".join(character for character in word if dice.random() > 0.02))
    return " ".join(words)


class TokenisedOnDemand:
    """Batches of shape [BATCH, SEQUENCE + 1] (int32), each made in pure Python when the training asks for it."""

    def __init__(self, text: str, vocabulary: dict[str, int], steps: int) -> None:
        self.text = text
        self.vocabulary = vocabulary
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        dice = random.Random(0)
        for _ in range(self.steps):
            yield np.array([self.one_row(dice) for _ in range(BATCH)], np.int32)

    def one_row(self, dice: random.Random) -> list[int]:
        start = dice.randrange(len(self.text) - DOCUMENT)
        tokens = tokenise(augment(self.text[start : start + DOCUMENT], dice), self.vocabulary)
        cut = dice.randrange(len(tokens) - SEQUENCE)
        return tokens[cut : cut + SEQUENCE + 1]


class TokenisedBefore:
    """Batches of the same shape, cut out of tokens that were made once."""

    def __init__(self, text: str, vocabulary: dict[str, int], steps: int) -> None:
        self.tokens = np.array(tokenise(augment(text, random.Random(0)), vocabulary), np.int32)
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        dice = np.random.default_rng(0)
        for _ in range(self.steps):
            starts = dice.integers(0, len(self.tokens) - SEQUENCE - 1, BATCH)
            yield np.stack([self.tokens[start : start + SEQUENCE + 1] for start in starts])


# --- the model ------------------------------------------------------------------------------------------------------


def initial_parameters() -> Parameters:
    """Float32 parameters: embeddings, BLOCKS transformer blocks, the output matrix."""
    import jax

    keys = iter(jax.random.split(jax.random.key(0), 3 + 4 * BLOCKS))

    def matrix(rows: int, columns: int) -> Any:
        return jax.random.normal(next(keys), (rows, columns)) / rows**0.5

    def block() -> Parameters:
        return {
            "attention_in": matrix(WIDTH, 3 * WIDTH),
            "attention_out": matrix(WIDTH, WIDTH),
            "mlp_in": matrix(WIDTH, 4 * WIDTH),
            "mlp_out": matrix(4 * WIDTH, WIDTH),
        }

    return {
        "tokens": matrix(VOCABULARY, WIDTH) * VOCABULARY**0.5 * 0.1,
        "positions": matrix(SEQUENCE, WIDTH),
        "blocks": [block() for _ in range(BLOCKS)],
        "output": matrix(WIDTH, VOCABULARY),
    }


def normalise(x: Any) -> Any:
    """Every vector of ``x`` [..., WIDTH] with mean 0 and variance 1."""
    import jax

    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def attention(parameters: Parameters, x: Any) -> Any:
    """Causal self-attention, [batch, sequence, WIDTH] to the same shape."""
    import jax
    import jax.numpy as jnp

    batch, sequence, _ = x.shape
    heads = (x @ parameters["attention_in"]).reshape(batch, sequence, 3, HEADS, WIDTH // HEADS)
    query, key, value = (heads[:, :, part] for part in range(3))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / (WIDTH // HEADS) ** 0.5
    scores = jnp.where(jnp.tri(sequence, dtype=bool), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
    return mixed.reshape(batch, sequence, WIDTH) @ parameters["attention_out"]


def loss_of(parameters: Parameters, batch: Any) -> Any:
    """Mean cross-entropy of predicting each next token of ``batch`` [batch, SEQUENCE + 1]; a float32 scalar."""
    import jax
    import jax.numpy as jnp

    tokens, following = batch[:, :-1], batch[:, 1:]
    x = parameters["tokens"][tokens] + parameters["positions"]
    for block in parameters["blocks"]:
        x = x + attention(block, normalise(x))
        x = x + jax.nn.gelu(normalise(x) @ block["mlp_in"]) @ block["mlp_out"]
    log_probabilities = jax.nn.log_softmax(normalise(x) @ parameters["output"])
    return -jnp.take_along_axis(log_probabilities, following[..., None], axis=-1).mean()


def train_step(parameters: Parameters, moments: Any, number: Any, batch: Any) -> tuple[Parameters, Any, Any]:
    """One step of Adam (Kingma & Ba 2015): new parameters, new moments (a pair of trees like them), and the loss."""
    import jax

    loss, gradients = jax.value_and_grad(loss_of)(parameters, batch)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, moments[1], gradients)
    new = jax.tree.map(
        lambda p, m, v: p - LEARNING_RATE * (m / (1 - 0.9**number)) / ((v / (1 - 0.99**number)) ** 0.5 + 1e-8),
        parameters,
        mean,
        square,
    )
    return new, (mean, square), loss


# --- the training ---------------------------------------------------------------------------------------------------


def train(batches: Iterable[Any], run_dir: Path, overwrite: bool = False) -> list[float]:
    """Train on ``batches`` and record it into ``run_dir``; returns the loss of every step."""
    import jax

    parameters = initial_parameters()
    moments = (jax.tree.map(jax.numpy.zeros_like, parameters),) * 2
    compiled_step = jax.jit(train_step)
    losses = []
    with capture(run_dir, overwrite=overwrite):
        for number, batch in enumerate(wrap_input(batches)):
            with step(number, tokens=BATCH * SEQUENCE):
                with trace("train_step"):
                    parameters, moments, loss = compiled_step(parameters, moments, number + 1.0, batch)
                with trace("read_loss"):
                    losses.append(float(loss))
            if number % 10 == 0:
                print(f"step {number:3d}  loss {losses[-1]:.3f}", flush=True)
    return losses


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns its exit code: 1 without JAX or where the run folder cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m xprof_py.demo_training",
        description="Train a small transformer on CPU with a planted input bottleneck, and record it.",
    )
    parser.add_argument("--run-dir", type=Path, required=True, help="the run folder to record into")
    parser.add_argument("--overwrite", action="store_true", help="replace what an earlier run left in the run folder")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fast-input", action="store_true", help="tokenise once, before the training")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error("--steps: at least one")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        import jax
    except ModuleNotFoundError:
        print("The demo trains with JAX, which is not installed: pip install 'xprof_py[demo]'", file=sys.stderr)
        return 1
    print(f"jax {jax.__version__} on {jax.default_backend()}, {options.steps} steps", flush=True)

    text = read_text()
    vocabulary = build_vocabulary(text)
    loader = TokenisedBefore if options.fast_input else TokenisedOnDemand
    try:
        losses = train(loader(text, vocabulary, options.steps), options.run_dir, options.overwrite)
    except XprofPyError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"step {len(losses) - 1:3d}  loss {losses[-1]:.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
