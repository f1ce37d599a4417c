"""What a question needs to be told, and whether a text tells it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from surerag.types import Passage
from surerag.world.language import STALE_OPENINGS, Fact
from surerag.world.questions import Question
from surerag.world.world import World

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_STALE = tuple(opening.casefold() for opening in STALE_OPENINGS)


def needed_facts(world: World, question: Question) -> tuple[Fact, ...]:
    """Return the facts that a question's answer follows from: one, or the two links of a chain.

    Args:
        world: The question's world.
        question: Answered by some article of it.
    """
    told = [world.contexts.facts_of(world.passage[place]) for place in question.gold_passages]
    last = next(
        fact
        for fact in told[-1]
        if fact.value == question.answers[0]
        and fact.relation.value is question.value_kind
        and (question.hops == 2 or fact.entity == question.entity)
    )
    if question.hops == 1:
        return (last,)
    first = next(fact for fact in told[0] if fact.entity == question.entity and fact.value == last.entity)
    return first, last


def tells(text: str, fact: Fact) -> bool:
    """Return whether one sentence names the fact's entity and its value, and is not marked as outdated.

    Every sentence of the world names its subject, so that a sentence cut in two mostly tells nothing.
    """
    return any(
        _names(sentence, fact.entity)
        and _names(sentence, fact.value)
        and not sentence.casefold().startswith(_STALE)
        for sentence in _SENTENCE_END.split(text)
    )


def tells_all(passages: Iterable[Passage], facts: Sequence[Fact]) -> bool:
    """Return whether passages together tell every one of some facts."""
    shown = list(passages)
    return all(any(tells(passage.text, fact) for passage in shown) for fact in facts)


def tells_any(passage: Passage, facts: Iterable[Fact]) -> bool:
    """Return whether a passage tells at least one of some facts."""
    return any(tells(passage.text, fact) for fact in facts)


def _names(sentence: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", sentence, re.IGNORECASE) is not None
