"""Why answers are wrong: the reference is in a passage that was shown, in another passage, or nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from surerag.evaluation.certainty import RIGHT
from surerag.evaluation.questions import Question
from surerag.evaluation.run import Row, Run
from surerag.measures.closed import is_closed
from surerag.measures.normalization import words_of
from surerag.messages import Passage
from surerag.text import is_abstention

Place = Literal["shown", "elsewhere", "nowhere"]
PLACES: tuple[Place, ...] = ("shown", "elsewhere", "nowhere")
SOURCES = ("path", "file_name", "source", "title")
"""Metadata keys that name a passage's source; the first key that is present is used."""
SKIPPED = "skipped files"
"""Name of the run's record that lists the files that were not read, one per line."""
_DOCUMENTS_NAMED = 3
"""Most documents to name for each question."""


def documents_with_references(
    questions: Iterable[Question], passages: Iterable[Passage]
) -> dict[str, tuple[str, ...]]:
    """Return the names of documents that contain a reference answer, three at most, by question key.

    Words are compared as the metric ``contains`` compares them. Questions are left out if their references
    are only yes, no or a single letter, because nearly every document contains these words, or if a reference
    is the abstention "I do not know.", because no document should answer them.

    Example:
        >>> question, other = Question("Where?", ("Old Velm",)), Question("Who?", ("Bo",))
        >>> passages = [Passage("She left old Velm.", metadata={"path": "ada.md"})]
        >>> list(documents_with_references([question, other], passages).values())
        [('ada.md',), ()]
    """
    found: dict[str, dict[str, None]] = {}
    candidates: dict[str, list[tuple[int, list[str], str]]] = {}  # by the longest word, which is rare
    for question in questions:
        for words in _words_of_references(question):
            found.setdefault(question.key, {})
            place = max(range(len(words)), key=lambda at, words=words: len(words[at]))  # type: ignore[misc]
            candidates.setdefault(words[place], []).append((place, words, question.key))
    for passage in passages:
        text = words_of(passage.text)
        for at, word in enumerate(text):
            for place, words, key in candidates.get(word, ()):
                start = at - place
                is_there = start >= 0 and text[start : start + len(words)] == words
                if is_there and len(found[key]) < _DOCUMENTS_NAMED:
                    found[key][source_of(passage)] = None
    return {key: tuple(sources) for key, sources in found.items()}


def source_of(passage: Passage) -> str:
    """Return the name of a passage's file or document; the passage's id if its metadata name none."""
    named = (passage.metadata.get(name) for name in SOURCES)
    return next(
        (one for one in named if isinstance(one, str) and one), passage.id or "a passage without a name"
    )


def _words_of_references(question: Question) -> list[list[str]]:
    """Return the words of each reference but yes, no or a letter; empty if the right answer is to abstain."""
    if any(map(is_abstention, question.references)):
        return []
    return [words for one in question.references if not is_closed(one) and (words := words_of(one))]


@dataclass(frozen=True)
class Causes:
    """Why the answers of a run are wrong: where their references were found.

    Attributes:
        run: The evaluation run.
        metric: Name of the metric that says which answers are wrong.
        names: Names of documents that contain a reference, by question key; None if the documents were not
            searched.
    """

    run: Run
    metric: str
    names: Mapping[str, Sequence[str]] | None

    @cached_property
    def _texts(self) -> dict[str, str]:
        return {}

    @cached_property
    def _references(self) -> dict[str, list[str]]:
        return {}

    @cached_property
    def _places(self) -> dict[tuple[str, str], Place | None]:
        """Place of the reference of each wrong answer, by system and question key."""
        return {(row.system, row.question.key): self._place(row) for row in self.run.rows}

    def _references_of(self, question: Question) -> list[str]:
        if question.key not in self._references:
            self._references[question.key] = [
                f" {' '.join(words)} " for words in _words_of_references(question)
            ]
        return self._references[question.key]

    def holds(self, passage: str, question: Question) -> bool:
        """Whether a passage holds a reference of a question."""
        if passage not in self._texts:
            self._texts[passage] = f" {' '.join(words_of(passage))} "
        return any(reference in self._texts[passage] for reference in self._references_of(question))

    def place(self, row: Row) -> Place | None:
        """Return where the reference of a wrong answer was found.

        Returns:
            ``"shown"``, ``"elsewhere"`` or ``"nowhere"``. If the documents were not searched, a reference
            that is in no shown passage counts as ``"elsewhere"``. None for right and failed answers, and
            for references that are only yes, no or a letter, or that abstain.
        """
        return self._places[row.system, row.question.key]

    def _place(self, row: Row) -> Place | None:
        score = self.run.values(row.system, self.metric).get(row.question.key) if self.metric else None
        if row.answer is None or score is None or score >= RIGHT or not self._references_of(row.question):
            return None
        if any(self.holds(passage, row.question) for passage in row.answer.contexts):
            return "shown"
        if self.names is not None and not self.names.get(row.question.key):
            return "nowhere"
        return "elsewhere"

    def count(self, system: str) -> dict[Place, int]:
        """Return how many wrong answers of a system have their reference in each place."""
        places = [self.place(row) for row in self.run.answered(system).values()]
        return {place: places.count(place) for place in PLACES}


def causes_of(run: Run) -> Causes:
    """Return why answers of a run are wrong; the result is computed once."""
    if causes_of not in run.derived:
        metric = next((name for name in run.measures if name in run.metrics), "")
        run.derived[causes_of] = Causes(run, metric, run.documents)
    found: Causes = run.derived[causes_of]
    return found


_REMEDIES: dict[Place, tuple[str, str]] = {
    "shown": ("the model or its prompt", "is in a passage that the model was shown"),
    "elsewhere": ("the retriever", "is in a passage that was not shown"),
    "nowhere": ("the folder", "is in no document"),
}
"""What to mend, and how to describe the place, for each place of a reference."""
_NOT_SEARCHED = ("the retriever or the documents", "is in no passage that was shown")
"""The remedy for ``"elsewhere"`` if the documents were not searched."""
_CHI_SQUARED_LIMIT = 3.84
"""Critical value of McNemar's test: the squared difference of two counts, divided by their sum."""


def remedy(causes: Causes, system: str, name: str) -> str:
    """Return a sentence that says what to mend first; empty if no cause of a wrong answer is known."""
    counts = causes.count(system)
    first, second = sorted(PLACES, key=lambda place: -counts[place])[:2]
    if not (total := sum(counts.values())):
        return ""
    what = {place: remedy_of(causes, place) for place in PLACES}
    shares = {place: f"{100 * counts[place] / total:.0f} %" for place in PLACES}
    of_all = f"of {name}'s {total} wrong answers" if total > 1 else f"of {name}'s only wrong answer"
    found = f"for {shares[first]} {of_all} the reference {what[first][1]}"
    if (counts[first] - counts[second]) ** 2 >= _CHI_SQUARED_LIMIT * (counts[first] + counts[second]):
        return f"Mend {what[first][0]} first: {found}."
    if not counts[second]:
        return f"Mend {what[first][0]} first, though few answers show it: {found}."
    return (
        f"Mend {what[first][0]}, and {what[second][0]}: {found}, for {shares[second]} it {what[second][1]}."
    )


def remedy_of(causes: Causes, place: Place) -> tuple[str, str]:
    """Return what to mend if references are at a place, and how to describe the place."""
    return _NOT_SEARCHED if causes.names is None and place == "elsewhere" else _REMEDIES[place]
