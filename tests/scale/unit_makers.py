"""Who makes units on workers, for tests: with readers that note what they are asked, or end their process."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from surerag.errors import ConfigurationError
from surerag.evaluation.rows import Question
from surerag.records.conditions import Manner
from surerag.records.pipeline import Pipeline
from surerag.records.recorder import Recorder
from surerag.runs import Part, Run
from surerag.scale.units import Job
from surerag.types import Generation, Prompt, Sampling
from tests.evaluation.noting import NotingReader
from tests.records.corpora import pipeline

QUESTIONS, PART = 24, 4
WINDOW = 8


class Mortal(NotingReader):
    """Ends its process, the first time that it is asked about a person.

    Args:
        notes: What it is asked.
        person: Whom it does not survive; None for nobody.
        moment: When it ends: ``"before"`` it answers, ``"during"`` its unit, when it has answered, or when
            that is ``"made"`` and not yet handed over.
        always: Whether it ends again when it is asked again.
        seconds: How long an answer takes.
    """

    def __init__(self, notes: Path, person: int | None, moment: str, always: bool, seconds: float) -> None:
        super().__init__(notes, local=True, seconds=seconds)
        self._person, self._moment, self._always = person, moment, always
        self._ended = notes.with_suffix(".ended")

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        named = any(f"Person {self._person} " in str(prompt) for prompt in prompts)
        if named:
            self.end("before")
        found = super().generate(prompts, sampling)
        if named:
            self.end("during")
        return found

    def end(self, moment: str) -> None:
        """End this process, if it is the moment."""
        if self._person is not None and moment == self._moment and (self._always or not self._ended.exists()):
            self._ended.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class MortalRecorder(Recorder):
    """Ends its process when a unit is made, if its reader does."""

    def __init__(self, reader: Mortal, manner: Manner) -> None:
        super().__init__(Pipeline.of(pipeline(reader, QUESTIONS)), manner, 16)
        self._reader = reader

    def make(self, run: Run, unit: int, rows: Sequence[Question], source: str) -> Part:
        """Make a unit."""
        made = super().make(run, unit, rows, source)
        self._reader.end("made")
        return made


def recorder(told: Mapping[str, Any]) -> Recorder:
    """Return a recorder of all methods over a small corpus."""
    notes = Path(told["notes"])
    with notes.with_suffix(".pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    moment, always = told.get("moment", "during"), told.get("always", False)
    reader = Mortal(notes, told.get("person"), moment, always, told.get("seconds", 0.0))
    return MortalRecorder(reader, Manner("contains", 2, WINDOW, None))


def refusing(told: Mapping[str, Any]) -> Recorder:
    """Refuse to be built."""
    raise ConfigurationError("there is no model of this name", hint="name another one")


def job(notes: Path, **told: Any) -> Job:
    """Return what workers are told to record."""
    return Job(recorder, {"notes": str(notes), **told})
