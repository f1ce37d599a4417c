"""Why answers are wrong: the reference stands in a shown passage, in another one, or in no document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from surerag.evaluation.certainty import RIGHT
from surerag.evaluation.questions import Question
from surerag.evaluation.run import EvaluationRun, Row
from surerag.measures.closed import is_closed
from surerag.measures.normalization import words_of
from surerag.messages import Passage

Place = Literal["shown", "elsewhere", "nowhere"]
PLACES: tuple[Place, ...] = ("shown", "elsewhere", "nowhere")
SOURCES = ("path", "file_name", "source", "title")
"""Names under which the metadata of a passage say where it comes from; the first counts."""
SKIPPED = "skipped files"
"""Under this name a run records the files that were not read, one a line."""
_DOCUMENTS_NAMED = 3
"""Documents that are named for each question."""


def passages_that_hold(
    questions: Iterable[Question], passages: Iterable[Passage]
) -> dict[str, tuple[str, ...]]:
    """Return which documents hold a reference of each question: three names at most, by the question's key.

    Words are compared as by the metric ``contains``; the passages are read once. Questions whose references
    are yes or no or a single letter, which stand everywhere, are left out.

    Example:
        >>> question, other = Question("Where?", ("Old Velm",)), Question("Who?", ("Bo",))
        >>> passages = [Passage("She left old Velm.", metadata={"path": "ada.md"})]
        >>> list(passages_that_hold([question, other], passages).values())
        [('ada.md',), ()]
    """
    found: dict[str, dict[str, None]] = {}
    begin: dict[str, list[tuple[int, list[str], str]]] = {}  # by the longest word, which is seldom
    for question in questions:
        for words in _wanted(question):
            found.setdefault(question.key, {})
            place = max(range(len(words)), key=lambda at, words=words: len(words[at]))  # type: ignore[misc]
            begin.setdefault(words[place], []).append((place, words, question.key))
    for passage in passages:
        text = words_of(passage.text)
        for at, word in enumerate(text):
            for place, words, key in begin.get(word, ()):
                start = at - place
                if (
                    len(found[key]) < _DOCUMENTS_NAMED
                    and start >= 0
                    and text[start : start + len(words)] == words
                ):
                    found[key][source_of(passage)] = None
    return {key: tuple(sources) for key, sources in found.items()}


def source_of(passage: Passage) -> str:
    """Return the name of the file or document that a passage comes from, or else its id."""
    named = (passage.metadata.get(name) for name in SOURCES)
    return next(
        (one for one in named if isinstance(one, str) and one), passage.id or "a passage without a name"
    )


def _wanted(question: Question) -> list[list[str]]:
    return [words for one in question.references if not is_closed(one) and (words := words_of(one))]


@dataclass(frozen=True)
class Causes:
    """Where the references of wrong answers stand.

    Attributes:
        run: The run.
        metric: Score by which answers are wrong.
        names: Documents that hold a reference, by the question's key; None where they were not searched.
    """

    run: EvaluationRun
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
        """Where the reference of each answer stands, by system and question."""
        return {(row.system, row.question.key): self._place(row) for row in self.run.rows}

    def _references_of(self, question: Question) -> list[str]:
        if question.key not in self._references:
            self._references[question.key] = [f" {' '.join(words)} " for words in _wanted(question)]
        return self._references[question.key]

    def holds(self, passage: str, question: Question) -> bool:
        """Whether a passage holds a reference of a question."""
        if passage not in self._texts:
            self._texts[passage] = f" {' '.join(words_of(passage))} "
        return any(reference in self._texts[passage] for reference in self._references_of(question))

    def place(self, row: Row) -> Place | None:
        """Return where the reference of a wrong answer stands; None for other answers, or references of yes.

        Where the documents were not searched, what is in no shown passage may be anywhere: ``"elsewhere"``.
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


def causes_of(run: EvaluationRun) -> Causes:
    """Return where the references of a run's wrong answers stand."""
    if causes_of not in run.derived:
        metric = next((name for name in run.measures if name in run.metrics), "")
        run.derived[causes_of] = Causes(run, metric, run.documents)
    found: Causes = run.derived[causes_of]
    return found


_REMEDIES: dict[Place, tuple[str, str]] = {
    "shown": ("the model or its prompt", "stands in a passage that the model was shown"),
    "elsewhere": ("the retriever", "stands in a passage that was not shown"),
    "nowhere": ("the folder", "stands in no document"),
}
_NOT_SEARCHED = ("the retriever or the documents", "stands in no passage that was shown")
_CHI_SQUARED_LIMIT = 3.84
"""Square of the difference of two counts over their sum, above which it is shown at 5 % (McNemar)."""


def remedy(causes: Causes, system: str, name: str) -> str:
    """Return what to mend first, in a sentence; empty where no cause of a wrong answer is known."""
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
        return f"Mend {what[first][0]} first, as far as few answers tell: {found}."
    return (
        f"Mend {what[first][0]}, and {what[second][0]}: {found}, for {shares[second]} it {what[second][1]}."
    )


def remedy_of(causes: Causes, place: Place) -> tuple[str, str]:
    """Return what to mend where references stand in a place, and how that is said."""
    return _NOT_SEARCHED if causes.names is None and place == "elsewhere" else _REMEDIES[place]
