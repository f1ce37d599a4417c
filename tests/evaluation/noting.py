"""A reader whose samples depend on prompt, seed and number alone, and that notes what it is asked."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from surerag.readers.protocol import BaseReader, Capabilities
from surerag.readers.scripted import reply
from surerag.types import Generation, Prompt, Sampling, as_messages


class NotingReader(BaseReader):
    """Says the town that its prompt names, more often than not; and elsewhere whatever comes to mind.

    Args:
        notes: File that gets a line for each prompt, before it is answered.
        seconds: How long an answer takes.
        local: Whether it is a model in this process, asked in batches, or a server.
        logprobs: Whether it has them.
    """

    def __init__(
        self, notes: Path | None = None, *, seconds: float = 0.0, local: bool = False, logprobs: bool = True
    ) -> None:
        self._notes, self._seconds, self._local, self._logprobs = notes, seconds, local, logprobs
        self._lock = threading.Lock()
        self.asked: list[str] = []

    @property
    def name(self) -> str:
        return "noting"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(logprobs=self._logprobs, entropy=None, local=self._local)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        texts = [as_messages(prompt)[-1].content for prompt in prompts]
        self._note(texts)
        time.sleep(self._seconds)
        return [[self._answer(text, sampling, at) for at in range(sampling.n)] for text in texts]

    def _note(self, texts: Sequence[str]) -> None:
        with self._lock:
            self.asked += texts
            if self._notes is not None:
                handle = os.open(self._notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.write(handle, "".join(json.dumps(text) + "\n" for text in texts).encode())
                os.close(handle)

    def _answer(self, text: str, sampling: Sampling, at: int) -> Generation:
        digest = hashlib.sha256(f"{sampling.seed} {at} {text}".encode()).digest()
        rng = random.Random(digest)
        told = [town for town in ("Velm", "Orun", "Toren", "Sarl") if town in text]
        town = told[0] if told and rng.random() < 0.7 else rng.choice(["Velm", "Orun", "Toren", "Nowhere"])
        logprobs = [-0.1 - 2 * rng.random()] if self._logprobs else None
        return reply(town, entropy=None, logprobs=logprobs)


def notes_of(file: Path) -> list[str]:
    """Read what a reader was asked."""
    # The last line may still be on its way.
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def write_rows(file: Path, questions: int = 12, systems: Sequence[str] = ("good", "poor")) -> Path:
    """Write a data set in which the first system finds the town, and the others something else."""
    towns = ["Velm", "Orun", "Toren", "Sarl"]
    rows = []
    for number in range(questions):
        town = towns[number % len(towns)]
        for system in systems:
            found = [f"Person {number} was born in {town}."] if system == systems[0] else []
            rows.append(
                {
                    "id": f"q{number}",
                    "system": system,
                    "question": f"Where was person {number} born?",
                    "answers": [town],
                    "contexts": [f"Person {number} paints <b>boats</b>.", *found, f"Note {number} {{x}}."],
                }
            )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
