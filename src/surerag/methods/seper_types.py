"""What SePer is steered by, and what it returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from surerag.errors import ConfigurationError
from surerag.measures.seper import Golds, Weights
from surerag.prompts import SEPER_CLOSED_BOOK, SEPER_FROM_PASSAGES, PromptTemplate
from surerag.types import Passage, Sampling

Kernel = Literal["soft", "hard"]
Likelihood = Literal["mean", "sum"]
Direction = Literal["both", "forward"]
Match = Literal["loose", "strict"]


@dataclass(frozen=True, slots=True)
class SePerPrompts:
    """The method's prompts (appendix D.5); replace either, keeping its slots.

    Attributes:
        closed_book: Slot ``question``.
        from_passages: Slots ``passages`` and ``question``.
    """

    closed_book: PromptTemplate = SEPER_CLOSED_BOOK
    from_passages: PromptTemplate = SEPER_FROM_PASSAGES

    def __post_init__(self) -> None:
        self.closed_book.require("question")
        self.from_passages.require("passages", "question")


@dataclass(frozen=True, slots=True)
class Adaptive:
    """When to stop drawing samples before there are N.

    A first step draws ``first`` samples in each context, and every further one doubles their number, up to
    N. Drawing stops once the interval of ΔSePer is narrow enough. The samples of each step begin with those
    of the step before, so that a run that stops at n gives what a run of n samples gives.

    The interval is the bootstrap's, widened where the analytic one is wider: Wilson's for the share of
    samples in each context, combined by Newcombe's method (1998, Statistics in Medicine 17, method 10).
    A bootstrap of samples that all agree has no width at all; but five samples that agree leave room for
    an answer that the reader gives two times in five.

    Attributes:
        width: Of the interval of ΔSePer, at which drawing stops; in (0, 2]. Where the reader says one thing
            without context and another with it, always, 10 samples give a width of 0.39, 20 one of 0.23.
        first: Samples in the first step, at least 2.
    """

    width: float = 0.4
    first: int = 5

    def __post_init__(self) -> None:
        if not 0 < self.width <= 2:
            raise ConfigurationError(f"width must be in (0, 2], got {self.width!r}")
        if self.first < 2:
            raise ConfigurationError(f"first must be at least 2, got {self.first!r}")


@dataclass(frozen=True, slots=True)
class SePerSettings:
    """Everything that steers the method; where paper and authors' code differ, the choice is here.

    Attributes:
        kernel: ``"soft"`` (entailment probability) or ``"hard"`` (meaning clusters), Eq. 8 and 9.
        weights: See :func:`surerag.measures.answer_weights`.
        likelihood: Of an answer: exp of the ``"mean"`` log-probability of its tokens (the authors' code),
            or of their ``"sum"`` (Eq. 7).
        direction: Soft kernel: the larger entailment of ``"both"`` directions, or ``"forward"`` only.
        question_in_entailment: Whether the entailer sees the question with both statements.
        match: Hard kernel: an answer means a gold answer if the two do not contradict and are not both
            neutral (``"loose"``), or entail each other (``"strict"``).
        threshold: Entailment holds from this probability on; None where it is the likeliest label.
        golds: Over several gold answers; see :func:`surerag.measures.seper_soft`.
        sampling: N, temperature 1, and the seed.
        prompts: The prompts.
        adaptive: When to stop before N samples; None draws all of them.
    """

    kernel: Kernel = "soft"
    weights: Weights = "distinct"
    likelihood: Likelihood = "mean"
    direction: Direction = "both"
    question_in_entailment: bool = True
    match: Match = "loose"
    threshold: float | None = None
    golds: Golds = "max"
    sampling: Sampling = field(default_factory=lambda: Sampling(n=10, temperature=1.0))
    prompts: SePerPrompts = field(default_factory=SePerPrompts)
    adaptive: Adaptive | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigurationError(f"{name} must be one of {choices}, got {getattr(self, name)!r}")
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise ConfigurationError(f"threshold must be in (0, 1] or None, got {self.threshold!r}")
        if self.adaptive is not None and self.adaptive.first > self.sampling.n:
            raise ConfigurationError(
                f"a first step of {self.adaptive.first} samples is more than all {self.sampling.n}",
                hint="give a larger n_samples, or a smaller first step",
            )


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "kernel": ("soft", "hard"),
    "weights": ("distinct", "official", "frequency"),
    "likelihood": ("mean", "sum"),
    "direction": ("both", "forward"),
    "match": ("loose", "strict"),
    "golds": ("max", "mean", "any"),
}


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
    """

    seper: float
    interval: Interval
    answers: tuple[SampledAnswer, ...]
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """How far adaptive sampling went.

    Attributes:
        samples: Samples in each context.
        most: N, the most that there could have been.
        width: Width of the interval that was asked for.
        interval: Of ΔSePer, at the last step; see :class:`Adaptive`. It holds the bootstrap's interval.
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
class SePerResult:
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
class UtilityResult:
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
