"""How facts are said and asked: sentences, questions, passages, aliases.

Each relation can be stated and asked in several phrasings. A part of the phrasings is held out: the
embedded reader is never trained on them, so that what a card measures on them is not recall of a form.
Held-out phrasings combine a frame and a noun that were each seen, but never together.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache

from studies.world.lexicon import Kind
from studies.world.relations import RELATIONS, Relation

_STATEMENT_FRAMES = ("The {noun} of {e} is {v}.", "For {e} the {noun} is {v}.")
_VALUE_FIRST_FRAME = "{v} is the {noun} of {e}."
_COUNTS_FRAME = "{e} counts {v} as {noun}."
_QUESTION_FRAMES = (
    "What is the {noun} of {e}?",
    "What is {e}'s {noun}?",
    "Tell me the {noun} of {e}.",
    "Do you know the {noun} of {e}?",
)
_NAMED = frozenset(
    {
        Kind.PERSON,
        Kind.CITY,
        Kind.COMPANY,
        Kind.RIVER,
        Kind.COUNTRY,
        Kind.MOUNTAIN,
        Kind.SEA,
        Kind.LANGUAGE,
        Kind.YEAR,
    }
)
OPENINGS = (
    "By all accounts,",
    "As the records show,",
    "People say that",
    "It is well known that",
    "In fact,",
)
STALE_OPENINGS = ("It used to be said that", "An old and wrong report says that", "Formerly it was held that")
FILLERS = (
    "Travellers often speak of {e}.",
    "Much has been written about {e}.",
    "Not everything about {e} is known.",
    "Old songs have been sung about {e}.",
    "Many letters mention {e} with respect.",
    "Guides never tire of praising {e}.",
    "Visitors like to hear about {e}.",
    "Few would argue about {e} today.",
)
_PHRASES = {
    Kind.PERSON: "someone named {v}",
    Kind.CITY: "the city of {v}",
    Kind.COMPANY: "the company {v}",
    Kind.FILM: "the film {v}",
    Kind.RIVER: "the river {v}",
    Kind.COUNTRY: "the country of {v}",
    Kind.MOUNTAIN: "the mountain {v}",
    Kind.SEA: "the sea of {v}",
    Kind.CURRENCY: "the coin called {v}",
    Kind.LANGUAGE: "the language called {v}",
    Kind.YEAR: "the year {v}",
    Kind.LENGTH: "{v} miles",
    Kind.PROFESSION: "a {v}",
    Kind.INSTRUMENT: "the {v}",
    Kind.ANIMAL: "a {v}",
    Kind.MATERIAL: "mainly {v}",
    Kind.PRODUCT: "mostly {v}",
    Kind.GENRE: "a {v}",
    Kind.FISH: "the fish {v}",
    Kind.FLOWER: "the flower {v}",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """An entity, a relation, and the value."""

    entity: str
    relation: Relation
    value: str


@dataclass(frozen=True, slots=True)
class Phrasings:
    """Templates of one relation, parted into those trained on and those held out."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...]

    def choose(self, rng: random.Random, *, held_out: bool | None) -> str:
        """Draw a template: held-out, trained, or (None) any."""
        pool = (
            self.trained + self.held_out if held_out is None else self.held_out if held_out else self.trained
        )
        return rng.choice(pool)


@cache
def statements(relation: Relation) -> Phrasings:
    """Return the sentence templates of a relation; the first one trained on is canonical."""
    third = _VALUE_FIRST_FRAME if relation.value in _NAMED else _COUNTS_FRAME
    framed = [f.replace("{noun}", noun) for noun in relation.nouns for f in (*_STATEMENT_FRAMES, third)]
    index = RELATIONS.index(relation)
    held_out = framed.pop(index % len(framed))
    own = [s for s in relation.statements if relation.value in _NAMED or not s.startswith("{v}")]
    return Phrasings((*own, *framed), (held_out,))


@cache
def questions(relation: Relation) -> Phrasings:
    """Return the question templates of a relation; the first one trained on is canonical."""
    framed = [f.replace("{noun}", noun) for noun in relation.nouns for f in _QUESTION_FRAMES]
    index = RELATIONS.index(relation)
    held = (framed[index % len(framed)], framed[(index + 3) % len(framed)])
    trained = dict.fromkeys((*relation.questions, *framed))
    return Phrasings(tuple(question for question in trained if question not in held), held)


def state(fact: Fact, template: str) -> str:
    """Say a fact in a sentence."""
    return template.replace("{e}", fact.entity).replace("{v}", fact.value)


def opened(opening: str, sentence: str, keep: tuple[str, ...]) -> str:
    """Put an opening before a sentence, in lower case unless it begins with one of the names to keep."""
    return f"{opening} {sentence}" if sentence.startswith(keep) else f"{opening} {lower_first(sentence)}"


def stale(fact: Fact, template: str, rng: random.Random) -> str:
    """Say an outdated fact, marked as outdated."""
    return opened(rng.choice(STALE_OPENINGS), state(fact, template), (fact.entity, fact.value))


def question_about(relation: Relation, entity: str, template: str) -> str:
    """Ask for a relation of an entity."""
    return template.replace("{e}", entity)


def canonical_question(relation: Relation, entity: str) -> str:
    """Ask in the words that a rewrite uses."""
    return relation.questions[0].replace("{e}", entity)


def described(relation: Relation, entity: str, rng: random.Random) -> str:
    """Name an entity by its relation to another: ``the birthplace of Griga``."""
    return f"the {rng.choice(relation.nouns)} of {entity}"


def two_hop_question(outer: Relation, inner: Relation, entity: str, template: str, rng: random.Random) -> str:
    """Ask for a relation of an entity that is only described."""
    if "{e}'s" in template:
        template = _QUESTION_FRAMES[0].replace("{noun}", outer.nouns[0])
    return template.replace("{e}", described(inner, entity, rng))


def lower_first(text: str) -> str:
    """Put the first letter in lower case."""
    return text[:1].lower() + text[1:]


def phrase(value: str, kind: Kind) -> str:
    """Say a value in a few words: ``the city of Larnholm``."""
    return _PHRASES[kind].replace("{v}", value)


def aliases(fact: Fact) -> tuple[str, ...]:
    """Return the forms of an answer: a word, a phrase, a sentence."""
    return (fact.value, phrase(fact.value, fact.relation.value), state(fact, fact.relation.statements[0]))


def count_words(text: str) -> int:
    """Count words and punctuation marks, which is about what the embedded tokenizer counts."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def compose_passage(sentences: list[str], entity: str, values: tuple[str, ...], rng: random.Random) -> str:
    """Join sentences into a passage of 15 to 30 words, with openings and a filler where it is short."""
    parts = list(sentences)
    if len(parts) == 1 or sum(map(count_words, parts)) < 13:
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(FILLERS).replace("{e}", entity))
    for index in rng.sample(range(len(parts)), len(parts)):
        long_enough = sum(map(count_words, parts)) >= 15 and rng.random() < 0.75
        if not long_enough and sum(map(count_words, parts)) < 26:
            parts[index] = opened(rng.choice(OPENINGS), parts[index], (entity, *values))
    return " ".join(parts)
