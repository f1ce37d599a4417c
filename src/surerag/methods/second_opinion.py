"""Measure how sure a model is of its answer by more calls of the model; log-probabilities are not needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from surerag.certainty import NO_WORDS, Certainty
from surerag.effects import Generate, Program, emit, perform
from surerag.errors import check_at_least
from surerag.measures import Interval, discrete_semantic_entropy
from surerag.messages import (
    ANSWER_TOKENS,
    EVENT_SENTENCES,
    Generation,
    Message,
    Prompt,
    SamplingParams,
    as_messages,
)
from surerag.methods.shared import MUST_RAISE, meaning_clusters, yes_probability
from surerag.prompts import ARE_YOU_SURE
from surerag.readers.failures import in_plain_words

_REPLY_TOKENS = 3


@dataclass(frozen=True)
class SecondOpinion(ABC):
    """Base class of the certainty measures that call the model again after its answer.

    Attributes:
        model: The model to call: a reader, or a model of LangChain or LlamaIndex.
    """

    model: Any = field(repr=False)

    def program(self, prompt: Prompt, answer: str) -> Program[Certainty]:
        """Return the generator that calls the model again and returns the model's certainty of the answer.

        If a call fails, the generator emits a warning event, and returns a certainty that has no measures,
        but a ``reason``.

        Args:
            prompt: The prompt that the model answered.
            answer: The model's answer.
        """
        if not answer.strip():
            return Certainty(reason=NO_WORDS)
        try:
            return (yield from self._opinion(prompt, answer))
        except MUST_RAISE:
            raise
        except Exception as error:
            yield from emit("certainty.failed", warning=True, reason=in_plain_words(error))
            return Certainty(reason="the second call of the model failed")

    @abstractmethod
    def _opinion(self, prompt: Prompt, answer: str) -> Program[Certainty]: ...


@dataclass(frozen=True)
class AreYouSure(SecondOpinion):
    """Asks the model whether it is sure of its answer.

    The measure ``self_doubt`` is 1 − P(yes). P(yes) is computed from the log-probability of the token ``yes``
    or ``no`` in the model's reply. Without log-probabilities, P(yes) is 1 for the reply yes, and 0 for the
    reply no.

    Cost: one more call for each answer, with the prompt and the answer as input, and at most three tokens as
    output.

    Example:
        >>> from surerag import FakeReader, Services
        >>> from surerag.drivers import run
        >>> reader = FakeReader(["Yes"], logprob=-0.1)
        >>> program = AreYouSure(reader).program("Where was Ada born?", "Velm")
        >>> certainty = run(program, Services(reader=reader))
        >>> certainty.measure, round(certainty.uncertainty, 2)
        ('self_doubt', 0.1)
    """

    def _opinion(self, prompt: Prompt, answer: str) -> Program[Certainty]:
        turns = (*as_messages(prompt), Message("assistant", answer))
        question: Prompt = (*turns, Message("user", ARE_YOU_SURE.render()))
        sampling = SamplingParams(max_tokens=_REPLY_TOKENS, trace="optional")
        [[reply]] = yield from perform(Generate([question], sampling))
        right = yes_probability(reply)
        if right is None:
            return Certainty(
                reason="the model was asked whether it is sure, and its reply is neither yes nor no"
            )
        return _measured({"self_doubt": 1 - right})


@dataclass(frozen=True)
class SampleAgreement(SecondOpinion):
    """Samples more answers to the prompt of an answer, and counts how many samples agree with this answer.

    Two answers agree if the words of one answer occur in the other answer as one sequence, so use short
    answers. There are two measures. The default uncertainty is ``disagreement``, the share of samples that do
    not agree with the answer. ``semantic_entropy`` is the discrete semantic entropy of the samples, in nats
    (Farquhar et al., Nature 630, 2024).

    Cost: ``n_samples`` more answers at temperature 1. A server that accepts the parameter ``n`` processes the
    prompt once for all samples; another server processes the prompt once for each sample.

    Attributes:
        model: The model that answered: a reader, or a model of LangChain or LlamaIndex.
        n_samples: Number of answers to sample.
        max_tokens: Maximum length of a sample, in tokens.

    Example:
        >>> from surerag import FakeReader, Services
        >>> from surerag.drivers import run
        >>> reader = FakeReader(["Velm", "in Velm", "Orun", "Velm"])
        >>> opinion = SampleAgreement(reader, n_samples=4)
        >>> certainty = run(opinion.program("Where was Ada born?", "Velm"), Services(reader=reader))
        >>> certainty.measure, certainty.uncertainty
        ('disagreement', 0.25)
    """

    _: KW_ONLY
    n_samples: int = 5
    max_tokens: int = ANSWER_TOKENS

    def __post_init__(self) -> None:
        check_at_least(1, max_tokens=self.max_tokens)
        check_at_least(2, n_samples=self.n_samples)

    def _opinion(self, prompt: Prompt, answer: str) -> Program[Certainty]:
        sampling = SamplingParams(self.n_samples, temperature=1.0, max_tokens=self.max_tokens, trace="none")
        [samples] = yield from perform(Generate([prompt], sampling))
        return _measured(agreement(answer, samples))


def agreement(answer: str, samples: list[Generation]) -> dict[str, float]:
    """Return the two measures of :class:`SampleAgreement`, with their names as keys."""
    texts = [sample.text for sample in samples]
    answer_cluster, *sample_clusters = meaning_clusters([answer, *texts])
    return {
        "disagreement": 1 - sample_clusters.count(answer_cluster) / len(texts),
        "semantic_entropy": discrete_semantic_entropy(meaning_clusters(texts)),
    }


def _measured(measures: Mapping[str, float]) -> Certainty:
    intervals = {name: Interval(value, value) for name, value in measures.items()}
    return Certainty(intervals, next(iter(intervals)))


EVENT_SENTENCES |= {
    "certainty.failed": "The certainty of the model could not be measured",
}
