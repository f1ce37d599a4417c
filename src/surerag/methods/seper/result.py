"""Results of SePer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from surerag.measures.seper import Kernel, Weights
from surerag.messages import Passage, Result


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One sample, and what it counts for.

    Attributes:
        text: The answer.
        log_likelihood: Mean or sum of its tokens' log-probabilities, as set; None without any.
        weight: Its share of the reader's belief.
        cluster: Its meaning cluster; None under the soft kernel.
        entailment: Degree to which it means each gold answer, in [0, 1].
    """

    text: str
    log_likelihood: float | None
    weight: float
    cluster: int | None
    entailment: tuple[float, ...]


class Interval(NamedTuple):
    """A 95 % bootstrap interval over the samples."""

    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Belief:
    """The reader's belief in the gold answers, in one context.

    Attributes:
        seper: SePer, in [0, 1].
        interval: Over the samples.
        answers: The samples.
        prompt_tokens: Length of the prompt.
        completion_tokens: Tokens generated for all samples.
        truncated: Samples that were cut at ``max_tokens``: what they would have said is not known.
    """

    seper: float
    interval: Interval
    answers: tuple[SampledAnswer, ...]
    prompt_tokens: int
    completion_tokens: int
    truncated: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """How far adaptive sampling went.

    Attributes:
        samples: Samples in each context.
        most: N, the most that there could have been.
        width: Width of the interval that was asked for.
        interval: Of ΔSePer, at the last step; see :class:`surerag.Adaptive`. It holds the bootstrap's.
        repeated_tokens: Tokens that earlier steps read and generated, and that the last one did again.
    """

    samples: int
    most: int
    width: float
    interval: Interval
    repeated_tokens: int

    @property
    def reached(self) -> bool:
        """Whether the interval is as narrow as was asked; if not, all N samples were drawn."""
        return self.interval.upper - self.interval.lower <= self.width


@dataclass(frozen=True, slots=True)
class SePerResult(Result):
    """What retrieval was worth.

    Attributes:
        question: As asked.
        golds: The gold answers.
        before: Belief without context.
        after: Belief with it.
        delta: ΔSePer = after − before (Eq. 11), in [−1, 1].
        interval: Of ``delta``, over the samples.
        weights: The weighting that was used: ``"frequency"`` where the reader has no log-probabilities.
        kernel: The kernel that was used.
        calls: Prompts that the reader answered, N samples each; under adaptive sampling once for each step.
        judged: Pairs of statements that the entailer was asked about.
        drawn: How far adaptive sampling went; None without it.
    """

    question: str
    golds: tuple[str, ...]
    before: Belief
    after: Belief
    delta: float
    interval: Interval
    weights: Weights
    kernel: Kernel
    calls: int
    judged: int
    drawn: Drawn | None = None

    @property
    def tokens(self) -> int:
        """Tokens of both prompts and of all samples."""
        repeated = 0 if self.drawn is None else self.drawn.repeated_tokens
        return repeated + sum(b.prompt_tokens + b.completion_tokens for b in (self.before, self.after))

    @property
    def truncated(self) -> int:
        """Samples, of both contexts, that were cut at ``max_tokens``."""
        return self.before.truncated + self.after.truncated

    def explain(self) -> str:
        """Return the result as a person would want to read it."""
        spread = f"[{self.interval.lower:+.3f}, {self.interval.upper:+.3f}]"
        lines = [
            self.question,
            f"gold: {' | '.join(self.golds)}",
            f"ΔSePer {self.delta:+.3f}  {spread}  ({self.kernel} kernel, {self.weights} weights)",
        ]
        if self.drawn is not None:
            ends = self.drawn.interval
            lines.append(
                f"{self.drawn.samples} of at most {self.drawn.most} samples in each context: interval "
                f"[{ends.lower:+.3f}, {ends.upper:+.3f}], asked for a width of {self.drawn.width:g}"
            )
        if self.truncated:
            total = len(self.before.answers) + len(self.after.answers)
            lines.append(f"{self.truncated} of {total} samples were cut at max_tokens, and are half answers")
        for name, belief in (("without context", self.before), ("with context", self.after)):
            lines.append(f"{name}: SePer {belief.seper:.3f}")
            lines += [f"  {line}" for line in _tally(belief.answers)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PassageUtility:
    """What one passage was worth beside the others.

    Attributes:
        passage: The passage.
        alone: ΔSePer of this passage by itself (add one in).
        lost: SePer with all passages, minus SePer with all but this one (leave one out).
    """

    passage: Passage
    alone: float
    lost: float


@dataclass(frozen=True, slots=True)
class UtilityResult(Result):
    """ΔSePer of all passages, and the share of each.

    Attributes:
        whole: ΔSePer of all passages together.
        passages: One utility a passage, in order.
    """

    whole: SePerResult
    passages: tuple[PassageUtility, ...]


def _tally(answers: Sequence[SampledAnswer]) -> list[str]:
    """One line for each distinct answer: how often, its weight, how far it means a gold answer."""
    counts = Counter(answer.text for answer in answers)
    weights = dict.fromkeys(counts, 0.0)
    for answer in answers:
        weights[answer.text] += answer.weight
    means = {answer.text: max(answer.entailment) for answer in answers}
    return [
        f"{count:>3} × {text or '(nothing)'}  weight {weights[text]:.2f}, means gold {means[text]:.2f}"
        for text, count in counts.most_common()
    ]
