"""Scripted readers for DENSE: answers by what is shown, rephrasings that can be told apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from surerag import FakeReader, Passage
from surerag.messages import Pair

QUESTION = "Where?"
# In "abcdef", b is noise, c is needed and not understood, and e is what it lacks.
MENDED = {"ab'c": "B", "abc'": "C", "ab": "D", "ac": "A"}
LETTERS = "abcdef"
ROWS = {"a": [1, 0], "d": [1, 0.1], "c": [0, 1], "e": [0.1, 1], "b": [1, 1], "f": [0.6, 1]}
_SHOWN = re.compile(r"^\[\d+\] (.*)$", re.MULTILINE)
Shown = tuple[str, ...]


def passages(letters: str) -> list[Passage]:
    return [Passage(letter, id=f"id-{letter}", metadata={"letter": letter}) for letter in letters]


def shown(prompt: str) -> Shown:
    """The texts of the context that a prompt shows."""
    return tuple(_SHOWN.findall(prompt))


def kind(prompt: str) -> str:
    if prompt.startswith("Rewrite"):
        return "rephrase"
    return "evaluate" if "yes or no" in prompt else "answer"


def script(
    answers: Mapping[str, str] | Callable[[Shown], str],
    *,
    sufficient: Callable[[Shown], str] = lambda _: "yes",
    rephrase: Callable[[str], object] = lambda text: text + "'",
) -> FakeReader:
    """Answer by context, written as its texts joined ("ab'c"), "A" where nothing is said about it."""

    def reply(prompt: str) -> object:
        if kind(prompt) == "rephrase":
            return rephrase(prompt.split("Text: ", 1)[1])
        if kind(prompt) == "evaluate":
            return sufficient(shown(prompt))
        return answers(shown(prompt)) if callable(answers) else answers.get("".join(shown(prompt)), "A")

    return FakeReader(reply)  # type: ignore[arg-type]  # replies may be exceptions, too


def distinct(context: Shown) -> str:
    """An answer that no other context gets."""
    return f"answer {crc32('|'.join(context).encode())}"


class LongerEntails:
    """A longer answer entails a shorter one that it contains; everything else is neutral."""

    name = "longer"
    local = True

    def __init__(self) -> None:
        self.asked: list[Pair] = []

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        self.asked += pairs
        return np.array([[0.0, 0.0, 1.0] if b in a else [0.0, 1.0, 0.0] for a, b, _ in pairs])


class Letters:
    """Vectors for single letters: c is most like e, and a like d."""

    name = "letters"
    local = True

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def encode(self, texts: Any, kind: str) -> NDArray[np.float32]:
        self.asked.append(tuple(texts))
        rows = np.array([ROWS.get(text, [1, 1]) for text in texts], dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)
