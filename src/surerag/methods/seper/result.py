"""Results of SePer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from surerag.measures.seper import Kernel, Weights
from surerag.measures.statistics import Interval
from surerag.messages import Passage, Result


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One sampled answer.

    Attributes:
        text: The text of the answer.
        log_likelihood: Log-likelihood of the answer in nats; None if the reader does not report it.
        weight: The answer's weight in the reader's belief, in [0, 1].
        entailment: For each reference, the probability that the answer entails it.
        cluster: Index of the cluster of answers with the same meaning; None with the option
            ``kernel="soft"``.
    """

    text: str
    log_likelihood: float | None
    weight: float
    entailment: tuple[float, ...]
    cluster: int | None = None


@dataclass(frozen=True, slots=True)
class Belief:
    """The reader's belief in the reference answers, with or without context.

    Attributes:
        seper: The belief (SePer), in [0, 1].
        interval: 95 % confidence interval of the belief.
        answers: The sampled answers.
        truncated: Number of sampled answers that were truncated at ``max_tokens``.
    """

    seper: float
    interval: Interval
    answers: tuple[SampledAnswer, ...]
    truncated: int = 0


@dataclass(frozen=True)
class SePerResult(Result):
    """How much the passages changed the reader's belief in the right answers to one question.

    Attributes:
        question: The question.
        references: The right answers.
        before: Belief without context.
        after: Belief with the passages as context.
        delta: ΔSePer: the belief with context minus the belief without context (Eq. 11), in [−1, 1].
        interval: 95 % confidence interval of ``delta``.
        weights: The rule by which answers were weighted. It is ``"frequency"`` if the reader generates
            thoughts, or does not report the log-probabilities of all tokens and of the end token. Otherwise,
            the option ``variant`` chooses the rule.
        kernel: The option ``kernel``, ``"soft"`` or ``"hard"``; see :class:`SePerOptions`.
        judgements: Number of pairs that the entailer judged.
        unusable: Number of pairs for which the entailer's reply could not be used.
        usage: Number of requests and tokens, and seconds, for this question.
    """

    question: str
    references: tuple[str, ...]
    before: Belief
    after: Belief
    delta: float
    interval: Interval
    weights: Weights
    kernel: Kernel
    judgements: int
    unusable: int

    @property
    def truncated(self) -> int:
        """Number of samples, with and without context, that were truncated at ``max_tokens``."""
        return self.before.truncated + self.after.truncated

    def explain(self) -> str:
        """Return a text of several lines with the beliefs and the sampled answers, for people to read."""
        interval = f"[{self.interval.lower:+.3f}, {self.interval.upper:+.3f}]"
        lines = [
            self.question,
            f"references: {' | '.join(self.references)}",
            f"ΔSePer {self.delta:+.3f}  {interval}  ({self.kernel} kernel, {self.weights} weights)",
        ]
        if self.truncated:
            total = len(self.before.answers) + len(self.after.answers)
            lines.append(f"{self.truncated} of {total} answers were cut off at max_tokens")
        if self.unusable:
            lines.append(f"{self.unusable} of {self.judgements} judgements could not be used")
        for name, belief in (("without context", self.before), ("with context", self.after)):
            lines.append(f"{name}: SePer {belief.seper:.3f}")
            counts = Counter(answer.text for answer in belief.answers)
            for text, count in counts.most_common():
                same = [answer for answer in belief.answers if answer.text == text]
                weight = sum(answer.weight for answer in same)
                p = max(same[0].entailment)
                label = text or "(nothing)"
                lines.append(f"  {count:>3} × {label}  weight {weight:.2f}, P(entails a reference) {p:.2f}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PassageUtility:
    """How much one passage contributed to the reader's belief.

    Attributes:
        passage: The passage.
        alone: ΔSePer with this passage as the only context.
        lost: SePer with all passages minus SePer without this passage.
    """

    passage: Passage
    alone: float
    lost: float


@dataclass(frozen=True)
class PassageUtilities(Result):
    """ΔSePer of all passages together, and of each passage.

    Attributes:
        whole: The result of all passages together.
        passages: The utility of each passage, in the order of the input.
    """

    whole: SePerResult
    passages: tuple[PassageUtility, ...]
