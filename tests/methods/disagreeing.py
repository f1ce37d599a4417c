"""A reader of text alone, that repeats what it is shown, and says something else each time of the rest."""

from __future__ import annotations

import threading
from collections import Counter

from surerag.readers.fake import FakeReader

GUESSES = ("Tarn", "Mir", "Orun", "Brol", "Ket")


class Guessing:
    """What such a reader says to a prompt; every five answers to one prompt are the same five.

    Args:
        telling: Texts that hold an answer, and the answer.
    """

    def __init__(self, **telling: str) -> None:
        self._telling = telling
        self._said: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, prompt: str) -> str:
        with self._lock:
            at = self._said[prompt]
            self._said[prompt] += 1
        for word, answer in self._telling.items():
            if word in prompt:
                # Once in five times it slips.
                return answer if at % 5 < 4 else GUESSES[0]
        return GUESSES[at % len(GUESSES)]


def text_reader(name: str = "text", **telling: str) -> FakeReader:
    """Return a reader without log-probabilities."""
    return FakeReader(Guessing(**telling), logprob=None, entropy=None, name=name)
