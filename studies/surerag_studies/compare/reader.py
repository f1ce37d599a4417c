"""A reader whose behaviour is planted: it reads, knows, doubts and loses its way as it is told."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from surerag.readers.protocol import BaseReader, Capabilities
from surerag.tokens import estimated_tokens
from surerag.types import EntropyTrace, Generation, Prompt, Sampling, TokenTrace, as_messages
from surerag.world import Question, World

_ASKED = re.compile(r"Question: (.*)")
_REWRITE, _EXTRACT = "Rewrite the query", "Extract from the documents"
_SURE, _UNSURE = 0.1, 1.6


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What is planted.

    Attributes:
        reading: Probability of answering from a passage that tells.
        lost: How much of it each further line of the context takes away.
        overconfident: Share of questions on which it is sure where it is wrong.
        noise: Share of prompts that it answers wrongly for no reason, so that systems differ by chance.
    """

    reading: float = 0.95
    lost: float = 0.0
    overconfident: float = 0.0
    noise: float = 0.02


class PlantedReader(BaseReader):
    """Answers a world's questions as its behaviour says; the same prompt always gets the same answer.

    Args:
        world: Whose passages it is shown.
        questions: What it may be asked.
        behaviour: What is planted.
    """

    def __init__(self, world: World, questions: Sequence[Question], behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._asked: Mapping[str, Question] = {
            text: one for one in questions for text in (one.rewrite, one.text) if text is not None
        }
        self._gold = {
            one.id: tuple(world.passage[name].text for name in one.gold_passages) for one in questions
        }

    @property
    def name(self) -> str:
        """Identity of the reader."""
        return "planted"

    @property
    def capabilities(self) -> Capabilities:
        """It tells everything."""
        return Capabilities(logprobs=True, entropy="exact", local=True)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Return planted answers."""
        texts = [as_messages(prompt)[-1].content for prompt in prompts]
        return [[self._answer(text, at) for at in range(sampling.n)] for text in texts]

    def _answer(self, text: str, at: int) -> Generation:
        if text.startswith(_REWRITE):
            query = text.partition("Query: ")[2].strip()
            found = self._asked.get(query)
            return _said((found.rewrite if found is not None else None) or query, text, _SURE)
        question = next(
            (self._asked[one.strip()] for one in _ASKED.findall(text) if one.strip() in self._asked), None
        )
        if question is None:
            return _said("unknown", text, _UNSURE)
        gold = self._gold[question.id]
        told = bool(gold) and all(passage in text for passage in gold)
        if text.startswith(_EXTRACT) or "Extracted:" in text:
            kept = "\n".join(passage for passage in gold if passage in text)
            return _said(kept or "No content to extract", text, _SURE)
        right = self._is_right(question, text, told)
        # A slip is of this prompt alone, so that it parts systems; all else is of the question.
        right = right and _chance("slip", question.id, text, str(at)) >= self._behaviour.noise
        knows = told or question.taught
        sure = knows or _chance("sure", question.id) < self._behaviour.overconfident
        return _said(question.answers[0] if right else "Nowhere", text, _SURE if sure else _UNSURE)

    def _is_right(self, question: Question, text: str, told: bool) -> bool:
        lines = text.count("\n")
        likely = self._behaviour.reading - self._behaviour.lost * max(lines - 4, 0)
        if told:
            return _chance("read", question.id) < likely
        return question.taught and _chance("heart", question.id) < self._behaviour.reading


def _said(text: str, prompt: str, entropy: float) -> Generation:
    trace = TokenTrace((text,), (-entropy,), EntropyTrace((entropy,), (entropy,), exact=True))
    return Generation(text, estimated_tokens(prompt), trace, completion_tokens=estimated_tokens(text))


def _chance(*what: str) -> float:
    digest = hashlib.sha256("\0".join(what).encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64
