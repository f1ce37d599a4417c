"""Find out what causes wrong answers: the model, the retriever, or documents without the right answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from surerag.evaluation.certainty import RIGHT
from surerag.evaluation.pipelines import pipeline_of
from surerag.evaluation.questions import Question
from surerag.evaluation.run import Row, Run
from surerag.measures.closed import is_closed
from surerag.measures.normalization import words_of
from surerag.messages import Passage
from surerag.text import is_abstention

Place = Literal["shown", "elsewhere", "nowhere"]
PLACES: tuple[Place, ...] = ("shown", "elsewhere", "nowhere")
SOURCES = ("path", "file_name", "source", "title")
"""Metadata keys that may name a passage's source; the first key that is present is used."""
SKIPPED = "skipped files"
"""Key of ``Run.about`` under which a run lists the files that could not be read, one file per line."""
NOTES = "notes on files"
"""Key of ``Run.about`` with the reasons why files may have been read wrongly, one per line."""
_DOCUMENTS_NAMED = 3
"""Maximum number of documents to name for each question."""


def documents_with_references(
    questions: Iterable[Question], passages: Iterable[Passage]
) -> dict[str, tuple[str, ...]]:
    """Return, by question key, the names of up to three documents that contain a reference answer.

    Words are compared as in the metric ``contains``. A question is left out if its references are only yes,
    no or a single letter, because nearly every document contains these words. A question is also left out if
    a reference is the abstention "I do not know.", because then no document should contain the answer.

    Example:
        >>> question, other = Question("Where?", ("Old Velm",)), Question("Who?", ("Bo",))
        >>> passages = [Passage("She left old Velm.", metadata={"path": "ada.md"})]
        >>> list(documents_with_references([question, other], passages).values())
        [('ada.md',), ()]
    """
    sources_by_key: dict[str, dict[str, None]] = {}
    # The key is the longest word of a reference: long words are rare, so each list is short.
    candidates: dict[str, list[tuple[int, list[str], str]]] = {}
    for question in questions:
        for words in _words_of_references(question):
            sources_by_key.setdefault(question.key, {})
            place = max(range(len(words)), key=lambda at, words=words: len(words[at]))  # type: ignore[misc]
            candidates.setdefault(words[place], []).append((place, words, question.key))
    for passage in passages:
        text = words_of(passage.text)
        for at, word in enumerate(text):
            for place, words, key in candidates.get(word, ()):
                start = at - place
                is_there = start >= 0 and text[start : start + len(words)] == words
                if is_there and len(sources_by_key[key]) < _DOCUMENTS_NAMED:
                    sources_by_key[key][source_of(passage)] = None
    return {key: tuple(sources) for key, sources in sources_by_key.items()}


def source_of(passage: Passage) -> str:
    """Return the name of a passage's file or document, or else the passage's id."""
    named = (passage.metadata.get(name) for name in SOURCES)
    return next(
        (name for name in named if isinstance(name, str) and name), passage.id or "a passage without a name"
    )


def _words_of_references(question: Question) -> list[list[str]]:
    if any(map(is_abstention, question.references)):
        return []
    return [words for text in question.references if not is_closed(text) and (words := words_of(text))]


@dataclass(frozen=True)
class Causes:
    """Classifies the wrong answers of a run by the place where the reference answer occurs.

    Attributes:
        run: The evaluation run.
        metric: Name of the metric that decides which answers are wrong.
        names: Names of the documents that contain a reference, by question key; None if the documents were
            not searched.
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
    def _reporting(self) -> set[str]:
        return {system for system in self.run.systems if self.reports_passages(system)}

    @cached_property
    def _places(self) -> dict[tuple[str, str], Place | None]:
        return {(row.system, row.question.key): self._place(row) for row in self.run.rows}

    def _references_of(self, question: Question) -> list[str]:
        if question.key not in self._references:
            self._references[question.key] = [
                f" {' '.join(words)} " for words in _words_of_references(question)
            ]
        return self._references[question.key]

    def holds(self, passage: str, question: Question) -> bool:
        """Return whether a passage contains a reference answer of a question."""
        if passage not in self._texts:
            self._texts[passage] = f" {' '.join(words_of(passage))} "
        return any(reference in self._texts[passage] for reference in self._references_of(question))

    def reports_passages(self, system: str) -> bool:
        """Return whether a system reports the passages that the model was shown.

        A user's own system reports passages if any of its answers has contexts. A pipeline or component of
        surerag reports passages if it searches, even if it found none.
        """
        settings = self.run.settings(system)
        if (pipeline := pipeline_of(settings)) is not None and pipeline.searches is not False:
            return True
        rows = self.run.answered(system).values()
        return bool(settings.get("scope")) or any(row.answer.contexts for row in rows if row.answer)

    def are_unknown(self, system: str) -> bool:
        """Return True if the causes of a system's wrong answers cannot be found.

        This is the case if a user's own system gives a wrong answer, and reports no passages.
        """
        if self.reports_passages(system) or pipeline_of(self.run.settings(system)) is not None:
            return False
        return any(map(self._is_wrong, self.run.answered(system).values()))

    def _is_wrong(self, row: Row) -> bool:
        score = self.run.values(row.system, self.metric).get(row.question.key) if self.metric else None
        return score is not None and score < RIGHT and bool(self._references_of(row.question))

    def place(self, row: Row) -> Place | None:
        """Return the place where the reference of a wrong answer occurs.

        Returns:
            ``"shown"`` if a passage in the prompt contains the reference. Otherwise, ``"elsewhere"`` if a
            document contains the reference, or if we do not know this, because the documents were not looked
            through; else ``"nowhere"``. None for a right or failed answer, for a reference that is only yes,
            no, a letter or an abstention, and for a system that reports no passages.
        """
        return self._places[row.system, row.question.key]

    def _place(self, row: Row) -> Place | None:
        if row.answer is None or not self._is_wrong(row) or row.system not in self._reporting:
            return None
        if any(self.holds(passage, row.question) for passage in row.answer.contexts):
            return "shown"
        if self.names is not None and not self.names.get(row.question.key):
            return "nowhere"
        return "elsewhere"

    def count(self, system: str) -> dict[Place, int]:
        """Return the numbers of a system's wrong answers by the place where the reference answer occurs.

        The places are the results of :meth:`place`.
        """
        places = [self.place(row) for row in self.run.answered(system).values()]
        return {place: places.count(place) for place in PLACES}

    def count_wrong(self, system: str) -> int:
        """Return the number of a system's wrong answers; failed questions are not counted.

        The number may be larger than the sum of :meth:`count`, because the place of a reference answer that
        is only yes, no, a letter or an abstention is not known.
        """
        scores = self.run.values(system, self.metric) if self.metric else {}
        return sum(scores.get(key, RIGHT) < RIGHT for key in self.run.answered(system))


def causes_of(run: Run) -> Causes:
    """Return the ``Causes`` of a run, which are computed once and cached in the run."""
    if causes_of not in run.derived:
        metric = next((name for name in run.measures if name in run.metrics), "")
        run.derived[causes_of] = Causes(run, metric, run.documents)
    causes: Causes = run.derived[causes_of]
    return causes


_REMEDIES: dict[Place, tuple[str, str]] = {
    "shown": ("the model or its prompt", "is in a passage that the model was shown"),
    "elsewhere": ("the retriever", "is in a passage that the model was not shown"),
    "nowhere": ("the documents", "is in no document"),
}
"""By result of :meth:`Causes.place`: what to improve, and words that follow "the reference answer"."""
_NOT_SEARCHED = ("the retriever or the documents", "is in no passage that the model was shown")
"""Replaces ``_REMEDIES["elsewhere"]`` if the documents were not searched for reference answers."""
_CHI_SQUARED_LIMIT = 3.84
"""Critical value of McNemar's test (5 %) for the squared difference of two counts, divided by their sum."""


def remedy(causes: Causes, system: str, name: str) -> str:
    """Return a sentence that says which part of a system to improve first; empty if no cause is known.

    ``name`` is the system's name in the sentence.
    """
    counts, wrong = causes.count(system), causes.count_wrong(system)
    first, second = sorted(PLACES, key=lambda place: -counts[place])[:2]
    if not counts[first]:
        return ""
    what = {place: remedy_of(causes, place) for place in PLACES}
    if wrong == 1:
        which = f"{name}'s only wrong answer"
    else:
        number = "all" if counts[first] == wrong else f"{counts[first]:,}"
        which = f"{number} of {name}'s {wrong:,} wrong answers"
    reason = f"for {which}, the reference answer {what[first][1]}"
    if (counts[first] - counts[second]) ** 2 >= _CHI_SQUARED_LIMIT * (counts[first] + counts[second]):
        return f"Improve {what[first][0]} first: {reason}."
    if not counts[second]:
        return f"Improve {what[first][0]} first (there is little evidence yet): {reason}."
    return (
        f"Improve {what[first][0]}, and {what[second][0]}: {reason}; for {counts[second]:,}, it "
        f"{what[second][1]}."
    )


def remedy_of(causes: Causes, place: Place) -> tuple[str, str]:
    """Return which part of a system to improve for wrong answers of one place.

    Args:
        causes: The causes of a run's wrong answers.
        place: Place where the reference answer occurs; a result of :meth:`Causes.place`.

    Returns:
        The part, such as "the retriever"; and words that follow "the reference answer" in a sentence, such as
        "is in no document".
    """
    return _NOT_SEARCHED if causes.names is None and place == "elsewhere" else _REMEDIES[place]
