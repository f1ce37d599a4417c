"""A language model of nineteen words, for servers that tests talk to."""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

WORDS = tuple(
    f" {word}"
    for word in "Velm Orun Tarn Ada lies on the river in of born was a city and near far old new".split()
)
END = "<end>"


class Token(NamedTuple):
    """A token, its log-probability, and those of the whole vocabulary at its place."""

    text: str
    logprob: float
    everything: dict[str, float]

    def top(self, k: int) -> dict[str, float]:
        """The k likeliest."""
        return dict(sorted(self.everything.items(), key=lambda item: -item[1])[:k])


class Said(NamedTuple):
    """An answer: its tokens without the end, and whether it ran into the limit."""

    tokens: list[Token]
    finish: str


class ToyModel:
    """Next-word distributions that depend on all words before, the same in every process.

    Args:
        sharpness: Scale of the logits: the larger, the surer.
    """

    vocabulary_size = len(WORDS) + 1

    def __init__(self, sharpness: float = 1.5) -> None:
        self._sharpness = sharpness

    def distribution(self, context: str) -> dict[str, float]:
        """Log-probabilities of the next word after a text."""
        rng = random.Random(hashlib.sha256(context.encode()).digest())
        logits = {word: self._sharpness * rng.gauss(0, 1) for word in (*WORDS, END)}
        total = math.log(math.fsum(math.exp(value) for value in logits.values()))
        return {word: value - total for word, value in logits.items()}

    def say(self, prompt: str, temperature: float, seed: int, max_tokens: int) -> Said:
        """Answer a prompt."""
        rng = random.Random(f"{seed}|{prompt}")
        tokens: list[Token] = []
        text = prompt
        for _ in range(max_tokens):
            logprobs = self.distribution(text)
            word = self.choose(logprobs, temperature, rng)
            if word == END:
                return Said(tokens, "stop")
            tokens.append(Token(word, logprobs[word], logprobs))
            text += word
        return Said(tokens, "length")

    def choose(self, logprobs: dict[str, float], temperature: float, rng: random.Random) -> str:
        """Draw the next word."""
        if temperature == 0:
            return max(logprobs, key=lambda word: logprobs[word])
        weights = [math.exp(value) for value in heated(logprobs, temperature).values()]
        return rng.choices(list(logprobs), weights)[0]

    def read(self, text: str) -> list[Token]:
        """Take a text for what was said; a word that is no word of the model counts as very unlikely."""
        tokens: list[Token] = []
        before = ""
        for word in split(text):
            logprobs = self.distribution(before)
            tokens.append(Token(word, logprobs.get(word, -30.0), logprobs))
            before += word
        return tokens


class Script:
    """Answers from a list, or from a function of the prompt; every word with one log-probability.

    Args:
        answers: Texts, one a generation, in order; or a function of the prompt.
        logprob: Of every word; a function of the word for finer control.
    """

    vocabulary_size = 1000

    def __init__(
        self,
        answers: Iterable[str] | Callable[[str], str],
        logprob: float | Callable[[str], float] = -0.1,
    ) -> None:
        self._answers = answers if callable(answers) else None
        self._queue = iter(()) if callable(answers) else iter(answers)
        self._logprob = logprob

    def say(self, prompt: str, temperature: float, seed: int, max_tokens: int) -> Said:
        """Answer a prompt."""
        text = self._answers(prompt) if self._answers else next(self._queue)
        words = split(text)
        tokens = [self._token(word) for word in words[:max_tokens]]
        return Said(tokens, "length" if len(words) > max_tokens else "stop")

    def read(self, text: str) -> list[Token]:
        """Take a text for what was said."""
        return [self._token(word) for word in split(text)]

    def _token(self, word: str) -> Token:
        logprob = self._logprob(word) if callable(self._logprob) else self._logprob
        rest = -math.expm1(logprob)
        others = {f" other{i}": math.log(max(rest, 1e-12) / 2 ** (i + 1)) for i in range(30)}
        return Token(word, logprob, {word: logprob, **others})


def split(text: str) -> list[str]:
    """Words, each with the white space before it."""
    return re.findall(r"\s*\S+", text)


def heated(logprobs: dict[str, float], temperature: float) -> dict[str, float]:
    """The distribution at a temperature."""
    scaled = {word: value / temperature for word, value in logprobs.items()}
    total = math.log(math.fsum(math.exp(value) for value in scaled.values()))
    return {word: value - total for word, value in scaled.items()}
