"""What is asked for one part of a trace: kept as it comes, and written down with the part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from surerag.journal import Answers
from surerag.prices import Costs
from surerag.readers.protocol import BaseReader
from surerag.recording import ClockedReader, RecordedReader, Tab, generation_key
from surerag.records.replay import canonical, prompt_digest, sampling_text
from surerag.records.schema import asked_record
from surerag.types import Generation, Prompt, Sampling

Kind = Literal["generate", "entail", "retrieve"]
_SECONDS = "seconds:"


class Kept:
    """The answers of one part, and what was used of them.

    Args:
        answers: Where they are kept, as long as the part is unfinished.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._used: dict[str, Kind] = {}
        self._notes: dict[str, Mapping[str, Any]] = {}

    def of(self, kind: Kind) -> Answers:
        """Return the place for answers of one kind."""
        return _OfKind(self._answers, kind, self._used)

    def note(self, key: str, /, **columns: Any) -> None:
        """Note further columns of what was asked."""
        self._notes[key] = columns

    def took(self, seconds: Mapping[str, float]) -> None:
        """Note how long answers took."""
        self._answers.put({f"{_SECONDS}{key}": value for key, value in seconds.items()})

    def seconds(self, keys: Sequence[str]) -> float | None:
        """Return how long answers took together; None where one is not known."""
        found = [self._answers.get(f"{_SECONDS}{key}") for key in dict.fromkeys(keys)]
        return None if None in found else float(sum(found))

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield a row of the table ``asked`` for all that was used, in the order of first use."""
        for key, kind in tuple(self._used.items()):
            yield asked_record(key, kind, self._answers.get(key), self._notes.get(key, {}))

    def times(self) -> Iterator[dict[str, Any]]:
        """Yield a row of the table ``asked_times`` for each row of ``asked``."""
        for key in tuple(self._used):
            yield {"key": key, "seconds": self._answers.get(f"{_SECONDS}{key}")}

    def spent(self) -> Costs:
        """Return what was used, in tokens, calls and seconds of models; money is not known here."""
        tab, seconds = Tab(), 0.0
        for key, kind in self._used.items():
            if kind == "generate":
                tab.note(key, self._answers.get(key))
                seconds += self._answers.get(f"{_SECONDS}{key}") or 0.0
        return Costs.of(tab.usage, seconds)


class _OfKind:
    """Notes which answers are used."""

    def __init__(self, answers: Answers, kind: Kind, used: dict[str, Kind]) -> None:
        self._answers, self._kind, self._used = answers, kind, used

    def get(self, key: str) -> Any:
        found = self._answers.get(key)
        if found is not None:
            self._used[key] = self._kind
        return found

    def put(self, answers: Mapping[str, Any]) -> None:
        self._answers.put(answers)
        self._used.update(dict.fromkeys(answers, self._kind))

    def check(self) -> None:
        self._answers.check()


class KeepingReader(RecordedReader):
    """A reader whose answers are kept with all that it tells of them, and with the time that they took.

    Args:
        reader: Who is asked.
        kept: Where answers are kept.
        max_concurrency: Prompts of one call that a server is asked at the same time.
    """

    def __init__(self, reader: BaseReader, kept: Kept, *, max_concurrency: int = 16) -> None:
        super().__init__(
            ClockedReader(reader, kept.took),
            kept.of("generate"),
            max_concurrency=max_concurrency,
            entropies=True,
        )
        self._kept = kept

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order."""
        wanted = canonical(sampling)
        for prompt in prompts:
            self._kept.note(
                generation_key(self.name, prompt, wanted),
                key=generation_key(self.name, prompt, replace(wanted, n=1)),
                prompt=prompt_digest(prompt),
                sampling=sampling_text(wanted),
            )
        return super().generate(prompts, wanted)
