"""Questions of the SePer benchmark, and how often a reader repeats itself when asked them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from surerag import Passage, SePerCase, SePerOptions
from surerag.methods.seper.algorithm import context_prompt
from surerag.readers.protocol import BaseReader
from surerag.types import Sampling
from surerag.world import Question, World

WITHOUT, WITH = "a", "b"
"""Letters that the two prompts put behind a question's mark, which is its last word."""

PROMPTS = {
    name: SePerOptions.PROMPTS[name].text.replace("{question}", "{question}" + letter)
    for name, letter in (("closed_book", WITHOUT), ("from_passages", WITH))
}
"""SePer's prompts, with those letters: a random model knows by its last word what it is asked."""

WORD = re.compile(r"\w+|[^\w\s]+")
"""One token of the random reader."""

_PASSAGES = 5
"""Passages that the embedded reader gets where its repetition is measured; it reads few well."""


class Repetition(NamedTuple):
    """What a reader's samples for one prompt were like.

    Attributes:
        distinct: How many different answers there were.
        lengths: Words of each of these.
        gold: Whether a gold answer was among them.
    """

    distinct: int
    lengths: tuple[int, ...]
    gold: bool


class Pool(NamedTuple):
    """Equally likely answers to one prompt, and the word that the prompt ends in."""

    mark: str
    answers: tuple[str, ...]


def cases(world: World, questions: Sequence[Question], tokens: int) -> list[SePerCase]:
    """Return the questions, each with a mark as its last word, their gold answers and contexts.

    Args:
        world: Where passages come from.
        questions: Of that world.
        tokens: Length of each context: passages that hold the answer, and others, cut to measure.
    """
    return [
        SePerCase(f"{question.text} q{place}", question.answers, context(world, question, tokens))
        for place, question in enumerate(questions)
    ]


def context(world: World, question: Question, tokens: int) -> list[Passage]:
    """Return gold passages, and then others up to so many words and marks; the last one is cut."""
    least = max(len(question.gold_passages), 1)
    drawn = world.context(question, least + tokens // 8, noise=0.5)
    chosen: list[Passage] = []
    for passage in sorted(drawn, key=lambda one: one.id not in question.gold_passages):
        spans = list(WORD.finditer(passage.text))[:tokens]
        if not spans:
            break
        chosen.append(Passage(passage.text[: spans[-1].end()], id=passage.id))
        tokens -= len(spans)
    return chosen


def prompts(asked: Sequence[SePerCase]) -> Mapping[str, list[str]]:
    """Return what a reader is asked ``"without"`` context and ``"with"`` it, one prompt a question."""
    options = SePerOptions(prompts=PROMPTS)
    return {
        "without": [context_prompt(case.question, [], options) for case in asked],
        "with": [context_prompt(case.question, case.passages, options) for case in asked],
    }


def measure(
    reader: BaseReader, world: World, questions: Sequence[Question], samples: int
) -> Mapping[str, list[Repetition]]:
    """Sample answers to real questions, without and with a context that holds the answer."""
    options = SePerOptions()
    sampling = Sampling(n=samples, temperature=1.0)
    found: dict[str, list[Repetition]] = {}
    for name in ("without", "with"):
        contexts = [world.context(q, _PASSAGES) if name == "with" else () for q in questions]
        asked = [context_prompt(q.text, c, options) for q, c in zip(questions, contexts, strict=True)]
        rows = reader.generate(asked, sampling)
        found[name] = [
            repetition([one.text for one in row], q.answers) for q, row in zip(questions, rows, strict=True)
        ]
    return found


def repetition(texts: Sequence[str], golds: Sequence[str]) -> Repetition:
    """Describe samples.

    Example:
        >>> repetition(["Velm", "Velm", "the Orun"], ["Velm"])
        Repetition(distinct=2, lengths=(1, 2), gold=True)
    """
    different = dict.fromkeys(texts)
    lengths = tuple(max(len(WORD.findall(text)), 1) for text in different)
    return Repetition(len(different), lengths, any(gold in different for gold in golds))


def pool_size(distinct: int, draws: int) -> int:
    """Return how many equally likely answers there must be for so many to be distinct, on average.

    Of ``draws`` answers out of K, K (1 − (1 − 1/K)^draws) differ on average. Where all are distinct, no
    K is enough, and ten times as many answers as draws are taken.

    Example:
        >>> [pool_size(distinct, 10) for distinct in (1, 2, 5, 9, 10)]
        [1, 2, 6, 42, 100]
    """

    def expected(size: int) -> float:
        return float(size * (1 - (1 - 1 / size) ** draws))

    return min(range(1, 10 * draws + 1), key=lambda size: abs(expected(size) - distinct))


def pools(
    asked: Sequence[SePerCase], measured: Mapping[str, Sequence[Repetition]], samples: int, longest: int
) -> list[Pool]:
    """Give every prompt its equally likely answers: as varied and as long as those that were measured.

    The two prompts of a question draw from one list of invented answers, which begins with a gold answer
    of one word where the measured reader said a gold answer.

    Args:
        asked: The questions.
        measured: What real samples were like, without and with context, one for each question.
        samples: How many answers are drawn from a pool.
        longest: Words that an answer may have.
    """
    found = []
    for place, case in enumerate(asked):
        rows = {WITHOUT: measured["without"][place], WITH: measured["with"][place]}
        sizes = {letter: pool_size(row.distinct, samples) for letter, row in rows.items()}
        lengths = [min(length, longest) for row in rows.values() for length in row.lengths]
        invented = [answer(f"w{place}x{i}", lengths[i % len(lengths)]) for i in range(max(sizes.values()))]
        golds = [gold for gold in case.golds if WORD.fullmatch(gold)]
        if golds and any(row.gold for row in rows.values()):
            invented[0] = golds[0]
        mark = case.question.split()[-1]
        found += [Pool(mark + letter, tuple(invented[:size])) for letter, size in sizes.items()]
    return found


def answer(first: str, length: int) -> str:
    """Return an answer of so many words.

    Example:
        >>> answer("w0x1", 3)
        'w0x1 then2 then1'
    """
    return " ".join([first, *(f"then{left}" for left in range(length - 1, 0, -1))])
