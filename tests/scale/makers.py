"""What factories of the tests make: readers that answer by a rule, and may fail or die."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surerag import Passage, ScriptedReader
from surerag.encoders import HashingEncoder
from surerag.errors import RefusedError, TransientServiceError


def told(prompt: str) -> str:
    """Answer by what the prompt says."""
    if "down" in prompt:
        raise TransientServiceError("the server is overloaded")
    if "refused" in prompt:
        raise RefusedError("no such model")
    if prompt.startswith("Rewrite"):
        return "Velm is where Ada was born."
    return "Velm" if "born in Velm" in prompt else "Orun"


def reader(name: str = "told") -> ScriptedReader:
    """Return a reader that answers by what the prompt says."""
    return ScriptedReader(told, name=name)


def dying(note: str) -> ScriptedReader:
    """Return a reader whose process is killed at the first question about Bo, once."""

    def answer(prompt: str) -> str:
        if "Bo" in prompt and not Path(note).exists():
            Path(note).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return told(prompt)

    return ScriptedReader(answer)


class Picky(HashingEncoder):
    """An encoder that refuses some texts."""

    @property
    def name(self) -> str:
        """Its name."""
        return "picky"

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        """Return vectors, unless one is too long."""
        if "too long" in texts:
            raise ValueError("too long")
        return super().encode(texts, kind)


def picky() -> Picky:
    """Return an encoder."""
    return Picky()


class Corpus:
    """Finds one passage, whatever is asked."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return it."""
        return [Passage("Ada was born in Velm.", id="ada")]


def corpus() -> Corpus:
    """Return a retriever."""
    return Corpus()


def number() -> int:
    """Return what is no service."""
    return 7


def blind() -> ScriptedReader:
    """Return a reader that reports no log-probabilities."""
    return ScriptedReader(told, logprob=None)


def broken() -> ScriptedReader:
    """Return a reader whose answer is no UTF-8."""
    return ScriptedReader(lambda _: "Ve\udcfflm")
