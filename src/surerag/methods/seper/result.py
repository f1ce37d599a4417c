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
        log_likelihood: Log-likelihood that gives the weight, in nats; None if the frequency gives it.
        weight: The answer's share of the reader's belief.
        entailment: Degree to which the answer means each reference, in [0, 1].
        cluster: Number of the answer's cluster of meaning; None under the soft kernel.
    """

    text: str
    log_likelihood: float | None
    weight: float
    entailment: tuple[float, ...]
    cluster: int | None = None


@dataclass(frozen=True, slots=True)
class Belief:
    """The reader's belief in the reference answers, in one context.

    Attributes:
        seper: SePer, in [0, 1].
        interval: 95 % interval over the samples; an exact interval if all samples agree.
        answers: The samples.
        truncated: Number of samples that were cut off at ``max_tokens``.
    """

    seper: float
    interval: Interval
    answers: tuple[SampledAnswer, ...]
    truncated: int = 0


@dataclass(frozen=True)
class SePerResult(Result):
    """How much retrieval changed the reader's belief.

    Attributes:
        question: The question.
        references: The right answers.
        before: Belief without context.
        after: Belief with context.
        delta: ΔSePer = after − before (Eq. 11), in [−1, 1].
        interval: 95 % interval of ``delta``, over the samples.
        weights: How answers were weighted: by ``"frequency"`` if the reader does not list the log-probability
            of every token and of the end token, or thinks before it answers.
        kernel: ``"soft"`` counts an answer by the probability that it entails a reference; ``"hard"`` by yes
            or no.
        judgements: Number of pairs that the entailer judged.
        unusable: Number of pairs without a usable reply; more than a tenth are an error.
        usage: Requests, tokens and seconds of the question.
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
        """Number of samples in both contexts that were cut off at ``max_tokens``."""
        return self.before.truncated + self.after.truncated

    def explain(self) -> str:
        """Return an explanation of the result, a text of several lines."""
        interval = f"[{self.interval.lower:+.3f}, {self.interval.upper:+.3f}]"
        lines = [
            self.question,
            f"references: {' | '.join(self.references)}",
            f"ΔSePer {self.delta:+.3f}  {interval}  ({self.kernel} kernel, {self.weights} weights)",
        ]
        if self.truncated:
            total = len(self.before.answers) + len(self.after.answers)
            lines.append(f"{self.truncated} of {total} answers were cut at max_tokens")
        if self.unusable:
            lines.append(f"{self.unusable} of {self.judgements} judgements could not be used")
        for name, belief in (("without context", self.before), ("with context", self.after)):
            lines.append(f"{name}: SePer {belief.seper:.3f}")
            counts = Counter(answer.text for answer in belief.answers)
            for text, count in counts.most_common():
                same = [answer for answer in belief.answers if answer.text == text]
                weight = sum(answer.weight for answer in same)
                meaning = max(same[0].entailment)
                shown = text or "(nothing)"
                lines.append(f"  {count:>3} × {shown}  weight {weight:.2f}, means a reference {meaning:.2f}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PassageUtility:
    """How much one passage contributed.

    Attributes:
        passage: The passage.
        alone: ΔSePer of this passage by itself.
        lost: SePer with all passages minus SePer with all passages but this one.
    """

    passage: Passage
    alone: float
    lost: float


@dataclass(frozen=True)
class PassageUtilities(Result):
    """ΔSePer of all passages together, and of each passage.

    Attributes:
        whole: ΔSePer of all passages together.
        passages: One utility for each passage, in order.
    """

    whole: SePerResult
    passages: tuple[PassageUtility, ...]
