"""What SePer's Table 2 compares ΔSePer with: other measures of the same answers, and a reader as a judge."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from surerag.measures import bert_score, bleu, exact_match, rouge_l, token_f1
from surerag.prompts import RATE_ANSWER, RATE_ANSWER_IN_CONTEXT, RATE_CONTRIBUTION, PromptSet
from surerag.readers.protocol import Reader
from surerag.types import Sampling, Template

Level = Callable[[Sequence[str], NDArray[np.float64], Sequence[str]], float]
"""From sampled answers, the mean log-probability of each one's tokens, and gold answers to a level; what a
context is worth is the level with it less that without. Larger is better: uncertainties are negated."""


def mean_of(measure: Callable[[str, Sequence[str]], float]) -> Level:
    """Return the mean of a measure of one answer over the samples (section 4.1.2)."""
    return lambda texts, logs, golds: float(np.mean([measure(text, golds) for text in texts]))


RIVALS: Mapping[str, Level] = MappingProxyType(
    {
        "Exact match": mean_of(exact_match),
        "Token F1": mean_of(token_f1),
        "ROUGE-L": mean_of(rouge_l),
        "BLEU": mean_of(bleu),
        "Perplexity": lambda texts, logs, golds: -float(np.exp(-logs).mean()),
        # The mean of the negative log-probability is the Monte Carlo entropy.
        "Entropy": lambda texts, logs, golds: float(logs.mean()),
    }
)
"""The rows of Table 2 that need no model of their own."""


@runtime_checkable
class TokenEncoder(Protocol):
    """What BERTScore asks for."""

    def encode_tokens(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """Return vectors of length 1 of each text's tokens, [tokens, dimensions]."""


class BertScores:
    """BERTScore of answers, each text encoded once.

    Args:
        encoder: Gives vectors of tokens, such as :func:`surerag.encoders.packaged_minilm`.
        texts: All answers and gold answers that will be compared.
    """

    def __init__(self, encoder: TokenEncoder, texts: Iterable[str]) -> None:
        distinct = list(dict.fromkeys(texts))
        self._vectors = dict(zip(distinct, encoder.encode_tokens(distinct), strict=True))

    def __call__(self, answer: str, golds: Sequence[str]) -> float:
        """Return the largest BERTScore over the gold answers."""
        return max((bert_score(self._vectors[answer], self._vectors[gold]) for gold in golds), default=0.0)


class Rated(NamedTuple):
    """A case for a judge.

    Attributes:
        question: As asked.
        context: What the answer is said to rest on.
        answer: The answer.
    """

    question: str
    context: str
    answer: str


class RatingJudge:
    """A reader that rates from 1 to 10, as in SePer's appendix B.2.

    Args:
        reader: The judge.
        prompts: Texts in place of ours: ``rate_contribution``, ``rate_answer_in_context``, ``rate_answer``.
    """

    PROMPTS = PromptSet(
        rate_contribution=RATE_CONTRIBUTION,
        rate_answer_in_context=RATE_ANSWER_IN_CONTEXT,
        rate_answer=RATE_ANSWER,
    )

    def __init__(self, reader: Reader, *, prompts: Mapping[str, Template | str] | None = None) -> None:
        self._reader = reader
        self._prompts = self.PROMPTS.replaced(prompts or {})

    def direct(self, cases: Sequence[Rated]) -> NDArray[np.float64]:
        """Rate what each context contributes, from 0 to 1; not a number where the reply is no rating."""
        return self._asked("rate_contribution", [case._asdict() for case in cases])

    def reduction(self, cases: Sequence[Rated]) -> NDArray[np.float64]:
        """Rate each answer with the context less without, from −1 to 1."""
        without = [{"question": case.question, "answer": case.answer} for case in cases]
        shown = self._asked("rate_answer_in_context", [case._asdict() for case in cases])
        return shown - self._asked("rate_answer", without)

    def _asked(self, name: str, values: Sequence[Mapping[str, str]]) -> NDArray[np.float64]:
        prompts = [self._prompts[name].render(**slots) for slots in values]
        replies = self._reader.generate(prompts, Sampling(max_tokens=8, trace="none")) if prompts else []
        return np.array([rating(reply.text) for [reply] in replies])


def rating(reply: str) -> float:
    """Return a rating from 1 to 10 as a share, or NaN where a reply holds none, or several numbers.

    Example:
        >>> rating("10"), rating("Rating: 1"), rating("7/10"), rating("Velm")
        (1.0, 0.0, 0.6666666666666666, nan)
    """
    numbers = re.findall(r"\d+(?:\.\d+)?", re.sub(r"/\s*10\b", "", reply))
    value = float(numbers[0]) if len(numbers) == 1 else float("nan")
    return (value - 1) / 9 if 1 <= value <= 10 and value == int(value) else float("nan")
