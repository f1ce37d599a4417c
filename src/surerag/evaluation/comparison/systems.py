"""Systems to compare: anything that finds contexts for a question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.inputs.seen import Seen
from surerag.evaluation.rows import Question, Row
from surerag.services import Retriever
from surerag.types import Passage

Context = Sequence[Passage | str]
System = Callable[[str], Context | Sequence[Context]]
"""From a question to what the reader is shown: passages or texts. A system that retrieves in several steps
returns one list for each step: all that the reader is shown after it."""

Step = Callable[[str, Sequence[Passage]], Context]
"""From a question and its passages to fewer, shorter or reordered ones: a reranker, a compressor."""


def at_k(retriever: Retriever, k: int) -> System:
    """Return a system that finds ``k`` passages; compare several values of k by several of these.

    Example:
        >>> from surerag.retrieval import PassageIndex
        >>> from surerag.encoders import HashingEncoder
        >>> index = PassageIndex.from_passages([Passage("Velm"), Passage("Orun")], HashingEncoder())
        >>> systems = {f"k = {k}": at_k(index, k) for k in (1, 2)}
        >>> [len(system("Velm?")) for system in systems.values()]
        [1, 2]
    """
    if k < 1:
        raise ConfigurationError(f"k must be at least 1, got {k!r}")
    return lambda question: list(retriever.retrieve(question, k))


def then(system: System, *steps: Step) -> System:
    """Return a system whose passages go through rerankers, compressors or other steps, in this order.

    Example:
        >>> found = then(lambda _: ["Velm", "Orun"], lambda question, passages: passages[:1])("Where?")
        >>> [passage.text for passage in found]
        ['Velm']
    """

    def piped(question: str) -> list[Passage]:
        contexts = contexts_of("the first part", system(question))
        if len(contexts) != 1:
            raise InputError(
                f"a reranker or compressor follows a system that found {len(contexts)} contexts",
                hint="let the workflow call it itself, at each of its steps",
            )
        passages: Sequence[Passage] = contexts[0]
        for step in steps:
            [passages] = contexts_of("a step", step(question, passages))
        return list(passages)

    return piped


def as_system(name: str, given: System | Retriever, k: int) -> System:
    """Return a system as it is, and a retriever as one that finds ``k`` passages.

    Raises:
        ConfigurationError: If it is neither.
    """
    if isinstance(given, Retriever):
        return at_k(given, k)
    if callable(given):
        return given
    raise ConfigurationError(
        f"the system {name!r} is a {type(given).__name__}, neither a function nor a retriever",
        hint="give a function from a question to passages, or an object with retrieve(query, k)",
    )


def asked_once(questions: Iterable[Question]) -> Iterator[Question]:
    """Yield questions, having found that each has a text, gold answers and an id of its own.

    Raises:
        InputError: If one cannot be used.
    """
    seen, count = Seen(), 0
    for text, golds, given in questions:
        name = given or text
        if not text.strip() or isinstance(golds, str) or not golds or not all(g.strip() for g in golds):
            raise InputError(
                f"question {name!r} has the gold answers {golds!r}",
                hint="give a text and a list of at least one gold answer, none of them empty",
            )
        if seen.add(name):
            raise InputError(
                f"two questions have the id {name!r}", hint="give each question an id of its own"
            )
        count += 1
        yield Question(text, golds, given)
    if count == 0:
        raise InputError("there are no questions to compare on", hint="give at least one")


def found_rows(systems: Mapping[str, System], questions: Iterable[Question]) -> Iterator[Row]:
    """Ask every system for each question; all systems' rows of a question come together.

    Raises:
        InputError: If what was found cannot be used.
    """
    for text, golds, given in questions:
        for label, system in systems.items():
            yield Row(given or text, label, text, tuple(golds), contexts_of(label, system(text)))


def contexts_of(name: str, found: Any) -> tuple[tuple[Passage, ...], ...]:
    """Return what a system found as passages, one tuple a step.

    Raises:
        InputError: If it is anything else.
    """
    if isinstance(found, Sequence) and not isinstance(found, str):
        if all(isinstance(item, Passage | str) for item in found):
            return (tuple(_passage(item) for item in found),)
        steps = [step for step in found if isinstance(step, Sequence) and not isinstance(step, str)]
        if len(steps) == len(found) and all(isinstance(p, Passage | str) for step in steps for p in step):
            return tuple(tuple(_passage(item) for item in step) for step in steps)
    raise InputError(
        f"{name!r} found {str(type(found))!s}: {ascii(found)[:80]}",
        hint="return a list of passages or texts, or one such list for each step",
    )


def _passage(item: Passage | str) -> Passage:
    return Passage(item) if isinstance(item, str) else item
