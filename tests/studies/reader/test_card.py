"""The model card measures what it says, on readers whose abilities are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from surerag.errors import CapabilityError
from surerag.prompts import NOTHING_TO_EXTRACT
from surerag.readers.protocol import BaseReader, Capabilities
from surerag.types import EntropyTrace, Generation, Prompt, Sampling, TokenTrace
from surerag.world import QuestionKind, World
from surerag.world.core import core_facts
from surerag_studies.reader.card import CardRow, card_table, measure_card

SEED, SIZE, N = 9, 60, 20


class KnownReader(BaseReader):
    """Answers by a function of the prompt, and is as uncertain as another function says."""

    def __init__(self, answer: Callable[[str], str], entropy: Callable[[str], float] = lambda _: 1.0) -> None:
        self._answer, self._entropy = answer, entropy

    @property
    def name(self) -> str:
        return "known"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(logprobs=True, entropy="exact")

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        return [[self._generation(str(prompt))] for prompt in prompts]

    def _generation(self, prompt: str) -> Generation:
        entropy = (self._entropy(prompt),)
        trace = TokenTrace(("x",), (-0.1,), EntropyTrace(entropy, entropy, exact=True))
        return Generation(self._answer(prompt), trace=trace)


def _rows(reader: KnownReader) -> dict[str, CardRow]:
    return {row.task: row for row in measure_card(reader, seed=SEED, n=N, size=SIZE)}


def test_a_reader_that_knows_every_answer() -> None:
    world = World(SEED, SIZE)
    answers: dict[str, str] = {}
    for phrasing in ("all", "held-out"):
        for question in world.questions(3 * N, [QuestionKind.SINGLE], phrasing=phrasing):
            answers[question.text] = question.answers[0]
    for kind in (QuestionKind.UNDER_SPECIFIED, QuestionKind.TWO_HOP):
        answers.update({q.text: q.answers[1] for q in world.questions(2 * N, [kind])})
    for sources in (["core"], ["lead", "deep"]):
        for phrasing in ("all", "held-out"):
            for q in world.questions(N, [QuestionKind.SINGLE], sources=sources, phrasing=phrasing):
                answers[q.text] = q.answers[2]
    taught = {fact.entity for fact in core_facts().values()}

    def asked(prompt: str) -> str:
        return prompt.rsplit("Question: ", 1)[-1].removesuffix("\nAnswer:")

    def entropy(prompt: str) -> float:
        return 0.1 if any(name in asked(prompt) for name in taught) else 3.0

    rows = _rows(KnownReader(lambda prompt: answers.get(asked(prompt), ""), entropy))
    for task in ("answer from 5 passages", "answer from 20 passages", "two-hop from its two gold passages"):
        assert rows[task].value == 1.0 and rows[task].n == N
    assert rows["taught core by heart, untrained phrasings"].value == 1.0
    assert rows["closed-book entropy tells fresh from taught facts (AUROC)"].value == 1.0
    assert rows["rephrasing keeps every fact"].value == 0.0


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("yes", "sufficiency, answer there", "sufficiency, answer not there"),
        ("No.", "sufficiency, answer not there", "sufficiency, answer there"),
        (NOTHING_TO_EXTRACT, 'extraction says "nothing"', "extraction from 5 passages"),
    ],
)
def test_a_reader_that_always_says_the_same(answer: str, right: str, wrong: str) -> None:
    rows = _rows(KnownReader(lambda _: answer))
    assert rows[right].value == 1.0
    assert rows[wrong].value == 0.0
    assert rows["entailment between answers"].value == 0.0
    assert rows["answer from 5 passages"].met is False


def test_a_parrot_does_not_rephrase() -> None:
    rows = _rows(KnownReader(lambda prompt: prompt.split("Text: ")[-1]))
    assert rows["rephrasing keeps every fact"].value == 0.0


def test_the_table_shows_misses() -> None:
    row = CardRow("reading", 0.5, 0.4, 0.6, 100, 0.9)
    assert "0.90 (missed)" in card_table([row])
    assert card_table([row]).count("\n") == 2


def test_a_reader_without_entropies_is_refused() -> None:
    class Mute(KnownReader):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(logprobs=False, entropy=None)

    with pytest.raises(CapabilityError, match="entropies"):
        measure_card(Mute(lambda _: ""), seed=SEED, n=N, size=SIZE)
